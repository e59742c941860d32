"""The replica in Dagster: its asset, its check, and when its condition asks for a run. No Spark."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from engagement_platform.defs.platform import Platform
from engagement_platform.defs.replica import (
    EQUALS_TABLE,
    REPLICA,
    compared_result,
    definitions,
    engagement_replica,
    replica_equals_table,
)
from engagement_platform.defs.specs import engagement_specs, key_of
from engagement_platform.lake.checksums import Checksum
from engagement_platform.lake.engagement import NOTIFICATION
from engagement_platform.replica.compare import Compared, Difference
from engagement_platform.replica.file import opened
from engagement_platform.replica.refresh import place_of
from engagement_platform_tests.consumers.lakes import PlainLake
from engagement_platform_tests.consumers.test_changes import land


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlainLake:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path))
    made = PlainLake(tmp_path)
    land(made, "e1", "e2")
    return made


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def check(instance: dg.DagsterInstance) -> dg.AssetCheckEvaluation:
    done = dg.materialize(
        [engagement_replica, replica_equals_table], instance=instance, resources={"platform": Platform()}
    )
    (evaluation,) = done.get_asset_check_evaluations()
    return evaluation


def test_a_run_refreshes_tells_and_compares(lake: PlainLake, instance: dg.DagsterInstance) -> None:
    assert check(instance).passed
    land(lake, "e3", organization="other")
    evaluation = check(instance)
    assert evaluation.passed
    assert (evaluation.asset_key, evaluation.check_name) == (REPLICA, EQUALS_TABLE)
    assert evaluation.metadata["rows"].value == 3
    event = instance.get_latest_materialization_event(REPLICA)
    assert event is not None
    assert event.asset_materialization is not None
    told = {name: value.value for name, value in event.asset_materialization.metadata.items()}
    assert {name: told[name] for name in ("rows", "inserted", "batches", "waiting", "lag_s", "batch")} == {
        "rows": 3, "inserted": 1, "batches": 1, "waiting": 0, "lag_s": 0.0, "batch": "ingest-engagements#1",
    }  # fmt: skip
    assert str(told["last_days"]).startswith("![engagements per day](data:image/svg+xml;base64,")
    with opened(place_of(lake.settings).path, read_only=False, wait_s=5) as connection:
        connection.execute("UPDATE engagement SET person_id = 'nobody' WHERE engagement_id = 'e3'")
    broken = check(instance)
    assert not broken.passed
    assert broken.description == "other: as many rows as readers of the lake see (1), but not the same"


def test_differences_are_told_by_organization_and_not_without_end() -> None:
    some = tuple(Difference(f"org-{n}", Checksum(n, 1), Checksum(5, 1)) for n in range(100))
    result = compared_result(Compared(some, 100, 500, 3))
    assert not result.passed
    assert (result.description or "").startswith("org-0: 0 rows, readers of the lake see 5; org-1: 1 rows")
    assert "org-50" not in (result.description or "")
    assert compared_result(Compared((), 0, 0, 1)).passed


def test_notifications_ask_for_a_run_once_a_minute_and_silence_once_a_quarter(instance: dg.DagsterInstance) -> None:
    specs = [spec for spec in engagement_specs() if spec.key == key_of(NOTIFICATION)]
    defs = dg.Definitions.merge(
        dg.Definitions(assets=specs), definitions(), dg.Definitions(resources={"platform": Platform()})
    )
    at, cursor = datetime(2026, 11, 21, 9, 30, 5, tzinfo=UTC), None
    # Seconds, whether notifications came just before, whether a run is asked for: 262 is in the minute of 250.
    looks = (
        (0, False, 0),
        (60, True, 1),
        (190, False, 0),
        (250, True, 1),
        (256, False, 0),
        (262, True, 0),
        (300, False, 1),
    )
    for seconds, come, expected in (*looks, (420, False, 0), (910, False, 1)):
        if come:
            instance.report_runless_asset_event(dg.AssetMaterialization(key_of(NOTIFICATION)))
        result = dg.evaluate_automation_conditions(
            defs, instance, asset_selection=dg.AssetSelection.assets(REPLICA), cursor=cursor,
            evaluation_time=at + timedelta(seconds=seconds),
        )  # fmt: skip
        cursor = result.cursor
        assert result.get_num_requested(REPLICA) == expected, f"after {seconds} s"
