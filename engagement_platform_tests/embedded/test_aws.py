"""The emulator with bucket, topic and queues; objects of simulated games are announced in its queue and ingested."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from engagement_platform.embedded.aws import BUCKET, EmbeddedAws, with_aws
from engagement_platform.embedded.game_traffic import GameTraffic, put_events
from engagement_platform.embedded.ports import free_ports
from engagement_platform.embedded.process import Supervisor
from engagement_platform.embedded.services import all_services, missing_services
from engagement_platform.engine.drain import drain
from engagement_platform.jobs import build_job, close_source, open_stores
from engagement_platform.pipelines.games.backlog import depth
from engagement_platform.pipelines.games.decoding import Event, event_decoder
from engagement_platform.pipelines.games.registry import registry
from engagement_platform.settings import Settings
from engagement_platform_tests.pipelines.games.conftest import AT_ONCE
from engagement_platform_tests.pipelines.games.events import LIMITS

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def no_settings_of_the_caller(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path / "home"))


def test_simulated_games_send_every_type_and_nearly_all_of_it_is_taken() -> None:
    traffic, decode = GameTraffic(7), event_decoder(registry(), LIMITS)
    lines = [traffic.line(NOW) for _ in range(4000)]
    found = [decode(line, NOW) for line in lines]
    events = [event for event in found if isinstance(event, Event)]
    assert {event.event_type for event in events} == registry().keys()
    assert 0 < len(found) - len(events) < 40
    ids = [event.event_id for event in events]
    assert 0 < len(ids) - len(set(ids)) < 120
    assert sum(event.event_ts < NOW for event in events) < 200


def test_the_same_seed_makes_the_same_lines() -> None:
    seed = random.Random(3).getrandbits(16)
    first, second = GameTraffic(seed), GameTraffic(seed)
    assert [first.line(NOW) for _ in range(50)] == [second.line(NOW) for _ in range(50)]


def test_the_variables_lead_clients_to_the_emulator() -> None:
    told = all_services(Settings()).variables
    assert told["AWS_ENDPOINT_URL"] == "http://127.0.0.1:15566"
    assert told["AWS_REGION"] == "eu-central-1"
    assert told["ENGAGEMENT_PLATFORM_GAMES__BUCKET"] == BUCKET
    assert told["ENGAGEMENT_PLATFORM_GAMES__QUEUE_URL"] == "http://127.0.0.1:15566/123456789012/game-events"
    assert {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= told.keys()


@pytest.mark.parametrize(
    ("name", "value"),
    [("GAMES__QUEUE_URL", "https://sqs.eu-central-1.amazonaws.com/1/mine"), ("LAKE_URI", "s3a://my-lake/tables")],
)
def test_a_queue_or_a_lake_of_ones_own_is_left_alone(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"ENGAGEMENT_PLATFORM_{name}", value)
    services = missing_services(Settings())
    assert not services.aws
    assert not any(variable.startswith("AWS_") for variable in services.variables)


def test_without_moto_there_is_no_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engagement_platform.embedded.services.is_installed", lambda: False)
    services = missing_services(Settings())
    assert not services.aws
    assert "aws_port" not in [need.name for need in services.needs]


def test_objects_of_simulated_games_are_announced_and_ingested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    (port,) = free_ports(1)
    own = f"http://127.0.0.1:{port}/123456789012/arcade-events"
    aws = EmbeddedAws(port, (("arcade-raw", own), ("theirs", "https://sqs.eu-central-1.amazonaws.com/1/mine")))
    for name, value in aws.variables.items():
        monkeypatch.setenv(name, value)
    settings = with_aws(Settings(home=tmp_path / "home"), aws)
    with Supervisor(tmp_path / "logs") as supervisor:
        supervisor.start(aws.child())
        supervisor.wait_ready(120)
        aws.furnish()
        # Those of declared tables, where they are here: each object is announced in its own queue.
        assert {each["Name"] for each in aws.client("s3").list_buckets()["Buckets"]} == {BUCKET, "arcade-raw"}
        aws.client("s3").put_object(Bucket="arcade-raw", Key="events/a", Body=b"{}")
        received = aws.client("sqs").receive_message(QueueUrl=own, MaxNumberOfMessages=10)["Messages"]
        assert any("events" in message["Body"] and "arcade-raw" in message["Body"] for message in received)
        assert put_events(settings, events=250, rate=0, object_events=100).objects == 3
        # And the one with which S3 tries the topic.
        assert depth(settings).visible == 4
        job = build_job("ingest-game-events", spark, settings, open_stores(settings))
        try:
            reports = list(drain(job, AT_ONCE))
        finally:
            close_source(job)
        assert depth(settings).backlog(None) == 0
    assert sum(report.counts["rows_in"] for report in reports) == 250
    heartbeats = DeltaTable(f"{settings.lake}/game/heartbeat").to_pyarrow_table()
    assert heartbeats.num_rows > 10
    assert all(at > datetime.now(UTC) - timedelta(days=3) for at in heartbeats.column("event_ts").to_pylist())
