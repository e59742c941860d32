"""A job that is put back begins at the earlier offsets, with ids that nothing has seen, and only once."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine

from engagement_platform.engine.lease import LeaseLost, LeaseStore
from engagement_platform.engine.model import JobState, Limits, Offsets, first_start, lineage
from engagement_platform.engine.stores import BatchMetadataStore, CheckpointStore, StaleBatch
from engagement_platform.pipelines.replay import Range, RecordedRanges, recorded_ranges
from engagement_platform.settings import KafkaSettings
from engagement_platform_tests.engine.conftest import FakeClock
from engagement_platform_tests.engine.test_stores import INGESTED, JOB, manifest, run, token

BY = replace(manifest(7), job="restore-tables", app_id="restore-tables@1.t")
BACK: Any = {"job": JOB, "start": {"0": 0, "1": 0}, "end": {"0": 10, "1": 2**40}, "details": {"reason": "a bad batch"}}


def test_the_next_batch_begins_where_the_job_was_put_back_to(engine: Engine, clock: FakeClock) -> None:
    store, processes = CheckpointStore(engine, token=token), BatchMetadataStore(engine)
    for number in (0, 1):
        run(store, manifest(number))
        processes.record(manifest(number), "data", {"landed": 1}, INGESTED)
    record = store.rewind(**BACK, by=BY, now=clock.now)
    latest = store.latest(JOB)
    assert latest is not None
    assert (latest.manifest, latest.state) == (record, JobState.SUCCEEDED)
    assert (record.batch_id, record.app_id, record.end) == (2, f"{JOB}@2.t", BACK["end"])
    assert record.is_replay
    after = replace(manifest(3, generation=2), start=record.end)
    with pytest.raises(StaleBatch):
        store.begin(replace(after, batch_id=2))
    with pytest.raises(StaleBatch):
        store.begin(replace(after, app_id=f"{JOB}@1.t"))
    store.begin(after)
    processes.record(after, "data", {"landed": 1}, clock.now)
    assert processes.get(JOB)["data"].batch_id == 3
    assert store.app_id(JOB) == f"{JOB}@2.t"


def test_the_same_batch_puts_a_job_back_once(engine: Engine, clock: FakeClock) -> None:
    store = CheckpointStore(engine, token=token)
    run(store, manifest(0))
    first = store.rewind(**BACK, by=BY, now=clock.now)
    assert store.rewind(**BACK, by=BY, now=clock.now) == first
    assert len(store.history(JOB)) == 2
    assert store.rewind(**BACK, by=replace(BY, batch_id=8), now=clock.now).batch_id == 2


def test_a_job_with_an_unfinished_batch_or_none_is_not_put_back(engine: Engine, clock: FakeClock) -> None:
    store = CheckpointStore(engine, token=token)
    with pytest.raises(StaleBatch, match="no batch to be put back"):
        store.rewind(**BACK, by=BY, now=clock.now)
    store.begin(manifest(0))
    before = store.latest(JOB)
    with pytest.raises(StaleBatch, match="comes first"):
        store.rewind(**BACK, by=BY, now=clock.now)
    assert store.latest(JOB) == before
    assert store.app_id(JOB) == f"{JOB}@1.t"


class Checked(RecordedRanges):
    """Without a broker, which has everything."""

    def check(self, start: Offsets, end: Offsets) -> None:
        pass


def test_small_batches_of_a_day_that_is_read_again_are_read_in_large_ones() -> None:
    """Those that follow on each other, as many as a batch takes; a gap, and a large one, are kept."""
    ends = [10, 20, 30, 1_000, 1_010, 1_020, 2_000]
    ranges: list[Range] = [({"0": a}, {"0": b}) for a, b in zip([0, *ends], ends, strict=False)]
    del ranges[4]
    source = Checked("t", KafkaSettings(), ranges, {})
    asked: list[Range] = []
    while planned := source.plan(None, Limits(40, 10**9), 1.0):
        asked.append(planned)
    assert asked == [({"0": 0}, {"0": 30}), ({"0": 30}, {"0": 1_000}), ({"0": 1_010}, {"0": 1_020}),
                     ({"0": 1_020}, {"0": 2_000})]  # fmt: skip
    by_bytes = Checked("t", KafkaSettings(), ranges, {})
    assert by_bytes.plan(None, Limits(10**6, 2_000), 100.0) == ({"0": 0}, {"0": 20})


def test_who_lost_its_lease_puts_nothing_back(engine: Engine, clock: FakeClock) -> None:
    store = CheckpointStore(engine, token=token)
    run(store, manifest(0))
    leases = LeaseStore(engine, ttl=timedelta(seconds=60), clock=clock, sleep=clock.sleep)
    lease = leases.acquire(f"job/{JOB}", purpose="restore")
    lease.release()
    with pytest.raises(LeaseLost):
        store.rewind(**BACK, by=BY, now=clock.now, fences=[lease.fence])
    assert [record.manifest for record in store.history(JOB)] == [manifest(0)]


def test_what_was_read_before_is_still_known_as_read_from_the_same_source(engine: Engine, clock: FakeClock) -> None:
    store = CheckpointStore(engine, token=token)
    run(store, manifest(0))
    store.reset(JOB)
    run(store, manifest(0, generation=2))
    run(store, manifest(1, generation=2))
    store.rewind(**BACK, by=BY, now=clock.now)
    history = store.history(JOB)
    assert [record.rewound_by for record in history] == ["restore-tables@1.t#7", None, None, None]
    ids = lineage(history, store.app_id(JOB))
    assert ids == {f"{JOB}@3.t", f"{JOB}@2.t"}
    assert recorded_ranges(history, ids) == [(m.start, m.end) for m in (manifest(0), manifest(1))]
    assert first_start(history, f"{JOB}@2.t") == manifest(0).start
    assert first_start(history, "nobody@1.t") is None
