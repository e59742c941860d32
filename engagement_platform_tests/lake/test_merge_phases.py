"""A MERGE finds the files that have matches, rewrites those and no other, and refuses a row that is named twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from engagement_platform.engine.model import Transaction
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.contract import Column, Mode, Table
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.log import Commit
from engagement_platform.lake.optimize import configured
from engagement_platform.lake.overwrite import merge_newer
from engagement_platform.settings import LayoutSettings, Settings
from engagement_platform_tests import plant

ROW = Table(
    key=("shop", "row"),
    description="Rows.",
    mode=Mode.MUTABLE,
    columns=(Column("id", "string", ""), Column("version", "long", ""), Column("name", "string", ""),
             Column("name_version", "long", "")),
)  # fmt: skip
FILES = 100
AUTO_COMPACT = "spark.databricks.delta.autoCompact.enabled"


def rows(*ids: int, version: int = 1) -> pa.Table:
    names = [{"id": f"r{n:03}", "version": version, "name": f"v{version}", "name_version": version} for n in ids]
    return table_of(names, ROW)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    """A hundred files of one row each, which nothing merges in between."""
    made = Lake(spark, Settings(lake_uri=str(tmp_path), layout=LayoutSettings(auto_compact=False)))
    plant.create(made.uri(ROW), ROW)
    for n in range(FILES):
        plant.append(DeltaTable(made.uri(ROW)), rows(n), Transaction("test", n))
    with configured(spark, {AUTO_COMPACT: "false"}):
        yield made


def merged(lake: Lake, source: pa.Table, number: int) -> tuple[Commit, set[str]]:
    """What a MERGE did, and the files that it left alone."""
    before, txn = set(DeltaTable(lake.uri(ROW)).file_uris()), Transaction("merge", number)
    merge_newer(lake, lake.frame(source), ROW, txn, on="id", greatest="version", words={"name_version": ("name",)})
    found = lake.commit_of(ROW, txn)
    assert found is not None
    return found, before & set(DeltaTable(lake.uri(ROW)).file_uris())


@pytest.mark.slow
def test_only_files_with_a_match_are_rewritten_and_a_row_that_matches_twice_is_refused(lake: Lake) -> None:
    """All on one table, since a hundred files take their time. Its quicker sibling is in `test_log`."""
    matched, left = merged(lake, rows(3, 50, 99, version=2), 0)
    assert (matched.files_removed, len(left), matched.rows_updated) == (3, FILES - 3, 3)
    assert matched.find_ms > 0
    assert matched.rewrite_ms > 0
    inserted, left = merged(lake, rows(500, 501), 1)
    assert (inserted.files_removed, inserted.rows_added) == (0, 2), "an insert rewrites nothing"
    both, _ = merged(lake, rows(7, 600, version=2), 2)
    assert (both.files_removed, both.rows_updated, both.rows_added) == (1, 1, 1)
    lake.spark.conf.set(AUTO_COMPACT, "true")
    compacted, _ = merged(lake, rows(601), 3)
    assert (compacted.files_removed, compacted.rows_added) == (0, 1), "the compaction that follows was taken for it"
    assert len(DeltaTable(lake.uri(ROW)).file_uris()) < FILES // 2
    version = lake.version(ROW)
    with pytest.raises(Exception, match="MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW"):
        merged(lake, pa.concat_tables([rows(8, version=2), rows(8, version=3)]), 4)
    assert lake.version(ROW) == version
    held = {row["id"]: row["name"] for row in lake.read(ROW).collect()}
    updated = {"r003", "r050", "r099", "r007", "r600"}
    expected = {f"r{n:03}": "v1" for n in (*range(FILES), 500, 501, 601)} | dict.fromkeys(updated, "v2")
    assert held == expected
