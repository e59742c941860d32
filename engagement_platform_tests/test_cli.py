"""The command line as a user meets it: one line for an error, the exit status, no traceback, a quick start."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

from engagement_platform.cli import PANELS, app, main
from engagement_platform.cli.common import print_table
from engagement_platform.cli.reading import show_rows
from engagement_platform.engine.model import Manifest
from engagement_platform.erasing.erase import WITHOUT_PERSONAL_COLUMNS
from engagement_platform.pipelines.jobs import JOB_NAMES, REDRIVE_QUARANTINE, open_stores
from engagement_platform.settings import Settings

RESERVED = {"engagement", "profile", "game", "import", *(name.split("/")[0] for name in WITHOUT_PERSONAL_COLUMNS)}
"""First parts of the names of the platform's own tables."""


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


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("EMBEDDED__KAFKA_PROT", "1", "EMBEDDED__KAFKA_PROT: there is no such setting; the nearest is kafka_port"),
        ("DRIAN__POLL", "PT1S", "DRIAN__POLL names no setting; the nearest is drain"),
        ("DRAIN__POLL", "hunter2", "DRAIN__POLL: a duration such as PT20S"),
        ("EMBEDDED__UI_PORT", "hunter2", "EMBEDDED__UI_PORT: Input should be a valid integer"),
        ("CONFIG", "other.toml", "CONFIG names other.toml, which is no file"),
    ],
)
def test_a_variable_that_cannot_be_used_is_one_sentence_with_the_nearest_name_and_without_its_value(
    call: Callable[..., Call], variable: str, value: str, sentence: str
) -> None:
    done = call("status", **{f"ENGAGEMENT_PLATFORM_{variable}": value})
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"ENGAGEMENT_PLATFORM_{sentence}" in done.stderr
    assert "hunter2" not in done.stderr


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[kafka\n", r"platform\.toml: .*at line 1, column 7"),
        ("[drian]\npoll = 1\n", "DRIAN: there is no such setting; the nearest is drain"),
        ("[drain]\npol = 1\n", "DRAIN__POL: there is no such setting; the nearest is poll"),
    ],
)
def test_a_settings_file_that_cannot_be_used_is_one_sentence(
    call: Callable[..., Call], tmp_path: Path, text: str, sentence: str
) -> None:
    (tmp_path / "platform.toml").write_text(text)
    (tmp_path / "other.toml").write_text(text)
    done, named = call("status"), call("status", ENGAGEMENT_PLATFORM_CONFIG="other.toml")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert re.search(sentence, done.stderr)
    assert named.stderr == done.stderr.replace("platform.toml", "other.toml")


def test_a_settings_file_that_is_no_text_in_utf_8_is_one_sentence(call: Callable[..., Call], tmp_path: Path) -> None:
    (tmp_path / "platform.toml").write_bytes("# für alle\n".encode("latin-1"))
    done = call("status")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "platform.toml" in done.stderr


@pytest.mark.parametrize("home", ["", "~nobody-of-this-name/data"])
def test_a_home_that_is_no_folder_is_one_sentence(call: Callable[..., Call], home: str) -> None:
    done = call("status", ENGAGEMENT_PLATFORM_HOME=home)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "ENGAGEMENT_PLATFORM_HOME" in done.stderr


