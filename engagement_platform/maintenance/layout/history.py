"""What OPTIMIZE did, in `layout/history`: predicted gain beside the actual one, written after each run and read back.

Imports neither Spark nor its library, since the doctor reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from engagement_platform.engine.model import Transaction
from engagement_platform.lake import scan
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.contract import Column, Mode, Table
from engagement_platform.maintenance.layout import files
from engagement_platform.maintenance.layout.files import LogNotReadable, NotADeltaTable
from engagement_platform.maintenance.layout.survey import Target, in_lake
from engagement_platform.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAYOUT_HISTORY = Table(
    key=("layout", "history"),
    description="One row for every slice of a table that was optimized: what was predicted, and what came of it.",
    mode=Mode.APPEND_ONLY,
    partitioned_by=("ingestion_date",),
    columns=(
        Column("table_name", "string", "The table, such as engagement/data."),
        Column("partition", "string", "Its partition, such as organization_id=org-7; empty: the whole table."),
        Column("action", "string", "optimize (merge small files) or zorder."),
        Column("why", "string", "Why this slice was chosen, and this action."),
        Column("target_file_bytes", "long", "Size that files were merged up to."),
        Column("predicted_gain", "double", "Files that a change and a read of a week would no longer open."),
        Column("actual_gain", "double", "The same by the files that the partition has afterwards."),
        Column("files_before", "long", "Files of the partition before."),
        Column("files_after", "long", "Files of the partition afterwards."),
        Column("bytes_rewritten", "long", "Bytes of the files that were replaced."),
        Column("bytes_written", "long", "Bytes of the files that replaced them."),
        Column("seconds", "double", "How long it took, with all attempts."),
        Column("version", "long", "Version of the table that it made; null: nothing was left to do."),
        Column("fingerprint", "string", "Of the files it left, by which a later run sees that nothing changed since."),
        Column("started_ts", "timestamp", "When it began, UTC."),
        Column("ingestion_date", "date", "UTC day of started_ts."),
    ),
)

REMEMBERED_DAYS = 60
"""Days of history that are looked at, so that it costs the same in the third year as in the first."""

Outcome = Mapping[str, Any]
"""A row of `layout/history`, by its columns."""


def remember(settings: Settings, done: Sequence[Outcome], spark: SparkSession) -> None:
    """Append the rows of one run in one commit: one for each table took a third of the time of a night."""
    from engagement_platform.lake.lake import Lake

    # It is created, and gains columns, whatever `layout.evolve` says.
    grows = settings.model_copy(update={"layout": settings.layout.model_copy(update={"evolve": True})})
    lake = Lake(spark, grows)
    # Grows from run to run over the table that came last. Of two at once that end with the same one, the earlier may be
    # left out, and what it rewrote is planned once more.
    last = max(done, key=lambda one: one["started_ts"])
    txn = Transaction(f"layout/history/optimize/{last['table_name']}", int(last["started_ts"].timestamp() * 1_000_000))
    lake.ensure(LAYOUT_HISTORY)
    lake.append(lake.frame(table_of(done, LAYOUT_HISTORY)), LAYOUT_HISTORY, txn, rows=len(done))


def last_rewrites(settings: Settings, table: str, target_file_bytes: int) -> Mapping[str, str]:
    """Fingerprints of what the last rewrite of each partition left, up to this target or a larger one.

    A partition whose rewrite is longer ago is judged by its files alone; at worst it is rewritten once more.
    Raises LogNotReadable.
    """
    done = _rows(settings, ("partition", "target_file_bytes", "fingerprint", "started_ts"), [table])
    rows = done.sort_by("started_ts").to_pylist()
    last = {one["partition"]: one for one in rows}
    enough = {name: one for name, one in last.items() if (one["target_file_bytes"] or 0) >= target_file_bytes}
    return {name: one["fingerprint"] for name, one in enough.items()}


def predicted_and_actual(settings: Settings, tables: Sequence[Target], most: int = 100) -> dict[str, list[Outcome]]:
    """What was done last to each table, newest first: predicted beside actual.

    Tables that were never mended from here are left out, and all are when the history cannot be read, which the doctor
    says of that table itself. A table outside of the lake goes by its path.
    """
    found: dict[str, list[Outcome]] = {t.name: [] for t in tables if in_lake(settings, t) or t.name == t.uri}
    if not found:
        return {}
    try:
        known = _rows(settings, LAYOUT_HISTORY.column_names, list(found))
    except LogNotReadable:
        return {}
    for one in known.sort_by([("started_ts", "descending")]).to_pylist():
        if len(found[one["table_name"]]) < most:
            found[one["table_name"]].append(one)
    return {name: some for name, some in found.items() if some}


def as_json(outcome: Outcome) -> dict[str, object]:
    """What JSON can say of it, by the names of the columns; times in ISO 8601."""
    shown = ((name, value) for name, value in outcome.items() if name != "fingerprint")
    return {name: value.isoformat() if isinstance(value, date) else value for name, value in shown}


def _rows(settings: Settings, columns: Sequence[str], tables: Sequence[str]) -> pa.Table:
    """Columns of what was done to tables in the last REMEMBERED_DAYS, in no order; none before the first OPTIMIZE."""
    today = datetime.now(UTC).date()
    days = [today - timedelta(days=back) for back in range(-1, REMEMBERED_DAYS)]
    try:
        opened = files.open_table(LAYOUT_HISTORY.uri(settings.lake), LAYOUT_HISTORY.name)
    except NotADeltaTable:
        return table_of([], LAYOUT_HISTORY, *columns)
    return scan.find(opened, list(columns), {"table_name": tables, "ingestion_date": days})
