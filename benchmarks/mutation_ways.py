"""The ways of applying conversions that `mutation` compares, and the lakes they start from.

Each way takes a lake of its own with the same rows and says when what it did was committed; choosing ways and telling
about them is not done here.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.mutation_data import DataSet, Tally, tally
from engagement_platform.engine.job import BatchReport, Told
from engagement_platform.engine.model import Transaction
from engagement_platform.jobs import build_job, open_stores
from engagement_platform.lake import log
from engagement_platform.lake.arrow import schema_of
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import (
    MAPPING,
    MUTATION_LOGS,
    MUTATION_REQUEST,
    NOTIFICATION,
    OPERATION,
    PENDING,
    QUARANTINE,
    SAID_NAME,
    data_table,
)
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.session import session_conf
from engagement_platform.mutation.current import current
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.settings import (
    ApplyStrategy,
    BatchSettings,
    LayoutScheme,
    LayoutSettings,
    MutationSettings,
    Settings,
)

Base = Literal["tuned", "naive"]
SCHEMES: Mapping[Base, LayoutScheme] = {"tuned": "organization", "naive": "organization_date"}
NAIVE = "naive"
PLAIN = "plain MERGE, tuned"
DELTA_RS = "delta-rs merge"
BATCH = 1
"""batch_id of rows that the ways by hand change; rows begin with 0."""

# What Spark and Delta do when nobody sets anything; the sessions of the platform set all of these.
DEFAULTS: Mapping[str, str] = {
    "spark.sql.shuffle.partitions": "200",
    "spark.databricks.delta.snapshotPartitions": "50",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "10000",
    "spark.databricks.delta.autoOptimize.optimizeWrite": "false",
    "spark.databricks.delta.optimizeWrite.enabled": "false",
    "spark.databricks.delta.autoCompact.enabled": "false",
}


@dataclass(frozen=True)
class Stage:
    """A lake of its own for one way, once."""

    spark: SparkSession
    settings: Settings
    data_set: DataSet

    @property
    def lake(self) -> Lake:
        """The lake."""
        return Lake(self.spark, self.settings)

    @property
    def data(self) -> Table:
        """The Data Table in the layout of this lake."""
        return data_table(self.settings.layout.scheme)

    @property
    def uri(self) -> str:
        """Where the Data Table is."""
        return self.lake.uri(self.data)


@dataclass(frozen=True)
class Outcome:
    """When a way's changes could be read, and when they were announced, in seconds since it began; and how."""

    visible_s: float
    announced_s: float
    phases: Mapping[str, float] = field(default_factory=dict)
    chosen: str = ""


@dataclass(frozen=True)
class Way:
    """One way of applying conversions."""

    name: str
    run: Callable[[Stage], Outcome]
    base: Base = "tuned"
    apply: ApplyStrategy = "auto"
    in_spark: bool = False

    def settings(self, home: Path) -> Settings:
        """Of a lake in `home`; with in_spark nothing is light enough to be written without Spark."""
        layout = LayoutSettings(scheme=SCHEMES[self.base])
        if self.in_spark:
            layout = layout.model_copy(update={"light_write_rows": 0})
        return Settings(
            home=home,
            layout=layout,
            mutation=MutationSettings(apply=self.apply),
            batch=BatchSettings(max_records=10_000_000),
        )


def build_base(spark: SparkSession, folder: Path, data_set: DataSet, base: Base) -> Tally:
    """Write the rows into a new lake in `folder`, one file for each partition; what readers must find at the end."""
    layout = LayoutSettings(scheme=SCHEMES[base], auto_compact=False, light_write_rows=2**60)
    settings = Settings(home=folder, layout=layout)
    configure(spark, session_conf(settings))
    lake, data = Lake(spark, settings), data_table(layout.scheme)
    lake.ensure(data, MAPPING, NOTIFICATION, QUARANTINE, MUTATION_REQUEST, OPERATION, PENDING, *MUTATION_LOGS)
    expected: Tally = {}
    mappings, sayings = [], []
    for n, rows in enumerate(data_set.rows()):
        if not rows.num_rows:
            continue
        lake.append(rows, data, Transaction("bench/data", n), rows=rows.num_rows)
        expected |= tally(rows, "source_person_id", data_set.ends)
        mapping, said = data_set.names(rows)
        mappings.append(mapping)
        sayings.append(said)
    for table, parts in ((MAPPING, mappings), (SAID_NAME, sayings)):
        named = pa.concat_tables(parts)
        lake.append(named, table, Transaction("bench/names", 0), rows=named.num_rows)
    return expected


def restore(base: Path, home: Path) -> None:
    """Give a way the same table versions as every other."""
    home.mkdir(parents=True)
    shutil.copytree(base / "lake", home / "lake")


def configure(spark: SparkSession, conf: Mapping[str, str]) -> None:
    """Set what can be set for a session."""
    for key, value in conf.items():
        spark.conf.set(key, value)


def land(stage: Stage, requests: pa.Table) -> None:
    """Put requests where the ingestion of requests leaves them."""
    stage.lake.append(requests, MUTATION_REQUEST, Transaction("bench/requests", 0), rows=requests.num_rows)


