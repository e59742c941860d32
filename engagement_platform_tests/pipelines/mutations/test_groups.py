"""A very large organization is split into parts, and its parts come to what the whole comes to."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from engagement_platform.pipelines.engagements.schema import STATE
from engagement_platform.pipelines.mutations import connected_components as groups
from engagement_platform.pipelines.mutations import rules
from engagement_platform.pipelines.mutations.rules import MOVE_DDL
from engagement_platform_tests.conftest import skip_without_graphframes
from engagement_platform_tests.pipelines.lakes import MemoryLake
from engagement_platform_tests.pipelines.mutations.histories import random_history
from engagement_platform_tests.pipelines.test_histories import requests_that_count

ALIAS = pa.schema([pa.field("organization_id", pa.string()), *STATE.field("edge").type])
SINCE = 3
"""Of each history some edges are older, and some are not."""
RULES: dict[str, tuple[groups.Rule, str]] = {
    "moves": (rules.moves, MOVE_DDL),
    "moves without and with the new edges": (rules.moves_apart, f"{MOVE_DDL}, is_after boolean"),
}


def edges_of(seed: int, organization_id: str) -> list[dict[str, Any]]:
    """The edges of a history whose persons, engagements and requests meet those of no other."""
    lake = MemoryLake(organization_id)
    for sequence, (_, message) in enumerate(requests_that_count(random_history(seed, size=40))[0]):
        lake.sequence = sequence % (2 * SINCE)
        lake.accept([message])
    own = ("request_id", "from_id", "to_id", "engagement_id")
    return [
        {"organization_id": organization_id, **edge, **{n: edge[n] and f"{seed}/{edge[n]}" for n in own}}
        for edge in lake.edges
    ]


@pytest.fixture(scope="module")
def alias(spark: SparkSession) -> DataFrame:
    """Twenty histories in one large organization, and some small ones with the same ids."""
    edges = [edge for seed in range(20) for edge in edges_of(seed, "large")]
    edges += [edge for seed in range(10) for edge in edges_of(seed, f"small-{seed}")]
    return spark.createDataFrame(pa.Table.from_pylist(edges, schema=ALIAS)).localCheckpoint()


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Components by a loop over the links instead of GraphFrames; how many there were, each time."""
    asked: list[int] = []

    def components(links: DataFrame) -> DataFrame:
        of: dict[int, int] = {}
        for src, dst in links.collect():
            one, other = of.setdefault(src, src), of.setdefault(dst, dst)
            of = {person: min(one, other) if its in (one, other) else its for person, its in of.items()}
        asked.append(len(set(of.values())))
        return links.sparkSession.createDataFrame(list(of.items()), "id long, component long")

    monkeypatch.setattr(groups, "connected_components", components)
    return asked


def rows_of(frame: DataFrame) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in frame.toArrow().to_pylist())


@pytest.mark.parametrize("name", RULES)
def test_the_parts_of_a_large_organization_make_the_moves_of_the_whole(
    alias: DataFrame, name: str, by_hand: list[int]
) -> None:
    rule, ddl = RULES[name]
    whole = rows_of(groups.moves(alias, SINCE, None, rule, ddl))
    assert rows_of(groups.moves(alias, SINCE, 100_000, rule, ddl)) == whole
    assert by_hand == [], "components were asked for where no organization is large"
    assert rows_of(groups.moves(alias, SINCE, 30, rule, ddl)) == whole
    assert len(by_hand) == 1
    assert by_hand[0] >= 20, "histories that have nothing in common met"
    assert any("engagement_id" in row and "large" in row for row in whole)


@pytest.mark.usefixtures("by_hand")
def test_a_part_has_about_as_many_edges_as_one_task_follows(alias: DataFrame) -> None:
    def size(organization_id: str, state: pa.Table, _since: int) -> pa.Table:
        return pa.table({"organization_id": [organization_id], "edges": pa.array([state.num_rows], pa.int64())})

    # All edges are new, so none is left out.
    found = groups.moves(alias, 0, 30, size, "organization_id string, edges bigint").collect()
    sizes = [row["edges"] for row in found if row["organization_id"] == "large"]
    of_large = alias.where("organization_id = 'large'")
    assert sum(sizes) == of_large.count(), "an edge is in two parts, or in none"
    # One more for those that name no person.
    assert 3 <= len(sizes) <= -(-of_large.where("from_id IS NOT NULL").count() // 30) + 1
    assert len([row for row in found if row["organization_id"] == "small-1"]) == 1


def test_components_by_graphframes_make_the_same_moves(alias: DataFrame) -> None:
    skip_without_graphframes()
    rule, ddl = RULES["moves"]
    whole = rows_of(groups.moves(alias, SINCE, None, rule, ddl))
    assert rows_of(groups.moves(alias, SINCE, 30, rule, ddl)) == whole
