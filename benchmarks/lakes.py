"""Lakes that the benchmarks of file layout start from: built once, restored for each round, told apart by their files.

The rows are made in `mutation_data`; what is done to a restored lake, and measured, is each benchmark's own.
"""

from __future__ import annotations

import copy
import hashlib
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from benchmarks.mutation_data import DataSet, Tally, tally
from benchmarks.mutation_ways import Stage, add, configure
from engagement_platform.engine.model import Transaction
from engagement_platform.lake.engagement import engagement_tables
from engagement_platform.lake.session import session_conf
from engagement_platform.maintenance.layout.files import live_files, open_table, shape
from engagement_platform.maintenance.layout.optimize import Asked, Run, planned
from engagement_platform.maintenance.layout.plan import Left
from engagement_platform.pipelines.jobs import open_stores
from engagement_platform.settings import BatchSettings, LayoutSettings, MutationSettings, Settings

SCALE = 64
"""File sizes are those of the source divided by so much, as its 4 MB to 1 GB become 64 KB to 16 MB."""
_NO_LIMIT = timedelta(days=1)


@dataclass(frozen=True)
class Laid:
    """The live files of a table. digest stands for their names and sizes, in whatever order."""

    digest: str
    sizes: tuple[int, ...]
    partitions: tuple[str, ...]
    """The partition of each file."""
    rows: int

    def by_partition(self) -> dict[str, int]:
        """Bytes of each partition."""
        summed: dict[str, int] = {}
        for partition, size in zip(self.partitions, self.sizes, strict=True):
            summed[partition] = summed.get(partition, 0) + size
        return summed


def laid(uri: str) -> Laid:
    """What the log of a table says of its files. Reads the log only."""
    table = open_table(uri, uri)
    files = live_files(table, shape(table))
    pairs = sorted(zip(files.column("path").to_pylist(), files.column("bytes").to_pylist(), strict=True))
    return Laid(
        digest=hashlib.sha256(repr(pairs).encode()).hexdigest()[:16],
        sizes=tuple(files.column("bytes").to_pylist()),
        partitions=tuple(files.column("partition").to_pylist()),
        rows=int(pc.sum(files.column("rows")).as_py() or 0),
    )


def build(stage: Stage, rows: Sequence[pa.Table]) -> None:
    """Write these rows into the new Data Table of a lake in one commit: one file for each partition, or few."""
    configure(stage.spark, {**session_conf(stage.settings), "spark.databricks.delta.autoCompact.enabled": "false"})
    stage.lake.ensure(*engagement_tables(stage.settings.layout.scheme))
    add(stage.lake, pa.concat_tables(rows), stage.data, Transaction("bench/data", 0))


def found_rows(uri: str) -> Tally:
    """Where the engagements of a table are. Read without Spark, in a second or two where that takes ten."""
    columns = ["organization_id", "person_id", "engagement_id"]
    return tally(pa.table(DeltaTable(uri).to_pyarrow_table(columns=columns)), "person_id")


def ready(folder: Path) -> bool:
    """Whether a lake was built to its end before an interruption; half a one is removed."""
    if (folder / "ready").exists():
        return True
    shutil.rmtree(folder, ignore_errors=True)
    return False


def mark_ready(folder: Path) -> None:
    """From now on an interrupted run goes on with this lake."""
    (folder / "ready").touch()


def restore(base: Path, home: Path) -> None:
    """A new lake in `home` with the table versions of `base`.

    Data files are never written again, so they are shared; the log is copied, since its `_last_checkpoint` is.
    """

    def copied(source: str, target: str) -> None:
        if "/_delta_log/" in source:
            shutil.copy2(source, target)
        else:
            os.link(source, target)

    home.mkdir(parents=True)
    shutil.copytree(base / "lake", home / "lake", copy_function=copied)


def optimize(stage: Stage, max_file_bytes: int, *, zorder: bool, where: str = "") -> None:
    """Spark's OPTIMIZE of the Data Table, by engagement_date if `zorder` says so. Files become about max_file_bytes."""
    sizes = {f"spark.databricks.delta.optimize.{end}FileSize": str(max_file_bytes) for end in ("max", "min")}
    configure(stage.spark, sizes)
    by = "ZORDER BY (engagement_date)" if zorder else ""
    stage.spark.sql(f"OPTIMIZE delta.`{stage.uri}` {where} {by}").collect()


def maintain(stage: Stage, max_file_bytes: int) -> float:
    """A run of the platform's own maintenance over the Data Table, which finds by itself what changed; seconds."""
    upkeep = stage.settings.maintenance.model_copy(update={"target_file_bytes": max_file_bytes, "budget": _NO_LIMIT})
    settings, began = stage.settings.model_copy(update={"maintenance": upkeep}), time.monotonic()
    run = Run(settings, open_stores(settings), lambda: stage.spark)
    left = [one for one in run.do(planned(settings, Asked(stage.data.name))) if isinstance(one, Left)]
    assert not left, f"{left[0].slice} was left: {left[0].why}"
    return time.monotonic() - began


def sampled(data_set: DataSet, percent: float) -> DataSet:
    """The same rows with only so many of the conversions, drawn by the seed; at least one. 100 takes them all."""
    count = max(1, round(len(data_set.conversions) * percent / 100))
    drawn = np.random.default_rng([data_set.scale.seed, 2]).permutation(len(data_set.conversions))[:count]
    some = copy.copy(data_set)
    for worked_out in ("ends", "touched"):
        some.__dict__.pop(worked_out, None)
    some.conversions = [data_set.conversions[n] for n in sorted(map(int, drawn))]
    return some


def staged(spark: SparkSession, home: Path, data_set: DataSet, layout: LayoutSettings) -> Stage:
    """The lake in `home`, opened with the session set up for it; moves are merges."""
    settings = Settings(
        home=home,
        lake_uri=None,
        layout=layout,
        mutation=MutationSettings(apply="merge"),
        batch=BatchSettings(max_records=10_000_000),
    )
    stage = Stage(spark, settings, data_set)
    configure(spark, session_conf(stage.settings))
    return stage
