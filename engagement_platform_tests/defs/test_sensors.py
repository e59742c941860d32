"""When sensors launch runs: decisions as pure functions, then a real broker and a real Dagster instance."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import dagster as dg
import pytest

from engagement_platform.defs.checks import FRESH, QUARANTINE_SHARE
from engagement_platform.defs.engagement import ENGAGEMENTS
from engagement_platform.defs.sensors import Recent, recent_runs, too_soon, why_not
from engagement_platform.defs.verification import why_not_verified
from engagement_platform.engine.model import Manifest
from engagement_platform.lake.erased import ERASE_SUBJECTS
from engagement_platform.local.ports import free_ports
from engagement_platform.maintenance.rollback.plan import RESTORE_TABLES
from engagement_platform.pipelines.jobs import open_stores
from engagement_platform.settings import Settings
from engagement_platform_tests.conftest import Broker
from engagement_platform_tests.defs.conftest import evaluated, loaded, skipped, tick


@pytest.mark.parametrize(
    ("waits", "recent", "now", "says"),
    [
        (0, Recent(), 0.0, "Nothing is waiting."),
        (1, Recent(), 0.0, None),
        (1234, Recent("STARTED"), 0.0, "1,234 messages are waiting; a run is STARTED already."),
        (1, Recent(None, 1, ended=1000.0), 1000.0, None),
        (7, Recent(None, 3, ended=1000.0), 1019.0, "7 messages are waiting; the last 3 runs failed, next try in 1 s."),
        (7, Recent(None, 3, ended=1000.0), 1020.0, None),
        (7, Recent(None, 9, ended=1000.0), 1299.0, "7 messages are waiting; the last 9 runs failed, next try in 1 s."),
        (7, Recent(None, 9, ended=1000.0), 1300.0, None),
    ],
)
def test_what_waits_launches_one_run_at_a_time_and_after_failures_ever_more_slowly(
    waits: int, recent: Recent, now: float, says: str | None
) -> None:
    assert why_not(waits, recent, now) == says


@pytest.mark.parametrize(
    ("recent", "now", "says"),
    [
        (Recent(), 0.0, None),
        (Recent("STARTED"), 0.0, "A run is STARTED already."),
        (Recent(ended=1000.0), 1599.0, "The next look is in 1 s."),
        (Recent(ended=1000.0), 1600.0, None),
    ],
)
def test_exactly_the_pause_is_enough(recent: Recent, now: float, says: str | None) -> None:
    assert too_soon(recent, now, 600) == says


@pytest.mark.parametrize(
    ("last_batch", "first_batch", "materialized", "verified", "launched"),
    [
        (None, None, None, Recent(), False),
        (1950.0, 1821.0, 1821.0, Recent(), False),
        (1950.0, 1820.0, 1821.0, Recent(), True),
        (1950.0, None, 1821.0, Recent(), True),
        (1950.0, 1500.0, 1950.0, Recent("STARTED"), False),
        (990.0, None, 990.0, Recent(created=1000.0, started=1001.0, ended=1011.0, succeeded=1000.0), False),
        (1950.0, None, 990.0, Recent(created=1000.0, started=1001.0, ended=1101.0, succeeded=1000.0), False),
        (1950.0, None, 990.0, Recent(created=1000.0, started=1090.0, ended=1100.0, succeeded=1000.0), True),
        (990.0, None, 1950.0, Recent(created=1000.0, started=1090.0, ended=1101.0, succeeded=1000.0), False),
        (990.0, None, 1950.0, Recent(created=1000.0, started=1090.0, ended=1100.0, succeeded=1000.0), True),
        (1950.0, None, 1950.0, Recent(created=900.0, started=901.0, ended=1001.0, succeeded=900.0), False),
        (1950.0, None, 1950.0, Recent(created=899.0, started=900.0, ended=999.0, succeeded=899.0), True),
        # One that failed, or was canceled, has verified nothing.
        (990.0, None, 990.0, Recent(failures=1, created=1000.0, started=1001.0, ended=1011.0), True),
        (990.0, None, 990.0, Recent(created=1000.0, started=1001.0, ended=1011.0, succeeded=980.0), True),
        (990.0, None, 990.0, Recent(created=1950.0, started=1951.0, ended=1952.0, succeeded=980.0), False),
    ],
    ids=[
        *("no batch", "the first minutes", "three minutes old", "older than the records", "under way", "nothing new"),
        *(
            "too soon",
            "due",
            "materialized too soon",
            "materialized",
            "a longer one rests longer",
            "by ten times what it took",
        ),
        *("failed", "canceled", "failed just now"),
    ],
)
def test_tables_are_verified_after_new_batches_and_not_too_often(
    last_batch: float | None, first_batch: float | None, materialized: float | None, verified: Recent, launched: bool
) -> None:
    assert (why_not_verified(last_batch, first_batch, materialized, verified, now=2000.0) is None) is launched


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Those of this process: a home and a topic of their own, and a broker that is away."""
    for name, value in {
        "HOME": str(tmp_path),
        "KAFKA__BOOTSTRAP_SERVERS": f"127.0.0.1:{free_ports(1)[0]}",
        "KAFKA__ENGAGEMENTS_TOPIC": f"engagements-{uuid4().hex[:8]}",
        "KAFKA__TIMEOUT": "PT2S",
    }.items():
        monkeypatch.setenv(f"ENGAGEMENT_PLATFORM_{name}", value)
    return Settings()


