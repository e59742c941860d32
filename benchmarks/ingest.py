"""What does exactly once into five tables cost against a plain streaming append?  python -m benchmarks.ingest

Data: seeded traffic model on a real broker, one topic, read by both. Plain: Structured Streaming, from_json, append to
one Delta table partitioned alike, same session, same batch size, its own checkpoint. This job: strict decoding,
quarantine, mapping, changeset, data and notification. Each way reads the whole topic into empty tables; rounds
alternate.
Prints for each layout rows/s (median of rounds), the ratio, files written, Spark jobs, seconds per process; writes
ingest.csv. Fails if the two ways leave different engagements. Compare ratios of one run, never seconds of two machines.
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast, get_args

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table as RichTable

from engagement_platform.engine.drain import DrainPolicy, drain
from engagement_platform.lake.engagement import data_table
from engagement_platform.lake.jars import resolve_jars, spark_jars
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.session import build_classic, classic_conf, session_conf
from engagement_platform.local.kafka import EmbeddedKafka
from engagement_platform.local.ports import free_ports
from engagement_platform.local.producing import produce
from engagement_platform.local.traffic import Traffic
from engagement_platform.pipelines.jobs import INGEST_ENGAGEMENTS, build_job, open_stores, parts_of
from engagement_platform.settings import (
    BatchSettings,
    KafkaSettings,
    LayoutScheme,
    LayoutSettings,
    Settings,
    SparkSettings,
    TrafficSettings,
)

PLAIN_SCHEMA = (
    "engagement_id string, organization_id string, person_id string, person_name string, engagement_ts timestamp, "
    "version long, type string, channel string, subject string, attributes map<string,string>"
)
console = Console(width=120)


@dataclass
class Measured:
    """One way of ingesting one topic into one layout, once."""

    way: str
    scheme: LayoutScheme
    rows: int
    seconds: float
    files: int
    jobs: int
    phases: Mapping[str, float] = field(default_factory=dict)

    @property
    def rows_per_s(self) -> float:
        """Messages read per second, all told."""
        return self.rows / self.seconds


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=400_000, help="messages on the topic (default 400000)")
    parser.add_argument("--batch", type=int, default=200_000, help="most messages in a batch (default 200000)")
    parser.add_argument("--rounds", type=int, default=3, help="times each way runs per layout (default 3)")
    parser.add_argument("--schemes", nargs="+", default=list(get_args(LayoutScheme)), choices=get_args(LayoutScheme))
    parser.add_argument("--out", type=Path, default=Path("artifacts"), help="folder for ingest.csv")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-ingest-"))
    try:
        with broker(folder) as kafka, spark_session(folder) as spark:
            fill(kafka, options.messages)
            measured = list(measure(spark, folder, kafka, options))
        report(measured, options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def broker(folder: Path) -> Iterator[KafkaSettings]:
    """A broker of its own, on free ports of this machine."""
    port, controller = free_ports(2)
    jars = resolve_jars("kafka", SparkSettings().jar_cache)
    with EmbeddedKafka(folder / "kafka", port, controller, jars) as kafka:
        kafka.create_topics({"engagements": 4, "warm-up": 4})
        yield KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)


@contextmanager
def spark_session(folder: Path) -> Iterator[SparkSession]:
    """The session both ways share; its UI only counts jobs."""
    conf = {"spark.ui.enabled": "false", "spark.sql.warehouse.dir": str(folder / "warehouse")}
    settings = Settings(home=folder, spark=SparkSettings(driver_memory="3g", conf=conf))
    spark = build_classic(classic_conf(settings, spark_jars(settings)), "bench-ingest")
    try:
        yield spark
    finally:
        spark.stop()


def fill(kafka: KafkaSettings, messages: int) -> None:
    """Engagements of the traffic model, once for measuring and a few for warming up."""
    traffic = TrafficSettings(mutation_share=0)
    for topic, count in (("warm-up", 2_000), ("engagements", messages)):
        made = Traffic(traffic, start=datetime(2026, 1, 5, tzinfo=UTC)).messages()
        done = produce(kafka, made, topics={"engagements": topic, "mutation-requests": topic}, limit=count)
        console.print(f"{topic}: {done}", highlight=False)


def measure(spark: SparkSession, folder: Path, kafka: KafkaSettings, options: argparse.Namespace) -> Iterator[Measured]:
    """Every round of every way, after one round of each on the small topic."""
    for scheme in options.schemes:
        for round_ in range(options.rounds + 1):
            topic = "engagements" if round_ else "warm-up"
            home = folder / f"{scheme}-{round_}"
            settings = Settings(
                home=home,
                kafka=kafka.model_copy(update={"engagements_topic": topic}),
                batch=BatchSettings(max_records=options.batch),
                layout=LayoutSettings(scheme=cast("LayoutScheme", scheme)),
            )
            for key, value in session_conf(settings).items():
                spark.conf.set(key, value)
            ways = (ingest, plain) if round_ % 2 else (plain, ingest)
            done = [way(spark, settings) for way in ways]
            agree(spark, settings)
            shutil.rmtree(home, ignore_errors=True)
            if round_:
                for one in done:
                    console.print(
                        f"{scheme:18} round {round_}/{options.rounds} {one.way:7} {one.rows_per_s:>9,.0f} rows/s "
                        f"{one.seconds:6.1f} s {one.files:>6,} files {one.jobs:>4} jobs",
                        highlight=False,
                    )
                yield from done


def ingest(spark: SparkSession, settings: Settings) -> Measured:
    """This platform's job, from an empty lake until nothing waits."""
    before = jobs_started(spark)
    began = time.monotonic()
    job = build_job(INGEST_ENGAGEMENTS, parts_of(spark, settings, open_stores(settings)))
    reports = list(drain(job, DrainPolicy(idle_timeout=timedelta(0))))
    seconds = time.monotonic() - began
    phases: dict[str, float] = {}
    for one in reports:
        for name, took in one.process_seconds.items():
            phases[name] = phases.get(name, 0) + took
    return Measured(
        way="ingest",
        scheme=settings.layout.scheme,
        rows=sum(one.counts["rows_in"] for one in reports),
        seconds=seconds,
        files=sum(one.counts["files"] for one in reports),
        jobs=jobs_started(spark) - before,
        phases=phases,
    )


