"""What the pipelines share: what a job is built with, and how its batches write."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from operator import and_
from typing import TypeVar

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.job import Callbacks, MicroBatchJob, Step, Stores
from engagement_platform.engine.model import Counts, JobState, Limits, Manifest, Source, Transaction
from engagement_platform.lake.audit_columns import stamped
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import QUARANTINE
from engagement_platform.lake.fencing import LakeFencing, targets
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.log import Commit, added_by
from engagement_platform.lake.optimize import configured
from engagement_platform.pipelines.pinned_settings import as_pinned
from engagement_platform.settings import Settings
from engagement_platform.sources.messages import Reason

W = TypeVar("W")

Reader = Callable[[Manifest], DataFrame]
"""Raw records of a pinned range: topic, partition, offset, key, value, timestamp."""

APPLY_MUTATIONS = "apply-mutations"
COORDINATES = ("topic", "partition", "offset")
QUANTILES = tuple(i / 20 for i in range(21))
"""Of the production times of a batch's messages: 0, 5, … 100 percent."""
FEW_ROWS = 50_000
"""Up to so many rows are planned once (a guess)."""
INTERPRETED_ROWS = 5_000
"""Up to so many rows plans are interpreted (a guess: batches of 1,000 gain by it, of 20,000 not measured alone)."""
ROWS_PER_TASK = 5_000
"""Of few rows a shuffle has a partition for so many; a task costs some 30 ms of CPU before its first row (a guess)."""
_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
_COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
_UNWEIGHED = {"spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1)}
"""The one value by which Spark does not ask how many bytes an Arrow batch has, after each of its rows."""
_RECORD = (*COORDINATES, "key", "value", "reason_code", "reason")


@dataclass(frozen=True)
class Parts:
    """What every job is built with."""

    lake: Lake
    stores: Stores
    settings: Settings
    callbacks: Callbacks

    def lake_for(self, manifest: Manifest, source: Source) -> Lake:
        """The lake under the settings that a manifest pins, its session set up for as many records as the batch has."""
        tune_for(self.lake, source.size(manifest.start, manifest.end))
        return self.lake.under(as_pinned(self.settings, manifest))

    def job(
        self,
        name: str,
        source: Source,
        prepare: Callable[[Manifest], W],
        processes: tuple[Step[W], ...],
        *,
        writes: Mapping[str, Table | None],
        pin: Callable[[], Mapping[str, int]],
        decides: Callable[[], Mapping[str, object]],
        leased: tuple[str, ...],
        enters: tuple[str, ...] = (),
        describe: Callable[[W], Mapping[str, object]] = lambda _: {},
        about: Callable[[], Mapping[str, object]] = dict,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> MicroBatchJob[W]:
        """A job on these parts; the rest as MicroBatchJob has it.

        writes: `<process>/<commit>` -> the table it writes; None for a commit under a transaction of its own.
        """
        batch = self.settings.batch
        return MicroBatchJob(
            name=name,
            source=source,
            prepare=prepare,
            processes=processes,
            stores=self.stores,
            limits=Limits(batch.max_records, batch.max_bytes),
            pin=pin,
            decides=decides,
            about=about,
            leased=leased,
            enters=enters,
            lease_wait=self.settings.stores.lease_wait,
            describe=describe,
            clock=clock,
            fencing=LakeFencing(self.lake, targets(writes)),
            callbacks=self.callbacks,
        )


@dataclass(frozen=True)
class Received:
    """What one pass over a decoded batch counts."""

    rows_in: int
    bytes_in: int
    rejected: Mapping[str, int]
    """Reason code -> records that decoding refused."""
    unknown_fields: int
    produced_quantiles_ms: Sequence[int]

    def counts(self) -> dict[str, int]:
        """As counts of a batch."""
        return {"rows_in": self.rows_in, "bytes_in": self.bytes_in, "unknown_fields": self.unknown_fields}


@dataclass(frozen=True)
class TopicBatch:
    """Records of a topic, decoded and compared with the pinned tables: what the processes of a batch write."""

    lake: Lake
    """Under the settings of the manifest."""
    manifest: Manifest
    raw: DataFrame
    decoded: DataFrame
    received: Received
    plan: DataFrame
    """One row per record that decoding accepted, with what becomes of it; checkpointed."""
    refused: Mapping[str, int]
    """Reason code -> records that decoding accepted and the tables contradict."""
    refused_rows: DataFrame
    """COORDINATES, reason_code and reason of these; not computed where there are none."""

    @property
    def rejected(self) -> dict[str, int]:
        """Reason code -> records that go to quarantine."""
        return {**self.received.rejected, **self.refused}

    @property
    def quarantined(self) -> int:
        """Records that go to quarantine."""
        return sum(self.rejected.values())

    @property
    def rejected_rows(self) -> DataFrame:
        """These records, whole. What the tables contradict is read from the source again, since it is little."""
        rows = self.decoded.where(F.col("reason_code").isNotNull()).select(*_RECORD)
        if not self.refused:
            return rows
        few = F.broadcast(self.refused_rows.select(*COORDINATES, "reason_code", "reason"))
        return rows.unionByName(self.raw.join(few, list(COORDINATES)).select(*_RECORD))

    def to_quarantine(self, quarantine: Table = QUARANTINE) -> DataFrame:
        """Rejected records, without those that quarantine holds already when they may have been seen before.

        The same bytes at the same coordinates are the same record, whatever it was rejected for then. A topic that was
        made anew counts its offsets from 0 again, so coordinates alone would not do; but of an erased subject they are
        all that is left, and what stood there must not come back.
        """
        if not self.manifest.is_replay:
            return self.rejected_rows
        held = self.lake.read(quarantine, self.manifest.table_versions[quarantine.name]).select(
            *COORDINATES, F.col("value").alias("held_value"), F.col("reason_code").alias("held_reason")
        )
        same = [F.col(f"rejected.{name}") == F.col(f"held.{name}") for name in COORDINATES]
        is_marker = F.col("held.held_reason").eqNullSafe(Reason.ERASED.value) & F.col("held.held_value").isNull()
        same.append(F.col("rejected.value").eqNullSafe(F.col("held.held_value")) | is_marker)
        return self.rejected_rows.alias("rejected").join(held.alias("held"), reduce(and_, same), "left_anti")

    def describe(self) -> dict[str, object]:
        """What people want to see of a batch beside its counts."""
        quantiles = list(self.received.produced_quantiles_ms)
        return {"rejected": self.rejected, "produced_quantiles_ms": quantiles}


def with_reason(rows: DataFrame, code: str, sentence: str) -> DataFrame:
    """Records with the reason for which they are refused."""
    return rows.withColumns({"reason_code": F.lit(code), "reason": F.lit(sentence)})


def counted(decoded: DataFrame, *more: Column) -> tuple[Received, Row | None]:
    """The counts of a decoded batch; and of what decoding accepted `records` and more aggregates, None: it is nothing.

    Runs one Spark job, which also computes a lazily checkpointed frame.
    """
    by_reason = decoded.groupBy("reason_code").agg(
        F.count("*").alias("records"),
        F.sum("value_bytes").alias("bytes"),
        F.sum("unknown_fields").alias("unknown_fields"),
        F.percentile_approx(F.unix_millis("produced_ts"), list(QUANTILES), 1000).alias("produced"),
        *more,
    )
    groups = {row["reason_code"]: row for row in by_reason.collect()}
    accepted = groups.get(None)
    timed = accepted or next(iter(groups.values()), None)
    received = Received(
        rows_in=sum(row["records"] for row in groups.values()),
        bytes_in=sum(row["bytes"] or 0 for row in groups.values()),
        rejected={code: row["records"] for code, row in groups.items() if code is not None},
        unknown_fields=sum(row["unknown_fields"] or 0 for row in groups.values()),
        produced_quantiles_ms=tuple(timed["produced"] or ()) if timed else (),
    )
    return received, accepted


def kept(frame: DataFrame) -> DataFrame:
    """The frame, computed at its first use and never again; freed when nothing refers to it.

    Not persist(): a persisted frame keeps its whole plan, and every frame built on it is analysed anew down to the
    source, over Connect at each call. Losing an executor loses the blocks and fails the batch, which is then replayed.
    """
    return frame.localCheckpoint(eager=False)


def tune_for(lake: Lake, rows: int | None, *, weighed: bool = True) -> None:
    """Set up the lake's session for a batch, or a table, of so many rows; None for unknown.

    weighed: Arrow batches are no larger than 64 MB, as messages need it that may be large; not so is `unweighed`.

    For few rows Spark plans each query once, as one job: adaptive execution makes a job of each shuffle, 30 instead of
    15 a batch, a sixth more CPU (5,000 rows, 100,000 present, 2 cores). Then nothing joins small partitions, so there
    are few from the start. For very few it interprets its plans as well: compiling took a fifth more CPU.
    """
    few = rows is not None and rows <= FEW_ROWS
    partitions = lake.settings.spark.shuffle_partitions
    if few:
        partitions = min(partitions, 1 + (rows or 0) // ROWS_PER_TASK)
    _configure(
        lake.spark,
        {
            **(_INTERPRETED if rows is not None and rows <= INTERPRETED_ROWS else _COMPILED),
            **(dict.fromkeys(_UNWEIGHED, "64m") if weighed else _UNWEIGHED),
            "spark.sql.adaptive.enabled": str(not few).lower(),
            "spark.sql.shuffle.partitions": str(partitions),
            # A task costs some 30 ms of CPU however few its rows are, and each commit reads its table's log anew.
            "spark.databricks.delta.snapshotPartitions": "1" if few else "2",
            "spark.sql.files.minPartitionNum": "1" if few else str(lake.settings.spark.default_parallelism),
        },
    )


def compiled(spark: SparkSession) -> AbstractContextManager[None]:
    """Plans made meanwhile are compiled: for scans of a table, whose rows are many however small the batch is.

    Interpreted, each row of a scan is copied whole before a join looks at its key: 1.1 s of CPU for 290,000 rows of the
    Data Table, compiled 0.3 (2 cores). Leaves the session as it was.
    """
    return configured(spark, _COMPILED)


def unweighed(spark: SparkSession) -> AbstractContextManager[None]:
    """Groups that go to Python meanwhile are not weighed: when plans run, not when they are made.

    To weigh a batch Spark walks from the last map or list that is not null to its last row, after each row: 100,000
    edges of one organization, which have none, took 10.4 s and take 0.8 (2 cores). Leaves the session as it was.
    """
    return configured(spark, _UNWEIGHED)


def _configure(spark: SparkSession, conf: Mapping[str, str]) -> None:
    for key, value in conf.items():
        spark.conf.set(key, value)


class Appends:
    """Appends a batch's rows to its tables, each under the commit that is named, and counts what came of it."""

    def __init__(self, lake: Lake, manifest: Manifest, commit: Committer) -> None:
        self._lake, self._manifest, self._commit = lake, manifest, commit
        self._written: dict[str, tuple[Table, Transaction]] = {}

    def add(self, name: str, table: Table, rows: DataFrame, count: int) -> None:
        """Append so many rows, which get their audit columns here."""
        with self._commit(name) as txn:
            self._lake.append(stamped(rows, self._manifest), table, txn, rows=count)
        self._written[name] = table, txn

    def commits(self) -> Mapping[str, Commit]:
        """What the tables' logs say of each, by its name; also when it was written before a crash."""
        found = {name: self._lake.commit_of(table, txn) for name, (table, txn) in sorted(self._written.items())}
        return {name: commit for name, commit in found.items() if commit is not None}

    def counts(self) -> Counts:
        """files, bytes and commits of all."""
        return added_by(self.commits().values())


_WRITES_AT_ONCE = max(4, 2 * (os.cpu_count() or 1))
"""More at once end no sooner, and take the processors from other jobs: thirty game tables beside a batch of engagements
made that one three times as long (2 cores)."""


def side_by_side(*writes: Callable[[], None]) -> None:
    """Run writes to different tables at the same time; raises the first error after all have ended."""
    with ThreadPoolExecutor(_WRITES_AT_ONCE) as pool:
        for future in [pool.submit(write) for write in writes]:
            future.result()


def last_end(stores: Stores, but: str) -> datetime | None:
    """When the batch ended, by the clock of its host, that began last of those of all jobs but this one.

    None: no job's last batch has ended. By that a clock can be compared with another one's.
    """
    lasts = (stores.checkpoints.latest(job) for job in stores.checkpoints.jobs() if job != but)
    done = [last for last in lasts if last is not None and last.state is JobState.SUCCEEDED]
    return max(done, key=lambda last: last.manifest.sequence).finished_ts if done else None


def announced(stores: Stores) -> int:
    """Requests up to this sequence are announced by `apply-mutations`, under whatever application id; -1: none is."""
    last = stores.checkpoints.latest(APPLY_MUTATIONS)
    if last is not None:
        offsets = last.manifest.end if last.state is JobState.SUCCEEDED else last.manifest.start
        return offsets["sequence"]
    # After a reset, which does not take an announcement back.
    history = stores.checkpoints.history(APPLY_MUTATIONS)
    done = (record.manifest.end["sequence"] for record in history if record.state is JobState.SUCCEEDED)
    return max(done, default=-1)
