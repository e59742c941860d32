"""Where do the seconds of one engagement batch go?  python -m benchmarks.pipe

Data: the seeded traffic model on a real broker, read over a real Spark Connect server; 300,000 engagements present.
Each batch goes Kafka → strict decoding → checkpoint and summary → pinned state → rules per organization → batch plan
→ appends side by side → notification. Measures per step: seconds, Spark jobs, CPU seconds of server and workers; per
batch: files written. Compare ratios of one run, never seconds of two machines.
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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table as RichTable

from engagement_platform.embedded.connect import connect_child
from engagement_platform.embedded.kafka import EmbeddedKafka
from engagement_platform.embedded.ports import free_ports
from engagement_platform.embedded.producing import produce
from engagement_platform.embedded.traffic import Traffic
from engagement_platform.engine.model import Limits, Offsets
from engagement_platform.lake.engagement import NOTIFICATION
from engagement_platform.lake.jars import resolve_jars
from engagement_platform.lake.session import build_remote, session_conf
from engagement_platform.pipelines.engagements.pipe import State, load_state, resolve, summarize
from engagement_platform.pipelines.engagements.schema import ROW, ROW_DDL
from engagement_platform.settings import EmbeddedSettings, KafkaSettings, Settings, SparkSettings, TrafficSettings
from engagement_platform.sources.decoded_batches import ENGAGEMENT_DECODED_DDL, decode_batches
from engagement_platform.sources.kafka import KafkaSource
from engagement_platform.sources.messages import DecodingLimits

console = Console(width=140, highlight=False)
Span = tuple[Offsets, Offsets]
TICKS = os.sysconf("SC_CLK_TCK")
TUNED = {
    "spark.databricks.delta.setTransactionsInCrc.writeOnCommit": "true",
    "spark.databricks.delta.allFilesInCrc.enabled": "true",
}
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


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


AUDIT = "batch_id bigint"
DECLARED = {
    "data": (f"{ROW_DDL}, {AUDIT}", "organization_id, engagement_date"),
    "changeset": (f"{ROW_DDL}, {AUDIT}, sequence bigint", "organization_id, engagement_date"),
    "mapping": (
        f"organization_id string, id string, name string, name_ts timestamp, {AUDIT}",
        "organization_id, id",
    ),
    "notification": (NOTIFICATION.ddl, "organization_id, ingestion_date"),
}
"""Name -> columns, clustering."""
ROW_COLUMNS = ROW.names


class Lake:
    """The tables of the pipe, by path."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark, self.root = spark, root
        self.filled: set[str] = set()

    def create(self) -> None:
        """Make them, clustered by what readers prune by."""
        for name, (columns, cluster) in DECLARED.items():
            self.spark.sql(
                f"CREATE TABLE {self.sql(name)} ({columns}) USING delta CLUSTER BY ({cluster}) TBLPROPERTIES "
                "('delta.checkpointInterval' = '100', 'delta.dataSkippingNumIndexedCols' = '8')"
            ).collect()

    def sql(self, name: str) -> str:
        """A table in SQL."""
        return f"delta.`{self.root / name}`"

    def read(self, name: str) -> DataFrame | None:
        """A table; None while nothing is in it."""
        return self.spark.read.format("delta").load(str(self.root / name)) if name in self.filled else None

    def append(self, name: str, rows: DataFrame, batch: int) -> None:
        """Append under a transaction id, as one file."""
        writer = rows.coalesce(1).write.format("delta").mode("append")
        writer.option("txnAppId", f"bench/{name}").option("txnVersion", batch).save(str(self.root / name))
        self.filled.add(name)

    def files(self) -> int:
        """Data files of all tables."""
        return sum(1 for name in DECLARED for _ in (self.root / name).glob("**/*.parquet"))


@dataclass(frozen=True)
class Bench:
    """What every batch runs on."""

    lake: Lake
    settings: Settings
    source: KafkaSource
    server: Server

    def run(self, span: Span, batch: int) -> tuple[Steps, int]:
        """One batch, step by step; and how many records it had."""
        steps, lake = Steps(self.server), self.lake
        now = datetime(2026, 3, 1, tzinfo=UTC) + timedelta(seconds=batch)
        with steps.step("decode"):
            raw = self.source.read(lake.spark, *span)
            step = decode_batches("engagement", DecodingLimits.of(self.settings.decoding), now)
            decoded = raw.mapInArrow(step, ENGAGEMENT_DECODED_DDL).localCheckpoint(eager=False)
            summary = summarize(decoded)
        with steps.step("resolve"):
            known = State(lake.read("data"), lake.read("changeset"), None, None)
            plan = resolve(decoded, load_state(known, decoded, summary, all_days=False), all_days=False)
            plan = plan.localCheckpoint(eager=False)
            targets = plan.groupBy("target").agg(F.count("name").alias("names")).collect()
        with steps.step("appends"), ThreadPoolExecutor(3) as pool:
            made = appended(plan, batch, {row["target"] for row in targets}, names=any(row["names"] for row in targets))
            list(pool.map(lambda one: lake.append(one[0], one[1], batch), made.items()))
        with steps.step("notification"):
            lake.append("notification", notifications(plan, batch, now), batch)
        return steps, summary.rows_in


