"""What maintenance has done, in `layout/history`: rows in, and what a plan has to remember out.

Writing the table is `lake/optimize`, showing it `outcomes`; what a row means is in its contract, `lake/layout`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from engagement_platform.engine.model import Transaction
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.layout import LAYOUT_HISTORY
from engagement_platform.lake.optimize import record
from engagement_platform.layout import outcomes, remedies
from engagement_platform.layout.optimize import Done
from engagement_platform.layout.plan import Last
from engagement_platform.layout.survey import Survey
from engagement_platform.settings import Settings

_REWRITES: Sequence[remedies.Action] = ("optimize", "zorder")
_MEMORY = (
    "action",
    "partition",
    "target_file_bytes",
    "fingerprint",
    "started_ts",
)


def remember(settings: Settings, done: Sequence[Done], now: Survey, spark: SparkSession) -> None:
    """Append one row for each slice. now: the table after them, for what reads open by its new bounds."""
    if not done:
        return
    rows = [_row(one, now) for one in done]
    # Grows from run to run; a run that writes the same rows twice writes them once.
    moment = max(int(one.started_ts.timestamp() * 1_000_000) for one in done)
    txn = Transaction(f"layout/history/{done[0].slice.place.name}", moment)
    record(settings, LAYOUT_HISTORY, table_of(rows, LAYOUT_HISTORY), txn, spark)


@dataclass(frozen=True)
class Mended:
    """A remedy for a table as a whole that was applied, and what came of it."""

    table: str
    gain: remedies.Prediction
    why: str
    started_ts: datetime
    seconds: float
    actual: Mapping[str, object]
    """By the columns of `layout/history`; what is not known is left away."""
    predicted_seconds: float | None = None


def remember_mended(settings: Settings, mended: Mended, spark: SparkSession) -> None:
    """Append one row for a VACUUM, a checkpoint or a migration."""
    gain = mended.gain
    row = {
        "table_name": mended.table,
        "partition": "",
        "action": gain.action,
        "why": mended.why,
        "predicted_files_after": gain.files_after,
        "predicted_bytes_rewritten": gain.bytes_to_rewrite,
        "predicted_files_freed": gain.files_freed,
        "predicted_bytes_freed": gain.bytes_freed,
        "commits_replayed_before": gain.commits_replayed_before,
        "predicted_commits_replayed_after": gain.commits_replayed_after,
        "predicted_seconds": mended.predicted_seconds,
        "files_before": gain.files_before,
        **mended.actual,
        "seconds": mended.seconds,
        "started_ts": mended.started_ts,
        "ingestion_date": mended.started_ts.date(),
    }
    txn = Transaction(f"layout/history/{gain.action}/{mended.table}", int(mended.started_ts.timestamp() * 1_000_000))
    record(settings, LAYOUT_HISTORY, table_of([row], LAYOUT_HISTORY), txn, spark)


def _row(done: Done, now: Survey) -> dict[str, object]:
    one, gain = done.slice, done.slice.gain
    here = now.partitions.filter(pc.equal(now.partitions.column("partition"), one.partition))
    return {
        "table_name": one.place.name,
        "partition": one.partition,
        "action": one.action,
        "why": one.why,
        "target_file_bytes": one.target_file_bytes,
        "predicted_files_after": gain.files_after,
        "predicted_bytes_rewritten": gain.bytes_to_rewrite,
        "predicted_read_files_before": gain.read_files_before,
        "predicted_read_files_after": gain.read_files_after,
        "predicted_seconds": one.seconds,
        "files_before": done.files_before,
        "files_after": done.files_after,
        "files_removed": len(done.rewritten.removed),
        "files_added": len(done.rewritten.added),
        "bytes_removed": sum(done.rewritten.removed.values()),
        "bytes_added": sum(done.rewritten.added.values()),
        "read_files_after": float(remedies.opened_now(here)[0]) if here.num_rows else None,
        "seconds": done.seconds,
        "attempts": done.attempts,
        "version": done.rewritten.version,
        "fingerprint": None if _more_waits(done) else done.fingerprint,
        "started_ts": done.started_ts,
        "ingestion_date": done.started_ts.date(),
    }


def _more_waits(done: Done) -> bool:
    """Whether larger files of the partition are to be merged next; not after a slice that found nothing to merge."""
    return done.slice.only_below_bytes is not None and done.rewritten.version is not None


def recalled(settings: Settings, table: str, today: date) -> pa.Table:
    """Slices of a table that were rewritten lately, oldest first; columns _MEMORY. Reads a few columns, without Spark.

    A partition whose rewrite is longer ago is judged by its files alone; at worst it is rewritten once more.
    """
    done = outcomes.rows(settings, _MEMORY, [table], today).sort_by("started_ts")
    return done.filter(pc.is_in(done.column("action"), pa.array(_REWRITES)))


def last_of(rows: pa.Table) -> Mapping[str, Last]:
    """What the last rewrite of each partition left. In: rows of `recalled`."""
    return {row["partition"]: Last(row["fingerprint"], row["target_file_bytes"]) for row in rows.to_pylist()}
