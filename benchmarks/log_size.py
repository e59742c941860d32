"""How large is the checkpoint of a log, for each file of its table?  python -m benchmarks.log_size --files 5000

Data: the Data Table with one row, and so one file, for each of so many organizations, written by one commit.
Prints the bytes of the log's checkpoint, and divided by files. A new snapshot of a table reads all of it.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from deltalake import DeltaTable

from engagement_platform.engine.model import Transaction
from engagement_platform.lake import store_tables
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.engagement import data_table


def checkpoint_bytes(folder: Path, files: int) -> int:
    """Bytes of the checkpoint of a table that has so many files."""
    table, at = data_table("organization"), datetime(2026, 1, 1, 12, tzinfo=UTC)
    uri = table.uri(str(folder))
    store_tables.create(uri, table)
    rows = [
        {
            "organization_id": f"org-{number:06d}", "engagement_date": at.date(), "engagement_ts": at,
            "engagement_id": f"engagement-{number:012d}", "person_id": f"contact-{number:08d}",
            "source_person_id": f"lead-{number:08d}", "version": 1, "batch_id": 0,
            "engagement": {"type": "email", "channel": "web", "subject": None, "attributes": None},
        }
        for number in range(files)
    ]  # fmt: skip
    found = DeltaTable(uri)
    store_tables.append(found, table_of(rows, table), Transaction("benchmark/log-size", 0))
    found.create_checkpoint()
    return sum(file.stat().st_size for file in Path(uri, "_delta_log").glob("*.checkpoint*.parquet"))


def main() -> None:
    """Make the table in a temporary folder and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=5_000, help="files of the table (default 5000)")
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        size = checkpoint_bytes(Path(folder), given.files)
    print(f"{given.files:,} files: a checkpoint of {size:,} bytes, {size / given.files:,.0f} a file")


if __name__ == "__main__":
    main()