def job_ways() -> list[Way]:
    """The job with each strategy; also with all its writing in Spark, once it can resolve there."""
    strategies: tuple[ApplyStrategy, ...] = ("merge", "deletion_vectors", "overwrite", "alias", "auto")
    ways = [Way(strategy, by_job, apply=strategy) for strategy in strategies]
    if find_spec("engagement_platform.mutation.many") is not None:
        ways += [Way(f"{strategy}, in Spark", by_job, apply=strategy, in_spark=True) for strategy in strategies]
    return ways


def all_ways() -> list[Way]:
    """Every way, the naive one first."""
    by_hand = [Way(NAIVE, naively, base="naive"), Way(PLAIN, plainly), Way(DELTA_RS, with_delta_rs)]
    return by_hand + job_ways()


def run_job(stage: Stage) -> tuple[dict[str, float], BatchReport]:
    """One batch of the job: when each point was passed, in seconds since it began, and its report."""
    passed: list[tuple[str, float]] = []
    told = Told(observe=lambda point: passed.append((point, time.monotonic())))
    job = build_job(APPLY_MUTATIONS, stage.spark, stage.settings, open_stores(stage.settings), told)
    with job.exclusive() as lease:
        began = time.monotonic()
        report = job.run_batch(lease)
    assert report is not None, "no request has landed"
    assert report.counts["quarantined"] == 0, "requests were rejected"
    return {point: at - began for point, at in passed}, report


def by_job(stage: Stage) -> Outcome:
    """The mutation job. Visible with its last commit of rows, or with the edges where the view alone shows them."""
    land(stage, stage.data_set.conversion_requests())
    at, report = run_job(stage)
    moved = [at[point] for point in ("data.move:after", "data.rows:after") if point in at]
    details = report.details["strategies"]
    assert isinstance(details, Mapping)
    chosen = ", ".join(f"{name} {of['organizations']}" for name, of in details.items())
    return Outcome(
        visible_s=max([at["alias.alias:after"], *moved]),
        announced_s=at["notification.append:after"],
        phases=dict(report.process_seconds),
        chosen=chosen,
    )


def naively(stage: Stage) -> Outcome:
    """What one would write first, on the layout one would choose first, with Spark's and Delta's defaults."""
    configure(stage.spark, DEFAULTS)
    return plainly(stage)


def plainly(stage: Stage) -> Outcome:
    """One MERGE over the whole table, then an append of the touched rows.

    Where each id ends is known before the clock starts, which is more than a naive job would have.
    """
    source, spark = _resolved(stage), stage.spark
    began = time.monotonic()
    spark.sql(
        f"MERGE INTO delta.`{stage.uri}` t USING delta.`{source}` s "
        "ON t.organization_id = s.organization_id AND t.person_id = s.from_id "
        f"WHEN MATCHED THEN UPDATE SET t.person_id = s.to_id, t.batch_id = {BATCH}"
    ).collect()
    visible_s = time.monotonic() - began
    touched = spark.read.format("delta").load(stage.uri).where(F.col("batch_id") == BATCH)
    landed = F.lit(stage.data_set.landed)
    said = {
        "notification_id": F.concat_ws("/", "organization_id", "engagement_id"),
        "ingestion_date": F.to_date(landed),
        "ingestion_ts": landed,
        "job_name": F.lit("by hand"),
        "change_type": F.lit("UPDATE"),
        "previous_person_id": F.col("source_person_id"),
    }
    rows = touched.withColumns(said).select(*NOTIFICATION.column_names)
    rows.write.format("delta").mode("append").save(stage.lake.uri(NOTIFICATION))
    announced_s = time.monotonic() - began
    return Outcome(visible_s, announced_s, {"merge": visible_s, "notification": announced_s - visible_s})


def with_delta_rs(stage: Stage) -> Outcome:
    """The same by delta-rs, whose merge starts no JVM."""
    ends = pa.table(DeltaTable(_resolved(stage)).to_pyarrow_table())
    began = time.monotonic()
    merger = DeltaTable(stage.uri).merge(
        ends,
        "t.organization_id = s.organization_id AND t.person_id = s.from_id",
        source_alias="s",
        target_alias="t",
    )
    merger.when_matched_update({"person_id": "s.to_id", "batch_id": str(BATCH)}).execute()
    visible_s = time.monotonic() - began
    write_deltalake(stage.lake.uri(NOTIFICATION), _changed(stage), mode="append")
    announced_s = time.monotonic() - began
    return Outcome(visible_s, announced_s, {"merge": visible_s, "notification": announced_s - visible_s})


