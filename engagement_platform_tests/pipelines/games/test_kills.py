"""A process that is killed while its tables are being written side by side. The rest is in `test_job`."""

from __future__ import annotations

import signal
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
    ended = world.in_a_process("tables.level_up:after", SPARK__MASTER="local[2]")
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()[-2000:]
    assert len(world.rows("level_up")) == 1
    assert world.left() == 1
    (resumed,) = world.run()
    assert resumed.replayed
    assert {name: len(rows) for name, rows in world.everything().items()} == dict.fromkeys(("quarantine", *TYPES), 1)
    assert world.left() == 0
