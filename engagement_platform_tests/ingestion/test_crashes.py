"""Killed anywhere, ingestion leaves what an undisturbed run leaves: every row and every notification once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from engagement_platform.engine.drain import drain
from engagement_platform.engine.job import MicroBatchJob
from engagement_platform.engine.model import JobState, Manifest, Transaction
from engagement_platform.lake.lake import Lake
from engagement_platform.pipelines.engagements.job import ingest_engagements
from engagement_platform.pipelines.parts import Parts
from engagement_platform.sources.kafka import KafkaSource
from engagement_platform_tests.ingestion.oracle import Oracle, engagement
from engagement_platform_tests.ingestion.world import AT_ONCE, World
from engagement_platform_tests.matrix import spread

pytestmark = [pytest.mark.broker]


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
    """From the job's own declaration, so that a new commit is covered the day it appears."""
    points = job.crash_points
    assert len(points) >= 14
    return points


def test_an_exception_leaves_what_an_undisturbed_run_leaves(world: World) -> None:
    """Some points; all of them among the slow tests."""
    assert_the_same_after_a_crash_at(spread(crash_points(world.job()), 2), world)


@pytest.mark.slow
def test_an_exception_at_any_point_leaves_what_an_undisturbed_run_leaves(world: World) -> None:
    assert_the_same_after_a_crash_at(crash_points(world.job()), world)


def assert_the_same_after_a_crash_at(points: Sequence[str], world: World) -> None:
    """A batch for each point, crashed there and resumed; in the end every table equals the oracle's."""
    oracle = Oracle()
    oracle.batch(0, world.produce(everything("org-first", None)))
    world.run()
    before = "org-first"
    for batch_id, point in enumerate(points, start=1):
        organization = f"org {point}"
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
        world.run(crash_at("tables:recorded"))
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
    assert recorded == ["tables:recorded", "notification:recorded"]
    passed = [point for point, _ in seen]
    assert passed.index("tables.data:after") < passed.index("notification.append:before")
    assert seen[0] == ("manifest:before", None)
    assert {state for point, state in seen[1:-1]} == {JobState.RUNNING}
    assert seen[-1] == ("finalized", JobState.SUCCEEDED)


class NamelessLake(Lake):
    """A build in which appends forget to name their transaction."""

    def append(self, frame: Any, table: Any, txn: Transaction, *, rows: int) -> None:
        frame.select(*table.column_names).write.format("delta").mode("append").save(self.uri(table))


def test_a_build_without_transaction_ids_is_caught(world: World) -> None:
    """A test of the tests: with txnAppId left out, the same comparison fails."""
    oracle = Oracle()
    oracle.batch(0, world.produce(everything("org", None)))
    with pytest.raises(Crash):
        list(drain(_nameless(world, world.job(crash_at("notification.append:after"))), AT_ONCE))
    list(drain(_nameless(world, world.job()), AT_ONCE))
    with pytest.raises(AssertionError):
        world.assert_equals(oracle)


def _nameless(world: World, job: MicroBatchJob[Any]) -> MicroBatchJob[Any]:
    lake = NamelessLake(world.spark, world.settings)
    parts = Parts(lake, world.stores, world.settings, job.callbacks)

    def read(manifest: Manifest) -> Any:
        source = KafkaSource(world.topics[0], world.settings.kafka)
        return source.read(world.spark, manifest.start, manifest.end)

    return replace(ingest_engagements(job.name, job.source, read, parts), clock=job.clock)


def test_processes_are_killed_at_every_declared_point(world: World) -> None:
    from engagement_platform_tests.ingestion.test_whole_path import POINTS

    assert set(crash_points(world.job())) == set(POINTS)
