"""OPTIMIZE of a changeset beside the job that moves its batches into the base: each waits for the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from engagement_platform.engine.drain import drain
from engagement_platform.engine.job import BatchReport, Callbacks
from engagement_platform.maintenance.layout.optimize import Asked, Done, Outcome, Run, planned
from engagement_platform.maintenance.layout.optimize import Callbacks as OptimizeCallbacks
from engagement_platform_tests.maintenance.layout.seeded import leased
from engagement_platform_tests.pipelines.profiles.conftest import MakeWorld, make_world
from engagement_platform_tests.pipelines.profiles.histories import PROFILE
from engagement_platform_tests.pipelines.profiles.oracle import Said
from engagement_platform_tests.pipelines.profiles.world import AT_ONCE, World, ignore

__all__ = ["make_world"]

pytestmark = [pytest.mark.broker]

CHANGESET = PROFILE.changeset
LEASE = f"table/{CHANGESET.name}"
KEYS = 12
SOON = 180.0


@dataclass
class Wait:
    """Somebody who was told for which lease to wait."""

    leases: list[str] = field(default_factory=list)
    began: threading.Event = field(default_factory=threading.Event)

    def told(self, lease: str) -> None:
        self.leases.append(lease)
        self.began.set()


def changes(version: int) -> list[Said]:
    return [Said(f"p-{i}", version, "UPDATE", {"name": f"Ann {version}", "score": i}) for i in range(KEYS)]


def land(world: World, version: int) -> None:
    """One batch, each of its changes in a file of its own, as a writer with as many tasks would leave it."""
    world.send(changes(version))
    [report] = world.ingest()
    number = report.details["changeset_batch"]
    uri = CHANGESET.uri(world.lake.root)
    # Under the lease: while its rows are dealt out anew nobody may take the batch for complete.
    with leased(world.stores, CHANGESET.name, "scatter"):
        found = DeltaTable(uri)
        rows = found.to_pyarrow_table(filters=[("batch_id", "=", number)])
        found.delete(f"batch_id = {number}")
        for i in range(rows.num_rows):
            write_deltalake(uri, rows.slice(i, 1), mode="append")


def files(world: World) -> dict[int, int]:
    live = pa.table(DeltaTable(CHANGESET.uri(world.lake.root)).get_add_actions(flatten=True))
    counted = live.group_by("partition.batch_id").aggregate([([], "count_all")]).to_pylist()
    return {row["partition.batch_id"]: row["count_all"] for row in counted}


def optimize(world: World, callbacks: OptimizeCallbacks) -> list[Outcome]:
    run = Run(world.settings, world.stores, world.spark.newSession, callbacks)
    return list(run.do(planned(world.settings, Asked(CHANGESET.name))))


def move(world: World, waits: Wait, observe: Callable[[str], None] = ignore) -> Sequence[BatchReport]:
    callbacks = Callbacks(observe=observe, on_wait=lambda lease, _holder: waits.told(lease))
    return list(drain(replace(world.rematerialization(), callbacks=callbacks), AT_ONCE))


def test_merging_the_files_of_a_batch_and_moving_it_wait_for_each_other(
    make_world: MakeWorld,
) -> None:
    world, waits = make_world(), Wait()
    land(world, 1)
    with ThreadPoolExecutor(1) as pool:
        moving = []

        def begin(_slice: object) -> None:
            moving.append(pool.submit(move, world, waits))
            assert waits.began.wait(SOON), f"the mover did not wait for {LEASE} within {SOON} s"

        [done] = optimize(world, OptimizeCallbacks(on_slice=begin))
        [report] = moving[0].result(SOON)
    assert isinstance(done, Done)
    assert (done.files_before, done.files_after, done.attempts) == (KEYS, 1, 1)
    assert set(waits.leases) == {LEASE}
    assert (report.counts["changes"], report.counts["batches_removed"], files(world)) == (KEYS, 1, {})
    assert world.seen_by_rules() == world.expected()

    land(world, 2)
    waits, told = Wait(), OptimizeCallbacks(on_wait=lambda _slice, holder: waits.told(holder.name))
    with ThreadPoolExecutor(1) as pool:
        merging = []

        def leave(point: str) -> None:
            if point == "changeset.delete:before":
                merging.append(pool.submit(optimize, world, told))
                assert waits.began.wait(SOON), f"OPTIMIZE did not wait for {LEASE} within {SOON} s"

        [report] = move(world, Wait(), leave)
        [nothing] = merging[0].result(SOON)
    assert isinstance(nothing, Done), "there was nothing left to merge, and that is no failure"
    assert set(waits.leases) == {LEASE}
    assert (report.counts["batches_removed"], files(world)) == (1, {})
    assert world.seen_by_rules() == world.expected()


@pytest.mark.slow
def test_batches_land_move_and_are_merged_all_at_once_and_no_change_is_lost(make_world: MakeWorld) -> None:
    world = make_world()
    outcomes: list[Outcome] = []
    over = threading.Event()
    land(world, 1)

    def look_after() -> None:
        while not over.is_set():
            outcomes.extend(optimize(world, OptimizeCallbacks()))

    def move_on() -> None:
        while not over.is_set():
            move(world, Wait())

    with ThreadPoolExecutor(2) as pool:
        racing = [pool.submit(look_after), pool.submit(move_on)]
        try:
            for version in range(2, 9):
                land(world, version)
        finally:
            over.set()
        for one in racing:
            one.result(SOON)
    move(world, Wait())
    assert not [one for one in outcomes if not isinstance(one, Done)], "a slice was left"
    assert files(world) == {}
    assert world.seen_by_rules() == world.expected()
