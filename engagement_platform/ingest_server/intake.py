"""An event on its way in: checked, freed of personal data, and made a record of the spool, with the answer for it.

Works on one request at a time, in memory. Rules are `events` and `engagement_platform.pii`; keeping is `spool`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from engagement_platform.ingest_server.events import (
    EventRefused,
    Refused,
    Sent,
    as_it_was,
    checked,
    line_of,
    subject_of,
)
from engagement_platform.ingest_server.records import Record, RecordKind, encode
from engagement_platform.pii.declared import declarations
from engagement_platform.pii.keys import Keyring
from engagement_platform.pii.sealing import Sealer, derived, words
from engagement_platform.pii.split import Finding, split
from engagement_platform.settings import Settings


@dataclass(frozen=True)
class Refusal:
    """What the sender is told about one event. field: where personal data was found, as a JSON pointer."""

    index: int
    event_id: str | None
    reason: Refused
    field: str | None = None


@dataclass
class Taken:
    """One request: what goes to the spool, and what is answered."""

    accepted: int = 0
    refused: list[Refusal] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    found: Counter[str] = field(default_factory=Counter)
    """Kinds of personal data that nobody declared."""
    values: Counter[str] = field(default_factory=Counter)
    """Declared values: `kept` for the vault, `dropped` because nobody is their subject."""


class SpoolSeal:
    """Seals what lies in the spool, with a key for each hour, so that it is no place of personal data in the open."""

    def __init__(self, secret: bytes, spool: str) -> None:
        self._secret, self._spool = secret, spool
        self._hour, self._sealer = -1, Sealer(derived(secret, "none"))

    def seal(self, kind: RecordKind, game: str, ref: str, hour: int, plain: bytes) -> bytes:
        """Encrypted for the spool."""
        return self._of(hour).seal(plain, words("spool", kind.value, game, ref))

    def open(self, record: Record) -> bytes:
        """What was sealed. Raises SealBroken."""
        about = words("spool", record.kind.value, record.game, record.ref)
        return self._of(record.hour).open(record.sealed, about, "A record of the spool")

    def _of(self, hour: int) -> Sealer:
        # Random nonces: 3,000 values a second for an hour are far below 2**32 values of one key.
        if hour != self._hour:
            self._hour, self._sealer = hour, Sealer(derived(self._secret, f"spool/{self._spool}/{hour}"))
        return self._sealer


class Intake:
    """Takes requests in. Raises PiiDeclarationRefused, and what reading a key raises, when it is made; never later."""

    def __init__(self, settings: Settings, keyring: Keyring, spool: str) -> None:
        self._limits, self._unknown = settings.ingest_server, settings.pii.unknown
        self._declared = declarations(settings.pii.fields, settings.pii.safe, settings.pii.subject)
        self._ref: Callable[[str], str] = keyring.ref
        self._digest = keyring.digest
        self._seal = SpoolSeal(keyring.secret("spool"), spool)
        keyring.ref("")
        keyring.digest("")

    def take(self, game: str, sent: Sequence[Sent], now: datetime) -> Taken:
        """Every event accepted or refused, each with its record. now: the server's clock, UTC."""
        taken = Taken()
        for index, one in enumerate(sent):
            self._one(taken, game, index, one, now)
        return taken

    def refuse_whole(self, game: str, body: bytes, reason: Refused, now: datetime) -> Taken:
        """A body that is no list of events, kept as one refused event."""
        taken = Taken()
        self._refuse(taken, game, Refusal(0, None, reason), Sent(None, reason, body), "", now)
        return taken

    def _one(self, taken: Taken, game: str, index: int, sent: Sent, now: datetime) -> None:
        event = sent.value if isinstance(sent.value, dict) else {}
        ref = ""
        refusal: Refusal | None = None
        try:
            ref = self._reference(event)
            taken.records.append(self._accepted(taken, game, sent, ref, now))
        except _PiiRefused as refused:
            refusal = Refusal(index, _told(event), refused.reason, refused.finding.path)
        except EventRefused as refused:
            refusal = Refusal(index, _told(event), refused.reason)
        if refusal is None:
            taken.accepted += 1
        else:
            self._refuse(taken, game, refusal, sent, ref, now)

    def _reference(self, event: dict[str, Any]) -> str:
        subject = subject_of(event, self._declared.subject_parts)
        return "" if subject is None else self._ref(subject)

    def _accepted(self, taken: Taken, game: str, sent: Sent, ref: str, now: datetime) -> bytes:
        limits = self._limits
        checked(
            sent, game, now, max_bytes=limits.max_event_bytes, max_depth=limits.max_depth, max_ahead=limits.max_ahead
        )
        event = cast(dict[str, Any], sent.value)
        event_type = event["event_type"]
        parts = split(event, self._declared.rules(event_type), self._unknown, self._digest)
        taken.found.update(finding.kind.value for finding in parts.findings)
        if (finding := parts.refused_by(self._unknown)) is not None:
            raise _PiiRefused(Refused.PII_IN_ID if finding.kept else Refused.PII_FOUND, finding)
        hour, sealed = _hour(now), b""
        if parts.values:
            taken.values["kept" if ref else "dropped"] += len(parts.values)
        if parts.values and ref:
            values = [(value.declared, value.path, value.value) for value in parts.values]
            plain = json.dumps([event["event_id"], event_type, now.isoformat(), values]).encode()
            sealed = self._seal.seal(RecordKind.ACCEPTED, game, ref, hour, plain)
        line = line_of({**parts.clean, "game_id": game, "received_ts": now.isoformat(timespec="milliseconds")})
        return encode(Record(RecordKind.ACCEPTED, game, ref, hour, line + b"\n", sealed))

    def _refuse(self, taken: Taken, game: str, refusal: Refusal, sent: Sent, ref: str, now: datetime) -> None:
        taken.refused.append(refusal)
        # Nothing of the event is in the open part, not even the name of a field.
        said = {"reason_code": refusal.reason, "reason": refusal.reason.sentence, "received_ts": now.isoformat()}
        hour = _hour(now)
        sealed = self._seal.seal(RecordKind.REFUSED, game, ref, hour, as_it_was(sent))
        taken.records.append(encode(Record(RecordKind.REFUSED, game, ref, hour, json.dumps(said).encode(), sealed)))


class _PiiRefused(Exception):
    """Personal data where it may not be."""

    def __init__(self, reason: Refused, finding: Finding) -> None:
        super().__init__(reason)
        self.reason, self.finding = reason, finding


def _hour(now: datetime) -> int:
    return int(now.timestamp()) // 3600


def _told(event: dict[str, Any]) -> str | None:
    """The event's own id, for the sender to find it by."""
    found = event.get("event_id")
    return found if isinstance(found, str) and len(found) <= 256 else None
