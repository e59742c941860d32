"""Every strategy shows what a sequential replay gives, where it is valid; what is broadcast, and what is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from engagement_platform.merge_on_read.entity import Entity
from engagement_platform.merge_on_read.here import current_here, state_here
from engagement_platform.merge_on_read.snapshot import snapshot, transaction
from engagement_platform.merge_on_read.view import (
    STRATEGIES,
    StrategyNotValid,
    choose,
    create_view,
    fits_broadcast,
    view,
)
from engagement_platform.sections import MergeOnReadSettings, UnknownUpdate, ViewStrategy
from engagement_platform.settings import Settings
from engagement_platform.tables import light
from engagement_platform.tables.lake import Lake
from engagement_platform_tests.merge_on_read.histories import DEVICE, PROFILE, Changes, plain, side_by_side
from engagement_platform_tests.merge_on_read.oracle import Said, replay, rows_of

NEW_ONLY = replace(PROFILE, unknown_update="ignore", inserts_are_new=True)


def lake_of(spark: SparkSession, root: Path, merge_on_read: MergeOnReadSettings | None = None) -> Lake:
    settings = Settings(lake_uri=str(root), merge_on_read=merge_on_read or MergeOnReadSettings())
    return Lake(spark, settings)


def half_moved(root: Path, entity: Entity, seed: int, histories: int = 150) -> list[Said]:
    """Many histories over four batches, of which the base has two; one of those is still in the changeset."""
    changes = Changes(root, entity)
    batches = side_by_side(seed, entity, histories, 4, inserts_first=entity.inserts_are_new)
    for number, batch in enumerate(batches):
        changes.land(number, batch)
        if number == 1:
            taken = snapshot(str(root), entity)
            base = light.opened(entity.base.uri(str(root)), entity.base)
            changeset = light.opened(entity.changeset.uri(str(root)), entity.changeset)
            assert base is not None
            assert changeset is not None
            light.replace(base, state_here(str(root), entity, at=taken), transaction(entity, 1))
            light.drop_partitions(changeset, "batch_id", 0, transaction(entity, 0))
    assert snapshot(str(root), entity).orphans == [1]
    return [change for batch in batches for change in batch]


@pytest.mark.parametrize("entity", [PROFILE, DEVICE, NEW_ONLY], ids=["profile", "device", "new inserts"])
def test_every_valid_strategy_shows_the_replay(spark: SparkSession, tmp_path: Path, entity: Entity) -> None:
    """With orphans of a half-finished rematerialization, and other histories each time."""
    seed = Random().randrange(2**32)
    landed = half_moved(tmp_path, entity, seed)
    expected = replay(landed, entity)
    lake = lake_of(spark, tmp_path)
    for strategy in STRATEGIES:
        if strategy == "left_join_union_inserts" and entity is not NEW_ONLY:
            with pytest.raises(StrategyNotValid):
                view(lake, entity, strategy=strategy)
            continue
        found = view(lake, entity, strategy=strategy).rows.toArrow()
        assert rows_of(plain(found), entity) == expected, f"{strategy}, seed {seed}"
    assert rows_of(plain(current_here(str(tmp_path), entity)), entity) == expected, f"here, seed {seed}"


@pytest.mark.parametrize(("rows", "fits"), [(0, True), (2_800_000, True), (2_800_001, False)])
def test_the_source_s_figure_is_the_last_that_is_broadcast(rows: int, fits: bool) -> None:
    assert fits_broadcast(rows, MergeOnReadSettings()) is fits


@settings(deadline=None)
@given(st.integers(0, 10**7), st.integers(1, 10**4), st.integers(0, 10**10), st.integers(0, 10**7))
def test_both_limits_of_a_broadcast_count(rows: int, row_bytes: int, budget: int, most: int) -> None:
    limits = MergeOnReadSettings(broadcast_max_rows=most, broadcast_row_bytes=row_bytes, broadcast_budget_bytes=budget)
    assert fits_broadcast(rows, limits) is (rows <= most and rows * row_bytes <= budget)


@pytest.mark.parametrize("unknown_update", ["upsert", "ignore", "quarantine"])
@pytest.mark.parametrize("inserts_are_new", [True, False])
def test_inserts_are_united_only_where_they_are_new_and_nothing_else_makes_rows(
    unknown_update: UnknownUpdate, inserts_are_new: bool
) -> None:
    entity = replace(PROFILE, unknown_update=unknown_update, inserts_are_new=inserts_are_new)
    valid = inserts_are_new and unknown_update != "upsert"
    best: ViewStrategy = "left_join_union_inserts" if valid else "left_join_anti_join"
    assert choose(entity, "auto", broadcast=True) == best
    assert choose(entity, "auto", broadcast=False) == "full_outer_join"
    if not valid:
        with pytest.raises(StrategyNotValid):
            choose(entity, "left_join_union_inserts", broadcast=True)


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def test_folded_changes_are_broadcast_up_to_the_limit_and_not_beyond(spark: SparkSession, tmp_path: Path) -> None:
    """Three changes of two keys: the folded changeset counts, not the raw one."""
    changes = Changes(tmp_path, NEW_ONLY)
    batch = [Said("a", 1, "INSERT", {"name": "Ann"}), Said("a", 2, "UPDATE", {"name": "Bo"}), Said("b", 1, "INSERT")]
    changes.land(0, batch)
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    try:
        for most, joined in ((2, "BroadcastHashJoin"), (1, "SortMergeJoin")):
            lake = lake_of(spark, tmp_path, MergeOnReadSettings(broadcast_max_rows=most))
            strategies: dict[ViewStrategy, int] = {"left_join_anti_join": 3, "left_join_union_inserts": 1}
            for strategy, joins in strategies.items():
                plan = plan_of(view(lake, NEW_ONLY, strategy=strategy).rows)
                assert plan.count(joined) == joins, f"{strategy} at most {most}\n{plan}"
                assert plan.count("Join") == joins, f"another join in {strategy} at most {most}\n{plan}"
            assert view(lake, NEW_ONLY).strategy == ("left_join_union_inserts" if most == 2 else "full_outer_join")
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")
        spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")


def test_keys_are_looked_for_in_the_scans_of_base_and_changeset(spark: SparkSession, tmp_path: Path) -> None:
    """Files that cannot have the key are not opened: they are taken away here."""
    changes = Changes(tmp_path, PROFILE)
    changes.land(0, [Said("a", 1, "INSERT", {"name": "Ann"})])
    changes.land(1, [Said("z", 1, "INSERT", {"name": "Zoe"})])
    for other in (tmp_path / "profile" / "changeset").glob("batch_id=0/*.parquet"):
        other.unlink()
    lake = lake_of(spark, tmp_path)
    for strategy in ("double_rank_over", "full_outer_join", "left_join_anti_join"):
        found = view(lake, PROFILE, strategy=strategy, keys=["z"]).rows.toArrow()
        assert found.column("name").to_pylist() == ["Zoe"]


def test_the_view_is_there_for_sql(spark: SparkSession, tmp_path: Path) -> None:
    changes = Changes(tmp_path, PROFILE)
    changes.land(
        0, [Said("a", 1, "INSERT", {"name": "Ann", "score": 3}), Said("b", 1, "INSERT"), Said("b", 2, "DELETE")]
    )
    name = create_view(lake_of(spark, tmp_path), PROFILE)
    rows = spark.sql(f"SELECT profile_id, name, score FROM {name}").collect()
    assert [tuple(row) for row in rows] == [("a", "Ann", 3)]
