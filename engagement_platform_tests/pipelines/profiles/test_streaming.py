"""The state of a base that is streamed is the state that is read as a whole, whoever wrote its files, and when."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from pyspark.sql import SparkSession

from engagement_platform.engine.model import Transaction
from engagement_platform.lake import light
from engagement_platform.lake.arrow import schema_of
from engagement_platform.lake.overwrite import replace as replace_table
from engagement_platform.pipelines.profiles.entity import Entity, version_of
from engagement_platform.pipelines.profiles.here import STREAMED_ROWS, can_stream, state_here, streamed_state
from engagement_platform.pipelines.profiles.snapshot import snapshot
from engagement_platform_tests.pipelines.profiles.histories import DEVICE, PROFILE, Changes, plain
from engagement_platform_tests.pipelines.profiles.oracle import Said
from engagement_platform_tests.pipelines.profiles.test_view import half_moved, lake_of

FLAT_DEVICE = replace(DEVICE, partitioned_by=())
"""With a column of each type, times among them."""


def streamed(root: Path, entity: Entity) -> list[dict[str, Any]]:
    with streamed_state(str(root), entity, snapshot(str(root), entity)) as rows:
        found = rows.read_all()
    assert found.schema == schema_of(entity.base)
    return in_order(plain(found), entity)


def whole(root: Path, entity: Entity) -> list[dict[str, Any]]:
    return in_order(plain(state_here(str(root), entity)), entity)


def in_order(rows: list[dict[str, Any]], entity: Entity) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: str(row[entity.key]))


@pytest.mark.parametrize("entity", [PROFILE, FLAT_DEVICE], ids=["profile", "device"])
def test_rows_of_a_base_that_delta_rs_wrote(tmp_path: Path, entity: Entity) -> None:
    seed = Random().randrange(2**32)
    half_moved(tmp_path, entity, seed)
    found = streamed(tmp_path, entity)
    assert len(found) > 1
    assert found == whole(tmp_path, entity), f"seed {seed}"


def test_rows_of_a_base_that_spark_wrote(spark: SparkSession, tmp_path: Path) -> None:
    seed = Random().randrange(2**32)
    half_moved(tmp_path, FLAT_DEVICE, seed)
    before, lake = whole(tmp_path, FLAT_DEVICE), lake_of(spark, tmp_path, light=False)
    replace_table(lake, lake.read(FLAT_DEVICE.base), FLAT_DEVICE.base, Transaction("test", 0))
    [last] = DeltaTable(FLAT_DEVICE.base.uri(str(tmp_path))).history(1)
    assert "Spark" in last["engineInfo"]
    found = streamed(tmp_path, FLAT_DEVICE)
    assert any(row["checked"] is not None for row in found)
    assert found == whole(tmp_path, FLAT_DEVICE) == before, f"seed {seed}"


def test_columns_that_came_later_are_null_in_older_files(tmp_path: Path) -> None:
    """First in all files, then in some."""
    narrow = replace(PROFILE, attributes=PROFILE.attributes[:-1])
    half_moved(tmp_path, narrow, 1)
    last = PROFILE.columns[-1]
    for table in (PROFILE.base, PROFILE.changeset):
        known = DeltaTable(table.uri(str(tmp_path)))
        names = {field.name for field in known.schema().fields}
        missing = [field for field in schema_of(table) if field.name not in names]
        known.alter.add_columns([Field(field.name, PrimitiveType("long")) for field in missing])
    assert {row[last] for row in streamed(tmp_path, PROFILE)} == {None}
    assert streamed(tmp_path, PROFILE) == whole(tmp_path, PROFILE)
    Changes(tmp_path, PROFILE).land(9, [Said("new", 1, "INSERT", {last: 7})])
    found = streamed(tmp_path, PROFILE)
    assert [(row[last], row[version_of(last)]) for row in found if row["profile_id"] == "new"] == [(7, 1)]
    assert found == whole(tmp_path, PROFILE)


def test_an_empty_base_has_what_waits(tmp_path: Path) -> None:
    Changes(tmp_path, PROFILE).land(0, [Said("a", 1, "INSERT", {"name": "Ann"})])
    [row] = streamed(tmp_path, PROFILE)
    assert (row["profile_id"], row["name"], row["present"]) == ("a", "Ann", True)


def test_rows_come_some_at_a_time(tmp_path: Path) -> None:
    changes = Changes(tmp_path, PROFILE)
    changes.land(0, [Said(f"p{number}", 1, "INSERT") for number in range(2 * STREAMED_ROWS + 1)])
    with streamed_state(str(tmp_path), PROFILE, snapshot(str(tmp_path), PROFILE)) as rows:
        sizes = [batch.num_rows for batch in rows]
    assert sum(sizes) == 2 * STREAMED_ROWS + 1
    assert max(sizes) <= STREAMED_ROWS


@pytest.mark.parametrize("folder", ["city=Rome", "version=2", "profile_id=7", 'it\'s 100% "ü"', "a,b;c"])
def test_a_folder_above_is_no_partition_however_it_is_called(tmp_path: Path, folder: str) -> None:
    half_moved(tmp_path / folder, PROFILE, 3)
    assert streamed(tmp_path / folder, PROFILE) == whole(tmp_path / folder, PROFILE)


def test_a_table_whose_columns_have_other_names_in_its_files_is_left_to_spark(tmp_path: Path) -> None:
    half_moved(tmp_path, PROFILE, 3)
    uri = PROFILE.base.uri(str(tmp_path))
    assert light.opened(uri, PROFILE.base) is not None
    entry = min(Path(uri, "_delta_log").glob("*.json"))
    mapped = entry.read_text().replace('"configuration":{', '"configuration":{"delta.columnMapping.mode":"name",')
    assert "columnMapping" in mapped
    entry.write_text(mapped)
    assert light.opened(uri, PROFILE.base) is None


def test_partitions_and_names_with_stars_are_left_to_others(tmp_path: Path) -> None:
    assert can_stream(str(tmp_path), PROFILE)
    assert not can_stream(str(tmp_path), DEVICE)
    for name in ("a*b", "a[1]", "a?", "{a}"):
        assert not can_stream(str(tmp_path / name), PROFILE)
