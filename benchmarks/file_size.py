"""How large should files be for the move of mutations?  python -m benchmarks.file_size

Data: seeded traffic model, 48 organizations, a year of days; partitions of organization, Z-ordered by date, with nine
settings of spark.databricks.delta.optimize.maxFileSize: those of the source divided by 64, 64 KB to 16 MB. Each setting
is one OPTIMIZE of the same tables (their list of files has the same hash before each). Organizations that Z-order would
leave in one file (it makes max(1, floor(bytes / setting)) for each partition) keep the one they have.
Measures per round, from a copy of a setting's tables whose list of files has the same hash as at first, and with the
requests ingested (all conversions or --requests-percent of them): seconds of one batch of the job
rematerialize-aliases (strategy merge), which moves them into the Data Table; files replaced. Rounds go through all
settings in turn, so that a slow minute hits each of them. Auto compaction is off: it would undo the small settings.
Prints the matrix of seconds, files by size for each setting, the best setting by median and how sure that is.
Writes file_size.csv (every round), file_size_matrix.csv, file_size_files.csv, file_size.png and file_size.html. Fails
if rows end elsewhere than they should. An interrupted run is resumed by the same command; other options are another
folder. Compare within one run, never seconds across machines. --quick: 3 rounds instead of 14.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.cells import Cells, Progress, Run, add_options, console, open_run
from benchmarks.file_size_report import MATRIX, save, show
from benchmarks.lakes import SCALE, Laid, build, found_rows, laid, mark_ready, optimize, ready, restore, sampled, staged
from benchmarks.mutation import spark_session
from benchmarks.mutation_data import DataSet, Scale, Tally, tally
from benchmarks.mutation_ways import Stage, ingest_conversions, moving, only_batch, rewritten
from engagement_platform.lake import log
from engagement_platform.maintenance.layout.remedies import readable
from engagement_platform.settings import LayoutSettings

SETTINGS = tuple(mb * 2**20 // SCALE for mb in (4, 8, 16, 32, 64, 128, 256, 512, 1024))
"""Bytes; the source's settings in MB divided by SCALE."""


@dataclass(frozen=True)
class Bench:
    """The tables of one data set in every setting, and one round on a copy of them."""

    spark: SparkSession
    folder: Path
    data_set: DataSet

    @cached_property
    def expected(self) -> Tally:
        """What readers find after a round."""
        found: Tally = {}
        for rows in self.data_set.rows():
            found |= tally(rows, "source_person_id", self.data_set.ends)
        return found

    def stage(self, home: Path) -> Stage:
        """A lake as every round has it."""
        return staged(self.spark, home, self.data_set, LayoutSettings(scheme="organization", auto_compact=False))

    def base(self) -> Path:
        """The tables that every OPTIMIZE starts from; a file for each organization, by time."""
        home = self.folder / "before"
        if not ready(home):
            build(self.stage(home), list(self.data_set.rows()))
            mark_ready(home)
        return home

    def optimized(self, setting: int) -> Path:
        """The tables that every round of a setting starts from."""
        home = self.folder / f"max-{setting}"
        if not ready(home):
            before = laid(self.stage(self.base()).uri)
            restore(self.base(), home)
            stage = self.stage(home)
            assert laid(stage.uri).digest == before.digest, "the tables before OPTIMIZE have other files"
            large = split(before, setting)
            if large:
                optimize(stage, setting, zorder=True, where=f"WHERE organization_id IN ({', '.join(large)})")
            mark_ready(home)
        return home

    def round(self, setting: int, digest: str) -> dict[str, float]:
        """Figures of one batch of the job on a copy of a setting's tables, whose files must have this digest."""
        home = Path(tempfile.mkdtemp(prefix="round-", dir=self.folder)) / "home"
        restore(self.optimized(setting), home)
        stage = self.stage(home)
        assert laid(stage.uri).digest == digest, "the restored tables have other files"
        version = log.version(stage.uri)
        assert version is not None, "the lake has no Data Table"
        ingest_conversions(stage)
        seconds, report = only_batch(moving(stage))
        assert found_rows(stage.uri) == self.expected, "rows are elsewhere than they should be"
        changed = report.counts["changed_rows"]
        assert changed == self.data_set.touched, f"{changed} rows were changed of {self.data_set.touched}"
        figures = {"moved_s": seconds, "files_replaced": rewritten(stage.uri, version)[0]}
        shutil.rmtree(home.parent)
        return figures


