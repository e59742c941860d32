"""What runs here and what is somebody else's; then the command itself, with a real broker and a real Spark server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from engagement_platform.cli import local as commands
from engagement_platform.local.games import GAMES
from engagement_platform.local.home import locked_home
from engagement_platform.local.ports import answers, free_ports
from engagement_platform.local.services import all_services, missing_services, topics
from engagement_platform.local.up import _welcome, for_a_shell
from engagement_platform.pipelines.declarations.declared import Declarations
from engagement_platform.pipelines.games.backlog import depth
from engagement_platform.settings import Settings
from engagement_platform.settings.pipelines import PipelinesSettings
from engagement_platform.sources.kafka import KafkaSource
from engagement_platform.sources.kafka_errors import BrokerUnknown
from engagement_platform_tests.files_with import open_to_others
from engagement_platform_tests.local.test_process import exists, wait_for
from engagement_platform_tests.test_canary_secrets import CANARY, places_of


@pytest.fixture(autouse=True)
def no_settings_of_the_caller(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("ENGAGEMENT_PLATFORM_") and "JAR_CACHE" not in name]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


BROKER, SPARK = "KAFKA__BOOTSTRAP_SERVERS", "SPARK__REMOTE"


@pytest.mark.parametrize(
    ("name", "value", "here", "told"),
    [
        ("EMBEDDED__UI_PORT", "3000", (True, True), {BROKER: "127.0.0.1:19092", SPARK: "sc://127.0.0.1:15002"}),
        ("EMBEDDED__KAFKA_PORT", "29999", (True, True), {BROKER: "127.0.0.1:29999"}),
        (BROKER, "kafka.example.org:9092", (False, True), {BROKER: "kafka.example.org:9092"}),
        (SPARK, "sc://spark.example.org:15002", (True, False), {SPARK: "sc://spark.example.org:15002"}),
    ],
)
def test_what_is_named_is_used_and_everything_else_runs_here(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, here: tuple[bool, bool], told: Mapping[str, str]
) -> None:
    monkeypatch.setenv(f"ENGAGEMENT_PLATFORM_{name}", value)
    services = missing_services(Settings())
    assert (services.kafka, services.connect) == here
    assert {f"ENGAGEMENT_PLATFORM_{name}": value for name, value in told.items()}.items() <= services.variables.items()
    assert ("kafka_port" in services.needs, "connect_port" in services.needs) == here
    assert all_services(Settings()).kafka


def test_a_token_for_a_spark_elsewhere_is_handed_to_children_and_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = "sc://spark.example.org:443/;token=hunter2"
    monkeypatch.setenv(f"ENGAGEMENT_PLATFORM_{SPARK}", remote)
    services, console = missing_services(Settings()), Console(file=StringIO(), width=200)
    _welcome(console, services, rate=0)
    assert isinstance(console.file, StringIO)
    shown = console.file.getvalue()
    assert services.variables[f"ENGAGEMENT_PLATFORM_{SPARK}"] == remote
    assert ("sc://spark.example.org:443 (yours" in shown, "hunter2" in shown) == (True, False)
    # What `services` prints and writes into a file is of its own Spark.
    assert "hunter2" not in str(all_services(Settings()).variables)


@pytest.mark.usefixtures("kafka_jars", "spark_jars")
def test_sparks_workers_know_where_the_objects_of_games_are(tmp_path: Path) -> None:
    services = all_services(Settings(home=tmp_path))
    [spark] = [child for child in services.children() if child.name == "spark-connect"]
    assert services.aws_variables
    assert services.aws_variables.items() <= spark.env.items()


@pytest.mark.usefixtures("kafka_jars", "spark_jars")
def test_the_embedded_broker_is_known_from_the_home_it_runs_on_and_only_while_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever listens on the port that it usually has."""
    assert Settings().kafka.bootstrap_servers is None
    with pytest.raises(BrokerUnknown, match=r"none runs on this home.*engagement-platform services.*BOOTSTRAP_SERVERS"):
        KafkaSource("any", Settings().kafka).backlog(None)
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_EMBEDDED__KAFKA_PORT", "29999")
    with locked_home(Settings().home):
        missing_services(Settings()).children()
        assert Settings().kafka.bootstrap_servers == "127.0.0.1:29999"
        services = missing_services(Settings())
        assert (services.kafka, services.connect) == (True, True)
        monkeypatch.setenv("ENGAGEMENT_PLATFORM_KAFKA__BOOTSTRAP_SERVERS", "kafka.example.org:9092")
        assert Settings().kafka.bootstrap_servers == "kafka.example.org:9092"
        missing_services(Settings()).children()
        monkeypatch.delenv("ENGAGEMENT_PLATFORM_KAFKA__BOOTSTRAP_SERVERS")
        assert Settings().kafka.bootstrap_servers is None, "these services run no broker"
        missing_services(Settings()).children()
    assert Settings().kafka.bootstrap_servers is None


