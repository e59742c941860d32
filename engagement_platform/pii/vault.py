"""The vault: personal data encrypted under one key a subject, in Delta tables apart from the events.

Rows come in once for each segment of the server's spool, are read for a purpose that is written down, and go when their
subject is erased (`erasure`). The ingest server has no JVM, so delta-rs writes these tables.
"""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from deltalake import DeltaTable

from engagement_platform.engine.database import utc_now
from engagement_platform.engine.durable_files import private_folder
from engagement_platform.engine.model import Transaction
from engagement_platform.errors import PlatformError
from engagement_platform.lake import log, scan, store_tables
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.commit_lock import commit_lock
from engagement_platform.lake.contract import Column, Mode, Table
from engagement_platform.pii.keys import Keyring, Owner, open_pii
from engagement_platform.pii.master import Masters
from engagement_platform.pii.sealing import Sealer, words
from engagement_platform.settings import Settings
from engagement_platform.sources.strict_json import Refused
from engagement_platform.sources.values import read_id

Row = dict[str, Any]

_GAME = Column("game", "string", "Whose API key sent the event.")
_REF = Column("subject_ref", "string", "Keyed hash of the subject's id.")
_SEALED = Column("sealed", "binary", "Nonce, ciphertext and tag (AES-256-GCM).")
_KEY_VERSION = Column("key_version", "long", "Version of the subject's data key.")
_DATE = Column("received_date", "date", "UTC day of received_ts.")
_TS = Column("received_ts", "timestamp", "When the server took the event, UTC.")
_SEGMENT = Column("segment", "long", "Segment of the server's spool that it came through.")

VAULT = Table(
    key=("pii", "vault"),
    description="Personal data of events, one encrypted row for each value, apart from the events.",
    mode=Mode.MUTABLE,
    partitioned_by=("received_date",),
    bounds=0,
    columns=(
        _DATE,
        _GAME,
        _REF,
        Column("event_id", "string", "Event that carried it."),
        Column("event_type", "string", "Type of that event."),
        Column("field", "string", "Declared pointer; the exact path is in the ciphertext."),
        _KEY_VERSION,
        _TS,
        _SEGMENT,
        _SEALED,
    ),
)

REFUSED = Table(
    key=("pii", "refused"),
    description="Events that the ingest server refused, whole and encrypted, with the reason.",
    mode=Mode.MUTABLE,
    partitioned_by=("received_date",),
    bounds=0,
    columns=(
        _DATE,
        Column("refused_id", "string", "Segment and place in it."),
        _GAME,
        Column("subject_ref", "string", "Keyed hash of the subject's id; of the day where no subject was readable."),
        Column("reason_code", "string", "Stable code of the rule that was broken."),
        Column("reason", "string", "The same as a sentence; nothing of the event is in it."),
        _KEY_VERSION,
        _TS,
        _SEGMENT,
        _SEALED,
    ),
)

AUDIT = Table(
    key=("pii", "audit"),
    description="Who read whose personal data when and for what; written before anything is decrypted.",
    mode=Mode.APPEND_ONLY,
    columns=(
        Column("read_id", "string", "Unique."),
        Column("read_ts", "timestamp", "UTC."),
        Column("reader", "string", "Who, as the caller says."),
        Column("purpose", "string", "What for; one of pii.purposes."),
        Column("table_name", "string", "pii/vault or pii/refused."),
        Column("game", "string", "Null: all games."),
        _REF,
    ),
)


class PurposeRefused(PlatformError):
    """Personal data was to be read for a purpose that is not declared."""


class IdRefused(PlatformError):
    """An id was given that no record has, since decoding refuses it."""

    def __init__(self, broken: Refused) -> None:
        super().__init__(
            f"{broken.rejection.sentence} Decoding refuses records with such an id ({broken.rejection.code}), so "
            "nobody is found by it. Nothing was read or changed. Give the id exactly as records have it."
        )