def test_a_letter_that_the_terminal_lacks_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii", write_through=True))
    monkeypatch.setattr(sys, "argv", ["engagement-platform", "--version"])
    monkeypatch.setattr(os, "umask", lambda _mask: None)
    with pytest.raises(SystemExit) as ended:
        main()
    print("Stopping …")
    assert ended.value.code == 0
    assert shown.getvalue().endswith(b"Stopping \\u2026\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("run", "ingest-engagement", "--until-idle"), "There is no job called 'ingest-engagement'. Jobs: ingest-"),
        (("vacuum", "--hours", "1"), "There are no tables yet."),
        (("produce", "--sample", "1"), "There is no Kafka broker to ask: none runs on this home."),
        (("consume", "--name", "mine", "--start", "yesterday"), "A consumer cannot start at 'yesterday'"),
        (("produce-games", "--sample", "1"), "There are no sample API keys"),
        (("live-ops", "player", "chess", "p-1"), "No event of p-1 in chess was counted"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    call: Callable[..., Call], tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    # Spark would not be found, so opening it would say something else.
    done = call(*arguments, JAVA_HOME=str(tmp_path / "none"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert sentence in done.stderr


@pytest.mark.parametrize(
    ("arguments", "extra", "package"),
    [
        (("ingest-server",), "server", "fastapi"),
        (("live-ops", "run", "--until-idle"), "liveops", "statsmodels"),
        (("alert", "list"), "postgres", "psycopg2"),
    ],
)
def test_what_an_extra_brings_is_asked_for_by_its_name(
    call: Callable[..., Call], without: Callable[[str], None], arguments: tuple[str, ...], extra: str, package: str
) -> None:
    without(package)
    url = "postgresql+psycopg2://127.0.0.1:1/none"
    done = call(*arguments, **({"ENGAGEMENT_PLATFORM_STORES__URL": url} if extra == "postgres" else {}))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert f"needs {package}, which the extra `{extra}` brings" in done.stderr
    assert f"pip install 'engagement-platform[{extra}]'" in done.stderr


@pytest.mark.parametrize("command", ["status", "up"])
def test_a_home_that_cannot_be_written_is_one_sentence(call: Callable[..., Call], tmp_path: Path, command: str) -> None:
    (tmp_path / "file").touch()
    done = call(command, ENGAGEMENT_PLATFORM_HOME=str(tmp_path / "file" / "home"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert str(tmp_path / "file") in done.stderr


def test_a_store_is_not_imported_into_a_table_that_is_declared(call: Callable[..., Call], tmp_path: Path) -> None:
    (tmp_path / "streams" / "click").mkdir(parents=True)
    declared = "type: engagement_platform.KafkaTable\nattributes:\n  topic: clicks\n  table: shop/click\n"
    (tmp_path / "streams" / "click" / "defs.yaml").write_text(
        declared + "  columns: {click_id: string}\n  key: click_id\n"
    )
    folder = {"ENGAGEMENT_PLATFORM_DEFS_FOLDER": str(tmp_path / "streams")}
    refused, other = (call("import", "nothing", f"shop/{name}", "--yes", **folder) for name in ("click", "other"))
    assert (refused.returncode, "shop/click is declared" in refused.stderr) == (2, True), refused.stderr
    assert "shop/other is declared" not in other.stderr
    assert "nothing" in other.stderr


def test_a_home_that_others_can_enter_is_refused_unless_that_is_set(call: Callable[..., Call], tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    done = call("status")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"others can enter {tmp_path} (mode 750)" in done.stderr
    assert list(tmp_path.iterdir()) == []
    done = call("ingest-key", "list", ENGAGEMENT_PLATFORM_HOME_SHARED="true")
    assert done.returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_home_of_another_user_is_refused_unless_that_is_set(call: Callable[..., Call], tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, -1)
    done = call("status")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"{tmp_path}, which holds keys and personal data, is of user 12345" in done.stderr
    assert list(tmp_path.iterdir()) == []
    done = call("ingest-key", "list", ENGAGEMENT_PLATFORM_HOME_SHARED="true")
    assert done.returncode == 0


def test_the_newest_batches_of_all_jobs_come_first_and_those_of_one_job_alone(
    call: Callable[..., Call], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    store, at = open_stores(Settings(home=tmp_path)).checkpoints, datetime(2026, 3, 1, tzinfo=UTC)
    for job, batch_id, rows in (("ingest-engagements", 0, 5), ("apply-mutations", 0, 6), ("ingest-engagements", 1, 7)):
        batch = store.begin(Manifest(job, f"{job}@1.t", batch_id, {}, {}, at))
        store.succeed(batch, {"rows_in": rows})
    store.begin(Manifest("apply-mutations", "apply-mutations@1.t", 1, {}, {}, at))

    shown = [json.loads(line) for line in call("batches", "--json").stdout.splitlines()]
    assert [(one["job"], one["batch_id"], one["state"], one["rows"]) for one in shown] == [
        ("apply-mutations", 1, "RUNNING", 0),
        ("ingest-engagements", 1, "SUCCEEDED", 7),
        ("apply-mutations", 0, "SUCCEEDED", 6),
        ("ingest-engagements", 0, "SUCCEEDED", 5),
    ]
    assert shown[0]["seconds"] is None
    assert 0 <= shown[1]["seconds"] < 60
    own = call("batches", "--job", "ingest-engagements", "--limit", "1", "--json").stdout.splitlines()
    assert [json.loads(line)["batch_id"] for line in own] == [1]
    assert "RUNNING" in call("batches", "--limit", "1").stdout
    refused = call("batches", "--job", "ingest")
    assert (refused.returncode, refused.stderr) == (
        1, "ingest has begun no batch; jobs that have: apply-mutations, ingest-engagements.\n",
    )  # fmt: skip


def test_the_version_is_told(call: Callable[..., Call]) -> None:
    assert call("--version") == (0, f"engagement-platform {version('engagement-platform')}\n", "")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("ba", {"batches"}),
        ("rec", {"recover"}),
        ("alert ", {"close", "list", "test"}),
        ("optimize --dry", {"--dry-run"}),
    ],
)
def test_a_shell_completes_commands_and_options(typed: str, offered: set[str]) -> None:
    said = {"_TYPER_COMPLETE_ARGS": f"engagement-platform {typed}", "COMP_WORDS": f"engagement-platform {typed}"}
    env = {
        **os.environ,
        **said,
        "COMP_CWORD": str(len(typed.split(" "))),
        "_ENGAGEMENT_PLATFORM_COMPLETE": "complete_bash",
    }
    program = Path(sys.executable).with_name("engagement-platform")
    done = subprocess.run([program], env=env, capture_output=True, text=True, check=True, timeout=60)
    assert offered <= set(done.stdout.split())
    assert all(word.startswith(typed.rpartition(" ")[2]) for word in done.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("produce",), "give exactly one of"),
        (("produce", "--sample", "1", "--follow"), "give exactly one of"),
        (("verify", "--sample", "3"), "--identity"),
    ],
)
def test_what_a_command_cannot_take_is_refused_as_a_mistake_of_its_call(
    call: Callable[..., Call], arguments: tuple[str, ...], sentence: str
) -> None:
    done = call(*arguments)
    assert done.returncode == 2
    assert sentence in done.stderr


@pytest.mark.parametrize("group", sorted(RESERVED))
def test_no_table_is_imported_under_a_name_of_the_platform_which_receipts_trust(
    call: Callable[..., Call], tmp_path: Path, group: str
) -> None:
    (tmp_path / "old.jsonl").write_text('{"user": "bob"}\n')
    done = call("import", "old.jsonl", f"{group}/clicks", "--yes")
    assert (done.returncode, "the first is none of" in done.stderr) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["old.jsonl"]


def test_help_lists_every_command_in_panels_and_imports_nothing_heavy(call: Callable[..., Call]) -> None:
    done = call("--help")
    for panel in (*PANELS, "Alerts"):
        assert f" {panel} ─" in done.stdout
    for command in (path[0] for path in commands(typer.main.get_command(app)) if path):
        assert f" {command} " in done.stdout
    heavy = ("pyspark", "dagster", "pandas", "sqlalchemy", "pydantic", "confluent_kafka")
    code = f"import sys, engagement_platform.cli; print([name for name in {heavy} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert loaded.stdout.strip() == "[]"


def commands(group: Any, *path: str) -> Iterator[tuple[str, ...]]:
    yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, *path, name)


@pytest.mark.parametrize("command", list(commands(typer.main.get_command(app))), ids=" ".join)
def test_help_shows_no_type_for_flags(call: Callable[..., Call], command: tuple[str, ...]) -> None:
    shown = call(*command, "--help").stdout
    assert "--help" in shown
    assert "bool" not in shown


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


def test_a_table_shows_controls_of_a_text_and_sends_none_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows("t", ["name"], [["\x1b]0;x\x07\x1b[2Jwell\u202e\x9b1m"]])
    shown = capsys.readouterr().out
    assert r"\x1b]0;x\x07\x1b[2Jwell\u202e\x9b1m" in shown
    assert not {"\x1b", "\x07", "\u202e", "\x9b"} & set(shown)


def test_the_first_rows_are_shown_as_a_table_and_nulls_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows("t", ["id", "name"], [[str(nth), None if nth else {"a": "[b]"}] for nth in range(21)])
    shown = capsys.readouterr().out
    assert '{"a": "[b]"}' in shown
    assert shown.count("null") == 19
    assert "The first 20 rows of t. With --out FILE all of them." in shown


def test_the_jobs_fit_into_a_terminal_of_eighty_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    columns = ("job", "batch", "state", "waiting", "landed", "known", "quarantined")
    print_table(
        columns, [("ingest-mutation-requests", 1234, "SUCCEEDED", 12345, 123456, 869, 42), ("other", *[""] * 6)]
    )
    head, _, jobs, other, *rest = capsys.readouterr().out.splitlines()
    assert jobs.split() == ["ingest-mutation-requests", "1,234", "SUCCEEDED", "12,345", "123,456", "869", "42"]
    assert (other.split(), rest) == (["other"], [])
    assert [head.index(name) + len(name) for name in columns[3:]] == [
        jobs.index(value) + len(value) for value in ("12,345", "123,456", "869", " 42")
    ], "numbers stand below each other to the right"
