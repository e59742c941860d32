"""Engagements of a large batch meet former requests in Spark: only of their organizations, which are sent to them."""

from __future__ import annotations

import io
import shutil
from contextlib import redirect_stdout
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from engagement_platform.engine.model import Manifest, Transaction
from engagement_platform.ingestion.former import Former
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.engagement import ALIAS, MUTATION_LOGS, data_table
from engagement_platform.lake.lake import Lake
from engagement_platform.settings import Settings

ENGAGED = datetime(2026, 11, 20, 10, tzinfo=UTC)
NEAR, FAR = "org-near", "org-far"


def conversion(organization: str, number: int) -> dict[str, object]:
    """id1 to id2, id2 to id3 and so on, an hour after the other."""
    return {
        "organization_id": organization,
        "request_id": f"r{number}",
        "operation": "CONVERT",
        "from_id": f"id{number}",
        "to_id": f"id{number + 1}",
        "execution_ts": ENGAGED + timedelta(hours=number),
        "batch_id": 0,
    }


def plan_of(rows: DataFrame) -> str:
    """The plan by which rows were read, once they were."""
    told = io.StringIO()
    with redirect_stdout(told):
        rows.explain()
    return told.getvalue()


def test_late_engagements_meet_the_edges_of_their_organizations_alone_and_few_edges_are_broadcast(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(spark, Settings(home=tmp_path))
    lake.ensure(data_table("organization"), *MUTATION_LOGS)
    edges = [conversion(organization, number) for organization in (NEAR, FAR) for number in (1, 2, 3)]
    lake.append(table_of(edges, ALIAS), ALIAS, Transaction("test/alias", 0), rows=len(edges))
    manifest = Manifest("ingest-engagements", "test", 0, {}, {}, ENGAGED, {ALIAS.name: lake.version(ALIAS)})
    # What is not there cannot be read.
    shutil.rmtree(Path(lake.uri(ALIAS)) / f"organization_id={FAR}")
    columns = "organization_id string, engagement_id string, engagement_date date, engagement_ts timestamp, said string"
    engaged = [(NEAR, f"e{n}", date(2026, 11, 20), ENGAGED, f"id{n}") for n in range(1, 6)]
    found = Former(lake, manifest, [NEAR]).identified(spark.createDataFrame(engaged, columns), "said")
    now = {row["engagement_id"]: row["now"] for row in found.collect()}
    assert now == {"e1": "id4", "e2": "id4", "e3": "id4", "e4": "id4", "e5": "id5"}
    plan = plan_of(found)
    assert "isFinalPlan=true" in plan
    assert "BroadcastHashJoin" in plan
    assert "SortMergeJoin" not in plan.partition("Initial Plan")[0]
