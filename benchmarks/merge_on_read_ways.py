"""The ways of writing changes that `merge_on_read` compares, each on a lake of its own that starts with the same rows.

The product's way appends to the changeset and moves it into the base later; the others change a plain table, without
versions of columns, as one would write it by hand. Choosing, timing and telling is not done here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.mutation_ways import configure
from benchmarks.perftest.data import ENTITY, PARTITIONED, Records, fill, put
from engagement_platform.engine.job import Callbacks
from engagement_platform.engine.model import Transaction
from engagement_platform.lake.contract import Column, Mode, Table
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.session import session_conf
from engagement_platform.pipelines.jobs import open_stores
from engagement_platform.pipelines.parts import Parts
from engagement_platform.pipelines.profiles.entity import Entity
from engagement_platform.pipelines.profiles.rematerialize import rematerialize
from engagement_platform.pipelines.profiles.view import current
from engagement_platform.settings import MergeOnReadSettings, RematerializeMethod, RematerializeSettings, Settings

FLAT = Table(
    key=("record", "flat"),
    description="The rows as readers see them: what one would have without merge on read.",
    mode=Mode.MUTABLE,
    columns=(
        Column(ENTITY.key, "string", "Whom the row is about."),
        Column(ENTITY.version, "long", "Greatest version of a change that came."),
        *(Column(a.name, a.type, a.comment) for a in ENTITY.attributes),
    ),
)

MERGE_ON_READ = "merge on read"
COPY_ON_WRITE = "copy-on-write MERGE"
VECTORS = "MERGE with deletion vectors"


@dataclass(frozen=True)
class Stage:
    """A lake of its own."""

    spark: SparkSession
    settings: Settings
    entity: Entity

    @property
    def lake(self) -> Lake:
        """The lake."""
        return Lake(self.spark, self.settings)

    @property
    def flat(self) -> str:
        """Where the plain table is."""
        return FLAT.uri(self.settings.lake)


def stage(
    spark: SparkSession,
    home: Path,
    entity: Entity = ENTITY,
    method: RematerializeMethod = "overwrite",
) -> Stage:
    """The lake in `home`, opened with the session set up for it."""
    settings = Settings(
        home=home,
        lake_uri=None,
        merge_on_read=MergeOnReadSettings(inserts_are_new=True, unknown_update="quarantine"),
        rematerialize=RematerializeSettings(method=method),
    )
    configure(spark, session_conf(settings))
    return Stage(spark, settings, entity)


def build(home: Path, records: Records, *, flat: bool = False) -> None:
    """Base and an empty changeset, whole and, unless `flat`, in partitions; with `flat` also the plain table."""
    root = str(home / "lake")
    if not flat:
        fill(root, records, PARTITIONED)
        return
    fill(root, records, ENTITY)
    for n, rows in enumerate(records.base()):
        put(root, FLAT, rows, Transaction("bench/flat", n))


def land(at: Stage, records: Records, batch: int) -> None:
    """One batch into the changeset, as the ingestion of changes lets it land."""
    rows = records.changes(batch)
    make_staged(at, rows, batch)
    appended(at, rows, batch)


def appended(at: Stage, rows: pa.Table, batch: int) -> None:
    """The product: one append by Spark."""
    staged = at.spark.read.format("delta").load(staged_at(at, batch))
    at.lake.append(staged, at.entity.changeset, Transaction("bench/changes", batch), rows=rows.num_rows)


def moved(at: Stage) -> Mapping[str, float]:
    """One batch of the job that moves pending changes into the base; seconds of each of its processes."""
    job = rematerialize(at.entity, Parts(at.lake, open_stores(at.settings), at.settings, Callbacks()))
    with job.exclusive() as lease:
        report = job.run_batch(lease)
    assert report is not None, "no changes wait"
    return report.process_seconds


def merged(at: Stage, _rows: pa.Table, batch: int) -> None:
    """One MERGE a batch. With deletion vectors, which are up to the table, it marks rows instead of rewriting files."""
    given = {name: f"coalesce(s.{name}, t.{name})" for name in ENTITY.columns}
    taken = ", ".join(f"t.{name} = {value}" for name, value in {**given, ENTITY.version: f"s.{ENTITY.version}"}.items())
    names = ", ".join(FLAT.column_names)
    at.spark.sql(
        f"MERGE INTO delta.`{at.flat}` t USING delta.`{staged_at(at, batch)}` s ON t.{ENTITY.key} = s.{ENTITY.key} "
        f"WHEN MATCHED AND s.op = 'DELETE' THEN DELETE WHEN MATCHED THEN UPDATE SET {taken} "
        f"WHEN NOT MATCHED AND s.op <> 'DELETE' THEN INSERT ({names}) "
        f"VALUES ({', '.join(f's.{name}' for name in FLAT.column_names)})"
    ).collect()


def overwritten(at: Stage, _rows: pa.Table, batch: int) -> None:
    """The whole table anew, with the batch in it."""
    told = at.spark.read.format("delta").load(staged_at(at, batch))
    said = told.select(*(F.col(name).alias(f"new_{name}") for name in ("op", *FLAT.column_names)))
    both = at.spark.read.format("delta").load(at.flat).join(
        said, F.col(ENTITY.key) == F.col(f"new_{ENTITY.key}"), "full_outer"
    )  # fmt: skip
    kept = both.where("new_op IS NULL OR new_op <> 'DELETE'")
    rows = kept.select(*(F.coalesce(f"new_{name}", name).alias(name) for name in FLAT.column_names))
    rows.write.format("delta").mode("overwrite").save(at.flat)


def merged_by_delta_rs(at: Stage, rows: pa.Table, _batch: int) -> None:
    """delta-rs's MERGE, which starts no JVM."""
    merger = DeltaTable(at.flat).merge(
        rows.select(["op", *FLAT.column_names]),
        f"t.{ENTITY.key} = s.{ENTITY.key}",
        source_alias="s",
        target_alias="t",
    )
    taken = {name: f"coalesce(s.{name}, t.{name})" for name in ENTITY.columns} | {ENTITY.version: f"s.{ENTITY.version}"}
    merger = merger.when_matched_delete("s.op = 'DELETE'").when_matched_update(taken)
    merger.when_not_matched_insert({name: f"s.{name}" for name in FLAT.column_names}, "s.op <> 'DELETE'").execute()