@pytest.mark.broker
def test_a_sensor_launches_one_drain_run_of_today_when_messages_wait_or_can_no_longer_be_read(
    instance: dg.DagsterInstance, settings: Settings, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose next messages are lost says so, and failed runs are alerts."""
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_KAFKA__BOOTSTRAP_SERVERS", broker.bootstrap_servers)
    topic, sensor = settings.kafka.engagements_topic, "engagements_backlog"
    broker.create_topic(topic, 2)
    assert skipped(tick(instance, sensor)) == "Nothing is waiting."

    broker.produce(topic, [(0, None, b"{}"), (1, None, b"{}")])
    request = tick(instance, sensor)
    assert isinstance(request, dg.RunRequest)
    assert request.partition_key == datetime.now(UTC).date().isoformat()
    assert request.run_key is None
    assert request.run_config["ops"] == {"ingest_engagement_tables": {"config": {"mode": "drain"}}}

    run = instance.create_run_for_job(
        loaded().resolve_job_def(ENGAGEMENTS.dagster_job), status=dg.DagsterRunStatus.STARTED
    )
    assert skipped(tick(instance, sensor)) == "2 messages are waiting; a run is STARTED already."
    instance.report_run_canceled(instance.get_run_by_id(run.run_id) or run)
    assert isinstance(tick(instance, sensor), dg.RunRequest)

    checkpoints = open_stores(settings).checkpoints
    read = Manifest("ingest-engagements", "ingest-engagements@1", 0, {"0": 0}, {"0": 99}, datetime.now(UTC))
    checkpoints.begin(read)
    checkpoints.succeed(read, {})
    assert tick(instance, sensor).tags["engagement_platform/backlog"] == "unknown"


def test_a_broker_that_is_down_is_a_skipped_tick_and_a_warning_that_nobody_can_tell(
    instance: dg.DagsterInstance, settings: Settings
) -> None:
    servers = str(settings.kafka.bootstrap_servers)
    assert servers in skipped(tick(instance, "engagements_backlog"))
    skipped(tick(instance, "watch"))
    fresh = evaluated(instance, "engagement/data", FRESH)
    assert (fresh.passed, fresh.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert servers in str(fresh.description)
    assert evaluated(instance, "engagement/quarantine", QUARANTINE_SHARE).passed


@pytest.mark.parametrize("sensor", ["erasure_unfinished", "restore_unfinished"])
def test_what_a_command_is_still_at_is_no_unfinished_batch(
    sensor: str, instance: dg.DagsterInstance, settings: Settings
) -> None:
    stores = open_stores(settings)
    job = {"erasure_unfinished": ERASE_SUBJECTS, "restore_unfinished": RESTORE_TABLES}[sensor]
    assert skipped(tick(instance, sensor)) == "Nothing is unfinished."
    stores.checkpoints.begin(Manifest(job, f"{job}@1", 0, {}, {}, datetime.now(UTC)))
    with stores.leases.acquire(f"job/{job}", purpose="drain", wait=timedelta(0)):
        assert skipped(tick(instance, sensor)).startswith("It is under way: ")
    assert isinstance(tick(instance, sensor), dg.RunRequest)


@pytest.mark.usefixtures("settings")
def test_no_verification_before_the_first_batch(instance: dg.DagsterInstance) -> None:
    assert skipped(tick(instance, "verify_after_batches")) == "No batch has finished yet."


def test_failed_runs_are_counted_back_from_the_newest(instance: dg.DagsterInstance) -> None:
    job = loaded().resolve_job_def(ENGAGEMENTS.dagster_job)
    statuses = dg.DagsterRunStatus
    for status in (statuses.FAILURE, statuses.SUCCESS, statuses.FAILURE, statuses.FAILURE):
        instance.create_run_for_job(job, status=status)
    recent = recent_runs(instance, ENGAGEMENTS.dagster_job, ENGAGEMENTS.assets)
    assert (recent.under_way, recent.failures) == (None, 2)
