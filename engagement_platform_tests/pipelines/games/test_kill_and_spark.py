"""A process that is killed at table seventeen, and tables that Spark writes. The rest is in `test_job`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession

from engagement_platform.settings import LayoutSettings
from engagement_platform_tests.pipelines.games.conftest import World
from engagement_platform_tests.pipelines.games.events import line


def lines(world: World, prefix: str) -> list[bytes]:
    """One event of each type, and one that is refused."""
    now = datetime.now(UTC).isoformat()
    events = [line(declared, f"{prefix}-{name}", event_ts=now) for name, declared in world.types.items()]
    return [*events, b"no json"]


@pytest.mark.crash
def test_a_process_that_is_killed_at_table_seventeen_loses_and_doubles_nothing(world: World) -> None:
    seventeenth = list(world.types)[16]
    world.put("events/a.json.gz", lines(world, "a"))
    told = {"HOME": str(world.settings.home), "GAMES__BUCKET": world.bucket, "GAMES__QUEUE_URL": world.queue,
            "GAMES__VISIBILITY": "PT3S", "LAYOUT__AUTO_COMPACT": "false"}  # fmt: skip
    env = {**os.environ, **{f"ENGAGEMENT_PLATFORM_{name}": value for name, value in told.items()}}
    command = [
        sys.executable,
        "-m",
        "engagement_platform_tests.pipelines.games.killable",
        f"{seventeenth}.append:after",
    ]
    ended = subprocess.run(command, env=env, check=False, capture_output=True, timeout=500)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()[-2000:]
    assert [name for name in world.types if world.rows(name)] == list(world.types)[:17]
    passed: list[str] = []
    (resumed,) = world.run(passed.append)
    assert (resumed.replayed, passed[0]) == (True, f"{seventeenth}.append:before")
    assert {name: len(world.rows(name)) for name in world.types} == dict.fromkeys(world.types, 1)
    assert len(world.rows("quarantine")) == 1
    assert world.left() == 0


@pytest.mark.slow
def test_tables_that_spark_writes_have_the_same_rows(world: World, spark: SparkSession) -> None:
    """As for lakes on object stores, and with `layout.light_write_rows` at 0."""
    world.types = {name: world.types[name] for name in ("experiment", "subscription")}
    world.put("events/a.json.gz", lines(world, "a"))
    world.run()
    expected = world.everything()
    in_spark = LayoutSettings(auto_compact=False, light_write_rows=0)
    world.settings = world.settings.model_copy(
        update={"lake_uri": str(world.settings.home / "other"), "layout": in_spark}
    )
    world.spark = spark
    world.stores.checkpoints.reset("ingest-game-events")
    (again,) = world.run()
    assert again.counts["files"] == 3
    assert world.everything() == expected
    (known,) = (world.stores.checkpoints.reset("ingest-game-events"), world.run())[1]
    assert (known.counts.get("landed", 0), known.counts["duplicates"]) == (0, 3)
