"""How much waits in a table and since when, from its log and the stores; without Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from deltalake import DeltaTable, write_deltalake

from engagement_platform.engine.model import Manifest
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.engagement import MUTATION_REQUEST
from engagement_platform.pipelines.jobs import INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS, open_stores
from engagement_platform.pipelines.status import oldest_above, rows_above
from engagement_platform.settings import Settings

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def land(root: str, sequence: int, rows: int) -> None:
    """A batch of requests, as one commit."""
    row = {"organization_id": "org", "batch_sequence": sequence, "ingestion_date": NOON.date()}
    requests = [{**row, "request_id": f"{sequence}-{number}"} for number in range(rows)]
    write_deltalake(
        MUTATION_REQUEST.uri(root),
        table_of(requests, MUTATION_REQUEST),
        mode="append",
        partition_by=["ingestion_date"],
    )


def waiting(root: str, mark: int) -> int:
    return rows_above(root, {MUTATION_REQUEST: mark})


def test_rows_of_later_batches_are_counted_and_none_where_there_is_no_table(tmp_path: Path) -> None:
    root = str(tmp_path)
    assert waiting(root, -1) == 0
    land(root, 3, 20)
    land(root, 7, 4)
    assert [waiting(root, mark) for mark in (-1, 3, 7)] == [24, 4, 0]


def test_rows_that_compaction_merged_with_older_ones_still_wait(tmp_path: Path) -> None:
    root = str(tmp_path)
    land(root, 3, 20)
    land(root, 7, 4)
    DeltaTable(MUTATION_REQUEST.uri(root)).optimize.compact()
    assert [waiting(root, mark) for mark in (-1, 3, 7)] == [24, 1, 0]


def test_the_oldest_batch_above_a_sequence_is_found_however_many_came_after_it(tmp_path: Path) -> None:
    stores = open_stores(Settings(home=tmp_path))
    app_ids = {job: stores.checkpoints.app_id(job) for job in (INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS)}

    def batch(job: str, number: int) -> Manifest:
        planned = NOON + timedelta(seconds=number)
        begun = stores.checkpoints.begin(Manifest(job, app_ids[job], number, {"0": number}, {"0": number + 1}, planned))
        stores.checkpoints.succeed(begun, {})
        return begun

    first = batch(INGEST_MUTATION_REQUESTS, 0)
    every = [batch(INGEST_ENGAGEMENTS, number) for number in range(100)]
    for mark, found in (
        (first.sequence - 1, first), (first.sequence, every[0]), (every[0].sequence, every[1]),
        (every[97].sequence, every[98]),
    ):  # fmt: skip
        assert oldest_above(stores, app_ids, mark) == found.ingestion_ts
    assert oldest_above(stores, app_ids, every[99].sequence) is None
