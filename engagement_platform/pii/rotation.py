"""Rotates the keys of personal data: a new master key, new data keys, and the vault encrypted anew with those.

What wraps keys is `keys`. After it, keys from before open nothing of the new lake.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from functools import partial

from deltalake import DeltaTable

from engagement_platform.lake import scan, store_tables
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.commit_lock import commit_lock
from engagement_platform.lake.contract import Table
from engagement_platform.pii.erasure import DELIVERY, once
from engagement_platform.pii.keys import Owner
from engagement_platform.pii.sealing import Sealer
from engagement_platform.pii.vault import REFUSED, VAULT, Row, Vault, about

NO_HELP = (
    "It does not help against copies from before (of the lake together with the stores and the master key of then) "
    "or against what was read from the vault. The secrets of references, hashes, receipts and the spool are wrapped "
    "anew and stay the same: who has them can tell whether an id that he guesses is in the tables, and open what is in "
    "the spool."
)


@dataclass(frozen=True)
class Rotated:
    """The version of the new master key, how many keys it wrapped, and how many rows have a new data key."""

    version: str
    keys: int
    rows: int


def rotate(vault: Vault) -> Rotated:
    """Rotate everything. Interrupted, it is done by the next. Deliveries wait for a day of the vault at most.

    Raises MasterKeyUnusable, MasterKeyBusy, SealBroken (a row is damaged: its former key stays), TableBusy.
    """

    def days() -> list[tuple[Table, date]]:
        return [(table, day) for table in (VAULT, REFUSED) for day in vault.days(table)]

    version, keys = vault.keyring.rotate()
    alone, rows, last = partial(commit_lock, vault.root, VAULT.name), 0, None
    while True:
        with alone():
            last = vault.keyring.renew(last)
        if last is None:
            break
    for table, day in days():
        with alone():
            rows += _encrypt_anew(vault, table, day)
    # No erasure decrypts meanwhile; what was on its way with a former key has arrived.
    with commit_lock(vault.root, DELIVERY), alone():
        rows += sum(_encrypt_anew(vault, table, day) for table, day in days())
        # On an object store there is no such lock: one more version stays until the next rotation.
        vault.keyring.forget_former(keep=int("://" in vault.root))
        for table in {table for table, _ in days()}:
            store_tables.purge(DeltaTable(vault.uri(table)))
    return Rotated(version, keys, rows)


def _encrypt_anew(vault: Vault, table: Table, day: date) -> int:
    """Encrypt the rows of a day with their subjects' newest keys, in one commit; how many."""
    found, where = DeltaTable(vault.uri(table)), {"received_date": [day]}
    of = scan.find(found, ("game", "subject_ref", "key_version"), where).to_pylist()
    newest = vault.keyring.newest({_owner(row) for row in of})
    if all(_owner(row) not in newest or newest[_owner(row)].version == row["key_version"] for row in of):
        return 0
    made, count, decrypted = list[Row](), 0, vault.decryptor(table)
    for row in scan.find(found, table.column_names, where).to_pylist():
        key, plain = newest.get(_owner(row)), decrypted(row)
        if key is not None and plain is not None:
            row["key_version"] = key.version
            row["sealed"] = Sealer(key.key).seal(plain, about(table, row))
            count += 1
        made.append(row)
    store_tables.replace(found, where, table_of(made, table), once())
    return count


def _owner(row: Row) -> Owner:
    return Owner(row["game"], row["subject_ref"])
