"""The command that reads objects once more, as people call it."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from engagement_platform.cli import app
from engagement_platform_tests.pipelines.games.conftest import World
from engagement_platform_tests.pipelines.games.events import line


@pytest.mark.slow
def test_rows_of_a_prefix_that_were_lost_come_back_and_the_rest_is_known(
    world: World, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in world.variables().items():
        monkeypatch.setenv(name, value)
    today = datetime.now(UTC)
    for hour, name in (("10", "login"), ("11", "login"), ("11", "purchase")):
        lines = [line(world.types[name], f"{hour}-{name}", event_ts=today.isoformat()), b"no json"]
        world.put(f"events/{today:%Y/%m/%d}/{hour}/{name}.json.gz", lines)
    world.run()
    before = world.everything()
    shutil.rmtree(Path(world.types["login"].table.uri(world.settings.lake)))

    def replay(*asked: str) -> list[dict[str, Any]]:
        done = CliRunner().invoke(app, ["replay", *asked, "--json"])
        assert done.exit_code == 0, done.output
        return [json.loads(said) for said in done.stdout.splitlines()]

    def of(counts: dict[str, Any]) -> tuple[int, ...]:
        return tuple(counts.get(name, 0) for name in ("rows_in", "landed", "duplicates", "quarantined"))

    assert [of(counts) for counts in replay("--prefix", f"events/{today:%Y/%m/%d}/10/")] == [(2, 1, 1, 0)]
    assert [row["event_id"] for row in world.rows("login")] == ["10-login"]
    assert [of(counts) for counts in replay("--date", f"{today:%Y-%m-%d}")] == [(6, 1, 5, 0)]
    assert world.everything() == before
    refused = CliRunner().invoke(app, ["replay", "--prefix", "events/1999/"])
    assert refused.exit_code != 0
    assert "There is no object at" in str(refused.exception)
    assert CliRunner().invoke(app, ["replay"]).exit_code == 2
    assert spark.version
