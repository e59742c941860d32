"""The replica in DuckDB: what it holds after anything that happens to the tables, to its file and to its process."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable

from engagement_platform.consumers.changes import NothingToRead
from engagement_platform.lake.engagement import NOTIFICATION
from engagement_platform.pipelines.engagements.schema import CURRENT_ROW
from engagement_platform.replica.compare import compare
from engagement_platform.replica.file import NoReplica, NotAReplica, ReplicaInUse, opened, state
from engagement_platform.replica.refresh import Place, Refreshed, place_of, refresh
from engagement_platform.replica.summaries import (
    OTHERS,
    Conversions,
    Day,
    Person,
    conversions,
    lag_of,
    per_day,
    summary,
    top_persons,
)
from engagement_platform_tests.consumers.lakes import PlainLake, Rows, by_key
from engagement_platform_tests.consumers.test_changes import expire, land, messages_of, vacuum
from engagement_platform_tests.pipelines.mutations.histories import FIRST_DAY, convert, delete, engagement, request


@pytest.fixture
def lake(tmp_path: Path) -> PlainLake:
    return PlainLake(tmp_path)


def place(lake: PlainLake) -> Place:
    return replace(place_of(lake.settings), wait_s=0.3)


def refreshed(lake: PlainLake, **options: Any) -> Refreshed:
    return refresh(lake.settings, place(lake), **options)


def rows(lake: PlainLake) -> Rows:
    with opened(place(lake).path, read_only=True, wait_s=1) as connection:
        found = connection.query("SELECT * FROM engagement").to_arrow_table()
    return by_key(found.cast(CURRENT_ROW))


def assert_equal(lake: PlainLake) -> None:
    """A loop over all rows, and the comparison that the check makes, which knows another way."""
    assert rows(lake) == lake.standing()
    assert compare(lake.settings, place(lake), pause_s=0).differences == ()


@pytest.mark.parametrize("seed", range(2))
def test_a_replica_has_what_readers_see_whatever_happened(tmp_path: Path, seed: int) -> None:
    lake, rng = PlainLake(tmp_path), random.Random(seed)
    land(lake, "first", organization="org-0")
    assert refreshed(lake).snapshot == "the replica is new"
    for part in messages_of(range(seed * 10, seed * 10 + 4), rng):
        engagements = [message for message in part if "request_id" not in message]
        asked = [m for m in part if "request_id" in m and m.get("from_id") != m.get("to_id", "")]
        if engagements:
            lake.land(engagements)
        if asked:
            lake.ask(asked)
        if rng.random() < 0.3:
            lake.move()
        assert refreshed(lake, max_rows=rng.choice((1, 5, 1000))).snapshot is None
        assert rows(lake) == lake.standing()
    assert_equal(lake)


def test_inserts_conversions_corrections_and_deletions_arrive_as_such(lake: PlainLake) -> None:
    land(lake, "e1", "e2", "e3")
    assert refreshed(lake).rows == 3
    lake.ask([convert("c1", "p1", "p2", 20, engagement_id="e1"), delete("d1", 20, engagement_id="e2")])
    lake.ask([request("u1", "UPDATE", 22, engagement_id="e3", subject="corrected", attributes={"k": "v"})])
    land(lake, "e4")
    done = refreshed(lake)
    assert (done.inserted, done.updated, done.deleted, done.rows) == (1, 2, 1, 3)
    assert rows(lake)["org", "e3"]["engagement"]["subject"] == "corrected"
    assert done.state.batch == "ingest-engagements#1"
    assert refreshed(lake).batches == 0
    assert_equal(lake)
    lag = lag_of(lake.settings, place(lake))
    assert lag is not None
    assert (lag.rows, lag.lost) == (0, False)


def restored_and_told(lake: PlainLake) -> None:
    """A rollback as consumers see it: rows go back, and a notification says so for each that looks different."""
    former = lake.stored()
    land(lake, "e4")
    DeltaTable(lake.uri(lake.data)).restore(1)
    gone = {**former["org", "e3"], "engagement_id": "e4", "person_id": None}
    lake.notify([{**gone, "previous_person_id": "p1", "change_type": "DELETE"}], lake.begin("restore-tables"))


def test_a_rollback_is_followed_like_any_other_change(lake: PlainLake) -> None:
    land(lake, "e1", "e2", "e3")
    refreshed(lake)
    restored_and_told(lake)
    done = refreshed(lake)
    assert sorted(name for _, name in rows(lake)) == ["e1", "e2", "e3"]
    assert done.snapshot is not None, "the commit of this rollback does not name our job"
    assert_equal(lake)


def outside(lake: PlainLake) -> None:
    DeltaTable(lake.uri(lake.data)).restore(1)


def vacuumed(lake: PlainLake) -> None:
    vacuum(lake)


def expired(lake: PlainLake) -> None:
    DeltaTable(lake.uri(NOTIFICATION)).create_checkpoint()
    expire(lake, 0, 1, 2)


def made_anew(lake: PlainLake) -> None:
    everything = [engagement(name, "p1", 10) for _, name in lake.standing()]
    for table in (lake.data, NOTIFICATION):
        shutil.rmtree(lake.uri(table))
    lake.__post_init__()
    for message in everything:
        lake.land([message])


def asked_for(lake: PlainLake) -> None:
    with opened(place(lake).path, read_only=False, wait_s=1) as connection:
        connection.execute("DELETE FROM engagement WHERE engagement_id = 'e2'")


@pytest.mark.parametrize(
    ("happened", "why"),
    [
        (outside, "restored an earlier one"),
        (vacuumed, "removed by VACUUM"),
        (expired, "its log begins at"),
        (made_anew, "a table was made anew"),
        (asked_for, "it was asked for"),
    ],
)
def test_where_changes_no_longer_lead_to_what_stands_all_rows_are_replaced_in_the_same_call(
    lake: PlainLake, happened: Callable[[PlainLake], None], why: str
) -> None:
    land(lake, "e1", "e2")
    refreshed(lake)
    land(lake, "e3")
    lake.ask([delete("d1", 20, engagement_id="e1")])
    happened(lake)
    done = refreshed(lake, resnapshot=happened is asked_for)
    assert why in (done.snapshot or "")
    assert_equal(lake)
    land(lake, "e9")
    assert refreshed(lake).snapshot is None
    assert_equal(lake)


def test_a_file_that_is_older_than_its_cursor_is_noticed(lake: PlainLake) -> None:
    land(lake, "e1")
    refreshed(lake)
    copy = place(lake).path.with_suffix(".copy")
    shutil.copy(place(lake).path, copy)
    land(lake, "e2")
    refreshed(lake)
    copy.replace(place(lake).path)
    assert refreshed(lake).snapshot == "the file is older than its consumer's cursor"
    assert_equal(lake)


DIES = """
import os, signal, sys
from datetime import timedelta
from pathlib import Path
from engagement_platform.consumers import Changes
from engagement_platform.replica import refresh
from engagement_platform.settings import Settings

