"""Which layout of the Data Table costs least to read, change, extend and tidy?  python -m benchmarks.partitioning

Data: seeded traffic model, 48 organizations of which nine of ten are small, a year of days (`mutation_data`); the same
rows in three layouts, each as Spark's OPTIMIZE leaves it: partitions of organization and date, partitions of
organization Z-ordered by date, liquid clustering by both. Files are at most --max-file-kb large.
Measures per round, each from the same restored tables: seconds and files of reading a week and all of the largest and
of a small organization; of an update (the move of --requests-percent of the conversions, a MERGE: files rewritten);
of an insert (the next day's batch: files added); and of OPTIMIZE after that insert (files replaced), once as Spark does
it in one statement and once as the platform does, slice by slice.
A round of everything on a small lake warms up. Fails if a layout leaves other rows than it should.
Writes partitioning.csv (every round), partitioning_files.csv (files by size), partitioning.png, partitioning.html.
An interrupted run is resumed by the same command; other options are another folder. Compare ratios within one run,
never seconds across machines. --quick: one round on 60,000 rows.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.cells import Cells, Progress, Run, add_options, console, open_run
from benchmarks.lakes import (
    build,
    found_rows,
    laid,
    maintain,
    mark_ready,
    optimize,
    ready,
    restore,
    sampled,
    staged,
)
from benchmarks.mutation import spark_session
from benchmarks.mutation_data import BEGIN, DataSet, Scale, shares, tally
from benchmarks.mutation_ways import Stage, add, ingest_conversions, moving, only_batch, rewritten
from benchmarks.partitioning_report import FILE_BUCKETS, OPERATIONS, PLATFORM, SPARK, save, show
from engagement_platform.engine.model import Transaction
from engagement_platform.lake import log
from engagement_platform.maintenance.layout.statistics import histogram
from engagement_platform.settings import LayoutScheme, LayoutSettings

LAYOUTS: dict[str, LayoutScheme] = {
    "organization/date": "organization_date",
    "organization, Z-order": "organization",
    "liquid": "liquid",
}


@dataclass(frozen=True)
class Data:
    """What all layouts hold, and what is done to them."""

    scale: Scale
    requests_percent: float

    @cached_property
    def data_set(self) -> DataSet:
        """One day more than the layouts begin with, and the conversions of the update."""
        more = self.scale.rows * (self.scale.days + 1) // self.scale.days
        whole = Scale(more, self.scale.organizations, self.scale.days + 1, seed=self.scale.seed)
        return sampled(DataSet(whole), self.requests_percent)

    @cached_property
    def _all(self) -> pa.Table:
        return pa.concat_tables(self.data_set.rows())

    @property
    def last_day(self) -> date:
        """The day whose rows are inserted."""
        return (BEGIN + timedelta(days=self.scale.days)).date()

    @cached_property
    def rows(self) -> pa.Table:
        """Those that every layout begins with."""
        return self._all.filter(pc.less(self._all.column("engagement_date"), pa.scalar(self.last_day)))

    @cached_property
    def batch(self) -> pa.Table:
        """Those that are inserted."""
        return self._all.filter(pc.equal(self._all.column("engagement_date"), pa.scalar(self.last_day)))

    @cached_property
    def changed(self) -> int:
        """Rows that the update changes."""
        converted = pa.table(
            {
                "organization_id": [o for o, _ in self.data_set.ends],
                "source_person_id": [p for _, p in self.data_set.ends],
            }
        )
        keys = ["organization_id", "source_person_id"]
        return int(self.rows.select(keys).join(converted, keys, join_type="inner").num_rows)

    def reads(self, rows: DataFrame) -> dict[str, tuple[DataFrame, int]]:
        """What is read, by the name of the operation: the frame, and how many rows it must have."""
        middle = BEGIN.date() + timedelta(days=self.scale.days // 2)
        ends = middle, middle + timedelta(days=6)
        week = pc.field("engagement_date").isin([middle + timedelta(days=n) for n in range(7)])
        by_rows = sorted(shares(self.scale), key=lambda share: share.rows)
        found = {}
        for size, organization in (("largest", by_rows[-1].organization_id), ("small", by_rows[0].organization_id)):
            frame = rows.where(F.col("organization_id") == organization)
            mine = self.rows.filter(pc.field("organization_id") == organization)
            found[f"week, {size}"] = frame.where(F.col("engagement_date").between(*ends)), mine.filter(week).num_rows
            found[f"all, {size}"] = frame, mine.num_rows
        return found


@dataclass(frozen=True)
class Bench:
    """The layouts of one data set, and what is measured on copies of them."""

    spark: SparkSession
    folder: Path
    data: Data
    max_file_bytes: int

    def stage(self, layout: str, home: Path) -> Stage:
        """A copy of a layout's tables, opened."""
        settings = LayoutSettings(scheme=LAYOUTS[layout], auto_compact=False)
        return staged(self.spark, home, self.data.data_set, settings)

    def base(self, layout: str) -> Path:
        """The lake that every round of a layout starts from; built where it is not there yet."""
        home = self.folder / layout.replace("/", "-").replace(", ", "-")
        if not ready(home):
            began = time.monotonic()
            stage = self.stage(layout, home)
            build(stage, [self.data.rows])
            self.tidy(layout, self.stage(layout, home))
            mark_ready(home)
            console.print(f"{layout}: built in {time.monotonic() - began:.0f} s", style="dim")
        return home

    def tidy(self, layout: str, stage: Stage) -> None:
        """The OPTIMIZE that this layout is kept in shape with."""
        optimize(stage, self.max_file_bytes, zorder=layout == "organization, Z-order")

    def round(self, layout: str) -> Iterator[tuple[str, float, int]]:
        """Operation, seconds and files of everything that is measured, once, each from the restored tables."""
        base, before = self.base(layout), laid(self.stage(layout, self.base(layout)).uri)
        for measure in (self._reads, self._update, self._insert, self._upkeep):
            home = Path(tempfile.mkdtemp(prefix="round-", dir=self.folder)) / "home"
            restore(base, home)
            stage = self.stage(layout, home)
            assert laid(stage.uri).digest == before.digest, "the restored table has other files"
            yield from measure(layout, stage)
            shutil.rmtree(home.parent)

    def _reads(self, _: str, stage: Stage) -> Iterator[tuple[str, float, int]]:
        for operation, (wanted, expected) in self.data.reads(stage.lake.read(stage.data)).items():
            # Counted first, so that the log of this copy is read before the clock starts.
            assert wanted.count() == expected, f"{operation} found other rows"
            seconds = _timed(partial(_read_whole, wanted))
            yield operation, seconds, len(wanted.inputFiles())

    def _update(self, _: str, stage: Stage) -> Iterator[tuple[str, float, int]]:
        ingest_conversions(stage)
        version = _version(stage)
        seconds, report = only_batch(moving(stage))
        changed = report.counts["changed_rows"]
        assert changed == self.data.changed, f"{changed} rows were changed of {self.data.changed}"
        expected = tally(self.data.rows, "source_person_id", self.data.data_set.ends)
        assert found_rows(stage.uri) == expected, "rows are elsewhere than they should be"
        yield "update", seconds, rewritten(stage.uri, version)[0]

    def _insert(self, layout: str, stage: Stage) -> Iterator[tuple[str, float, int]]:
        before = len(laid(stage.uri).sizes)
        seconds = _timed(lambda: self._add(stage))
        yield "insert", seconds, len(laid(stage.uri).sizes) - before
        version = _version(stage)
        seconds = _timed(lambda: self.tidy(layout, stage))
        assert laid(stage.uri).rows == self.data.rows.num_rows + self.data.batch.num_rows, "OPTIMIZE changed rows"
        yield SPARK, seconds, rewritten(stage.uri, version)[0]

    def _upkeep(self, _: str, stage: Stage) -> Iterator[tuple[str, float, int]]:
        self._add(stage)
        version, seconds = _version(stage), maintain(stage, self.max_file_bytes)
        assert laid(stage.uri).rows == self.data.rows.num_rows + self.data.batch.num_rows, "OPTIMIZE changed rows"
        yield PLATFORM, seconds, rewritten(stage.uri, version)[0]

    def _add(self, stage: Stage) -> None:
        add(stage.lake, self.data.batch, stage.data, Transaction("bench/insert", 0))


