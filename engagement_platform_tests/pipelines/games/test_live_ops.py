"""What Spark counts is what a loop over the events counts, once, and a drop after a change arrives at a webhook."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from scipy.stats import poisson
from typer.testing import CliRunner

from engagement_platform.alerting.model import Alert, State, message_about
from engagement_platform.cli import app
from engagement_platform.engine.database import open_engine
from engagement_platform.pipelines.games.counting import MOST, counted, of_plan
from engagement_platform.pipelines.games.decoding import EventLimits, event_decoder
from engagement_platform.pipelines.games.detection import SILENCE, Finding
from engagement_platform.pipelines.games.job import RECOUNT, recount
from engagement_platform.pipelines.games.live_ops import Judged, LiveOpsJob, _alert, tell
from engagement_platform.pipelines.games.registry import registry
from engagement_platform.pipelines.games.rules import decoded_ddl, decoded_lines
from engagement_platform.sources.messages import DecodingLimits
from engagement_platform_tests.alerting.receiver import Receiver
from engagement_platform_tests.pipelines.games.counted import SCHEMA, Event, Games, Row, groups, paid
from engagement_platform_tests.pipelines.games.test_rules import read

BEGIN = datetime(2026, 3, 2, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


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
                event("login", second, player, succeeded=True),
                event("purchase", second, player, product_id="a", price=n / 100, currency="USD"),
                event("purchase", second, player, product_id="b", price=900.0, currency="JPY", price_usd=6.0),
                event("purchase", second, player, product_id="c", price=900.0, currency="JPY"),
                event("crash", second, None if n % 2 else player, error="e"),
                event("level_up", second, player, level=n % 30 + 1),
            )[n % 6]
        )
    return made


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


def test_what_spark_counts_of_a_plan_is_what_a_loop_counts(spark: SparkSession, tmp_path: Path) -> None:
    change = event("server_status", 90, None, server_id="s", live_ops_change="offer 7")
    absurd = event("purchase", 100, "p1", product_id="a", price=1.0, currency="EUR", price_usd=1e300)
    keyed = [f"{end}{middle * 150}" for end in "ab" for middle in ("é", "\0", "éé")]
    odd = [event("login", 7, "p1", succeeded=True) for _ in keyed]
    for (_, row), session in zip(odd, keyed, strict=True):
        row["session_id"] = session
    odd += [
        event("server_status", at, None, server_id="s", live_ops_change=t)
        for at, t in ((150, "a\0b"), (210, "x" * 300))
    ]
    events, types = [*an_hour(), change, change, absurd, *odd], dict(registry())
    # As somebody may declare it: without a range.
    usd = types["purchase"].fields["price_usd"].model_copy(update={"at_most": None})
    fields = {**types["purchase"].fields, "price_usd": usd}
    types["purchase"] = types["purchase"].model_copy(update={"fields": fields})
    decode = event_decoder(types, EventLimits(DecodingLimits(), timedelta(days=7), timedelta(hours=1)))
    said = ({**row, "event_type": kind, "event_id": f"e{n}"} for n, (kind, row) in enumerate(events))
    lines = [json.dumps(each, default=datetime.isoformat).encode() for each in said]
    batch = decoded_lines(read([*lines, b"no json"], BEGIN), decode, types, BEGIN)
    plan = spark.createDataFrame(pa.Table.from_batches([batch]), decoded_ddl(types))
    found = counted(of_plan(plan, types, {kind for kind, _ in events}))
    keys = [(name, "ascending") for name in ("game", "minute", "player_id", "session_id")]
    for _, row in events:
        session, change_of = row["session_id"], row.get("live_ops_change")
        if session is not None and (len(session) > 256 or "\0" in session):
            row["session_id"] = hashlib.sha256(session.encode()).hexdigest()
        if change_of is not None:
            row["live_ops_change"] = change_of.replace("\0", "")[:256]
    assert found.select(SCHEMA.names).cast(SCHEMA).sort_by(keys).equals(groups(events).sort_by(keys))


def test_figures_are_a_loops_and_a_batch_counts_once(tmp_path: Path) -> None:
    games, events = Games(tmp_path), an_hour()
    for batch, part in enumerate((events[:120], events[120:250], events[250:])):
        made = groups(part)
        assert games.store.add("ingest-game-events@1.a", batch, made, BEGIN)
        assert not games.store.add("ingest-game-events@1.a", batch, made, BEGIN), "a resume adds nothing"
    job = LiveOpsJob(games.settings)
    assert figures(job) == by_a_loop(events)
    # Another job, and one that was reset, have batches of their own.
    games.store.add("replay-game-events@1.b", 0, groups([event("login", 5, "p3")]), BEGIN)
    assert figures(job) == by_a_loop([*events, event("login", 5, "p3")])
    recount(games.settings)
    assert figures(job) == []
    assert job.store.player("g1", "p3", BEGIN) is None


def test_sums_of_money_end_at_the_largest_number_and_batches_go_on(tmp_path: Path) -> None:
    """Ten million purchases of the highest price that a type allows are more than 64 bits hold."""
    games, dollars = Games(tmp_path), 1e6
    purchase = event("purchase", 5, "p1", product_id="a", price_usd=dollars)
    made = groups([purchase, event("purchase", 5, "p2", product_id="a", price_usd=dollars)])
    at = made.column_names.index("revenue_micros")

    def add(batch: int, *micros: int) -> None:
        column = pa.array(micros, pa.int64())
        assert games.store.add("job@1.a", batch, made.set_column(at, "revenue_micros", column), BEGIN)

    def revenue() -> list[float]:
        return [row["revenue"] for row in figures(LiveOpsJob(games.settings))]

    most = MOST / 1e6
    add(0, MOST - 10**12, 10**11)
    assert revenue() == [pytest.approx(most, rel=1e-6)]
    add(1, 10**12, 10**12)
    add(2, MOST, MOST)
    assert revenue() == [most]
    player = games.store.player("g1", "p1", BEGIN)
    assert player is not None
    assert player.spend == most
    with open_engine(games.settings.store_url).connect() as connection:
        assert connection.exec_driver_sql("SELECT typeof(revenue_micros) FROM live_ops_minute").all() == [("integer",)]
    # What is given back is taken off, down to the other end.
    add(3, -MOST, 0)
    assert revenue() == [0.0]
    for batch in range(4, 7):
        add(batch, -MOST, -MOST)
    assert revenue() == [-most]


def test_a_batch_that_was_planned_by_a_clock_ahead_counts_until_the_next_one(tmp_path: Path) -> None:
    games, ahead = Games(tmp_path), BEGIN + timedelta(days=400)
    for ingested in (BEGIN, ahead, BEGIN + MINUTE):
        games.add([event("login", 5, "p1")], ingested)
    found = games.store.newest()
    assert found is not None
    assert found[0] == BEGIN + MINUTE
    games.add([event("login", 5, "p1")], ahead)
    games.store.reset(RECOUNT, [])
    # Of a job that had another application id by then nothing more comes.
    games.store.add("ingest-game-events@2.test", 0, groups([event("login", 5, "p1")]), BEGIN + 2 * MINUTE)
    found = games.store.newest()
    assert found is not None
    assert found[0] == BEGIN + 2 * MINUTE


def test_spark_ends_a_sum_of_money_at_the_largest_number(spark: SparkSession) -> None:
    one = "'purchase' event_type, timestamp'2026-03-02' event_ts, 'g1' game_id, 'p1' player_id, 's1' session_id"
    of = "1000000D price_usd, 0D price, '' currency, 0L level, CAST(NULL AS STRING) live_ops_change"
    (row,) = counted(spark.range(9_300_000).selectExpr(*one.split(", "), *of.split(", "))).to_pylist()
    assert (row["purchases"], row["revenue_micros"]) == (9_300_000, MOST)


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
        assert "consider taking it back" in receiver.arrived[0]["message"]
        play(change + 10 * MINUTE, 10, 60)
        assert len(told()) == 2
        assert receiver.titles[1].startswith("[recovered] g1: ")
        # Nothing comes at all, so only the clock goes on.
        clock[0] += timedelta(minutes=30)
        assert "[error] g1 is silent" in told()[2:]
        assert len(told()) == 4, "the last minutes before the silence was one were a drop"
        assert not any("recovered" in title for title in receiver.titles[2:])


@pytest.mark.parametrize(
    "change",
    [
        "[log in](https://evil.example)",
        "www.evil.example",
        "evil.example",
        "@everyone",
        "a\r\nBcc: x",
        "\x1b[2J",
        "x" * 65,
    ],
)
def test_a_change_is_named_in_an_alert_only_by_words(change: str) -> None:
    for given, title in ((change, "after a change"), ("offer 7", "after offer 7"), ("v2.1-rc", "after v2.1-rc")):
        alert = _alert("k", [Finding("g1", "events", BEGIN, None, 0.5, given)])
        assert alert.title.endswith(title)
        assert (given in alert.body, alert.labels.get("change")) == (
            (True, given) if given != change else (False, None)
        )


def test_the_id_of_a_game_is_no_link_in_an_alert() -> None:
    told = list[Alert]()
    kept: Any = SimpleNamespace(raised=told.append, recovered=lambda *_: None)
    for what in ("events", SILENCE):
        tell(kept, [], [Finding("www.evil.example", what, BEGIN, None, 0.5, None)])
    for alert in told:
        assert alert.key.startswith("live-ops/www.evil.example/")
        message = message_about(alert, State.RAISED, 1)
        for shown in (message.title, message.text):
            assert "www[.]evil[.]example" in shown
            assert "evil.example" not in shown


def test_who_follows_judges_again_and_again_and_stops(tmp_path: Path) -> None:
    stop, games = threading.Event(), Games(tmp_path)
    live_ops = games.settings.live_ops.model_copy(update={"poll": timedelta(seconds=0.01)})
    job = LiveOpsJob(games.settings.model_copy(update={"live_ops": live_ops}), clock=lambda: BEGIN)
    judged: list[datetime | None] = []

    def came(done: Judged) -> None:
        if done.until not in judged:
            judged.append(done.until)
            at = BEGIN + len(judged) * 10 * MINUTE
            games.append("login", [{"game_id": "g1", "event_ts": at, "player_id": "p"}], at)
        if len(judged) == 3:
            stop.set()

    follower = threading.Thread(target=job.follow, args=(stop, came))
    follower.start()
    follower.join(60)
    assert not follower.is_alive()
    delay = games.settings.live_ops.delay
    assert judged == [None, BEGIN + 10 * MINUTE - delay, BEGIN + 20 * MINUTE - delay]


def test_the_commands_judge_show_a_player_and_forget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path))
    games, runner = Games(tmp_path), CliRunner()
    bought = event("purchase", 5, "p1", product_id="a", price=2.5, currency="USD")
    games.add([bought, event("login", 8, "p1")], BEGIN)

    def said(*arguments: str) -> dict[str, Any]:
        result = runner.invoke(app, ["live-ops", *arguments])
        assert result.exit_code == 0, result.output
        found: dict[str, Any] = json.loads(result.stdout)
        return found

    done = said("run", "--until-idle", "--json")
    assert (done["games"], done["standing"]) == ([], [])
    features = said("player", "g1", "p1")
    assert (features["spend"], features["level"]) == (2.5, 0)
    assert runner.invoke(app, ["live-ops", "player", "g1", "p2"]).exit_code == 1
    assert runner.invoke(app, ["live-ops", "run"]).exit_code == 2
    assert runner.invoke(app, ["live-ops", "reset"]).exit_code == 0
    assert runner.invoke(app, ["live-ops", "player", "g1", "p1"]).exit_code == 1
