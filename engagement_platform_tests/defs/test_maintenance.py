"""Maintenance as Dagster runs it: jobs, one organization as a partition, schedules, and what they say."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from engagement_platform.definitions import defs
from engagement_platform.defs.maintenance import ORGANIZATIONS, key_of_organization
from engagement_platform_tests.defs.conftest import loaded, skipped, tick
from engagement_platform_tests.docs.pages import ROOT
from engagement_platform_tests.maintenance.layout.seeded import SeededLake, leased

HISTORY = dg.AssetKey(["layout", "history"])


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> SeededLake:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path))
    made = SeededLake(tmp_path)
    made.engagements("org-1", 12)
    made.engagements("org...2", 20)
    return made


def run(job: str, instance: dg.DagsterInstance, **more: Any) -> dg.ExecuteInProcessResult:
    return loaded().resolve_job_def(job).execute_in_process(instance=instance, **more)


def shown(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """Metadata of the only output of a run."""
    [output] = [e.step_output_data for e in result.all_events if e.event_type is dg.DagsterEventType.STEP_OUTPUT]
    return {name: value.value for name, value in output.metadata.items()}


@given(st.text(alphabet=st.sampled_from(".%2Eaö "), min_size=1, max_size=12))
def test_any_organization_is_a_partition_key_that_leads_back_to_it(organization: str) -> None:
    key = key_of_organization(organization)
    assert "..." not in key
    assert unquote(key) == organization


def test_the_nightly_runs_mend_what_gains_and_say_so(lake: SeededLake, instance: dg.DagsterInstance) -> None:
    before = lake.rows()
    told = shown(run("optimize_tables", instance))
    assert (told["slices"], told["files_before"], told["files_after"], told["slices_left"]) == (2, 32, 2, 0)
    assert (lake.files(), lake.rows()) == (2, before)
    [record] = instance.fetch_observations(dg.AssetKey(["engagement", "data"]), limit=10).records
    observed = record.asset_observation
    assert observed is not None
    assert observed.metadata["files_after"].value == 2
    assert shown(run("second_round", instance))["slices"] == 0
    ran = run("vacuum_tables", instance)
    vacuumed = shown(ran)
    assert (vacuumed["tables"], vacuumed["files"]) == (2, 0), "nothing is old enough"
    said = {entry.user_message for entry in instance.all_logs(ran.run_id)}
    assert "engagement/data: 0 files of 0 bytes removed; kept 168 h (the table's own retention)" in said


def test_tables_with_too_many_small_files_are_merged_before_the_night_and_no_others(
    lake: SeededLake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert skipped(tick(instance, "many_small_files")) == "Merging would save 100 files in no table."
    lake.engagements("org...2", 10)
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_MAINTENANCE__FILES_BY_DAY", "20")
    assert isinstance(tick(instance, "many_small_files"), dg.RunRequest)
    run("merge_small_files", instance)
    assert (lake.files("org-1"), lake.files("org...2")) == (12, 1)
    assert "The next look is in" in skipped(tick(instance, "many_small_files"))


def test_a_table_that_somebody_writes_fails_no_run(
    lake: SeededLake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_MAINTENANCE__BUDGET", "PT0.5S")
    with leased(lake.stores, "engagement/data", "apply-mutations"):
        told = shown(run("optimize_tables", instance))
    assert (told["slices"], told["slices_left"], lake.files()) == (0, 2, 32)
    assert "apply-mutations" in told["left"].records[0].data["why"]


def test_organizations_are_optimized_by_their_partitions_one_or_several_in_a_run(
    lake: SeededLake, instance: dg.DagsterInstance
) -> None:
    instance.add_dynamic_partitions("organization", ["org%2E..2", "org-1"])
    run("optimize_organizations", instance, partition_key=key_of_organization("org...2"))
    assert (lake.files("org-1"), lake.files("org...2")) == (12, 1)
    [record] = instance.fetch_materializations(HISTORY, limit=10).records
    made = record.asset_materialization
    assert made is not None
    assert (made.partition, made.metadata["files_after"].value) == ("org%2E..2", 1)
    next(Path(lake.uri()).rglob("organization_id=org-1/*.parquet")).unlink()
    tags = {"dagster/asset_partition_range_start": "org%2E..2", "dagster/asset_partition_range_end": "org-1"}
    result = run("optimize_organizations", instance, tags=tags, raise_on_error=False)
    assert not result.success
    [failure] = [e.step_failure_data for e in result.all_events if e.event_type is dg.DagsterEventType.STEP_FAILURE]
    assert failure.user_failure_data is not None
    assert "1 slices failed, the first is engagement/data organization_id=org-1" in str(failure.user_failure_data)


def test_organizations_that_have_landed_become_partitions(lake: SeededLake, instance: dg.DagsterInstance) -> None:
    [request] = tick(instance, "organizations_found").dynamic_partitions_requests
    assert sorted(request.partition_keys) == ["org%2E..2", "org-1"]
    instance.add_dynamic_partitions(str(ORGANIZATIONS.name), request.partition_keys)
    assert skipped(tick(instance, "organizations_found")) == "No organization is new."


def test_daily_and_weekly_schedules_launch_their_jobs_and_run_where_the_settings_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crons = {"optimize_tables": "0 1 * * *", "second_round": "0 2 * * 0", "vacuum_tables": "30 3 * * *"}
    for automation in ("stopped", "running"):
        monkeypatch.setenv("ENGAGEMENT_PLATFORM_DAGSTER__AUTOMATION", automation)
        repository = defs().get_repository_def()
        schedules = {schedule.name: schedule for schedule in repository.schedule_defs}
        assert {job: schedules[f"{job}_schedule"].cron_schedule for job in crons} == crons
        statuses = {schedule.default_status.value for schedule in schedules.values()}
        statuses |= {sensor.default_status.value for sensor in repository.sensor_defs}
        assert automation.upper() in statuses
        assert statuses <= {automation.upper(), "STOPPED"}, "live_ops.automatic is a setting of its own"


@pytest.mark.parametrize(("asked_for", "status"), [(False, "STOPPED"), (True, "RUNNING")])
def test_vacuum_runs_every_night_only_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, asked_for: bool, status: str
) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_DAGSTER__AUTOMATION", "running")
    if asked_for:
        monkeypatch.setenv("ENGAGEMENT_PLATFORM_MAINTENANCE__NIGHTLY_VACUUM", "true")
    schedules = {schedule.name: schedule.default_status.value for schedule in defs().get_repository_def().schedule_defs}
    assert schedules["vacuum_tables_schedule"] == status
    assert schedules["optimize_tables_schedule"] == "RUNNING"


@pytest.mark.parametrize(
    ("job", "again"),
    [("optimize_tables", True), ("vacuum_tables", True), ("remove_old_runs", True), ("verify_engagements", False)],
)
def test_a_run_of_maintenance_that_died_is_launched_once_more_and_no_other_is(
    tmp_path: Path, job: str, again: bool
) -> None:
    shutil.copy(ROOT / "dagster.yaml", tmp_path)
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        launched = loaded().resolve_job_def(job)
        run = instance.create_run_for_job(launched, tags=launched.tags)
        instance.report_run_failed(run)
        ended = instance.get_run_by_id(run.run_id)
        assert ended is not None
        assert ended.tags.get("dagster/will_retry") == str(again).lower()
