"""A process that is killed while its tables are being written side by side. The rest is in `test_job`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from engagement_platform_tests.pipelines.games.conftest import World
from engagement_platform_tests.pipelines.games.events import line

TYPES = ("level_up", "login", "purchase")


@pytest.mark.crash
def test_a_process_that_is_killed_in_the_midst_of_its_tables_loses_and_doubles_nothing(world: World) -> None:
    now = datetime.now(UTC).isoformat()
    events = [line(world.types[name], name, event_ts=now) for name in TYPES]
    world.put("events/a.json.gz", [*events, b"no json"])
    told = {"HOME": str(world.settings.home), "GAMES__BUCKET": world.bucket, "GAMES__QUEUE_URL": world.queue,
            "GAMES__VISIBILITY": "PT3S", "LAYOUT__AUTO_COMPACT": "false", "SPARK__MASTER": "local[2]"}  # fmt: skip
    env = {**os.environ, **{f"ENGAGEMENT_PLATFORM_{name}": value for name, value in told.items()}}
    command = [sys.executable, "-m", "engagement_platform_tests.pipelines.games.killable", "tables.level_up:after"]
    ended = subprocess.run(command, env=env, check=False, capture_output=True, timeout=500)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()[-2000:]
    assert len(world.rows("level_up")) == 1
    assert world.left() == 1
    (resumed,) = world.run()
    assert resumed.replayed
    assert {name: len(rows) for name, rows in world.everything().items()} == dict.fromkeys(("quarantine", *TYPES), 1)
    assert world.left() == 0
