"""Checks events, takes personal data out of them, and makes records of the spool and the answer.

Works on one request at a time, in memory, in any number of threads. Rules are `events` and `pii`.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, cast

from pydantic import BaseModel, Field

from engagement_platform.ingest_server.events import EventRefused, Refused, Sent, as_it_was, check, line_of, subject_of
from engagement_platform.ingest_server.spool import Record, RecordKind
from engagement_platform.pii.declared import declarations
from engagement_platform.pii.keys import Keyring
from engagement_platform.pii.redaction import redact
from engagement_platform.pii.sealing import Sealer, derived, words
from engagement_platform.settings import Settings
from engagement_platform.settings.section import KIB

LONGEST_LINE = 1000 * KIB
"""With its line feed, which Firehose takes; `max_event_bytes` may be as much, and fields and hashes come on top."""


class RefusedEvent(BaseModel):
    """One event that was refused, and kept with its reason."""

    index: int = Field(description="Place of the event in the request, from 0.")
    event_id: str | None = Field(description="Its id, where it has one.")
    reason_code: str
    reason: str
    field: str | None = Field(default=None, description="JSON pointer to what looks like personal data.")


@dataclass
class Taken:
    """One request: what goes to the spool, and what is answered."""

    accepted: int = 0
    refused: list[RefusedEvent] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    found: Counter[str] = field(default_factory=Counter)
    """Kinds of personal data that nobody declared."""
    values: Counter[str] = field(default_factory=Counter)
    """Declared values: `kept` for the vault, `dropped` because nobody is their subject."""


class SpoolSeal:
    """Seals what waits in the spool, with a key for each hour, so that no personal data is there in the open."""

    def __init__(self, secret: bytes, spool: str) -> None:
        # Random nonces: 3,000 values a second for an hour are far below 2**32 values of one key.
        self._of = lru_cache(4)(lambda hour: Sealer(derived(secret, f"spool/{spool}/{hour}")))

    def seal(self, kind: RecordKind, game: str, ref: str, hour: int, plain: bytes) -> bytes:
        """Encrypted for the spool; a refused event is compressed before, since nothing else bounds what it holds."""
        plain = zlib.compress(plain) if kind is RecordKind.REFUSED else plain
        return self._of(hour).seal(plain, words("spool", kind.value, game, ref))

    def open(self, record: Record) -> bytes:
        """What was sealed; a refused event is compressed still. Raises SealBroken."""
        about = words("spool", record.kind.value, record.game, record.ref)
        return self._of(record.hour).open(record.sealed, about, "A record of the spool")


class Intake:
    """Takes requests in. Raises PiiDeclarationRefused, and what reading a key raises, when it is made; never later."""

    def __init__(self, settings: Settings, keyring: Keyring, spool: str) -> None:
        self._limits, self._unknown = settings.ingest_server, settings.pii.unknown
        # An erasure and the jobs go by it, too: what is taken in here can be found and erased there.
        self._max_id_length = settings.decoding.max_id_length
        self._declared = declarations(settings.pii.fields, settings.pii.safe, settings.pii.subject)
        self._keyring = keyring
        self._seal = SpoolSeal(keyring.secret("spool"), spool)
        keyring.ref("")
        keyring.digest("")

    def take(self, game: str, sent: Sequence[Sent], now: datetime) -> Taken:
        """Every event accepted or refused, each with its record. now: the server's clock, UTC."""
        taken = Taken()
        for index, one in enumerate(sent):
            event = one.value if isinstance(one.value, dict) else {}
            ref = ""
            try:
                subject = subject_of(event, self._declared.subject_parts, self._max_id_length)
                ref = "" if subject is None else self._keyring.ref(subject)
                taken.records.append(self._accepted(taken, game, one, ref, now))
                taken.accepted += 1
            except EventRefused as refused:
                self._refuse(taken, game, index, one, refused, ref, now)
        return taken

    def refuse_whole(self, game: str, body: bytes, reason: Refused, now: datetime) -> Taken:
        """A body that is no list of events, kept as one refused event."""
        taken = Taken()
        self._refuse(taken, game, 0, Sent(None, reason, body), EventRefused(reason), "", now)
        return taken

    def _accepted(self, taken: Taken, game: str, sent: Sent, ref: str, now: datetime) -> Record:
        check(sent, game, now, self._limits, self._max_id_length)
        event = cast(dict[str, Any], sent.value)
        redacted = redact(event, self._declared.rules(event["event_type"]), self._unknown, self._keyring.digest)
        taken.found.update(finding.kind.value for finding in redacted.findings)
        if (finding := redacted.refused_by(self._unknown)) is not None:
            raise EventRefused(Refused.PII_IN_ID if finding.kept else Refused.PII_FOUND, finding.path)
        line = line_of({**redacted.clean, "game_id": game, "received_ts": now.isoformat(timespec="milliseconds")})
        if len(line) >= LONGEST_LINE:
            raise EventRefused(Refused.TOO_LARGE)
        hour, sealed = _hour(now), b""
        if redacted.values:
            taken.values["kept" if ref else "dropped"] += len(redacted.values)
        if redacted.values and ref:
            plain = json.dumps([event["event_id"], event["event_type"], now.isoformat(), redacted.values]).encode()
            sealed = self._seal.seal(RecordKind.ACCEPTED, game, ref, hour, plain)
        return Record(RecordKind.ACCEPTED, game, ref, hour, line + b"\n", sealed)

    def _refuse(
        self, taken: Taken, game: str, index: int, sent: Sent, refused: EventRefused, ref: str, now: datetime
    ) -> None:
        # The event's own id, for the sender to find it by; half a surrogate pair cannot be answered in UTF-8.
        event_id = sent.value.get("event_id") if isinstance(sent.value, dict) else None
        event_id = event_id if isinstance(event_id, str) and len(event_id) <= self._max_id_length else None
        event_id = event_id and event_id.encode(errors="replace").decode()
        why = {"reason_code": refused.reason, "reason": refused.reason.sentence}
        taken.refused.append(RefusedEvent(index=index, event_id=event_id, field=refused.field, **why))
        # Nothing of the event is in the open part, not even the name of a field.
        why["received_ts"] = now.isoformat()
        hour = _hour(now)
        sealed = self._seal.seal(RecordKind.REFUSED, game, ref, hour, as_it_was(sent))
        taken.records.append(Record(RecordKind.REFUSED, game, ref, hour, json.dumps(why).encode(), sealed))


def _hour(now: datetime) -> int:
    return int(now.timestamp()) // 3600
