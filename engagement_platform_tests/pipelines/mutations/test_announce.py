"""What newly accepted requests change is announced in Spark as the rules say it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from engagement_platform.engine.model import Manifest
from engagement_platform.lake.audit_columns import stamped_changes
from engagement_platform.pipelines.mutations import rules
from engagement_platform.pipelines.mutations.announce import changes
from engagement_platform.pipelines.mutations.connected_components import GraphFramesMissing
from engagement_platform.pipelines.mutations.view import Pending
from engagement_platform_tests.conftest import without_graphframes
from engagement_platform_tests.pipelines.lakes import MemoryLake
from engagement_platform_tests.pipelines.mutations.histories import random_history
from engagement_platform_tests.pipelines.tables import state_tables
from engagement_platform_tests.pipelines.test_histories import run

SINCE = 1000


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["organization_id"], row["engagement_id"]))


def test_what_requests_change_is_announced_as_the_rules_say_it(spark: SparkSession) -> None:
    lakes: dict[str, MemoryLake] = {}
    since: dict[str, int] = {}
    for seed in range(60):
        lake = run(random_history(seed, conflicts=True, size=40), Random(seed))
        lakes[lake.organization_id] = lake
        since[lake.organization_id] = Random(seed).randint(1, lake.sequence + 1)

    def on_one_line(lake: MemoryLake, sequence: int) -> int:
        return sequence if sequence < since[lake.organization_id] else SINCE + sequence

    data, images, edges, patches = map(spark.createDataFrame, state_tables(list(lakes.values()), on_one_line))
    # Images of the changeset are newer than the base whatever is new among the requests.
    waits = Pending(0, images, edges, patches, moves_identity=True)
    found = changes(data, waits, SINCE).toArrow().to_pylist()

    expected = [
        row
        for name, lake in lakes.items()
        for row in rules.changes(name, lake.state(None, None), since[name]).to_pylist()
    ]
    assert in_order(found) == in_order(expected)
    kinds = [row["change_type"] for row in expected]
    assert {"INSERT", "UPDATE", "DELETE"} == set(kinds), "the histories are too tame"
    split = replace(waits, max_edges=5)
    if without_graphframes() is None:
        assert in_order(changes(data, split, SINCE).toArrow().to_pylist()) == in_order(expected)
    else:
        with pytest.raises(GraphFramesMissing, match="max_edges_per_group"):
            changes(data, split, SINCE)


def test_ids_that_hold_what_separates_them_name_different_notifications(spark: SparkSession) -> None:
    changed = spark.createDataFrame(
        [("a/b", "c"), ("a", "b/c"), ("a", "3/c")], "organization_id string, engagement_id string"
    )
    manifest = Manifest("apply", "app@1", 7, {}, {}, datetime(2026, 11, 20, tzinfo=UTC))
    named = {row["notification_id"] for row in stamped_changes(changed, manifest).collect()}
    assert named == {"app@1/7/3/a/b/c", "app@1/7/1/a/b/c", "app@1/7/1/a/3/c"}