point, count = sys.argv[2], int(sys.argv[3])

def dies(function):
    def called(*arguments):
        global count
        count -= 1
        if count < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments)
    return called

if point == "rows are in, nothing is committed":
    refresh.put_state = dies(refresh.put_state)
elif point == "the file is committed, the cursor is not":
    Changes.commit = dies(Changes.commit)
elif point == "some rows of a batch are in":
    refresh._Writer._insert = dies(refresh._Writer._insert)
settings = Settings(home=Path(sys.argv[1]))
refresh.refresh(settings, refresh.place_of(settings), max_rows=2)
"""

POINTS = (
    "some rows of a batch are in",
    "rows are in, nothing is committed",
    "the file is committed, the cursor is not",
)


@pytest.mark.crash
def test_a_kill_between_any_two_steps_doubles_nothing_and_loses_nothing(lake: PlainLake) -> None:
    """Each refresh ends at another point, and at each of them among the slow tests."""
    assert_kills_change_nothing(lake, POINTS)


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_between_the_same_two_steps_again_and_again(lake: PlainLake, point: str) -> None:
    # A refresh that goes on behind the first kill moves its cursor once.
    assert_kills_change_nothing(lake, [point] * 3, passed=0 if point == POINTS[-1] else 1)


def assert_kills_change_nothing(lake: PlainLake, points: Sequence[str], passed: int = 1) -> None:
    """Three refreshes, each killed at its point, the second when it has passed there so often; then one that is not."""
    land(lake, "e1", "e2", "e3")
    changes = ((0, None), (passed, convert("c1", "p1", "p2", 20)), (0, delete("d1", 21, engagement_id="e2")))
    for point, (count, change) in zip(points, changes, strict=True):
        if change is not None:
            lake.ask([change])
            land(lake, f"new-{change['request_id']}")
        command = [sys.executable, "-c", DIES, str(lake.home), point, str(count)]
        died = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=dict(os.environ))
        assert died.returncode == -signal.SIGKILL, died.stderr[-2000:]
        if place(lake).path.exists():
            with opened(place(lake).path, read_only=False, wait_s=5) as connection:
                said = state(connection, place(lake).path)
                (found,) = connection.execute("SELECT count(*) FROM engagement").fetchone() or (0,)
            assert said is not None or found == 0, "rows without the position that they are of"
    assert refreshed(lake, max_rows=2).snapshot in (None, "the replica is new")
    assert_equal(lake)


def test_files_of_others_and_other_files_are_refused_unchanged(lake: PlainLake, tmp_path: Path) -> None:
    with pytest.raises(NothingToRead):
        refresh(lake.settings.model_copy(update={"lake_uri": str(tmp_path / "nowhere")}), place(lake))
    with pytest.raises(NoReplica, match="replica refresh"):
        summary(Place(tmp_path / "none.duckdb"))
    land(lake, "e1")
    refreshed(lake)
    with pytest.raises(NotAReplica, match="and not another of"):
        refresh(lake.settings, replace(place(lake), name="another"))
    other = tmp_path / "other.duckdb"
    other.write_bytes(b"no database, and long enough to be looked at as one" * 100)
    with pytest.raises(NotAReplica, match="was not changed"):
        refresh(lake.settings, replace(place(lake), path=other))
    assert other.read_bytes().startswith(b"no database")


def test_who_finds_the_file_open_waits_and_is_told(lake: PlainLake) -> None:
    land(lake, "e1")
    refreshed(lake)
    opens = f"c = duckdb.connect({str(place(lake).path)!r})"
    holds = f"import duckdb, sys; {opens}; print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", holds], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(ReplicaInUse, match="open in another process"):
            refreshed(lake)
        other.communicate()
    assert refreshed(lake).rows == 1


def test_summaries_say_what_a_loop_over_the_rows_counts(lake: PlainLake) -> None:
    messages = []
    for n in range(40):
        organization, person = f"org-{n % 5}", f"p{n % 7}"
        messages.append({**engagement(f"e{n}", person, 24 * (n % 3) + 1), "organization_id": organization})
    lake.land(messages)
    lake.ask([{**convert("c1", "p1", "p2", 200), "organization_id": "org-1"}])
    refreshed(lake)
    standing = list(lake.standing().values())

    def count(*names: str) -> dict[tuple[Any, ...], int]:
        found: dict[tuple[Any, ...], int] = {}
        for row in standing:
            key = tuple(row[name] for name in names)
            found[key] = found.get(key, 0) + 1
        return found

    moved = [row for row in standing if row["person_id"] != row["source_person_id"]]
    with duckdb.connect(str(place(lake).path), read_only=True) as connection:
        days = per_day(connection, days=2, organizations=3)
        persons = top_persons(connection, most=4)
        converted = conversions(connection)
    by_day = {key: n for key, n in count("organization_id", "engagement_date").items() if key[1] > FIRST_DAY}
    sums: dict[str, int] = {}
    for (organization, _), n in by_day.items():
        sums[organization] = sums.get(organization, 0) + n
    large = sorted(sums, key=lambda name: (-sums[name], name))[:3]
    expected: dict[tuple[str, date], int] = {}
    for (organization, day), n in by_day.items():
        key = (organization if organization in large else OTHERS, day)
        expected[key] = expected.get(key, 0) + n
    assert {(day.organization, day.day): day.engagements for day in days} == expected
    assert all(isinstance(day, Day) for day in days)
    ranked = sorted(count("organization_id", "person_id").items(), key=lambda item: (-item[1], *item[0]))[:4]
    assert [((one.organization, one.person), one.engagements) for one in persons] == ranked
    assert all(isinstance(one, Person) for one in persons)
    assert converted == [Conversions("org-1", 1, len(moved))]
    totals = summary(place(lake)).totals
    assert (totals.engagements, totals.persons, totals.converted) == (
        len(standing), len(count("organization_id", "person_id")), len(moved),
    )  # fmt: skip
