"""A fresh lake with its topics and a Dagster instance, for runs of whole jobs in this process."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import dagster as dg
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from engagement_platform.definitions import defs
from engagement_platform.defs.platform import Platform
from engagement_platform.lake.contract import Table
from engagement_platform_tests.conftest import Broker

loaded = cache(defs)
"""All definitions, which take a second to load; the settings of a run are read when it goes on."""

# Those that take a mode.
OPS = {
    "ingest_engagements": "ingest_engagement_tables",
    "ingest_mutation_requests": "ingest_mutation_request_table",
    "ingest_profile_changes": "ingest_profile_changeset",
}


class Home:
    """A fresh lake with its topics and a Dagster instance; the settings of this process point at it."""

    def __init__(self, folder: Path, broker: Broker, instance: dg.DagsterInstance) -> None:
        self.folder, self.broker, self.instance = folder, broker, instance
        self.cursor: str | None = None
        self.engagements, self.requests = (f"{name}-{uuid4().hex[:8]}" for name in ("engagements", "requests"))
        self.profile_changes = f"profile-changes-{uuid4().hex[:8]}"
        for topic in (self.engagements, self.requests):
            broker.create_topic(topic)

    def run_op(self, job: str) -> Any:
        """Run a job of an op, which has no partitions."""
        return loaded().resolve_job_def(job).execute_in_process(instance=self.instance)

    def run(self, job: str, partitions: list[date], mode: str = "auto", raise_on_error: bool = True) -> Any:
        """Run a job for a day, or for all from the first to the last day in one run."""
        first, last = partitions[0].isoformat(), partitions[-1].isoformat()
        tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
        op = OPS.get(job)
        return (
            loaded()
            .resolve_job_def(job)
            .execute_in_process(
                run_config={"ops": {op: {"config": {"mode": mode}}}} if op else {},
                partition_key=first if first == last else None,
                tags=None if first == last else tags,
                instance=self.instance,
                raise_on_error=raise_on_error,
            )
        )

    def tick(self, sensor: str, cursor: str | None = None, **more: Any) -> Any:
        """One look of a sensor."""
        definitions = loaded()
        context = dg.build_sensor_context(
            self.instance, cursor=cursor, definitions=definitions, resources={"platform": Platform()}, **more
        )
        answer = definitions.resolve_sensor_def(sensor)(context)
        self.cursor = context.cursor
        return answer

    def rows(self, table: Table) -> list[str]:
        """Every row as text, sorted."""
        uri = table.uri(str(self.folder / "lake"))
        return sorted(map(repr, DeltaTable(uri).to_pyarrow_table().to_pylist()))

    def observed(self, key: str) -> list[dg.AssetObservation]:
        """Observations of an asset, newest first."""
        found = self.instance.fetch_observations(dg.AssetKey(key.split("/")), limit=100).records
        return [record.asset_observation for record in found if record.asset_observation]

    def passed(self, key: str, check: str) -> bool:
        """Whether the newest result of a check is that it passed."""
        asset = dg.AssetCheckKey(dg.AssetKey(key.split("/")), check)
        [record] = self.instance.event_log_storage.get_asset_check_execution_history(asset, limit=1)
        return record.evaluation is not None and record.evaluation.passed

    def told(self, key: str, check: str) -> dict[str, Any]:
        """The metadata of the newest result of a check."""
        asset = dg.AssetCheckKey(dg.AssetKey(key.split("/")), check)
        [record] = self.instance.event_log_storage.get_asset_check_execution_history(asset, limit=1)
        return {name: value.value for name, value in record.evaluation.metadata.items()} if record.evaluation else {}

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
            "KAFKA__PROFILE_CHANGES_TOPIC": made.profile_changes,
            "DRAIN__IDLE_TIMEOUT": "PT0S",
            "BATCH__MAX_RECORDS": "3",
        }.items():
            monkeypatch.setenv(f"ENGAGEMENT_PLATFORM_{name}", value)
        yield made
