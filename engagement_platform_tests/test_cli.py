"""The command line as a user meets it: one line for an error, the exit status, no traceback, a quick start."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from engagement_platform.cli import main
from engagement_platform.cli.jobs import _show
from engagement_platform.jobs import JOB_NAMES, REDRIVE_QUARANTINE


class Call(NamedTuple):
    """What a call of the command line came to."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Call]]:
    """Calls the command line in this process: starting one takes a hundred times as long as most commands."""
    for name in [name for name in os.environ if name.startswith("ENGAGEMENT_PLATFORM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def called(*arguments: str, **env: str) -> Call:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["engagement-platform", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return Call(int(ended.value.code or 0), said.out, said.err)

    yield called
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("command", ["services", "up"])
def test_a_port_in_use_is_one_line_on_stderr_and_nothing_was_started(
    call: Callable[..., Call], tmp_path: Path, command: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = call(command, ENGAGEMENT_PLATFORM_EMBEDDED__CONNECT_PORT=port)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"port {port} (Spark Connect) is in use: set ENGAGEMENT_PLATFORM_EMBEDDED__CONNECT_PORT" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["embedded.lock"]


def test_a_setting_of_the_wrong_type_is_named_and_its_value_is_not_shown(call: Callable[..., Call]) -> None:
    done = call("services", ENGAGEMENT_PLATFORM_EMBEDDED__UI_PORT="hunter2")
    assert done.returncode == 2
    assert "ENGAGEMENT_PLATFORM_EMBEDDED__UI_PORT: Input should be a valid integer" in done.stderr
    assert "hunter2" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_misspelled_setting_is_not_silently_a_default(call: Callable[..., Call]) -> None:
    done = call("services", ENGAGEMENT_PLATFORM_EMBEDDED__KAFKA_PROT="1")
    assert done.returncode == 2
    assert "ENGAGEMENT_PLATFORM_EMBEDDED__KAFKA_PROT" in done.stderr


def test_a_broken_settings_file_is_one_line(call: Callable[..., Call], tmp_path: Path) -> None:
    (tmp_path / "platform.toml").write_text("[kafka\n")
    done = call("services")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_produce_wants_exactly_one_source(call: Callable[..., Call]) -> None:
    assert call("produce").returncode == 2
    assert call("produce", "--sample", "1", "--follow").returncode == 2


def test_help_lists_every_command_and_imports_nothing_heavy(call: Callable[..., Call]) -> None:
    done = call("--help")
    for command in ("up", "services", "produce", "setup", "run", "status", "read", "verify", "reset"):
        assert f" {command} " in done.stdout
    heavy = ("pyspark", "dagster", "pandas", "sqlalchemy", "pydantic", "confluent_kafka")
    code = f"import sys, engagement_platform.cli; print([name for name in {heavy} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert loaded.stdout.strip() == "[]"


def test_the_help_of_run_names_every_job(call: Callable[..., Call]) -> None:
    listed = call("run", "--help").stdout
    assert [job for job in (*JOB_NAMES, REDRIVE_QUARANTINE) if job not in listed] == []


def test_what_cannot_be_read_is_told_before_spark_is_opened(call: Callable[..., Call], tmp_path: Path) -> None:
    for arguments, says in (
        (("read", "engagement/dta"), "There is no table called 'engagement/dta'. Tables and views: engagement/alias"),
        (("read", "engagement/current"), "engagement/current cannot be read yet."),
        (("read", "engagement/current", "--version", "1"), "has no version 1"),
        (("read", "engagement/data", "--out", "nowhere/data.csv"), "there is no folder"),
        (("read", "engagement/data", "--out", "data.txt"), "one of .parquet, .csv, .jsonl"),
    ):
        # Spark would not be found, so opening it would say something else.
        done = call(*arguments, JAVA_HOME=str(tmp_path / "none"))
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
        assert says in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_sample_without_identities_is_refused(call: Callable[..., Call]) -> None:
    done = call("verify", "--sample", "3")
    assert done.returncode == 2
    assert "--identity" in done.stderr


def test_the_first_rows_are_shown_as_a_table_and_nulls_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    _show("t", ["id", "name"], [[str(nth), None if nth else {"a": "[b]"}] for nth in range(21)])
    shown = capsys.readouterr().out
    assert '{"a": "[b]"}' in shown
    assert shown.count("null") == 19
    assert "The first 20 rows of t. With --out FILE all of them." in shown