Write = Callable[[Stage, pa.Table, int], None]

WAYS: Mapping[str, Write] = {
    MERGE_ON_READ: appended,
    COPY_ON_WRITE: merged,
    VECTORS: merged,
    "full overwrite": overwritten,
    "delta-rs merge": merged_by_delta_rs,
}
"""By name: make one batch visible. The batch stands as a Delta table at `staged_at` for those that want one."""


def staged_at(at: Stage, batch: int) -> str:
    """Where a batch stands as a table of its own."""
    return str(at.settings.home / "staged" / str(batch))


def make_staged(at: Stage, rows: pa.Table, batch: int) -> None:
    """Put it there; not part of what is timed."""
    write_deltalake(staged_at(at, batch), rows)


def set_up(at: Stage, way: str) -> None:
    """What a way wants of its table before its first batch; not timed."""
    if way == VECTORS:
        vectors = "('delta.enableDeletionVectors' = 'true')"
        at.spark.sql(f"ALTER TABLE delta.`{at.flat}` SET TBLPROPERTIES {vectors}").collect()


def is_product(way: str) -> bool:
    """Whether a way is the product's."""
    return way == MERGE_ON_READ


def table_of(at: Stage, way: str) -> str:
    """The table that a way writes a batch to."""
    return at.entity.changeset.uri(at.settings.lake) if is_product(way) else at.flat


def seen(at: Stage, way: str) -> DataFrame:
    """What readers see after a way."""
    if is_product(way):
        return current(at.lake, at.entity)
    return at.spark.read.format("delta").load(at.flat).select(*at.entity.view_columns)
