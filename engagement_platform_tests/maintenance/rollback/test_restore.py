"""After a restore the tables are at the end of a batch, readers know, and what is read again lands exactly once.

One file, since each process of tests that uses `filled` makes it once more.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from engagement_platform.cli import app
from engagement_platform.engine.database import writing
from engagement_platform.engine.job import BatchReport, Callbacks, Observer
from engagement_platform.engine.lease import LeaseLost, LeaseUnavailable
from engagement_platform.engine.schema import LEASE
from engagement_platform.engine.unfinished_batches import OthersBatchUnfinished
from engagement_platform.errors import PlatformError
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import ALIAS, MAPPING, NOTIFICATION
from engagement_platform.lake.restore import RESTORE, VersionGone
from engagement_platform.maintenance.layout import optimize as compaction
from engagement_platform.maintenance.rollback.groups import RestoreRefused, engagements
from engagement_platform.maintenance.rollback.job import ChecksumDiffers, Restoring
from engagement_platform.maintenance.rollback.plan import Asked, CannotReplay, plan
from engagement_platform.maintenance.verify.identity import identity_findings
from engagement_platform.maintenance.verify.messages import verify
from engagement_platform.pipelines.jobs import INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS
from engagement_platform.pipelines.mutations.move import REMATERIALIZE_ALIASES
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.pipelines.redrive import REDRIVEN
from engagement_platform.pipelines.snapshot import snapshot
from engagement_platform.settings import LayoutSettings
from engagement_platform_tests.ingestion.conftest import MakeWorld
from engagement_platform_tests.ingestion.oracle import engagement
from engagement_platform_tests.ingestion.test_again import REFUSED, RIGHT, TOO_STRICT, reasons, redrive, summed, today
from engagement_platform_tests.ingestion.test_crashes import Crash, crash_at
from engagement_platform_tests.ingestion.world import World, ignore
from engagement_platform_tests.maintenance.rollback.filled import (
    EVERYTHING,
    FIRST,
    JOBS,
    LATER,
    REQUESTS,
    Filled,
    send,
    versions,
)
from engagement_platform_tests.pipelines.mutations import histories
from engagement_platform_tests.pipelines.mutations.histories import Message
from engagement_platform_tests.pipelines.mutations.oracle import replay
from engagement_platform_tests.pipelines.mutations.test_histories import assert_announced, standing_names, standing_rows

pytestmark = [pytest.mark.broker]


def restoring(world: World, observe: Observer = ignore) -> Restoring:
    return Restoring(world.lake, world.stores, Callbacks(observe=observe), world.clock)


def restored(world: World, to: int | datetime, table: Table | None = None, **how: str) -> BatchReport:
    asked = Asked((table or world.data).name, to, by="ann@here", **how)  # type: ignore[arg-type]
    report = restoring(world).run(asked)
    assert report is not None, "nothing was restored"
    return report


def held(world: World, at: Mapping[str, int]) -> dict[str, list[str]]:
    """Every row of every table at these versions, as text, sorted; read without Spark."""
    tables = [DeltaTable(world.lake.uri(table), version=at[table.name]) for table in engagements(world.settings).tables]
    rows = [table.to_pyarrow_table().to_pylist() for table in tables]
    return {
        table.name: sorted(map(repr, some))
        for table, some in zip(engagements(world.settings).tables, rows, strict=True)
    }


def assert_as_of(world: World, messages: Sequence[Message]) -> None:
    """The rows, names and notifications of a loop over the messages."""
    oracle = replay(list(messages))
    assert standing_rows(world) == oracle.data
    assert standing_names(world) == oracle.names
    assert_announced(world, oracle.data)


def assert_verified(world: World) -> None:
    """What `verify` compares, with the topic and with itself: every organization is in the sample."""
    findings = [*verify(world.settings, world.spark), *identity_findings(world.settings, world.spark, sample=100)]
    assert [finding for finding in findings if finding.wrong] == []
    assert len(findings) == 11


def test_all_tables_go_back_to_the_same_batch_and_a_replay_ends_in_the_undisturbed_rows(
    filled: Filled, three: World
) -> None:
    world, between = three, filled.between
    last = versions(world)
    report = restored(world, between[ALIAS.name], ALIAS, reason="a bad batch")
    assert held(world, versions(world)) == held(world, between), "not what the version held"
    assert held(world, between) != held(world, last)
    assert_as_of(world, FIRST)
    assert (report.counts["inserted"], report.counts["updated"], report.counts["deleted"]) == (1, 2, 1)
    assert report.counts["jobs_put_back"] == 3
    assert snapshot(world.lake.root).watermark <= 0, "the view would take what is not in the base for moved"
    for job in JOBS:
        world.run(name=job)
    assert_as_of(world, EVERYTHING)
    assert_verified(world)
    world.run(name=REMATERIALIZE_ALIASES)
    assert not snapshot(world.lake.root).pends
    assert_as_of(world, EVERYTHING)
    audit = world.rows(RESTORE)
    assert {(row["restored_by"], row["reason"], row["mode"]) for row in audit} == {
        ("ann@here", "a bad batch", "replay")
    }
    assert {row["table_name"]: row["to_version"] for row in audit} == {
        name: version for name, version in between.items() if version != last[name]
    }
    assert {row["boundary"] for row in audit} == {"the end of ingest-engagements batch 0"}


def test_tables_that_were_compacted_since_go_back_with_the_one_that_is_asked_for(filled: Filled, three: World) -> None:
    asked = Asked(ALIAS.name, filled.between[ALIAS.name], by="ann@here")
    before = plan(three.settings, three.stores, asked)
    wanted, others = held(three, {**versions(three), **before.target}), {one.table.name for one in before.changes}
    found = compaction.planned(three.settings, compaction.Asked())
    chosen = replace(found, chosen=tuple(one for one in found.chosen if one.table.name in others - {ALIAS.name}))
    outcomes = list(compaction.optimize(three.settings, chosen, open_spark=lambda: nullcontext(three.spark)))
    assert compaction.Done in set(map(type, outcomes))
    restoring(three).run(asked)
    assert held(three, versions(three)) == wanted
    assert restoring(three).run(asked) is None, "they are there already"


@pytest.mark.slow
def test_what_a_redrive_landed_and_a_restore_undid_lands_by_a_redrive_once_more(make_world: MakeWorld) -> None:
    strict = make_world(decoding=TOO_STRICT)
    strict.produce([today("known"), engagement("org", "late")])
    strict.run()
    relaxed, before = strict.under(decoding=RIGHT), strict.lake.version(strict.data)
    assert summed(redrive(relaxed, REFUSED))["landed"] == 1
    landed = relaxed.data_rows()
    restored(relaxed, before)
    assert [row[1] for row in relaxed.data_rows()] == ["known"]
    assert reasons(relaxed) == {REFUSED: 1, REDRIVEN: 1}, "quarantine stays"
    totals = summed(redrive(relaxed, REFUSED))
    assert (totals["landed"], totals["redriven"], relaxed.data_rows()) == (1, 1, landed)
    assert summed(redrive(relaxed, REFUSED)).get("rows_in", 0) == 0


@pytest.mark.slow
def test_what_is_dropped_stays_away_and_later_messages_land(own: World) -> None:
    first = own.stores.checkpoints.history(INGEST_ENGAGEMENTS)[0].manifest.table_versions
    restored(own, first[own.data.name], mode="drop")
    assert_as_of(own, [*FIRST, *REQUESTS])
    more = [histories.engagement("e9", "p1", 40, person_name="Ida")]
    send(own, more)
    assert_as_of(own, [*FIRST, *REQUESTS, *more])
    assert_verified(own)


@pytest.mark.slow
def test_any_version_of_any_table_and_any_time_mean_all_tables_at_the_end_of_one_batch(
    filled: Filled, three: World
) -> None:
    """Whatever the batches that the moves took with them, and whichever table is asked for."""
    now = versions(three)
    assert now == filled.ends["later"]
    for name, first in filled.between.items():
        for version in range(first, now[name] + 1):
            planned = plan(three.settings, three.stores, Asked(name, version))
            assert planned.note is None
            assert planned.target[name] == version
            # A version before or after a compaction is the same batch's end.
            ends = ({**end, name: version} for end in filled.ends.values())
            assert dict(planned.target) in list(ends), f"{name} version {version}: {planned.boundary}"
    planned = plan(three.settings, three.stores, Asked(three.data.name, filled.ends["requests"][three.data.name]))
    assert {(offset.job, offset.records) for offset in planned.offsets} == {
        (INGEST_ENGAGEMENTS, 3),
        (REMATERIALIZE_ALIASES, None),
    }
    ended = three.stores.checkpoints.history(APPLY_MUTATIONS)[0].finished_ts
    assert ended is not None
    planned = plan(three.settings, three.stores, Asked(MAPPING.name, ended))
    assert planned.boundary == "the end of apply-mutations batch 0"
    assert dict(planned.target) == filled.ends["requests"]
    with pytest.raises(RestoreRefused, match="no batch is known to have ended"):
        plan(three.settings, three.stores, Asked(MAPPING.name, datetime(2020, 1, 1, tzinfo=UTC)))
    assert versions(three) == now, "a plan changed something"


POINTS = (
    "manifest:before", "manifest:after", "restore.to-begin:after", "restore.data:before", "restore.data:after",
    "restore.alias:after",
    "restore:recorded", "notification.append:before", "notification.append:after", "notification:recorded",
    "audit.append:after", "audit:recorded", "rewind:recorded", "finalized",
)  # fmt: skip


@pytest.mark.crash
@pytest.mark.slow
def test_a_restore_that_ends_anywhere_is_finished_once(filled: Filled, own: World) -> None:
    """For each point a restore to the first batch that ends there, with everything read again after it."""
    world, first = own, filled.between[ALIAS.name]
    assert set(POINTS) <= set(restoring(world).job(None).crash_points)
    wanted = held(world, {**versions(world), **plan(world.settings, world.stores, Asked(ALIAS.name, first)).target})
    sent = EVERYTHING
    for point in POINTS:
        asked = Asked(ALIAS.name, first, by="ann@here")
        with pytest.raises(Crash):
            restoring(world, crash_at(point)).run(asked)
        if point == "manifest:before":
            restoring(world).run(asked)
        elif point != "finalized":
            with pytest.raises(RestoreRefused):
                restoring(world).run(asked)
            if point == "restore.data:after":
                sent = [*sent, histories.engagement("e8", "p1", 33)]
                blocked = replace(world.job(), lease_wait=world.settings.stores.lease_wait * 0)
                world.produce(sent[-1:])
                with blocked.exclusive() as lease, pytest.raises(OthersBatchUnfinished, match="restore --finish"):
                    blocked.run_batch(lease)
            assert restoring(world).run(None) is not None
        assert restoring(world).run(None) is None
        assert held(world, versions(world)) == wanted, point
        assert_as_of(world, FIRST)
        for job in JOBS:
            world.run(name=job)
        assert_as_of(world, sent)


@pytest.mark.slow
def test_a_restore_can_be_taken_back_itself(filled: Filled, three: World) -> None:
    """To where the restore began: messages count as read, although the restore had put the jobs back."""
    last = versions(three)
    restored(three, filled.between[ALIAS.name], ALIAS)
    assert_as_of(three, FIRST)
    restored(three, last[three.data.name])
    assert held(three, versions(three)) == held(three, last)
    for job in JOBS:
        assert three.run(name=job) == []
    assert_as_of(three, EVERYTHING)


def test_a_request_that_a_move_took_with_its_correction_counts_again_when_only_the_correction_is_undone(
    world: World,
) -> None:
    """The move changed no row, so the Data Table has the files of before; how far it is moved is all that goes back."""
    world.ticks = True
    send(world, FIRST[:1])
    send(world, [histories.convert("there", "p1", "p7", 20)])
    between = versions(world)
    send(world, [histories.convert("and back", "p7", "p1", 21)])
    world.run(name=REMATERIALIZE_ALIASES)
    assert_as_of(
        world, [*FIRST[:1], histories.convert("there", "p1", "p7", 20), histories.convert("and back", "p7", "p1", 21)]
    )
    restored(world, between[ALIAS.name], ALIAS, mode="drop")
    assert_as_of(world, [*FIRST[:1], histories.convert("there", "p1", "p7", 20)])


@pytest.mark.slow
def test_readers_are_told_what_they_saw_where_requests_are_not_announced_yet(world: World) -> None:
    """A restore to before them says nothing of them; one to after them leaves them to `apply-mutations`."""
    world.ticks = True
    send(world, FIRST)
    first = versions(world)
    world.produce_requests(REQUESTS)
    world.run(name=INGEST_MUTATION_REQUESTS)
    accepted = versions(world)
    world.produce(LATER)
    world.run()
    restored(world, accepted[world.data.name])
    assert standing_rows(world) == replay([*FIRST, *REQUESTS]).data
    restored(world, first[ALIAS.name], ALIAS)
    assert_as_of(world, FIRST)
    for job in (*JOBS, REMATERIALIZE_ALIASES):
        world.run(name=job)
    assert_as_of(world, EVERYTHING)


@pytest.mark.slow
def test_a_partitioned_data_table_goes_back_alike(make_world: MakeWorld) -> None:
    world = make_world(layout=LayoutSettings(auto_compact=False, scheme="organization"))
    world.ticks = True
    send(world, FIRST[:2])
    before = versions(world)
    send(world, FIRST[2:])
    restored(world, before[world.data.name])
    assert DeltaTable(world.lake.uri(world.data)).metadata().partition_columns == ["organization_id"]
    assert held(world, versions(world)) == held(world, before)
    world.run()
    assert_as_of(world, FIRST)


def test_a_version_whose_files_are_gone_is_refused_and_nothing_changes(three: World) -> None:
    first = three.stores.checkpoints.history(APPLY_MUTATIONS)[0].manifest.table_versions
    files = sorted(Path(three.lake.uri(three.data)).rglob("*.parquet"), key=lambda path: path.stat().st_mtime)
    files[0].unlink()
    before = versions(three)
    with pytest.raises(VersionGone, match="1 of its files are gone"):
        restored(three, first[three.data.name])
    assert versions(three) == before
    assert restoring(three).unfinished is None


@pytest.mark.slow
def test_an_unfinished_batch_or_a_job_at_work_comes_first(own: World) -> None:
    before = versions(own)
    own.produce([histories.engagement("e8", "p1", 33)])
    with pytest.raises(Crash):
        own.run(crash_at("tables:recorded"))
    with pytest.raises(OthersBatchUnfinished, match="engagement-platform run ingest-engagements"):
        plan(own.settings, own.stores, Asked(own.data.name, 1))
    own.run()
    impatient = own.under()
    stores = impatient.settings.stores.model_copy(update={"lease_wait": impatient.settings.stores.lease_wait * 0})
    impatient.__dict__["settings"] = impatient.settings.model_copy(update={"stores": stores})
    impatient.__dict__.pop("lake", None)
    with own.job().exclusive(), pytest.raises(LeaseUnavailable, match=f"holds job/{INGEST_ENGAGEMENTS}"):
        restored(impatient, before[own.data.name])


@pytest.mark.slow
def test_a_restore_that_somebody_wrote_on_top_of_is_not_finished_before_it_is_done_once_more(
    three: World, filled: Filled
) -> None:
    def meddle(point: str) -> None:
        if point == "restore.data:after":
            three.spark.sql(f"DELETE FROM {three.lake.sql_name(three.data)} WHERE engagement_id = 'e1'").collect()

    first = filled.between[ALIAS.name]
    with pytest.raises(ChecksumDiffers) as told:
        restoring(three, meddle).run(Asked(ALIAS.name, first, by="ann@here"))
    error = told.value
    assert (error.table, error.version) == (three.data.name, filled.between[three.data.name])
    assert (error.wanted.rows, error.found.rows) == (len(FIRST), len(FIRST) - 1)
    with pytest.raises(OthersBatchUnfinished, match="restore --finish"):
        plan(three.settings, three.stores, Asked(ALIAS.name, first))
    assert restoring(three).run(None) is not None
    assert held(three, versions(three)) == held(three, filled.between)
    for job in JOBS:
        three.run(name=job)
    assert_as_of(three, EVERYTHING)
    assert_verified(three)


def test_what_cannot_be_restored_is_said(three: World) -> None:
    def refused(error: type[PlatformError], asked: Asked) -> None:
        with pytest.raises(error):
            plan(three.settings, three.stores, asked)

    refused(RestoreRefused, Asked(NOTIFICATION.name, 1))
    refused(RestoreRefused, Asked(MAPPING.name, 99))
    # As when the topic was deleted.
    gone = three.under(topics=("no-such-topic", three.topics[1]))
    with pytest.raises(CannotReplay):
        plan(gone.settings, gone.stores, Asked(gone.data.name, 1))
    assert plan(gone.settings, gone.stores, Asked(gone.data.name, 1, "drop")).changes
    assert plan(gone.settings, gone.stores, Asked(gone.data.name, versions(gone)[gone.data.name])).changes == ()


@pytest.fixture
def commanded(three: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands are about this world, and borrow the session of these tests, which they would end otherwise."""
    topics = {"ENGAGEMENTS_TOPIC": three.topics[0], "MUTATION_REQUESTS_TOPIC": three.topics[1]}
    variables = {f"KAFKA__{name}": topic for name, topic in topics.items()}
    variables |= {"HOME": str(three.home), "KAFKA__BOOTSTRAP_SERVERS": three.broker.bootstrap_servers}
    for name, value in variables.items():
        monkeypatch.setenv(f"ENGAGEMENT_PLATFORM_{name}", value)

    def lent(*_said: object, reads_only: bool = False) -> AbstractContextManager[SparkSession]:
        return nullcontext(three.spark)

    monkeypatch.setattr("engagement_platform.lake.session.spark_session", lent)


