"""optimize and vacuum on the command line: what they print, what they change, how they end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from engagement_platform.cli import app
from engagement_platform.maintenance.layout.vacuum import RetentionTooShort
from engagement_platform_tests.maintenance.layout import logs
from engagement_platform_tests.maintenance.layout.seeded import SeededLake


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> SeededLake:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    made = SeededLake(tmp_path)
    made.engagements("org-1", 12)
    made.engagements("org-2", 20)
    return made


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def lines(result: Result) -> list[dict[str, object]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_dry_run_prints_the_plan_and_changes_nothing(lake: SeededLake) -> None:
    told = call("optimize", "--dry-run")
    assert (told.exit_code, lake.files()) == (0, 32)
    assert "organization_id=org-2" in told.stdout
    assert "20 → 1" in told.stdout
    [plan] = lines(call("optimize", "--dry-run", "--json"))
    assert [one["partition"] for one in plan["slices"]] == ["organization_id=org-2", "organization_id=org-1"]  # type: ignore[attr-defined]
    [none] = lines(call("optimize", "--dry-run", "--json", "--budget", "0"))
    assert (len(none["slices"]), len(none["left"])) == (1, 1)  # type: ignore[arg-type]


def test_optimize_and_vacuum_say_what_they_do_and_vacuum_refuses_to_remove_too_much(lake: SeededLake) -> None:
    [done] = lines(call("optimize", "--organization", "org-1", "--json"))
    assert (done["partition"], done["files_before"], done["files_after"]) == ("organization_id=org-1", 12, 1)
    assert (lake.files("org-1"), lake.files("org-2")) == (1, 20)
    told = call("optimize", "engagement/data")
    assert told.exit_code == 0
    assert told.stdout.startswith("[1/1] engagement/data organization_id=org-2: 20 → 1 files, ")
    assert "up to" in told.stderr
    assert lake.files() == 2
    again = call("optimize", "engagement/data")
    assert (again.exit_code, again.stdout) == (0, "Nothing to mend.\n")

    [would] = lines(call("vacuum", "engagement/data", "--dry-run", "--json"))
    assert (would["files"], would["kept_hours"], would["dry_run"]) == (0, 168, True)
    refused = call("vacuum", "engagement/data", "--hours", "1")
    assert isinstance(refused.exception, RetentionTooShort)
    everything = call("vacuum", "--dry-run")
    assert everything.exit_code == 0
    assert "engagement/data: 0 files of 0 bytes would go; kept 168 h" in everything.stdout
    assert "layout/history: 0 files" in everything.stdout


def test_tables_that_cannot_be_read_or_rewritten_are_named_and_keep_the_others_from_nothing(lake: SeededLake) -> None:
    beyond = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["wishes"], "writerFeatures": ["wishes"]}
    logs.table(Path(lake.settings.lake) / "other" / "house", protocol=beyond)
    next(Path(lake.uri()).rglob("organization_id=org-1/*.parquet")).unlink()
    ended = call("optimize", "--json")
    assert (ended.exit_code, lake.files("org-2")) == (1, 1)
    assert "The log of other/house cannot be read" in ended.stderr
    assert {one["partition"]: one.get("failed", False) for one in lines(ended)} == {
        "organization_id=org-1": True,
        "organization_id=org-2": False,
    }
