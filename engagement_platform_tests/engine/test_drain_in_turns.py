"""Several jobs in one drain: each gets its turn, none keeps the others, and none holds what another run wants."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine

from engagement_platform.engine import drain as module
from engagement_platform.engine.database import open_engine
from engagement_platform.engine.drain import DrainFailed, DrainPolicy, drain_in_turns
from engagement_platform.engine.job import Callbacks, MicroBatchJob
from engagement_platform.engine.lease import LeaseUnavailable
from engagement_platform.engine.model import Limits
from engagement_platform_tests.engine.test_turns import APPLY, AT_ONCE, DATA, INGEST, REQUESTS, World

NOTHING = timedelta(0)


@pytest.fixture
def world(sqlite_engine: Engine) -> World:
    return World(sqlite_engine)


def drained(
    *jobs: MicroBatchJob[Any], policy: DrainPolicy = AT_ONCE, wanted: Callable[[], Collection[str]] = tuple
) -> list[str]:
    """The jobs of the batches, in order."""
    return [name for name, _ in drain_in_turns([(job, NOTHING) for job in jobs], policy, wanted=wanted)]


def failing(job: MicroBatchJob[Any], times: int) -> MicroBatchJob[Any]:
    """The job, whose next so many attempts at a batch fail before anything is written."""
    left = [times]

    def fail(point: str) -> None:
        if point == "data.append:before" and left[0]:
            left[0] -= 1
            raise OSError("the disk went away")

    return replace(job, callbacks=Callbacks(observe=fail))


@settings(max_examples=20)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=3))
def test_every_job_drains_and_none_has_two_turns_while_another_that_has_batches_has_none(lengths: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check_turns(World(open_engine(f"sqlite:///{folder}/stores.db")), lengths)


def check_turns(world: World, lengths: list[int]) -> None:
    jobs = [world.job(f"job-{number}", f"table/{number}", batches=length) for number, length in enumerate(lengths)]
    order = drained(*jobs)
    assert Counter(order) == {job.name: length for job, length in zip(jobs, lengths, strict=True) if length}
    for turn in range(max(lengths)):
        having = [job.name for job, length in zip(jobs, lengths, strict=True) if length > turn]
        began = sum(min(length, turn) for length in lengths)
        assert sorted(order[began : began + len(having)]) == sorted(having)


def test_jobs_of_one_table_need_not_wait_for_each_other(world: World) -> None:
    assert drained(world.job(INGEST, DATA, batches=2), world.job(APPLY, DATA, batches=2)) == [INGEST, APPLY] * 2


def test_a_job_that_failed_is_tried_again_while_the_others_go_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_PAUSE_S", 0.05)
    broken = failing(world.job(INGEST, DATA), times=2)
    failed: list[str] = []
    # Others with work keep the drain going until the pause is over.
    slow = replace(AT_ONCE, idle_timeout=timedelta(seconds=1), poll=timedelta(milliseconds=20))
    order = [
        name
        for name, _ in drain_in_turns(
            [(broken, NOTHING), (world.job(REQUESTS, batches=2), NOTHING)],
            slow,
            on_failure=lambda name, error: failed.append(f"{name}: {error}"),
        )
    ]
    assert order == [REQUESTS, REQUESTS, INGEST]
    assert failed == [f"{INGEST}: the disk went away"] * 2


def test_a_job_that_failed_and_finds_nothing_to_do_any_more_is_told_of(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when another run has done meanwhile what it failed at."""
    monkeypatch.setattr(module, "LONGEST_PAUSE_S", 0.05)
    idle, looks, heard = world.job(INGEST, DATA, batches=0), count(), list[str]()
    plan = idle.source.plan

    def away_at_first(*given: Any) -> Any:
        if not next(looks):
            raise OSError("the broker is away")
        return plan(*given)

    monkeypatch.setattr(idle.source, "plan", away_at_first)
    slow = replace(AT_ONCE, idle_timeout=timedelta(seconds=1), poll=timedelta(milliseconds=20))
    turns = drain_in_turns(
        [(idle, NOTHING), (world.job(REQUESTS, batches=2), NOTHING)], slow,
        on_failure=lambda name, error: heard.append(f"{name}: {error}"), on_recovery=heard.append,
    )  # fmt: skip
    assert [name for name, _ in turns] == [REQUESTS, REQUESTS]
    assert heard == [f"{INGEST}: the broker is away", INGEST]


def test_a_job_whose_source_is_not_there_yet_fails_nothing(world: World) -> None:
    broken = failing(world.job(INGEST, DATA), times=9)
    turns = drain_in_turns([(broken, NOTHING), (world.job(REQUESTS), NOTHING)], AT_ONCE, absent=(OSError,))
    assert [name for name, _ in turns] == [REQUESTS]


