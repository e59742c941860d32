"""All tables of a feed go back to the same batch; objects are read again once, and nothing stands twice."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from engagement_platform.engine.database import open_engine
from engagement_platform.engine.job import Callbacks
from engagement_platform.erasing.places import of_feed
from engagement_platform.errors import PlatformError
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.restore import RESTORE
from engagement_platform.maintenance.rollback import groups
from engagement_platform.maintenance.rollback.groups import RestoreRefused
from engagement_platform.maintenance.rollback.job import Restoring
from engagement_platform.maintenance.rollback.plan import Asked, CannotReplay, Plan, RestoreMode, plan
from engagement_platform.pii.erasure import Subject
from engagement_platform.pipelines.games.backlog import backlog
from engagement_platform.pipelines.games.event_type import GROUP, QUARANTINE
from engagement_platform.pipelines.games.feed import Feed
from engagement_platform.pipelines.games.job import INGEST_GAME_EVENTS
from engagement_platform.pipelines.games.replay import ObjectsGone, ObjectsNotKnown
from engagement_platform.settings import Settings
from engagement_platform.sources.s3_events import S3File
from engagement_platform.sources.s3_sqs_state import Arrived, S3SqsState
from engagement_platform_tests.pipelines.games.conftest import World, small, world
from engagement_platform_tests.pipelines.games.events import line

__all__ = ["small", "world"]

TYPES = ("heartbeat", "login", "purchase")
HOURS = {
    "10": TYPES,
    "11": ("login",),
    "12": ("heartbeat", "purchase"),
    "13": TYPES,
}
"""What the object of each hour has events of; each is a batch of its own."""
PURCHASE, HEARTBEAT, LOGIN = "game/purchase", "game/heartbeat", "game/login"


def lines(world: World, hour: str, names: Sequence[str]) -> list[bytes]:
    """An event of each type, one that every object repeats, and a line that is refused."""
    now = datetime.now(UTC).isoformat()
    events = [line(world.types[name], f"{hour}-{name}", event_ts=now, player_id=f"player-{hour}") for name in names]
    again = line(world.types[names[0]], f"every-{names[0]}", event_ts=now)
    return [*events, again, f"no json {hour}".encode()]


def key(hour: str) -> str:
    return f"events/2026/11/22/{hour}/a.json.gz"


@pytest.fixture
def four(small: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """Four batches, one of a single table. The feed is of three types only, which nobody has declared so."""
    monkeypatch.setattr(groups, "groups", lambda s: iter([groups.of_feed(s, Feed(GROUP, small.types))]))
    for hour, names in HOURS.items():
        small.put(key(hour), lines(small, hour, names))
        small.run()
    return small


def planned(world: World, table: str, to: int | datetime, mode: RestoreMode = "replay") -> Plan:
    return plan(world.settings, world.stores, Asked(table, to, mode))


def restoring(world: World, observe: Any = lambda _point: None) -> Restoring:
    return Restoring(Lake(world.spark, world.settings), world.stores, Callbacks(observe=observe))


def after(world: World, everything: Any, hours: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """The rows of all tables that came with these objects; refused ones stay."""
    objects = {f"s3://{world.bucket}/{key(hour)}" for hour in hours}
    kept = {
        name: [row for row in rows if name == "quarantine" or row["source_object"] in objects]
        for name, rows in everything.items()
    }
    return {name: rows for name, rows in kept.items() if rows}


def uri(world: World, table: str) -> str:
    return f"{world.settings.lake}/{table}"


def rows_at(world: World, table: str, version: int) -> int:
    return int(DeltaTable(uri(world, table), version=version).to_pyarrow_table(columns=["event_id"]).num_rows)


def test_all_tables_go_back_together_to_any_version_and_what_is_read_again_lands_once(four: World) -> None:
    """Plans for every version of every table, without Spark; the oracle counts rows by the objects they came with."""
    before, quarantine, hours = four.everything(), four.rows("quarantine"), list(HOURS)
    for table in (HEARTBEAT, LOGIN, PURCHASE):
        for version in range(DeltaTable(uri(four, table)).version() + 1):
            found = planned(four, table, version)
            ends = [offset.boundary["batch"] for offset in found.offsets] or [len(hours)]
            wanted = after(four, before, hours[: ends[0]])
            rows = {name: rows_at(four, f"game/{name}", found.target[f"game/{name}"]) for name in TYPES}
            assert rows == {name: len(wanted.get(name, [])) for name in TYPES}, f"{table} version {version}"
            assert found.target[table] == version
            assert QUARANTINE.name not in found.target
            assert sum(offset.records or 0 for offset in found.offsets) == len(hours) - ends[0]
    # The second batch left this table as it was, so it is not undone.
    assert planned(four, PURCHASE, 1).boundary == f"the end of {INGEST_GAME_EVENTS} batch 1"
    assert planned(four, LOGIN, 1).boundary == f"the end of {INGEST_GAME_EVENTS} batch 0"
    report = restoring(four).run(Asked(LOGIN, 1, reason="a bad batch", by="ann@here"))
    assert report is not None
    assert four.everything() == after(four, before, ["10"])
    assert four.rows("quarantine") == quarantine
    gone = sum(len(rows) for name, rows in before.items() if name != "quarantine")
    gone -= sum(len(rows) for name, rows in four.everything().items() if name != "quarantine")
    assert {name: report.counts[name] for name in ("inserted", "updated", "deleted", "tables", "jobs_put_back")} == {
        "inserted": 0, "updated": 0, "deleted": gone, "tables": 3, "jobs_put_back": 1,
    }  # fmt: skip
    audit = DeltaTable(RESTORE.uri(four.settings.lake)).to_pyarrow_table().to_pylist()
    assert {(row["table_name"], row["to_version"], row["reason"]) for row in audit} == {
        (name, 1, "a bad batch") for name in (HEARTBEAT, LOGIN, PURCHASE)
    }
    last = four.stores.checkpoints.latest(INGEST_GAME_EVENTS)
    assert backlog(four.settings, last) == 3, "nothing would start the job that reads them again"
    reports = four.run()
    assert [report.counts["quarantined"] for report in reports] == [0, 0, 0]
    assert sum(report.counts["landed"] for report in reports) == gone
    assert four.everything() == before
    assert four.rows("quarantine") == quarantine
    assert four.run() == []
    # What is announced from now on lands as ever.
    four.put(key("14"), lines(four, "14", TYPES))
    (new,) = four.run()
    assert new.counts["landed"] == 3


@pytest.mark.slow
def test_what_is_dropped_stays_away_until_its_objects_are_replayed(four: World) -> None:
    before = four.everything()
    assert restoring(four).run(Asked(PURCHASE, 1, "drop")) is not None
    assert four.run() == []
    assert four.everything() == after(four, before, ["10", "11"])
    four.replay("events/2026/11/22/")
    assert four.everything() == before


def refused(world: World, cause: type[PlatformError]) -> None:
    """With replay; dropping is what the sentence says to do instead."""
    with pytest.raises(CannotReplay, match="engagement-platform replay --prefix") as said:
        planned(world, LOGIN, 1)
    assert isinstance(said.value.cause, cause)
    assert planned(world, LOGIN, 1, "drop").changes


@pytest.mark.slow
def test_what_cannot_be_read_again_is_refused_and_no_erased_player_comes_back(four: World) -> None:
    """Objects that were overwritten, are gone, or are remembered no more."""
    body = four.s3.get_object(Bucket=four.bucket, Key=key("13"))["Body"].read()
    four.put(key("13"), [b"something else"])
    refused(four, ObjectsGone)
    four.s3.delete_object(Bucket=four.bucket, Key=key("13"))
    refused(four, ObjectsGone)
    four.s3.put_object(Bucket=four.bucket, Key=key("13"), Body=body)
    assert planned(four, LOGIN, 1).changes
    state = S3SqsState(
        open_engine(four.settings.store_url), allow_overwrites=False, clock=lambda: datetime.now(UTC) + timedelta(8)
    )
    assert state.forget_files(INGEST_GAME_EVENTS, 3, timedelta(days=7)) == 2
    refused(four, ObjectsNotKnown)
    # Those of the last two batches are known.
    assert planned(four, LOGIN, 2).changes
    of_feed(four.settings, Feed(GROUP, four.types)).erase(Subject("player-11", "ref", None))
    with pytest.raises(RestoreRefused):
        planned(four, LOGIN, 1)
    assert planned(four, HEARTBEAT, 3).changes == ()
    with pytest.raises(RestoreRefused):
        planned(four, QUARANTINE.name, 1)


def test_a_batch_is_remembered_as_long_as_all_files_since_are(tmp_path: Path) -> None:
    """Five batches of two files, forgotten one after the other; the oracle knows which are left."""
    began, engine = datetime(2026, 3, 1, tzinfo=UTC), open_engine(Settings(home=tmp_path).store_url)

    def at(hour: int) -> S3SqsState:
        clock = partial(began.__add__, timedelta(hours=hour))
        return S3SqsState(engine, allow_overwrites=False, clock=clock)

    for batch in range(5):
        for hour in (2 * batch, 2 * batch + 1):
            at(hour).arrive("s", [Arrived(f"{hour}", "r", 0, (S3File("b", f"{hour}"),))])
        assert at(0).plan("s", batch, None) == batch + 1
    assert [at(0).remembers_after("s", batch) for batch in range(5)] == [True] * 5
    for gone in range(1, 9):
        at(gone).forget_files("s", 5, timedelta(0))
        # None of the batches after `batch` is among the first `gone` files; sure when one before them is left.
        assert [at(0).remembers_after("s", batch) for batch in range(5)] == [2 * batch > gone for batch in range(5)]
