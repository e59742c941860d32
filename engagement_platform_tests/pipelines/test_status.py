"""Totals, backlog and freshness from real stores and a real topic; no Spark."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake
from deltalake import Transaction as AppTransaction
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from engagement_platform.cli import app
from engagement_platform.engine.forgotten_batches import forget
from engagement_platform.engine.model import BatchRecord, JobState, Manifest
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import MAPPING, MUTATION_REQUEST
from engagement_platform.pipelines.jobs import (
    INGEST_ENGAGEMENTS,
    INGEST_MUTATION_REQUESTS,
    INGEST_PROFILE_CHANGES,
    REMATERIALIZE_PROFILE,
    open_stores,
)
from engagement_platform.pipelines.mutations.move import REMATERIALIZE_ALIASES
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.pipelines.snapshot import DATA, WATERMARK
from engagement_platform.pipelines.status import (
    JobStatus,
    Sums,
    Waiting,
    backlog,
    freshness_quantiles,
    in_tables,
    job_statuses,
    succeeded,
    summed,
)
from engagement_platform.settings import KafkaSettings, Settings
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


def test_the_batches_of_a_job_are_not_those_that_it_moved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    moves = JobStatus(REMATERIALIZE_PROFILE, None, 0, 3, Counter(batches=77, files=5))
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path))
    monkeypatch.setattr("engagement_platform.pipelines.status.job_statuses", lambda _settings: [moves])
    [job] = json.loads(CliRunner().invoke(app, ["status", "--json"]).stdout)["jobs"]
    assert (job["batches"], job["totals"]["batches"]) == (3, 77)


def test_prometheus_reads_what_waits_what_has_failed_and_what_the_last_batch_took(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done = record(rows=5, produced_s_before=[3.0] * 21)
    failed = replace(record(1, state=JobState.FAILED), reason="a reason")
    jobs = [
        JobStatus(INGEST_ENGAGEMENTS, failed, 7, 3, Counter(landed=4, quarantined=1, files=9), NOON, done),
        JobStatus(APPLY_MUTATIONS, None, 0, 0, Counter()),
    ]
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path))
    monkeypatch.setattr("engagement_platform.pipelines.status.job_statuses", lambda _settings: jobs)
    told = CliRunner().invoke(app, ["status", "--prometheus"]).stdout
    samples = [each for family in text_string_to_metric_families(told) for each in family.samples]

    def of(job: str) -> dict[tuple[str, ...], float]:
        return {
            (each.name.removeprefix("engagement_platform_"), *list(each.labels.values())[1:]): each.value
            for each in samples
            if next(iter(each.labels.values())) == job
        }

    nothing: dict[tuple[str, ...], float] = {("waiting",): 0, ("failed",): 0, ("batches_total",): 0}
    nothing |= {("records_total", outcome): 0 for outcome in ("landed", "duplicates", "quarantined")}
    assert of(APPLY_MUTATIONS) == nothing
    assert of(INGEST_ENGAGEMENTS) == {
        **nothing,
        ("waiting",): 7,
        ("waiting_since_timestamp_seconds",): NOON.timestamp(),
        ("failed",): 1,
        ("batches_total",): 3,
        ("records_total", "landed"): 4,
        ("records_total", "quarantined"): 1,
        ("batch_seconds",): (done.updated_ts - done.started_ts).total_seconds(),
        ("batch_finished_timestamp_seconds",): NOON.timestamp(),
        ("batch_freshness_seconds", "0.5"): 3,
        ("batch_freshness_seconds", "0.95"): 3,
    }


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


def test_sums_that_go_on_from_the_last_look_are_those_of_all_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = (stores := open_stores(Settings(home=tmp_path))).checkpoints
    sums, history, asked = Sums(), checkpoints.history, list[int | None]()

    def listed(job: str, *, limit: int | None = None) -> list[BatchRecord]:
        asked.append(limit)
        return history(job, limit=limit)

    monkeypatch.setattr(checkpoints, "history", listed)

    def looked() -> tuple[int, Counter[str]]:
        sums.look(INGEST_ENGAGEMENTS, stores)
        done = succeeded(history(INGEST_ENGAGEMENTS))
        assert (sums.batches, sums.totals, sums.last) == (len(done), summed(done), done[0] if done else None)
        return sums.batches, sums.totals

    assert looked() == (0, Counter())
    number = 0
    for finishing in (1, 0, 2, 90, 1):
        for _ in range(finishing):
            made = replace(manifest(number, number, number + 1), app_id=checkpoints.app_id(INGEST_ENGAGEMENTS))
            checkpoints.begin(made)
            checkpoints.succeed(made, {"rows_in": number, "landed": 1})
            number += 1
        looked()
    assert asked == [None, None, 64, 64, 64, None, 64]
    checkpoints.begin(again := replace(made, batch_id=number))
    assert looked()[0] == 94
    checkpoints.fail(again, "a reason")
    looked()
    checkpoints.succeed(checkpoints.begin(again), {"landed": 7})
    looked()
    app_id = checkpoints.reset(INGEST_ENGAGEMENTS)
    checkpoints.begin(anew := replace(made, batch_id=0, app_id=app_id))
    checkpoints.succeed(anew, {"landed": 5})
    assert looked() == (96, Counter(rows_in=sum(range(94)), landed=94 + 7 + 5))
    assert asked[-1] == 64
    before = (sums.batches, sums.totals.copy())
    assert forget(stores.leases.engine, timedelta(0), datetime.now(UTC)) == sums.batches - 2
    sums.look(INGEST_ENGAGEMENTS, stores)
    assert (sums.batches, sums.totals) == before, "who has looked before knows them"
    first_look = Sums()
    first_look.look(INGEST_ENGAGEMENTS, stores)
    assert (first_look.batches, first_look.totals) == before, "what is forgotten counts"
    other = open_stores(Settings(home=tmp_path / "other"))
    sums.look(INGEST_ENGAGEMENTS, other)
    assert (sums.batches, sums.totals) == (0, Counter()), "other stores were put in their place"


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
    assert job_statuses(settings)[0].failure == "a reason"
    stores.checkpoints.begin(second)
    assert job_statuses(settings)[0].failure is None
    stores.checkpoints.succeed(second, {"rows_in": 4, "landed": 4})
    assert waiting() == 0
    produce(broker, settings.kafka.engagements_topic, 1)
    assert waiting() == 1


@pytest.mark.broker
def test_a_job_without_a_batch_has_nothing_waiting(settings: Settings) -> None:
    assert [(job.job, job.checkpoint, job.backlog) for job in job_statuses(settings)] == [
        (INGEST_ENGAGEMENTS, None, 0),
        (INGEST_MUTATION_REQUESTS, None, 0),
        (INGEST_PROFILE_CHANGES, None, 0),
        (APPLY_MUTATIONS, None, 0),
        (REMATERIALIZE_ALIASES, None, 0),
        (REMATERIALIZE_PROFILE, None, 0),
    ]


def add(settings: Settings, table: Table, sequence: int, rows: int, **more: int) -> None:
    """Rows of a batch. more: application ids that the same commit carries."""
    write_deltalake(
        table.uri(settings.lake),
        pa.table({"batch_sequence": pa.array([sequence] * rows, pa.int64())}),
        mode="append",
        commit_properties=CommitProperties(app_transactions=[AppTransaction(*one) for one in more.items()]),
    )


def test_what_waits_in_tables_is_counted_from_logs_and_its_age_from_the_stores(tmp_path: Path) -> None:
    settings, stores = Settings(home=tmp_path), open_stores(Settings(home=tmp_path))
    assert in_tables(REMATERIALIZE_ALIASES, settings, stores) == Waiting(0)
    assert in_tables(INGEST_ENGAGEMENTS, settings, stores) is None
    begun = stores.checkpoints.begin(manifest(0, 0, 2, INGEST_MUTATION_REQUESTS))
    stores.checkpoints.succeed(begun, {"rows_in": 2, "landed": 2})
    add(settings, MUTATION_REQUEST, begun.sequence, 2)
    assert in_tables(REMATERIALIZE_ALIASES, settings, stores) == Waiting(2, NOON)
    assert in_tables(APPLY_MUTATIONS, settings, stores) == Waiting(2, NOON)
    for table in (DATA, MAPPING):
        add(settings, table, begun.sequence, 1, **{WATERMARK: begun.sequence})
    assert in_tables(REMATERIALIZE_ALIASES, settings, stores) == Waiting(0)
    assert in_tables(APPLY_MUTATIONS, settings, stores) == Waiting(2, NOON)
