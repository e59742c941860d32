"""What does reading one same change cost on a table ten times as large?  python -m benchmarks.incremental_read

Data: seeded engagements in a Data Table partitioned by organization, one file a day and organization, written by
delta-rs; the change is the same few notifications each time. The table is then ten times as large in one way at a time:
more organizations, more days, more batches announced before, or more rows in the very files that have to be opened.
Measures: bytes that the process asked the system for (`rchar` of /proc/self/io: every read and pread, of logs, data and
the cursor's database alike, cached or not; nothing here maps files), of a consumer that follows, and of one that comes
anew and has to read the whole log first, which grows with the number of files. No seconds: bytes are the same on every
machine.
Writes incremental_read.csv. Fails when a consumer that follows reads more than 1.2 times the bytes after ten times the
organizations, days or batches, or when the rows read are not those that changed.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from rich.console import Console
from rich.table import Table as RichTable

from engagement_platform.consumers import Changes
from engagement_platform.engine.model import Transaction
from engagement_platform.lake import store_tables
from engagement_platform.lake.arrow import schema_of, table_of
from engagement_platform.lake.engagement import ALIAS, CHANGESET, MUTATION_REQUEST, NOTIFICATION, data_table

DATA = data_table("organization")
FIRST_DAY = date(2026, 11, 1)
SEED = 20201120
TARGET = 1.2
TIMES = 10
_APP = "bench@1.incremental"


@dataclass(frozen=True)
class Size:
    """A Data Table: so many organizations, days of each, rows on each day. And what was announced."""

    organizations: int
    days: int
    rows: int
    batches: int
    """Announced before the change."""

    @property
    def total(self) -> int:
        """Rows of the table."""
        return self.organizations * self.days * self.rows


@dataclass(frozen=True)
class Read:
    """What a consumer asked the system for to read the change."""

    following: int
    """Bytes, by a consumer that has read before."""
    anew: int
    """Bytes, by one that comes anew and opens the tables first."""
    rows: int


def engagement_id(organization: int, day: int, row: int) -> str:
    """Random to look at and the same in every table: a file's ids span all ids."""
    # The last number, since a generator takes none for a 0.
    drawn = np.random.default_rng([SEED, organization, day, row, 1]).bytes(16)
    return bytes(drawn).hex()


def build(lake: Path, size: Size) -> None:
    """Data Table, a commit a day, and the other tables, empty; none is clustered, which only Spark declares."""
    for table in (DATA, *(replace(one, liquid_by=()) for one in (NOTIFICATION, CHANGESET, ALIAS, MUTATION_REQUEST))):
        store_tables.create(table.uri(str(lake)), table)
    found = DeltaTable(DATA.uri(str(lake)))
    for day in range(size.days):
        parts = [_rows(organization, day, size.rows) for organization in range(size.organizations)]
        store_tables.append(found, pa.concat_tables(parts), Transaction(f"{_APP}/data/append", day))


def _rows(organization: int, day: int, count: int) -> pa.Table:
    rng = np.random.default_rng([SEED, organization, day])
    # The first ones are drawn one by one, so that the change finds them in tables of any size.
    ids = [engagement_id(organization, day, row) if row < CHANGED else rng.bytes(16).hex() for row in range(count)]
    moment = datetime.combine(FIRST_DAY + timedelta(days=day), datetime.min.time(), tzinfo=UTC)
    persons = [f"p{n}" for n in rng.integers(0, 200, count)]
    words = [f"subject {n}" for n in rng.integers(0, 1_000_000, count)]
    order = rng.permutation(count)
    content = [{"type": "email", "channel": None, "subject": word, "attributes": [("k", word)]} for word in words]
    fields = {
        "organization_id": [f"org-{organization}"] * count, "engagement_date": [moment.date()] * count,
        "engagement_ts": [moment + timedelta(seconds=int(n)) for n in rng.integers(0, 86_400, count)],
        "engagement_id": ids, "person_id": persons, "source_person_id": persons, "version": [1] * count,
        "batch_id": [day] * count, "engagement": content,
        "original": [None] * count, "earlier_versions": [None] * count,
    }  # fmt: skip
    return pa.table(fields, schema=schema_of(DATA)).take(pa.array(order))


