"""What a batch tells about itself."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg

from engagement_platform.defs.batches import Batch, Tables, last_batches, log_line, total, unbalanced
from engagement_platform.defs.batches import table_metadata as metadata_of
from engagement_platform.defs.engagement import ENGAGEMENT_TABLES, ENGAGEMENTS
from engagement_platform.defs.specs import DATA_TABLE
from engagement_platform.engine.job import BatchReport
from engagement_platform.engine.model import BatchRecord, JobState, Manifest
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import MAPPING, QUARANTINE

NOW = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
COUNTS = {"rows_in": 10, "landed": 7, "inserted": 6, "updated": 1, "duplicates": 1, "quarantined": 2, "files": 5}


def report(batch_id: int = 3, counts: Mapping[str, int] = COUNTS, replayed: bool = False) -> BatchReport:
    manifest = Manifest(
        "ingest-engagements", "ingest-engagements@1", batch_id, {"0": 5, "10": 0}, {"0": 12, "2": 1, "10": 2}, NOW
    )
    details = {"rejected": {"not_json": 2}, "produced_quantiles_ms": [NOW.timestamp() * 1000]}
    return BatchReport(manifest, counts, details, {"prepare": 0.5, "tables": 1.25}, 2.5, replayed)


def record(of: BatchReport, finished_after_s: float = 4) -> BatchRecord:
    finished = NOW + timedelta(seconds=finished_after_s)
    return BatchRecord(of.manifest, JobState.SUCCEEDED, NOW, finished, 1, of.counts, of.details)


def batch(**options: Any) -> Batch:
    said = report(**options)
    processes = {"tables": {"landed": 7, "quarantined": 2, "names": 4, "files": 3, "bytes": 900}}
    return Batch(said, processes, [record(said)])


def table_metadata(of: Batch, table: Table, tables: Tables = ENGAGEMENT_TABLES) -> dict[str, Any]:
    return dict(dg.AssetObservation("a", metadata=metadata_of(of, tables, table)).metadata)


def values(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.value for name, value in metadata.items() if not isinstance(value.value, list)}


def test_the_data_table_tells_all_of_a_batch() -> None:
    told = table_metadata(batch(), DATA_TABLE)
    assert values(told).items() >= (
        {"batch_id": 3, "job": "ingest-engagements", "resumed": False, "files": 3, "bytes": 900}
        | {name: COUNTS[name] for name in COUNTS if name != "files"}
        | {"freshness_p50_s": 4.0, "freshness_p95_s": 4.0, "seconds": 2.5}
    ).items()  # fmt: skip
    assert {"last_batches", "process_seconds", "rejected", "offsets"} <= told.keys()


def test_other_tables_tell_what_was_written_to_them_only() -> None:
    told = table_metadata(batch(), MAPPING)
    assert told.keys() == {"batch_id", "batches", "names", "offsets", "job", "all_batches", "resumed"}
    assert told["names"].value == 4


def test_quarantine_tells_why_records_were_rejected() -> None:
    told = table_metadata(batch(), QUARANTINE)
    assert values(told)["quarantined"] == 2
    assert "rejected" in told


def test_batches_of_one_run_are_told_as_their_sums() -> None:
    """From the first start to the last end; what is known of the moment is that of the last one."""
    first, last = batch(), batch(batch_id=4, counts={**COUNTS, "rows_in": 5}, replayed=True)
    of = total([first, last])
    assert values(table_metadata(of, DATA_TABLE)).items() >= (
        {"batch_id": 4, "batches": 2, "resumed": True, "rows_in": 15, "landed": 14, "files": 6, "seconds": 5.0}.items()
    )
    assert of.report.details["rejected"] == {"not_json": 4}
    assert of.report.process_seconds == {"prepare": 1.0, "tables": 2.5}
    assert total([first]).report == replace(first.report, counts=dict(COUNTS))


def test_offsets_are_listed_in_the_order_of_partitions_and_a_new_one_starts_at_0() -> None:
    table = table_metadata(batch(), DATA_TABLE)["offsets"]
    assert isinstance(table, dg.TableMetadataValue)
    rows = [record.data for record in table.records]
    assert rows == [
        {"partition": "0", "start": 5, "end": 12},
        {"partition": "2", "start": 0, "end": 1},
        {"partition": "10", "start": 0, "end": 2},
    ]


def test_a_resumed_batch_says_so() -> None:
    assert table_metadata(batch(replayed=True), DATA_TABLE)["resumed"].value is True
    assert "batch 3 (resumed)" in log_line(report(replayed=True))


def test_the_log_line_has_id_range_counts_and_seconds() -> None:
    assert log_line(report()) == (
        "ingest-engagements batch 3: offsets [0: 5-12, 2: 0-1, 10: 0-2], rows_in 10, landed 7, inserted 6, updated 1, "
        "duplicates 1, quarantined 2, files 5, 2.5 s"
    )


def test_the_picture_runs_from_the_oldest_to_the_newest_batch() -> None:
    history = [record(report(5), 6), record(report(4), 2)]
    picture = base64.b64decode(last_batches(history).value.split("base64,")[1][:-1]).decode()
    assert "batches 4 to 5" in picture


def test_balanced_batches_conserve_and_one_that_loses_a_record_is_named() -> None:
    lossy = report(4, {**COUNTS, "landed": 6})
    assert unbalanced([report(), lossy]) == ["ingest-engagements batch 4 received 10 and accounts for 9"]
    assert ENGAGEMENTS.result([report(), report(4)]).passed is True
    refused = ENGAGEMENTS.result([report(), lossy])
    assert (refused.passed, refused.description) == (False, "ingest-engagements batch 4 received 10 and accounts for 9")


def test_a_batch_that_the_engine_refused_fails_the_check() -> None:
    result = ENGAGEMENTS.result([report()], "batch 4 received 10 records but accounts for 9")
    assert result.passed is False
