"""What came of maintenance, read back from `layout/history`: prediction beside outcome. Writing it is `history`.

Needs no Spark, not even its library, since the doctor asks too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa

from engagement_platform.lake import light
from engagement_platform.lake.arrow import schema_of, table_of
from engagement_platform.lake.layout import LAYOUT_HISTORY
from engagement_platform.layout import files
from engagement_platform.layout.doctor import Target, in_lake
from engagement_platform.layout.files import LogNotReadable, NotADeltaTable
from engagement_platform.settings import Settings

REMEMBERED_DAYS = 60
"""Days of history that are looked at, so that it costs the same in the third year as in the first."""

Outcome = Mapping[str, object]
"""A row of `layout/history`, by its columns."""


def rows(settings: Settings, columns: Sequence[str], tables: Sequence[str], today: date) -> pa.Table:
    """Columns of what was done to tables in the last REMEMBERED_DAYS, in no order; none before the first OPTIMIZE.

    Raises LogNotReadable.
    """
    days = [today - timedelta(days=back) for back in range(-1, REMEMBERED_DAYS)]
    try:
        opened = files.open_table(LAYOUT_HISTORY.uri(settings.lake), LAYOUT_HISTORY.name)
    except NotADeltaTable:
        return table_of([], LAYOUT_HISTORY, *columns)
    there = {field.name for field in opened.schema().fields}
    found = light.find(opened, [n for n in columns if n in there], {"table_name": tables, "ingestion_date": days})
    for name in columns:
        if name not in there:
            # A history that was begun by an earlier version; the next row adds the column.
            found = found.append_column(name, pa.nulls(found.num_rows, schema_of(LAYOUT_HISTORY).field(name).type))
    return found.select(list(columns))


def predicted_and_actual(settings: Settings, tables: Sequence[Target], most: int = 100) -> dict[str, list[Outcome]]:
    """What was done last to each table, slices and the table as a whole, newest first: predicted beside actual.

    Nothing for a table that was never mended from here, and when the history cannot be read, which the doctor says of
    that table itself. A table outside of the lake goes by its path.
    """
    found: dict[str, list[Outcome]] = {t.name: [] for t in tables if in_lake(settings, t) or t.name == t.uri}
    if not found:
        return {}
    try:
        known = rows(settings, LAYOUT_HISTORY.column_names, list(found), datetime.now(UTC).date())
    except LogNotReadable:
        return {}
    for row in known.sort_by([("started_ts", "descending")]).to_pylist():
        if len(found[row["table_name"]]) < most:
            found[row["table_name"]].append(row)
    return {name: some for name, some in found.items() if some}


def as_json(outcome: Outcome) -> dict[str, object]:
    """What JSON can say of it, by the names of the columns; times in ISO 8601."""
    told = ((name, value) for name, value in outcome.items() if name != "fingerprint")
    return {name: value.isoformat() if isinstance(value, date) else value for name, value in told}
