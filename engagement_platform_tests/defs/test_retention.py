"""An instance on disk is filled, and what is beyond the retention is gone from it; the newest of everything is not."""

# No `from __future__ import annotations` beside Dagster's decorators.

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from engagement_platform.defs.code_server import REPOSITORY
from engagement_platform.defs.platform import Platform
from engagement_platform.defs.retention import _now, remove_before, remove_old_runs
from engagement_platform.engine.model import Manifest
from engagement_platform.pipelines.jobs import open_stores
from engagement_platform.settings import Settings

OLD, NEW, REPORTED = 40, 3, 300
TABLE, RARE = dg.AssetKey("table"), dg.AssetKey("rare")


@dg.asset
def table(context: dg.AssetExecutionContext) -> None:
    """Materialized by each run, with lines in its log."""
    for line in range(50):
        context.log.info(f"line {line}")


@dg.asset
def rare() -> None:
    """Materialized once."""


def report(instance: dg.DagsterInstance, count: int) -> None:
    """What sensors report without a run."""
    for nth in range(count):
        evaluation = dg.AssetCheckEvaluation(asset_key=TABLE, check_name="fresh", passed=bool(nth % 2), metadata={})
        instance.report_runless_asset_event(evaluation)
        instance.report_runless_asset_event(dg.AssetObservation(RARE, metadata={"nth": nth}))


def size(folder: Path) -> int:
    """Bytes of the files below a folder, but of the shared database: SQLite gives room back to itself only."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and "index.db" not in file.name)


def test_runs_and_events_beyond_the_retention_are_gone_and_the_newest_of_each_asset_and_check_stays(
    tmp_path: Path,
) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        first = dg.materialize([rare], instance=instance).run_id
        old = [dg.materialize([table], instance=instance).run_id for _ in range(OLD)]
        report(instance, REPORTED)
        filled = size(tmp_path)
        time.sleep(1.1)
        before = datetime.now(UTC)
        new = [dg.materialize([table], instance=instance).run_id for _ in range(NEW)]
        report(instance, 1)

        removed = remove_before(instance, before, None, instance.all_asset_keys())

        assert removed["runs"] == OLD
        assert set(instance.get_run_ids()) == {first, *new}
        assert not [file for file in tmp_path.rglob("*") if any(run_id in file.name for run_id in old)]
        assert size(tmp_path) < filled / 4
        assert instance.get_latest_materialization_event(RARE) is not None
        assert len(instance.fetch_materializations(TABLE, limit=100).records) == NEW
        [observed] = instance.fetch_observations(RARE, limit=1000).records
        assert observed.asset_observation is not None
        check = dg.AssetCheckKey(TABLE, "fresh")
        assert len(instance.event_log_storage.get_asset_check_execution_history(check, limit=1000)) == 1
        assert removed["check_results"] == REPORTED
        again = remove_before(instance, before, None, instance.all_asset_keys())
        assert again == {"runs": 0, "events": 0, "check_results": 0}


def test_a_check_that_was_not_evaluated_for_long_keeps_its_newest_result(tmp_path: Path) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        report(instance, 2)
        remove_before(instance, datetime.now(UTC) + timedelta(hours=1), None, [TABLE, RARE])
        check = dg.AssetCheckKey(TABLE, "fresh")
        [kept] = instance.event_log_storage.get_asset_check_execution_history(check, limit=10)
        assert kept.evaluation is not None
        assert kept.evaluation.passed
        assert len(instance.fetch_observations(RARE, limit=10).records) == 1


def test_runs_and_events_of_other_code_locations_of_the_instance_stay(tmp_path: Path) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        ours, theirs = ({REPOSITORY: f"__repository__@{name}"} for name in ("engagement_platform", "finance"))
        own, other, by_hand = (dg.materialize([table], instance=instance, tags=t).run_id for t in (ours, theirs, {}))
        dg.materialize([table], instance=instance)
        report(instance, 4)
        later = datetime.now(UTC) + timedelta(hours=1)
        removed = remove_before(instance, later, ours[REPOSITORY], [RARE])
        assert removed["runs"] == 1
        assert not instance.has_run(own)
        assert instance.has_run(other)
        assert instance.has_run(by_hand)
        check = dg.AssetCheckKey(TABLE, "fresh")
        assert len(instance.event_log_storage.get_asset_check_execution_history(check, limit=10)) == 4
        assert len(instance.fetch_observations(RARE, limit=10).records) == 1
        assert remove_before(instance, later, ours[REPOSITORY], [TABLE])["check_results"] == 3


def test_a_clock_that_is_ahead_costs_no_run_that_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        assert _now(instance, datetime(2026, 1, 1, tzinfo=UTC)) == datetime(2026, 1, 1, tzinfo=UTC)
        dg.materialize([table], instance=instance)
        assert abs(_now(instance, datetime.now(UTC) + timedelta(days=400)) - datetime.now(UTC)) < timedelta(minutes=5)


def test_the_job_keeps_what_the_setting_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        run = dg.materialize([table], instance=instance).run_id
        dg.materialize([table], instance=instance)
        time.sleep(1.1)
        for retention, kept in (("P1D", True), ("PT0S", False)):
            monkeypatch.setenv("ENGAGEMENT_PLATFORM_DAGSTER__RETENTION", retention)
            assert remove_old_runs.execute_in_process(instance=instance, resources={"platform": Platform()}).success
            assert instance.has_run(run) is kept


@pytest.mark.parametrize(("keep", "window", "left"), [("P2D", "P1D", 3), ("P1D", "P2D", 3), ("P1D", "PT1H", 2)])
def test_batches_stay_recorded_for_as_long_as_a_restore_may_need_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, keep: str, window: str, left: int
) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_STORES__KEEP_BATCHES", keep)
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_MAINTENANCE__ROLLBACK_WINDOW", window)
    checkpoints = open_stores(Settings()).checkpoints
    for nth, ago in enumerate((36, 36, 0)):
        ended = datetime.now(UTC) - timedelta(hours=ago)
        batch = Manifest("ingest", "ingest@1.a", nth, {"0": nth}, {"0": nth + 1}, ended)
        checkpoints.begin(batch)
        checkpoints.succeed(batch, {"rows_in": 1}, {}, ended)
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        assert remove_old_runs.execute_in_process(instance=instance, resources={"platform": Platform()}).success
    assert len(checkpoints.history("ingest")) == left
