"""The view in Spark shows what a sequential replay of the messages leaves, whatever is pending."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from engagement_platform.pipelines.mutations import view
from engagement_platform.pipelines.mutations.connected_components import GraphFramesMissing
from engagement_platform.pipelines.mutations.view import Pending, changed, current
from engagement_platform_tests.conftest import without_graphframes
from engagement_platform_tests.pipelines.lakes import MemoryLake
from engagement_platform_tests.pipelines.mutations.histories import random_history
from engagement_platform_tests.pipelines.tables import state_tables
from engagement_platform_tests.pipelines.test_histories import as_rows, run

WATERMARK = 1000


def pending_after(lake: MemoryLake, sequence: int) -> int:
    """Sequences of all lakes on one line: what a lake has moved stays below WATERMARK, what is pending comes above."""
    return sequence if sequence <= lake.watermark else WATERMARK + sequence


def test_the_view_shows_what_the_rules_show_with_anything_pending(spark: SparkSession) -> None:
    lakes = [run(random_history(seed, conflicts=True, size=40), Random(seed)) for seed in range(60)]
    data, changeset, alias, updates = state_tables(lakes, pending_after)
    base, images, edges, patches = map(spark.createDataFrame, (data, changeset, alias, updates))
    waits = Pending(WATERMARK, images, edges, patches, moves_identity=True)
    found = current(base, waits).toArrow()

    expected = {
        (lake.organization_id, engagement_id): row for lake in lakes for engagement_id, row in lake.current().items()
    }
    assert sum(len(as_rows(lake)) for lake in lakes) == len(expected)
    assert found.num_rows == len(expected), "a row stands twice, or is missing"
    columns = ("person_id", "source_person_id", "version", "engagement", "original", "earlier_versions")
    for row in found.to_pylist():
        wanted = expected[row["organization_id"], row["engagement_id"]]
        assert {name: row[name] for name in columns} == {name: wanted[name] for name in columns}
    assert all(map(pending, (alias, changeset, updates))), "nothing of one kind is pending"
    split = replace(waits, max_edges=5)
    if without_graphframes() is None:
        assert sorted(map(repr, current(base, split).toArrow().to_pylist())) == sorted(map(repr, found.to_pylist()))
    else:
        with pytest.raises(GraphFramesMissing, match="max_edges_per_group"):
            current(base, split)


def test_a_purge_looks_at_a_large_organization_in_portions_and_finds_what_it_finds_at_once(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    lakes = [run(random_history(seed, conflicts=True, size=40), Random(seed)) for seed in range(30)]
    base, images, edges, patches = map(spark.createDataFrame, state_tables(lakes, pending_after))
    waits = Pending(WATERMARK, images, edges, patches, moves_identity=True)
    dates = sorted(edge["execution_ts"] for lake in lakes for edge in lake.edges)
    horizon = dates[len(dates) // 2]
    whole = changed(base, waits, horizon).toArrow()
    monkeypatch.setattr(view, "ROWS_PER_GROUP", 2)
    found = changed(base, waits, horizon).toArrow()
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, whole.to_pylist()))
    assert [row for row in whole.to_pylist() if row["source_person_id"] is None], "no tombstone was made"


def pending(table: pa.Table) -> bool:
    return any(number > WATERMARK for number in table.column("sequence").to_pylist())
