"""What becomes of the files, and of mutation time, as days go by?  python -m benchmarks.simulate_days

Data: seeded traffic model, 48 organizations; each day lands in --batches commits, 5 % of the rows one to eight days
late, and ends with a batch of conversions and their move into the Data Table (rematerialize-aliases, merge). Courses,
day by day side by side: partitions of organization and date with auto compaction only; the same and a run of the
platform's own OPTIMIZE every day; and partitions of organization, Z-ordered by date, with such a run every day. A run
finds by itself which partitions changed. The ingestion itself is left out: rows are appended as it appends them.
Measures per course and day: seconds of the appends, of the move, and of the maintenance; after each of them files,
their median size, and how many percent are below --small-kb (the source's 500 KB divided by 64). Fails if rows end
elsewhere than they should.
Prints the first days against the last ones; writes simulate_days.csv, simulate_days.png and simulate_days.html.
An interrupted run goes on with the day it was in, by the same command; other options are another folder. Seconds of a
batch without requests, or that an interruption took, are an empty field. Compare within one run, never seconds across
machines.
--quick: 8 days.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.cells import Cells, Progress, add_options, console, open_run
from benchmarks.cells import Run as BenchmarkRun
from benchmarks.lakes import found_rows, laid, maintain, staged
from benchmarks.mutation import spark_session
from benchmarks.mutation_data import Scale
from benchmarks.mutation_ways import Stage, StagedTopic, add, batches_of, ingestion, moving
from benchmarks.simulate_data import Days
from benchmarks.simulate_report import FIGURES, save, show
from engagement_platform.engine.model import Transaction
from engagement_platform.lake.engagement import engagement_tables
from engagement_platform.maintenance.layout.statistics import lower_median
from engagement_platform.settings import LayoutScheme, LayoutSettings

INGEST, MUTATE, MAINTAIN = "ingest", "mutate", "maintain"


@dataclass(frozen=True)
class Course:
    """A layout, and whether it is tidied every day."""

    name: str
    scheme: LayoutScheme
    maintained: bool

    @property
    def steps(self) -> tuple[str, ...]:
        """What happens on a day, in order."""
        return (INGEST, MUTATE, MAINTAIN) if self.maintained else (INGEST, MUTATE)


COURSES = (
    Course("organization/date", "organization_date", maintained=False),
    Course("organization/date, compacted", "organization_date", maintained=True),
    Course("organization, Z-order", "organization", maintained=True),
)


@dataclass(frozen=True)
class Simulation:
    """The lakes of all courses, and their days."""

    spark: SparkSession
    folder: Path
    days: Days
    max_file_bytes: int
    small_bytes: int

    def stage(self, course: Course) -> Stage:
        """The lake of a course; made on the first day."""
        home = self.folder / course.name.replace("/", "-").replace(", ", "-")
        stage = staged(self.spark, home, self.days.data_set, LayoutSettings(scheme=course.scheme))
        stage.lake.ensure(*engagement_tables(course.scheme))
        return stage

    def step(self, course: Course, day: int, step: str) -> dict[str, float | None]:
        """Do one step of a day, and the figures after it. A step that was done already changes nothing."""
        stage = self.stage(course)
        if step == INGEST:
            seconds: float | None = self._ingest(stage, day)
        elif step == MUTATE:
            seconds = self._mutate(stage, day)
        else:
            seconds = maintain(stage, self.max_file_bytes)
        sizes = np.array(laid(stage.uri).sizes)
        figures = (seconds, len(sizes), int(sizes.sum()), lower_median(pa.array(sizes)))
        return dict(zip(FIGURES, (*figures, float((sizes < self.small_bytes).mean() * 100)), strict=True))

    def check(self, course: Course) -> None:
        """After the last day every engagement is where it should be."""
        found = found_rows(self.stage(course).uri)
        wrong = dict(found.items() ^ self.days.expected().items())
        assert not wrong, f"{course.name}: {len(wrong)} persons have other engagements, such as {next(iter(wrong))}"

    def _ingest(self, stage: Stage, day: int) -> float:
        batches, began = self.days.landed(day), time.monotonic()
        for n, rows in enumerate(batches):
            if rows.num_rows:
                txn = Transaction("simulate/data", day * len(batches) + n)
                add(stage.lake, rows, stage.data, txn)
        return time.monotonic() - began

    def _mutate(self, stage: Stage, day: int) -> float | None:
        """A day's requests, and the batch that moves them; its seconds.

        None without requests, and when the move was done before an interruption that took its time.
        """
        messages = [request for one in range(day + 1) for request in self.days.requests(one)]
        if not self.days.conversions(day):
            return None
        topic = StagedTopic.of(stage.settings.home / "requests.parquet", messages)
        batches_of(ingestion(stage, topic))
        moved = batches_of(moving(stage))
        return moved[0][0] if moved and not moved[0][1].replayed else None


def main() -> None:
    """Parse, run the days that are missing, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [course.name for course in COURSES]
    parser.add_argument("--rows", type=int, default=100_000, help="engagements of all days (default 100000)")
    parser.add_argument("--days", type=int, default=30, help="days (default 30)")
    parser.add_argument("--batches", type=int, default=4, help="commits of engagements a day (default 4)")
    parser.add_argument("--late-percent", type=float, default=5, help="of engagements that land days late (default 5)")
    parser.add_argument("--max-file-kb", type=int, default=1024, help="largest file of the maintenance (default 1024)")
    parser.add_argument("--small-kb", type=float, default=500 / 64, help="files below this are small (default 7.8)")
    parser.add_argument("--courses", nargs="+", default=known, choices=known, metavar="COURSE", help=f"of: {known}")
    parser.add_argument("--seed", type=int, default=20201120, help="seed of the data (default 20201120)")
    parser.add_argument("--quick", action="store_true", help="8 days with as many rows a day")
    add_options(parser, "simulate_days")
    options = parser.parse_args()
    if options.quick and options.days > 8:
        options.rows, options.days = options.rows * 8 // options.days, 8
    run = open_run("simulate_days", options)
    cells = run.cells("simulate_days", ("course", "day", "step"), FIGURES)
    courses = [course for course in COURSES if course.name in options.courses]
    simulate(run, options, courses, cells)
    names = [course.name for course in courses]
    show(console, names, cells)
    save(run, names, cells)
    run.close()
    console.print(f"Every day: {cells.path}. Plot and page: simulate_days.png, simulate_days.html beside it")