def appended(plan: DataFrame, batch: int, targets: set[str | None], *, names: bool) -> dict[str, DataFrame]:
    """The rows of a batch plan by the table that takes them."""
    audit = F.lit(batch).cast("bigint")
    made = {}
    if "data" in targets:
        made["data"] = plan.where("target = 'data'").select(*ROW_COLUMNS, audit.alias("batch_id"))
    if "changeset" in targets:
        images = plan.where("target = 'changeset'")
        made["changeset"] = images.select(*ROW_COLUMNS, audit.alias("batch_id"), audit.alias("sequence"))
    if names:
        made["mapping"] = plan.where("name IS NOT NULL").select(
            "organization_id",
            F.col("person_said").alias("id"),
            "name",
            F.col("engagement_ts").alias("name_ts"),
            audit.alias("batch_id"),
        )
    return made


def notifications(plan: DataFrame, batch: int, now: datetime) -> DataFrame:
    """The changes that a batch plan announces."""
    rows = plan.where("change_type IS NOT NULL")
    stamped = rows.withColumns(
        {
            "notification_id": F.concat_ws("/", F.lit("bench"), "topic", "partition", "offset"),
            "ingestion_date": F.lit(now.date()),
            "ingestion_ts": F.lit(now),
            "batch_id": F.lit(batch).cast("bigint"),
            "job_name": F.lit("bench"),
        }
    )
    return stamped.select(*NOTIFICATION.column_names)


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--present", type=int, default=300_000, help="engagements present before (default 300000)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 20_000, 200_000])
    parser.add_argument("--rounds", type=int, default=6, help="batches per size (default 6); the first is not counted")
    parser.add_argument("--interpreted", action="store_true", help="without generated code")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-pipe-"))
    try:
        with services(folder) as (settings, server):
            needed = options.present + sum(size * options.rounds for size in options.sizes)
            made = Traffic(TrafficSettings(mutation_share=0), start=datetime(2026, 1, 5, tzinfo=UTC)).messages()
            console.print(produce(settings.kafka, made, limit=needed))
            conf = {**session_conf(settings), **TUNED, **(INTERPRETED if options.interpreted else {})}
            spark = build_remote(settings.spark, conf)
            lake = Lake(spark, folder / "lake")
            lake.create()
            source = KafkaSource("engagements", settings.kafka)
            bench, at, batch = Bench(lake, settings, source, server), None, 0

            def take(count: int) -> Span:
                nonlocal at
                span = source.plan(at, Limits(count, 2**50), 300.0)
                assert span is not None, "the topic is read to its end"
                at = span[1]
                return span

            while batch < 2:
                bench.run(take(options.present // 2), batch)
                batch += 1
            for size in options.sizes:
                measured = []
                for round_ in range(options.rounds):
                    files = lake.files()
                    steps, rows = bench.run(take(size), batch)
                    batch += 1
                    written = lake.files() - files
                    total, cpu = sum(steps.seconds.values()), sum(steps.cpu.values())
                    of = [f"{name} {took:.2f} ({steps.jobs[name]})" for name, took in steps.seconds.items()]
                    counted = f"{written:3} files {sum(steps.jobs.values()):3} jobs"
                    console.print(f"{rows:>8,} rows {total:6.2f} s {cpu:6.2f} CPU s {counted}: {', '.join(of)}")
                    if round_:
                        measured.append((steps, total, cpu, written))
                report(size, measured)
            spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def report(size: int, measured: list[tuple[Steps, float, float, int]]) -> None:
    """Medians of one size."""
    table = RichTable("rows", "s", "CPU s", "files", "jobs", *measured[0][0].seconds)
    median = statistics.median
    table.add_row(
        f"{size:,}", f"{median(m[1] for m in measured):.2f}", f"{median(m[2] for m in measured):.2f}",
        f"{median(m[3] for m in measured):.0f}", f"{median(sum(m[0].jobs.values()) for m in measured):.0f}",
        *(f"{median(m[0].seconds[name] for m in measured):.2f}" for name in measured[0][0].seconds),
    )  # fmt: skip
    console.print(table)


if __name__ == "__main__":
    main()