CHANGED = 10
"""Engagements that change in each organization and day that the change touches."""
TOUCHED = ((0, 1), (1, 0), (2, 2))
"""Organization and day, by number."""


def announce(lake: Path, batch: int) -> None:
    """The change: a notification for each of the same engagements."""
    moment = datetime(2026, 11, 21, tzinfo=UTC)
    rows = [
        {
            "notification_id": f"{batch}/{organization}/{day}/{row}", "organization_id": f"org-{organization}",
            "ingestion_date": moment.date(), "ingestion_ts": moment, "batch_id": batch, "job_name": "bench",
            "change_type": "UPDATE", "engagement_id": engagement_id(organization, day, row),
            "engagement_date": FIRST_DAY + timedelta(days=day), "person_id": "p1", "previous_person_id": "p1",
            "batch_sequence": batch,
        }
        for organization, day in TOUCHED
        for row in range(CHANGED)
    ]  # fmt: skip
    txn = Transaction(f"{_APP}/notification/append", batch)
    store_tables.append(DeltaTable(NOTIFICATION.uri(str(lake))), table_of(rows, NOTIFICATION), txn)


def bytes_read() -> int:
    """By this process until now."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("rchar")))


def measured(size: Size) -> Read:
    """One table, built and read in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        lake = Path(folder) / "lake"
        build(lake, size)

        def changes(name: str) -> Changes:
            return Changes(lake, name=name, start="now", store_url=f"sqlite:///{folder}/stores.db")

        follows = changes("follows")
        for batch in range(size.batches):
            announce(lake, batch)
        counted(follows)
        changes("comes anew")
        announce(lake, size.batches)
        following = counted(follows)
        before = bytes_read()
        # Its cursor is where the other one's was, and a consumer that comes anew has no table open.
        anew = counted(changes("comes anew"), since=before)
    if following[1] != CHANGED * len(TOUCHED) or anew[1] != following[1]:
        raise SystemExit(f"{following[1]} and {anew[1]} rows were read, and {CHANGED * len(TOUCHED)} changed")
    return Read(following[0], anew[0], following[1])


def counted(reader: Changes, since: int | None = None) -> tuple[int, int]:
    """Read all that waits and commit it: (bytes, rows)."""
    before, rows = bytes_read() if since is None else since, 0
    for batch in reader:
        rows += len(batch)
        reader.commit()
    return bytes_read() - before, rows


def compare(base: Size, out: Path) -> bool:
    """Measure all tables, print and write the figures; whether the target was met."""
    sizes = {
        "as it is": base,
        "organizations": replace(base, organizations=base.organizations * TIMES),
        "days": replace(base, days=base.days * TIMES),
        "batches announced before": replace(base, batches=base.batches * TIMES),
        "rows in the same files": replace(base, rows=base.rows * TIMES),
    }
    reads = {name: measured(size) for name, size in sizes.items()}
    first, met = reads["as it is"], True
    shown = RichTable("ten times as many", "rows", "following, bytes", "ratio", "anew, bytes", "ratio", "target")
    with (out / "incremental_read.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["ten_times", "table_rows", "following_bytes", "ratio", "anew_bytes", "anew_ratio", "rows_read"]
        )
        for name, read in reads.items():
            ratio, anew = read.following / first.following, read.anew / first.anew
            held = name not in ("as it is", "rows in the same files")
            met = met and (not held or ratio <= TARGET)
            target = f"at most {TARGET}: {'met' if ratio <= TARGET else 'MISSED'}" if held else ""
            total = sizes[name].total
            shown.add_row(
                name, f"{total:,}", f"{read.following:,}", f"{ratio:.2f}", f"{read.anew:,}", f"{anew:.2f}", target
            )
            writer.writerow([name, total, read.following, f"{ratio:.3f}", read.anew, f"{anew:.3f}", read.rows])
    Console(width=130).print(shown)
    return met


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 when the target was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--organizations", type=int, default=3)
    parser.add_argument("--days", type=int, default=3)
    parser.add_argument("--rows", type=int, default=400, help="of an organization on a day")
    parser.add_argument("--batches", type=int, default=10, help="announced before the change")
    parser.add_argument("--out", type=Path, default=Path())
    options = parser.parse_args(arguments)
    return 0 if compare(Size(options.organizations, options.days, options.rows, options.batches), options.out) else 1


if __name__ == "__main__":
    sys.exit(main())
