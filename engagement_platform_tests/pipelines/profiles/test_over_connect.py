"""Plans as Connect has them, which are built and not sent: they nest little, and add no column that was declared."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from pyspark.sql import functions as F
from pyspark.sql.connect.dataframe import DataFrame
from pyspark.sql.connect.session import SparkSession

from engagement_platform.engine.model import Transaction
from engagement_platform.lake.contract import PLAIN_NAME
from engagement_platform.lake.lake import Lake
from engagement_platform.pipelines.profiles import rematerialize
from engagement_platform.pipelines.profiles.entity import Attribute, Entity
from engagement_platform.pipelines.profiles.job import by_policies
from engagement_platform.pipelines.tombstones import with_tombstones
from engagement_platform.settings import Settings
from engagement_platform.sources.decoded_batches import changes_ddl

MANY = 60
WIDE = Entity(
    name="device",
    key="device_id",
    version="version",
    attributes=tuple(Attribute(f"column_{n}", "string", "") for n in range(MANY)),
    partitioned_by=("column_0",),
)


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """A session that has no server; functions make columns for it."""
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    return SparkSession("sc://127.0.0.1:1")


@pytest.fixture
def sent(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Commands that the two moves have for a server."""
    commands: list[Any] = []

    def execute(command: Any, *_: object) -> tuple[None, dict[str, Any], None]:
        commands.append(command)
        return None, {}, None

    monkeypatch.setattr(spark.client, "execute_command", execute)
    monkeypatch.setattr(spark.client, "config", MagicMock())
    frame = spark.read.format("delta").load("base")
    monkeypatch.setattr(rematerialize, "_state", lambda _: frame)
    monkeypatch.setattr(rematerialize, "folded_changes", lambda *_: frame)
    monkeypatch.setattr(DataFrame, "collect", lambda _: [{"column_0": f"value {n}"} for n in range(MANY)])
    lake = Lake(spark, Settings(home=tmp_path))  # type: ignore[arg-type]
    work = MagicMock(lake=lake, entity=WIDE, taken=MagicMock(base_version=0))
    for move in (rematerialize.replace_where, rematerialize.merge):
        move(work, Transaction("job/base/write", 1))
    return commands


def test_sixty_partitions_and_sixty_columns_fit_into_a_plan(sent: list[Any]) -> None:
    replaced, merged = sent
    condition = replaced.write_operation.options["replaceWhere"]
    assert condition.count(" OR ") == MANY - 1
    filtered = replaced.write_operation.input.repartition_by_expression.input.project.input.filter
    assert filtered.condition.expression_string.expression == condition
    [matched] = merged.merge_into_table_command.match_actions
    changed = matched.merge_action.condition.expression_string.expression
    assert changed.count(" OR ") == MANY + 1, "each column, presence, and the greatest version"


def test_no_column_that_a_pipe_adds_can_be_one_that_was_declared(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = [each.split()[0] for each in changes_ddl(WIDE.shape).split(",")]
    monkeypatch.setattr(DataFrame, "columns", property(lambda _: columns))
    rows: Any = spark.read.format("delta").load("decoded")
    refusing = replace(WIDE, inserts_are_new=True, unknown_update="quarantine")
    landed = [rows.select(WIDE.key, F.lit(True).alias("__is_made"))]
    made: list[Any] = [by_policies(rows, refusing, landed, {"0": 1}), with_tombstones(rows, rows)]
    for frame in made:
        names = re.findall(r'(?<!\w)(?:name|unparsed_identifier): "(\w+)"', str(frame._plan.plan(spark.client)))
        # `broadcast` is a hint.
        added = set(names) - {*columns, "broadcast"}
        assert added
        assert [name for name in added if PLAIN_NAME.fullmatch(name)] == []
