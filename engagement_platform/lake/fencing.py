"""Makes late writes impossible in Delta tables: an empty append under the transaction id that the late write has.

Delta records the id of an append without rows too (4.4.0; a commit with a `txn` action and no file). A write under the
same id that begins later is skipped; one that is under way has read the id, and fails when it commits
(ConcurrentTransactionException). Which ids those are is `engine/fencing`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engagement_platform.engine.fencing import Fencing, TableTransaction
from engagement_platform.engine.model import Transaction
from engagement_platform.errors import PlatformError, first_line
from engagement_platform.lake import driver_lease, log
from engagement_platform.lake.commit_lock import commit_lock
from engagement_platform.lake.contract import Table
from engagement_platform.lake.lake import Lake, save_under
from engagement_platform.lake.optimize import CONFLICT

ATTEMPTS = 10
"""A conflict means that another commit landed in between; ten in a row within seconds are a guess at never."""


class FenceNotPlaced(PlatformError):
    """Other commits kept coming in between, so that a predecessor's late write may still land."""


def targets(tables: Mapping[str, Table | None]) -> dict[str, str | None]:
    """`<process>/<commit>` -> name of the table, as the engine wants them."""
    return {commit: None if table is None else table.name for commit, table in tables.items()}


@dataclass(frozen=True)
class LakeFencing(Fencing):
    """Keeps earlier attempts of a job out of the tables of one lake.

    targets: `<process>/<commit>` -> name of the table it writes. None for one that carries no transaction of the batch:
    RESTORE has none, and a watermark is a transaction of its own.
    """

    lake: Lake
    targets: Mapping[str, str | None] = field(default_factory=dict)

    def check(self) -> None:
        """Raise LakeHeld when another driver may write to the lake by now."""
        driver_lease.check(self.lake.root)

    def close(self, transactions: Sequence[TableTransaction]) -> None:
        """Commit an empty transaction for each that its table lacks; tables that do not exist are skipped.

        Cost: reads each table's log once for each transaction; 0.3 to 1.7 s for each that is missing (2 cores). Raises
        FenceNotPlaced.
        """
        for one in transactions:
            self._close(one.table, one.transaction)

    def _close(self, table: str, transaction: Transaction) -> None:
        uri, cause = f"{self.lake.root}/{table}", ""
        for _ in range(ATTEMPTS):
            found = log.open_log(uri)
            recorded = None if found is None else found.transaction_version(transaction.app_id)
            if found is None or (recorded is not None and recorded >= transaction.version):
                return
            self.check()
            try:
                with commit_lock(self.lake.root, table):
                    nothing = self.lake.spark.read.format("delta").load(uri).limit(0)
                    save_under(nothing.write.format("delta").mode("append"), uri, transaction)
            except Exception as error:
                if CONFLICT.search(str(error)) is None:
                    raise
                cause = first_line(error)
        raise FenceNotPlaced(
            f"{table} could not be closed against a late write under {transaction.marker}: {ATTEMPTS} attempts met "
            f"other commits ({cause}). No row was changed and the batch stays unfinished. Run the same command again."
        )
