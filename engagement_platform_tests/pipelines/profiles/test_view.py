"""Every strategy shows what a sequential replay gives, where it is valid; what is broadcast, and what is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from engagement_platform.consumers.reading import rows_of as rows_of_table
from engagement_platform.consumers.reading import save
from engagement_platform.errors import PlatformError
from engagement_platform.lake.contract import Table
from engagement_platform.lake.lake import Lake
from engagement_platform.pipelines.profiles import view as view_module
from engagement_platform.pipelines.profiles.entity import Entity, version_of
from engagement_platform.pipelines.profiles.snapshot import are_newer, snapshot
from engagement_platform.pipelines.profiles.view import (
    STRATEGIES,
    choose,
    fits_broadcast,
    view,
)
from engagement_platform.settings import MergeOnReadSettings, Settings, UnknownUpdate, ViewStrategy
from engagement_platform_tests.matrix import quick
from engagement_platform_tests.pipelines.profiles.histories import (
    DEVICE,
    PROFILE,
    Changes,
    plain,
    seen_by_rules,
    side_by_side,
)
from engagement_platform_tests.pipelines.profiles.oracle import Said, replay, rows_of

NEW_ONLY = replace(PROFILE, unknown_update="ignore", inserts_are_new=True)


def lake_of(spark: SparkSession, root: Path, merge_on_read: MergeOnReadSettings | None = None) -> Lake:
    return Lake(spark, Settings(lake_uri=str(root), merge_on_read=merge_on_read or MergeOnReadSettings()))


def half_moved(root: Path, entity: Entity, seed: int, histories: int = 150, *, newer: int = 0) -> list[Said]:
    """Many histories over four batches, of which the base has two; one of those is still in the changeset.

    newer: by so much are the versions of the other two greater than they would be.
    """
    changes = Changes(root, entity)
    batches = side_by_side(seed, entity, histories, 4, inserts_first=entity.inserts_are_new)
    batches[2:] = [[replace(change, version=change.version + newer) for change in batch] for batch in batches[2:]]
    for number, batch in enumerate(batches):
        changes.land(number, batch)
        if number == 1:
            changes.move()
            changes.drop(0)
    assert snapshot(str(root), entity).orphans == [1]
    return [change for batch in batches for change in batch]


@pytest.mark.parametrize("entity", [*quick([PROFILE, DEVICE]), NEW_ONLY], ids=["profile", "device", "new inserts"])
def test_every_valid_strategy_shows_the_replay(spark: SparkSession, tmp_path: Path, entity: Entity) -> None:
    """With orphans of a half-finished rematerialization, and other histories each time."""
    seed = Random().randrange(2**32)
    landed = half_moved(tmp_path, entity, seed)
    expected = replay(landed, entity)
    lake = lake_of(spark, tmp_path)
    for strategy in STRATEGIES:
        if strategy == "left_join_union_inserts" and entity is not NEW_ONLY:
            with pytest.raises(PlatformError, match="cannot be read by"):
                view(lake, entity, strategy=strategy)
            continue
        found = view(lake, entity, strategy=strategy).rows.toArrow()
        assert rows_of(plain(found), entity) == expected, f"{strategy}, seed {seed}"
    assert seen_by_rules(str(tmp_path), entity) == expected, f"by the rules, seed {seed}"


@pytest.mark.parametrize("entity", quick([PROFILE, DEVICE, NEW_ONLY]), ids=["profile", "device", "new inserts"])
def test_versions_of_the_base_s_columns_are_read_only_where_one_that_waits_may_be_older(
    spark: SparkSession, tmp_path: Path, entity: Entity
) -> None:
    """Versions go up to 6 in the base; those that wait are greater, then one of them no more."""
    seed = Random().randrange(2**32)
    landed, lake = half_moved(tmp_path, entity, seed, newer=6), lake_of(spark, tmp_path)
    late = [Said("k0000", 6, "UPDATE", {entity.columns[-1]: None}, (entity.columns[-1],))]
    strategies: list[ViewStrategy] = ["full_outer_join", "left_join_anti_join"]
    strategies += ["left_join_union_inserts"] if entity is NEW_ONLY else []
    for older in (False, True):
        if older:
            Changes(tmp_path, entity).land(4, late)
            landed += late
        assert are_newer(str(tmp_path), entity, snapshot(str(tmp_path), entity)) is not older
        for strategy in strategies:
            found = view(lake, entity, strategy=strategy)
            told = f"{strategy}, seed {seed}, older {older}"
            scans = [line for line in plan_of(found.rows).splitlines() if "FileScan" in line]
            assert any(f"{version_of(entity.columns[0])}#" in scan for scan in scans) is older, told
            assert rows_of(plain(found.rows.toArrow()), entity) == replay(landed, entity), told
            assert found.state.toArrow().num_rows >= len(replay(landed, entity)), told


def test_changes_count_as_newer_only_where_every_log_entry_says_so(tmp_path: Path) -> None:
    """A tie is for the base to decide, and a file without statistics may hold anything."""

    def newer(root: Path) -> bool:
        return are_newer(str(root), PROFILE, snapshot(str(root), PROFILE))

    nothing_moved = Changes(tmp_path / "empty", PROFILE)
    nothing_moved.land(0, [Said("a", 1, "INSERT")])
    assert newer(nothing_moved.root)
    changes = in_files(tmp_path / "moved", [Said("a", 4, "INSERT")])
    assert not newer(changes.root), "nothing waits"
    changes.land(1, [Said("a", 5, "UPDATE")])
    assert newer(changes.root)
    for number, told in ((2, "a tie"), (3, "a newer batch after it")):
        changes.land(number, [Said("b", 2 + number, "UPDATE")])
        assert not newer(changes.root), told
    for silent in (PROFILE.changeset, PROFILE.base):
        root = tmp_path / silent.name
        changes = in_files(root, [Said("a", 1, "INSERT")])
        DeltaTable(silent.uri(str(root))).alter.set_table_properties({"delta.dataSkippingNumIndexedCols": "0"})
        changes = in_files(root, [Said("a", 1, "INSERT")], [Said("b", 2, "INSERT")])
        changes.land(2, [Said("a", 9, "UPDATE")])
        assert not newer(root), silent.name


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
        with pytest.raises(PlatformError, match="cannot be read by"):
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


def take_away(table: Table, root: Path, **bounds: str) -> int:
    """Remove files whose smallest value of a column is this: whoever opens one fails. How many there were."""
    [(column, value)] = bounds.items()
    found = DeltaTable(table.uri(str(root)))
    files = pa.table(found.get_add_actions(flatten=True)).to_pylist()
    gone = [file["path"] for file in files if file[f"min.{column}"] == value]
    for path in gone:
        (Path(table.uri(str(root))) / path).unlink()
    return len(gone)


def in_files(root: Path, *moved: list[Said]) -> Changes:
    """Each list of changes in a file of the base of its own."""
    changes = Changes(root, PROFILE)
    for number, batch in enumerate(moved):
        # Empty again, so that the next is in the base alone.
        changes.land(number, batch)
        changes.move(keys=[change.key for change in batch])
        changes.drop(number)
    return changes


def test_while_no_change_waits_the_view_is_a_scan_of_the_base(spark: SparkSession, tmp_path: Path) -> None:
    landed = [Said("a", 1, "INSERT", {"name": "Ann"}), Said("b", 1, "INSERT"), Said("b", 2, "DELETE")]
    changes = in_files(tmp_path, landed)
    lake = lake_of(spark, tmp_path)
    for strategy in ("double_rank_over", "full_outer_join", "left_join_anti_join"):
        rows = view(lake, PROFILE, strategy=strategy).rows
        plan = plan_of(rows)
        assert plan.count("FileScan") == 1, f"{strategy}\n{plan}"
        assert "Exchange" not in plan, f"{strategy}\n{plan}"
        assert rows_of(plain(rows.toArrow()), PROFILE) == replay(landed, PROFILE)
    changes.land(1, [Said("a", 2, "UPDATE", {"name": "Bo"})])
    assert [row["name"] for row in view(lake, PROFILE).rows.toArrow().to_pylist()] == ["Bo"]


def test_a_predicate_opens_files_of_the_base_where_it_may_be_true_or_a_change_waits(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One came to pass, one ceased to, and one did both ways at once: none by its row in the base alone."""
    changes = in_files(
        tmp_path,
        [Said("a", 1, "INSERT", {"city": "Oslo", "score": 1}), Said("b", 1, "INSERT", {"city": "Oslo", "score": 2})],
        [Said("m", 1, "INSERT", {"city": "Rome", "score": 3})],
        [Said("x", 1, "INSERT", {"city": "Bonn"}), Said("z", 1, "INSERT", {"city": "Bonn"})],
    )
    changes.land(3, [Said("m", 2, "UPDATE", {"city": "Oslo"}), Said("b", 2, "UPDATE", {"city": "Rome"})])
    changes.land(4, [Said("new", 1, "INSERT", {"city": "Oslo"}), Said("other", 1, "INSERT", {"city": "Kiel"})])
    assert take_away(PROFILE.base, tmp_path, profile_id="x") == 1
    lake = lake_of(spark, tmp_path)
    for strategy in ("double_rank_over", "full_outer_join", "left_join_anti_join"):
        found = view(lake, PROFILE, strategy=strategy, where="city = 'Oslo'").rows.toArrow()
        assert sorted(found.column("profile_id").to_pylist()) == ["a", "m", "new"], strategy
    rows, out = rows_of_table(lake, "profile/current", where="score > 1 AND city = 'Rome'"), tmp_path / "found.parquet"
    assert save(rows, "profile/current", out) == 1
    assert [(row["profile_id"], row["score"]) for row in pq.read_table(out).to_pylist()] == [("b", 2)]


