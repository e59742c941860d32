"""What the pages name exists: files, links, tests, settings, errors, commands, targets; and their examples work."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import BaseModel

from engagement_platform.cli import app
from engagement_platform.maintenance.guards.rules import RULES
from engagement_platform.pipelines.declarations.kinds import (
    KafkaTableDeclaration,
    MergeOnReadEntityDeclaration,
    S3SqsTablesDeclaration,
)
from engagement_platform.settings import ENV_PREFIX, Settings
from engagement_platform_tests.docs.pages import PAGES, ROOT, blocks, error_names, name, test_names, text

EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=name)

# Read before there are settings: where they are.
NOT_SETTINGS = {f"{ENV_PREFIX}CONFIG"}


def setting_names() -> dict[str, Any]:
    """Path of every setting, and of every section, to the annotation of its field."""
    found: dict[str, Any] = {}
    for section, field in Settings.model_fields.items():
        found[section] = field.annotation
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found |= {f"{section}.{key}": inner.annotation for key, inner in field.annotation.model_fields.items()}
    return found


def commands(page: Path) -> list[list[str]]:
    """Every call of engagement-platform in the page's shell blocks and in its running text, split into words."""
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    inline = re.findall(r"`(engagement-platform [^`…]+)`", text(page))
    calls = [line[line.index("engagement-platform ") :] for line in lines if "engagement-platform " in line]
    return [shlex.split(call, comments=True)[1:] for call in (*calls, *inline) if not call.startswith("export")]


@EVERY_PAGE
def test_every_file_that_is_named_exists(page: Path) -> None:
    paths = re.findall(
        r"`((?:engagement_platform|engagement_platform_tests|docs|tools|benchmarks|deploy)/[\w./-]+\.\w+)`", text(page)
    )
    assert [path for path in paths if not (ROOT / path).is_file()] == []


@EVERY_PAGE
def test_every_link_leads_somewhere(page: Path) -> None:
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text(page)):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        file = (page.parent / path).resolve() if path else page
        if not file.is_file() or (anchor and anchor not in anchors(file)):
            dead.append(target)
    assert dead == []


