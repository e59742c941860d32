"""The emulator with bucket, topic and queues; objects of simulated games are announced in its queue and ingested."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from engagement_platform.local.aws import BUCKET, EmbeddedAws
from engagement_platform.local.games import GameTraffic
from engagement_platform.local.ports import free_ports
from engagement_platform.local.process import Supervisor
from engagement_platform.local.services import all_services, missing_services
from engagement_platform.pipelines.games.decoding import Event, event_decoder
from engagement_platform.pipelines.games.registry import registry
from engagement_platform.settings import Settings
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
    first, second = GameTraffic(3), GameTraffic(3)
    assert [first.line(NOW) for _ in range(50)] == [second.line(NOW) for _ in range(50)]


def test_the_variables_lead_clients_to_the_emulator() -> None:
    told = all_services(Settings()).variables
    assert told.keys() >= {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    expected = {
        **dict.fromkeys(
            ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_SQS", "AWS_ENDPOINT_URL_SNS"),
            "http://127.0.0.1:15566",
        ),
        "AWS_REGION": "eu-central-1",
        "ENGAGEMENT_PLATFORM_GAMES__BUCKET": BUCKET,
        "ENGAGEMENT_PLATFORM_GAMES__QUEUE_URL": "http://127.0.0.1:15566/123456789012/game-events",
    }
    assert expected.items() <= told.items()


@pytest.mark.parametrize(
    ("name", "value"),
    [("GAMES__QUEUE_URL", "https://sqs.eu-central-1.amazonaws.com/1/mine"), ("LAKE_URI", "s3a://my-lake/tables")],
)
def test_a_queue_or_a_lake_of_ones_own_is_left_alone(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"ENGAGEMENT_PLATFORM_{name}", value)
    services = missing_services(Settings())
    assert not services.aws
    assert not any(variable.startswith("AWS_") for variable in services.variables)


@pytest.mark.parametrize("package", ["moto", "fastapi"])
def test_without_moto_or_an_ingest_server_there_is_no_emulator(without: Callable[[str], None], package: str) -> None:
    without(package)
    services = missing_services(Settings())
    assert not services.aws
    assert "aws_port" not in services.needs


def queue(port: int, name: str) -> str:
    return f"http://127.0.0.1:{port}/123456789012/{name}"


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedAws]:
    """With buckets and queues of declared tables; one of them is not here."""
    (port,) = free_ports(1)
    declared = [(bucket, queue(port, name)) for bucket, name in (("raw", "one"), (BUCKET, "two"), ("raw", "three"))]
    aws = EmbeddedAws(port, [*declared, ("theirs", "https://sqs.eu-central-1.amazonaws.com/1/mine")])
    with Supervisor(tmp_path_factory.mktemp("logs")) as supervisor:
        supervisor.start(aws.child())
        supervisor.wait_ready(120)
        yield aws


def test_objects_are_announced_in_the_queue_of_their_bucket(emulator: EmbeddedAws) -> None:
    s3, sqs = emulator.client("s3"), emulator.client("sqs")
    emulator.furnish()
    assert {each["Name"] for each in s3.list_buckets()["Buckets"]} == {BUCKET, "raw"}
    assert {queue(emulator.port, "two"), queue(emulator.port, "three")} <= set(sqs.list_queues()["QueueUrls"])
    for bucket, url in ((BUCKET, emulator.queue_url), ("raw", queue(emulator.port, "one"))):
        s3.put_object(Bucket=bucket, Key="events/a", Body=b"{}")
        received = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
        # The other one is that with which S3 tries the topic.
        [announced] = [m["Body"] for m in received if '"events/a"' in m["Body"].replace("%2F", "/")]
        assert bucket in announced


def asked(aws: EmbeddedAws, method: str, path: str, headers: dict[str, str]) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", aws.port, timeout=30)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, {name.lower(): value for name, value in answer.headers.items()}


def test_the_emulator_lets_no_page_of_another_site_read_what_it_answers(emulator: EmbeddedAws) -> None:
    for path in (f"/{BUCKET}", "/moto-api/data.json"):
        for headers, expected in (({}, 200), ({"Origin": "http://evil.example"}, 403)):
            status, _, answered = asked(emulator, "GET", path, headers)
            assert (status, "access-control-allow-origin" in answered) == (expected, False)


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("POST", "/moto-api/reset", {"Origin": "http://evil.example"}),
        ("POST", "/moto-api/reset", {"Origin": "null"}),
        ("POST", "/moto-api/reset", {"Host": "rebound.example:15566"}),
        ("POST", "/moto-api/reset", {"Host": ""}),
        ("POST", "/moto-api/recorder/start-recording", {"Sec-Fetch-Site": "cross-site"}),
        ("GET", "/moto-api/recorder/start-recording", {"Sec-Fetch-Site": "cross-site"}),
        ("GET", "/moto-api/data.json", {"Host": "rebound.example"}),
        ("GET", "/moto-api/data.json", {"Host": "localhost.rebound.example"}),
        ("GET", "/moto-api/data.json", {"Host": "127.0.0.1.rebound.example"}),
        ("DELETE", f"/{BUCKET}/kept", {"Origin": "http://127.0.0.1:8000"}),
        ("GET", f"/{BUCKET}/kept", {"Host": "rebound.example"}),
    ],
)
def test_what_a_page_can_send_to_the_emulator_is_refused_with_one_sentence_and_changes_nothing(
    emulator: EmbeddedAws, method: str, path: str, headers: dict[str, str]
) -> None:
    s3 = emulator.client("s3")
    s3.put_object(Bucket=BUCKET, Key="kept", Body=b"{}")
    status, text, _ = asked(emulator, method, path, headers)
    assert (status, text.startswith("This server answers "), len(text.splitlines())) == (403, True, 1)
    assert s3.get_object(Bucket=BUCKET, Key="kept")["Body"].read() == b"{}"


def test_clients_that_put_the_bucket_into_the_host_are_answered(emulator: EmbeddedAws) -> None:
    for host, path in ((f"localhost:{emulator.port}", f"/{BUCKET}"), (f"{BUCKET}.localhost:{emulator.port}", "/")):
        status, text, _ = asked(emulator, "GET", path, {"Host": host})
        assert (status, f"<Name>{BUCKET}</Name>" in text) == (200, True)
