"""A Dagster instance, what it knows, looks of sensors, and a fresh lake with topics for runs in this process."""

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


def tick(instance: dg.DagsterInstance, sensor: str, definitions: dg.Definitions | None = None) -> Any:
    """One look of a sensor."""
    definitions = definitions or loaded()
    context = dg.build_sensor_context(instance, definitions=definitions, resources={"platform": Platform()})
    return definitions.resolve_sensor_def(sensor)(context)


def skipped(answer: object) -> str:
    """Why a sensor or a schedule has launched nothing."""
    assert isinstance(answer, dg.SkipReason)
    return answer.skip_message or ""


def key_of(name: str) -> dg.AssetKey:
    """The asset of a name such as engagement/data."""
    return dg.AssetKey(name.split("/"))


def evaluated(instance: dg.DagsterInstance, name: str, check: str) -> dg.AssetCheckEvaluation:
    """The newest result of a check of an asset."""
    asset = dg.AssetCheckKey(key_of(name), check)
    [record] = instance.event_log_storage.get_asset_check_execution_history(asset, limit=1)
    assert isinstance(record.evaluation, dg.AssetCheckEvaluation)
    return record.evaluation


def materialized(instance: dg.DagsterInstance, name: str) -> dict[str, Any]:
    """What the newest materialization of an asset shows."""
    event = instance.get_latest_materialization_event(key_of(name))
    assert event is not None
    assert event.asset_materialization is not None
    return {label: value.value for label, value in event.asset_materialization.metadata.items()}


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


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
        self.engagements, self.requests = (f"{name}-{uuid4().hex[:8]}" for name in ("engagements", "requests"))
        self.profile_changes = f"profile-changes-{uuid4().hex[:8]}"
        for topic in (self.engagements, self.requests):
            broker.create_topic(topic)

    def run_op(self, job: str) -> Any:
        """Run a job of an op, which has no partitions."""
        return loaded().resolve_job_def(job).execute_in_process(instance=self.instance)

    def run(self, job: str, partitions: list[date], mode: str = "auto", raise_on_error: bool = True) -> Any:
        """Run a job for a day, or for all from the first to the last day in one run; for none where it has none."""
        first, last = (partitions[at].isoformat() if partitions else "" for at in (0, -1))
        tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
        op = OPS.get(job)
        return (
            loaded()
            .resolve_job_def(job)
            .execute_in_process(
                run_config={"ops": {op: {"config": {"mode": mode}}}} if op else {},
                partition_key=first or None if first == last else None,
                tags=None if first == last else tags,
                instance=self.instance,
                raise_on_error=raise_on_error,
            )
        )

    def tick(self, sensor: str) -> Any:
        """One look of a sensor."""
        return tick(self.instance, sensor)

    def rows(self, table: Table) -> list[str]:
        """Every row as text, sorted."""
        uri = table.uri(str(self.folder / "lake"))
        return sorted(map(repr, DeltaTable(uri).to_pyarrow_table().to_pylist()))

    def observed(self, key: str) -> list[dg.AssetObservation]:
        """Observations of an asset, newest first."""
        found = self.instance.fetch_observations(key_of(key), limit=100).records
        return [record.asset_observation for record in found if record.asset_observation]

    def passed(self, key: str, check: str) -> bool:
        """Whether the newest result of a check is that it passed."""
        return evaluated(self.instance, key, check).passed

    def told(self, key: str, check: str) -> dict[str, Any]:
        """The metadata of the newest result of a check."""
        return {name: value.value for name, value in evaluated(self.instance, key, check).metadata.items()}

    def events(self, key: str) -> list[dg.AssetMaterialization]:
        """Materializations of an asset, newest first."""
        found = self.instance.fetch_materializations(key_of(key), limit=100).records
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