@pytest.mark.usefixtures("commanded")
def test_a_dry_run_counts_what_readers_would_see_and_finish_does_the_rest(filled: Filled, three: World) -> None:
    def said(*words: str) -> str:
        ran = CliRunner().invoke(app, ["restore", *words], catch_exceptions=False)
        assert ran.exit_code == 0, ran.output
        return ran.stdout

    first, before = filled.between[ALIAS.name], versions(three)
    planned = plan(three.settings, three.stores, Asked(ALIAS.name, first))
    told = json.loads(said(ALIAS.name, "--to", str(first), "--dry-run", "--json"))
    assert (told["inserted"], told["updated"], told["deleted"]) == (1, 2, 1)
    assert {c["table"]: (c["from_version"], c["to_version"]) for c in told["changes"]} == {
        change.table.name: (change.from_version, change.to_version) for change in planned.changes
    }
    assert versions(three) == before, "a dry run changed something"
    with pytest.raises(Crash):
        restoring(three, crash_at("restore.data:after")).run(Asked(ALIAS.name, first, by="ann@here"))
    finished = said("--finish")
    assert finished.startswith("restore-tables batch 0: ")
    assert "tables at the end of ingest-engagements batch 0, checksums equal; 4 changes announced, 3 jobs" in finished
    assert said("--finish") == "Nothing to restore.\n"
    done = versions(three)
    # The first one may have ended without anybody who saw it.
    again = said(ALIAS.name, "--to", str(first), "--reason", "once more", "--yes")
    assert again == f"Nothing to restore: {ALIAS.name} is there already.\n"
    assert versions(three) == done
    assert_as_of(three, FIRST)


WAIT_S = 300


@pytest.mark.slow
@pytest.mark.parametrize("point", ["restore.data:before", "restore.alias:before", "audit.append:before"])
def test_a_restore_that_slept_changes_nothing_after_its_successor(own: World, filled: Filled, point: str) -> None:
    reached, go = threading.Event(), threading.Event()
    ended: list[BaseException] = []

    def sleep(passed: str) -> None:
        if passed == point:
            reached.set()
            assert go.wait(WAIT_S), "nobody woke it"

    def run() -> None:
        try:
            restoring(own, sleep).run(Asked(ALIAS.name, filled.between[ALIAS.name], by="ann@here"))
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert reached.wait(WAIT_S), f"it never reached {point}: {ended}"
        with writing(own.stores.leases.engine, "test") as connection:
            connection.execute(LEASE.update().values(expires_ts=datetime(2020, 1, 1, tzinfo=UTC)))
        report = restoring(own).run(None)
        assert report is not None
        assert report.replayed
        for job in JOBS:
            own.run(name=job)
        after = versions(own)
    finally:
        go.set()
        thread.join(WAIT_S)
    assert not thread.is_alive()
    assert [type(error) for error in ended] == [LeaseLost]
    assert versions(own) == after
