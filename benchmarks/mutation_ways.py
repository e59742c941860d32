"""The ways of applying conversions that `mutation` compares, and the lakes they start from.

Each way takes a lake of its own with the same rows and says when what it did was committed; choosing ways and telling
about them is not done here.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.mutation_data import DataSet, Tally, tally
from engagement_platform.engine.job import BatchReport, Callbacks, MicroBatchJob
from engagement_platform.engine.model import Limits, Manifest, NoIdentity, Offsets, Transaction
from engagement_platform.lake import log
from engagement_platform.lake.arrow import schema_of
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import MAPPING, NOTIFICATION, data_table, engagement_tables
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.session import session_conf
from engagement_platform.pipelines.jobs import open_stores
from engagement_platform.pipelines.mutations.announce import apply_mutations
from engagement_platform.pipelines.mutations.ingest import ingest_mutation_requests
from engagement_platform.pipelines.mutations.move import rematerialize_aliases
from engagement_platform.pipelines.parts import Parts
from engagement_platform.pipelines.snapshot import current, snapshot
from engagement_platform.settings import (
    ApplyStrategy,
    BatchSettings,
    LayoutScheme,
    LayoutSettings,
    MutationSettings,
    Settings,
)

Base = Literal["liquid", "tuned", "naive"]
SCHEMES: Mapping[Base, LayoutScheme] = {"liquid": "liquid", "tuned": "organization", "naive": "organization_date"}
NAIVE = "naive"
PLAIN = "plain MERGE, tuned"
DELTA_RS = "delta-rs merge"
REQUESTS = "ingest-mutation-requests"
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
    """Seconds since a way began until its changes could be read, were announced, and were in the Data Table."""

    visible_s: float
    announced_s: float
    moved_s: float
    phases: Mapping[str, float] = field(default_factory=dict)
    chosen: str = ""


@dataclass(frozen=True)
class Way:
    """One way of applying conversions."""

    name: str
    run: Callable[[Stage], Outcome]
    base: Base = "tuned"
    apply: ApplyStrategy = "auto"

    def settings(self, home: Path) -> Settings:
        """Of a lake in `home`."""
        return Settings(
            home=home,
            layout=LayoutSettings(scheme=SCHEMES[self.base]),
            mutation=MutationSettings(apply=self.apply),
            batch=BatchSettings(max_records=10_000_000),
        )


def build_base(spark: SparkSession, folder: Path, data_set: DataSet, base: Base) -> Tally:
    """Write the rows into a new lake in `folder`, one file for each partition; what readers must find at the end."""
    settings = Settings(home=folder, layout=LayoutSettings(scheme=SCHEMES[base], auto_compact=False))
    configure(spark, session_conf(settings))
    lake, data = Lake(spark, settings), data_table(settings.layout.scheme)
    lake.ensure(*engagement_tables(settings.layout.scheme))
    expected: Tally = {}
    parts = [rows for rows in data_set.rows() if rows.num_rows]
    for rows in parts:
        expected |= tally(rows, "source_person_id", data_set.ends)
    add(lake, pa.concat_tables(parts), data, Transaction("bench/data", 0))
    add(lake, pa.concat_tables(map(data_set.names, parts)), MAPPING, Transaction("bench/names", 0))
    return expected


def add(lake: Lake, rows: pa.Table, table: Table, txn: Transaction) -> None:
    """Append rows of this process as the jobs append theirs, by Spark. By way of a file, so that no plan holds them."""
    staged = Path(lake.root).parent / "staged.parquet"
    pq.write_table(rows, staged)
    lake.append(lake.spark.read.schema(table.ddl).parquet(str(staged)), table, txn, rows=rows.num_rows)
    staged.unlink()


def restore(base: Path, home: Path) -> None:
    """Give a way the same table versions as every other."""
    home.mkdir(parents=True)
    shutil.copytree(base / "lake", home / "lake")


def configure(spark: SparkSession, conf: Mapping[str, str]) -> None:
    """Set what can be set for a session."""
    for key, value in conf.items():
        spark.conf.set(key, value)


@dataclass(frozen=True)
class StagedTopic(NoIdentity):
    """Messages in a Parquet file, as a topic of one partition; a batch takes all up to `end`."""

    path: Path
    end: int

    @classmethod
    def of(cls, path: Path, messages: Iterable[Mapping[str, str]]) -> StagedTopic:
        """Write messages to a file, in their order."""
        values = [json.dumps(message).encode() for message in messages]
        now = pa.scalar(datetime.now(UTC), pa.timestamp("us", tz="UTC"))
        columns = {
            "topic": pa.repeat(pa.scalar("mutation-requests"), len(values)),
            "partition": pa.repeat(pa.scalar(0, pa.int32()), len(values)),
            "offset": pa.array(range(len(values)), pa.int64()),
            "key": pa.nulls(len(values), pa.binary()),
            "value": pa.array(values, pa.binary()),
            "timestamp": pa.repeat(now, len(values)),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), path)
        return cls(path, len(values))

    def plan(self, start: Offsets | None, limits: Limits, mean_bytes: float | None) -> tuple[Offsets, Offsets] | None:  # noqa: ARG002
        """From where the last batch ended up to `end`."""
        begin = start["0"] if start else 0
        return ({"0": begin}, {"0": self.end}) if begin < self.end else None

    def check(self, start: Offsets, end: Offsets) -> None:
        """The file stays."""

    def size(self, start: Offsets, end: Offsets) -> int:
        """Messages of a range."""
        return end["0"] - start["0"]

    def read(self, spark: SparkSession, manifest: Manifest) -> DataFrame:
        """The records of a batch."""
        mine = (F.col("offset") >= manifest.start["0"]) & (F.col("offset") < manifest.end["0"])
        return spark.read.parquet(str(self.path)).where(mine)


def job_ways() -> list[Way]:
    """The jobs, with each strategy of the move; the tuned layout beside the default one for the first."""
    ways = [Way(strategy, by_jobs, base="liquid", apply=strategy) for strategy in get_args(ApplyStrategy)]
    return [*ways, Way("auto, tuned", by_jobs)]


def all_ways() -> list[Way]:
    """Every way, the naive one first."""
    by_hand = [Way(NAIVE, naively, base="naive"), Way(PLAIN, plainly), Way(DELTA_RS, with_delta_rs)]
    return by_hand + job_ways()


def batches_of(job: MicroBatchJob[Any]) -> list[tuple[float, BatchReport]]:
    """Seconds and report of each batch of a job, until nothing is left to do."""
    found: list[tuple[float, BatchReport]] = []
    with job.exclusive() as lease:
        while True:
            began = time.monotonic()
            report = job.run_batch(lease)
            if report is None:
                return found
            assert not report.counts.get("quarantined", 0), "requests were rejected"
            found.append((time.monotonic() - began, report))


def only_batch(job: MicroBatchJob[Any]) -> tuple[float, BatchReport]:
    """Seconds and report of the one batch that a job has to do."""
    found = batches_of(job)
    assert len(found) == 1, f"{job.name} had {len(found)} batches to do instead of one"
    return found[0]


def parts_of(stage: Stage) -> Parts:
    """What the jobs are built with."""
    return Parts(stage.lake, open_stores(stage.settings), stage.settings, Callbacks())


def ingestion(stage: Stage, topic: StagedTopic) -> MicroBatchJob[Any]:
    """The job that ingests requests; the view shows them from then on."""
    read = partial(topic.read, stage.spark)
    return ingest_mutation_requests(REQUESTS, topic, read, parts_of(stage), judges_lateness=False)


def ingest_conversions(stage: Stage) -> float:
    """Ingest all conversions of the data set; seconds."""
    topic = StagedTopic.of(stage.settings.home / "requests.parquet", stage.data_set.conversion_requests())
    return only_batch(ingestion(stage, topic))[0]


def moving(stage: Stage) -> MicroBatchJob[Any]:
    """The job that moves everything pending. It purges nothing: there is no topic to ask."""
    return rematerialize_aliases(parts_of(stage), lambda: (None,))


def by_jobs(stage: Stage) -> Outcome:
    """The three jobs, one after the other: requests are visible, then announced, then moved."""
    visible_s = ingest_conversions(stage)
    announced_s, _ = only_batch(apply_mutations(parts_of(stage)))
    moved_s, moved = only_batch(moving(stage))
    return Outcome(
        visible_s=visible_s,
        announced_s=visible_s + announced_s,
        moved_s=visible_s + announced_s + moved_s,
        phases={"ingest": visible_s, "announce": announced_s, "move": moved_s},
        chosen=str(moved.details["strategy"]),
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
    said = {
        "notification_id": F.concat_ws("/", "organization_id", "engagement_id"),
        "ingestion_date": F.current_date(),
        "ingestion_ts": F.current_timestamp(),
        "batch_sequence": F.lit(BATCH).cast("long"),
        "job_name": F.lit("by hand"),
        "change_type": F.lit("UPDATE"),
        "previous_person_id": F.col("source_person_id"),
    }
    rows = touched.withColumns(said).select(*NOTIFICATION.column_names)
    rows.write.format("delta").save(_by_hand(stage))
    announced_s = time.monotonic() - began
    return Outcome(visible_s, announced_s, visible_s, {"merge": visible_s, "notification": announced_s - visible_s})


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
    write_deltalake(_by_hand(stage), _changed(stage))
    announced_s = time.monotonic() - began
    return Outcome(visible_s, announced_s, visible_s, {"merge": visible_s, "notification": announced_s - visible_s})


def _changed(stage: Stage) -> pa.Table:
    """Notifications of the rows that carry BATCH."""
    columns = ("organization_id", "engagement_id", "engagement_date", "person_id", "source_person_id")
    found = DeltaTable(stage.uri).scan(columns=list(columns), predicate=f"batch_id = {BATCH}")
    rows = pa.table(found).cast(schema_of(stage.data, *columns))
    known = {
        "notification_id": pc.binary_join_element_wise(
            rows.column("organization_id"), rows.column("engagement_id"), "/"
        ),
        "ingestion_date": datetime.now(UTC).date(),
        "ingestion_ts": datetime.now(UTC),
        "batch_id": BATCH,
        "batch_sequence": BATCH,
        "job_name": "by hand",
        "change_type": "UPDATE",
        "previous_person_id": rows.column("source_person_id"),
    }
    values = [known[name] if name in known else rows.column(name) for name in NOTIFICATION.column_names]
    whole = [v if isinstance(v, pa.ChunkedArray) else pa.repeat(pa.scalar(v), rows.num_rows) for v in values]
    return pa.table(whole, names=list(NOTIFICATION.column_names)).cast(schema_of(NOTIFICATION))


def _by_hand(stage: Stage) -> str:
    """Where the ways by hand announce: a plain table, since delta-rs writes no clustered one."""
    return str(stage.settings.home / "notifications-by-hand")


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


def opened_view(stage: Stage) -> DataFrame:
    """`engagement/current` as it is now."""
    return current(stage.lake, snapshot(stage.lake.root))


def check(stage: Stage, expected: Tally) -> None:
    """Readers of the view find every engagement under the id where its person ends, and each change was announced."""
    columns = ("organization_id", "person_id", "engagement_id")
    found = tally(opened_view(stage).select(*columns).toArrow(), "person_id")
    wrong = dict(found.items() ^ expected.items())
    assert not wrong, f"{len(wrong)} persons have other engagements than they should, such as {next(iter(wrong))}"
    by_hand = DeltaTable.is_deltatable(_by_hand(stage))
    notifications = stage.spark.read.format("delta").load(_by_hand(stage)) if by_hand else stage.lake.read(NOTIFICATION)
    announced = notifications.count()
    assert announced == stage.data_set.touched, f"{announced} notifications of {stage.data_set.touched} changes"
