"""The vault: personal data encrypted under one key a subject, in Delta tables apart from the events.

Rows come in once for each segment of the server's spool, are read for a purpose that is written down, and go when their
subject is erased (`erasure`). Commits are delta-rs's alone, so they need no Spark.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, TypeVar

from deltalake import DeltaTable

from engagement_platform.engine.database import utc_now
from engagement_platform.engine.model import Transaction
from engagement_platform.errors import PlatformError
from engagement_platform.lake import log, scan, store_tables
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.contract import Table
from engagement_platform.lake.turns import turn
from engagement_platform.pii.contracts import AUDIT, REFUSED, VAULT
from engagement_platform.pii.database import open_pii
from engagement_platform.pii.keys import DataKey, Keyring, Owner
from engagement_platform.pii.master import Masters
from engagement_platform.pii.sealing import Sealer, words
from engagement_platform.settings import Settings


class PurposeRefused(PlatformError):
    """Somebody wanted to read personal data for a purpose that nobody declared."""

    def __init__(self, purpose: str, known: Sequence[str]) -> None:
        self.purpose = purpose
        super().__init__(
            f"Personal data is not read for the purpose {purpose!r}. Nothing was read. Purposes: {', '.join(known)}; "
            "they are the setting pii.purposes."
        )


@dataclass(frozen=True)
class Deposit:
    """The personal data of one event."""

    owner: Owner
    event_id: str
    event_type: str
    received_ts: datetime
    values: Sequence[tuple[str, str, object]]
    """(declared pointer, exact path, JSON value) of each."""


@dataclass(frozen=True)
class Refusal:
    """An event that was refused."""

    refused_id: str
    owner: Owner
    """Of the event's subject, or one made for the day, where no subject could be read."""
    reason_code: str
    reason: str
    received_ts: datetime
    body: bytes
    """The event as it came, or as JSON again."""


@dataclass(frozen=True)
class Stored:
    """One value as the vault has it, decrypted."""

    game: str
    event_id: str
    event_type: str
    path: str
    value: object
    received_ts: datetime


E = TypeVar("E", Deposit, Refusal)
Finder = Callable[[Mapping[str, Any]], DataKey | None]