def test_what_an_env_file_told_means_the_same_services(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in all_services(Settings()).variables.items():
        monkeypatch.setenv(key, value)
    services = missing_services(Settings())
    assert (services.kafka, services.connect) == (True, True)
    assert list(services.needs) == ["kafka_port", "kafka_controller_port", "connect_port", "aws_port", "ingest_port"]


def test_the_variables_hold_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_KAFKA__SECURITY", '{"sasl.password": "hunter2"}')
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_STORES__URL", "postgresql+psycopg2://me:hunter2@localhost/db")
    assert "hunter2" not in repr(all_services(Settings()).variables)


def test_the_broker_has_the_topics_of_the_pipelines_that_are_on_and_of_declared_ones() -> None:
    expected = {
        "engagements": {"engagements", "mutation-requests"},
        "profiles": {"profile-changes"},
        "games": set[str](),
        "page_views": {"page-views"},
    }
    for on, names in expected.items():
        settings = Settings(pipelines=PipelinesSettings(**{name: name == on for name in expected}))
        assert set(topics(settings, Declarations())) == names
        assert set(topics(settings, Declarations(page_views=True))) == names | {"page-views"}


@pytest.mark.parametrize(
    ("asked", "file", "rate"),
    [(None, None, 7.0), (None, "a.env", 0.0), (3.0, None, 3.0), (3.0, "a.env", 3.0), (0.0, None, 0.0)],
)
def test_simulated_games_are_for_people_and_leave_programs_alone_that_take_the_settings(
    monkeypatch: pytest.MonkeyPatch, asked: float | None, file: str | None, rate: float
) -> None:
    rates: list[float] = []
    monkeypatch.setattr("engagement_platform.cli.local.stop_signals", threading.Event)
    monkeypatch.setattr("engagement_platform.local.up.run_services", lambda *_, game_rate: rates.append(game_rate))
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_TRAFFIC__GAME_RATE", "7")
    commands.services(None if file is None else Path(file), asked)
    assert rates == [rate]


def services_command(env: Mapping[str, str], env_file: Path, *options: str) -> subprocess.Popen[str]:
    env_file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "engagement_platform.cli", "services", "--env-file", str(env_file), *options]
    process = subprocess.Popen(
        command, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, umask=0
    )
    wait_for(lambda: env_file.exists() or process.poll() is not None, "services were not ready", timeout_s=180)
    if process.poll() is not None:
        assert process.stdout is not None
        pytest.fail(f"services ended with {process.returncode}: {process.stdout.read()}")
    return process


