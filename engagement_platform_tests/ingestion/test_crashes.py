"""Killed anywhere, ingestion leaves what an undisturbed run leaves: every row and every notification once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from engagement_platform.engine.drain import drain
from engagement_platform.engine.job import MicroBatchJob, Told
from engagement_platform.engine.model import JobState, Manifest, Transaction
from engagement_platform.ingestion.job import ingest_engagements
from engagement_platform.lake.lake import Lake
from engagement_platform.settings import LayoutSettings
from engagement_platform_tests.daily import every_third_day
from engagement_platform_tests.ingestion.oracle import Oracle, engagement
from engagement_platform_tests.ingestion.world import AT_ONCE, World

pytestmark = [pytest.mark.broker]


IN_SPARK = LayoutSettings(auto_compact=False, light_write_rows=0)


class Crash(Exception):
    """Stands for the end of the process."""


def crash_at(point: str) -> Any:
    """An observer that raises at one point."""

    def observe(passed: str) -> None:
        if passed == point:
            raise Crash(point)

    return observe


def everything(organization: str, before: str | None) -> Sequence[dict[str, Any] | None]:
    """A batch in which every process has every commit to make: new, newer, older, known, contradicting, bad, named."""
    messages: list[dict[str, Any] | None] = [
        engagement(organization, "e1", person_name="Ann"),
        engagement(organization, "e2", person_id="lead-2", person_name="Bo"),
        engagement(organization, "e2", person_id="lead-2", person_name="Bo"),
        engagement(organization, "e1", subject="another copy"),
        engagement(organization, "e3", version=3, subject="newest"),
        engagement(organization, "e3", subject="oldest"),
        None,
    ]
    if before is not None:
        later = {"engagement_ts": "2026-11-20T10:00:00+00:00", "version": 2, "person_name": "Cy", "person_id": "lead-9"}
        messages += [engagement(before, "e1", **later), engagement(before, "e2", person_id="lead-2")]
        messages += [
            engagement(before, "e3", subject="not the oldest", person_name="Zz", person_id="lead-3"),
            engagement(before, "e3", version=2, subject="between"),
        ]
    return messages


def crash_points(job: MicroBatchJob[Any]) -> Sequence[str]:
    """From the job's own declaration, so that a new process is covered the day it appears.

    Originals are only written where requests have patched something: those points are crashed at in
    `test_what_was_said_before_a_patch_is_kept_once_wherever_its_batch_ends`.
    """
    points = [point for point in job.crash_points if not point.startswith("data.original:")]
    assert len(points) >= 16
    return points


TODAY = random.Random(datetime.now(UTC).toordinal())
"""Other points each day; the same all day, so that a failure can be seen again."""


def test_an_exception_leaves_what_an_undisturbed_run_leaves(world: World) -> None:
    """Other points each day, and all of them among the slow tests."""
    assert_the_same_after_a_crash_at(TODAY.sample(crash_points(world.job()), 3), world)


@pytest.mark.slow
def test_an_exception_at_any_point_leaves_what_an_undisturbed_run_leaves(world: World) -> None:
    assert_the_same_after_a_crash_at(crash_points(world.job()), world)


@every_third_day(1)
def test_an_exception_in_a_batch_of_many_rows_leaves_what_an_undisturbed_run_leaves(world: World) -> None:
    """All through Spark but what stands before; another point each day, and all of them among the slow tests."""
    points = TODAY.sample(crash_points(world.job()), 1)
    assert_the_same_after_a_crash_at(points, world.under(layout=IN_SPARK), filled_by=world)


@pytest.mark.slow
def test_an_exception_at_any_point_of_a_batch_of_many_rows(world: World) -> None:
    assert_the_same_after_a_crash_at(crash_points(world.job()), world.under(layout=IN_SPARK))


def plain(point: str) -> str:
    """An organization whose name makes a folder: any other would send all tables through Spark."""
    return f"org-{point.replace(':', '-')}"


def assert_the_same_after_a_crash_at(points: Sequence[str], world: World, filled_by: World | None = None) -> None:
    """A batch for each point, crashed there and resumed; in the end every table equals the oracle's."""
    oracle = Oracle()
    oracle.batch(0, world.produce(everything("org-first", None)))
    (filled_by or world).run()
    before = "org-first"
    for batch_id, point in enumerate(points, start=1):
        organization = plain(point)
        oracle.batch(batch_id, world.produce(everything(organization, before)))
        with pytest.raises(Crash):
            world.run(crash_at(point))
        reports = world.run()
        assert len(reports) < 2, f"after a crash at {point} there was more than one batch to do"
        resumed = reports[0] if reports else None
        if point == "finalized":
            assert resumed is None, "a finalized batch was done again"
        else:
            assert resumed is not None
            assert resumed.replayed == (point != "manifest:before")
            assert resumed.manifest.batch_id == batch_id
        before = organization
    world.assert_equals(oracle)


