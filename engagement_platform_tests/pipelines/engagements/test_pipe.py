"""The engagement pipe in Spark leaves the plan that the rules make, organization by organization."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from engagement_platform.engine.model import Manifest
from engagement_platform.pipelines.engagements.job import notifications
from engagement_platform.pipelines.engagements.pipe import load_state, resolve, summarize
from engagement_platform.pipelines.engagements.rules import resolve as resolve_here
from engagement_platform.pipelines.engagements.schema import COPY, PLAN
from engagement_platform.pipelines.mutations.view import Pending
from engagement_platform_tests.pipelines.lakes import copy_of
from engagement_platform_tests.pipelines.mutations import oracle
from engagement_platform_tests.pipelines.mutations.histories import FIRST_DAY, random_history
from engagement_platform_tests.pipelines.tables import state_tables, table
from engagement_platform_tests.pipelines.test_histories import run

RECORD = pa.schema(
    [
        pa.field("reason_code", pa.string()),
        pa.field("value_bytes", pa.int32()),
        pa.field("unknown_fields", pa.int32()),
        pa.field("produced_ts", pa.timestamp("us", tz="UTC")),
    ]
)

ALL = 1 << 40
"""Every request is announced."""


def in_order(plan: pa.Table) -> list[dict[str, Any]]:
    def plain(value: Any) -> Any:
        return value.timestamp() if hasattr(value, "timestamp") else value

    rows = [{name: plain(value) for name, value in row.items()} for row in plan.select(PLAN.names).to_pylist()]
    return sorted(rows, key=lambda row: (row["organization_id"], row["offset"]))


def test_a_message_that_two_batches_read_has_an_id_of_its_own_in_each(spark: SparkSession) -> None:
    """As one that is read again after a restore; a batch that is replayed gives the same ids."""
    changed = {"topic": "t", "partition": 0, "offset": 7, "organization_id": "org", "change_type": "INSERT"}
    plan = spark.createDataFrame(table([changed], PLAN))

    def ids(batch_id: int) -> list[str]:
        manifest = Manifest("ingest", "app", batch_id, {}, {}, datetime(2026, 11, 20, tzinfo=UTC))
        return [row["notification_id"] for row in notifications(plan, manifest).collect()]

    assert ids(0) == ids(0) == ["app/0/t/0/7"]
    assert ids(1) == ["app/1/t/0/7"]


def test_the_pipe_leaves_the_plan_that_the_rules_make_of_each_organization(spark: SparkSession) -> None:
    lakes, copies = [], []
    for seed in range(40):
        messages = random_history(seed, conflicts=True)
        half = len(messages) // 2
        lakes.append(run(messages[:half] or messages, Random(seed)))
        rest = [m for m in messages[half:] if not oracle.is_request(m)]
        found_there = (copy_of(10_000 * seed + nth, message) for nth, message in enumerate(rest))
        copies += [copy for copy in found_there if copy["engagement_date"] > FIRST_DAY]
    tables = state_tables(lakes)

    def frame(rows: pa.Table) -> DataFrame:
        return spark.createDataFrame(rows)

    produced = datetime(2026, 11, 20, tzinfo=UTC)
    record = {"reason_code": None, "value_bytes": 1, "unknown_fields": 0, "produced_ts": produced}
    decoded = frame(table([{**record, **copy} for copy in copies], pa.schema([*RECORD, *COPY])))
    received, accepted = summarize(decoded)
    assert accepted is not None
    assert accepted["records"] == received.rows_in == len(copies)
    data, changeset, alias, updates = map(frame, tables)
    pending = Pending(-1, changeset, alias, updates, moves_identity=True)
    state = load_state(data, pending, decoded, accepted, all_days=True)
    edges = state.where("edge IS NOT NULL").select("edge.execution_ts").toArrow().column(0)
    assert pc.min(edges).as_py() > datetime.combine(FIRST_DAY, time(), UTC) + timedelta(days=1)
    assert 0 < len(edges) < tables[2].num_rows, "requests from before the first day do not concern these engagements"
    state = state.localCheckpoint()

    by_organization: dict[str, list[dict[str, Any]]] = {}
    for copy in copies:
        by_organization.setdefault(copy["organization_id"], []).append(copy)
    for announced in (0, 3, ALL):
        found = resolve(decoded, state, all_days=True, announced=announced).toArrow()
        expected = []
        for lake in lakes:
            of_lake = by_organization.get(lake.organization_id, [])
            if of_lake:
                known = lake.state({copy["engagement_id"] for copy in of_lake}, None)
                rows = table(of_lake, COPY)
                expected.append(resolve_here(lake.organization_id, rows, known, all_days=True, announced=announced))
        assert in_order(found) == in_order(pa.concat_tables(expected))
    verdicts = set(found.column("verdict").to_pylist())
    assert {"INSERT", "UPDATE", "DUPLICATE", "QUARANTINE"} <= verdicts, "the histories are too tame"