def anchors(page: Path) -> set[str]:
    """What a page's headings are called in links, as GitHub does it."""
    headings = re.findall(r"^#+ (.+)$", text(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@EVERY_PAGE
def test_every_variable_that_is_named_is_a_setting(page: Path) -> None:
    known = {ENV_PREFIX + path.replace(".", "__").upper() for path in setting_names()} | NOT_SETTINGS
    named = set(re.findall(rf"\b{ENV_PREFIX}\w+", text(page)))
    assert named - known == set()


@EVERY_PAGE
def test_every_setting_that_is_named_exists(page: Path) -> None:
    known = setting_names()
    sections = {path.partition(".")[0] for path in known if "." in path}
    # Spark's own options begin with spark. too and go on with more dots; these two are files.
    named = set(re.findall(rf"`((?:{'|'.join(sorted(sections))})\.[a-z_]+)(?: = [^`]+)?`", text(page)))
    assert named - known.keys() - {"stores.db", "dagster.yaml"} == set()


def test_every_test_that_is_named_exists() -> None:
    for page in ("requirements.md", "reliability.md"):
        named = set(re.findall(r"`(test_\w+)`", text(ROOT / "docs" / page)))
        assert named, "the page names no test at all"
        assert sorted(named - test_names()) == []


def test_the_defence_against_each_attacker_is_proved_by_tests() -> None:
    attackers = re.findall(r"^\| (\d+) \|", text(ROOT / "docs" / "threat-model.md"), re.MULTILINE)
    proved = re.findall(r"^\| (\d+) \| `test_", text(ROOT / "docs" / "requirements.md"), re.MULTILINE)
    assert attackers == proved == [str(number + 1) for number in range(len(attackers))]


def test_what_is_done_names_a_test() -> None:
    rows = [
        line.split(" | ") for line in text(ROOT / "docs" / "requirements.md").splitlines() if line.startswith("| S")
    ]
    done = [row for row in rows if len(row) == 5 and row[4].startswith("done")]
    assert done
    assert [row[0] for row in done if "`test_" not in row[3] and "as S0-A" not in row[3]] == []


def test_every_error_is_explained_and_no_other() -> None:
    page = text(ROOT / "docs" / "operations.md")
    explained = re.findall(r"^\| `([A-Z]\w+)` \|", page, re.MULTILINE)
    assert len(explained) == len(set(explained))
    assert set(explained) == error_names()


@EVERY_PAGE
def test_every_call_of_the_command_line_is_one_it_takes(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    group: Any = typer.main.get_command(app)
    for words in commands(page):
        if words[-1] == "--help":
            continue
        assert words[0] in group.commands, f"{name(page)} calls {words[0]}"
        if "--file" in words:
            (tmp_path / words[words.index("--file") + 1]).touch()
        if len(words) > 1:
            # Raises UsageError on options and arguments that the command does not have; calls nothing.
            group.commands[words[0]].make_context(words[0], words[1:])


def test_calls_are_found_where_they_stand() -> None:
    found = [words[0] for words in commands(ROOT / "README.md")]
    assert {"produce", "status", "verify", "up", "--help", "run", "reset", "setup", "services"} <= set(found)
    assert {words[0] for words in commands(ROOT / "docs" / "cli.md")} >= {"run", "up", "services", "produce", "verify"}


@EVERY_PAGE
def test_every_make_target_that_is_named_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    in_blocks = re.findall(r"^make ([a-z-]+)", "\n".join(blocks(page, "sh")), re.MULTILINE)
    named = {*re.findall(r"`make ([a-z-]+)`", text(page)), *in_blocks}
    assert named - targets == set()


@EVERY_PAGE
def test_every_settings_file_that_is_shown_is_one_it_takes(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in [variable for variable in os.environ if variable.startswith(ENV_PREFIX)]:
        monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)
    for block in blocks(page, "toml"):
        (tmp_path / "platform.toml").write_text(block, encoding="utf-8")
        read = Settings()
        for section, keys in tomllib.loads(block).items():
            # What stands above the first section is a setting itself.
            named = set(keys) if isinstance(keys, dict) else {section}
            assert named <= (getattr(read, section) if isinstance(keys, dict) else read).model_fields_set


@EVERY_PAGE
def test_every_line_of_exports_that_is_shown_is_read(page: Path, tmp_path: Path) -> None:
    for block in blocks(page, "sh"):
        if not block.startswith("export "):
            continue
        script = f"{block}\n{sys.executable} -c 'from engagement_platform.settings import Settings; Settings()'"
        env = {key: value for key, value in os.environ.items() if not key.startswith(ENV_PREFIX)}
        shell = ["bash", "-euc", script]
        done = subprocess.run(shell, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr


def test_the_harmless_calls_in_the_readme_run(tmp_path: Path) -> None:
    calls = [words for words in commands(ROOT / "README.md") if words[-1] == "--help"]
    assert calls, "the README no longer shows how to ask for help"
    for words in calls:
        command = [sys.executable, "-m", "engagement_platform.cli", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert "Usage:" in done.stdout


def test_requirement_ids_stand_on_their_page_only() -> None:
    an_id = re.compile(r"\bS[0-4]-(?:\d{1,2}|[ABC])\b")
    folders = ("engagement_platform", "engagement_platform_tests", "benchmarks", "tools")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    files += [page for page in PAGES if page.name != "requirements.md"]
    files += [ROOT / other for other in ("Makefile", "pyproject.toml", "dagster.yaml", "workspace.yaml")]
    files = [path for path in files if path != Path(__file__)]
    assert [name(path) for path in files if an_id.search(path.read_text(encoding="utf-8"))] == []


def test_the_page_of_guards_names_each_rule_with_its_source() -> None:
    rows = [line for line in (ROOT / "docs" / "consumers.md").read_text().splitlines() if line.startswith("| `")]
    told = {line.split("`")[1]: line.rstrip("| ").rpartition("| ")[2] for line in rows}
    assert {rule.code: told.get(rule.code) for rule in RULES} == {rule.code: rule.source for rule in RULES}


@pytest.mark.parametrize("declaration", [KafkaTableDeclaration, MergeOnReadEntityDeclaration, S3SqsTablesDeclaration])
def test_the_tutorial_tells_every_attribute_that_can_be_declared(declaration: type[BaseModel]) -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text()
    part = page.split(f"`type: engagement_platform.{declaration.__name__.removesuffix('Declaration')}`")[1]
    rows = part.split("\n| attribute | what |\n|---|---|\n")[1].split("\n\n")[0]
    told = set(re.findall(r"`(\w+)`", " ".join(line.split("|")[1] for line in rows.splitlines())))
    assert told == set(declaration.model_fields)
