"""Which way of applying conversions costs least?  python -m benchmarks.mutation --rows 300000 --rounds 3

Data: seeded traffic model, 48 organizations, a year of days; of 1,000 engagements 3.6 conversions come, three of ten in
chains, and 87 % of the rows change (`mutation_data`). Every round of every way starts from a copy of the same tables.
Ways: naive (organization/date partitions, one MERGE, Spark's and Delta's defaults), the same MERGE on the tuned layout
(a partition and a file for each organization) in a session of the platform, delta-rs's merge there, and the jobs: the
requests are ingested, announced, and moved by each strategy; on the default layout, and once on the tuned one. The ways
by hand are given the end of each chain; the jobs work it out.
Measures per round: seconds until the changes can be read through engagement/current (visible), until all their
notifications are committed (announced), and until the Data Table has them (moved); files replaced and bytes written in
the Data Table, from its log; Spark jobs.
Then full reads of the view while requests are pending against ones of the table, with a profile of each, and a rename
by the job against one on every row. `--ten-times` repeats the fastest ways on ten times the rows. A round of everything
on a small lake warms up.
Writes mutation.csv (every round), mutation_reads.csv, mutation_profiles.csv, mutation_renames.csv and mutation.png.
Compare ratios within one run, never seconds across machines. Fails if a way leaves other rows than it should, or
announces more or less.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console

from benchmarks.ingest import jobs_started
from benchmarks.lakes import laid
from benchmarks.mutation_data import DataSet, Scale, Tally
from benchmarks.mutation_reads import READS, Profile, profiles_of_reads, seconds_of_reads
from benchmarks.mutation_rename import FLAT, RENAMES, Renamed, build_flat
from benchmarks.mutation_report import Figures, Measured, Read, save, show
from benchmarks.mutation_ways import (
    DELTA_RS,
    NAIVE,
    Base,
    Stage,
    Way,
    all_ways,
    build_base,
    check,
    configure,
    ingest_conversions,
    restore,
    rewritten,
)
from engagement_platform.lake import log
from engagement_platform.lake.jars import spark_jars
from engagement_platform.lake.session import build_classic, classic_conf, session_conf
from engagement_platform.settings import Settings, SparkSettings

TEN_TIMES = ("auto", "merge", DELTA_RS)
console = Console(width=140, highlight=False)


@dataclass(frozen=True)
class Bench:
    """One data set, the lakes made of it, and the ways that are run on copies of them."""

    spark: SparkSession
    folder: Path
    data_set: DataSet
    ways: Sequence[Way]
    expected: Tally

    def rounds(self, options: argparse.Namespace) -> Iterator[Measured | Read | Profile]:
        """Every round of every way, and the reads while requests are pending."""
        for round_ in range(1, options.rounds + 1):
            for way in self.ways:
                if way.name == NAIVE and round_ > options.naive_rounds:
                    continue
                home = self.folder / f"{way.name.replace(' ', '-')}-{round_}"
                stage = self._stage(way.base, way.settings(home))
                yield self._measured(way, stage, round_)
                check(stage, self.expected)
                shutil.rmtree(home)
        yield from self._reads(options.reads)

    def _reads(self, times: int) -> Iterator[Read | Profile]:
        home = self.folder / "reads"
        stage = self._stage("liquid", Settings(home=home))
        ingest_conversions(stage)
        for what in READS:
            for view_s, plain_s in seconds_of_reads(stage, what, times):
                yield Read(what, self.data_set.scale.rows, view_s, plain_s)
            yield from profiles_of_reads(stage, what)
        shutil.rmtree(home)

    def renames(self, rounds: int) -> Iterator[Renamed]:
        """Every round of a rename, each from the same tables."""
        for round_ in range(1, rounds + 1):
            for rename in RENAMES:
                home = self.folder / f"{rename.__name__}-{round_}"
                stage = self._stage("liquid", Settings(home=home))
                shutil.copytree(self.folder / FLAT, home / FLAT)
                yield rename(stage)
                shutil.rmtree(home)

    def _stage(self, base: Base, settings: Settings) -> Stage:
        restore(self.folder / base, settings.home)
        configure(self.spark, session_conf(settings))
        return Stage(self.spark, settings, self.data_set)

    def _measured(self, way: Way, stage: Stage, round_: int) -> Measured:
        version = log.version(stage.uri)
        assert version is not None, "the lake has no Data Table"
        stood = sum(laid(stage.uri).sizes)
        jobs = jobs_started(self.spark)
        outcome = way.run(stage)
        configure(self.spark, session_conf(stage.settings))
        files, written = rewritten(stage.uri, version)
        return Measured(
            way=way.name,
            rows=self.data_set.scale.rows,
            round=round_,
            requests=len(self.data_set.conversions),
            touched=self.data_set.touched,
            outcome=outcome,
            files=files,
            bytes=written,
            bytes_changed=stood * self.data_set.touched // self.data_set.scale.rows,
            jobs=jobs_started(self.spark) - jobs,
        )


def main() -> None:
    """Parse, measure, print, save."""
    known = [way.name for way in all_ways()]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300_000, help="engagements (default 300000)")
    parser.add_argument("--days", type=int, default=365, help="days that they are spread over (default 365)")
    parser.add_argument("--named-percent", type=int, default=0, help="of engagements that say a name (default 0)")
    parser.add_argument("--rounds", type=int, default=3, help="times each way runs (default 3)")
    parser.add_argument("--naive-rounds", type=int, default=1, help="times the naive way runs (default 1)")
    parser.add_argument("--reads", type=int, default=5, help="reads of the view and of the table (default 5)")
    parser.add_argument("--ways", nargs="+", default=known, choices=known, metavar="WAY", help=f"of: {known}")
    parser.add_argument("--ten-times", action="store_true", help=f"also {', '.join(TEN_TIMES)} on ten times the rows")
    parser.add_argument("--seed", type=int, default=20201120, help="seed of the data (default 20201120)")
    today = datetime.now(UTC).date().isoformat()
    parser.add_argument("--out", type=Path, default=Path("artifacts") / f"mutation-{today}", help="folder of results")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-mutation-"))
    try:
        with spark_session(folder) as spark:
            figures, renamed = measure(spark, folder, options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    show(console, figures, renamed)
    save(options.out, figures, renamed)
    console.print(f"Every round: {options.out}/mutation.csv. Plot: {options.out}/mutation.png")


@contextmanager
def spark_session(folder: Path, source: str = "") -> Iterator[SparkSession]:
    """The session that all ways share; each sets it up anew. source: URI of what is read beside the tables."""
    conf = {"spark.sql.warehouse.dir": str(folder / "warehouse")}
    settings = Settings(home=folder, spark=SparkSettings(driver_memory="3g", conf=conf))
    spark = build_classic(classic_conf(settings, spark_jars(settings, source), source), "bench-mutation")
    try:
        yield spark
    finally:
        spark.stop()


def measure(spark: SparkSession, folder: Path, options: argparse.Namespace) -> tuple[Figures, list[Renamed]]:
    """The warm-up, the rounds, the renames, and the rounds on ten times the rows."""
    ways = [way for way in all_ways() if way.name in options.ways]
    small = Scale(max(3_000, options.rows // 100), days=3, named_percent=options.named_percent, seed=options.seed)
    warm = build(spark, folder / "warm-up", DataSet(small), ways)
    once = argparse.Namespace(rounds=1, naive_rounds=1, reads=1)
    console.print("Warm-up, not counted:")
    thrown_away = [*told(warm, once), *warm.renames(1)]
    console.print(f"{len(thrown_away)} measurements thrown away")
    shutil.rmtree(warm.folder)

    scale = Scale(options.rows, days=options.days, named_percent=options.named_percent, seed=options.seed)
    bench = build(spark, folder / "once", DataSet(scale), ways)
    found = list(told(bench, options))
    renamed = list(bench.renames(options.rounds))
    shutil.rmtree(bench.folder)
    if options.ten_times:
        more = Scale(10 * options.rows, days=options.days, named_percent=options.named_percent, seed=options.seed)
        larger = build(spark, folder / "ten-times", DataSet(more), [way for way in ways if way.name in TEN_TIMES])
        found += told(larger, options)
    measured = [one for one in found if isinstance(one, Measured)]
    reads = [one for one in found if isinstance(one, Read)]
    return Figures(measured, reads, [one for one in found if isinstance(one, Profile)]), renamed


def build(spark: SparkSession, folder: Path, data_set: DataSet, ways: Sequence[Way]) -> Bench:
    """The lakes that these ways start from, and the flat table for the renames."""
    bases: list[Base] = sorted({way.base for way in ways} | {"liquid"})
    expected: Tally = {}
    for base in bases:
        expected = build_base(spark, folder / base, data_set, base)
    build_flat(folder, data_set)
    return Bench(spark, folder, data_set, ways, expected)


def told(bench: Bench, options: argparse.Namespace) -> Iterator[Measured | Read | Profile]:
    """The rounds, each told of as it ends."""
    for one in bench.rounds(options):
        if isinstance(one, Measured):
            of = one.outcome
            times = f"visible {of.visible_s:8.3f} s, announced {of.announced_s:8.3f} s, moved {of.moved_s:8.3f} s"
            console.print(f"{one.rows:>9,} rows, round {one.round}  {one.way:20} {times}  {of.chosen}")
        yield one


if __name__ == "__main__":
    main()
