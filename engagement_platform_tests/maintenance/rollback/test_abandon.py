"""A restore that is half done and given up leaves every table as it was before; nobody is left between two batches.

Without Kafka: rows and batches as the jobs would have left them.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from engagement_platform.engine.job import Callbacks
from engagement_platform.engine.lease import LeaseUnavailable
from engagement_platform.engine.model import JobState, Manifest
from engagement_platform.engine.recovery import recover
from engagement_platform.engine.table_logs import StoresBehind, refuse_stores_behind
from engagement_platform.engine.unfinished_batches import blocking_batches
from engagement_platform.lake import log
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.contract import Table
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.restore import VersionGone
from engagement_platform.maintenance.layout.survey import Target
from engagement_platform.maintenance.layout.vacuum import StillRead, vacuum
from engagement_platform.maintenance.rollback.groups import RestoreRefused
from engagement_platform.maintenance.rollback.job import Restoring
from engagement_platform.maintenance.rollback.plan import RESTORE_TABLES, Asked
from engagement_platform.pipelines.jobs import INGEST_PROFILE_CHANGES
from engagement_platform.pipelines.profiles.entity import PROFILE
from engagement_platform.settings import StoreSettings
from engagement_platform_tests import plant
from engagement_platform_tests.erasing.planted import AT, Planted
from engagement_platform_tests.ingestion.test_crashes import Crash, crash_at
from engagement_platform_tests.matrix import quick

BATCHES = 3
CHANGESET, BASE = WRITTEN = (PROFILE.changeset, PROFILE.base)
POINTS = (
    "manifest:after", "restore.to-begin:after", "restore.changeset:after", "restore.materialized:before",
    "restore.materialized:after",
)  # fmt: skip
DECIDED = ("restore:recorded", "notification:recorded", "audit.append:after", "audit:recorded", "rewind:recorded")
BY = "ann@here"


class Batches(Planted):
    """Three batches of profiles, each with a row in two tables."""

    spark: SparkSession

    def __init__(self, spark: SparkSession, home: Path) -> None:
        super().__init__(home)
        self.spark = spark
        self.settings = self.settings.model_copy(update={"stores": StoreSettings(lease_wait=timedelta(0))})
        self.first = self.versions()[CHANGESET.name] + 1
        self.asked = Asked(CHANGESET.name, self.first, "drop", by=BY)
        for number in range(BATCHES):
            self.batch(number)

    def batch(self, number: int) -> None:
        checkpoints = self.stores.checkpoints
        app_id, start, end = checkpoints.app_id(INGEST_PROFILE_CHANGES), {"0": number}, {"0": number + 1}
        manifest = Manifest(INGEST_PROFILE_CHANGES, app_id, number, start, end, AT, self.versions())
        manifest = checkpoints.begin(manifest)
        said = {"profile_id": f"new {number}", "version": 1}
        change = {**said, "op": "INSERT", "topic": "p", "partition": 0, "offset": number, "ingestion_ts": AT}
        held = {"present": True, "present_version": 1, "present_ts": AT}
        rows = {CHANGESET: {**change, "batch_id": 10 + number}, BASE: {**said, **held}}
        for table, row in rows.items():
            txn = manifest.transaction(table.key[-1], "append")
            plant.append(DeltaTable(table.uri(self.root)), table_of([row], table), txn)
        checkpoints.succeed(manifest, {})

    def versions(self) -> dict[str, int]:
        found = {table.name: log.version(table.uri(self.root)) for table in WRITTEN}
        return {name: version for name, version in found.items() if version is not None}

    def restoring(self, point: str = "") -> Restoring:
        lake = Lake(self.spark, self.settings)
        return Restoring(lake, self.stores, Callbacks(observe=crash_at(point)))

    def swept(self, table: Table) -> None:
        """VACUUM with nothing kept that need not be."""
        lately = self.settings.mutation.model_copy(update={"max_lateness": timedelta(0)})
        upkeep = self.settings.maintenance.model_copy(update={"rollback_window": timedelta(0)})
        settings = self.settings.model_copy(update={"mutation": lately, "maintenance": upkeep})
        target = Target(table.name, table.uri(self.root))
        vacuum(settings, target, self.stores, lambda: pytest.fail("Spark was asked for"), dry_run=False)

    def state(self) -> str:
        """Which batches the tables show: all the same ones, or it fails."""
        ids = [{row["profile_id"] for row in self.rows(table)} for table in WRITTEN]
        shown = [{n for n in range(BATCHES) if f"new {n}" in each} for each in ids]
        assert shown[0] == shown[1], f"two tables are at different batches: {shown}"
        return {frozenset(range(BATCHES)): "before", frozenset({0}): "target"}[frozenset(shown[0])]


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> Batches:
    world = Batches(spark, tmp_path)
    assert world.state() == "before"
    return world


def crashed(world: Batches, point: str) -> None:
    with pytest.raises(Crash):
        world.restoring(point).run(world.asked)


@pytest.mark.parametrize("point", quick(POINTS))
def test_a_restore_that_is_given_up_leaves_all_tables_as_before_and_jobs_go_on(world: Batches, point: str) -> None:
    before, counts = world.contents(), world.stores.checkpoints.latest(INGEST_PROFILE_CHANGES)
    crashed(world, point)
    with pytest.raises(RestoreRefused, match="restore --abandon"):
        world.restoring().run(world.asked)
    assert blocking_batches(INGEST_PROFILE_CHANGES, (CHANGESET.name,), world.stores.checkpoints.unfinished())
    done = world.restoring().abandon(BY)
    assert done is not None
    assert set(done.end) == {table.name for table in WRITTEN}
    assert world.state() == "before"
    assert world.contents() == before, "notifications and logs, too"
    assert world.stores.checkpoints.latest(INGEST_PROFILE_CHANGES) == counts, "no job is put back"
    assert world.stores.checkpoints.unfinished() == []
    record = world.stores.checkpoints.history(RESTORE_TABLES)[0]
    assert (record.state, record.counts["tables_put_back"]) == (JobState.SUCCEEDED, 2)
    assert record.details["abandoned_by"] == BY
    for table in WRITTEN:
        newest = next(log.markers(table.uri(world.root)))[1]
        assert str(newest).split("\n")[0].endswith(f"/abandon/{table.key[-1]}#0"), "a RESTORE under way would land"
    assert world.restoring().abandon(BY) is None
    world.batch(BATCHES)
    assert world.restoring().run(world.asked) is not None
    assert world.state() == "target"
    # And once more: one that was given up lies between two that are done.
    world.batch(BATCHES + 1)
    crashed(world, point)
    assert world.restoring().abandon(BY) is not None
    assert world.restoring().run(world.asked) is not None
    assert world.state() == "target"


@pytest.mark.parametrize("ends", ["finish", "abandon"])
def test_stores_from_before_a_half_done_restore_are_noticed_by_every_job_and_brought_up_to_it(
    world: Batches, ends: str
) -> None:
    """No commit of RESTORE has a transaction; the stores are put back while it is half done, or was given up."""
    with copied(world.settings.home / "stores.db") as put_back:
        crashed(world, "restore.changeset:after")
        if ends == "abandon":
            assert world.restoring().abandon(BY) is not None
        put_back()
    assert world.stores.checkpoints.unfinished() == []
    with pytest.raises(StoresBehind, match="engagement-platform recover"):
        refuse_stores_behind(INGEST_PROFILE_CHANGES, world.stores.checkpoints, world.stores.tables)
    recover(world.stores)
    refuse_stores_behind(INGEST_PROFILE_CHANGES, world.stores.checkpoints, world.stores.tables)
    done = world.restoring().run(None)
    assert (done is not None, world.state()) == ((True, "target") if ends == "finish" else (False, "before"))
    assert world.stores.checkpoints.unfinished() == []


@contextmanager
def copied(database: Path) -> Iterator[Callable[[], None]]:
    """A copy of a database of SQLite in memory, and what puts it back."""
    with closing(sqlite3.connect(database)) as there, closing(sqlite3.connect(":memory:")) as copy:
        there.backup(copy)
        yield lambda: copy.backup(there)


@pytest.mark.slow
@pytest.mark.parametrize("point", DECIDED)
def test_what_readers_may_have_been_told_of_is_finished_and_not_given_up(world: Batches, point: str) -> None:
    crashed(world, point)
    with pytest.raises(RestoreRefused, match="restore --finish"):
        world.restoring().abandon(BY)
    assert world.restoring().run(None) is not None
    assert world.state() == "target"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_whatever_dies_in_whatever_order_all_tables_end_at_one_batch(world: Batches, seed: int) -> None:
    chance = random.Random(seed)
    crashed(world, chance.choice(POINTS))
    given_up = tuple(f"abandon.{table.key[-1]}:before" for table in WRITTEN)
    for _ in range(6):
        forward = chance.random() < 0.5
        stops = world.restoring(chance.choice(POINTS[1:] if forward else given_up))
        with pytest.raises(Crash):
            stops.run(None) if forward else stops.abandon(BY)
    if chance.random() < 0.5:
        assert world.restoring().run(None) is not None
        assert world.state() == "target"
    else:
        assert world.restoring().abandon(BY) is not None
        assert world.state() == "before"
    assert world.stores.checkpoints.unfinished() == []


@pytest.mark.parametrize("ends", quick(["finish", "abandon"]))
def test_no_vacuum_takes_a_version_away_that_a_half_done_restore_needs_for_either_end(
    world: Batches, ends: str
) -> None:
    DeltaTable(BASE.uri(world.root)).optimize.compact()
    for table in WRITTEN:
        DeltaTable(table.uri(world.root)).alter.set_table_properties(
            # Spark reads no version that is older than that.
            {"delta.deletedFileRetentionDuration": "interval 1 hour"}
        )
    crashed(world, "restore.changeset:after")
    with pytest.raises(StillRead, match=r"restore --finish`, or `engagement-platform restore --abandon"):
        world.swept(BASE)
    if ends == "finish":
        world.restoring().run(None)
        assert world.state() == "target"
    else:
        world.restoring().abandon(BY)
        assert world.state() == "before"


@pytest.mark.slow
def test_no_vacuum_comes_between_the_plan_of_a_restore_and_its_manifest(world: Batches) -> None:
    tried = list[str]()

    def sweep(point: str) -> None:
        if point == "manifest:before":
            with pytest.raises(LeaseUnavailable):
                world.swept(BASE)
            tried.append(point)

    restoring = world.restoring()
    Restoring(restoring.lake, restoring.stores, Callbacks(observe=sweep)).run(world.asked)
    assert tried


def test_a_restore_is_not_begun_when_files_went_after_it_was_planned(world: Batches) -> None:
    restoring = world.restoring()
    job = restoring.job(world.asked)
    planned = job.source.plan(None, job.limits, None)
    assert planned is not None
    DeltaTable(BASE.uri(world.root)).optimize.compact()
    uri, version = BASE.uri(world.root), planned[1][BASE.name]
    then, now = DeltaTable(uri, version=version).file_uris(), DeltaTable(uri).file_uris()
    Path(sorted(set(then) - set(now))[0]).unlink()
    with pytest.raises(VersionGone):
        job.pin()
