"""The ledger of batches: sound, and with each fault. What the tables hold is checked in `test_identity`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from engagement_platform.engine.model import BatchRecord, JobState, Manifest
from engagement_platform.maintenance.verify.messages import ledger, verify
from engagement_platform.settings import Settings


def test_before_the_first_batch_there_is_nothing_to_compare_and_no_spark_is_opened(tmp_path: Path) -> None:
    (finding,) = verify(Settings(home=tmp_path))
    assert (finding.check, finding.looked_at, finding.wrong) == ("ledger", 0, 0)


def record(
    batch_id: int, start: Mapping[str, int], end: Mapping[str, int], counts: Mapping[str, int] | None = None
) -> BatchRecord:
    now = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
    size = sum(end[partition] - start.get(partition, 0) for partition in end)
    manifest = Manifest("ingest-engagements", "ingest-engagements@1", batch_id, start, end, now)
    return BatchRecord(
        manifest,
        JobState.SUCCEEDED,
        now,
        now,
        attempts=1,
        counts=counts if counts is not None else {"rows_in": size, "landed": size},
    )


FIRST = record(0, {"0": 0}, {"0": 4})
SECOND = record(1, {"0": 4, "1": 0}, {"0": 4, "1": 3})
THIRD = record(2, {"0": 4, "1": 3}, {"0": 5, "1": 9}, {"rows_in": 7, "landed": 3, "duplicates": 2, "quarantined": 2})


def test_a_ledger_without_gaps_is_fine_also_when_a_partition_appears() -> None:
    assert ledger([]).wrong == 0
    finding = ledger([FIRST, SECOND, THIRD])
    assert (finding.looked_at, finding.wrong, finding.examples) == (3, 0, [])


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ([FIRST, record(1, {"0": 5}, {"0": 6})], "batch 1 does not begin where batch 0 ended"),
        ([FIRST, record(1, {"0": 3}, {"0": 6})], "batch 1 does not begin where batch 0 ended"),
        ([FIRST, THIRD], "batch 2 does not begin where batch 0 ended"),
        ([SECOND, record(2, {"0": 4}, {"0": 5})], "batch 2 does not begin where batch 1 ended"),
        ([record(0, {"0": 0}, {"0": 4}, {"rows_in": 4, "landed": 3})], "received 4 and accounts for 3"),
        ([record(0, {"0": 0}, {"0": 4}, {"rows_in": 4, "landed": 4, "duplicates": 1})], "accounts for 5"),
    ],
    ids=["a gap", "an overlap", "a batch left out", "a partition forgotten", "a record lost", "a record invented"],
)
def test_a_fault_in_the_ledger_is_found(records: list[BatchRecord], says: str) -> None:
    finding = ledger(records)
    assert finding.wrong == 1
    assert says in finding.examples[0]


def test_the_books_of_a_batch_that_is_not_finished_are_not_looked_at() -> None:
    running: Any = replace(record(1, {"0": 4}, {"0": 9}, {}), state=JobState.RUNNING)
    assert ledger([FIRST, running]).wrong == 0
