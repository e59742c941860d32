"""Base and changeset of an entity go back together, whatever was moved meanwhile; what is read again lands once."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from engagement_platform.defs.entity_checks import watermark_result
from engagement_platform.engine.forgotten_batches import forget
from engagement_platform.engine.model import Manifest, NoIdentity
from engagement_platform.engine.unfinished_batches import OthersBatchUnfinished
from engagement_platform.lake import store_tables
from engagement_platform.lake.erased import ERASE_SUBJECTS
from engagement_platform.lake.restore import RESTORE
from engagement_platform.maintenance.rollback import groups
from engagement_platform.maintenance.rollback.groups import RestoreRefused
from engagement_platform.maintenance.rollback.plan import Asked, CannotReplay, plan
from engagement_platform.pipelines.profiles.snapshot import watermark_of
from engagement_platform.pipelines.profiles.view import current
from engagement_platform.settings import LayoutSettings
from engagement_platform_tests.conftest import Broker
from engagement_platform_tests.ingestion.test_crashes import Crash, crash_at
from engagement_platform_tests.maintenance.rollback.entities import BATCHES, Landed, Ticking, filled
from engagement_platform_tests.pipelines.profiles.histories import DEVICE, PROFILE, side_by_side

pytestmark = [pytest.mark.broker]

CHANGESET, BASE = PROFILE.changeset.name, PROFILE.base.name
INGEST, MOVE = PROFILE.ingest_job, PROFILE.rematerialize_job


@pytest.fixture(scope="module")
def landed(spark: SparkSession, broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Landed:
    """Made once; tests work on copies of its folder."""
    return filled(Ticking(spark, broker, tmp_path_factory.mktemp("landed") / "home", PROFILE))


@pytest.fixture
def copy(landed: Landed, tmp_path: Path) -> Ticking:
    """For those who produce nothing."""
    return landed.world.under(tmp_path / "copy")


def read_by(world: Ticking, landed: Landed, asked: Asked) -> int:
    """How many batches the jobs have read where a plan takes them back to."""
    planned = plan(world.settings, world.stores, asked)
    last = world.stores.checkpoints.latest(INGEST)
    assert last is not None
    ends = {offset.job: offset.boundary for offset in planned.offsets}
    messages = ends.get(INGEST, last.manifest.end)["0"]
    return [sum(landed.sizes[:count]) for count in range(BATCHES + 1)].index(messages)


def test_whatever_version_is_asked_for_both_tables_show_what_the_batches_read_by_then_say(landed: Landed) -> None:
    """Every version of both; the oracle replays the messages before the offsets that the plan goes back to."""
    world, now = landed.world, landed.world.versions
    reached: dict[str, list[int]] = {CHANGESET: [], BASE: []}
    for name in (CHANGESET, BASE):
        for version in range(now[name] + 1):
            asked = Asked(name, version)
            planned = plan(world.settings, world.stores, asked)
            count = read_by(world, landed, asked)
            assert world.rows_at(dict(planned.target)) == landed.seen(count), f"{name} version {version}"
            assert planned.target[name] == version, f"{name} has a version that is in the middle of nothing"
            assert planned.note is None
            reached[name].append(count)
            base = DeltaTable(PROFILE.base.uri(world.lake.root), version=planned.target[BASE])
            moved = [offset for offset in planned.offsets if offset.job == MOVE]
            assert [offset.boundary for offset in moved] in ([], [{"batch": watermark_of(base, PROFILE)}])
            assert bool(moved) == (watermark_of(base, PROFILE) != watermark_of(world_base(world), PROFILE))
    # Batches landed one after the other, and each of them made a version.
    assert sorted(set(reached[CHANGESET])) == list(range(BATCHES + 1))
    # As it was made, and after each of six moves: only batches are undone that landed when the next move had begun.
    assert reached[BASE] == [1, 3, 4, 5, 6, 7, BATCHES]


def world_base(world: Ticking) -> DeltaTable:
    return DeltaTable(PROFILE.base.uri(world.lake.root))


def test_a_time_means_the_batches_that_had_landed_by_then_wherever_their_rows_are_now(landed: Landed) -> None:
    asked = Asked(BASE, landed.ends[0])
    planned = plan(landed.world.settings, landed.world.stores, asked)
    assert planned.boundary == f"the end of {INGEST} batch 2"
    assert read_by(landed.world, landed, asked) == 3
    assert landed.world.rows_at(dict(planned.target)) == landed.seen(3)


def test_versions_and_times_of_forgotten_batches_are_refused_and_later_ones_planned_as_before(
    landed: Landed, copy: Ticking
) -> None:
    ended = [record.finished_ts for record in copy.stores.checkpoints.history(INGEST) if record.finished_ts]
    asked = [Asked(name, version) for name in (CHANGESET, BASE) for version in range(copy.versions[name] + 1)]
    asked += [Asked(BASE, moment) for moment in ended]

    def planned(one: Asked) -> object:
        try:
            found = plan(copy.settings, copy.stores, one)
        except RestoreRefused as refused:
            return "forgotten" if "are forgotten" in str(refused) else str(refused)
        # What the job has read from then on is compared with the topic; how far back differs.
        offsets = [replace(one, rewind=one.rewind and ({}, one.rewind[1])) for one in found.offsets]
        return found.boundary, found.changes, offsets

    before = list(map(planned, asked))
    assert forget(copy.stores.leases.engine, max(ended) - ended[BATCHES // 2], max(ended)) > 0
    after = list(map(planned, asked))
    kept = [(then, now) for then, now in zip(before, after, strict=True) if now != "forgotten"]
    assert len(asked) > len(kept) > BATCHES
    assert [now for _, now in kept] == [then for then, _ in kept]
    [refused] = [one for one in asked if one.to == ended[-1]]
    assert planned(refused) == "forgotten"


def test_they_go_back_together_and_a_replay_ends_in_the_undisturbed_rows(landed: Landed, copy: Ticking) -> None:
    asked = Asked(BASE, 1, reason="a bad move", by="ann@here")
    count, target = read_by(copy, landed, asked), plan(copy.settings, copy.stores, asked).target
    before, rows, wanted = copy.versions, copy.seen_by_rules(), landed.seen(count)
    assert count == 3, "two batches had landed when the next move began"
    report = copy.restoring().run(asked)
    assert report is not None
    assert copy.seen_by_rules() == wanted == copy.seen(current(copy.lake, PROFILE))
    now = {row[0]: row for row in wanted}
    was = {row[0]: row for row in rows}
    assert {name: report.counts[name] for name in ("inserted", "updated", "deleted", "notifications", "tables")} == {
        "inserted": len(now.keys() - was.keys()),
        "updated": sum(row != was[key] for key, row in now.items() if key in was),
        "deleted": len(was.keys() - now.keys()),
        "notifications": 0,
        "tables": 2,
    }
    assert report.counts["jobs_put_back"] == 2
    moved = copy.stores.checkpoints.latest(MOVE)
    assert moved is not None
    assert watermark_result(PROFILE, copy.snapshot, under_way=False, recorded=moved.manifest.end["batch"]).passed
    assert {row["table_name"]: (row["from_version"], row["to_version"]) for row in audit(copy)} == {
        name: (before[name], target[name]) for name in before
    }
    assert {(row["restored_by"], row["reason"], row["mode"]) for row in audit(copy)} == {
        ("ann@here", "a bad move", "replay")
    }
    offsets = landed_offsets(copy)
    copy.ingest()
    assert copy.seen_by_rules() == copy.expected()
    copy.move()
    assert copy.seen_by_rules() == copy.expected()
    assert not copy.snapshot.pending
    assert len(offsets) == len(set(offsets))
    assert copy.ingest() == copy.move() == []


def audit(world: Ticking) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = DeltaTable(world.lake.uri(RESTORE)).to_pyarrow_table().to_pylist()
    return rows


def landed_offsets(world: Ticking) -> list[int]:
    """Of the changes that stand in the changeset."""
    rows = DeltaTable(world.lake.uri(world.entity.changeset)).to_pyarrow_table(columns=["offset"])
    return [int(offset) for offset in rows.column("offset").to_pylist()]


@pytest.mark.slow
def test_a_restore_can_be_taken_back_itself(copy: Ticking) -> None:
    """Numbers of batches come once more after it; which of the two a base has is told by when it was written."""
    last = copy.versions
    assert copy.restoring().run(Asked(CHANGESET, 1)) is not None
    copy.ingest()
    copy.move()
    assert copy.seen_by_rules() == copy.expected()
    for name in (BASE, CHANGESET):
        target = dict(plan(copy.settings, copy.stores, Asked(name, last[name])).target)
        assert copy.rows_at(target) == copy.expected(), name
    assert copy.restoring().run(Asked(BASE, last[BASE])) is not None
    assert copy.seen_by_rules() == copy.expected()
    assert copy.ingest() == []
    assert copy.snapshot.watermark == watermark_of(
        DeltaTable(PROFILE.base.uri(copy.lake.root), version=last[BASE]), PROFILE
    )


POINTS = (
    "manifest:before", "manifest:after", "restore.changeset:before", "restore.changeset:after",
    "restore.materialized:before", "restore.materialized:after", "restore:recorded", "notification:recorded",
    "audit.append:after", "audit:recorded", "rewind:recorded", "finalized",
)  # fmt: skip


@pytest.mark.crash
@pytest.mark.slow
def test_a_restore_that_ends_anywhere_is_finished_once(landed: Landed, copy: Ticking) -> None:
    world, asked = copy, Asked(BASE, 1)
    wanted = landed.seen(read_by(world, landed, asked))
    for point in POINTS:
        with pytest.raises(Crash):
            world.restoring(crash_at(point)).run(asked)
        if point == "manifest:before":
            world.restoring().run(asked)
        elif point != "finalized":
            with pytest.raises(RestoreRefused):
                world.restoring().run(asked)
            if point in ("restore.changeset:after", "restore.materialized:before"):
                assert_nobody_begins(world)
            assert world.restoring().run(None) is not None
        assert world.restoring().run(None) is None
        assert world.seen_by_rules() == wanted, point
        assert set(POINTS) <= set(world.restoring().job(asked).crash_points)
        world.ingest()
        assert world.seen_by_rules() == world.expected(), point
        world.move()
        assert world.seen_by_rules() == world.expected(), point


def assert_nobody_begins(world: Ticking) -> None:
    """Neither lands a batch nor moves one while a restore is half done."""
    for job in (world.ingestion(), world.rematerialization()):
        blocked = replace(job, lease_wait=timedelta(0), source=Something())
        with blocked.exclusive() as lease, pytest.raises(OthersBatchUnfinished, match="restore --finish"):
            blocked.run_batch(lease)


class Something(NoIdentity):
    """A source that always has one."""

    def plan(self, start: object, limits: object, mean_bytes: object) -> tuple[dict[str, int], dict[str, int]]:
        return {"0": 0}, {"0": 1}

    def check(self, start: object, end: object) -> None:
        pass

    def size(self, start: object, end: object) -> None:
        pass


@pytest.mark.slow
def test_an_unfinished_batch_comes_first(landed: Landed, tmp_path: Path) -> None:
    own = landed.world.under(tmp_path / "own", f"changes-{uuid4().hex[:12]}")
    with pytest.raises(Crash):
        own.move(crash_at("base.write:after"))
    with pytest.raises(OthersBatchUnfinished, match="run rematerialize-profile"):
        plan(own.settings, own.stores, Asked(CHANGESET, 1))
    own.move()
    own.send(side_by_side(98, PROFILE, 5, 1)[0])
    with pytest.raises(Crash):
        own.ingest(crash_at("changeset.append:before"))
    with pytest.raises(OthersBatchUnfinished, match="run ingest-profile-changes"):
        plan(own.settings, own.stores, Asked(BASE, 1))
    own.ingest()
    assert plan(own.settings, own.stores, Asked(BASE, 1)).changes


def test_what_cannot_be_read_again_is_refused(copy: Ticking) -> None:
    copy.topic = "no-such-topic"
    copy.__dict__.pop("settings", None)
    with pytest.raises(CannotReplay):
        plan(copy.settings, copy.stores, Asked(BASE, 1))
    assert plan(copy.settings, copy.stores, Asked(BASE, 1, "drop")).changes


def test_nobody_comes_back_who_was_erased(copy: Ticking) -> None:
    """As an erasure pins tables and marks its commits."""
    store = copy.stores.checkpoints
    app_id, now = store.app_id(ERASE_SUBJECTS), datetime.now(UTC)
    manifest = Manifest(ERASE_SUBJECTS, app_id, 0, {"erasure": 0}, {"erasure": 1}, now, copy.versions)
    store.begin(manifest)
    erased = manifest.transaction("profile", "delete")
    base = DeltaTable(copy.lake.uri(PROFILE.base))
    somebody = base.to_pyarrow_table(columns=[PROFILE.key]).column(PROFILE.key)[0].as_py()
    assert store_tables.remove(base, {PROFILE.key: [somebody]}, erased) == 1
    store.succeed(manifest, {})
    with pytest.raises(RestoreRefused):
        plan(copy.settings, copy.stores, Asked(CHANGESET, 1))


@pytest.mark.slow
def test_a_base_that_only_spark_writes_goes_back_with_its_watermark(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """One with partitions of texts has random folder names, which delta-rs does not keep."""
    world = Ticking(spark, broker, tmp_path / "home", DEVICE, layout=LayoutSettings(auto_compact=False))
    first, second, third = side_by_side(5, DEVICE, 9, 3)
    for batch in (first, second):
        world.send(batch)
        world.ingest()
        world.move()
    between, rows = world.versions, world.seen_by_rules()
    world.send(third)
    world.ingest()
    world.move()
    group = world.group
    with pytest.MonkeyPatch.context() as patch:
        # The entity is declared nowhere.
        patch.setattr(groups, "groups", lambda _settings: iter([group]))
        # By the changeset: the base had its version still when the third batch had landed.
        assert world.restoring().run(Asked(DEVICE.changeset.name, between[DEVICE.changeset.name])) is not None
    assert world.seen_by_rules() == rows == world.seen(current(world.lake, DEVICE))
    world.ingest()
    world.move()
    assert world.seen_by_rules() == world.expected()
