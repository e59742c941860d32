"""What does the whole platform take of one machine?  python -m benchmarks.footprint

Runs `engagement-platform up` in a home of its own with every pipeline and the sample traffic on, --rate engagements a
second for --seconds (600), producers included, since they run on the same cores. From the first message on it samples
the processes below `up`: CPU seconds by kind each half second, proportional set size (PSS) and runs of Dagster each ten
seconds; and it reads backlog, data files (removed ones that are not deleted included) and the size of Dagster's
database. Freshness is from a message's production to the end of its batch, without each job's first two.
Prints all figures beside their targets, and what each kind of process took; writes footprint.csv, a row a sample.
--page puts the tables into a page. The ports of `up` must be free.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path

from rich.table import Table as RichTable

from benchmarks.cells import add_options, console, open_run, right_aligned
from benchmarks.pages import add_page_option, markdown, publish
from benchmarks.pipe import TICKS
from engagement_platform.local.figures import latencies
from engagement_platform.settings import Settings

NAME, COMMAND = "footprint", "make bench-footprint ARGS=--page=docs/performance.md"
HOUR_S, MEGABYTE, GIGABYTE = 3600.0, 1e6, 1e9
RUN = "run of Dagster"
_KINDS = {
    "connect_server.py": "Spark server", "local.python_daemon": "Python workers of Spark", "kafka.Kafka": "broker",
    "multiprocessing.spawn": RUN,
    "dagster api grpc": "code server", "dagster-daemon": "daemon of Dagster", "local.webserver": "webserver of Dagster",
    "cli produce": "sample traffic", "local.emulator": "emulator of S3 and SQS", "cli ingest-server": "ingest server",
}  # fmt: skip
"""A part of the command line -> kind of process; the first that matches."""
_BACKLOG = re.compile(r"backlog ([\d,]+)")


@dataclass
class Footprint:
    """What the processes below one took, sampled."""

    root: int
    cpu: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """CPU seconds by kind."""
    _seen: dict[int, float] = field(default_factory=dict)

    def sample(self) -> None:
        """Add what each process took since the last sample; of a new one all that it took."""
        for pid in descendants(self.root):
            try:
                took = sum(map(int, Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13])) / TICKS
            except (FileNotFoundError, ProcessLookupError):
                continue
            self.cpu[kind_of(pid)] += took - self._seen.get(pid, 0.0)
            self._seen[pid] = took

    def pss(self) -> float:
        """Bytes of memory of all processes; pages that several share count by share."""
        return sum(map(pss_of, descendants(self.root)))

    def runs(self) -> int:
        """Runs of Dagster."""
        return sum(kind_of(pid) == RUN for pid in descendants(self.root))


def descendants(root: int) -> Iterator[int]:
    """A process and all below it."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    todo = [root]
    while todo:
        yield (one := todo.pop())
        todo += [pid for pid, parent in parents.items() if parent == one]


def kind_of(pid: int) -> str:
    """What a process is, by its command line."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        line = ""
    return next((kind for part, kind in _KINDS.items() if part in line), "up and others")


def pss_of(pid: int) -> float:
    """Bytes of memory of a process; 0 for one that is gone."""
    try:
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0.0
    return int(found[1]) * 1024.0 if found else 0.0


def sizes(folder: Path) -> Iterator[tuple[Path, int]]:
    """Files below a folder that is in use, with their bytes; what goes meanwhile is left out."""
    for at, _, names in os.walk(folder):
        for path in (Path(at, name) for name in names):
            try:
                size = path.stat().st_size
            except FileNotFoundError:
                continue
            yield path, size


def data_files(home: Path) -> int:
    """Data files on the disk, removed ones that VACUUM has not deleted included."""
    found = (path for path, _ in sizes(home / "lake") if path.suffix == ".parquet")
    return sum("_delta_log" not in path.parts for path in found)


def database(home: Path) -> int:
    """Bytes of Dagster's runs, events, ticks and evaluations: the pages that its databases have.

    Not the sizes of files: a write-ahead log stays as long as it once was, up to 4 MB, and is written anew.
    """
    return sum(_pages(path, size) for path, size in sizes(home / "dagster") if path.suffix == ".db")


def _pages(path: Path, size: int) -> int:
    """Bytes of a database with what its write-ahead log adds; of a file that is none, or is being made, its own."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            (pages,), (each,) = (database.execute(f"PRAGMA page_{what}").fetchone() for what in ("count", "size"))
    except sqlite3.Error:
        return size
    return int(pages * each)


@dataclass(frozen=True)
class Sample:
    """The home and its processes at one moment."""

    s: float
    """Since the first message."""
    cores: float
    """Busy on average until then."""
    pss: float
    runs: int
    backlog: int
    files: int
    database: int


