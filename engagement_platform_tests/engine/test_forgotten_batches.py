"""What batches come to is the same before and after the rows of old ones are removed, on both databases."""

from __future__ import annotations

import tempfile
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine

from engagement_platform.engine import forgotten_batches
from engagement_platform.engine.database import open_engine, writing
from engagement_platform.engine.forgotten_batches import Forgotten, forget, forgotten
from engagement_platform.engine.model import BatchRecord, JobState, Manifest
from engagement_platform.engine.schema import BATCH
from engagement_platform.engine.stores import CheckpointStore

JOB, RESTORE = "ingest-engagements", "restore-tables"
BEGIN = datetime(2026, 3, 1, tzinfo=UTC)


def at(minute: int) -> datetime:
    return BEGIN + timedelta(minutes=minute)


def land(store: CheckpointStore, minute: int, job: str = JOB, rows: int = 1) -> Manifest:
    """A batch after the last one, ended at a minute."""
    last = store.latest(job)
    number = 0 if last is None else last.manifest.batch_id + 1
    batch = Manifest(job, store.app_id(job), number, {"0": number}, {"0": number + 1}, at(minute))
    store.begin(batch)
    store.succeed(batch, {"rows_in": rows}, {}, at(minute))
    return batch


def summed(records: list[BatchRecord]) -> tuple[int, Counter[str]]:
    counts: Counter[str] = Counter()
    for record in records:
        counts.update(record.counts)
    return sum(record.state is JobState.SUCCEEDED for record in records), counts


def test_finished_batches_of_before_a_time_go_but_the_last_and_what_they_come_to_stays(engine: Engine) -> None:
    store = CheckpointStore(engine)
    for minute in range(10):
        land(store, minute, rows=minute)
    assert forget(engine, timedelta(minutes=3), at(9)) == 5
    assert [record.manifest.batch_id for record in store.history(JOB)] == [9, 8, 7, 6, 5]
    assert forgotten(engine, JOB) == Forgotten(5, {"rows_in": sum(range(5))}, at(4))
    assert forget(engine, timedelta(minutes=3), at(9)) == 0
    assert forgotten(engine, "another") == Forgotten()
    land(store, 10)


def test_no_gap_stays_where_a_clock_was_set_back_and_days_of_before_count_as_forgotten_up_to_the_limit(
    engine: Engine,
) -> None:
    store = CheckpointStore(engine)
    for minute in (0, 90, 1, 2, 91):
        land(store, minute)
    assert forget(engine, timedelta(minutes=31), at(91)) == 3
    assert [record.manifest.batch_id for record in store.history(JOB)] == [4, 3]
    # Not up to the 90th minute: what is read from the 60th on has not been forgotten.
    assert forgotten(engine, JOB).through == at(60)


def test_a_clock_that_is_ahead_costs_nothing_that_is_kept(engine: Engine) -> None:
    assert forget(engine, timedelta(0), at(0)) == 0
    store = CheckpointStore(engine)
    for minute in range(10):
        land(store, minute)
    assert forget(engine, timedelta(minutes=4), at(1_000_000)) == 4
    assert [record.manifest.batch_id for record in store.history(JOB)] == [9, 8, 7, 6, 5, 4]


def test_a_recovery_brings_back_what_stores_have_lost_and_nothing_that_they_have_forgotten(engine: Engine) -> None:
    store = CheckpointStore(engine)
    landed = [land(store, minute) for minute in range(10)]
    assert forget(engine, timedelta(minutes=3), at(9)) == 5
    # The stores are put back by two batches, and logs of tables still have all.
    for lost in landed[-2:]:
        with writing(engine) as connection:
            connection.execute(BATCH.delete().where(BATCH.c.batch_id == lost.batch_id))
    store.adopt(landed[-1], JobState.SUCCEEDED, landed[:-1], reason="lost", foreign=(), sequence=0)
    assert [record.manifest.batch_id for record in store.history(JOB)] == [9, 8, 7, 6, 5]
    assert forgotten(engine, JOB).batches == 5


def test_new_stores_take_over_all_batches_that_tables_know(engine: Engine) -> None:
    store, known = CheckpointStore(engine), [Manifest(JOB, f"{JOB}@1.t", n, {}, {}, BEGIN) for n in range(4)]
    store.adopt(known[-1], JobState.SUCCEEDED, known[:-1], reason="lost", foreign=(), sequence=0)
    assert [record.manifest.batch_id for record in store.history(JOB)] == [3, 2, 1, 0]


def test_what_is_unfinished_was_given_up_or_says_what_became_of_others_stays(engine: Engine) -> None:
    store = CheckpointStore(engine)
    for minute in range(3):
        land(store, minute)
        land(store, minute, RESTORE)
    failed = Manifest(JOB, store.app_id(JOB), 3, {"0": 3}, {"0": 4}, at(3))
    store.begin(failed)
    first = store.app_id(JOB)
    store.reset(JOB)
    land(store, 4)
    running = store.begin(Manifest(JOB, store.app_id(JOB), 1, {"0": 1}, {"0": 2}, at(5)))
    known = store.applications(JOB)
    assert forget(engine, timedelta(0), at(60)) == 2
    left = [(record.manifest.app_id == first, record.manifest.batch_id, record.state) for record in store.history(JOB)]
    assert left == [
        (False, 1, JobState.RUNNING), (False, 0, JobState.SUCCEEDED),
        (True, 3, JobState.FAILED), (True, 2, JobState.SUCCEEDED),
    ]  # fmt: skip
    assert store.applications(JOB) == known
    assert len(store.history(RESTORE)) == 3
    assert [record.manifest for record in store.unfinished()] == [running]


@settings(max_examples=15, deadline=None)
@given(
    steps=st.lists(st.sampled_from(["land", "other", "reset", "forget"]), max_size=14),
    keep=st.integers(0, 12),
    at_once=st.integers(1, 4),
)
def test_whatever_is_forgotten_when_books_and_next_batches_are_as_if_nothing_was(
    steps: list[str], keep: int, at_once: int
) -> None:
    """Beside stores in which nothing is ever forgotten."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(forgotten_batches, "_AT_ONCE", at_once)
        engines = [open_engine(f"sqlite:///{folder}/{name}.db") for name in ("shorter", "whole")]
        stores = [CheckpointStore(engine, clock=lambda: BEGIN, token=lambda: "t") for engine in engines]
        for minute, step in enumerate(steps):
            if step == "forget":
                forget(engines[0], timedelta(minutes=keep), at(minute))
                continue
            for store in stores:
                if step == "reset":
                    store.reset(JOB)
                else:
                    land(store, minute, JOB if step == "land" else "apply-mutations", rows=minute)
        for job in (JOB, "apply-mutations"):
            shorter, whole = (store.history(job) for store in stores)
            gone = forgotten(engines[0], job)
            batches, counts = summed(shorter)
            assert (batches + gone.batches, counts + Counter(gone.counts)) == (summed(whole)[0], +summed(whole)[1])
            assert stores[0].latest(job) == stores[1].latest(job)
            assert stores[0].applications(job) == stores[1].applications(job)
            removed = [record.finished_ts for record in whole if record not in shorter and record.finished_ts]
            assert gone.through == max(removed, default=None)