def descendants(parent: int) -> list[int]:
    """Processes below this one, children of children included."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found, look = [], [parent]
    while look:
        below = [pid for pid, above in parents.items() if above in look]
        found += below
        look = below
    return found


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


SECRETS = {
    "ENGAGEMENT_PLATFORM_SPARK__CONF": json.dumps({"spark.hadoop.fs.s3a.secret.key": CANARY}),
    "ENGAGEMENT_PLATFORM_ALERTING__URLS": json.dumps([f"json://somebody:{CANARY}@127.0.0.1:1/{CANARY}"]),
}
"""Settings that the embedded services have and that keep none of them from starting."""


@pytest.fixture
def own_ports() -> Mapping[str, str]:
    """Variables that give the services ports nobody else has."""
    ports = zip(("KAFKA", "KAFKA_CONTROLLER", "CONNECT", "AWS", "INGEST"), free_ports(5), strict=True)
    return {f"ENGAGEMENT_PLATFORM_EMBEDDED__{name}_PORT": str(port) for name, port in ports}


@pytest.mark.usefixtures("kafka_jars", "spark_jars")
def test_an_env_file_that_cannot_be_written_is_refused_before_anything_starts(
    tmp_path: Path, own_ports: Mapping[str, str]
) -> None:
    (tmp_path / "taken").touch()
    command = [sys.executable, "-m", "engagement_platform.cli", "services", "--env-file", str(tmp_path / "taken" / "x")]
    env = {**os.environ, **own_ports}
    refused = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 1
    assert "Nothing was started" in refused.stderr
    assert "cannot be written" in refused.stderr
    assert not list((tmp_path / "home" / "logs").glob("*.log"))


@pytest.mark.first_day
@pytest.mark.broker
@pytest.mark.crash
@pytest.mark.usefixtures("kafka_jars", "spark_jars")
def test_services_answer_restart_a_killed_broker_and_stop_within_fifteen_seconds_without_orphans(
    tmp_path: Path, own_ports: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {**own_ports, **SECRETS}
    env_file, log = tmp_path / "platform.env", tmp_path / "home" / "logs" / "kafka.log"
    process = services_command(env, env_file, "--game-rate", "20")
    told = dict(line.split("=", 1) for line in env_file.read_text().splitlines())
    connect, aws, ingest = (
        int(env[f"ENGAGEMENT_PLATFORM_EMBEDDED__{name}_PORT"]) for name in ("CONNECT", "AWS", "INGEST")
    )
    assert told["ENGAGEMENT_PLATFORM_SPARK__REMOTE"] == f"sc://127.0.0.1:{connect}"
    assert told["AWS_ENDPOINT_URL"] == f"http://127.0.0.1:{aws}"
    assert all(map(answers, (connect, aws, ingest)))
    assert told["INGEST_URL"] == f"http://127.0.0.1:{ingest}"
    assert len(list(Path(told["INGEST_KEYS"]).iterdir())) == len(GAMES)

    produce = [sys.executable, "-m", "engagement_platform.cli", "produce", "--sample", "500"]
    subprocess.run(produce, env={**os.environ, **told}, check=True, capture_output=True, timeout=60)

    queued = Settings().games.model_copy(update={"queue_url": told["ENGAGEMENT_PLATFORM_GAMES__QUEUE_URL"]})
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, told[name])
    # Beside the message with which S3 tries the topic. The ingest server closes a segment after ten seconds.
    announced = Settings().model_copy(update={"games": queued})
    wait_for(lambda: depth(announced).visible > 1, "no object of the simulated games was announced", timeout_s=60)

    again = [sys.executable, "-m", "engagement_platform.cli", "services"]
    refused = subprocess.run(again, env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert f"process {process.pid}" in refused.stderr

    family = descendants(process.pid)
    broker = next(pid for pid in family if b"kafka.Kafka" in command_line(pid))
    os.kill(broker, signal.SIGKILL)
    wait_for(lambda: log.read_text().count("Kafka Server started") == 2, "the broker was not restarted", timeout_s=60)
    subprocess.run(produce, env={**os.environ, **told}, check=True, capture_output=True, timeout=60)

    family = descendants(process.pid)
    assert open_to_others(tmp_path / "home") == {}, "whatever the umask of the shell is"
    assert [line for line in map(command_line, family) if CANARY.encode() in line] == [], "everybody reads these"
    before = time.monotonic()
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=20)[0]
    assert time.monotonic() - before < 15
    assert process.returncode == 0
    assert "kafka ended with signal SIGKILL" in said
    assert places_of(CANARY, tmp_path, {"said": said.encode()}) == []
    assert [pid for pid in family if exists(pid)] == []


@pytest.mark.broker
@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.usefixtures("kafka_jars", "spark_jars")
def test_services_that_are_killed_take_what_they_started_with_them(
    tmp_path: Path, own_ports: Mapping[str, str]
) -> None:
    """That nothing outlives a killed parent is tried among the quick tests with children that do nothing."""
    process = services_command(own_ports, tmp_path / "platform.env")
    family = descendants(process.pid)
    assert len(family) >= 3
    assert not any(b"produce-games" in command_line(pid) for pid in family), "not asked for"
    process.kill()
    process.communicate()
    wait_for(lambda: not any(map(exists, family)), "the services outlived a killed parent", timeout_s=15)
    again = services_command(own_ports, tmp_path / "platform.env")
    again.send_signal(signal.SIGINT)
    again.communicate(timeout=20)
    assert again.returncode == 0, "the home was not free for the next"


def test_a_shell_reads_the_env_file_as_it_is_meant_whatever_a_path_is_called(tmp_path: Path) -> None:
    variables = {"A": "/data/My Data/$(touch gone); x", "B": 'it\'s "here"', "C": "sc://127.0.0.1:15002"}
    (tmp_path / "platform.env").write_text(for_a_shell(variables))
    script = "set -a; . ./platform.env; env"
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True, env={})
    assert done.stderr == ""
    assert {line for line in done.stdout.splitlines() if line[:2] in ("A=", "B=", "C=")} == {
        f"{name}={value}" for name, value in variables.items()
    }
    assert [file.name for file in tmp_path.iterdir()] == ["platform.env"]
