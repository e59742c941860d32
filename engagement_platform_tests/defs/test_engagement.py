"""Assets, checks and backfills end to end: real broker, real Spark in this process, an ephemeral Dagster instance."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import dagster as dg
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from engagement_platform.definitions import defs
from engagement_platform.defs.work import NoReread
from engagement_platform.tables.contract import Table
from engagement_platform.tables.engagement import MAPPING, NOTIFICATION, QUARANTINE, data_table
from engagement_platform_tests.conftest import Broker

pytestmark = pytest.mark.broker

TABLES = (data_table("organization"), MAPPING, NOTIFICATION, QUARANTINE)


class Home:
    """A fresh lake with its topics and a Dagster instance; the settings of this process point at it."""

    def __init__(self, folder: Path, broker: Broker, instance: dg.DagsterInstance) -> None:
        self.folder, self.broker, self.instance = folder, broker, instance
        self.engagements, self.requests = (f"{name}-{uuid4().hex[:8]}" for name in ("engagements", "requests"))
        for topic in (self.engagements, self.requests):
            broker.create_topic(topic)

    def run(self, job: str, partitions: list[date], mode: str = "auto", raise_on_error: bool = True) -> Any:
        """Run a job for a day, or for all from the first to the last day in one run."""
        first, last = partitions[0].isoformat(), partitions[-1].isoformat()
        tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
        op = {"ingest_engagements": "ingest_engagement_tables"}.get(job, "ingest_mutation_request_table")
        return (
            defs()
            .resolve_job_def(job)
            .execute_in_process(
                run_config={"ops": {op: {"config": {"mode": mode}}}},
                partition_key=first if first == last else None,
                tags=None if first == last else tags,
                instance=self.instance,
                raise_on_error=raise_on_error,
            )
        )

    def rows(self, table: Table) -> list[str]:
        """Every row as text, sorted."""
        uri = table.uri(str(self.folder / "lake"))
        return sorted(map(repr, DeltaTable(uri).to_pyarrow_table().to_pylist()))

    def events(self, key: str) -> list[dg.AssetMaterialization]:
        """Materializations of an asset, newest first."""
        found = self.instance.fetch_materializations(dg.AssetKey(key.split("/")), limit=100).records
        return [record.asset_materialization for record in found if record.asset_materialization]


@pytest.fixture
def home(broker: Broker, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    with dg.DagsterInstance.ephemeral() as instance:
        made = Home(tmp_path, broker, instance)
        for name, value in {
            "HOME": str(tmp_path),
            "KAFKA__BOOTSTRAP_SERVERS": broker.bootstrap_servers,
            "KAFKA__ENGAGEMENTS_TOPIC": made.engagements,
            "KAFKA__MUTATION_REQUESTS_TOPIC": made.requests,
            "DRAIN__LINGER": "PT0S",
            "BATCH__MAX_RECORDS": "3",
        }.items():
            monkeypatch.setenv(f"ENGAGEMENT_PLATFORM_{name}", value)
        yield made


def engagement(number: int) -> bytes:
    message = {
        "engagement_id": f"e-{number}",
        "organization_id": "org-1",
        "person_id": f"p-{number}",
        "person_name": f"Person {number}",
        "engagement_ts": "2026-11-20T10:00:00+00:00",
        "type": "call",
    }
    return json.dumps(message).encode()


def number(event: dg.AssetMaterialization, name: str) -> Any:
    return event.metadata[name].value


def test_a_run_tells_of_each_batch_and_a_backfill_of_its_day_changes_nothing(home: Home) -> None:
    home.broker.produce(home.engagements, [(0, None, engagement(i)) for i in range(4)] + [(0, None, b"not json")])
    today = datetime.now(UTC).date()
    result = home.run("ingest_engagements", [today])
    assert result.success

    for key in ("engagement/data", "engagement/mapping", "engagement/notification", "engagement/quarantine"):
        newest, first = home.events(key)
        assert (number(first, "batch_id"), number(newest, "batch_id")) == (0, 1)
        assert {newest.partition, first.partition} == {today.isoformat()}
    newest, first = home.events("engagement/data")
    assert [number(first, name) for name in ("rows_in", "landed", "quarantined", "duplicates")] == [3, 3, 0, 0]
    assert [number(newest, name) for name in ("rows_in", "landed", "quarantined", "files")] == [2, 1, 1, 1]
    assert 0 <= number(newest, "freshness_p95_s") < 600
    assert "data:image/svg+xml;base64," in number(newest, "last_batches")
    assert passed(home, "engagement/data", "conservation")

    assert defs().resolve_job_def("verify_engagements").execute_in_process(instance=home.instance).success
    for key, check in (
        ("engagement/data", "unique_engagement_id"),
        ("engagement/data", "nothing_lost"),
        ("engagement/notification", "announced"),
        ("engagement/quarantine", "rejected_once"),
    ):
        assert passed(home, key, check)

    before = [home.rows(table) for table in TABLES]
    assert home.run("ingest_engagements", [today], mode="reread").success
    assert [home.rows(table) for table in TABLES] == before
    again = home.events("engagement/data")[0]
    assert (number(again, "job"), number(again, "landed")) == ("reread-engagements", 0)
    assert again.partition == today.isoformat()


def passed(home: Home, key: str, check: str) -> bool:
    asset = dg.AssetCheckKey(dg.AssetKey(key.split("/")), check)
    [record] = home.instance.event_log_storage.get_asset_check_execution_history(asset, limit=1)
    return record.evaluation is not None and record.evaluation.passed


def test_a_backfill_of_days_without_batches_is_one_run_that_completes_them(home: Home) -> None:
    days = [datetime.now(UTC).date() - timedelta(days=age) for age in (3, 2, 1)]
    assert home.run("ingest_engagements", days).success
    told = {event.partition: number(event, "batches") for event in home.events("engagement/data")}
    assert told == {day.isoformat(): 0 for day in days}


def test_requests_land_and_a_rejected_one_is_told_of_on_quarantine(home: Home) -> None:
    request = {
        "request_id": "r-1",
        "organization_id": "org-1",
        "operation": "RENAME",
        "from_id": "p-1",
        "name": "Ada",
        "execution_ts": "2026-11-20T10:00:00+00:00",
    }
    home.broker.produce(home.requests, [(0, None, json.dumps(request).encode()), (0, None, b"[]")])
    today = datetime.now(UTC).date()
    assert home.run("ingest_mutation_requests", [today]).success
    assert [number(event, "landed") for event in home.events("engagement/mutation_request")] == [1]
    quarantine = dg.AssetKey(["engagement", "quarantine"])
    [observed] = home.instance.fetch_observations(quarantine, limit=5).records
    assert observed.asset_observation is not None
    assert observed.asset_observation.metadata["quarantined"].value == 1
    assert passed(home, "engagement/mutation_request", "conservation")


def test_days_of_requests_cannot_be_read_again_and_the_run_says_so(home: Home) -> None:
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    with pytest.raises(NoReread, match="Nothing was changed"):
        home.run("ingest_mutation_requests", [yesterday])


def test_redriven_records_land_and_are_told_of(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_DECODING__MAX_ID_LENGTH", "2")
    home.broker.produce(home.engagements, [(0, None, engagement(1))])
    today = datetime.now(UTC).date()
    assert home.run("ingest_engagements", [today]).success
    [rejected] = DeltaTable(QUARANTINE.uri(str(home.folder / "lake"))).to_pyarrow_table().to_pylist()
    monkeypatch.delenv("ENGAGEMENT_PLATFORM_DECODING__MAX_ID_LENGTH")

    redrive = defs().resolve_job_def("redrive_quarantine")
    config = {"ops": {"redrive": {"config": {"reason": rejected["reason_code"]}}}}
    assert redrive.execute_in_process(run_config=config, instance=home.instance).success
    assert len(home.rows(data_table("organization"))) == 1
    newest = home.events("engagement/data")[0]
    assert (number(newest, "landed"), newest.partition) == (1, today.isoformat())
