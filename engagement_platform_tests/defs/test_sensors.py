"""When sensors launch runs: decisions as pure functions, then a real broker and a real Dagster instance."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import dagster as dg
import pytest

from engagement_platform.definitions import defs
from engagement_platform.defs.checks import DATA, FRESH, QUARANTINE_SHARE, REJECTED
from engagement_platform.defs.engagement import ENGAGEMENTS
from engagement_platform.defs.platform import Platform
from engagement_platform.defs.sensors import Recent, recent_runs, why_not
from engagement_platform.defs.verification import why_not_verified
from engagement_platform.local.ports import free_ports
from engagement_platform_tests.conftest import Broker

SHARE = dg.AssetCheckKey(REJECTED, QUARANTINE_SHARE)
IDLE = Recent()


def test_nothing_waits_nothing_runs() -> None:
    assert why_not(0, IDLE, 0) == "Nothing is waiting."


def test_backlog_launches_a_run() -> None:
    assert why_not(1, IDLE, 0) is None


def test_one_run_at_a_time() -> None:
    assert why_not(1234, Recent("STARTED"), 0) == "1,234 messages are waiting; a run is STARTED already."


def test_a_run_that_failed_once_is_tried_again_at_once_and_later_ones_ever_more_slowly() -> None:
    assert why_not(1, Recent(None, 1, ended=1000.0), 1000.0) is None
    assert why_not(1, Recent(None, 3, ended=1000.0), 1019.0) is not None
    assert why_not(1, Recent(None, 3, ended=1000.0), 1020.0) is None
    assert why_not(1, Recent(None, 10, ended=1000.0), 1299.0) is not None
    assert why_not(1, Recent(None, 10, ended=1000.0), 1300.0) is None


@pytest.mark.parametrize(
    ("last_batch", "first_batch", "materialized", "verified", "launched"),
    [
        (None, None, None, Recent(), False),
        (1950.0, 1821.0, 1821.0, Recent(), False),
        (1950.0, 1820.0, 1821.0, Recent(), True),
        (1950.0, None, 1821.0, Recent(), True),
        (1950.0, 1500.0, 1950.0, Recent("STARTED"), False),
        (990.0, None, 990.0, Recent(created=1000.0, started=1001.0, ended=1011.0), False),
        (1950.0, None, 990.0, Recent(created=1000.0, started=1001.0, ended=1101.0), False),
        (1950.0, None, 990.0, Recent(created=1000.0, started=1090.0, ended=1100.0), True),
        (990.0, None, 1950.0, Recent(created=1000.0, started=1090.0, ended=1101.0), False),
        (990.0, None, 1950.0, Recent(created=1000.0, started=1090.0, ended=1100.0), True),
        (1950.0, None, 1950.0, Recent(created=900.0, started=901.0, ended=1001.0), False),
        (1950.0, None, 1950.0, Recent(created=899.0, started=900.0, ended=999.0), True),
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
    ],
)
def test_tables_are_verified_after_new_batches_and_not_too_often(
    last_batch: float | None, first_batch: float | None, materialized: float | None, verified: Recent, launched: bool
) -> None:
    assert (why_not_verified(last_batch, first_batch, materialized, verified, now=2000.0) is None) is launched


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


def platform_of(monkeypatch: pytest.MonkeyPatch, home: Path, servers: str, topic: str) -> Platform:
    for name, value in {
        "HOME": str(home),
        "KAFKA__BOOTSTRAP_SERVERS": servers,
        "KAFKA__ENGAGEMENTS_TOPIC": topic,
        "KAFKA__MUTATION_REQUESTS_TOPIC": topic,
        "KAFKA__TIMEOUT": "PT2S",
    }.items():
        monkeypatch.setenv(f"ENGAGEMENT_PLATFORM_{name}", value)
    return Platform()


def tick(
    instance: dg.DagsterInstance, platform: Platform, name: str = "engagements_backlog"
) -> dg.RunRequest | dg.SkipReason:
    definitions = defs()
    context = dg.build_sensor_context(instance, resources={"platform": platform}, definitions=definitions)
    result = definitions.resolve_sensor_def(name)(context)
    assert isinstance(result, dg.RunRequest | dg.SkipReason)
    return result


@pytest.mark.broker
def test_a_sensor_launches_one_drain_run_of_today_when_messages_wait(
    instance: dg.DagsterInstance, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"engagements-{uuid4().hex[:8]}"
    broker.create_topic(topic, 2)
    platform = platform_of(monkeypatch, tmp_path, broker.bootstrap_servers, topic)
    idle = tick(instance, platform)
    assert isinstance(idle, dg.SkipReason)
    assert idle.skip_message == "Nothing is waiting."

    broker.produce(topic, [(0, None, b"{}"), (1, None, b"{}")])
    request = tick(instance, platform)
    assert isinstance(request, dg.RunRequest)
    assert request.partition_key == datetime.now(UTC).date().isoformat()
    assert request.run_key is None
    assert request.run_config["ops"] == {"ingest_engagement_tables": {"config": {"mode": "drain"}}}

    run = instance.create_run_for_job(
        defs().resolve_job_def(ENGAGEMENTS.dagster_job), status=dg.DagsterRunStatus.STARTED
    )
    busy = tick(instance, platform)
    assert isinstance(busy, dg.SkipReason)
    assert busy.skip_message == "2 messages are waiting; a run is STARTED already."
    instance.report_run_canceled(instance.get_run_by_id(run.run_id) or run)
    assert isinstance(tick(instance, platform), dg.RunRequest)


@pytest.mark.broker
def test_a_topic_that_lost_what_was_to_be_read_next_gets_a_run_that_says_so(
    instance: dg.DagsterInstance, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engagement_platform.engine.model import Manifest
    from engagement_platform.pipelines.jobs import open_stores

    topic = f"engagements-{uuid4().hex[:8]}"
    broker.create_topic(topic)
    platform = platform_of(monkeypatch, tmp_path, broker.bootstrap_servers, topic)
    checkpoints = open_stores(platform.settings()).checkpoints
    read = Manifest("ingest-engagements", "ingest-engagements@1", 0, {"0": 0}, {"0": 99}, datetime.now(UTC))
    checkpoints.begin(read)
    checkpoints.succeed(read, {})
    request = tick(instance, platform)
    assert isinstance(request, dg.RunRequest)
    assert request.tags["engagement_platform/backlog"] == "unknown"


def test_a_broker_that_is_down_is_a_skipped_tick_and_not_an_error(
    instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = f"127.0.0.1:{free_ports(1)[0]}"
    skipped = tick(instance, platform_of(monkeypatch, tmp_path, servers, "engagements"))
    assert isinstance(skipped, dg.SkipReason)
    assert servers in str(skipped.skip_message)


def test_freshness_that_nobody_can_tell_is_a_warning(
    instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = f"127.0.0.1:{free_ports(1)[0]}"
    platform = platform_of(monkeypatch, tmp_path, servers, "engagements")
    reported = tick(instance, platform, "watch")
    assert isinstance(reported, dg.SkipReason)
    fresh, share = (evaluated(instance, key) for key in (dg.AssetCheckKey(DATA, FRESH), SHARE))
    assert (fresh.passed, fresh.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert servers in str(fresh.description)
    assert share.passed


def evaluated(instance: dg.DagsterInstance, check: dg.AssetCheckKey) -> dg.AssetCheckEvaluation:
    [record] = instance.event_log_storage.get_asset_check_execution_history(check, limit=1)
    assert record.evaluation is not None
    return record.evaluation


def test_no_verification_before_the_first_batch(
    instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = platform_of(monkeypatch, tmp_path, "127.0.0.1:1", "engagements")
    skipped = tick(instance, platform, "verify_after_batches")
    assert isinstance(skipped, dg.SkipReason)
    assert skipped.skip_message == "No batch has finished yet."


def test_failed_runs_are_counted_back_from_the_newest(instance: dg.DagsterInstance) -> None:
    job = defs().resolve_job_def(ENGAGEMENTS.dagster_job)
    statuses = dg.DagsterRunStatus
    for status in (statuses.FAILURE, statuses.SUCCESS, statuses.FAILURE, statuses.FAILURE):
        instance.create_run_for_job(job, status=status)
    recent = recent_runs(instance, ENGAGEMENTS.dagster_job, ENGAGEMENTS.assets)
    assert (recent.under_way, recent.failures) == (None, 2)
