"""The tutorial does what it says, from an empty folder: its files, its commands and the output that it shows."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engagement_platform.local.ports import free_ports
from engagement_platform.pipelines.declarations.declared import declarations
from engagement_platform.settings import ENV_PREFIX, Settings
from engagement_platform_tests.conftest import QUICK_JVM
from engagement_platform_tests.docs.pages import ROOT, text

PAGE = ROOT / "docs" / "tutorial.md"
_FILE = re.compile(r"^`([\w./]+)`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_STEP = re.compile(r"^```(sh|text|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Kafka and Spark start in 15 s on a quiet machine; each command is a client of them.
UP_S, STEP_S = 600, 600


def put_files(folder: Path, *, in_project: bool = False) -> list[str]:
    """The files that the page shows, as it calls them. in_project: those of a project of Dagster's, and no others."""
    found = [(name, content) for name, content in _FILE.findall(text(PAGE)) if name.startswith("src/") is in_project]
    for name, content in found:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return [name for name, _ in found]


def steps() -> list[tuple[str, str, str]]:
    """(language, what to run, what it shows) in the order of the page."""
    found: list[tuple[str, str, str]] = []
    for language, body in _STEP.findall(text(PAGE)):
        if language == "text":
            before = found.pop()
            found.append((before[0], before[1], body))
        else:
            found.append((language, body, ""))
    return found


def assert_shown(shown: str, output: str) -> None:
    """Every line of what is shown stands in the output, in this order; … stands for anything."""
    place = 0
    for part in (part for line in shown.splitlines() for part in line.split("…") if part.strip()):
        assert part.strip() in output[place:], f"{part!r} is not in what came:\n{output}"
        place = output.index(part.strip(), place) + len(part.strip())


@contextmanager
def services(command: str, folder: Path, env: dict[str, str]) -> Iterator[None]:
    """The page's own command in a terminal of its own, until the block ends."""
    log = folder / "services.log"
    with log.open("w") as written:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command.strip()}"], cwd=folder, env=env, stdout=written, stderr=written,
            start_new_session=True,
        )  # fmt: skip
        try:
            deadline = time.monotonic() + UP_S
            while not (folder / "platform.env").exists():
                assert process.poll() is None, f"the services ended:\n{log.read_text()[-3000:]}"
                assert time.monotonic() < deadline, f"the services did not answer:\n{log.read_text()[-3000:]}"
                time.sleep(0.5)
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=120)


def test_what_the_tutorial_declares_is_a_stream_of_about_fifteen_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in [variable for variable in os.environ if variable.startswith(ENV_PREFIX)]:
        monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)
    assert put_files(tmp_path) == ["platform.toml", "defs/clicks/defs.yaml", "clicks.jsonl"]
    assert len((tmp_path / "defs" / "clicks" / "defs.yaml").read_text().splitlines()) <= 15
    [stream] = declarations(Settings()).streams
    assert (stream.job, stream.topic) == ("ingest-shop-click", "shop-clicks")
    assert sum("--until-idle" in command for _, command, _ in steps()) == 1


@pytest.mark.first_day
@pytest.mark.broker
def test_the_tutorial_works_as_it_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    put_files(folder)
    names = ("KAFKA", "KAFKA_CONTROLLER", "CONNECT", "AWS", "INGEST")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
    # Other tests of this run listen on the ports that the page means, and Spark is configured as theirs is; nothing
    # else is changed.
    env |= {
        f"{ENV_PREFIX}EMBEDDED__{name}_PORT": str(port)
        for name, port in zip(names, free_ports(len(names)), strict=True)
    }
    env[f"{ENV_PREFIX}SPARK__CONF"] = json.dumps({"spark.driver.extraJavaOptions": " ".join(QUICK_JVM)})
    scripts = tmp_path / "bin"
    scripts.mkdir()
    for name, arguments in (("engagement-platform", "-m engagement_platform.cli"), ("python", "")):
        (scripts / name).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        (scripts / name).chmod(0o755)
    env["PATH"] = f"{scripts}:{env['PATH']}"
    env["PYTHONPATH"] = f"{ROOT}:{env.get('PYTHONPATH', '')}"
    (_, start, _), (_, take_over, _), *rest = steps()
    assert start.startswith("engagement-platform services")
    with services(start, folder, env):
        for language, body, shown in rest:
            script = body if language == "sh" else f"python - <<'END'\n{body}\nEND\n"
            # One stream, as a terminal shows it: what is said first stands first.
            ran = subprocess.run(
                ["bash", "-euc", f"{take_over}\n{script}"], cwd=folder, env=env, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, timeout=STEP_S, check=False,
            )  # fmt: skip
            output = ran.stdout
            assert ran.returncode == 0, f"{body}\n{output}"
            assert_shown(shown, output)


def test_a_project_of_dagsters_own_tools_mounts_the_platform_beside_its_assets(tmp_path: Path) -> None:
    """Its files as `create-dagster project shop` makes them (1.13), and those that the page shows."""
    (tmp_path / "pyproject.toml").write_text(
        '[tool.dg]\ndirectory_type = "project"\n\n[tool.dg.project]\nroot_module = "shop"\n'
    )
    shown = put_files(tmp_path, in_project=True)
    assert shown == ["src/shop/definitions.py", "src/shop/defs/days.py"]
    for package in ("shop", "shop/defs"):
        (tmp_path / "src" / package / "__init__.py").touch()
    script = """
import datetime, pyarrow
from deltalake import write_deltalake
from engagement_platform.lake.engagement import data_table
from engagement_platform.settings import Settings
data, days = data_table("liquid"), [datetime.date(2025, 3, day) for day in (1, 1, 2)]
write_deltalake(data.uri(Settings().lake), pyarrow.table(dict.fromkeys(data.column_names, days)))
import dagster as dg, shop.definitions
made = shop.definitions.defs()
graph = made.resolve_asset_graph()
assert dg.AssetKey(["engagement", "data"]) in graph.get(dg.AssetKey("days")).parent_keys
assert graph.get(dg.AssetKey(["engagement", "data"])).is_materializable
assert "ingest_engagements" in {job.name for job in made.resolve_all_job_defs()}
with dg.DagsterInstance.ephemeral() as instance:
    done = made.resolve_implicit_global_asset_job_def().execute_in_process(
        asset_selection=[dg.AssetKey("days")], instance=instance
    )
    [event] = done.asset_materializations_for_node("days")
    print(event.metadata["days"].value)
"""
    env = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
    env |= {f"{ENV_PREFIX}HOME": str(tmp_path / "home"), "PYTHONPATH": f"{tmp_path / 'src'}:{ROOT}"}
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "2\n"
