"""Mutations as Dagster sees them: runs, what they tell, and checks; real broker, real Spark, an ephemeral instance."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from sqlalchemy import func, select

from engagement_platform.defs.backlog import waiting
from engagement_platform.defs.checks import ANNOUNCED_ROWS
from engagement_platform.defs.mutation import apply_mutations, move_request
from engagement_platform.defs.platform import Platform
from engagement_platform.engine.database import open_engine
from engagement_platform.engine.schema import LEASE_WAITER
from engagement_platform.lake.engagement import data_table
from engagement_platform.pipelines.jobs import open_stores
from engagement_platform_tests.defs.conftest import Home, loaded, skipped

pytestmark = pytest.mark.broker

NOW = datetime.now(UTC)


def engagement(number: int) -> bytes:
    message = {
        "engagement_id": f"e-{number}",
        "organization_id": "org-1",
        "person_id": f"p-{number}",
        "person_name": f"Person {number}",
        "engagement_ts": (NOW - timedelta(hours=2)).isoformat(),
        "type": "call",
    }
    return json.dumps(message).encode()


def request(request_id: str, operation: str, **said: str) -> bytes:
    executed = (NOW - timedelta(minutes=60 - int(request_id))).isoformat()
    named = {"request_id": request_id, "organization_id": "org-1", "operation": operation, "execution_ts": executed}
    return json.dumps({**named, **said}).encode()


REQUESTS = [
    request("1", "CONVERT", from_id="p-1", to_id="p-2"),
    request("2", "CONVERT", from_id="p-2", to_id="p-3"),
    request("3", "DELETE", from_id="p-4"),
    request("3", "DELETE", from_id="p-4"),
    request("3", "DELETE", from_id="p-5"),
    request("4", "UPDATE", engagement_id="e-5", subject="Renewal"),
    request("5", "RENAME", from_id="p-3", name="Ada"),
]
"""Ends with e-1, e-2 and e-3 under p-3, e-4 deleted, e-5 patched; one known duplicate, one conflict."""


def ingest(home: Home, requests: list[bytes]) -> None:
    home.broker.produce(home.engagements, [(0, None, engagement(number)) for number in range(1, 6)])
    home.broker.produce(home.requests, [(0, None, message) for message in requests])
    today = datetime.now(UTC).date()
    assert home.run("ingest_engagements", [today]).success
    assert home.run("ingest_mutation_requests", []).success
    assert home.events("engagement/mutation_request")[0].partition is None, "no day of them can be read again"


def figures(event: dg.AssetMaterialization | dg.AssetObservation, *names: str) -> dict[str, Any]:
    return {name: event.metadata[name].value for name in names}


def tick(home: Home, sensor: str = "mutations_backlog") -> dg.RunRequest | dg.SkipReason:
    result = home.tick(sensor)
    assert isinstance(result, dg.RunRequest | dg.SkipReason)
    return result


def test_published_requests_launch_a_run_that_announces_them_and_tells_what_changed(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_BATCH__MAX_RECORDS", "100")
    assert skipped(tick(home)) == "Nothing is waiting."
    ingest(home, REQUESTS)
    [landed] = home.events("engagement/mutation_request")
    counts = {"rows_in": 7, "landed": 5, "duplicates": 1, "quarantined": 1}
    assert figures(landed, *counts) == counts
    [edges] = home.events("engagement/alias")
    assert figures(edges, "edges") == {"edges": 3}
    # Quarantine is an asset of another job: a batch that wrote into it observes it.
    [observed] = home.observed("engagement/quarantine")
    assert figures(observed, "quarantined") == {"quarantined": 1}
    assert home.passed("engagement/mutation_request", "conservation")
    with pytest.MonkeyPatch.context() as strict:
        strict.setenv("ENGAGEMENT_PLATFORM_QUALITY__FRESHNESS", "PT0S")
        tick(home, "watch")
    assert not home.passed("engagement/notification", "fresh"), "requests are waiting"

    launched = tick(home)
    assert isinstance(launched, dg.RunRequest)
    assert launched.tags["engagement_platform/backlog"] == "5"
    run = home.instance.create_run_for_job(
        loaded().resolve_job_def(apply_mutations.name), status=dg.DagsterRunStatus.STARTED
    )
    busy = tick(home)
    assert isinstance(busy, dg.SkipReason)
    home.instance.report_run_canceled(home.instance.get_run_by_id(run.run_id) or run)

    assert home.run_op("apply_mutations").success
    [told] = home.observed("engagement/notification")
    counts = {
        "rows_in": 5, "conversions": 2, "deletions": 1, "patches": 1, "renames": 1,
        "updated": 3, "deleted": 1, "inserted": 0, "notifications": 4,
    }  # fmt: skip
    assert figures(told, *counts, "job") == {**counts, "job": "apply-mutations"}
    assert isinstance(tick(home), dg.SkipReason)

    tick(home, "watch")
    assert home.passed("engagement/notification", ANNOUNCED_ROWS)
    assert home.passed("engagement/notification", "fresh")


VERIFIED = (
    ("engagement/alias", "accepted_once"), ("engagement/data", "identity"), ("engagement/data", "contents"),
    ("engagement/mapping", "names"), ("engagement/data", "nothing_lost"), ("engagement/notification", "announced"),
)  # fmt: skip


def verified(home: Home) -> dict[str, bool]:
    """Check -> whether it passed, after a run of the verification; each has looked at something."""
    assert loaded().resolve_job_def("verify_engagements").execute_in_process(instance=home.instance).success
    for key, check in VERIFIED:
        assert home.told(key, check)["looked_at"] > 0, f"{key} {check} is green without a look"
    return {check: home.passed(key, check) for key, check in VERIFIED}


@pytest.mark.slow
def test_verification_looks_at_what_mutations_made_and_finds_an_identity_that_is_wrong(
    home: Home, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_BATCH__MAX_RECORDS", "100")
    ingest(home, REQUESTS)
    assert home.run_op("apply_mutations").success
    assert verified(home) == dict.fromkeys((check for _, check in VERIFIED), True)
    # A row that is moved stands as it is; what pends, the view resolves anew.
    assert home.run_op("rematerialize_aliases").success
    data = data_table("liquid").uri(str(home.folder / "lake"))
    spark.sql(f"UPDATE delta.`{data}` SET person_id = 'p-9' WHERE engagement_id = 'e-2'").collect()
    assert [check for check, passed in verified(home).items() if not passed] == ["identity"]


@pytest.mark.slow
def test_a_run_that_has_to_wait_for_a_table_says_in_its_log_for_whom(home: Home) -> None:
    """Another holds the Data Table until somebody stands in line for it."""
    ingest(home, REQUESTS[:1])
    settings = Platform().settings()
    leases, engine = open_stores(settings).leases, open_engine(settings.store_url)
    holds, gave_up = threading.Event(), time.monotonic() + 60

    def until_somebody_waits() -> None:
        with leases.acquire("table/engagement/data", purpose="a batch of others"):
            holds.set()
            while time.monotonic() < gave_up:
                with engine.connect() as connection:
                    if connection.execute(select(func.count()).select_from(LEASE_WAITER)).scalar_one():
                        return
                time.sleep(0.02)

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(until_somebody_waits)
        assert holds.wait(30)
        run = home.run_op("apply_mutations")
        other.result()
    assert run.success
    said = [entry.user_message for entry in home.instance.all_logs(run.run_id) if entry.dagster_event is None]
    [waited] = [line for line in said if line.startswith("Waiting for the lease table/engagement/data: ")]
    assert "(a batch of others) holds table/engagement/data since" in waited


def due(home: Home, later: timedelta = timedelta(0)) -> dg.RunRequest | dg.SkipReason:
    """One look of the sensor that moves changes, so much later."""
    return move_request(home.instance, waiting(Platform().settings()), datetime.now(UTC) + later)


@pytest.mark.slow
def test_changes_that_pend_for_long_are_moved_by_a_run_and_readers_see_no_difference(home: Home) -> None:
    long = Platform().settings().mutation.max_pending
    assert isinstance(due(home, long), dg.SkipReason)
    ingest(home, REQUESTS[:2])
    assert isinstance(due(home), dg.SkipReason)
    assert isinstance(due(home, long), dg.RunRequest)

    assert home.run_op("rematerialize_aliases").success
    [moved] = home.observed("engagement/data")
    assert figures(moved, "changed_rows", "strategy") == {"changed_rows": 2, "strategy": "merge"}
    [removed] = home.observed("engagement/changeset")
    assert figures(removed, "images_removed") == {"images_removed": 0}
    lake = str(home.folder / "lake")
    persons = DeltaTable(data_table("liquid").uri(lake)).to_pyarrow_table().column("person_id").to_pylist()
    assert sorted(persons) == ["p-3", "p-3", "p-3", "p-4", "p-5"]
    assert isinstance(due(home, long), dg.SkipReason)
