"""Going over records again, by redrive, re-read or reset: repairs land and are announced once, all else stays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from engagement_platform.engine.forgotten_batches import forget
from engagement_platform.engine.job import BatchReport
from engagement_platform.engine.model import Manifest
from engagement_platform.lake.engagement import NOTIFICATION, QUARANTINE
from engagement_platform.maintenance.verify.messages import verify
from engagement_platform.pipelines.jobs import REREAD_ENGAGEMENTS, JobRefused, parts_of, redrive_jobs, reread_job
from engagement_platform.pipelines.parts import Parts
from engagement_platform.pipelines.redrive import REDRIVEN
from engagement_platform.settings import BatchSettings, DecodingSettings
from engagement_platform_tests.ingestion.conftest import MakeWorld
from engagement_platform_tests.ingestion.oracle import as_bytes, engagement
from engagement_platform_tests.ingestion.world import NOW, World, ignore

pytestmark = [pytest.mark.broker]

TODAY = NOW.date()
# Everything before the day of ingestion is refused: the setting somebody got wrong.
TOO_STRICT = DecodingSettings(earliest=datetime(2026, 11, 21, tzinfo=UTC))
RIGHT = DecodingSettings()
REFUSED = "time_out_of_range"


class Crash(Exception):
    """Stands for the end of the process."""


def crash_at(point: str) -> Any:
    def observe(passed: str) -> None:
        if passed == point:
            raise Crash(point)

    return observe


def parts(world: World, observe: Any) -> Parts:
    return parts_of(world.spark, world.settings, world.stores, world.callbacks(observe))


def redrive(world: World, reason: str, observe: Any = ignore) -> list[BatchReport]:
    return world.run_all(redrive_jobs(reason, parts(world, observe)))


def reread(world: World, day: date = TODAY, observe: Any = ignore) -> list[BatchReport]:
    return world.run_all([reread_job(day, parts(world, observe))])


def summed(reports: Sequence[BatchReport]) -> Counter[str]:
    totals: Counter[str] = Counter()
    for report in reports:
        totals.update(report.counts)
    return totals


def changes(world: World) -> list[tuple[str, str]]:
    return sorted((row["engagement_id"], row["change_type"]) for row in world.rows(NOTIFICATION))


def reasons(world: World) -> Counter[str]:
    return Counter(row["reason_code"] for row in world.rows(QUARANTINE))


def assert_verified(world: World) -> None:
    for finding in verify(world.settings, world.spark):
        assert not finding.wrong, finding


def today(engagement_id: str, **more: Any) -> dict[str, Any]:
    return engagement("org", engagement_id, engagement_ts="2026-11-21T08:00:00Z", **more)


def test_a_redrive_lands_what_is_right_now_and_a_second_one_changes_nothing(make_world: MakeWorld) -> None:
    strict = make_world(decoding=TOO_STRICT)
    strict.produce(
        [
            today("known", person_name="Ann"),
            engagement("org", "late", person_name="Bo", person_id="lead-2"),
            engagement("org", "late", person_id="lead-2", version=2),
            engagement("org", "too old", engagement_ts="1999-11-20T10:00:00Z"),
            None,
        ]
    )
    strict.run()
    assert reasons(strict) == {REFUSED: 3, "not_json": 1}

    relaxed = strict.under(decoding=RIGHT)
    with pytest.raises(Crash):
        redrive(relaxed, REFUSED, crash_at("tables.data:after"))
    reports = redrive(relaxed, REFUSED)
    # The batch that was begun is finished and marked; only what is still wrong is put through once more.
    engagements = [report for report in reports if report.counts["rows_in"]]
    assert [report.replayed for report in engagements] == [True, False]
    for report, expected in zip(engagements, ((3, 1, 1, 1), (1, 0, 0, 1)), strict=True):
        counts = report.counts
        assert (counts["rows_in"], counts["landed"], counts["duplicates"], counts["quarantined"]) == expected
    assert [(row[1], row[4]) for row in relaxed.data_rows()] == [("known", 1), ("late", 2)]
    assert changes(relaxed) == [("known", "INSERT"), ("late", "INSERT")]
    assert [name[1:3] for name in relaxed.names()] == [("lead-1", "Ann"), ("lead-2", "Bo")]
    stand = {REFUSED: 3, "not_json": 1, REDRIVEN: 2}
    assert reasons(relaxed) == stand, "what is still bad was rejected twice, or is gone"

    before = relaxed.contents()
    totals = summed(redrive(relaxed, REFUSED))
    assert (totals["landed"], totals["duplicates"], totals["quarantined"]) == (0, 0, 1)
    assert relaxed.contents() == before
    assert_verified(relaxed)


def mixed(world: World) -> None:
    """Two batches in which everything happens: new, newer, older, known, contradicting, moved and bad."""
    world.produce(
        [
            engagement("org", "e1", person_name="Ann"),
            engagement("org", "e1", person_name="Ann"),
            engagement("org", "e1", person_name="Zz", subject="contradicts"),
            engagement("org", "e2", version=3, person_id="lead-2"),
            None,
        ]
    )
    world.run()
    world.produce(
        [
            engagement("org", "e1", version=2, person_name="Bo", person_id="lead-3"),
            engagement("org", "e2", version=2, person_id="lead-4"),
            engagement("org", "e2", version=3, person_id="lead-5"),
            engagement("org", "e2", version=4, engagement_ts="2026-10-01T10:00:00Z"),
            engagement("org", "e3"),
        ]
    )
    world.run()


@pytest.mark.slow
def test_reading_a_day_again_changes_nothing_where_nothing_was_wrong(world: World) -> None:
    mixed(world)
    assert reasons(world) == {"not_json": 1, "version_conflict": 2, "moved_in_time": 1}
    before = world.contents()
    reports = reread(world)
    assert [report.counts["rows_in"] for report in reports] == [10], "what the day's batches had, as one"
    totals = summed(reports)
    assert (totals["landed"], totals["notifications"], totals["quarantined"]) == (0, 0, 4)
    assert world.contents() == before
    assert reread(world, date(2026, 11, 20)) == [], "nothing was ingested on the day before"
    assert_verified(world)


def test_a_day_whose_batches_are_forgotten_is_refused_and_not_taken_for_an_empty_one(world: World) -> None:
    checkpoints, app_id = world.stores.checkpoints, world.stores.checkpoints.app_id("ingest-engagements")
    for nth in range(3):
        batch = Manifest("ingest-engagements", app_id, nth, {"0": nth}, {"0": nth + 1}, NOW)
        checkpoints.begin(batch)
        checkpoints.succeed(batch, {"rows_in": 1}, {}, NOW + timedelta(minutes=nth))
    assert forget(world.stores.leases.engine, timedelta(0), NOW + timedelta(days=1)) == 1
    with pytest.raises(JobRefused, match=f"on {TODAY} is not recorded any more.*engagement-platform reset ingest-eng"):
        reread(world)
    assert not reread(world, TODAY + timedelta(days=1))


def test_a_batch_of_a_day_that_was_forgotten_since_is_finished_and_no_further_one_begins(world: World) -> None:
    mixed(world)
    world.produce([engagement("org", "e4")])
    world.under(later=timedelta(days=1)).run()
    with pytest.raises(Crash):
        reread(world, observe=crash_at("tables.quarantine:after"))
    assert forget(world.stores.leases.engine, timedelta(0), NOW + timedelta(days=2)) == 1
    (report,) = reread(world)
    assert (report.manifest.job, report.replayed) == (REREAD_ENGAGEMENTS, True)
    with pytest.raises(JobRefused, match="is not recorded any more"):
        reread(world)


def test_a_reset_reads_everything_again_and_doubles_nothing(world: World) -> None:
    mixed(world)
    before = world.contents()
    app_id = world.stores.checkpoints.reset("ingest-engagements")
    assert app_id.startswith("ingest-engagements@2.")
    with pytest.raises(Crash):
        world.run(crash_at("tables.quarantine:after"))
    (report,) = world.run()
    assert (report.manifest.app_id, report.manifest.batch_id, report.replayed) == (app_id, 0, True)
    assert (report.counts["rows_in"], report.counts["landed"]) == (10, 0)
    assert report.counts["duplicates"] + report.counts["quarantined"] == 10
    assert world.contents() == before

    world.produce([engagement("org", "e4"), engagement("org", "e1", version=9), None])
    (report,) = world.run()
    assert (report.counts["inserted"], report.counts["updated"], report.counts["quarantined"]) == (1, 1, 1)
    assert_verified(world)


def test_messages_that_spell_fields_otherwise_land_once_somebody_says_what_they_mean(make_world: MakeWorld) -> None:
    world = make_world()
    otherwise = {"organization_id": "OrgId", "engagement_ts": "EngagementTime"}
    message = today("spelled otherwise", person_name="Ann")
    world.produce([{otherwise.get(name, name): value for name, value in message.items()}, today("usual")])
    world.run()
    assert reasons(world) == {"missing_field": 1}
    callbacks = world.under(decoding=DecodingSettings(aliases={of: field for field, of in otherwise.items()}))
    redrive(callbacks, "missing_field")
    assert [row[1] for row in callbacks.data_rows()] == ["spelled otherwise", "usual"]
    assert reasons(callbacks) == {"missing_field": 1, REDRIVEN: 1}, "what was refused stays to be seen"


def test_reading_a_day_again_after_a_fix_lands_what_was_refused_and_announces_only_that(make_world: MakeWorld) -> None:
    # A batch takes what one of these had, and no more.
    strict = make_world(decoding=TOO_STRICT, batch=BatchSettings(max_records=3))
    strict.produce([today("good"), engagement("org", "late", person_name="Bo"), None])
    strict.run()
    strict.produce([today("good", version=2), engagement("org", "late", version=2), today("other")])
    strict.run()
    announced = changes(strict)
    assert announced == [("good", "INSERT"), ("good", "UPDATE"), ("other", "INSERT")]

    relaxed = strict.under(decoding=RIGHT)
    with pytest.raises(Crash):
        reread(relaxed, observe=crash_at("notification.append:before"))
    reports = reread(relaxed)
    # The batch that was begun is finished, and then the day is gone over from its beginning.
    assert [report.replayed for report in reports] == [True, False, False]
    assert [report.counts["landed"] for report in reports] == [1, 0, 1]
    assert [(row[1], row[4]) for row in relaxed.data_rows()] == [("good", 2), ("late", 2), ("other", 1)]
    assert changes(relaxed) == sorted([*announced, ("late", "INSERT"), ("late", "UPDATE")])
    assert [name for _, _, name, _ in relaxed.names()] == ["Bo"]
    assert reasons(relaxed) == {REFUSED: 2, "not_json": 1}


@pytest.mark.slow
def test_the_same_offsets_of_a_topic_that_was_made_anew_are_other_records(world: World) -> None:
    """After a reset because of a recreated topic, what is bad there is quarantined although its place is known."""
    world.produce_raw([(None, b"first"), (None, as_bytes(engagement("org", "e1")))])
    world.run()
    world.broker.delete_topic(world.topics[0])
    world.broker.create_topic(world.topics[0])
    world.stores.checkpoints.reset("ingest-engagements")
    world.produce_raw([(None, b"second"), (None, as_bytes(engagement("org", "e2")))])
    (report,) = world.run()
    assert (report.counts["landed"], report.counts["quarantined"]) == (1, 1)
    found = sorted((row["offset"], bytes(row["value"])) for row in world.rows(QUARANTINE))
    assert found == [(0, b"first"), (0, b"second")]
    assert [row[1] for row in world.data_rows()] == ["e1", "e2"]
    assert_verified(world)


@pytest.mark.slow
def test_what_a_refuted_copy_says_about_names_stays_unsaid_when_it_is_read_again(world: World) -> None:
    """Once a newer version stands, the refuted copy can no longer be told from a known older one by the table."""
    world.produce([engagement("org", "e1", person_name="Ann")])
    world.run()
    world.produce([engagement("org", "e1", person_name="Zed", subject="contradicts")])
    world.run()
    world.produce([engagement("org", "e1", version=2)])
    world.run()
    before = world.contents()
    reread(world)
    assert world.contents() == before
