"""One merge for all organizations of a batch, or several?  python -m benchmarks.mutation_sizes --rows 300000

The resolved operations of the data set of `mutation`, moved in the Data Table by so many merges, each with an equal
share of the organizations; by delta-rs and by Spark, each time from a copy of the same tables. Prints seconds and
commits. Compare within one run, never seconds across machines. Fails if rows end elsewhere than they should.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path

import pyarrow as pa
from rich.console import Console

from benchmarks.mutation import spark_session
from benchmarks.mutation_data import DataSet, Scale, tally
from benchmarks.mutation_ways import Stage, Way, build_base, by_job, configure, restore
from engagement_platform.engine.model import Transaction
from engagement_platform.lake.engagement import ALIAS
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.session import session_conf
from engagement_platform.mutation.accepted import edges_of
from engagement_platform.mutation.rows import operation_rows
from engagement_platform.pipelines.mutations.edges import Operation
from engagement_platform.pipelines.mutations.identity import Identities

MERGES = (1, 4, 12, 48)
STAMP = 1


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300_000, help="engagements (default 300000)")
    parser.add_argument("--rounds", type=int, default=2, help="times each is measured; the best counts (default 2)")
    parser.add_argument("--merges", type=int, nargs="+", default=list(MERGES), help=f"default {MERGES}")
    options = parser.parse_args()
    console = Console(width=120, highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="bench-mutation-sizes-"))
    data_set = DataSet(Scale(options.rows))
    edges = edges_of(data_set.conversion_requests().select([*_edge_fields()]))
    operations = Identities(edges).operations()
    try:
        with spark_session(folder) as spark:
            expected = build_base(spark, folder / "tuned", data_set, "tuned")
            for engine in ("delta-rs", "Spark"):
                for merges in options.merges:
                    took = []
                    for round_ in range(options.rounds):
                        way = Way("move", by_job, apply="merge", in_spark=engine == "Spark")
                        settings = way.settings(folder / f"{engine}-{merges}-{round_}")
                        restore(folder / "tuned", settings.home)
                        configure(spark, session_conf(settings))
                        stage = Stage(spark, settings, data_set)
                        took.append(moved(stage, operations, merges))
                        columns = ("organization_id", "person_id", "engagement_id")
                        found = tally(stage.lake.read(stage.data).select(*columns).toArrow(), "person_id")
                        assert found == expected, "rows are not where they should be"
                        shutil.rmtree(settings.home)
                    console.print(f"{options.rows:>9,} rows  {engine:8}  {merges:3} merges  {min(took):7.2f} s")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def moved(stage: Stage, operations: list[Operation], merges: int) -> float:
    """Seconds to move all rows by so many merges."""
    lake: Lake = stage.lake
    organizations = sorted({operation.organization_id for operation in operations})
    shares: list[tuple[list[str], pa.Table]] = []
    for nth in range(merges):
        mine = organizations[nth::merges]
        shares.append((mine, operation_rows(op for op in operations if op.organization_id in set(mine))))
    began = time.monotonic()
    for nth, (mine, rows) in enumerate(shares):
        if mine:
            txn = Transaction(f"bench/{nth}", STAMP)
            lake.move(rows, stage.data, txn, organizations=mine, stamp=STAMP, rows=rows.num_rows)
    return time.monotonic() - began


def _edge_fields() -> list[str]:
    return [name for name in ALIAS.column_names if name != "batch_id"]


if __name__ == "__main__":
    main()
