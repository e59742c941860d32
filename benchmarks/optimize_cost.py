"""Where do the seconds of an OPTIMIZE of one partition go?  python -m benchmarks.optimize_cost --partitions 8

Data: seeded engagements in a Data Table partitioned by organization, many small files in each, written by delta-rs.
Spark Z-orders one partition after the other, as maintenance does.
Measures seconds for each partition: snapshot (open the table), plan (survey of the whole table, done once for all
slices, divided by them), read and write (until the last data file was written), commit (from then until the file in
the log was), after the commit (until the statement returns). The last three by times of change of the files, so on a
disk whose clock is this machine's. The first partition pays for the start of Spark and is told apart.
Prints a table; compare shares within one run, never seconds across machines. Fails when rows differ afterwards.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table as Shown

from engagement_platform.engine.model import Transaction
from engagement_platform.lake import scan, store_tables
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.engagement import data_table
from engagement_platform.lake.optimize import Place, rewrite
from engagement_platform.lake.session import spark_session
from engagement_platform.maintenance.layout.survey import Survey, Target, survey
from engagement_platform.settings import Settings

DATA = data_table("organization")
FIRST = date(2026, 1, 1)
PHASES = ("snapshot", "plan", "read and write", "commit", "after the commit")


@dataclass(frozen=True)
class Cost:
    """Seconds of one partition, by PHASES."""

    partition: str
    seconds: tuple[float, ...]


def seeded(uri: str, partitions: int, files: int, rows: int) -> None:
    """The table that is optimized."""
    store_tables.create(uri, DATA)
    found = DeltaTable(uri)
    for batch in range(files):
        made = [_row(organization, batch, i) for organization in range(partitions) for i in range(rows)]
        store_tables.append(found, table_of(made, DATA), Transaction("bench/data", batch))


def _row(organization: int, batch: int, i: int) -> dict[str, object]:
    day = FIRST + timedelta(days=(batch * 7 + i * 31) % 90)
    return {
        "organization_id": f"org-{organization}",
        "engagement_date": day,
        "engagement_ts": datetime(day.year, day.month, day.day, tzinfo=UTC),
        "engagement_id": f"e-{batch}-{i}",
        "person_id": f"p-{i}",
        "source_person_id": f"p-{i}",
        "version": 1,
        "batch_id": batch,
        "engagement": {"type": "mail", "channel": None, "subject": f"subject {i}", "attributes": {}},
    }


def measured(settings: Settings, uri: str, spark: SparkSession) -> list[Cost]:
    """Z-order each partition of a table in a commit of its own."""
    target, place = Target(DATA.name, uri), Place(DATA.name, uri, settings.lake)
    began = time.monotonic()
    seen: Survey = survey(settings, target, target_file_bytes=settings.maintenance.target_file_bytes)
    planning = (time.monotonic() - began) / max(1, len(seen.where))
    costs = []
    for name in sorted(seen.where):
        began = time.monotonic()
        DeltaTable(uri)
        opened = time.monotonic() - began
        target_file_bytes, wall = settings.maintenance.target_file_bytes, time.time()
        done = rewrite(
            place, spark, where=[seen.where[name]], order_by="engagement_date",
            target_file_bytes=target_file_bytes, marker=f"bench/{name}",
        )  # fmt: skip
        ended = time.time()
        if done.version is None:
            raise SystemExit(f"nothing was rewritten in {name}")
        written = max(Path(uri, path).stat().st_mtime for path in done.added)
        committed = Path(uri, "_delta_log", f"{done.version:020}.json").stat().st_mtime
        parts = (written - wall, committed - written, ended - committed)
        costs.append(Cost(name, (opened, planning, *(max(0.0, part) for part in parts))))
    return costs


def shown(costs: Sequence[Cost], title: str) -> Shown:
    """First partition and median of the others, by phase."""
    table = Shown("partition", *PHASES, "sum", title=title)
    own = [cost.seconds for cost in costs]
    rest = own[1:] or own
    median = tuple(statistics.median(phase) for phase in zip(*rest, strict=True))
    for label, seconds in (("first", own[0]), (f"median of {len(rest)}", median)):
        table.add_row(label, *(f"{s:.3f}" for s in (*seconds, sum(seconds))))
    return table


def _rows(uri: str) -> pa.Table:
    columns = ["organization_id", "engagement_id", "engagement_ts", "person_id"]
    return scan.find(DeltaTable(uri), columns, {}).sort_by([(name, "ascending") for name in columns])


def main() -> None:
    """Seed, rewrite, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = partial(parser.add_argument, type=int)
    add("--partitions", default=12)
    add("--files", default=20, help="in each partition")
    add("--rows", default=200, help="in each file")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-optimize-") as home:
        settings = Settings(home=Path(home), lake_uri=f"{home}/lake")
        uri = f"{home}/lake/{DATA.name}"
        seeded(uri, asked.partitions, asked.files, asked.rows)
        before = _rows(uri)
        with spark_session(settings, "bench-optimize") as spark:
            costs = measured(settings, uri, spark)
        if not _rows(uri).equals(before):
            raise SystemExit("other rows are left")
    title = f"seconds per partition; {asked.files} files of {asked.rows} rows, {asked.partitions} partitions"
    Console(width=140).print(shown(costs, title))


if __name__ == "__main__":
    main()
