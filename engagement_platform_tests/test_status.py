"""Totals, backlog and freshness from real stores and a real topic; no Spark."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from engagement_platform.engine.model import JobState, Manifest
from engagement_platform.engine.stores import BatchRecord
from engagement_platform.jobs import (
    INGEST_ENGAGEMENTS,
    INGEST_MUTATION_REQUESTS,
    INGEST_PROFILE_CHANGES,
    REMATERIALIZE_PROFILE,
    open_stores,
)
from engagement_platform.lake.engagement import MUTATION_REQUEST, PENDING
from engagement_platform.pipelines.mutations.move import REMATERIALIZE_ALIASES
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.settings import KafkaSettings, Settings
from engagement_platform.status import (
    backlog,
    freshness_quantiles,
    job_statuses,
    mutated_quantiles,
    snapshot,
    succeeded,
    summary,
    summed,
)
from engagement_platform_tests.conftest import Broker

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def manifest(batch_id: int, start: int, end: int, job: str = INGEST_ENGAGEMENTS) -> Manifest:
    return Manifest(job, f"{job}@1", batch_id, {"0": start}, {"0": end}, NOON)


def record(
    batch_id: int = 0,
    *,
    rows: int = 1,
    produced_s_before: Sequence[float] = (),
    state: JobState = JobState.SUCCEEDED,
    finished: datetime | None = NOON,
) -> BatchRecord:
    quantiles = [int((NOON - timedelta(seconds=seconds)).timestamp() * 1000) for seconds in produced_s_before]
    return BatchRecord(
        manifest(batch_id, 0, rows),
        state,
        date(2026, 11, 21),
        started_ts=NOON,
        finished_ts=finished,
        attempts=1,
        counts={"rows_in": rows},
        details={"produced_quantiles_ms": quantiles} if quantiles else {},
    )


def test_freshness_is_unknown_while_nothing_was_read() -> None:
    nothing = [record(), record(finished=None, produced_s_before=[1])]
    assert freshness_quantiles(nothing, (0.5, 0.95)) == [None, None]
    assert freshness_quantiles([], ()) == []


def test_freshness_of_one_batch_is_read_off_its_quantiles() -> None:
    # 21 quantiles of messages that waited 0, 1, … 20 s.
    batch = record(rows=21, produced_s_before=[float(20 - step) for step in range(21)])
    median, most, all_of_them = freshness_quantiles([batch], (0.5, 0.95, 1.0))
    assert median == pytest.approx(10, abs=1)
    assert most == pytest.approx(19, abs=1)
    assert all_of_them == pytest.approx(20)


def test_a_large_batch_counts_for_more_than_a_small_one() -> None:
    large = record(rows=990, produced_s_before=[1.0] * 21)
    small = record(1, rows=10, produced_s_before=[100.0] * 21)
    assert freshness_quantiles([small, large], (0.5, 0.95, 1.0)) == pytest.approx([1.0, 1.0, 100.0])


def test_only_finished_batches_are_counted() -> None:
    records = [
        record(0, rows=5),
        record(1, rows=7, state=JobState.FAILED),
        record(2, rows=9, state=JobState.RUNNING, finished=None),
    ]
    assert [done.manifest.batch_id for done in succeeded(records)] == [0]
    totals = summed(succeeded(records))
    assert totals["rows_in"] == 5
    assert totals["never said"] == 0


def planned(batch_id: int, at_s: float, took_s: float = 1.0) -> BatchRecord:
    """A batch of mutations that was planned so many seconds after noon."""
    begun = NOON + timedelta(seconds=at_s)
    made = Manifest(APPLY_MUTATIONS, "a@1", batch_id, {"version": batch_id}, {"version": batch_id + 1}, begun)
    done = begun + timedelta(seconds=took_s)
    return BatchRecord(made, JobState.SUCCEEDED, date(2026, 11, 21), begun, done, 1, {"rows_in": 1})


def test_a_request_is_visible_when_the_batch_ends_that_was_planned_after_it_had_landed() -> None:
    landed = record(rows=21, produced_s_before=[2.0] * 21)
    assert mutated_quantiles([landed], [planned(0, -1), planned(1, 3), planned(2, 9)], (0.5,)) == [6.0]
    assert mutated_quantiles([landed], [planned(0, 0, took_s=0.5)], (0.5,)) == [2.5]


def test_requests_that_wait_and_batches_that_said_nothing_of_time_are_left_out() -> None:
    landed = record(rows=21, produced_s_before=[2.0] * 21)
    assert mutated_quantiles([landed], [planned(0, -1)], (0.5,)) == [None]
    assert mutated_quantiles([record()], [planned(0, 1)], (0.5,)) == [None]


@pytest.fixture
def settings(broker: Broker, tmp_path: Path) -> Settings:
    """Stores that hold nothing, and two empty topics."""
    name = uuid4().hex[:12]
    topics = (f"engagements-{name}", f"requests-{name}")
    for topic in topics:
        broker.create_topic(topic)
    kafka = KafkaSettings(
        bootstrap_servers=broker.bootstrap_servers, engagements_topic=topics[0], mutation_requests_topic=topics[1]
    )
    return Settings(home=tmp_path, kafka=kafka)


def produce(broker: Broker, topic: str, count: int) -> None:
    broker.produce(topic, [(0, None, b"{}")] * count)


@pytest.mark.broker
def test_a_batch_under_way_counts_as_waiting_until_it_is_finished(broker: Broker, settings: Settings) -> None:
    stores = open_stores(settings)
    produce(broker, settings.kafka.engagements_topic, 10)

    def waiting() -> int:
        return backlog(INGEST_ENGAGEMENTS, settings, stores.checkpoints.latest(INGEST_ENGAGEMENTS))

    assert waiting() == 10
    first, second = manifest(0, 0, 6), manifest(1, 6, 10)
    stores.checkpoints.begin(first)
    assert waiting() == 10
    stores.checkpoints.succeed(first, {"rows_in": 6, "landed": 6})
    assert waiting() == 4
    stores.checkpoints.begin(second)
    stores.checkpoints.fail(second, "a reason")
    assert waiting() == 4
    assert snapshot(settings).failing == "ingest-engagements failed: a reason"
    stores.checkpoints.begin(second)
    assert snapshot(settings).failing is None
    stores.checkpoints.succeed(second, {"rows_in": 4, "landed": 4})
    assert waiting() == 0
    produce(broker, settings.kafka.engagements_topic, 1)
    assert waiting() == 1


@pytest.mark.broker
def test_totals_are_over_all_jobs_and_a_summary_over_what_finished_since(broker: Broker, settings: Settings) -> None:
    assert [(job.job, job.checkpoint, job.backlog) for job in job_statuses(settings)] == [
        (INGEST_ENGAGEMENTS, None, 0),
        (INGEST_MUTATION_REQUESTS, None, 0),
        (INGEST_PROFILE_CHANGES, None, 0),
        (APPLY_MUTATIONS, None, 0),
        (REMATERIALIZE_ALIASES, None, 0),
        (REMATERIALIZE_PROFILE, None, 0),
    ]
    stores = open_stores(settings)
    produce(broker, settings.kafka.engagements_topic, 9)
    produce(broker, settings.kafka.mutation_requests_topic, 3)
    early, late = manifest(0, 0, 4), manifest(1, 4, 9)
    request = manifest(0, 0, 2, INGEST_MUTATION_REQUESTS)
    produced = {"produced_quantiles_ms": [int(NOON.timestamp() * 1000) - 5000] * 21}
    for done, counts, finished in (
        (early, {"rows_in": 4, "landed": 2, "duplicates": 1, "quarantined": 1, "files": 5}, NOON - timedelta(hours=1)),
        (late, {"rows_in": 5, "landed": 5, "files": 3}, NOON),
        (request, {"rows_in": 2, "landed": 1, "quarantined": 1, "files": 2}, NOON),
    ):
        stores.checkpoints.begin(done)
        stores.checkpoints.succeed(done, counts, produced, finished)

    now = snapshot(settings)
    assert (now.landed, now.duplicates, now.quarantined, now.batches, now.backlog) == (8, 1, 2, 3, 1)
    since = summary(settings, NOON)
    assert (since.landed, since.duplicates, since.quarantined, since.batches, since.files) == (6, 0, 1, 2, 5)
    assert (since.freshness_p50_s, since.freshness_p95_s) == (5, 5)
    nothing = summary(settings, NOON + timedelta(seconds=1))
    assert (nothing.batches, nothing.freshness_p50_s) == (0, None)


@pytest.mark.broker
def test_freshness_once_running_leaves_out_the_first_two_batches_of_each_job(
    broker: Broker, settings: Settings
) -> None:
    stores = open_stores(settings)
    for nth, seconds in enumerate((60, 30, 4, 6)):
        done = manifest(nth, nth, nth + 1)
        produced = {"produced_quantiles_ms": [int(NOON.timestamp() * 1000) - seconds * 1000] * 21}
        stores.checkpoints.begin(done)
        stores.checkpoints.succeed(done, {"rows_in": 1, "landed": 1}, produced, NOON)
    told = summary(settings, NOON)
    assert (told.freshness_p95_s, told.freshness_running_p95_s) == (60, 6)


@pytest.mark.broker
def test_mutations_are_counted_apart_from_messages(broker: Broker, settings: Settings) -> None:
    write_deltalake(
        MUTATION_REQUEST.uri(settings.lake), pa.table({"request_id": ["r-1", "r-2", "r-3"]}),
        configuration={"delta.appendOnly": "true"},
    )  # fmt: skip
    write_deltalake(PENDING.uri(settings.lake), pa.table({"pending_from": pa.array([None, 4, 5], pa.int64())}))
    stores = open_stores(settings)
    waiting = {job.job: job.backlog for job in job_statuses(settings)}
    assert (waiting[APPLY_MUTATIONS], waiting[REMATERIALIZE_ALIASES]) == (3, 2)
    assert (snapshot(settings).requests_waiting, snapshot(settings).backlog) == (3, 0)

    done = Manifest(APPLY_MUTATIONS, f"{APPLY_MUTATIONS}@1", 0, {"version": -1}, {"version": 0}, NOON)
    counts = {"rows_in": 3, "landed": 1, "duplicates": 1, "quarantined": 1, "updated": 7, "deleted": 2, "files": 4}
    stores.checkpoints.begin(done)
    assert snapshot(settings).requests_waiting == 3
    stores.checkpoints.succeed(done, counts, {}, NOON)
    now, since = snapshot(settings), summary(settings, NOON)
    assert (now.requests_waiting, now.requests_applied, now.mutation_batches) == (0, 3, 1)
    assert (now.landed, now.duplicates, now.quarantined, now.batches) == (0, 0, 0, 0)
    assert (since.requests_applied, since.rows_mutated, since.mutation_batches, since.files) == (3, 9, 1, 4)
    assert (since.landed, since.duplicates, since.quarantined, since.batches) == (0, 0, 0, 0)