@pytest.mark.parametrize("most", [2, 1])
def test_with_more_changes_waiting_than_are_few_a_predicate_leaves_the_base_whole(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Two wait; either way the right rows are found."""
    monkeypatch.setattr(view_module, "FEW_KEYS", most)
    changes = in_files(tmp_path, [Said("a", 1, "INSERT", {"city": "Oslo"})], [Said("b", 1, "INSERT", {"city": "Rome"})])
    changes.land(2, [Said("b", 2, "UPDATE", {"city": "Oslo"}), Said("c", 1, "INSERT", {"city": "Kiel"})])
    found = view(lake_of(spark, tmp_path), PROFILE, strategy="full_outer_join", where="city = 'Oslo'").rows
    [scan] = [line for line in plan_of(found).splitlines() if "FileScan" in line]
    assert ("EqualTo(city,Oslo)" in scan) is (most == 2)
    assert sorted(found.toArrow().column("profile_id").to_pylist()) == ["a", "b"]


@pytest.mark.parametrize("entity", quick([PROFILE, DEVICE, NEW_ONLY]), ids=["profile", "device", "new inserts"])
def test_the_state_is_what_the_rules_leave_in_the_base(spark: SparkSession, tmp_path: Path, entity: Entity) -> None:
    """Also what no reader sees of it: versions, tombstones, and what nobody has inserted."""
    seed = Random().randrange(2**32)
    half_moved(tmp_path, entity, seed, 40)
    lake = lake_of(spark, tmp_path)
    in_spark = plain(view(lake, entity, strategy="full_outer_join").state.orderBy(entity.key).toArrow())
    Changes(tmp_path, entity).move()
    assert in_spark, "there are rows"
    assert in_spark == plain(lake.read(entity.base).orderBy(entity.key).toArrow()), f"seed {seed}"


@pytest.mark.parametrize("where", quick(["name = 'a'", "score IS NULL", "NOT (city <=> 'b') AND version > 2"]))
def test_a_predicate_finds_what_it_finds_in_the_whole_view(spark: SparkSession, tmp_path: Path, where: str) -> None:
    seed = Random().randrange(2**32)
    half_moved(tmp_path, PROFILE, seed, 40)
    lake = lake_of(spark, tmp_path)
    found, whole = view(lake, PROFILE, where=where).rows.toArrow(), view(lake, PROFILE).rows.where(where).toArrow()
    assert rows_of(plain(found), PROFILE) == rows_of(plain(whole), PROFILE), f"seed {seed}"
