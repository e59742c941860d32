"""Mutation requests land as they came, once; what is refused goes to quarantine."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession

from engagement_platform.engine.job import BatchReport
from engagement_platform.lake.engagement import MUTATION_REQUEST, QUARANTINE
from engagement_platform.local.invalid_messages import INVALID_REQUESTS
from engagement_platform.pipelines.jobs import INGEST_MUTATION_REQUESTS, parts_of, redrive_jobs
from engagement_platform.pipelines.redrive import REDRIVEN
from engagement_platform.settings import DecodingSettings
from engagement_platform_tests.conftest import Broker
from engagement_platform_tests.ingestion.conftest import MakeWorld
from engagement_platform_tests.ingestion.world import NOW, World

pytestmark = [pytest.mark.broker]

EXECUTED = datetime(2026, 11, 20, 10, 0, 0, 123456, tzinfo=UTC)
NOTHING_SAID: dict[str, Any] = dict.fromkeys(
    (
        "from_id", "to_id", "name", "engagement_id", "type", "channel", "subject", "attributes", "set_null",
        "engagement_date_from", "engagement_date_to",
    )
)  # fmt: skip


def request(request_id: str, operation: str, **fields: Any) -> dict[str, Any]:
    return {
        "request_id": request_id,
        "organization_id": "org",
        "operation": operation,
        "execution_ts": "2026-11-20T11:00:00.123456789+01:00",
        **fields,
    }


# Message and what its row says beside the fields that every row has.
REQUESTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (request("r1", "CONVERT", from_id="lead-1", to_id="it's \\ 😀"), {"from_id": "lead-1", "to_id": "it's \\ 😀"}),
    (
        request("r2", "CONVERT", from_id="a", to_id="b", engagement_date_from="2026-01-31", name="not used"),
        {"from_id": "a", "to_id": "b", "engagement_date_from": date(2026, 1, 31)},
    ),
    (
        request("r3", "DELETE", engagement_id="e1", engagement_date_to="2026-02-01"),
        {"engagement_id": "e1", "engagement_date_to": date(2026, 2, 1)},
    ),
    (request("r4", "RENAME", from_id="a", name="", to_id="not used"), {"from_id": "a", "name": ""}),
    (
        request("r5", "UPDATE", engagement_id="e1", type="call", channel=None, attributes={"a": "1", "b": None}),
        {"engagement_id": "e1", "type": "call", "set_null": ["channel"], "attributes": {"a": "1", "b": None}},
    ),
    (
        request("r6", "UPDATE", engagement_id="e1", subject="s", type=None, attributes={}),
        {"engagement_id": "e1", "subject": "s", "set_null": [], "attributes": {}},
    ),
]


@pytest.fixture(scope="module")
def world(spark: SparkSession, broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> World:
    """One world for this module."""
    return World(spark, broker, tmp_path_factory.mktemp("requests"))


@pytest.fixture(scope="module")
def first_batch(world: World) -> BatchReport:
    """Every operation, then every way to spoil a request."""
    spoiled = [spoil(request("bad", "CONVERT")) for spoil in INVALID_REQUESTS.values()]
    world.produce_raw([(b"org", json.dumps(message).encode()) for message, _ in REQUESTS], topic=1)
    world.produce_raw([(None, value) for value in [*spoiled, None]], topic=1)
    (report,) = world.run(name=INGEST_MUTATION_REQUESTS)
    return report


def test_requests_land_as_they_came(world: World, first_batch: BatchReport) -> None:
    assert first_batch.counts["landed"] == len(REQUESTS)
    rows = {row["request_id"]: row for row in world.rows(MUTATION_REQUEST)}
    assert len(rows) == len(REQUESTS)
    for offset, (message, said) in enumerate(REQUESTS):
        assert rows[message["request_id"]] == {
            **NOTHING_SAID,
            **said,
            "request_id": message["request_id"],
            "organization_id": "org",
            "operation": message["operation"],
            "execution_ts": EXECUTED,
            "topic": world.topics[1],
            "partition": 0,
            "offset": offset,
            "ingestion_ts": NOW,
            "ingestion_date": NOW.date(),
            "batch_id": 0,
            "batch_sequence": first_batch.manifest.sequence,
        }


def test_refused_requests_are_in_quarantine_with_their_reason(world: World, first_batch: BatchReport) -> None:
    codes = [*INVALID_REQUESTS, "empty"]
    assert first_batch.counts["quarantined"] == len(codes)
    assert first_batch.counts["rows_in"] == len(REQUESTS) + len(codes)
    rows = {row["offset"]: row for row in world.rows(QUARANTINE)}
    assert [rows[offset]["reason_code"] for offset in sorted(rows)] == codes
    assert {row["job_name"] for row in rows.values()} == {INGEST_MUTATION_REQUESTS}
    for offset, spoil in enumerate(INVALID_REQUESTS.values(), len(REQUESTS)):
        assert bytes(rows[offset]["value"]) == spoil(request("bad", "CONVERT"))


def test_requests_that_are_read_again_after_a_reset_are_known(world: World, first_batch: BatchReport) -> None:
    before = world.contents()
    world.stores.checkpoints.reset(INGEST_MUTATION_REQUESTS)
    (report,) = world.run(name=INGEST_MUTATION_REQUESTS)
    assert (report.counts["landed"], report.counts["duplicates"]) == (0, len(REQUESTS))
    assert report.counts["quarantined"] == first_batch.counts["quarantined"]
    assert world.contents() == before


def test_a_redrive_lands_requests_that_are_right_now_and_no_request_twice(make_world: MakeWorld) -> None:
    strict = make_world(decoding=DecodingSettings(max_depth=1))
    deep = request("deep", "UPDATE", engagement_id="e1", attributes={"a": "1"})
    flat = request("flat", "RENAME", from_id="lead-1", name="Ann")
    # Deep enough to be refused for it, and wrong in itself too.
    wrong = request("wrong", "UPDATE", engagement_id="e1", attributes={"a": {}})
    strict.produce_raw([(None, json.dumps(message).encode()) for message in (deep, flat, wrong)], topic=1)
    strict.run(name=INGEST_MUTATION_REQUESTS)
    assert [row["request_id"] for row in strict.rows(MUTATION_REQUEST)] == ["flat"]

    relaxed = strict.under(decoding=DecodingSettings())
    for records, landed in ((2, 1), (1, 0)):
        _, requests = redrive_jobs("too_deep", parts_of(relaxed.spark, relaxed.settings, relaxed.stores))
        (report,) = relaxed.run_all([requests])
        counts = report.counts
        assert (counts["rows_in"], counts["landed"], counts["redriven"]) == (records, landed, landed)
        assert sorted(row["request_id"] for row in relaxed.rows(MUTATION_REQUEST)) == ["deep", "flat"]
        found = sorted(row["reason_code"] for row in relaxed.rows(QUARANTINE))
        assert found == [REDRIVEN, "too_deep", "too_deep"]


def test_a_redrive_refuses_no_request_for_having_lain_in_quarantine(make_world: MakeWorld) -> None:
    """Both were produced years before they are read; `old` was too late then, and goes through when it is asked for."""
    strict = make_world(decoding=DecodingSettings(max_depth=1))
    produced = datetime(2024, 3, 1, tzinfo=UTC)
    deep = request("deep", "UPDATE", engagement_id="e1", attributes={"a": "1"})
    old = request("old", "RENAME", from_id="lead-1", name="Ann")
    deep["execution_ts"], old["execution_ts"] = "2024-02-28T00:00:00Z", "2024-02-01T00:00:00Z"
    strict.produce_requests([deep, old], produced)
    strict.run(name=INGEST_MUTATION_REQUESTS)
    assert sorted(row["reason_code"] for row in strict.rows(QUARANTINE)) == ["too_deep", "too_late"]

    relaxed = strict.under(decoding=DecodingSettings())
    for reason, landed in (("too_deep", ["deep"]), ("too_late", ["deep", "old"])):
        _, requests = redrive_jobs(reason, parts_of(relaxed.spark, relaxed.settings, relaxed.stores))
        relaxed.run_all([requests])
        assert sorted(row["request_id"] for row in relaxed.rows(MUTATION_REQUEST)) == landed
