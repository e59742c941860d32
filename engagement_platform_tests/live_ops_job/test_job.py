"""What the job counts is what a loop over the events counts, once, and a drop after a change arrives at a webhook."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import poisson
from typer.testing import CliRunner

from engagement_platform.cli import app
from engagement_platform.consumers.appended import Appends
from engagement_platform.lake.arrow import table_of
from engagement_platform.live_ops.minutes import known_rows
from engagement_platform.live_ops_job.events import batch_of, changes_of, events_of
from engagement_platform.live_ops_job.job import CONSUMER, Counted, LiveOpsJob, reset
from engagement_platform.pipelines.games.registry import registry
from engagement_platform_tests.alerting.receiver import Receiver
from engagement_platform_tests.live_ops_job.tables import Games, Row

BEGIN = datetime(2026, 3, 2, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
Event = tuple[str, Row]


def event(kind: str, second: int, player: str | None, **fields: object) -> Event:
    session = None if player is None else f"{player}-{second // 600}"
    at = BEGIN + timedelta(seconds=second)
    return kind, {"game_id": "g1", "event_ts": at, "player_id": player, "session_id": session, **fields}


def an_hour() -> list[Event]:
    """Events of five types in no order of time."""
    made = []
    for n in range(300):
        second, player = n * 7919 % 3600, f"p{n % 7}"
        made.append(
            (
                event("login", second, player),
                event("purchase", second, player, product_id="a", price=n / 100, currency="USD"),
                event("purchase", second, player, product_id="b", price=900.0, currency="JPY", price_usd=6.0),
                event("purchase", second, player, product_id="c", price=900.0, currency="JPY"),
                event("crash", second, None if n % 2 else player, error="e"),
                event("level_up", second, player, level=n % 30 + 1),
            )[n % 6]
        )
    return made


def paid(kind: str, row: Row) -> int:
    """Millionths of a dollar."""
    if kind != "purchase":
        return 0
    dollars = row.get("price_usd") or (row["price"] if row["currency"] == "USD" else 0)
    return round(dollars * 1e6)


def by_a_loop(events: list[Event]) -> list[Row]:
    by: dict[datetime, list[Event]] = defaultdict(list)
    for kind, row in events:
        by[row["event_ts"].replace(second=0)].append((kind, row))
    return [
        {
            "game": "g1", "minute": minute, "events": len(ours),
            "players": len({row["player_id"] for _, row in ours} - {None}),
            "purchases": sum(kind == "purchase" for kind, _ in ours),
            "revenue": sum(paid(kind, row) for kind, row in ours) / 1e6,
            "errors": sum(kind == "crash" for kind, _ in ours),
        }
        for minute, ours in sorted(by.items())
    ]  # fmt: skip


def figures(job: LiveOpsJob) -> list[Row]:
    rows: list[Row] = job.store.figures(BEGIN, BEGIN + timedelta(days=9)).to_pylist()
    return rows


def put(games: Games, events: list[Event]) -> None:
    by: dict[str, list[Row]] = defaultdict(list)
    for kind, row in events:
        by[kind].append(row)
    for kind, rows in by.items():
        games.append(kind, rows, BEGIN + timedelta(hours=1))


def test_figures_and_features_are_a_loops_however_often_the_job_runs_and_wherever_it_crashes(tmp_path: Path) -> None:
    games, events = Games(tmp_path), an_hour()
    put(games, events[:120])
    first = LiveOpsJob(games.settings, max_rows=15)
    assert first.run().rows == 120
    assert first.run().rows == 0
    put(games, events[120:250])
    # A process that counted a part of a commit, and died before its cursor moved.
    login = registry()["login"]
    dying = Appends(
        games.settings.lake, login.table.name, name=CONSUMER, max_rows=5, store_url=games.settings.store_url
    )
    before, batch = dying.committed, next(iter(dying))
    crashed = LiveOpsJob(games.settings)
    start, end = (before.version, before.rows), (batch.position.version, batch.position.rows)
    counted = partial(batch_of, login, batch.rows)
    assert crashed.store.take(login.table.name, start, end, len(batch.rows), counted) == 5
    assert crashed.store.take(login.table.name, start, end, len(batch.rows), counted) == 0, "a replay adds nothing"
    # The next one cuts the same rows otherwise.
    DeltaTable(login.table.uri(games.settings.lake)).optimize.compact()
    again = LiveOpsJob(games.settings, max_rows=13)
    assert again.run().rows == 125
    assert figures(again) == by_a_loop(events[:250])
    put(games, events[250:])
    assert again.run().rows == 50
    assert figures(again) == by_a_loop(events)
    player_is_a_loops(again, events, "p3")
    reset(games.settings)
    assert figures(again) == []
    assert LiveOpsJob(games.settings).run().rows == 300
    assert figures(again) == by_a_loop(events)
    player_is_a_loops(again, events, "p3")


def player_is_a_loops(job: LiveOpsJob, events: list[Event], player: str) -> None:
    ours = [(kind, row) for kind, row in events if row["player_id"] == player]
    sessions: dict[str, list[datetime]] = defaultdict(list)
    for _, row in ours:
        sessions[row["session_id"]].append(row["event_ts"])
    now = BEGIN + timedelta(hours=2)
    found = job.features.read("g1", player, now)
    assert found is not None
    assert found.spend == sum(paid(*one) for one in ours) / 1e6
    assert found.level == max(row.get("level", 0) for _, row in ours)
    assert found.recency_s == (now - max(row["event_ts"] for _, row in ours)).total_seconds()
    assert found.frequency_per_day == len(sessions)
    lengths = [(max(times) - min(times)).total_seconds() for times in sessions.values()]
    assert found.mean_session_s == sum(lengths) / len(lengths)


def test_a_drop_after_a_change_arrives_at_a_webhook_once_and_so_does_its_end(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    day, change = BEGIN + timedelta(days=2), BEGIN + timedelta(days=2, hours=3)
    clock = [change]
    with Receiver() as receiver:
        games = Games(tmp_path, receiver.url)
        job = LiveOpsJob(games.settings, clock=lambda: clock[0])

        def play(begin: datetime, minutes: int, mean: int) -> None:
            counts = random.poisson(mean, minutes)
            at = np.repeat(np.arange(minutes), counts) * 60 + random.uniform(0, 60, counts.sum())
            times = (begin.timestamp() + at) * 1e6
            clock[0] = begin + minutes * MINUTE + games.settings.live_ops.delay
            games.append_many("heartbeat", times, ["p1", "p2", "p3"], clock[0])

        def told() -> list[str]:
            job.run()
            job.alerts.deliver()
            return receiver.titles

        play(BEGIN, 2 * 1440, 60)
        assert told() == [], "too little is known yet, or nothing is wrong"
        play(day, 180, 60)
        assert told() == []
        server: dict[str, Any] = {"game_id": "g1", "event_ts": change, "server_id": "s1", "live_ops_change": "offer 7"}
        games.append("server_status", [server], change)
        for minute in range(6):
            play(change + minute * MINUTE, 1, 30)
            if told():
                break
        # Thirty of sixty in one minute could be chance, sixty of 120 could not; and that a minute is over is known when
        # one of the next has come.
        assert poisson.cdf(30, 60) > games.settings.live_ops.change_chance > poisson.cdf(60, 120)
        assert minute == 2
        # The same is told again once an hour only.
        play(change + 6 * MINUTE, 4, 30)
        assert len(told()) == 1
        assert receiver.titles[0].startswith("[error] g1: ")
        assert "events" in receiver.titles[0]
        assert receiver.titles[0].endswith("after offer 7")
        play(change + 10 * MINUTE, 10, 60)
        assert len(told()) == 2
        assert receiver.titles[1].startswith("[recovered] g1: ")
        # Nothing comes at all, so only the clock goes on.
        clock[0] += timedelta(minutes=30)
        assert "[error] g1 is silent" in told()[2:]
        assert len(told()) == 4, "the last minutes before the silence was one were a drop"
        assert not any("recovered" in title for title in receiver.titles[2:])


def test_who_follows_counts_what_comes_tells_and_stops(tmp_path: Path) -> None:
    rows, stop = [3, 2, 4], threading.Event()
    games = Games(tmp_path)
    live_ops = games.settings.live_ops.model_copy(update={"poll": timedelta(seconds=0.01)})
    job = LiveOpsJob(games.settings.model_copy(update={"live_ops": live_ops}))
    counted: list[int] = []

    def came(done: Counted) -> None:
        """After each run that counted, the next rows; after the last of them, and a run that found none, the end."""
        if done.rows:
            counted.append(done.rows)
        elif len(counted) == len(rows):
            stop.set()
        if len(counted) < len(rows) and (done.rows or not counted):
            put(games, [event("login", n, "p") for n in range(rows[len(counted)])])

    follower = threading.Thread(target=job.follow, args=(stop, came))
    follower.start()
    follower.join(60)
    assert not follower.is_alive()
    assert counted == rows
    assert sum(row["events"] for row in figures(job)) == sum(rows)


def test_each_shipped_type_makes_events_and_only_server_status_tells_of_changes() -> None:
    telling = []
    for name, declared in registry().items():
        row = {"event_ts": BEGIN + timedelta(seconds=90), "game_id": "g1", "live_ops_change": "x", "price_usd": 2.0}
        rows = table_of([{key: row[key] for key in row if key in declared.table.column_names}] * 2, declared.table)
        [one, other] = events_of(declared, rows).to_pylist()
        assert one == other
        assert (one["event_type"], one["player_id"], one["level"]) == (name, None, None)
        assert one["revenue"] == (2.0 if "price_usd" in declared.fields else None)
        if found := changes_of(declared, rows):
            assert [(change.at, change.name) for change in found] == [(BEGIN + MINUTE, "x")]
            telling.append(name)
    assert telling == ["server_status"]


@given(st.integers(0, 20), st.integers(1, 20), st.integers(0, 40), st.booleans())
def test_rows_that_were_counted_are_passed_by_however_they_were_cut(a: int, size: int, place: int, last: bool) -> None:
    """Rows a to a + size of commit 4, of which `place` were counted."""
    through = (4, 0) if last else (3, a + size)
    before = (3, a) if a else (2, 7)
    counted = (3, place) if place else (1, 5)
    if counted < through and place <= a + size:
        assert known_rows(counted, before, through) == len(set(range(a, a + size)) & set(range(place)))


def test_the_commands_count_show_a_player_and_forget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path))
    games, runner = Games(tmp_path), CliRunner()
    put(games, [event("purchase", 5, "p1", product_id="a", price=2.5, currency="USD"), event("login", 8, "p1")])

    def said(*arguments: str) -> dict[str, Any]:
        result = runner.invoke(app, ["live-ops", *arguments])
        assert result.exit_code == 0, result.output
        found: dict[str, Any] = json.loads(result.stdout)
        return found

    for rows in (2, 0):
        done = said("run", "--until-idle", "--json")
        assert (done["rows"], done["tables"], done["games"], done["standing"]) == (rows, 2, [], [])
    features = said("player", "g1", "p1")
    assert (features["spend"], features["level"]) == (2.5, 0)
    assert runner.invoke(app, ["live-ops", "player", "g1", "p2"]).exit_code == 1
    assert runner.invoke(app, ["live-ops", "run"]).exit_code == 2
    assert runner.invoke(app, ["live-ops", "reset"]).exit_code == 0
    assert runner.invoke(app, ["live-ops", "player", "g1", "p1"]).exit_code == 1
    assert said("run", "--until-idle", "--json")["rows"] == 2
