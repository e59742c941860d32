"""A resume goes by the settings of its manifest, whatever they were changed to between a crash and the next run."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from engagement_platform.engine.model import Manifest
from engagement_platform.lake.engagement import ALIAS, QUARANTINE
from engagement_platform.maintenance.verify.messages import verify
from engagement_platform.pipelines.jobs import INGEST_MUTATION_REQUESTS
from engagement_platform.pipelines.pinned_settings import as_pinned, that_decide
from engagement_platform.settings import DecodingSettings, MutationSettings, Settings
from engagement_platform_tests.ingestion.oracle import Oracle, engagement
from engagement_platform_tests.ingestion.test_crashes import Crash, crash_at
from engagement_platform_tests.ingestion.world import World
from engagement_platform_tests.pipelines.mutations import histories

STRICTER = DecodingSettings(
    unknown_fields="quarantine", max_id_length=6, max_bytes=300, earliest=datetime(2026, 11, 20, tzinfo=UTC)
)


def test_what_a_manifest_pins_comes_back_and_nothing_else_is_touched() -> None:
    pinned = Settings(
        decoding=DecodingSettings(aliases={"OrgId": "organization_id"}, max_ahead=timedelta(minutes=90)),
        mutation=MutationSettings(max_lateness=timedelta(days=3)),
    )
    decides = that_decide(pinned, "decoding", mutation=("max_lateness",))
    manifest = Manifest("job", "job@1.t", 0, {}, {}, datetime.now(UTC), settings={**decides, "policies": {"a": 1}})
    today = Settings(decoding=STRICTER, mutation=MutationSettings(apply="merge"))
    found = as_pinned(today, manifest)
    assert found.decoding == pinned.decoding
    assert found.mutation == MutationSettings(apply="merge", max_lateness=timedelta(days=3))
    assert found.kafka == today.kafka
    assert as_pinned(today, replace(manifest, settings={})) == today


@pytest.mark.broker
@pytest.mark.parametrize("point", ["manifest:after", "tables.mapping:after"])
def test_engagements_that_a_batch_accepts_are_accepted_by_its_resume(world: World, point: str) -> None:
    """Each of them would be refused under the settings that the resume finds."""
    messages = [
        engagement("org", "e1", person_name="Ann", surprise=1),
        engagement("org", "an id of many letters", person_name="Bo"),
        engagement("org", "e2", subject="s" * 300),
        engagement("org", "e3", engagement_ts="2026-11-01T10:00:00+00:00"),
    ]
    oracle = Oracle()
    sent = world.produce(messages)
    oracle.batch(0, [(offset, {k: v for k, v in message.items() if k != "surprise"}) for offset, message in sent])
    with pytest.raises(Crash):
        world.run(crash_at(point))
    stricter = world.under(decoding=STRICTER)
    (resumed,) = stricter.run()
    assert resumed.replayed
    world.assert_equals(oracle)
    stricter.produce([engagement("org", "e4", surprise=1)])
    (new,) = stricter.run()
    assert new.counts["quarantined"] == 1, "a new batch goes by the settings of today"


@pytest.mark.broker
def test_verify_judges_a_message_by_the_settings_of_its_batch(world: World) -> None:
    world.produce([engagement("org", "an id of many letters"), engagement("org", "e1", surprise=1)])
    world.run()
    stricter = world.under(decoding=STRICTER)
    stricter.produce([engagement("org", "e2"), engagement("org", "e3", surprise=1)])
    stricter.run()
    findings = verify(stricter.settings, stricter.spark)
    assert [finding for finding in findings if finding.wrong] == []
    assert next(finding.looked_at for finding in findings if finding.check == "lost") == 3


@pytest.mark.broker
def test_requests_that_a_batch_accepts_are_accepted_by_its_resume(world: World) -> None:
    world.produce_requests([{**histories.convert("a request of many letters", "p1", "p2", 20), "surprise": 1}])
    with pytest.raises(Crash):
        world.run(crash_at("manifest:after"), INGEST_MUTATION_REQUESTS)
    stricter = world.under(decoding=STRICTER, mutation=MutationSettings(max_lateness=timedelta(microseconds=1)))
    (landed,) = stricter.run(name=INGEST_MUTATION_REQUESTS)
    assert landed.replayed
    assert landed.counts["landed"] == 1
    assert [row["to_id"] for row in world.rows(ALIAS)] == ["p2"]
    assert world.rows(QUARANTINE) == []


@pytest.mark.broker
def test_the_first_request_stays_also_when_the_clock_was_set_back_before_the_second(world: World) -> None:
    behind = world.under(later=timedelta(seconds=-60))
    for where, to, landed in ((world, "first", 1), (behind, "second", 0)):
        world.produce_requests([histories.convert("c1", "p1", to, 20)])
        (report,) = where.run(name=INGEST_MUTATION_REQUESTS)
        assert report.counts["landed"] == landed
    assert [row["to_id"] for row in world.rows(ALIAS)] == ["first"]
    assert [row["reason_code"] for row in world.rows(QUARANTINE)] == ["request_conflict"]


@pytest.mark.broker
def test_the_first_copy_of_a_version_stays_also_when_clocks_are_set_back_between_batches(world: World) -> None:
    """The second batch replaces a version, the third says it once more otherwise: compared with what landed first."""
    oracle = Oracle()
    told = [
        [engagement("org", "e1", subject="first"), engagement("org", "e2")],
        [engagement("org", "e1", version=3, subject="newest")],
        [engagement("org", "e1", subject="other"), engagement("org", "e1", version=2, subject="between")],
        [engagement("org", "e1", subject="first"), engagement("org", "e1", version=2, subject="not that")],
    ]
    for batch, messages in enumerate(told):
        oracle.batch(batch, world.produce(messages))
        world.under(later=timedelta(seconds=-60 * batch)).run()
    world.assert_equals(oracle)