class Vault:
    """The tables pii/vault, pii/refused and pii/audit of one lake. clock: of read_ts only."""

    def __init__(self, settings: Settings, keyring: Keyring, *, clock: Callable[[], datetime] = utc_now) -> None:
        self.keyring, self.root, self._clock = keyring, settings.lake, clock
        self._purposes = [purpose.strip() for purpose in settings.pii.purposes.split(",") if purpose.strip()]

    def uri(self, table: Table) -> str:
        """Where a table is, as delta-rs names it."""
        return log.storage_uri(table.uri(self.root))

    def deposit(self, deposits: Sequence[Deposit], segment: int, txn: Transaction) -> int:
        """Encrypt and append the values, one row each; how many. Skipped when this transaction is in the table.

        Values of erased subjects are left out. One commit. Raises TableBusy.
        """

        def rows(deposit: Deposit, key: DataKey) -> Iterator[dict[str, object]]:
            sealer = Sealer(key.key)
            for field, path, value in deposit.values:
                plain = json.dumps([path, value], ensure_ascii=False).encode("utf-8", "surrogatepass")
                about = _about(VAULT, deposit.owner, key.version, deposit.event_id, field)
                event = {"event_id": deposit.event_id, "event_type": deposit.event_type, "field": field}
                yield {**event, "sealed": sealer.seal(plain, about)}

        return self._append(VAULT, deposits, rows, segment, txn)

    def refuse(self, refusals: Sequence[Refusal], segment: int, txn: Transaction) -> int:
        """Encrypt and append refused events; how many. As `deposit`."""

        def rows(refusal: Refusal, key: DataKey) -> Iterator[dict[str, object]]:
            about = _about(REFUSED, refusal.owner, key.version, refusal.refused_id, "body")
            why = {"reason_code": refusal.reason_code, "reason": refusal.reason}
            yield {"refused_id": refusal.refused_id, **why, "sealed": Sealer(key.key).seal(refusal.body, about)}

        return self._append(REFUSED, refusals, rows, segment, txn)

    def _append(
        self,
        table: Table,
        events: Sequence[E],
        rows: Callable[[E, DataKey], Iterator[dict[str, object]]],
        segment: int,
        txn: Transaction,
    ) -> int:
        if not events:
            return 0
        # Keys are looked up within the turn: an erasure, which takes the same one, comes wholly before or after.
        with turn(self.root, VAULT.name):
            found = self.opened(table)
            if store_tables.written(found, txn):
                return 0
            keys, made = self.keyring.keys_for({event.owner for event in events}), list[dict[str, object]]()
            for event in events:
                if (key := keys.get(event.owner)) is not None:
                    received = event.received_ts
                    of_all = {"game": event.owner.game, "subject_ref": event.owner.ref, "key_version": key.version}
                    of_all |= {"received_ts": received, "received_date": received.date(), "segment": segment}
                    made += ({**of_all, **row} for row in rows(event, key))
            if made:
                store_tables.append(found, table_of(made, table), txn)
            return len(made)

    def opened(self, table: Table) -> DeltaTable:
        """One of the tables, made when it is missing. For writers that hold the turn."""
        store_tables.create(self.uri(table), table)
        return DeltaTable(self.uri(table))

    def read(self, subject: str, *, purpose: str, reader: str, game: str | None = None) -> list[Stored]:
        """All that is known of a subject, oldest first; the read is in pii/audit before anything is decrypted.

        game: None for all. reader: who asks. Raises PurposeRefused, SealBroken. Rows without a key are of a subject
        that is being erased, and are left out.
        """
        ref = self.keyring.ref(subject)
        self._audit(VAULT, ref, game, purpose, reader)
        stored, key_of = [], self.finder()
        for row in self._rows(VAULT, [ref]):
            key = key_of(row)
            if key is None or (game is not None and row["game"] != game):
                continue
            about = _about(VAULT, Owner(row["game"], ref), row["key_version"], row["event_id"], row["field"])
            path, value = json.loads(Sealer(key.key).open(row["sealed"], about, f"A value of event {row['event_id']}"))
            stored.append(Stored(row["game"], row["event_id"], row["event_type"], path, value, row["received_ts"]))
        return sorted(stored, key=lambda one: (one.received_ts, one.event_id, one.path))

    def refused(self, game: str, *, purpose: str, reader: str) -> list[tuple[dict[str, Any], bytes]]:
        """Refused events of a game, oldest first: (row without the ciphertext, the event). Audited as `read`."""
        self._audit(REFUSED, "", game, purpose, reader)
        key_of = self.finder()
        opened = [(row, self.body(row, key_of)) for row in self._rows(REFUSED, None) if row["game"] == game]
        told = [
            ({name: row[name] for name in row if name != "sealed"}, body) for row, body in opened if body is not None
        ]
        return sorted(told, key=lambda one: (one[0]["received_ts"], one[0]["refused_id"]))

    def body(self, row: Mapping[str, Any], key_of: Finder) -> bytes | None:
        """The refused event of a row of pii/refused; None when its key is gone. Not audited: for erasures."""
        key = key_of(row)
        if key is None:
            return None
        owner = Owner(row["game"], row["subject_ref"])
        about = _about(REFUSED, owner, row["key_version"], row["refused_id"], "body")
        return Sealer(key.key).open(row["sealed"], about, f"The refused event {row['refused_id']}")

    def rows_of(self, table: Table, refs: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Rows of some references, or all, still encrypted."""
        return list(self._rows(table, refs))

    def _rows(self, table: Table, refs: Sequence[str] | None) -> Iterator[dict[str, Any]]:
        if log.version(table.uri(self.root)) is None:
            return
        where = {} if refs is None else {"subject_ref": refs}
        for batch in scan.batches(DeltaTable(self.uri(table)), table.column_names, where):
            yield from batch.to_pylist()

    def finder(self) -> Finder:
        """A function from a row to its key, which asks for each key once; for one pass over rows."""

        @cache
        def found(game: str, ref: str, version: int) -> DataKey | None:
            return self.keyring.key(Owner(game, ref), version)

        return lambda row: found(row["game"], row["subject_ref"], row["key_version"])

    def _audit(self, table: Table, ref: str, game: str | None, purpose: str, reader: str) -> None:
        if purpose not in self._purposes:
            raise PurposeRefused(purpose, self._purposes)
        read_id = str(uuid.uuid4())
        row = {
            "read_id": read_id, "read_ts": self._clock(), "reader": reader, "purpose": purpose,
            "table_name": table.name, "game": game, "subject_ref": ref,
        }  # fmt: skip
        with turn(self.root, AUDIT.name):
            store_tables.append(self.opened(AUDIT), table_of([row], AUDIT), Transaction(f"pii-audit/{read_id}", 0))


def open_vault(settings: Settings) -> Vault:
    """The vault of the lake that settings name, with its keys. Raises StoresUnavailable, StoresTooNew."""
    return Vault(settings, Keyring(open_pii(settings.store_url), Masters(settings)))


def _about(table: Table, owner: Owner, key_version: int, row: str, column: str) -> bytes:
    """What a value is bound to: moved to another row, column, subject or table it does not open."""
    return words(table.name, column, owner.game, owner.ref, key_version, row)
