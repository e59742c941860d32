"""Upkeep of the files of game tables: fewer files, the same rows, and nobody who reads or writes them notices."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from deltalake import DeltaTable

from engagement_platform.maintenance.layout.optimize import Asked, Done, optimize, planned
from engagement_platform.maintenance.layout.vacuum import Vacuumed, vacuum_tables
from engagement_platform_tests.pipelines.games.conftest import World
from engagement_platform_tests.pipelines.games.events import line

BATCHES = 6


def test_merged_files_hold_the_same_rows_and_readers_jobs_and_vacuum_go_on(small: World) -> None:
    now = datetime.now(UTC)
    for batch in range(BATCHES):
        lines = [
            line(declared, f"{batch}-{name}", event_ts=(now - timedelta(minutes=batch)).isoformat())
            for name, declared in small.types.items()
        ]
        small.put(f"events/{batch}.json.gz", [*lines, b"no json"])
        small.run()
    before = small.everything()
    files = {
        name: len(DeltaTable(small.types[name].table.uri(small.settings.lake)).file_uris()) for name in small.types
    }
    assert set(files.values()) == {BATCHES}

    plan = planned(small.settings, Asked())
    outcomes = list(optimize(small.settings, plan))
    assert plan.unread == ()
    done = {one.slice.table.name: (one.files_before, one.files_after) for one in outcomes if isinstance(one, Done)}
    assert done == dict.fromkeys(("game/heartbeat", "game/login", "game/purchase", "game/quarantine"), (BATCHES, 1)), (
        outcomes
    )
    assert small.everything() == before

    # A copy of an event whose file was merged is known, and what is new lands.
    login = small.types["login"]
    small.put("events/again.json.gz", [line(login, "0-login", event_ts=now.isoformat()),
                                       line(login, "new", event_ts=now.isoformat())])  # fmt: skip
    (report,) = small.run()
    assert (report.counts["landed"], report.counts["duplicates"]) == (1, 1)

    vacuumed = [one for one in vacuum_tables(small.settings) if isinstance(one, Vacuumed)]
    assert {one.table for one in vacuumed} >= {"game/login", "game/quarantine"}
    # All of it is younger than the window for rollbacks.
    assert {one.files for one in vacuumed} == {0}
    assert len(small.rows("login")) == BATCHES + 1


def test_a_table_that_was_taken_back_has_all_its_rows_after_a_replay_and_none_twice(small: World) -> None:
    """As after a bad write: Delta's own RESTORE, then the objects of that time once more."""
    now = datetime.now(UTC).isoformat()
    for hour in ("10", "11"):
        lines = [line(declared, f"{hour}-{name}", event_ts=now) for name, declared in small.types.items()]
        small.put(f"events/2026/11/22/{hour}/a.json.gz", lines)
        small.run()
    before, uri = small.everything(), small.types["purchase"].table.uri(small.settings.lake)
    table = DeltaTable(uri)
    table.alter.set_table_properties({"delta.appendOnly": "false"})
    table.restore(1)
    assert [row["event_id"] for row in small.rows("purchase")] == ["10-purchase"]
    (report,) = small.replay("events/2026/11/22/")
    assert (report.counts["landed"], report.counts["duplicates"]) == (1, 5)
    assert small.everything() == before