def simulate(run: BenchmarkRun, options: argparse.Namespace, courses: Sequence[Course], cells: Cells) -> None:
    """The steps that are missing, day by day; no Spark is started when there are none."""
    steps = [(course, day, step) for day in range(options.days) for course in courses for step in course.steps]
    missing = [(course, day, step) for course, day, step in steps if (course.name, day + 1, step) not in cells]
    if not missing:
        return
    scratch = Path(tempfile.mkdtemp(prefix="simulate-days-"))
    sizes = options.max_file_kb * 1024, int(options.small_kb * 1024)
    try:
        with spark_session(scratch) as spark:
            _warm_up(Simulation(spark, scratch / "warm-up", _few(options), *sizes), courses)
            scale = Scale(options.rows, days=options.days, seed=options.seed)
            days = Days(scale, options.batches, options.late_percent)
            simulation = Simulation(spark, run.tables, days, *sizes)
            progress = Progress(len(steps), len(cells))
            for course, day, step in missing:
                found = simulation.step(course, day, step)
                if day == options.days - 1 and step == course.steps[-1]:
                    simulation.check(course)
                cells.add((course.name, day + 1, step), **found)
                seconds = "        –" if found["seconds"] is None else f"{found['seconds']:7.3f} s"
                progress.step(f"day {day + 1:>3}  {course.name:29} {step:9} {seconds}  {found['files']:>7,.0f} files")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _few(options: argparse.Namespace) -> Days:
    return Days(Scale(2_000, organizations=6, days=2, seed=options.seed), 2, options.late_percent)


def _warm_up(simulation: Simulation, courses: Sequence[Course]) -> None:
    console.print("Warm-up, not counted", style="dim")
    for course in courses:
        for day in range(simulation.days.scale.days):
            for step in course.steps:
                simulation.step(course, day, step)
        simulation.check(course)
    shutil.rmtree(simulation.folder)


if __name__ == "__main__":
    main()
