"""The figures of a bounded run: everything that waited or was produced is accounted for exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from engagement_platform.engine.model import BatchRecord, JobState, Manifest
from engagement_platform.local.figures import (
    BALANCE,
    Figures,
    Watch,
    announced_at,
    figures,
    latencies,
    progress,
    summary_table,
)
from engagement_platform.pipelines.jobs import (
    INGEST_ENGAGEMENTS,
    INGEST_MUTATION_REQUESTS,
    INGEST_PROFILE_CHANGES,
    open_stores,
)
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.settings import KafkaSettings, Settings
from engagement_platform.sources.kafka_errors import TopicMissing
from engagement_platform_tests.conftest import Broker

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
FRESH = ("freshness p50", "freshness p95")
MUTATION = ("mutation visible p95", "mutation announced p95")

counts = st.integers(0, 10**9)


@given(counts, counts, counts, counts, counts, counts, st.integers(-5, 5))
def test_what_is_missing_or_doubled_is_what_the_balance_says(
    before: int, waiting: int, landed: int, known: int, bad: int, applied: int, lost: int
) -> None:
    opening = Figures(NOON, Counter(on_broker=before, backlog=waiting, landed=7, requests_applied=3))
    produced = landed + known + bad + lost - waiting
    now = Counter(on_broker=before + produced, landed=7 + landed, duplicates=known, quarantined=bad)
    now.update(requests_applied=3 + applied, rows_mutated=2 * applied)  # what mutations did is no message of its own
    assert Figures(NOON, now).missing(opening) == lost


def test_books_of_a_run_with_traffic_do_not_balance_where_nothing_was_produced() -> None:
    opening = Figures(NOON, Counter(on_broker=20, landed=20))
    waited = Figures(NOON, Counter(on_broker=25, backlog=5, landed=20))
    assert opening.books(opening, traffic=True) == "nothing produced"
    assert opening.books(opening, traffic=False) == BALANCE
    assert Figures(NOON, Counter(on_broker=25, landed=25)).books(waited, traffic=True) == "nothing produced"
    assert Figures(NOON, Counter(on_broker=26, landed=26)).books(waited, traffic=True) == BALANCE


@pytest.mark.parametrize(("landed", "verdict"), [(19_990, "balance"), (19_988, "2 missing"), (19_993, "3 too many")])
def test_the_summary_fits_a_narrow_terminal_and_tells_the_verdict(landed: int, verdict: str) -> None:
    came = Counter(on_broker=20_007, landed=landed, quarantined=4, duplicates=6, requests_applied=3_000)
    seconds = dict.fromkeys((FRESH[1], "p95 once running", *MUTATION))
    closing, opening = Figures(NOON, came), Figures(NOON, Counter(on_broker=7))
    books = closing.books(opening, traffic=True)
    table = summary_table(closing, opening, {"freshness p50": 4.25, **seconds}, books)
    console = Console(width=60, force_terminal=False)
    with console.capture() as capture:
        console.print(table)
    lines = [" ".join(line.strip("│┃ ").split("│")).split() for line in capture.get().splitlines()]
    shown = {" ".join(words[:-1]): words[-1] for words in lines if len(words) > 1}
    assert (shown["produced"], shown["landed"], shown["mutations applied"]) == ("20,000", f"{landed:,}", "3,000")
    assert "4.2 s" in capture.get()
    assert verdict in capture.get()
    assert "…" not in capture.get()


def test_the_line_of_progress_has_what_came_and_waits_and_in_short_why_a_job_fails() -> None:
    watch, opening = Watch(Settings()), Figures(NOON, Counter(on_broker=5, requests_applied=500))
    came = Counter(on_broker=8, landed=3, requests_applied=1_500, requests_waiting=20)
    watch.latest = Figures(NOON, came, "ingest-engagements failed: " + "x" * 300 + "\nmore")
    shown = progress(watch, opening, 10)
    assert "produced 3" in shown
    assert "mutations 1,000 (waiting 20)" in shown
    assert "ingest-engagements failed: xxx" in shown
    assert shown.endswith("x …")
    watch.latest = Figures(NOON, came)
    assert "failed" not in progress(watch, opening, 10)


@pytest.fixture
def settings(broker: Broker, tmp_path: Path) -> Settings:
    """Stores that hold nothing, two empty topics, and one that is not there."""
    name = uuid4().hex[:12]
    topics = (f"engagements-{name}", f"requests-{name}")
    for topic in topics:
        broker.create_topic(topic, partitions=2)
    kafka = KafkaSettings(
        bootstrap_servers=broker.bootstrap_servers,
        engagements_topic=topics[0],
        mutation_requests_topic=topics[1],
        profile_changes_topic=f"none-{name}",
    )
    return Settings(home=tmp_path, kafka=kafka)


def finish(settings: Settings, made: Manifest, counts: dict[str, int], waited_s: float, at: datetime = NOON) -> None:
    """Record a finished batch whose messages had waited so long at noon."""
    produced = {"produced_quantiles_ms": [int(NOON.timestamp() * 1000 - waited_s * 1000)] * 21}
    checkpoints = open_stores(settings).checkpoints
    checkpoints.begin(made)
    checkpoints.succeed(made, counts, produced, at)


def batches(job: str, ends: Sequence[int]) -> list[Manifest]:
    return [
        Manifest(job, f"{job}@1", nth, {"0": start}, {"0": end}, NOON)
        for nth, (start, end) in enumerate(zip((0, *ends), ends, strict=False))
    ]


@pytest.mark.broker
def test_totals_are_over_all_jobs_and_latencies_over_what_finished_since(broker: Broker, settings: Settings) -> None:
    assert figures(settings).counts.total() == 0
    broker.produce(settings.kafka.engagements_topic, [(0, None, b"{}")] * 9)
    broker.produce(settings.kafka.mutation_requests_topic, [(0, None, b"{}")] * 3)
    early, late = batches(INGEST_ENGAGEMENTS, (4, 9))
    (request,) = batches(INGEST_MUTATION_REQUESTS, (2,))
    found = {"rows_in": 4, "landed": 2, "duplicates": 1, "quarantined": 1, "files": 5}
    finish(settings, early, found, 99, NOON - timedelta(hours=1))
    finish(settings, late, {"rows_in": 5, "landed": 5, "files": 3}, 5)
    finish(settings, request, {"rows_in": 2, "landed": 1, "quarantined": 1, "files": 2}, 5)
    announcing = Manifest(APPLY_MUTATIONS, f"{APPLY_MUTATIONS}@1", 0, {"sequence": -1}, {"sequence": 99}, NOON)
    finish(settings, announcing, {"rows_in": 2, "updated": 7, "deleted": 2, "files": 4}, 0, NOON + timedelta(seconds=1))
    now = figures(settings).counts
    assert {name: count for name, count in now.items() if count} == {
        "on_broker": 12, "landed": 8, "duplicates": 1, "quarantined": 2, "batches": 3, "files": 14, "backlog": 1,
        "mutation_batches": 1, "requests_applied": 2, "rows_mutated": 9,
    }  # fmt: skip
    took = latencies(settings, NOON)
    assert [took[name] for name in (*FRESH, *MUTATION)] == [5, 5, 5, 6]
    assert set(latencies(settings, NOON + timedelta(seconds=2)).values()) == {None}


@pytest.mark.broker
def test_what_waits_for_a_pipeline_that_is_off_is_no_backlog(broker: Broker, settings: Settings) -> None:
    profiles = settings.kafka.profile_changes_topic
    broker.create_topic(profiles, partitions=1)
    broker.produce(profiles, [(0, None, b"{}")] * 5)
    broker.produce(settings.kafka.engagements_topic, [(0, None, b"{}")] * 9)
    (profile,) = batches(INGEST_PROFILE_CHANGES, (2,))
    finish(settings, profile, {"rows_in": 2, "landed": 2, "files": 3}, 5)

    def counted(**on: bool) -> dict[str, int]:
        pipelines = settings.pipelines.model_copy(update=on)
        now = figures(settings.model_copy(update={"pipelines": pipelines})).counts
        return {name: now[name] for name in ("on_broker", "landed", "files", "backlog")}

    assert counted() == {"on_broker": 14, "landed": 2, "files": 3, "backlog": 12}
    assert counted(profiles=False) == {"on_broker": 9, "landed": 0, "files": 0, "backlog": 9}
    assert counted(engagements=False) == {"on_broker": 5, "landed": 2, "files": 3, "backlog": 3}
    broker.delete_topic(profiles)
    assert counted(profiles=False)["backlog"] == 9, "nobody misses what is not read"
    with pytest.raises(TopicMissing):
        counted()


def test_requests_were_announced_by_the_first_batch_that_reached_their_sequence() -> None:
    def announcing(sequence: int, hour: int) -> BatchRecord:
        made = Manifest(APPLY_MUTATIONS, "a@1", sequence, {"sequence": sequence - 2}, {"sequence": sequence}, NOON)
        return BatchRecord(made, JobState.SUCCEEDED, NOON, NOON.replace(hour=hour))

    def accepting(sequence: int) -> BatchRecord:
        made = Manifest(INGEST_MUTATION_REQUESTS, "i@1", 0, {"0": 0}, {"0": 1}, NOON, sequence=sequence)
        return BatchRecord(made, JobState.SUCCEEDED, NOON, NOON)

    done = [announcing(8, 19), announcing(4, 13), announcing(6, 15)]
    for sequence, hour in ((3, 13), (4, 13), (5, 15), (8, 19)):
        assert announced_at(accepting(sequence), done) == NOON.replace(hour=hour)
    assert announced_at(accepting(9), done) is None


def test_freshness_once_running_leaves_out_the_first_two_batches_of_each_job(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    for made, waited in zip(batches(INGEST_ENGAGEMENTS, (1, 2, 3, 4)), (60, 30, 4, 6), strict=True):
        finish(settings, made, {"rows_in": 1, "landed": 1}, waited)
    took = latencies(settings, NOON)
    assert (took["freshness p95"], took["p95 once running"]) == (60, 6)
