"""The process that puts refused records into a table of quarantine, whole. Which are refused is decided before it."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.model import Counts
from engagement_platform.lake.audit_columns import stamped_here
from engagement_platform.lake.contract import Table
from engagement_platform.landing.batch import COORDINATES, DecodedBatch
from engagement_platform.sources.messages import Reason


@dataclass(frozen=True)
class RejectedProcess:
    """Rejected records, whole. The manifest pins the table's version."""

    table: Table
    name: str = "quarantine"
    commits: tuple[str, ...] = ("append",)

    def run(self, work: DecodedBatch, commit: Committer) -> Counts:
        """Counts: rows_in, bytes_in, duplicates, quarantined, unknown_fields, files, bytes."""
        decoded = work.decoded
        counts = {
            "rows_in": decoded.num_rows + work.duplicates,
            "duplicates": work.duplicates,
            "bytes_in": int(pc.sum(decoded.column("value_bytes")).as_py() or 0),
            "unknown_fields": int(pc.sum(decoded.column("unknown_fields")).as_py() or 0),
            "quarantined": work.rejected.num_rows,
        }
        rows = self._not_there_yet(work)
        if not rows.num_rows:
            return counts
        columns = [*COORDINATES, "key", "value", "reason_code", "reason"]
        with commit("append") as txn:
            stamped = stamped_here(rows.select(columns), work.manifest)
            work.lake.append(stamped, self.table, txn, rows=rows.num_rows)
        return {**counts, **work.lake.written(self.table, txn)}

    def _not_there_yet(self, work: DecodedBatch) -> pa.Table:
        """Rejected records that quarantine does not hold already, where they may have been seen before."""
        rows = work.rejected
        if not rows.num_rows or not work.manifest.goes_over_again:
            return rows
        topics = rows.column("topic").unique().to_pylist()
        version = work.manifest.table_versions[self.table.name]
        held = work.lake.find(
            self.table, version, (*COORDINATES, "value", "reason_code"), {"topic": topics}
        ).to_pylist()
        there = {tuple(row.values())[:4] for row in held}
        # Where somebody was erased the place is all that is left, and what stood there must not come back.
        marked = {at[:3] for at in there if at[3] is None} & {
            tuple(row.values())[:3] for row in held if row["reason_code"] == Reason.ERASED.value
        }
        places = [tuple(row.values()) for row in rows.select([*COORDINATES, "value"]).to_pylist()]
        return rows.filter(pa.array([at not in there and at[:3] not in marked for at in places], pa.bool_()))