def _read_whole(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _timed(work: Callable[[], Any]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _version(stage: Stage) -> int:
    found = log.version(stage.uri)
    assert found is not None, "the lake has no Data Table"
    return found


def main() -> None:
    """Parse, measure what is not measured yet, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300_000, help="engagements (default 300000)")
    parser.add_argument("--days", type=int, default=365, help="days that they are spread over (default 365)")
    parser.add_argument("--rounds", type=int, default=3, help="times everything is measured (default 3)")
    parser.add_argument("--max-file-kb", type=int, default=1024, help="largest file of OPTIMIZE (default 1024)")
    parser.add_argument("--requests-percent", type=float, default=5, help="of the conversions, updated (default 5)")
    parser.add_argument("--seed", type=int, default=20201120, help="seed of the data (default 20201120)")
    parser.add_argument("--quick", action="store_true", help="60000 rows at most, one round")
    add_options(parser, "partitioning")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.rounds = min(options.rows, 60_000), 1
    run = open_run("partitioning", options)
    cells = run.cells("partitioning", ("layout", "round", "operation"), ("seconds", "files"))
    sizes = run.cells("partitioning_files", ("layout", "file_size"), ("files", "bytes"))
    measure(run, options, cells, sizes)
    show(console, list(LAYOUTS), cells, sizes)
    save(run, list(LAYOUTS), cells, sizes)
    run.close()
    console.print(f"Every round: {cells.path}. Plot and page: partitioning.png, partitioning.html beside it")


def measure(run: Run, options: argparse.Namespace, cells: Cells, sizes: Cells) -> None:
    """The cells that are missing; no Spark is started when there are none."""
    rounds = [(layout, n) for n in range(1, options.rounds + 1) for layout in LAYOUTS]
    missing = [one for one in rounds if not all((*one, operation) in cells for operation in OPERATIONS)]
    if not missing and len(sizes) == len(LAYOUTS) * len(FILE_BUCKETS):
        return
    scratch = Path(tempfile.mkdtemp(prefix="bench-partitioning-"))
    try:
        with spark_session(scratch) as spark:
            _warm_up(spark, scratch, options)
            data = Data(Scale(options.rows, days=options.days, seed=options.seed), options.requests_percent)
            bench = Bench(spark, run.tables, data, options.max_file_kb * 1024)
            for layout in LAYOUTS:
                _keep_sizes(sizes, layout, bench.stage(layout, bench.base(layout)))
            progress = Progress(len(rounds) * len(OPERATIONS), len(cells))
            for layout, n in missing:
                for operation, seconds, files in bench.round(layout):
                    if (layout, n, operation) not in cells:
                        cells.add((layout, n, operation), seconds=seconds, files=files)
                        progress.step(f"round {n}  {layout:22} {operation:24} {seconds:8.3f} s  {files:>6,} files")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _warm_up(spark: SparkSession, scratch: Path, options: argparse.Namespace) -> None:
    console.print("Warm-up, not counted", style="dim")
    small = Data(Scale(max(2_000, options.rows // 100), organizations=6, days=3, seed=options.seed), 100)
    bench = Bench(spark, scratch / "warm-up", small, options.max_file_kb * 1024)
    for layout in LAYOUTS:
        list(bench.round(layout))
    shutil.rmtree(bench.folder)


def _keep_sizes(sizes: Cells, layout: str, stage: Stage) -> None:
    found = laid(stage.uri)
    counts = histogram(pa.array(found.sizes, pa.int64()))
    for n, bucket in enumerate(FILE_BUCKETS):
        following = FILE_BUCKETS[n + 1] if n + 1 < len(FILE_BUCKETS) else 2**63
        mine = sum(size for size in found.sizes if bucket <= size < following)
        sizes.add((layout, bucket), files=counts[n], bytes=mine)


if __name__ == "__main__":
    main()