def plain(spark: SparkSession, settings: Settings) -> Measured:
    """The job one would write first: parse leniently, append to one table."""
    table = data_table(settings.layout.scheme)
    target = str(settings.home / "plain")
    before = jobs_started(spark)
    began = time.monotonic()
    raw = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", settings.kafka.bootstrap_servers)
        .option("subscribe", settings.kafka.engagements_topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", settings.batch.max_records)
        .load()
    )
    parsed = raw.select(F.from_json(F.col("value").cast("string"), PLAIN_SCHEMA).alias("m")).select("m.*")
    rows = parsed.where(F.col("engagement_id").isNotNull() & F.col("organization_id").isNotNull()).select(
        "organization_id",
        F.to_date("engagement_ts").alias("engagement_date"),
        "engagement_ts",
        "engagement_id",
        "person_id",
        F.col("person_id").alias("source_person_id"),
        F.coalesce("version", F.lit(1)).alias("version"),
        F.lit(0).cast("long").alias("batch_id"),
        F.struct("type", "channel", "subject", "attributes").alias("engagement"),
    )
    if settings.layout.scheme == "liquid":
        spark.sql(
            f"CREATE TABLE delta.`{target}` ({table.ddl}) USING delta CLUSTER BY ({', '.join(table.liquid_by)})"
        ).collect()
    writer = rows.writeStream.format("delta").option("checkpointLocation", f"{target}-checkpoint")
    if table.partitioned_by:
        writer = writer.partitionBy(*table.partitioned_by)
    query = writer.trigger(availableNow=True).start(target)
    query.awaitTermination()
    seconds = time.monotonic() - began
    return Measured(
        way="plain",
        scheme=settings.layout.scheme,
        rows=sum(progress["numInputRows"] for progress in query.recentProgress),
        seconds=seconds,
        files=len(spark.read.format("delta").load(target).inputFiles()),
        jobs=jobs_started(spark) - before,
    )


def agree(spark: SparkSession, settings: Settings) -> None:
    """Both ways know the same engagements, but for those that strict decoding refuses and lenient parsing takes."""
    keys = ("organization_id", "engagement_id")
    ours = Lake(spark, settings).read(data_table(settings.layout.scheme)).select(*keys)
    theirs = spark.read.format("delta").load(str(settings.home / "plain")).select(*keys).distinct()
    assert ours.count() == ours.distinct().count(), "an engagement stands twice"
    assert ours.exceptAll(theirs).isEmpty(), "the plain job lacks engagements that this job has"


def jobs_started(spark: SparkSession) -> int:
    """Spark jobs since the session began. Benchmarks run in classic mode, where the context knows."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())


def report(measured: list[Measured], options: argparse.Namespace) -> None:
    """Medians and ratios as a table, every round as CSV."""
    table = RichTable("layout", "ingest rows/s", "plain rows/s", "ratio", "files", "plain files", "jobs", "plain jobs")
    for scheme in options.schemes:
        ours = [one for one in measured if one.scheme == scheme and one.way == "ingest"]
        theirs = [one for one in measured if one.scheme == scheme and one.way == "plain"]
        mine, other = (statistics.median(one.rows_per_s for one in some) for some in (ours, theirs))
        files, plain_files = ours[-1].files, theirs[-1].files
        figures = (mine, other, mine / other, files, plain_files, ours[-1].jobs, theirs[-1].jobs)
        shown = [f"{figure:,.0f}" if figure >= 10 else f"{figure:.2f}" for figure in figures]
        table.add_row(scheme, *shown)
    console.print(table)
    for scheme in options.schemes:
        phases = [one.phases for one in measured if one.scheme == scheme and one.way == "ingest"]
        medians = {name: statistics.median(p.get(name, 0) for p in phases) for name in phases[0]}
        console.print(scheme, ", ".join(f"{name} {seconds:.1f} s" for name, seconds in medians.items()))
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "ingest.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["way", "scheme", "rows", "seconds", "files", "jobs", "cores", "machine"])
        for one in measured:
            machine = (os.cpu_count(), platform.machine())
            writer.writerow([one.way, one.scheme, one.rows, round(one.seconds, 2), one.files, one.jobs, *machine])
    console.print(
        f"{options.messages:,} messages in batches of {options.batch:,}, {options.rounds} rounds, "
        f"{os.cpu_count()} cores, Python {platform.python_version()}. Every round: {options.out / 'ingest.csv'}",
        highlight=False,
    )


if __name__ == "__main__":
    main()
