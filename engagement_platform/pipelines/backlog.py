"""How much waits in the engagement tables, and since when.

From the tables' logs and the stores; no row is read and no Spark is started. What waits for which job is `status`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.engine.job import Stores
from engagement_platform.lake import log
from engagement_platform.lake.contract import Table

_FIRST_LOOK: Final = 64
"""Batches that are asked of the stores at first: those of ten minutes, with `drain.min_batch_interval` at 10 s."""


def rows_above(root: str, marks: Mapping[Table, int]) -> int:
    """Rows of tables with a greater batch_sequence than these, at least.

    A file in which compaction merged them with older rows counts as one, so the answer is 0 only where there are none.
    """
    rows = 0
    for table, mark in marks.items():
        found = log.open_log(table.uri(root))
        if found is None:
            continue
        files = pa.table(found.get_add_actions(flatten=True))
        late = files.filter(pc.greater(log.of_files(files, "max.batch_sequence", pa.int64()), mark))
        alone = pc.greater(log.of_files(late, "min.batch_sequence", pa.int64()), mark)
        rows += pc.sum(pc.if_else(alone, pc.fill_null(late.column("num_records"), 1), 1)).as_py() or 0
    return rows


def oldest_above(stores: Stores, jobs: Iterable[str], sequence: int) -> datetime | None:
    """When the oldest batch of these jobs with a greater sequence was planned, UTC; None where there is none."""
    found = [planned for job in jobs if (planned := _oldest(stores, job, sequence)) is not None]
    return min(found, default=None)


def _oldest(stores: Stores, job: str, sequence: int) -> datetime | None:
    limit = _FIRST_LOOK
    while True:
        records = stores.checkpoints.history(job, limit=limit)
        late = [record.manifest.ingestion_ts for record in records if record.manifest.sequence > sequence]
        if len(late) < limit:
            return min(late, default=None)
        limit *= 8