def _changed(stage: Stage) -> pa.Table:
    """Notifications of the rows that carry BATCH."""
    columns = ("organization_id", "engagement_id", "engagement_date", "person_id", "source_person_id")
    found = DeltaTable(stage.uri).scan(columns=list(columns), predicate=f"batch_id = {BATCH}")
    rows = pa.table(found).cast(schema_of(stage.data, *columns))
    known = {
        "notification_id": pc.binary_join_element_wise(
            rows.column("organization_id"), rows.column("engagement_id"), "/"
        ),
        "ingestion_date": stage.data_set.landed.date(),
        "ingestion_ts": stage.data_set.landed,
        "batch_id": BATCH,
        "job_name": "by hand",
        "change_type": "UPDATE",
        "previous_person_id": rows.column("source_person_id"),
    }
    values = [known[name] if name in known else rows.column(name) for name in NOTIFICATION.column_names]
    whole = [v if isinstance(v, pa.ChunkedArray) else pa.repeat(pa.scalar(v), rows.num_rows) for v in values]
    return pa.table(whole, names=list(NOTIFICATION.column_names)).cast(schema_of(NOTIFICATION))


def _resolved(stage: Stage) -> str:
    """A staged Delta table of where each converted id ends."""
    path = str(stage.settings.home / "resolved")
    ends = [
        {"organization_id": org, "from_id": first, "to_id": end} for (org, first), end in stage.data_set.ends.items()
    ]
    write_deltalake(path, pa.Table.from_pylist(ends))
    return path


def rewritten(uri: str, after: int) -> tuple[int, int]:
    """Files that were replaced since a version, and bytes written meanwhile: new files and deletion vectors.

    A file that only got a deletion vector is not replaced.
    """
    files = written = 0
    version = log.version(uri)
    assert version is not None, f"there is no table at {uri}"
    for one in range(after + 1, version + 1):
        actions = log.entry(uri, one) or []
        added = {action["add"]["path"]: action["add"] for action in actions if "add" in action}
        removed = {action["remove"]["path"] for action in actions if "remove" in action}
        files += len(removed - added.keys())
        for path, add in added.items():
            vector = (add.get("deletionVector") or {}).get("sizeInBytes", 0)
            written += vector if path in removed else int(add["size"]) + vector
    return files, written


def check(stage: Stage, expected: Tally) -> None:
    """Readers of the view find every engagement under the id where its person ends, and each change was announced."""
    columns = ("organization_id", "person_id", "engagement_id")
    found = tally(current(stage.lake, stage.data).select(*columns).toArrow(), "person_id")
    wrong = dict(found.items() ^ expected.items())
    assert not wrong, f"{len(wrong)} persons have other engagements than they should, such as {next(iter(wrong))}"
    announced = stage.lake.read(NOTIFICATION).count()
    assert announced == stage.data_set.touched, f"{announced} notifications of {stage.data_set.touched} changes"


def _counted(rows: DataFrame) -> DataFrame:
    """Engagements of each person, and a sum over a column."""
    return rows.groupBy("organization_id", "person_id").agg(F.count("*"), F.sum("version"))


READS: Mapping[str, Callable[[DataFrame], DataFrame]] = {"all columns": lambda rows: rows, "three columns": _counted}
"""What a full read takes of each row: everything, as an export does, or what a count for each person needs."""


def seconds_of_reads(stage: Stage, what: str, times: int) -> list[tuple[float, float]]:
    """Seconds to read the view and to read the Data Table, in turns; each opened anew. After one read of each."""

    def read(rows: DataFrame) -> None:
        READS[what](rows).write.format("noop").mode("overwrite").save()

    measured = []
    for _ in range(times + 1):
        began = time.monotonic()
        read(current(stage.lake, stage.data))
        between = time.monotonic()
        read(stage.lake.read(stage.data))
        measured.append((between - began, time.monotonic() - between))
    return measured[1:]


@dataclass(frozen=True)
class Profile:
    """Where one full read of `which` goes: the view or the table, of some `what` of its rows."""

    which: str
    what: str
    rows: int
    opened_s: float
    """Until there is a frame: versions, and of the view the edges that wait, followed and sent to where rows are."""
    planned_s: float
    read_s: float
    jobs: int
    """Spark jobs, from opening on."""
    tasks: int
    files: int


def profiles_of_reads(stage: Stage, what: str) -> list[Profile]:
    """Where a full read of the view and one of the Data Table go."""
    frames: Mapping[str, Callable[[], DataFrame]] = {
        "the view": lambda: current(stage.lake, stage.data),
        "the table": lambda: stage.lake.read(stage.data),
    }
    context = stage.spark.sparkContext
    tracker = context.statusTracker()
    found = []
    for which, opened in frames.items():
        group = f"{which}, {what}"
        context.setJobGroup(group, group)
        began = time.monotonic()
        rows = READS[what](opened())
        opened_s = time.monotonic() - began
        rows._jdf.queryExecution().executedPlan()
        planned_s = time.monotonic() - began - opened_s
        rows.write.format("noop").mode("overwrite").save()
        read_s = time.monotonic() - began - opened_s - planned_s
        jobs = tracker.getJobIdsForGroup(group)
        stages = {stage_id for job in jobs for stage_id in getattr(tracker.getJobInfo(job), "stageIds", ())}
        tasks = sum(getattr(tracker.getStageInfo(one), "numTasks", 0) for one in stages)
        times = (opened_s, planned_s, read_s)
        count = stage.data_set.scale.rows
        found.append(Profile(which, what, count, *times, len(jobs), tasks, len(rows.inputFiles())))
    context.setJobGroup("bench-mutation", "everything else")
    return found
