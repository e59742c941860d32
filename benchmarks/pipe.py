"""Where do the seconds of one engagement batch go?  python -m benchmarks.pipe

Data: the seeded traffic model on a real broker, read over a real Spark Connect server; 300,000 engagements present.
Each batch is one of the job ingest-engagements: `open` decodes, loads the pinned state and resolves up to the batch
plan, `tables` and `notification` are its processes. Measures per step: seconds, Spark jobs, CPU seconds of server and
workers; per batch: files written. Compare ratios of one run, never seconds of two machines.

--versions: first with short logs, then with as many versions more in the log of each table, by commits that change
nothing, with a checksum file each: what days of small batches cost each batch.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from rich.console import Console
from rich.table import Table as RichTable

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.job import Callbacks, MicroBatchJob, Step
from engagement_platform.engine.model import Counts, Limits, Manifest
from engagement_platform.lake.jars import resolve_jars
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.session import build_remote, session_conf
from engagement_platform.local.connect import connect_child
from engagement_platform.local.kafka import EmbeddedKafka
from engagement_platform.local.ports import free_ports
from engagement_platform.local.producing import produce
from engagement_platform.local.traffic import Traffic
from engagement_platform.pipelines.engagements.job import EngagementBatch, ingest_engagements
from engagement_platform.pipelines.jobs import INGEST_ENGAGEMENTS, open_stores, read_topic
from engagement_platform.pipelines.parts import Parts
from engagement_platform.settings import (
    BatchSettings,
    EmbeddedSettings,
    KafkaSettings,
    Settings,
    SparkSettings,
    TrafficSettings,
)
from engagement_platform.sources.kafka import KafkaSource

console = Console(width=140, highlight=False)
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and of all that it started, as the kernel counts them."""
    total, todo = 0, [pid]
    while todo:
        one = todo.pop()
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()
            total += sum(map(int, fields[11:15]))
            for task in Path(f"/proc/{one}/task").iterdir():
                todo += map(int, (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total / TICKS


@dataclass(frozen=True)
class Server:
    """The Connect server that is measured."""

    pid: int
    ui_port: int

    def jobs(self) -> int:
        """Spark jobs that it has started."""
        api = f"http://127.0.0.1:{self.ui_port}/api/v1/applications"
        (application,) = _get(api)
        return max((job["jobId"] + 1 for job in _get(f"{api}/{application['id']}/jobs")), default=0)


def _get(url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(url, timeout=30) as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return found


@dataclass
class Steps:
    """Seconds, CPU seconds and Spark jobs of each step of a batch."""

    server: Server
    seconds: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)
    jobs: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure what happens inside."""
        jobs, cpu, began = self.server.jobs(), cpu_seconds(self.server.pid), time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - began
        self.cpu[name] = cpu_seconds(self.server.pid) - cpu
        self.jobs[name] = self.server.jobs() - jobs


@contextmanager
def services(folder: Path) -> Iterator[tuple[Settings, Server]]:
    """A broker and a Connect server of their own on free ports."""
    kafka_port, controller, connect, ui = free_ports(4)
    jars = resolve_jars("kafka", SparkSettings().jar_cache)
    with EmbeddedKafka(folder / "kafka", kafka_port, controller, jars) as kafka:
        kafka.create_topics({"engagements": 4, "mutation-requests": 1})
        settings = Settings(
            home=folder,
            kafka=KafkaSettings(bootstrap_servers=kafka.bootstrap_servers),
            batch=BatchSettings(max_bytes=2**40),
            embedded=EmbeddedSettings(connect_port=connect),
            spark=SparkSettings(
                remote=f"sc://127.0.0.1:{connect}",
                conf={"spark.ui.enabled": "true", "spark.ui.port": str(ui), "spark.ui.retainedJobs": "10000"},
            ),
        )
        child = connect_child(settings, folder / "spark")
        env = {key: value for key, value in {**os.environ, **child.env}.items() if value is not None}
        with (folder / "spark.log").open("wb") as log:
            server = subprocess.Popen(list(child.command), env=env, stdout=log, stderr=log)
        try:
            while not child.ready():
                assert server.poll() is None, (folder / "spark.log").read_text()[-2000:]
                time.sleep(0.2)
            yield settings, Server(server.pid, ui)
        finally:
            server.terminate()
            server.wait(30)


def measured(job: MicroBatchJob[EngagementBatch], steps: Steps, records: int) -> MicroBatchJob[EngagementBatch]:
    """The job for a batch of at most so many records, with seconds, CPU seconds and Spark jobs of its steps counted."""

    def prepare(manifest: Manifest) -> EngagementBatch:
        with steps.step("open"):
            return job.prepare(manifest)

    def counted(process: Step[EngagementBatch], work: EngagementBatch, commit: Committer) -> Counts:
        with steps.step(process.name):
            return process.does(work, commit)

    processes = tuple(replace(process, does=partial(counted, process)) for process in job.processes)
    return replace(job, prepare=prepare, processes=processes, limits=Limits(records, 2**50))


@dataclass(frozen=True)
class Batch:
    """One measured batch."""

    steps: Steps
    rows: int
    seconds: float
    cpu: float
    jobs: int
    files: int


@dataclass(frozen=True)
class Bench:
    """What every batch runs on."""

    job: MicroBatchJob[EngagementBatch]
    lake: Path
    server: Server

    def run(self, records: int) -> Batch:
        """One batch."""
        steps, whole, files = Steps(self.server), Steps(self.server), self.files()
        with whole.step("batch"), self.job.exclusive() as lease:
            report = measured(self.job, steps, records).run_batch(lease)
        assert report is not None, "the topic is read to its end"
        took = whole.seconds["batch"], whole.cpu["batch"], whole.jobs["batch"]
        return Batch(steps, report.counts["rows_in"], *took, self.files() - files)

    def files(self) -> int:
        """Data files of all tables."""
        return sum("_delta_log" not in path.parts for path in self.lake.rglob("*.parquet"))


def lengthen(lake: Path, versions: int) -> None:
    """Add so many versions to the log of each table, and a checkpoint behind them."""
    commit = json.dumps({"commitInfo": {"timestamp": int(time.time() * 1000), "operation": "BENCHMARK"}}).encode()
    for folder in sorted(lake.glob("*/*/_delta_log")):
        after = max(int(path.stem) for path in folder.glob("*.json")) + 1
        for version in range(after, after + versions):
            (folder / f"{version:020}.json").write_bytes(commit)
            # Spark's checksum of the state; one that is empty counts as none.
            (folder / f"{version:020}.crc").touch()
        DeltaTable(folder.parent).create_checkpoint()


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--present", type=int, default=300_000, help="engagements present before (default 300000)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 20_000, 200_000])
    parser.add_argument("--rounds", type=int, default=6, help="batches per size (default 6); the first is not counted")
    parser.add_argument(
        "--versions", type=int, nargs="*", default=[], help="then with so many versions more in each log"
    )
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-pipe-"))
    try:
        with services(folder) as (settings, server):
            lengths = [0, *options.versions]
            needed = options.present + sum(size * options.rounds for size in options.sizes) * len(lengths)
            made = Traffic(TrafficSettings(mutation_share=0), start=datetime(2026, 1, 5, tzinfo=UTC)).messages()
            console.print(produce(settings.kafka, made, limit=needed))
            spark = build_remote(settings.spark, session_conf(settings))
            source = KafkaSource(settings.kafka.engagements_topic, settings.kafka)
            parts = Parts(Lake(spark, settings), open_stores(settings), settings, Callbacks())
            read = partial(read_topic, source, spark, settings)
            bench = Bench(ingest_engagements(INGEST_ENGAGEMENTS, source, read, parts), Path(settings.lake), server)
            for _ in range(2):
                bench.run(options.present // 2)
            for versions in lengths:
                if versions:
                    lengthen(Path(settings.lake), versions)
                    console.print(f"{versions:,} versions more in each log:")
                for size in options.sizes:
                    measure(bench, size, options.rounds)
            spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(bench: Bench, size: int, rounds: int) -> None:
    """So many batches of one size, each printed, and their medians."""
    done = [bench.run(size) for _ in range(rounds)]
    for one in done:
        of = [f"{name} {took:.2f} ({one.steps.jobs[name]})" for name, took in one.steps.seconds.items()]
        took = f"{one.rows:>8,} rows {one.seconds:6.2f} s {one.cpu:6.2f} CPU s"
        console.print(f"{took} {one.files:3} files {one.jobs:3} jobs: {', '.join(of)}")
    report(size, done[1:] or done)


def report(size: int, done: Sequence[Batch]) -> None:
    """Medians of one size. `rest`: planning, leases, stores."""
    names = list(done[0].steps.seconds)
    table = RichTable("rows", "s", "CPU s", "files", "jobs", *names, "rest")
    whole = [
        statistics.median(value) for value in zip(*((o.seconds, o.cpu, o.files, o.jobs) for o in done), strict=True)
    ]
    of = [statistics.median(one.steps.seconds[name] for one in done) for name in names]
    rest = statistics.median(one.seconds - sum(one.steps.seconds.values()) for one in done)
    figures = [*(f"{value:.2f}" for value in whole[:2]), *(f"{value:.0f}" for value in whole[2:])]
    table.add_row(f"{size:,}", *figures, *(f"{took:.2f}" for took in (*of, rest)))
    console.print(table)


if __name__ == "__main__":
    main()
