"""Assets, checks and backfills end to end: real broker, real Spark in this process, an ephemeral Dagster instance."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import dagster as dg
import pytest
from deltalake import DeltaTable

from engagement_platform.defs.ingestion import NoReread
from engagement_platform.lake.engagement import MAPPING, NOTIFICATION, QUARANTINE, data_table
from engagement_platform_tests.defs.conftest import Home, loaded

pytestmark = pytest.mark.broker

TABLES = (data_table("liquid"), MAPPING, NOTIFICATION, QUARANTINE)


def engagement(number: int) -> bytes:
    message = {
        "engagement_id": f"e-{number}",
        "organization_id": "org-1",
        "person_id": f"p-{number}",
        "person_name": f"Person {number}",
        "engagement_ts": "2026-11-20T10:00:00+00:00",
        "type": "call",
    }
    return json.dumps(message).encode()


def number(event: dg.AssetMaterialization, name: str) -> Any:
    return event.metadata[name].value


def test_a_run_tells_of_each_batch_and_a_backfill_of_its_day_changes_nothing(home: Home) -> None:
    home.broker.produce(home.engagements, [(0, None, engagement(i)) for i in range(4)] + [(0, None, b"not json")])
    today = datetime.now(UTC).date()
    result = home.run("ingest_engagements", [today])
    assert result.success

    for key in ("data", "changeset", "mapping", "notification", "quarantine"):
        newest, first = home.events(f"engagement/{key}")
        assert (number(first, "batch_id"), number(newest, "batch_id")) == (0, 1)
        assert {newest.partition, first.partition} == {today.isoformat()}
    newest, first = home.events("engagement/data")
    assert [number(first, name) for name in ("rows_in", "landed", "quarantined", "duplicates")] == [3, 3, 0, 0]
    # One each in data, mapping and quarantine.
    assert [number(newest, name) for name in ("rows_in", "landed", "quarantined", "files")] == [2, 1, 1, 3]
    assert 0 <= number(newest, "freshness_p95_s") < 600
    assert number(newest, "seconds") > 0
    assert "data:image/svg+xml;base64," in number(newest, "last_batches")
    assert home.passed("engagement/data", "conservation")
    # Four, and the one that is refused in quarantine, by Dagster's own name.
    rows = {key: number(home.events(f"engagement/{key}")[0], "dagster/row_count") for key in ("data", "quarantine")}
    assert rows == {"data": 4, "quarantine": 1}
    lineage = number(home.events("engagement/notification")[0], "dagster/column_lineage")
    [source] = lineage.deps_by_column["previous_person_id"]
    assert (source.asset_key.to_user_string(), source.column_name) == ("engagement/data", "person_id")

    assert loaded().resolve_job_def("verify_engagements").execute_in_process(instance=home.instance).success
    for key, check in (
        ("engagement/data", "unique_engagement_id"),
        ("engagement/data", "nothing_lost"),
        ("engagement/notification", "announced"),
        ("engagement/quarantine", "rejected_once"),
    ):
        assert home.passed(key, check)

    before = [home.rows(table) for table in TABLES]
    assert home.run("ingest_engagements", [today], mode="reread").success
    assert [home.rows(table) for table in TABLES] == before
    again = home.events("engagement/data")[0]
    assert (number(again, "job"), number(again, "landed")) == ("reread-engagements", 0)
    assert again.partition == today.isoformat()


def test_days_of_requests_cannot_be_read_again_and_the_run_says_so(home: Home) -> None:
    with pytest.raises(NoReread, match="Nothing was changed"):
        home.run("ingest_mutation_requests", [], mode="reread")


@pytest.mark.slow
def test_redriven_records_land_and_are_told_of(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_DECODING__MAX_ID_LENGTH", "2")
    home.broker.produce(home.engagements, [(0, None, engagement(1))])
    today = datetime.now(UTC).date()
    assert home.run("ingest_engagements", [today]).success
    [rejected] = DeltaTable(QUARANTINE.uri(str(home.folder / "lake"))).to_pyarrow_table().to_pylist()
    home.broker.create_topic(home.profile_changes)
    change = b'{"profile_id": "p-1", "version": 1, "op": "INSERT", "changes": {"name": "Ann"}}'
    home.broker.produce(home.profile_changes, [(0, None, change)])
    assert home.run("ingest_profile_changes", [today]).success
    monkeypatch.delenv("ENGAGEMENT_PLATFORM_DECODING__MAX_ID_LENGTH")

    redrive = loaded().resolve_job_def("redrive_quarantine")
    config = {"ops": {"redrive": {"config": {"reason": rejected["reason_code"]}}}}
    assert redrive.execute_in_process(run_config=config, instance=home.instance).success
    assert len(home.rows(data_table("liquid"))) == 1
    newest = home.events("engagement/data")[0]
    assert (number(newest, "landed"), newest.partition) == (1, today.isoformat())
    newest = home.events("profile/changeset")[0]
    assert (number(newest, "landed"), number(newest, "pending_rows")) == (1, 1)
    assert home.observed("engagement/quarantine")[0].metadata["redriven"].value == 1
