"""Policies that change while changes wait: no row doubles or vanishes, and the fast strategy comes back by itself."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from engagement_platform.engine.database import open_engine
from engagement_platform.engine.forgotten_batches import last_of_each
from engagement_platform.engine.model import Manifest
from engagement_platform.engine.stores import CheckpointStore
from engagement_platform.errors import PlatformError
from engagement_platform.pipelines.profiles.entity import Entity
from engagement_platform.pipelines.profiles.job import is_below, read_before
from engagement_platform.pipelines.profiles.snapshot import snapshot, to_note, were_checked
from engagement_platform.pipelines.profiles.view import STRATEGIES, choose, view
from engagement_platform.settings import ViewStrategy
from engagement_platform_tests.ingestion.test_crashes import Crash, crash_at
from engagement_platform_tests.pipelines.profiles.conftest import MakeWorld
from engagement_platform_tests.pipelines.profiles.histories import PROFILE, Changes, plain
from engagement_platform_tests.pipelines.profiles.oracle import Said, replay, rows_of
from engagement_platform_tests.pipelines.profiles.test_job import reasons
from engagement_platform_tests.pipelines.profiles.test_view import lake_of

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
UNITED: ViewStrategy = "left_join_union_inserts"


PROMISING = replace(PROFILE, unknown_update="ignore", inserts_are_new=True)
REFUSING = replace(PROMISING, unknown_update="quarantine")


@pytest.mark.parametrize("now", [PROMISING, REFUSING], ids=["ignore", "quarantine"])
def test_what_landed_before_the_promise_is_read_by_a_strategy_that_needs_none(
    spark: SparkSession, tmp_path: Path, now: Entity
) -> None:
    """An INSERT of a known key would stand twice, and an UPDATE that makes a row would vanish."""
    lake = lake_of(spark, tmp_path)
    before, after = Changes(tmp_path, PROFILE), Changes(tmp_path, now)
    landed = [Said("a", 1, "INSERT", {"name": "Ann", "city": "Oslo"})]
    before.land(0, landed)
    before.move()
    before.drop(0)
    waiting = [Said("a", 2, "INSERT", {"name": "Ann B"}), Said("b", 1, "UPDATE", {"name": "Bo"})]
    before.land(1, waiting)
    checked = [Said("c", 1, "INSERT", {"name": "Cy"}), Said("a", 3, "UPDATE", {"city": "Rome"})]
    after.land(2, checked)
    landed += [*waiting, *checked]
    for strategy in STRATEGIES:
        if strategy == UNITED:
            with pytest.raises(PlatformError, match="run rematerialize-profile"):
                view(lake, now, strategy=strategy)
            continue
        assert rows_of(plain(view(lake, now, strategy=strategy).rows.toArrow()), now) == replay(landed, now)
    found = view(lake, now)
    assert found.strategy == "left_join_anti_join"
    assert rows_of(plain(found.rows.toArrow()), now) == replay(landed, now)

    after.move()
    after.drop(2)
    more = [Said("d", 1, "INSERT", {"name": "Di"}), Said("a", 4, "UPDATE", {"title": "Dr"})]
    after.land(3, more)
    found = view(lake, now)
    assert found.strategy == UNITED
    assert rows_of(plain(found.rows.toArrow()), now) == replay([*landed, *more], now)


@pytest.mark.broker
def test_each_batch_says_under_which_policy_it_lands_and_commits_only_where_that_changed(
    make_world: MakeWorld,
) -> None:
    world = make_world()

    def lands(key: str, entity: Entity) -> tuple[str, int]:
        """What the changeset says then, and by how many commits it grew."""
        before = world.snapshot.changeset_version if key != "a" else 0
        world.entity = entity
        world.send([Said(key, 1, "INSERT", {"name": key})])
        world.ingest()
        found = world.snapshot
        return found.inserts_are_new, found.changeset_version - before

    assert lands("a", PROFILE) == ("no", 1)
    assert lands("b", PROMISING) == ("ignore since batch 1", 2)
    assert lands("c", PROMISING) == ("ignore since batch 1", 1)
    assert lands("d", REFUSING) == ("quarantine since batch 3", 2)
    assert lands("e", PROFILE) == ("no", 2)
    assert lands("f", PROMISING) == ("ignore since batch 5", 2)
    assert world.seen(view(world.lake, PROMISING).rows) == world.expected()


@pytest.mark.broker
def test_a_batch_that_landed_under_another_policy_and_is_finished_now_does_not_count_as_checked(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.send([Said("a", 1, "INSERT", {"name": "Ann"})])
    with pytest.raises(Crash):
        world.ingest(crash_at("changeset.append:after"))
    world.entity = PROMISING
    world.ingest()
    assert world.snapshot.inserts_are_new == "no", "a batch is finished under the policy with which it was begun"
    world.send([Said("b", 1, "INSERT", {"name": "Bo"})])
    world.ingest()
    found = world.snapshot
    assert found.pending
    assert found.inserts_are_new == "ignore since batch 1"
    assert choose(world.entity, "auto", broadcast=True, taken=found) == "left_join_anti_join"


def test_only_what_other_ids_of_the_job_have_read_of_the_same_topic_is_taken_for_landed(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path / 'stores.db'}")
    store, job = CheckpointStore(engine), PROMISING.ingest_job

    def planned(number: int, end: dict[str, int], topic_id: str = "shop") -> Manifest:
        start = dict.fromkeys(end, 0)
        return Manifest(job, store.app_id(job), number, start, end, NOW, identity={"topic_id": topic_id})

    for number, end in enumerate(({"0": 10, "1": 4}, {"0": 20, "1": 4})):
        store.begin(batch := planned(number, end))
        store.succeed(batch, {})
    store.reset(job)
    # Given up by a second reset, in the middle.
    store.begin(planned(0, {"0": 5, "2": 7}))
    store.reset(job)
    seen = read_before(last_of_each(engine, job), planned(0, {"0": 30}))
    assert seen == {"0": 20, "1": 4, "2": 7}
    assert read_before(last_of_each(engine, job), planned(0, {"0": 30}, "made anew")) == {}
    records = [(0, 19), (0, 20), (1, 3), (1, 4), (2, 6), (2, 7), (3, 0)]
    with closing(sqlite3.connect(":memory:")) as found:
        table = " UNION ALL ".join(f"SELECT {of} AS `partition`, {at} AS `offset`" for of, at in records)
        below = found.execute(f"SELECT `partition`, `offset` FROM ({table}) WHERE {is_below(seen)}").fetchall()
        assert below == [(0, 19), (1, 3), (2, 6)]
        assert found.execute(f"SELECT count(*) FROM ({table}) WHERE {is_below({})}").fetchone() == (0,)


def test_a_promise_covers_batches_from_its_first_on(tmp_path: Path) -> None:
    changes = Changes(tmp_path, PROMISING)
    assert to_note(str(tmp_path), PROFILE, 0) is None, "that nothing is promised goes without saying"
    changes.land(4, [Said("a", 1, "INSERT")])
    taken = snapshot(str(tmp_path), PROMISING)
    noted = [f"ignore since batch {first}" for first in (3, 4, 5)]
    assert [were_checked(PROMISING, replace(taken, inserts_are_new=one)) for one in noted] == [True, True, False]
    assert not were_checked(REFUSING, taken)
    assert not were_checked(PROMISING, replace(taken, inserts_are_new="no"))


@pytest.mark.broker
def test_an_update_of_an_id_of_which_only_a_delete_came_is_refused_where_unknown_ones_are(
    make_world: MakeWorld,
) -> None:
    """It would make a row that is no INSERT. One of an id that was inserted before is not refused; of one whose INSERT
    is refused beside it, it is."""
    world = make_world(entity=REFUSING)
    deleted = [Said("a", 1, "DELETE"), Said("c", 1, "DELETE"), Said("b", 1, "INSERT", {"name": "Bo"})]
    world.send([*deleted, Said("b", 2, "DELETE")])
    world.ingest()
    world.send([Said("a", 2, "UPDATE", {"name": "Ann"}), Said("b", 3, "UPDATE", {"name": "Bob"})])
    world.send([Said("c", 2, "INSERT", {"name": "Cy"}), Said("c", 3, "UPDATE", {"name": "Cyd"})])
    world.ingest()
    assert sorted(reasons(world)) == [("insert_not_new", 6), ("unknown_profile", 4), ("unknown_profile", 7)]
    found = view(world.lake, REFUSING)
    assert found.strategy == "left_join_union_inserts"
    assert [(row[0], row[2]) for row in world.seen(found.rows)] == [("b", "Bob")]
    assert world.seen(found.rows) == world.seen_by_rules()
    world.move()
    assert [(row[0], row[2]) for row in world.seen_by_rules()] == [("b", "Bob")]


def test_where_tombstones_are_forgotten_an_update_may_be_of_a_row_that_is_not_there() -> None:
    assert choose(REFUSING, "auto", broadcast=True, forgets=True) == "left_join_anti_join"
    assert choose(PROMISING, "auto", broadcast=True, forgets=True) == UNITED