@dataclass(frozen=True)
class Deposit:
    """The personal data of one event; a row for each value."""

    owner: Owner
    event_id: str
    event_type: str
    received_ts: datetime
    values: Sequence[tuple[str, str, object]]
    """(declared pointer, exact path, JSON value) of each."""
    table: ClassVar[Table] = VAULT

    def rows(self) -> Iterator[tuple[Row, bytes]]:
        """(columns in the open, what is encrypted)."""
        for field, path, value in self.values:
            plain = json.dumps([path, value], ensure_ascii=False).encode("utf-8", "surrogatepass")
            yield {"event_id": self.event_id, "event_type": self.event_type, "field": field}, plain


@dataclass(frozen=True)
class Refusal:
    """An event that was refused; one row."""

    refused_id: str
    owner: Owner
    """Of the event's subject, or one made for the day, where no subject could be read."""
    reason_code: str
    reason: str
    received_ts: datetime
    body: bytes
    """The event as it came, or as JSON again; compressed by zlib, since it may be a thousand times as large."""
    table: ClassVar[Table] = REFUSED

    def rows(self) -> Iterator[tuple[Row, bytes]]:
        yield {"refused_id": self.refused_id, "reason_code": self.reason_code, "reason": self.reason}, self.body


@dataclass(frozen=True)
class Stored:
    """One value as the vault has it, decrypted."""

    game: str
    event_id: str
    event_type: str
    path: str
    value: object
    received_ts: datetime


