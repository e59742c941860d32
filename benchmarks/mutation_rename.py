"""What a new name costs where names are a table of their own, and where they stand on every row.

Measures only; telling about it is `mutation_report`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import functions as F

from benchmarks.mutation_data import DataSet
from benchmarks.mutation_ways import Stage, StagedTopic, ingestion, only_batch, rewritten
from engagement_platform.lake import log
from engagement_platform.lake.engagement import MUTATION_REQUEST
from engagement_platform.pipelines.snapshot import current_names, snapshot

NAME = "Ada Lovelace"
FLAT = "flat"


@dataclass(frozen=True)
class Renamed:
    """One way of giving a person a new name: seconds until it can be read, and what was written for it."""

    way: str
    seconds: float
    rows: int
    files: int
    bytes: int


def build_flat(folder: Path, data_set: DataSet) -> None:
    """The Data Table's rows with the person's name on each, one file for each organization."""
    for rows in data_set.rows():
        names = data_set.names(rows)
        place = pc.index_in(rows.column("source_person_id"), names.column("id"))
        named = rows.append_column("person_name", names.column("name").take(place))
        if named.num_rows:
            write_deltalake(folder / FLAT, named, mode="append", partition_by=["organization_id"])


def rename_by_job(stage: Stage) -> Renamed:
    """A RENAME through the job: a row of the requests, and no file of the Data Table or the mapping."""
    lake, organization, person = stage.lake, *stage.data_set.renamed
    data, requests = lake.version(stage.data), lake.version(MUTATION_REQUEST)
    topic = StagedTopic.of(stage.settings.home / "rename.parquet", [stage.data_set.rename_request(NAME)])
    seconds, _ = only_batch(ingestion(stage, topic))
    assert lake.version(stage.data) == data, "a rename wrote the Data Table"
    mine = (F.col("organization_id") == organization) & (F.col("id") == person)
    named = [row["name"] for row in current_names(lake, snapshot(lake.root)).where(mine).collect()]
    assert named == [NAME], f"the view of names says {named}"
    files, written = rewritten(lake.uri(MUTATION_REQUEST), requests)
    return Renamed("request, by the job", seconds, 1, files, written)


def rename_flat_in_spark(stage: Stage) -> Renamed:
    """The name on every row of the person: a MERGE that is told the organization."""
    organization, person = stage.data_set.renamed

    def merge(uri: str) -> None:
        source = stage.spark.createDataFrame([(person, NAME)], "new_id string, new_name string")
        same = (F.col("organization_id") == organization) & (F.col("person_id") == F.col("new_id"))
        merge = source.mergeInto(f"delta.`{uri}`", same)
        merge.whenMatched().update({"person_name": F.col("new_name")}).merge()

    return _flat(stage, "flat, plain MERGE", merge)


def rename_flat_by_delta_rs(stage: Stage) -> Renamed:
    """The same by delta-rs."""
    organization, person = stage.data_set.renamed

    def merge(uri: str) -> None:
        source = pa.table({"organization_id": [organization], "id": [person], "name": [NAME]})
        condition = f"t.organization_id = '{organization}' AND t.person_id = s.id"
        merger = DeltaTable(uri).merge(source, condition, source_alias="s", target_alias="t")
        merger.when_matched_update({"person_name": "s.name"}).execute()

    return _flat(stage, "flat, delta-rs merge", merge)


RENAMES = (rename_by_job, rename_flat_in_spark, rename_flat_by_delta_rs)


def _flat(stage: Stage, way: str, merge: Callable[[str], None]) -> Renamed:
    uri = str(stage.settings.home / FLAT)
    before = log.version(uri)
    assert before is not None, "there is no flat table"
    began = time.monotonic()
    merge(uri)
    seconds = time.monotonic() - began
    organization, person = stage.data_set.renamed
    told = pa.table(
        DeltaTable(uri).scan(
            columns=["person_name"], predicate=f"organization_id = '{organization}' AND person_id = '{person}'"
        )
    ).column("person_name")
    assert set(told.to_pylist()) == {NAME}, "rows have another name"
    files, written = rewritten(uri, before)
    return Renamed(way, seconds, len(told), files, written)
