"""Objects to thirty tables: sums, duplicates, crashes at any table, replays. Real queue, bucket and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from engagement_platform.cli import app
from engagement_platform.engine.database import open_engine
from engagement_platform.engine.job import BatchReport, BooksDoNotBalance
from engagement_platform.engine.model import JobState
from engagement_platform.engine.table_logs import NotResumable
from engagement_platform.erasing.places import game_places
from engagement_platform.lake import log
from engagement_platform.pii.erasure import erase, subject
from engagement_platform.pii.vault import open_vault
from engagement_platform.pipelines.games.event_type import QUARANTINE, EventType
from engagement_platform.pipelines.games.job import recount
from engagement_platform.pipelines.games.live_ops_store import LiveOpsStore
from engagement_platform.pipelines.games.registry import registry
from engagement_platform.pipelines.jobs import reset_job
from engagement_platform.sources import s3_objects
from engagement_platform.sources.s3_events import S3File
from engagement_platform.sources.s3_objects import Objects
from engagement_platform_tests.matrix import quick
from engagement_platform_tests.pipelines.games.conftest import World
from engagement_platform_tests.pipelines.games.events import line


def now() -> str:
    return datetime.now(UTC).isoformat()


def sent(declared: EventType, event_id: str, **fields: Any) -> bytes:
    """A good event of this moment."""
    return line(declared, event_id, **{"event_ts": now(), **fields})


def of_every_type(world: World, prefix: str) -> list[bytes]:
    """Two events of each type, one of them twice, and three that are refused."""
    lines = []
    for name, declared in world.types.items():
        lines += [sent(declared, f"{prefix}-{name}-1"), sent(declared, f"{prefix}-{name}-2")]
        lines.append(lines[-1])
    late = (datetime.now(UTC) - timedelta(days=8)).isoformat()
    last = list(world.types.values())[-1]
    return [*lines, b"no json", b"  ", sent(last, "x", event_type="nope"), sent(last, "y", event_ts=late)]


def assert_sums(report: BatchReport) -> None:
    counts = report.counts
    assert counts["rows_in"] == counts["landed"] + counts["duplicates"] + counts["quarantined"]


def test_an_announcement_that_is_repeated_or_late_changes_nothing(small: World) -> None:
    """SQS may deliver twice and in any order; an object that is gone is skipped, and said to be."""
    heartbeat = small.types["heartbeat"]
    for key in ("a", "b", "c"):
        small.put(f"events/{key}.json.gz", [sent(heartbeat, key)])
    for key in ("c", "a", "gone", "a"):
        again = S3File(small.bucket, f"events/{key}.json.gz", event_time=now())
        small.sqs.send_message(QueueUrl=small.queue, MessageBody=again.as_event())
    small.run()
    small.sqs.send_message(QueueUrl=small.queue, MessageBody=S3File(small.bucket, "events/b.json.gz").as_event())
    assert small.run() == []
    assert [row["event_id"] for row in small.rows("heartbeat")] == ["a", "b", "c"]
    assert small.left() == 0
    letters = small.sqs.receive_message(QueueUrl=small.dead, MessageAttributeNames=["All"])["Messages"]
    assert [letter["MessageAttributes"]["reason_code"]["StringValue"] for letter in letters] == ["deleted"]


class Crash(Exception):
    """Stands for the end of the process."""


def crash_at(point: str) -> Any:
    def observe(passed: str) -> None:
        if passed == point:
            raise Crash(point)

    return observe


def test_events_of_thirty_types_land_in_thirty_tables_and_the_sums_are_right(world: World) -> None:
    world.put("events/2026/11/22/10/a.json.gz", of_every_type(world, "a"))
    (report,) = world.run()
    assert_sums(report)
    assert {name: report.counts[name] for name in ("rows_in", "landed", "duplicates", "quarantined")} == {
        "rows_in": 93, "landed": 60, "duplicates": 30, "quarantined": 3,
    }  # fmt: skip
    for name in world.types:
        assert [row["event_id"] for row in world.rows(name)] == [f"a-{name}-1", f"a-{name}-2"]
    assert Counter(row["reason_code"] for row in world.rows("quarantine")) == {
        "not_json": 1, "unknown_event_type": 1, "late": 1,
    }  # fmt: skip
    # One file for each table that has rows, since all events are of one day.
    assert report.counts["files"] == 31
    for table in (QUARANTINE, *(declared.table for declared in world.types.values())):
        history = DeltaTable(table.uri(world.settings.lake)).history()
        (written,) = (entry for entry in history if entry["operation"] == "WRITE")
        assert written["engineInfo"].startswith("Apache-Spark/"), table.name
    assert world.left() == 0
    assert world.run() == []


def versions(small: World) -> dict[str, int | None]:
    """Of the table of each type."""
    return {name: log.version(declared.table.uri(small.settings.lake)) for name, declared in small.types.items()}


def test_an_event_that_comes_again_in_another_object_is_dropped_within_the_window(small: World) -> None:
    """And no table is written that the batch has nothing new for."""
    purchase, at = small.types["purchase"], datetime.now(UTC) - timedelta(hours=5)
    small.put("events/a.json.gz", [sent(purchase, "a", event_ts=at.isoformat())])
    small.run()
    before = versions(small)
    small.put("events/b.json.gz", [sent(small.types["login"], "b"), sent(purchase, "a", event_ts=at.isoformat())])
    (report,) = small.run()
    assert (report.counts["landed"], report.counts["duplicates"]) == (1, 1)
    assert [name for name, version in versions(small).items() if version != before[name]] == ["login"]
    again = [(at + timedelta(minutes=apart)).isoformat() for apart in (0, 60, 61)]
    small.put("events/c.json.gz", [sent(purchase, "a", event_ts=each) for each in again])
    (report,) = small.run()
    assert (report.counts["landed"], report.counts["duplicates"]) == (1, 2)
    assert [(row["event_ts"] - at) // timedelta(minutes=1) for row in small.rows("purchase")] == [0, 61]


@pytest.mark.parametrize("point", quick(["tables.login:before", "tables.login:after", "lines:recorded"]))
def test_a_batch_that_fails_in_the_midst_of_its_tables_writes_those_that_are_missing(small: World, point: str) -> None:
    small.put("events/a.json.gz", of_every_type(small, "a"))
    with pytest.raises(Crash):
        small.run(crash_at(point))
    assert small.left() == 1
    assert bool(versions(small)["login"]) == (point == "tables.login:after")
    (resumed,) = small.run()
    assert resumed.replayed
    assert_sums(resumed)
    assert {name: len(small.rows(name)) for name in small.types} == dict.fromkeys(small.types, 2)
    assert len(small.rows("quarantine")) == 3
    assert small.left() == 0


def test_a_batch_that_was_begun_and_not_read_is_halved_at_the_next_attempt(small: World) -> None:
    for number in range(5):
        small.put(f"events/{number}.json.gz", [sent(small.types["login"], str(number))])
    with pytest.raises(Crash):
        small.run(crash_at("manifest:after"))
    first, rest = small.run()
    assert (first.counts["rows_in"], rest.counts["rows_in"]) == (2, 3)
    assert [row["event_id"] for row in small.rows("login")] == ["0", "1", "2", "3", "4"]
    assert small.left() == 0


def events_by_minute(small: World) -> dict[datetime, int]:
    """Of the game that all events are of, in all tables."""
    times = [row["event_ts"] for name in small.types for row in small.rows(name)]
    return dict(Counter(time.replace(second=0, microsecond=0) for time in times))


def test_what_a_batch_that_was_given_up_has_left_in_tables_is_counted_once_and_a_reset_counts_it_too(
    small: World,
) -> None:
    small.put("events/a.json.gz", of_every_type(small, "a"))
    with pytest.raises(Crash):
        small.run(crash_at("tables:recorded"))
    store = LiveOpsStore(open_engine(small.settings.store_url))
    assert store.newest() is None, "nothing is counted yet"
    reset_job("ingest-game-events", small.settings, abandon=True)
    small.put("events/b.json.gz", of_every_type(small, "b"))
    small.run()
    moment = datetime.now(UTC)

    def figures() -> dict[datetime, int]:
        # A day on: events that this test sends later are in it whatever minute they are of.
        rows = store.figures(moment - timedelta(days=1), moment + timedelta(days=1)).to_pylist()
        return {row["minute"]: row["events"] for row in rows}

    player = small.rows("login")[0]
    features = store.player(player["game_id"], player["player_id"], moment)
    assert figures() == events_by_minute(small)
    recount(small.settings)
    assert figures() == events_by_minute(small)
    assert store.player(player["game_id"], player["player_id"], moment) == features
    # Neither what was given up nor anything else is counted again.
    small.put("events/c.json.gz", [sent(small.types["login"], "c")])
    small.run()
    assert figures() == events_by_minute(small)


def test_figures_count_what_is_in_the_tables_where_the_objects_went_before_they_were_counted(small: World) -> None:
    small.put("events/a.json.gz", of_every_type(small, "a"))
    with pytest.raises(Crash):
        small.run(crash_at("tables:recorded"))
    small.s3.delete_object(Bucket=small.bucket, Key="events/a.json.gz")
    small.run()
    moment = datetime.now(UTC)
    store = LiveOpsStore(open_engine(small.settings.store_url))
    rows = store.figures(moment - timedelta(days=1), moment + timedelta(days=1)).to_pylist()
    assert {row["minute"]: row["events"] for row in rows} == events_by_minute(small)


def test_a_clock_of_a_device_that_is_ahead_is_not_the_newest_that_has_come(small: World) -> None:
    ahead = datetime.now(UTC) + timedelta(minutes=50)
    small.put("events/a.json.gz", [sent(small.types["login"], "a", event_ts=ahead.isoformat())])
    small.run()
    newest = LiveOpsStore(open_engine(small.settings.store_url)).newest()
    assert newest is not None
    assert newest[1] < datetime.now(UTC) < ahead


@pytest.mark.slow
def test_a_batch_that_fails_anywhere_ends_as_if_it_had_not(small: World) -> None:
    points = small.job(lambda _point: None, small.settings).crash_points
    tables = [f"tables.{name}:{when}" for name in (*sorted(small.types), "quarantine") for when in ("before", "after")]
    others = ["manifest:before", "manifest:after", "lines:recorded", "tables:recorded", "figures:recorded", "finalized"]
    assert sorted(points) == sorted([*others, *tables])
    for number, point in enumerate(points):
        small.put(f"events/{number:03}.json.gz", of_every_type(small, str(number)))
        with pytest.raises(Crash):
            small.run(crash_at(point))
        small.run()
    assert {name: len(small.rows(name)) for name in small.types} == dict.fromkeys(small.types, 2 * len(points))
    assert len(small.rows("quarantine")) == 3 * len(points)


def test_a_replay_of_what_is_there_changes_nothing_and_brings_back_what_is_not(small: World) -> None:
    for hour in ("10", "11"):
        small.put(f"events/2026/11/22/{hour}/a.json.gz", of_every_type(small, hour))
    small.put("events/2026/11/23/00/a.json.gz", of_every_type(small, "other"))
    small.run()
    before = small.everything()
    (report,) = small.replay("events/2026/11/22/")
    assert_sums(report)
    assert (report.counts["rows_in"], report.counts["duplicates"], report.counts["landed"]) == (24, 24, 0)
    assert small.everything() == before

    for name in ("purchase", "login"):
        table = DeltaTable(small.types[name].table.uri(small.settings.lake))
        table.alter.set_table_properties({"delta.appendOnly": "false"})
        table.delete("event_id LIKE '10-%'")
        table.alter.set_table_properties({"delta.appendOnly": "true"})
    assert small.everything() != before
    (report,) = small.replay("events/2026/11/22/10/")
    assert report.counts["landed"] == 4
    assert small.everything() == before


def test_a_replay_that_was_interrupted_is_finished_first_whatever_is_asked_for_next(small: World) -> None:
    small.put("events/2026/11/22/10/a.json.gz", of_every_type(small, "a"))
    with pytest.raises(Crash):
        small.replay("events/2026/11/22/", observe=crash_at("tables.login:after"))
    (finished,) = small.replay()
    assert finished.replayed
    before = small.everything()
    assert {name: len(rows) for name, rows in before.items()} == {"quarantine": 3, **dict.fromkeys(small.types, 2)}
    (new,) = small.run()
    assert (new.counts["landed"], new.counts["duplicates"], new.counts["quarantined"]) == (0, 12, 0)
    assert small.everything() == before


@pytest.mark.parametrize("asked", [(), ("events/2026/11/23/",)])
def test_a_replay_that_died_before_it_had_read_its_batch_reads_all_that_it_was_given(
    small: World, asked: Sequence[str]
) -> None:
    """Its batch is halved then, and other batches were not begun; whatever is asked for next."""
    games = small.settings.games.model_copy(update={"max_objects": 4})
    small.settings = small.settings.model_copy(update={"games": games})
    login = small.types["login"]
    for name in "abcdef":
        small.put(f"events/2026/11/22/10/{name}.json.gz", [sent(login, name)])
    small.put("events/2026/11/23/00/other.json.gz", [sent(login, "other")])
    with pytest.raises(Crash):
        small.replay("events/2026/11/22/", observe=crash_at("manifest:after"))
    small.replay(*asked)
    wanted = [*"abcdef", *(["other"] if asked else [])]
    assert sorted(row["event_id"] for row in small.rows("login")) == wanted


def test_an_event_whose_type_is_declared_later_lands_by_a_replay(
    small: World, tmp_path_factory: pytest.TempPathFactory
) -> None:
    own = tmp_path_factory.mktemp("declarations")
    skip = b'{"event_type":"level_skip","event_id":"s1","game_id":"g","player_id":"p","level_id":"7","event_ts":"%s"}'
    small.put("events/a.json.gz", [skip % now().encode()])
    (report,) = small.run()
    assert report.counts["quarantined"] == 1
    (own / "level_skip.toml").write_text(
        'description = "A player skipped a level."\n[fields]\nlevel_id = { type = "string", comment = "Which." }\n'
    )
    games = small.settings.games.model_copy(update={"declarations": own})
    small.settings = small.settings.model_copy(update={"games": games})
    (again,) = small.replay("events/")
    assert again.counts["landed"] == 1
    rows = DeltaTable(f"{small.settings.lake}/game/level_skip").to_pyarrow_table().to_pylist()
    assert [(row["event_id"], row["level_id"]) for row in rows] == [("s1", "7")]


@pytest.mark.parametrize("point", ["lines:recorded", "tables.login:after", "tables:recorded"])
def test_a_batch_that_is_half_written_is_not_finished_under_other_declarations(
    small: World, tmp_path_factory: pytest.TempPathFactory, point: str
) -> None:
    """A line that has landed could be refused by now, and stand in both places."""
    small.put("events/a.json.gz", [sent(small.types["login"], "a"), sent(small.types["purchase"], "b")])
    with pytest.raises(Crash):
        small.run(crash_at(point))
    before, own = small.types, tmp_path_factory.mktemp("declarations")
    (own / "level_skip.toml").write_text(
        'description = "A player skipped a level."\n[fields]\nlevel_id = { type = "string", comment = "Which." }\n'
    )
    small.types = registry(own)
    if point == "tables.login:after":
        with pytest.raises(NotResumable, match="declared otherwise now"):
            small.run()
        small.types = before
    small.run()
    assert [len(small.rows(name)) for name in ("login", "purchase", "quarantine")] == [1, 1, 0]


def test_a_replay_after_an_erasure_drops_the_players_lines_and_counts_them(small: World) -> None:
    login = small.types["login"]
    broken = sent(login, "broken", player_id="bob-canary", event_ts="?")
    lines = [sent(login, "1", player_id="bob-canary"), sent(login, "2", player_id="amy"), broken]
    small.put("events/2026/11/22/a.json.gz", lines)
    small.run()
    vault = open_vault(small.settings)
    erase(vault, subject(vault, "bob-canary", None), game_places(small.settings))
    (report,) = small.replay("events/2026/11/22/")
    counts = {name: report.counts[name] for name in ("rows_in", "landed", "duplicates", "quarantined", "erased")}
    assert counts == {"rows_in": 3, "landed": 0, "duplicates": 1, "quarantined": 0, "erased": 2}
    assert [row["event_id"] for row in small.rows("login")] == ["2"]
    assert small.rows("quarantine") == []


def test_sparks_workers_fetch_each_object_once_and_the_bucket_is_never_listed(
    small: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = small.types["login"]
    small.put("older/a.json.gz", [sent(login, "older")])
    small.run()
    fetched = small.moto.requests("GET", f"/{small.bucket}/")
    for number in range(5):
        small.put(f"events/{number}.json.gz", [sent(login, f"new-{number}"), sent(small.types["purchase"], "p")])

    def nobody(*_arguments: object) -> Any:
        raise AssertionError("the process of the run opens an object")

    with monkeypatch.context() as here:
        here.setattr(s3_objects, "client", nobody)
        here.setattr(Objects, "each", nobody)
        small.run()
    assert small.moto.requests("GET", f"/{small.bucket}/") - fetched == 5
    assert len(small.rows("login")) == 6

    def listings() -> int:
        # They ask for the bucket itself.
        return sum(small.moto.requests("GET", f"/{small.bucket}{end}") for end in ("?", " "))

    assert listings() == 0
    small.replay("events/")
    assert listings() == 1, "only a replay lists"


def test_a_batch_whose_objects_are_gone_after_a_crash_is_not_finished_until_it_is_given_up(
    small: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = small.types["login"]
    small.put("events/a.json.gz", [sent(login, "a"), b"no json"])
    with pytest.raises(Crash):
        small.run(crash_at("lines:recorded"))
    small.s3.delete_object(Bucket=small.bucket, Key="events/a.json.gz")
    small.put("events/b.json.gz", [sent(login, "b")])
    for _ in range(2):
        with pytest.raises(BooksDoNotBalance, match="received 2 records but accounts for 0 "):
            small.run()
    assert small.rows("login") == []
    last = small.stores.checkpoints.latest("ingest-game-events")
    assert last is not None
    assert last.state is JobState.FAILED
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(small.settings.home))
    done = CliRunner().invoke(app, ["reset", "ingest-game-events", "--abandon", "--yes"])
    assert done.exit_code == 0, done.output
    small.run()
    assert [row["event_id"] for row in small.rows("login")] == ["b"]