def test_a_finished_process_is_not_run_again(world: World) -> None:
    world.produce(everything("org", None))
    with pytest.raises(Crash):
        world.run(crash_at("data:recorded"))
    passed: list[str] = []
    world.run(passed.append)
    assert passed == ["notification.append:before", "notification.append:after", "notification:recorded", "finalized"]


def test_processes_run_in_the_declared_order_and_the_checkpoint_moves_last(world: World) -> None:
    world.produce(everything("org", None))
    seen: list[tuple[str, JobState | None]] = []

    def observe(point: str) -> None:
        last = world.stores.checkpoints.latest("ingest-engagements")
        seen.append((point, last.state if last else None))

    world.run(observe)
    recorded = [point for point, _ in seen if point.endswith(":recorded")]
    assert recorded == ["quarantine:recorded", "mapping:recorded", "data:recorded", "notification:recorded"]
    assert seen[0] == ("manifest:before", None)
    assert {state for point, state in seen[1:-1]} == {JobState.RUNNING}
    assert seen[-1] == ("finalized", JobState.SUCCEEDED)


class NamelessLake(Lake):
    """A build in which appends forget to name their transaction."""

    def append(self, frame: Any, table: Any, txn: Transaction, *, rows: int | None = None) -> None:
        self.frame(frame).select(*table.column_names).write.format("delta").mode("append").save(self.uri(table))


@every_third_day(2)
@pytest.mark.parametrize(
    "before_the_crash",
    [pytest.param(0, marks=pytest.mark.slow, id="Spark, then light"), pytest.param(1000, id="light, then Spark")],
)
def test_a_commit_of_one_engine_is_skipped_by_the_other(world: World, before_the_crash: int) -> None:
    """A setting that changes between the crash and the resume changes who writes, not what is written."""
    few = LayoutSettings(auto_compact=False, light_write_rows=1000)
    first, second = (
        world.under(layout=layout) for layout in ((few, IN_SPARK) if before_the_crash else (IN_SPARK, few))
    )
    oracle = Oracle()
    oracle.batch(0, world.produce(everything("org-first", None)))
    world.run()
    before = "org-first"
    for batch_id, point in enumerate(("mapping.merge:after", "data.insert:after"), start=1):
        oracle.batch(batch_id, world.produce(everything(plain(point), before)))
        with pytest.raises(Crash):
            first.run(crash_at(point))
        (resumed,) = second.run()
        assert resumed.replayed
        before = plain(point)
    world.assert_equals(oracle)


@pytest.mark.parametrize(
    "light_write_rows", [pytest.param(0, marks=pytest.mark.slow, id="in Spark"), pytest.param(1000, id="few rows")]
)
def test_a_build_that_pins_nothing_is_caught(world: World, light_write_rows: int) -> None:
    """A test of the tests: a replay that looks at the latest version sees its own rows and takes them for known."""
    world = world.under(layout=LayoutSettings(auto_compact=False, light_write_rows=light_write_rows))
    oracle = Oracle()
    oracle.batch(0, world.produce(everything("org", None)))

    class LatestLake(Lake):
        def read(self, table: Any, version: int | None = None) -> Any:
            return super().read(table)

        def find(self, table: Any, version: int, columns: Any, where: Any) -> Any:
            return super().find(table, self.version(table), columns, where)

    with pytest.raises(Crash):
        world.run(crash_at("data.insert:after"))
    list(drain(_on_lake(world, world.job(), LatestLake(world.spark, world.settings)), AT_ONCE))
    with pytest.raises(AssertionError):
        world.assert_equals(oracle)


@every_third_day(1)
def test_a_build_without_transaction_ids_is_caught(world: World) -> None:
    """The other one: with txnAppId left out, the same comparison fails."""
    oracle = Oracle()
    oracle.batch(0, world.produce(everything("org", None)))
    job = world.job(crash_at("notification.append:after"))
    with pytest.raises(Crash):
        list(drain(_on_lake(world, job, NamelessLake(world.spark, world.settings)), AT_ONCE))
    list(drain(_on_lake(world, world.job(), NamelessLake(world.spark, world.settings)), AT_ONCE))
    with pytest.raises(AssertionError):
        world.assert_equals(oracle)


def _on_lake(world: World, job: MicroBatchJob[Any], lake: Lake) -> MicroBatchJob[Any]:
    from engagement_platform.ingestion.job import Parts

    parts = Parts(lake, world.stores, world.settings, Told(job.observe, job.on_wait))

    def read(manifest: Manifest) -> Any:
        from engagement_platform.sources.kafka import KafkaSource

        source = KafkaSource(world.topics[0], world.settings.kafka)
        return source.read(world.spark, manifest.start, manifest.end)

    return replace(ingest_engagements(job.name, job.source, read, parts), clock=job.clock)


def test_processes_are_killed_at_every_declared_point(world: World) -> None:
    from engagement_platform_tests.ingestion.test_whole_path import POINTS

    assert tuple(crash_points(world.job())) == POINTS
