"""Random histories through real tables: what stands in the end is what a loop over the messages says."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from engagement_platform.engine.job import BatchReport
from engagement_platform.settings import BatchSettings
from engagement_platform_tests.ingestion.conftest import MakeWorld
from engagement_platform_tests.ingestion.oracle import Oracle, engagement
from engagement_platform_tests.ingestion.world import World

pytestmark = [pytest.mark.broker]

Message = dict[str, Any] | None

ORGANIZATIONS = 30
FIRST_DAY = datetime(2026, 11, 15, 23, 59, 59, 999999, tzinfo=UTC)
PERSONS = ("lead-1", "lead-2", "lead-3")
NAMES = (None, None, "Ann", "Bo", "Cy", "Zoë", "😀")


def time_of(organization: int, engagement_id: int, days_earlier: int = 0) -> str:
    """The one time of an id; a microsecond before midnight for some, written in another zone for some."""
    time = FIRST_DAY + timedelta(days=engagement_id % 4 - days_earlier, microseconds=organization % 2)
    return time.astimezone(UTC if organization % 3 else None).isoformat()


def version_of(organization: int, engagement_id: int, version: int) -> dict[str, Any]:
    """The true content of a version: the same whenever it is asked for."""
    rng = random.Random(f"{organization}/{engagement_id}/{version}")
    return engagement(
        f"org-{organization}",
        f"e-{engagement_id}",
        person_id=rng.choice(PERSONS),
        person_name=rng.choice(NAMES),
        engagement_ts=time_of(organization, engagement_id),
        version=version,
        type=rng.choice(("email", "call")),
        subject=rng.choice((None, "", f"subject {version}")),
    )


def random_message(rng: random.Random) -> Message:
    """Few ids and versions, so that they meet within and across batches; the odd contradiction and bad one."""
    if rng.random() < 0.05:
        return None
    organization, engagement_id = rng.randrange(ORGANIZATIONS), rng.randrange(4)
    message = version_of(organization, engagement_id, rng.choice((1, 1, 1, 2, 2, 3)))
    kind = rng.random()
    if kind < 0.1:
        return {**message, "subject": "contradiction", "person_name": "Zz"}
    if kind < 0.2 and message["version"] > 1:
        # Version 1 on another day is looked for on the days of its batch only; the uniqueness check is the net there.
        return {**message, "engagement_ts": time_of(organization, engagement_id, days_earlier=20)}
    return message


def assert_books_balance(reports: list[BatchReport]) -> None:
    for report in reports:
        counts = report.counts
        accounted = counts.get("landed", 0) + counts.get("duplicates", 0) + counts.get("quarantined", 0)
        assert counts["rows_in"] == accounted, report


OTHER = {"subject": "another", "person_name": "Zz", "person_id": "lead-9"}
ACROSS_BATCHES: dict[str, list[list[dict[str, Any]]]] = {
    "older-came-late": [[{"version": 3}], [{"version": 1}], [{"version": 1, **OTHER}]],
    "older-stood": [[{"version": 1}], [{"version": 3}], [{"version": 1, **OTHER}, {"version": 1}]],
    "older-never-stood": [[{"version": 1}, {"version": 3}], [{"version": 1, **OTHER}], [{"version": 2}]],
    "all-stood": [
        [{"version": 1}],
        [{"version": 2}],
        [{"version": 3}, {"version": 1, **OTHER}, {"version": 2, **OTHER}],
    ],
    "the-first-counts": [[{"version": 3}], [{"version": 1, **OTHER}], [{"version": 1}, {"version": 1, **OTHER}]],
    "the-same-again": [[{"version": 1}], [{"version": 3}], [{"version": 1, "person_name": "Ann"}]],
    "none": [[{"version": 1, "attributes": None}], [{"version": 2}], [{"version": 1, "attributes": None}]],
    "empty": [[{"version": 1, "attributes": {}}], [{"version": 2}], [{"version": 1, "attributes": {}}]],
}  # fmt: skip
"""Organization -> what each of three batches says of one id."""


def superseded(batch_id: int) -> list[dict[str, Any]]:
    """What a superseded version said first counts in every later batch."""
    return [
        engagement(organization, "e1", **{"attributes": {"b": "2", "a": "1"}, **fields})
        for organization, batches in ACROSS_BATCHES.items()
        for fields in batches[batch_id]
    ]


@pytest.mark.parametrize("seed", [20261121])
def test_a_random_history_ends_where_a_loop_over_it_ends(world: World, seed: int) -> None:
    rng = random.Random(seed)
    oracle = Oracle()
    late_contradictions, refused_across = 0, 0
    for batch_id, size in enumerate((120, 200, 150)):
        messages = world.produce([*(random_message(rng) for _ in range(size)), *superseded(batch_id)])
        stood = {key: row["version"] for key, row in oracle.data.items()}
        oracle.batch(batch_id, messages)
        known = [(offset, message) for offset, message in messages if message is not None]
        across = [offset for offset, message in known if message["organization_id"] in ACROSS_BATCHES]
        refused_across += sum(offset in oracle.quarantined for offset in across)
        late_contradictions += sum(
            oracle.quarantined.get(offset) == "version_conflict" and message["version"] < stood.get(key_of(message), 0)
            for offset, message in known
            if offset not in across
        )
        reports = world.run()
        assert [report.manifest.batch_id for report in reports] == [batch_id]
        assert_books_balance(reports)
        counts = reports[0].counts
        of_batch = [change for batch, change, _, _ in oracle.notifications if batch == batch_id]
        assert counts["inserted"] == of_batch.count("INSERT"), f"seed {seed}, batch {batch_id}"
        assert counts["updated"] == of_batch.count("UPDATE"), f"seed {seed}, batch {batch_id}"
        assert counts["notifications"] == len(of_batch)
    assert {"moved_in_time", "version_conflict", ""} == set(oracle.quarantined.values()), "the history is too tame"
    assert refused_across == 6
    assert late_contradictions, "no copy contradicts a version that was superseded before its batch"
    world.assert_equals(oracle)


def key_of(message: dict[str, Any]) -> tuple[str, str]:
    return message["organization_id"], message["engagement_id"]


def test_another_order_and_batching_of_the_same_messages_ends_in_the_same_rows(make_world: MakeWorld) -> None:
    """As long as no copies contradict each other: those are the only place where arrival order shows."""
    rng = random.Random(11)
    # A few organizations with many ids: the same meetings as many with a few, and a fifth of the files.
    messages = [version_of(rng.randrange(6), rng.randrange(20), rng.choice((1, 1, 2, 3))) for _ in range(240)]
    at_once, in_three = make_world(), make_world(batch=BatchSettings(max_records=100))
    at_once.produce(messages)
    rng.shuffle(messages)
    in_three.produce(messages)
    assert [report.counts["rows_in"] for report in at_once.run()] == [240]
    reports = in_three.run()
    assert [report.counts["rows_in"] for report in reports] == [100, 100, 40]
    assert sum(report.counts["updated"] for report in reports) > 0
    assert at_once.data_rows() == in_three.data_rows()
    assert at_once.names() == in_three.names()