class Vault:
    """The tables pii/vault, pii/refused and pii/audit of one lake."""

    def __init__(self, settings: Settings, keyring: Keyring) -> None:
        self.keyring, self.root, self._settings = keyring, settings.lake, settings
        self._purposes = [purpose.strip() for purpose in settings.pii.purposes.split(",") if purpose.strip()]

    def ref(self, subject: str) -> str:
        """The reference of a subject. Raises IdRefused."""
        return self.keyring.ref(checked_id(subject, "The subject's id", self._settings))

    def uri(self, table: Table) -> str:
        """Where a table is, as delta-rs names it."""
        return log.storage_uri(table.uri(self.root))

    def append(self, events: Sequence[Deposit] | Sequence[Refusal], segment: int, txn: Transaction) -> int:
        """Encrypt and append events of one kind in one commit; how many rows. Those of erased subjects are left out.

        Skipped when this transaction is in the table. Raises TableBusy.
        """
        if not events:
            return 0
        table = events[0].table
        # Keys are looked up under the lock: an erasure, which takes the same one, comes wholly before or after.
        with commit_lock(self.root, VAULT.name):
            found = self.opened(table)
            if store_tables.written(found, txn):
                return 0
            keys, made = self.keyring.keys_for({event.owner for event in events}), list[Row]()
            for event in events:
                if (key := keys.get(event.owner)) is None:
                    continue
                for columns, plain in event.rows():
                    row = {
                        "game": event.owner.game, "subject_ref": event.owner.ref, "key_version": key.version,
                        "received_ts": event.received_ts, "received_date": event.received_ts.date(),
                        "segment": segment, **columns,
                    }  # fmt: skip
                    made.append({**row, "sealed": Sealer(key.key).seal(plain, about(table, row))})
            if made:
                store_tables.append(found, table_of(made, table), txn)
            return len(made)

    def opened(self, table: Table) -> DeltaTable:
        """One of the tables, made when it is missing. For writers that hold the lock."""
        if Path(self.root).is_relative_to(self._settings.home.expanduser().resolve()):
            # What delta-rs makes in it goes by the umask of the program, which is of all its threads.
            private_folder(Path(table.uri(self.root)))
        store_tables.create(self.uri(table), table)
        return DeltaTable(self.uri(table))

    def read(self, subject: str, *, purpose: str, reader: str, game: str | None = None) -> list[Stored]:
        """All that is known of a subject, oldest first; the read is in pii/audit before anything is decrypted.

        game: None for all. reader: who asks. Raises IdRefused, PurposeRefused, SealBroken. Rows without a key are of a
        subject that is being erased, and are left out.
        """
        ref = self.ref(subject)
        self._audit(VAULT, ref, game, purpose, reader)
        stored = list[Stored]()
        for row, plain in self._decrypted(VAULT, [ref], game):
            path, value = json.loads(plain)
            named = {name: row[name] for name in ("game", "event_id", "event_type", "received_ts")}
            stored.append(Stored(path=path, value=value, **named))
        return sorted(stored, key=lambda one: (one.received_ts, one.event_id, one.path))

    def refused(self, game: str, *, purpose: str, reader: str) -> Iterator[tuple[Row, bytes]]:
        """Refused events of a game, oldest first: (row without the ciphertext, the event). Audited as `read`.

        One after the other, so that they need not all fit into memory.
        """
        self._audit(REFUSED, "", game, purpose, reader)
        found = self._decrypted(REFUSED, None, game)
        found.sort(key=lambda one: (one[0]["received_ts"], one[0]["refused_id"]))
        return (({name: row[name] for name in row if name != "sealed"}, zlib.decompress(body)) for row, body in found)

    def _decrypted(self, table: Table, refs: Sequence[str] | None, game: str | None) -> list[tuple[Row, bytes]]:
        """Rows with what is encrypted in them; without those whose key is gone."""
        decrypted = self.decryptor(table)
        # A rotation destroys former keys under the same lock.
        with commit_lock(self.root, VAULT.name):
            opened = [(row, decrypted(row)) for row in self.rows_of(table, refs) if game in (None, row["game"])]
        return [(row, plain) for row, plain in opened if plain is not None]

    def decryptor(self, table: Table) -> Callable[[Row], bytes | None]:
        """A function from a row to what is encrypted in it, None when its key is gone; it asks for each key once.

        Not audited.
        """
        key_of = cache(self.keyring.key)

        def decrypted(row: Row) -> bytes | None:
            key = key_of(Owner(row["game"], row["subject_ref"]), row["key_version"])
            if key is None:
                return None
            return Sealer(key).open(row["sealed"], about(table, row), f"A row of {table.name}")

        return decrypted

    def rows_of(self, table: Table, refs: Sequence[str] | None = None) -> list[Row]:
        """Rows of some references, or all, still encrypted."""
        if log.version(table.uri(self.root)) is None:
            return []
        where = {} if refs is None else {"subject_ref": refs}
        batches = scan.batches(DeltaTable(self.uri(table)), table.column_names, where)
        return [row for batch in batches for row in batch.to_pylist()]

    def days(self, table: Table) -> list[date]:
        """The days of which there are rows, sorted; none where there is no table."""
        if log.version(table.uri(self.root)) is None:
            return []
        parts = DeltaTable(self.uri(table)).partitions()
        return sorted({date.fromisoformat(str(part["received_date"])) for part in parts})

    def _audit(self, table: Table, ref: str, game: str | None, purpose: str, reader: str) -> None:
        if purpose not in self._purposes:
            raise PurposeRefused(
                f"Personal data is not read for the purpose {purpose!r}. Nothing was read. Purposes: "
                f"{', '.join(self._purposes)}; they are the setting pii.purposes."
            )
        read_id = str(uuid.uuid4())
        row = {
            "read_id": read_id, "read_ts": utc_now(), "reader": reader, "purpose": purpose,
            "table_name": table.name, "game": game, "subject_ref": ref,
        }  # fmt: skip
        with commit_lock(self.root, AUDIT.name):
            store_tables.append(self.opened(AUDIT), table_of([row], AUDIT), Transaction(f"pii-audit/{read_id}", 0))


def checked_id(id_: object, field: str, settings: Settings) -> str:
    """The id, by the rule of decoding. field: what it is called in the message. Raises IdRefused."""
    try:
        return read_id(id_, field, settings.decoding.max_id_length)
    except Refused as broken:
        raise IdRefused(broken) from None


def open_vault(settings: Settings) -> Vault:
    """The vault of the lake that settings name, with its keys. Raises StoresUnavailable, StoresOfAnotherVersion."""
    return Vault(settings, Keyring(open_pii(settings.store_url), Masters(settings)))


def about(table: Table, row: Mapping[str, Any]) -> bytes:
    """What a value is bound to: moved to another row, column, subject or table it does not open."""
    place = (row["event_id"], row["field"]) if table is VAULT else (row["refused_id"], "body")
    return words(table.name, place[1], row["game"], row["subject_ref"], row["key_version"], place[0])