TARGETS = {
    "cores busy on average": 1.3,
    "PSS, GB": 3.0,
    "runs at once": 4,
    "freshness p95, s": 20,
    "data files": 500,
    "event log, MB an hour": 5,
}
"""Figure -> the most that it may be."""


def measure(home: Path, rate: float, seconds: float) -> tuple[list[Sample], Footprint, float | None]:
    """Run `up`, sample it, stop it: samples, what its processes took, and freshness p95 in seconds.

    home: a folder that is not there yet. Raises SystemExit when `up` ends before it is sampled.
    """
    arguments = ["up", "--for", f"{seconds:.0f}", "--traffic", f"{rate:g}"]
    log = home.with_name("up.log")
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "engagement_platform.cli", *arguments],
            stdout=out, stderr=out, env={**os.environ, "ENGAGEMENT_PLATFORM_HOME": str(home)}, start_new_session=True,
        )  # fmt: skip
    try:
        while not _BACKLOG.search(log.read_text()):
            if process.poll() is not None:
                raise SystemExit(f"`up` ended with {process.returncode}: {log.read_text()[-2000:]}")
            time.sleep(0.5)
        since, took = datetime.now(UTC), Footprint(process.pid)
        samples = list(sampled(took, home, log, seconds))
        return samples, took, latencies(Settings(home=home), since)["p95 once running"]
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(120)


def sampled(took: Footprint, home: Path, log: Path, seconds: float) -> Iterator[Sample]:
    """A sample each ten seconds."""
    took.sample()
    took.cpu.clear()
    began, due = time.monotonic(), 0.0
    while (at := time.monotonic() - began) < seconds:
        took.sample()
        if at >= due:
            backlog = int(_BACKLOG.findall(log.read_text())[-1].replace(",", ""))
            runs, memory = took.runs(), took.pss()
            yield Sample(
                at, sum(took.cpu.values()) / max(at, 1), memory, runs, backlog, data_files(home), database(home)
            )
            due += 10
        time.sleep(0.5)


def figures(samples: Sequence[Sample], fresh: float | None) -> dict[str, float | None]:
    """By the names of TARGETS."""
    first, last = samples[0], samples[-1]
    written = (last.database - first.database) / MEGABYTE
    return {
        "cores busy on average": last.cores,
        "PSS, GB": max(one.pss for one in samples) / GIGABYTE,
        "runs at once": max(one.runs for one in samples),
        "freshness p95, s": fresh,
        "data files": last.files,
        "event log, MB an hour": written / (last.s - first.s) * HOUR_S,
    }


def tables(samples: Sequence[Sample], took: Footprint, fresh: float | None) -> list[RichTable]:
    """Figures beside their targets, what each kind of process took, and the course of the run."""
    beside = right_aligned("Footprint", "", "measured", "at most", "")
    for name, value in figures(samples, fresh).items():
        met = value is not None and value <= TARGETS[name]
        beside.add_row(
            name, "-" if value is None else f"{value:,.3g}", f"{TARGETS[name]:g}", "met" if met else "missed"
        )
    kinds = right_aligned("Cores busy on average", "", "cores")
    for kind, seconds in sorted(took.cpu.items(), key=lambda one: -one[1]):
        kinds.add_row(kind, f"{seconds / samples[-1].s:.2f}")
    course = right_aligned("Course", "minute", "cores so far", "PSS, GB", "runs", "backlog", "data files")
    for one in samples[:: max(1, len(samples) // 10)]:
        memory = f"{one.pss / GIGABYTE:.2f}"
        course.add_row(
            f"{one.s / 60:.0f}", f"{one.cores:.2f}", memory, str(one.runs), f"{one.backlog:,}", f"{one.files:,}"
        )
    return [beside, kinds, course]


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="from the first message on (default 600)")
    parser.add_argument("--rate", type=float, default=50, help="engagements a second (default 50)")
    add_options(parser, NAME)
    add_page_option(parser)
    options = parser.parse_args(arguments)
    page = vars(options).pop("page")
    run = open_run(NAME, options)
    folder = Path(tempfile.mkdtemp(prefix="bench-footprint-"))
    try:
        samples, took, fresh = measure(folder / "home", options.rate, options.seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    with (run.folder / f"{NAME}.csv").open("w", newline="") as file:
        rows = csv.DictWriter(file, [each.name for each in fields(Sample)], lineterminator="\n")
        rows.writeheader()
        rows.writerows(map(asdict, samples))
    shown = tables(samples, took, fresh)
    for table in shown:
        console.print(table)
    publish(NAME, COMMAND, markdown(run, shown, []), run, page)


if __name__ == "__main__":
    main()
