"""The figures of a bounded run: everything that waited or was produced is accounted for exactly once."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from engagement_platform.embedded.display import progress, summary_table
from engagement_platform.embedded.ports import free_ports
from engagement_platform.embedded.summary import Opening, Watch, balance, messages_on_broker
from engagement_platform.settings import KafkaSettings, Settings
from engagement_platform.sources.kafka_errors import BrokerUnavailable
from engagement_platform.status import StatusSnapshot, StatusSummary
from engagement_platform_tests.conftest import Broker


def opening(on_broker: int, backlog: int) -> Opening:
    return Opening(datetime(2026, 11, 21, tzinfo=UTC), on_broker, StatusSnapshot(backlog=backlog))


counts = st.integers(0, 10**9)


@given(counts, counts, counts, counts, counts, st.integers(-5, 5))
def test_what_is_missing_or_doubled_is_what_the_balance_says(
    before: int, waiting: int, landed: int, known: int, bad: int, lost: int
) -> None:
    produced = landed + known + bad + lost - waiting
    found = balance(opening(before, waiting), before + produced, StatusSummary(landed, known, bad))
    assert found == lost


@pytest.mark.parametrize(("missing", "verdict"), [(0, "balance"), (2, "2 missing"), (-3, "3 too many")])
def test_the_summary_fits_a_narrow_terminal_and_tells_the_verdict(missing: int, verdict: str) -> None:
    console = Console(width=60, record=True, quiet=False, force_terminal=False)
    table = summary_table(
        StatusSummary(
            landed=19_990,
            quarantined=4,
            duplicates=6,
            freshness_p50_s=4.25,
            requests_applied=3_000,
            rows_mutated=7_000,
            mutated_p95_s=9.5,
        ),
        opening(7, 0),
        20_007,
        missing,
    )
    with console.capture() as capture:
        console.print(table)
    lines = [" ".join(line.strip("│┃ ").split("│")).split() for line in capture.get().splitlines()]
    shown = {" ".join(words[:-1]): words[-1] for words in lines if len(words) > 1}
    assert shown["produced"] == "20,000"
    assert shown["landed"] == "19,990"
    assert (shown["mutations applied"], shown["rows mutated"]) == ("3,000", "7,000")
    assert verdict in capture.get()
    assert "…" not in capture.get()


def test_the_line_of_progress_says_in_short_why_a_job_fails() -> None:
    watch = Watch(Settings())
    watch.latest, watch.on_broker = (
        StatusSnapshot(landed=3, failing="ingest-engagements failed: " + "x" * 300 + "\nmore"),
        8,
    )
    shown = progress(watch, opening(5, 0), 10)
    assert "produced 3" in shown
    assert "ingest-engagements failed: xxx" in shown
    assert shown.endswith("x …")
    assert "more" not in shown
    watch.latest = StatusSnapshot(landed=3)
    assert "failed" not in progress(watch, opening(5, 0), 10)


def test_the_line_of_progress_tells_of_requests_that_were_applied_since_the_start_and_of_those_that_wait() -> None:
    watch = Watch(Settings())
    watch.latest = StatusSnapshot(requests_applied=1_500, requests_waiting=20)
    opened = Opening(datetime(2026, 11, 21, tzinfo=UTC), 0, StatusSnapshot(requests_applied=500))
    assert "mutations 1,000 (waiting 20)" in progress(watch, opened, None)


@given(counts, counts)
def test_what_mutations_did_is_no_message_of_its_own(landed: int, applied: int) -> None:
    mutated = StatusSummary(landed=landed, requests_applied=applied, rows_mutated=2 * applied, mutation_batches=3)
    assert balance(opening(0, 0), landed, mutated) == 0


@pytest.mark.broker
def test_messages_of_both_topics_are_counted_and_a_topic_that_is_not_there_is_none(broker: Broker) -> None:
    settings = KafkaSettings(
        bootstrap_servers=broker.bootstrap_servers, engagements_topic="counted", mutation_requests_topic="counted-not"
    )
    broker.create_topic("counted", partitions=2)
    broker.produce("counted", [(0, None, b"a"), (1, None, b"b"), (1, None, b"c")])
    assert messages_on_broker(settings) == 3


def test_a_broker_that_is_not_there_is_named() -> None:
    (port,) = free_ports(1)
    settings = KafkaSettings.model_validate({"bootstrap_servers": f"127.0.0.1:{port}", "timeout": "PT1S"})
    with pytest.raises(BrokerUnavailable, match=f"127.0.0.1:{port}"):
        messages_on_broker(settings)