def split(before: Laid, setting: int) -> list[str]:
    """Organizations, as SQL literals, that a maximum makes more than one file of.

    They come from the traffic model, so they need no escapes.
    """
    found = (partition for partition, size in before.by_partition().items() if size // setting > 1)
    return [f"'{partition.removeprefix('organization_id=')}'" for partition in sorted(found)]


def main() -> None:
    """Parse, measure what is not measured yet, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300_000, help="engagements (default 300000)")
    parser.add_argument("--days", type=int, default=365, help="days that they are spread over (default 365)")
    parser.add_argument("--rounds", type=int, default=14, help="batches of the job for each setting (default 14)")
    parser.add_argument("--requests-percent", type=float, default=100, help="of the conversions, a batch (default 100)")
    parser.add_argument("--seed", type=int, default=20201120, help="seed of the data (default 20201120)")
    parser.add_argument("--quick", action="store_true", help="3 rounds")
    add_options(parser, "file_size")
    options = parser.parse_args()
    if options.quick:
        options.rounds = min(options.rounds, 3)
    run = open_run("file_size", options)
    cells = run.cells("file_size", ("setting", "round"), ("moved_s", "files_replaced"))
    files = run.cells("file_size_files", ("setting", "partition", "file"), ("bytes",))
    measure(run, options, cells, files)
    show(console, SETTINGS, cells, files)
    save(run, SETTINGS, cells, files)
    run.close()
    console.print(
        f"Every round: {cells.path}. Matrix: {MATRIX}; plot and page: file_size.png, file_size.html beside it"
    )


def measure(run: Run, options: argparse.Namespace, cells: Cells, files: Cells) -> None:
    """The cells that are missing; no Spark is started when there are none."""
    rounds = [(setting, n) for n in range(1, options.rounds + 1) for setting in SETTINGS]
    missing = [one for one in rounds if one not in cells]
    if not missing:
        return
    scratch = Path(tempfile.mkdtemp(prefix="bench-file-size-"))
    try:
        with spark_session(scratch) as spark:
            _warm_up(spark, scratch / "warm-up", options)
            data_set = sampled(
                DataSet(Scale(options.rows, days=options.days, seed=options.seed)), options.requests_percent
            )
            bench = Bench(spark, run.tables, data_set)
            digests = {setting: _keep_files(files, setting, bench) for setting in SETTINGS}
            progress = Progress(len(rounds), len(cells))
            for setting, n in missing:
                figures = bench.round(setting, digests[setting])
                cells.add((setting, n), **figures)
                progress.step(f"round {n:>2}  files up to {readable(setting):>6}  moved {figures['moved_s']:7.3f} s")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _warm_up(spark: SparkSession, folder: Path, options: argparse.Namespace) -> None:
    console.print("Warm-up, not counted", style="dim")
    small = DataSet(Scale(max(3_000, options.rows // 20), organizations=6, seed=options.seed))
    bench = Bench(spark, folder, small)
    digest = laid(bench.stage(bench.optimized(SETTINGS[0])).uri).digest
    for _ in range(3):
        bench.round(SETTINGS[0], digest)
    shutil.rmtree(folder)


def _keep_files(files: Cells, setting: int, bench: Bench) -> str:
    """Keep the size of every file of a setting; the digest of its list of files."""
    found = laid(bench.stage(bench.optimized(setting)).uri)
    for n, (partition, size) in enumerate(zip(found.partitions, found.sizes, strict=True)):
        files.add((setting, partition, n), bytes=size)
    console.print(f"files up to {readable(setting):>6}: {len(found.sizes):>4} files, hash {found.digest}", style="dim")
    return found.digest


if __name__ == "__main__":
    main()
