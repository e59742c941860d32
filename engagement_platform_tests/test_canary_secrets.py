"""A value that is nowhere else is put into every secret setting, and then looked for in all that the platform writes.

Settings are found by their types, so a new secret is looked for without a word here.
"""

from __future__ import annotations

import base64
import gzip
import json
import logging
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin
from urllib.parse import quote

import dagster as dg
import pytest
import typer
from pydantic import BaseModel, SecretStr
from typer.testing import CliRunner

from engagement_platform.cli import app
from engagement_platform.definitions import defs
from engagement_platform.settings import ENV_PREFIX, Settings
from engagement_platform_tests.ingest_server.world import event, key_for, server, wait_until

CANARY = "Zq7canaryXk9w"
_LEFT_ALONE = {"up", "services", "ingest-server", "produce", "produce-games"}
"""They start something, or send, which is done below. The ingest server is a process of its own below; `services` and
`up` are where they are tried, `local/test_services.py` and `defs/test_browser.py`, with what they start, and what
`perftest` does with a spec in `benchmarks/perftest/test_one.py`."""
# What some settings have to look like, so that what holds them goes as far as it can.
_SHAPED: Mapping[str, object] = {
    "stores.url": f"postgresql+psycopg2://somebody:{CANARY}@127.0.0.1:1/stores?connect_timeout=2",
    "kafka.security": {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "somebody",
                       "sasl.password": CANARY},
    "spark.remote": f"sc://127.0.0.1:1/;token={CANARY}",
    "spark.conf": {"spark.hadoop.fs.s3a.secret.key": CANARY},
    "alerting.urls": [f"json://somebody:{CANARY}@127.0.0.1:1/{CANARY}", f"slack://{CANARY}/{CANARY}/{CANARY}"],
}  # fmt: skip


