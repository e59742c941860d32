"""The view of names in Spark shows what a sequential replay leaves, before and after the mapping is folded."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from engagement_platform.pipelines.engagements.schema import STATE
from engagement_platform.pipelines.mutations.names import MAPPING, current, folded
from engagement_platform_tests.pipelines.mutations import oracle
from engagement_platform_tests.pipelines.mutations.histories import random_history
from engagement_platform_tests.pipelines.test_histories import run

LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)
AFTER_ALL = datetime(2030, 1, 1, tzinfo=UTC)


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return found


def test_each_id_has_one_name_and_it_is_the_one_of_a_replay_however_often_the_mapping_was_folded(
    spark: SparkSession,
) -> None:
    mapping: list[dict[str, Any]] = []
    edges: list[dict[str, Any]] = []
    expected: dict[tuple[str, str], tuple[str, datetime]] = {}
    for seed in range(60):
        messages = random_history(seed, conflicts=True, size=40)
        lake = run(messages, Random(seed), move=False)
        expected |= oracle.replay(messages).names
        for one in lake.evidence:
            evidence = None
            if one.request_id is not None:
                evidence = [{"name": one.name, "name_ts": one.name_ts, "request_id": one.request_id}]
            said = {"id": one.id, "name": one.name, "name_ts": one.name_ts, "evidence": evidence}
            mapping.append({"organization_id": lake.organization_id, **said})
        edges += [{"organization_id": lake.organization_id, **edge} for edge in lake.edges]
    alias_schema = pa.schema([pa.field("organization_id", pa.string()), *STATE.field("edge").type])
    alias = spark.createDataFrame(pa.Table.from_pylist(edges, schema=alias_schema))
    appended = spark.createDataFrame(pa.Table.from_pylist(mapping, schema=MAPPING))

    def named(frame: DataFrame) -> dict[tuple[str, str], tuple[str, datetime]]:
        rows = rows_of(frame)
        names = {(r["organization_id"], r["id"]): (r["name"], r["name_ts"].astimezone(UTC)) for r in rows}
        assert len(names) == len(rows), "an id stands twice"
        return names

    assert named(current(appended, None, alias)) == expected
    once = spark.createDataFrame(folded(appended, None, alias, LONG_AGO).toArrow())
    assert named(current(once, None, alias)) == expected
    whole = folded(once, None, alias, AFTER_ALL).toArrow()
    assert named(current(spark.createDataFrame(whole), None, alias)) == expected
    assert named(spark.createDataFrame(whole).where("name IS NOT NULL").drop("evidence")) == expected
    kept = [len(row["evidence"]) for row in whole.to_pylist()]
    assert sum(kept) < len(mapping), "folding dropped nothing"
