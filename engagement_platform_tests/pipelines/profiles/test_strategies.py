"""In Spark, after every batch and on both sides of every rematerialization: each strategy shows the sequential replay.

One state of many histories is `test_view`, which is quicker; the rules alone are `test_rules`.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from engagement_platform.lake.lake import Lake
from engagement_platform.pipelines.profiles.entity import Entity
from engagement_platform.pipelines.profiles.snapshot import Snapshot, snapshot
from engagement_platform.pipelines.profiles.view import STRATEGIES, view, why_not_union_inserts
from engagement_platform_tests.pipelines.profiles.histories import (
    DEVICE,
    PROFILE,
    Batches,
    Changes,
    plain,
    side_by_side,
)
from engagement_platform_tests.pipelines.profiles.oracle import Row, Said, replay, rows_of
from engagement_platform_tests.pipelines.profiles.test_view import NEW_ONLY, lake_of

HISTORIES = 60
BATCHES = 3


def states(root: Path, entity: Entity, batches: Batches, moved_after: set[int], dropped: bool) -> list[Snapshot]:
    """Every state that readers may meet: each batch landed, in the base as well, and in the base alone."""
    changes, passed = Changes(root, entity), []
    for number, batch in enumerate(batches):
        changes.land(number, batch)
        passed.append(snapshot(str(root), entity))
        if number in moved_after:
            changes.move(passed[-1])
            passed.append(snapshot(str(root), entity))
            if dropped:
                changes.drop(number)
                passed.append(snapshot(str(root), entity))
    return passed


def assert_replayed(lake: Lake, entity: Entity, at: Snapshot, expected: list[Row]) -> None:
    for strategy in STRATEGIES:
        if strategy == "left_join_union_inserts" and why_not_union_inserts(entity):
            continue
        found = view(lake, entity, strategy=strategy, at=at).rows.toArrow()
        told = f"{strategy}, batch {at.latest}, watermark {at.watermark}, orphans {at.orphans}"
        assert rows_of(plain(found), entity) == expected, told


@pytest.mark.slow
@pytest.mark.parametrize("entity", [PROFILE, DEVICE, NEW_ONLY], ids=["profile", "device", "new inserts"])
@settings(deadline=None, max_examples=2)
@given(seed=st.integers(0, 2**32), moved_after=st.sets(st.integers(0, BATCHES - 1)), dropped=st.booleans())
def test_every_strategy_shows_the_replay_after_every_batch_also_to_who_holds_an_older_state(
    spark: SparkSession, entity: Entity, seed: int, moved_after: set[int], dropped: bool
) -> None:
    """Everything lands and is moved first: each state is then read by somebody who has held it since."""
    with TemporaryDirectory() as folder:
        batches = side_by_side(seed, entity, HISTORIES, BATCHES, inserts_first=entity.inserts_are_new)
        passed = states(Path(folder), entity, batches, moved_after, dropped)
        lake = lake_of(spark, Path(folder))
        for at in passed:
            landed: list[Said] = [change for batch in batches[: at.latest + 1] for change in batch]
            assert_replayed(lake, entity, at, replay(landed, entity))
