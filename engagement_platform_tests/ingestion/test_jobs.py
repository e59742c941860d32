"""What a run does at the edges: limits, empty and changing topics, lost offsets, no broker, another run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from pyspark.sql import SparkSession

from engagement_platform.engine.drain import drain
from engagement_platform.engine.job import Callbacks, MicroBatchJob
from engagement_platform.engine.lease import LeaseUnavailable
from engagement_platform.engine.model import Manifest
from engagement_platform.maintenance.verify.messages import verify
from engagement_platform.pipelines.jobs import (
    INGEST_ENGAGEMENTS,
    INGEST_MUTATION_REQUESTS,
    REDRIVE_QUARANTINE,
    JobRefused,
    build_job,
    open_stores,
    parts_of,
    reset_job,
    run_job,
)
from engagement_platform.settings import BatchSettings, KafkaSettings, Settings, StoreSettings
from engagement_platform.sources.kafka_errors import BrokerUnavailable, OffsetsExpired, TopicMissing, TopicRecreated
from engagement_platform_tests.conftest import Broker
from engagement_platform_tests.ingestion.conftest import MakeWorld
from engagement_platform_tests.ingestion.oracle import engagement
from engagement_platform_tests.ingestion.world import AT_ONCE, World

pytestmark = [pytest.mark.broker]

# Nothing listens on port 9 (discard) of this machine.
NOBODY = "127.0.0.1:9"


@pytest.fixture(scope="module")
def world(spark: SparkSession, broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> World:
    """One world for tests that leave nothing behind, and the two that go on from what it holds."""
    return World(spark, broker, tmp_path_factory.mktemp("jobs"))


def versions(world: World) -> dict[str, int]:
    """Current version of every table."""
    pins = world.job().pin()
    return {**pins, "notification": len(list(Path(world.lake.root, "engagement/notification/_delta_log").glob("*")))}


@contextmanager
def nothing_changes(world: World) -> Iterator[None]:
    """Neither tables nor checkpoint move meanwhile."""
    before = (versions(world), world.stores.checkpoints.latest(INGEST_ENGAGEMENTS))
    yield
    assert (versions(world), world.stores.checkpoints.latest(INGEST_ENGAGEMENTS)) == before


def delete_records(world: World, before_offset: int) -> None:
    """Let everything before an offset of partition 0 expire."""
    admin = AdminClient({"bootstrap.servers": world.broker.bootstrap_servers})
    for future in admin.delete_records([TopicPartition(world.topics[0], 0, before_offset)]).values():
        future.result(20)


def add_partition(world: World, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": world.broker.bootstrap_servers})
    for future in admin.create_partitions([NewPartitions(world.topics[0], count)]).values():
        future.result(20)


def test_an_empty_topic_gives_no_batch_and_no_commit(world: World) -> None:
    with nothing_changes(world):
        assert world.run() == []
    assert world.stores.checkpoints.history(INGEST_ENGAGEMENTS) == []


def test_a_long_backlog_becomes_several_batches_and_a_new_partition_is_read_from_its_beginning(
    make_world: MakeWorld,
) -> None:
    world = make_world(batch=BatchSettings(max_records=4))
    world.produce([engagement("org", f"e{number}") for number in range(7)])
    reports = world.run()
    assert [(dict(r.manifest.start), dict(r.manifest.end)) for r in reports] == [
        ({"0": 0}, {"0": 4}),
        ({"0": 4}, {"0": 7}),
    ]
    assert [report.counts["landed"] for report in reports] == [4, 3]
    add_partition(world, 2)
    world.produce([engagement("org", "new-1"), engagement("org", "new-2")], partition=1)
    (report,) = world.run()
    assert dict(report.manifest.start) == {"0": 7, "1": 0}
    assert dict(report.manifest.end) == {"0": 7, "1": 2}
    ids = [row[1] for row in world.data_rows()]
    assert ids == [*(f"e{number}" for number in range(7)), "new-1", "new-2"]
    with nothing_changes(world):
        assert world.run() == []


def test_expired_offsets_stop_the_run_with_the_lost_range_and_change_nothing(make_world: MakeWorld) -> None:
    world = make_world()
    world.produce([engagement("org", "e1")])
    world.run()
    world.produce([engagement("org", f"lost-{number}") for number in range(3)])
    world.produce([engagement("org", "kept")])
    delete_records(world, 3)
    with nothing_changes(world), pytest.raises(OffsetsExpired, match=r"\[0\] .*offset 1.*\[1, 3\)"):
        world.run()
    # The way out that the message names.
    reset_job(INGEST_ENGAGEMENTS, world.settings)
    (report,) = world.run()
    assert dict(report.manifest.start) == {"0": 3}
    assert [row[1] for row in world.data_rows()] == ["e1", "kept", "lost-2"]


def test_a_pinned_batch_whose_offsets_expired_is_refused_and_stays_unfinished(make_world: MakeWorld) -> None:
    world = make_world()

    def crash(point: str) -> None:
        if point == "manifest:after":
            raise KeyboardInterrupt

    world.produce([engagement("org", f"e{number}") for number in range(3)])
    with pytest.raises(KeyboardInterrupt):
        world.run(crash)
    delete_records(world, 2)
    with nothing_changes(world), pytest.raises(OffsetsExpired, match=r"\[0, 2\)"):
        world.run()
    with nothing_changes(world), pytest.raises(JobRefused, match="--abandon"):
        reset_job(INGEST_ENGAGEMENTS, world.settings)
    assert reset_job(INGEST_ENGAGEMENTS, world.settings, abandon=True).startswith("ingest-engagements@2.")


def test_a_recreated_topic_stops_the_run_until_the_job_is_reset(make_world: MakeWorld) -> None:
    world = make_world()
    world.produce([engagement("org", "e1"), engagement("org", "e2")])
    world.run()
    world.broker.delete_topic(world.topics[0])
    with nothing_changes(world), pytest.raises(TopicMissing, match=world.topics[0]):
        list(drain(_impatient(world, 1), AT_ONCE))
    world.broker.create_topic(world.topics[0])
    # It has grown past the checkpoint, so that offsets say nothing of it.
    world.produce([engagement("org", f"e{number}") for number in range(1, 5)])
    with nothing_changes(world), pytest.raises(TopicRecreated, match="engagement-platform reset"):
        world.run()
    reset_job(INGEST_ENGAGEMENTS, world.settings)
    (report,) = world.run()
    assert (report.counts["landed"], report.counts["duplicates"]) == (2, 2)


def test_records_with_timestamps_beyond_sparks_land_in_the_same_run_and_stop_nothing(make_world: MakeWorld) -> None:
    world = make_world()
    world.broker.accept_any_timestamp(world.topics[0])
    world.broker.accept_any_timestamp(world.topics[1])
    for number, produced in enumerate((None, 1_795_000_000_000_000_000, None, -(10**16), None)):
        world.produce([engagement("org", f"e{number}")], produced=produced)
    (report,) = world.run()
    assert report.counts["landed"] == 5
    assert report.counts["quarantined"] == 0
    world.produce([engagement("org", "e5")])
    (report,) = world.run()
    assert report.counts["landed"] == 1
    assert [row[1] for row in world.data_rows()] == [f"e{number}" for number in range(6)]
    assert [finding.check for finding in verify(world.settings, world.spark) if finding.wrong] == []


def test_a_broker_that_is_down_is_told_quickly_and_changes_nothing(world: World) -> None:
    job = _impatient(world, 2, servers=NOBODY)
    began = time.monotonic()
    with nothing_changes(world), pytest.raises(BrokerUnavailable, match=NOBODY):
        list(drain(job, AT_ONCE))
    assert time.monotonic() - began < 10


def _impatient(world: World, seconds: float, servers: str | None = None) -> MicroBatchJob[Any]:
    """The job with a short timeout, on another broker if need be."""
    kafka = world.settings.kafka.model_copy(
        update={
            "timeout": timedelta(seconds=seconds),
            "bootstrap_servers": servers or world.settings.kafka.bootstrap_servers,
        }
    )
    settings = world.settings.model_copy(update={"kafka": kafka})
    return build_job(INGEST_ENGAGEMENTS, parts_of(world.spark, settings, world.stores))


@pytest.mark.parametrize("held", [f"job/{INGEST_ENGAGEMENTS}", "table/engagement/data"])
def test_a_second_run_ends_and_names_who_is_in_the_way(world: World, held: str) -> None:
    job = replace(world.job(), lease_wait=timedelta(0))
    with world.stores.leases.acquire(held, purpose="the first run"):
        with nothing_changes(world), pytest.raises(LeaseUnavailable, match="the first run") as raised:
            list(drain(job, AT_ONCE))
        assert raised.value.holder.name == held


def test_a_second_run_waits_for_the_first_and_then_goes_on(world: World) -> None:
    first = world.stores.leases.acquire(f"job/{INGEST_ENGAGEMENTS}", purpose="the first run")
    told: list[str] = []

    def on_wait(lease: str, holder: object) -> None:
        told.append(f"{lease}: {holder}")
        first.release()

    world.produce([engagement("org", "waited")])
    reports = list(drain(replace(world.job(), callbacks=Callbacks(on_wait=on_wait)), AT_ONCE))
    assert len(told) == 1
    assert "the first run" in told[0]
    assert [report.counts["landed"] for report in reports] == [1]
    assert world.stores.leases.holders() == []


def test_a_job_is_not_reset_while_it_runs(world: World) -> None:
    with (
        world.stores.leases.acquire(f"job/{INGEST_ENGAGEMENTS}", purpose="drain"),
        pytest.raises(LeaseUnavailable, match="drain"),
    ):
        reset_job(INGEST_ENGAGEMENTS, world.settings)
    assert world.stores.checkpoints.app_id(INGEST_ENGAGEMENTS).startswith("ingest-engagements@1.")


@pytest.fixture
def untouched(tmp_path: Path) -> Settings:
    """Settings under which nothing answers and nothing has been made."""
    return Settings(home=tmp_path, kafka=KafkaSettings(bootstrap_servers=NOBODY), stores=StoreSettings())


def test_an_unknown_job_is_named_with_those_there_are(untouched: Settings) -> None:
    with pytest.raises(JobRefused, match=r"'ingest'.*ingest-engagements.*redrive-quarantine"):
        list(run_job("ingest", untouched, until_idle=True))
    with pytest.raises(JobRefused, match="'redrive'"):
        reset_job("redrive", untouched)
    assert list(untouched.home.iterdir()) == [], "an unknown job left something behind"


def test_a_job_that_is_declared_no_longer_can_be_given_up(untouched: Settings) -> None:
    """Or its unfinished batch would keep others waiting for ever."""
    checkpoints = open_stores(untouched).checkpoints
    for job in ("ingest-account-changes", "restore-tables"):
        checkpoints.begin(Manifest(job, f"{job}@1", 0, {"0": 0}, {"0": 1}, datetime.now(UTC)))
    with pytest.raises(JobRefused, match="reset ingest-account-changes --abandon"):
        reset_job("ingest-account-changes", untouched)
    reset_job("ingest-account-changes", untouched, abandon=True)
    assert [each.manifest.job for each in checkpoints.unfinished()] == ["restore-tables"]
    with pytest.raises(JobRefused, match="There is no job called 'restore-tables'"):
        reset_job("restore-tables", untouched, abandon=True)


def test_a_job_that_an_unfinished_restore_puts_back_is_not_reset(untouched: Settings) -> None:
    """The restore would find no batch to put it back from, and could not be given up either."""
    checkpoints = open_stores(untouched).checkpoints
    rewinds = {INGEST_ENGAGEMENTS: {"start": {"0": 0}, "end": {"0": 1}}}
    now = datetime.now(UTC)
    begun = Manifest("restore-tables", "restore-tables@1", 0, {"t": 2}, {"t": 1}, now, source={"rewinds": rewinds})
    checkpoints.begin(begun)
    for abandon in (False, True):
        with pytest.raises(JobRefused, match=r"restore-tables batch 0 is unfinished.*restore --finish.*--abandon"):
            reset_job(INGEST_ENGAGEMENTS, untouched, abandon=abandon)
    reset_job(INGEST_MUTATION_REQUESTS, untouched)
    checkpoints.succeed(checkpoints.unfinished()[0].manifest, {})
    reset_job(INGEST_ENGAGEMENTS, untouched)


def test_a_redrive_without_a_reason_is_refused_before_anything_is_opened(untouched: Settings) -> None:
    for reason in (None, ""):
        with pytest.raises(JobRefused, match="--reason"):
            list(run_job(REDRIVE_QUARANTINE, untouched, until_idle=True, reason=reason))
    assert list(untouched.home.iterdir()) == []


def test_a_fresh_store_knows_of_no_job(untouched: Settings) -> None:
    stores = open_stores(untouched)
    assert stores.checkpoints.latest(INGEST_ENGAGEMENTS) is None
    assert stores.checkpoints.history(INGEST_ENGAGEMENTS) == []