def secret_settings(model: type[BaseModel] = Settings, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Every setting of a secret type, as section.name, and a value with the canary in it."""
    for name, field in model.model_fields.items():
        path, kind = f"{prefix}{name}", field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from secret_settings(kind, f"{path}.")
        elif SecretStr in _types(kind):
            plain: object = (
                {"canary": CANARY} if get_origin(kind) is dict else [CANARY] if get_origin(kind) is list else CANARY
            )
            yield path, _SHAPED.get(path, plain)


def _types(kind: Any) -> set[Any]:
    return {kind, *(each for part in get_args(kind) for each in _types(part))}


def _as_variables(found: Iterable[tuple[str, object]]) -> dict[str, str]:
    return {
        ENV_PREFIX + path.replace(".", "__").upper(): value if isinstance(value, str) else json.dumps(value)
        for path, value in found
    }


def places_of(secret: str, folder: Path, said: Mapping[str, bytes]) -> list[str]:
    """Outputs, and files below a folder, with the secret in them: plain, in a URL, in Base64, in gzip."""
    shifted = (base64.b64encode(b"\0" * shift + secret.encode())[4:-4] for shift in range(3))
    forms = {secret.encode(), quote(secret).encode(), secret.encode("utf-16-le"), *shifted}
    files = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}
    found = []
    for name, content in {**files, **said}.items():
        plain = gzip.decompress(content) if name.endswith(".gz") else b""
        if any(form in content or form in plain for form in forms):
            found.append(name)
    return found


def test_the_search_finds_what_is_hidden_a_little(tmp_path: Path) -> None:
    hidden = {"plain": CANARY.encode(), "base64": base64.b64encode(b"pw=" + CANARY.encode() + b";"), "not": b"canary"}
    for name, content in hidden.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "line.gz").write_bytes(gzip.compress(CANARY.encode()))
    assert [Path(name).name for name in sorted(places_of(CANARY, tmp_path, {}))] == ["base64", "line.gz", "plain"]


def test_every_secret_setting_is_found_by_its_type() -> None:
    assert {path for path, _ in secret_settings()} >= {*_SHAPED, "kafka.spark_options"}
    # A text that says it is secret has a type that hides it.
    assert [path for path in _texts(Settings) if any(word in path for word in ("password", "token", "secret_"))] == []


def test_only_these_addresses_and_tables_of_text_are_ever_shown() -> None:
    addresses = {path for path in _texts(Settings) if path.endswith(("url", "uri", "remote", "servers", "host"))}
    tables = set(_texts(Settings, dict))
    # None takes a password within: S3, SQS and brokers get theirs elsewhere, and the tables are of names and pointers.
    assert (addresses | tables) - {path for path, _ in secret_settings()} == {
        "lake_uri", "games.queue_url", "kafka.bootstrap_servers", "ingest_server.host",
        "decoding.aliases", "pii.fields", "pii.safe",
    }  # fmt: skip


def _texts(model: type[BaseModel], kind: type | None = None, prefix: str = "") -> Iterator[str]:
    """Settings with text in them; with kind, only such as `dict`."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _texts(field.annotation, kind, f"{prefix}{name}.")
        elif str in _types(field.annotation) and kind in (None, get_origin(field.annotation)):
            yield f"{prefix}{name}"


@pytest.fixture
def canaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home; every secret of this process's environment is a canary, and nobody answers where they lead."""
    for name in [name for name in os.environ if name.startswith(ENV_PREFIX)]:
        monkeypatch.delenv(name)
    more = {
        "HOME": str(tmp_path / "home"), "KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1", "KAFKA__TIMEOUT": "PT1S",
        "GAMES__QUEUE_URL": "http://127.0.0.1:1/q", "GAMES__BUCKET": "raw", "ALERTING__TIMEOUT": "PT1S",
    }  # fmt: skip
    (tmp_path / "home").mkdir(mode=0o700)
    aws = {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": CANARY, "AWS_SESSION_TOKEN": CANARY,
           "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_REGION": "eu-west-1"}  # fmt: skip
    variables = {
        **{ENV_PREFIX + name: value for name, value in more.items()},
        **aws,
        **_as_variables(secret_settings()),
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
    (tmp_path / "dagster").mkdir()
    monkeypatch.chdir(tmp_path)
    # Commands that end in order set their own.
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield tmp_path
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _calls() -> Iterator[list[str]]:
    """Every command with a value for each argument that it needs, by what the command line declares."""
    for names, command in _commands(typer.main.get_command(app), []):
        needed = [one for one in command.params if one.required]
        values = [[one.opts[0], "x"] if one.opts[0].startswith("-") else ["x"] for one in needed]
        yield [*names, *(word for each in values for word in each)]


def _commands(group: Any, names: list[str]) -> Iterator[tuple[list[str], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, [*names, name])
        elif name not in _LEFT_ALONE:
            yield [*names, name], command


def test_no_command_shows_a_secret(
    canaries: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    said, runner = dict[str, bytes](), CliRunner()

    def call(*words: str) -> None:
        done = runner.invoke(app, words)
        error = "".join(traceback.format_exception(done.exception)) if done.exception else ""
        said[f"{len(said)} {' '.join(words)}"] = f"{done.output}{error}".encode()

    for words in _calls():
        call(*words)
        call(*words, "--help")
    # With stores that answer commands go on to the broker, and alerts to those who are told of them.
    monkeypatch.delenv(f"{ENV_PREFIX}STORES__URL")
    call("produce", "--sample", "1")
    call("produce-games", "--sample", "1", "--to", "http://127.0.0.1:1")
    for words in (["status"], ["status", "--json"], ["alert", "test"], ["alert", "list"], ["consumers"], ["batches"]):
        call(*words)
    said["settings"] = "".join(map(str, (Settings(), repr(Settings()), Settings().model_dump()))).encode()
    said["settings as JSON"] = Settings().model_dump_json().encode()
    said["log"] = caplog.text.encode()
    assert len(said) > 60, "there are commands"
    assert any(b"127.0.0.1:1" in each for each in said.values()), "somebody was asked, and did not answer"
    assert places_of(CANARY, canaries, said) == []


def test_a_run_of_dagster_that_fails_keeps_no_secret(canaries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with dg.DagsterInstance.local_temp(str(canaries / "dagster")) as instance:
        monkeypatch.delenv(f"{ENV_PREFIX}SPARK__REMOTE")  # Spark is started here, with `spark.conf`
        job = defs().resolve_job_def("ingest_game_events")
        for variable in (f"{ENV_PREFIX}STORES__URL", f"{ENV_PREFIX}NONE"):
            ran = job.execute_in_process(instance=instance, raise_on_error=False)
            assert not ran.success
            assert instance.all_logs(ran.run_id)
            monkeypatch.delenv(variable, raising=False)
    assert list(canaries.rglob("*.db")), "Dagster keeps its events in files"
    assert places_of(CANARY, canaries, {}) == []


@pytest.mark.crash
def test_the_ingest_server_keeps_and_says_neither_secrets_nor_keys_of_senders(
    canaries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(f"{ENV_PREFIX}STORES__URL")  # a database of SQLite has no password
    home = canaries / "home"
    key = key_for(home, "puzzle")
    secret = key.split("_", 2)[2]
    others = {name: value for name, value in _as_variables(secret_settings()).items() if "STORES" not in name}
    settings = {name.removeprefix(ENV_PREFIX): value for name, value in others.items()}
    said = dict[str, bytes]()
    with server(home, INGEST_SERVER__SEGMENT_AGE="PT0.1S", **settings) as running:
        for number, sent in enumerate(
            (event("a-1"), {"event_id": key}, event("a-2", note=1, player_id="p", email="x"))
        ):
            reply = running.post(key, [sent])
            said[f"answer {number}"] = f"{reply.headers}".encode() + reply.body
        for headers in ({"Authorization": f"Bearer {key}x"}, {"X_API_Key": CANARY}, {"Authorization": f"Basic {key}"}):
            said[str(headers)[:3]] = running.call(
                "POST", "/v1/events", b"[]", Content_Type="application/json", **headers
            ).body
        for path in ("/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"):
            said[path] = running.call("GET", path).body
        wait_until(lambda: any((home / "games").rglob("*.gz")), "nothing was delivered")
        status, output = running.stop()
    said["output"] = output.encode()
    assert status == 0
    del said["answer 1"]  # an id that is refused is said to its sender, who sent it
    assert places_of(CANARY, canaries, said) == []
    assert places_of(secret, canaries, said) == []


def test_a_call_that_raises_shows_no_secret(canaries: Path) -> None:
    """A fault of the platform itself, with the whole settings in a frame: what Python prints of it."""
    program = (
        "from engagement_platform.settings import Settings\n"
        "from engagement_platform.engine.database import open_engine\n"
        "settings = Settings()\n"
        "engine = open_engine(settings.store_url)\n"
        "print(engine, repr(engine.url), settings)\n"
        "engine.connect()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=240, check=False)
    assert b"Traceback" in done.stderr
    assert places_of(CANARY, canaries, {"stdout": done.stdout, "stderr": done.stderr}) == []
