"""One run that drains for several pipelines: what lands, what the assets show of it, and what a failure changes."""

from __future__ import annotations

import dagster as dg
import pytest

from engagement_platform.defs.shared_drain import JOB
from engagement_platform.engine.job import BatchReport, MicroBatchJob
from engagement_platform.engine.model import JobState
from engagement_platform.pipelines.jobs import INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS, open_stores
from engagement_platform.settings import Settings
from engagement_platform_tests.defs.conftest import Home, skipped
from engagement_platform_tests.defs.test_mutation import REQUESTS, engagement

pytestmark = pytest.mark.broker


@pytest.fixture
def waiting(home: Home) -> Home:
    home.broker.produce(home.engagements, [(0, None, engagement(number)) for number in range(1, 6)])
    home.broker.produce(home.requests, [(0, None, message) for message in REQUESTS])
    return home


def batches(job: str) -> list[JobState]:
    return [record.state for record in open_stores(Settings()).checkpoints.history(job)]


def test_one_run_at_a_time_drains_every_pipeline_and_each_asset_shows_its_own_batches(waiting: Home) -> None:
    """The topic of profiles is not there yet, which fails nothing."""
    assert isinstance(waiting.tick("pipelines_backlog"), dg.RunRequest)
    assert waiting.run_op(JOB).success
    assert batches(INGEST_ENGAGEMENTS) == [JobState.SUCCEEDED] * 2
    assert batches(INGEST_MUTATION_REQUESTS) == [JobState.SUCCEEDED] * 3
    assert sum(int(str(event.metadata["landed"].value)) for event in waiting.events("engagement/data")) == 5
    assert waiting.events("engagement/mutation_request")
    assert waiting.passed("engagement/data", "conservation")
    assert waiting.told("engagement/data", "conservation")["rows_in"] == 5
    assert waiting.told("engagement/mutation_request", "conservation")["rows_in"] == len(REQUESTS)
    waiting.instance.add_run(dg.DagsterRun(job_name=JOB, status=dg.DagsterRunStatus.STARTED))
    assert skipped(waiting.tick("pipelines_backlog")) == "A run is STARTED already."


def test_a_pipeline_that_fails_is_a_failed_check_and_the_others_land(
    waiting: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = MicroBatchJob.run_batch

    def failing(job: MicroBatchJob[object], lease: object) -> BatchReport | None:
        if job.name == INGEST_ENGAGEMENTS:
            raise OSError("no space left on device")
        return whole(job, lease)  # type: ignore[arg-type]

    monkeypatch.setattr(MicroBatchJob, "run_batch", failing)
    with pytest.raises(Exception, match="ingest-engagements: no space left on device"):
        waiting.run_op(JOB)
    assert not waiting.passed("engagement/data", "conservation")
    assert batches(INGEST_MUTATION_REQUESTS) == [JobState.SUCCEEDED] * 3
    assert waiting.passed("engagement/mutation_request", "conservation")


@pytest.mark.parametrize("shared", ["true", "false"])
def test_either_the_shared_sensor_is_on_from_the_start_or_those_of_its_pipelines(
    shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engagement_platform.definitions import defs

    monkeypatch.setenv("ENGAGEMENT_PLATFORM_DAGSTER__AUTOMATION", "running")
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_DAGSTER__SHARED_DRAIN", shared)
    on = {
        sensor.name
        for sensor in defs().sensors or ()
        if isinstance(sensor, dg.SensorDefinition) and sensor.default_status is dg.DefaultSensorStatus.RUNNING
    }
    single = {"engagements_backlog", "mutation_requests_backlog", "mutations_backlog", "profile_changes_backlog"}
    assert ("pipelines_backlog" in on, single & on) == ((True, set()) if shared == "true" else (False, single))
    assert "game_events_backlog" in on
