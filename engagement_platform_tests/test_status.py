"""Totals, backlog and freshness from real stores and a real topic; no Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake
from deltalake import Transaction as AppTransaction

from engagement_platform.engine.model import BatchRecord, JobState, Manifest
from engagement_platform.jobs import (
    INGEST_ENGAGEMENTS,
    INGEST_MUTATION_REQUESTS,
    INGEST_PROFILE_CHANGES,
    REMATERIALIZE_PROFILE,
    open_stores,
)
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import MAPPING, MUTATION_REQUEST
from engagement_platform.pipelines.mutations.move import REMATERIALIZE_ALIASES
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.pipelines.snapshot import DATA, WATERMARK
from engagement_platform.settings import KafkaSettings, Settings
from engagement_platform.status import (
    Waiting,
    backlog,
    freshness_quantiles,
    in_tables,
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


def announcing(sequence: int, at_s: float) -> BatchRecord:
    """A batch that announced requests up to this sequence, and ended so many seconds after noon."""
    made = Manifest(APPLY_MUTATIONS, "a@1", sequence, {"sequence": sequence - 2}, {"sequence": sequence}, NOON)
    done = NOON + timedelta(seconds=at_s)
    return BatchRecord(made, JobState.SUCCEEDED, NOON, done, 1, {"rows_in": 1})


def accepting(sequence: int) -> BatchRecord:
    """A batch of requests that were produced two seconds before noon."""
    landed = record(rows=21, produced_s_before=[2.0] * 21)
    return replace(landed, manifest=replace(landed.manifest, sequence=sequence))


def test_a_request_counts_to_the_first_batch_that_announced_its_sequence() -> None:
    batches = [announcing(8, 9), announcing(4, 1), announcing(6, 4)]
    assert mutated_quantiles([accepting(5)], batches, (0.5,)) == [6.0]
    assert mutated_quantiles([accepting(4)], batches, (0.5,)) == [3.0]


def test_requests_that_wait_and_batches_that_said_nothing_of_time_are_left_out() -> None:
    assert mutated_quantiles([accepting(5)], [announcing(4, 1)], (0.5,)) == [None]
    assert mutated_quantiles([record()], [announcing(4, 1)], (0.5,)) == [None]


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


def add(settings: Settings, table: Table, sequence: int, rows: int, **more: int) -> None:
    """Rows of a batch. more: application ids that the same commit carries."""
    write_deltalake(
        table.uri(settings.lake),
        pa.table({"batch_sequence": pa.array([sequence] * rows, pa.int64())}),
        mode="append",
        commit_properties=CommitProperties(app_transactions=[AppTransaction(*one) for one in more.items()]),
    )


@pytest.mark.broker
def test_mutations_are_counted_apart_from_messages(broker: Broker, settings: Settings) -> None:
    add(settings, MUTATION_REQUEST, 3, 2)
    add(settings, MUTATION_REQUEST, 5, 1)
    stores = open_stores(settings)
    assert (snapshot(settings).requests_waiting, snapshot(settings).backlog) == (3, 0)

    done = Manifest(APPLY_MUTATIONS, f"{APPLY_MUTATIONS}@1", 0, {"sequence": -1}, {"sequence": 3}, NOON)
    counts = {"rows_in": 2, "landed": 2, "updated": 7, "deleted": 2, "files": 4}
    stores.checkpoints.begin(done)
    assert snapshot(settings).requests_waiting == 3
    stores.checkpoints.succeed(done, counts, {}, NOON)
    now, since = snapshot(settings), summary(settings, NOON)
    assert (now.requests_waiting, now.requests_applied, now.mutation_batches) == (1, 2, 1)
    assert (now.landed, now.duplicates, now.quarantined, now.batches) == (0, 0, 0, 0)
    assert (since.requests_applied, since.rows_mutated, since.mutation_batches, since.files) == (2, 9, 1, 4)
    assert (since.landed, since.duplicates, since.quarantined, since.batches) == (0, 0, 0, 0)


def test_what_waits_in_tables_is_counted_from_logs_and_its_age_from_the_stores(tmp_path: Path) -> None:
    settings, stores = Settings(home=tmp_path), open_stores(Settings(home=tmp_path))
    assert in_tables(REMATERIALIZE_ALIASES, settings, stores) == Waiting(0)
    assert in_tables(INGEST_ENGAGEMENTS, settings, stores) is None
    begun = stores.checkpoints.begin(manifest(0, 0, 2, INGEST_MUTATION_REQUESTS))
    stores.checkpoints.succeed(begun, {"rows_in": 2, "landed": 2})
    add(settings, MUTATION_REQUEST, begun.sequence, 2)
    assert in_tables(REMATERIALIZE_ALIASES, settings, stores) == Waiting(2, NOON)
    assert in_tables(APPLY_MUTATIONS, settings, stores) == Waiting(2, NOON)
    assert backlog(REMATERIALIZE_ALIASES, settings, None) == backlog(APPLY_MUTATIONS, settings, None) == 2
    for table in (DATA, MAPPING):
        add(settings, table, begun.sequence, 1, **{WATERMARK: begun.sequence})
    assert in_tables(REMATERIALIZE_ALIASES, settings, stores) == Waiting(0)
    assert in_tables(APPLY_MUTATIONS, settings, stores) == Waiting(2, NOON)