def test_a_drain_whose_last_try_of_a_job_failed_says_so_in_the_end(world: World) -> None:
    others = world.job(REQUESTS, batches=2)
    with pytest.raises(DrainFailed, match=f"1 of them failed and could not be finished. {INGEST}: the disk went away"):
        drained(failing(world.job(INGEST, DATA), times=9), others)
    last = world.stores.checkpoints.latest(REQUESTS)
    assert last is not None
    assert last.manifest.batch_id == 1


def test_a_job_that_another_run_wants_is_left_to_it_and_taken_up_again(world: World) -> None:
    asked: list[bool] = []

    def wanted() -> Collection[str]:
        asked.append(True)
        if len(asked) != 3:
            return () if len(asked) > 3 else (APPLY,)
        with world.stores.leases.acquire(f"job/{APPLY}", purpose="backfill"):
            return (APPLY,)

    order = drained(world.job(APPLY, batches=1), world.job(INGEST, batches=3), wanted=wanted)
    assert order == [INGEST, INGEST, INGEST, APPLY]


def test_a_table_that_another_run_writes_keeps_only_its_own_job(world: World) -> None:
    job = replace(world.job(INGEST, DATA), lease_wait=timedelta(seconds=90))
    held = world.stores.leases.acquire(f"table/{DATA}", purpose="rematerialize")
    turns = drain_in_turns([(job, NOTHING), (world.job(REQUESTS), NOTHING)], replace(AT_ONCE, idle_timeout=NOTHING))
    assert next(turns)[0] == REQUESTS
    held.release()
    assert [name for name, _ in turns] == [INGEST]


def test_a_table_that_another_run_never_gives_back_fails_the_job_after_its_own_patience(world: World) -> None:
    with world.stores.leases.acquire(f"table/{DATA}", purpose="rematerialize"):
        with pytest.raises(DrainFailed, match="rematerialize") as failed:
            drained(world.job(INGEST, DATA))
        assert isinstance(failed.value.__cause__, LeaseUnavailable)


def test_no_lease_is_held_once_a_drain_ends_or_is_ended(world: World) -> None:
    turns = drain_in_turns([(world.job(INGEST, batches=2), NOTHING)], AT_ONCE)
    next(turns)
    with pytest.raises(LeaseUnavailable):
        world.stores.leases.acquire(f"job/{INGEST}", purpose="backfill")
    turns.close()
    world.stores.leases.acquire(f"job/{INGEST}", purpose="backfill").release()


def test_a_job_with_a_longer_interval_leaves_the_turns_between_to_others(world: World) -> None:
    # Three batches of the other have to fit into the interval, on a busy machine, too.
    policy = replace(AT_ONCE, min_batch_interval=timedelta(milliseconds=1), idle_timeout=timedelta(seconds=4))
    seldom = replace(world.job(APPLY, batches=2), limits=replace(world.job(APPLY).limits, max_records=2))
    began = time.monotonic()
    turns = drain_in_turns([(seldom, timedelta(seconds=3)), (world.job(INGEST, batches=3), NOTHING)], policy)
    at = [(name, time.monotonic() - began) for name, _ in turns]
    assert [name for name, _ in at] == [APPLY, INGEST, INGEST, INGEST, APPLY]
    assert at[-1][1] - at[0][1] >= 2.9


@pytest.mark.parametrize("counted_by", ["rows_in", "objects"])
def test_a_batch_is_followed_at_once_by_the_next_one_when_it_took_all_that_its_job_counts(counted_by: str) -> None:
    limits = Limits(max_records=3, max_bytes=1_000, counted_by=counted_by)
    assert limits.is_full({"rows_in": 0, "objects": 0, counted_by: 3})
    assert not limits.is_full({"rows_in": 9, "objects": 9, counted_by: 2})
    assert not limits.is_full({})
    assert limits.is_full({counted_by: 1, "bytes_in": limits.max_bytes // 2})


def test_a_job_is_left_to_another_run_also_while_no_turn_is_due(world: World) -> None:
    asked: list[float] = []

    def wanted() -> Collection[str]:
        asked.append(time.monotonic())
        return (APPLY,) if len(asked) > 2 else ()

    seldom = replace(world.job(APPLY, batches=2), limits=replace(world.job(APPLY).limits, max_records=2))
    policy = DrainPolicy(
        poll=timedelta(milliseconds=10),
        min_batch_interval=timedelta(milliseconds=1),
        gives_way=lambda: len(asked) > 3,
    )
    assert [name for name, _ in drain_in_turns([(seldom, timedelta(minutes=10))], policy, wanted=wanted)] == [APPLY]
    world.stores.leases.acquire(f"job/{APPLY}", purpose="backfill").release()
