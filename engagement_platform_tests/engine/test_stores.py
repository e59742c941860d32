"""Checkpoints and batch metadata on both databases, against a model small enough to believe."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sqlalchemy import Engine, inspect, text
from sqlalchemy.exc import IntegrityError

from engagement_platform.engine.database import (
    SCHEMA_VERSION,
    StoresOfAnotherVersion,
    StoresUnavailable,
    open_engine,
    reading,
    writing,
)
from engagement_platform.engine.lease import Fence, LeaseLost, LeaseStore
from engagement_platform.engine.model import BatchRecord, JobState, Manifest
from engagement_platform.engine.schema import METADATA
from engagement_platform.engine.stores import BatchMetadataStore, CheckpointStore, StaleBatch
from engagement_platform.errors import PlatformError
from engagement_platform_tests.engine.conftest import FakeClock

JOB = "ingest-engagements"
INGESTED = datetime(2026, 3, 1, 12, 0, 0, 7, tzinfo=UTC)


def token() -> str:
    """The end of every application id here."""
    return "t"


def manifest(batch_id: int = 0, *, generation: int = 1, until: int = 10) -> Manifest:
    return Manifest(
        job=JOB,
        app_id=f"{JOB}@{generation}.t",
        batch_id=batch_id,
        start={"0": batch_id * 10, "1": 0},
        end={"0": batch_id * 10 + until, "1": 2**40},
        ingestion_ts=INGESTED + timedelta(hours=8 * batch_id),
        table_versions={"engagement/data": batch_id},
    )


def run(store: CheckpointStore, batch: Manifest) -> None:
    store.begin(batch)
    store.succeed(batch, {"rows_in": 10}, {}, batch.ingestion_ts + timedelta(seconds=3))


def test_the_manifest_comes_back_as_it_was_written_also_after_a_restart(store_url: str, clock: FakeClock) -> None:
    first = open_engine(store_url)
    CheckpointStore(first, token=token, clock=clock).begin(manifest())
    first.dispose()
    again = open_engine(store_url)
    assert CheckpointStore(again, token=token).latest(JOB) == BatchRecord(manifest(), JobState.RUNNING, clock.now)
    again.dispose()


def test_a_batch_that_succeeded_shows_counts_and_details_and_keeps_what_was_said_of_its_source(
    engine: Engine, clock: FakeClock
) -> None:
    store = CheckpointStore(engine, token=token, clock=clock)
    batch = store.begin(replace(manifest(), source={"topic": "engagements"}))
    finished = clock.now + timedelta(seconds=5, microseconds=1)
    store.succeed(batch, {"rows_in": 3, "landed": 3}, {"freshness": {"p95": 1.5}, "name": "Zoë"}, finished)
    [record] = store.history(JOB)
    assert (record.manifest, record.state, record.attempts) == (batch, JobState.SUCCEEDED, 1)
    assert (record.started_ts, record.finished_ts) == (clock.now, finished)
    assert record.counts == {"rows_in": 3, "landed": 3}
    assert record.details == {"freshness": {"p95": 1.5}, "name": "Zoë"}
    assert record.manifest.source == {"topic": "engagements"}
    latest = store.latest(JOB)
    assert latest is not None
    assert (latest.state, latest.counts, latest.updated_ts) == (JobState.SUCCEEDED, record.counts, finished)


def test_an_unfinished_batch_is_begun_again_only_with_an_identical_manifest(engine: Engine) -> None:
    store = CheckpointStore(engine, token=token)
    store.begin(manifest())
    store.fail(manifest(), "the broker went away \x00 \ud800")
    failed = store.latest(JOB)
    assert failed is not None
    assert (failed.state, failed.reason) == (JobState.FAILED, r"the broker went away \x00 \ud800")
    other = [
        manifest(until=11),
        replace(manifest(), ingestion_ts=INGESTED + timedelta(microseconds=1)),
        replace(manifest(), table_versions={"engagement/data": 1}),
        manifest(1),
    ]
    for batch in other:
        with pytest.raises(StaleBatch, match="Nothing was written"):
            store.begin(batch)
    assert store.latest(JOB) == failed
    store.begin(manifest())
    [record] = store.history(JOB)
    assert (record.state, record.attempts, record.reason, record.finished_ts) == (JobState.RUNNING, 2, None, None)


@pytest.mark.parametrize("batch_id", [0, 1, 3])
def test_after_a_batch_only_the_next_one_may_begin(engine: Engine, batch_id: int) -> None:
    store = CheckpointStore(engine, token=token)
    run(store, manifest(0))
    run(store, manifest(1))
    with pytest.raises(StaleBatch):
        store.begin(manifest(batch_id))
    store.begin(manifest(2))


def test_a_reset_forgets_the_checkpoint_takes_a_new_application_id_and_keeps_the_history(engine: Engine) -> None:
    store, processes = CheckpointStore(engine, token=token), BatchMetadataStore(engine)
    run(store, manifest(0))
    store.begin(manifest(1))
    processes.record(manifest(1), "data", {}, INGESTED)
    assert store.reset(JOB) == "ingest-engagements@2.t"
    assert store.app_id(JOB) == "ingest-engagements@2.t"
    assert (store.latest(JOB), processes.get(JOB)) == (None, {})
    for refused in (manifest(0), manifest(1)):
        with pytest.raises(StaleBatch):
            store.begin(refused)
    with pytest.raises(StaleBatch):
        store.succeed(manifest(1), {}, {}, INGESTED)
    with pytest.raises(StaleBatch):
        processes.record(manifest(1), "notification", {}, INGESTED)
    run(store, manifest(0, generation=2))
    assert [(r.manifest.app_id, r.manifest.batch_id, r.state) for r in store.history(JOB)] == [
        ("ingest-engagements@2.t", 0, JobState.SUCCEEDED),
        ("ingest-engagements@1.t", 1, JobState.FAILED),
        ("ingest-engagements@1.t", 0, JobState.SUCCEEDED),
    ]
    assert store.app_id("another-job").startswith("another-job@1.")


def test_unfinished_are_the_running_and_failed_batches_of_all_jobs_but_not_those_a_reset_gave_up(
    engine: Engine, clock: FakeClock
) -> None:
    store = CheckpointStore(engine, token=token, clock=clock)
    of = {job: replace(manifest(), job=job, app_id=f"{job}@1.t") for job in ("done", "failed", "given-up", "running")}
    for batch in of.values():
        store.begin(batch)
    store.fail(of["failed"], "the broker went away")
    run_after = replace(manifest(1), job="done", app_id="done@1.t")
    store.succeed(of["done"], {"rows_in": 10})
    store.reset("given-up")
    assert store.unfinished() == [
        BatchRecord(of["failed"], JobState.FAILED, clock.now, clock.now, reason="the broker went away"),
        BatchRecord(of["running"], JobState.RUNNING, clock.now),
    ]
    store.begin(run_after)
    store.succeed(of["running"], {})
    assert [batch.manifest for batch in store.unfinished()] == [run_after, of["failed"]]


def test_history_is_newest_first_past_ten_generations_and_can_be_cut(engine: Engine) -> None:
    store = CheckpointStore(engine, token=token)
    for generation in range(1, 12):
        store.begin(manifest(0, generation=generation))
        store.reset(JOB)
    generations = [r.manifest.app_id for r in store.history(JOB, limit=3)]
    assert generations == [f"{JOB}@11.t", f"{JOB}@10.t", f"{JOB}@9.t"]


def test_batches_are_found_by_the_utc_date_of_their_ingestion(engine: Engine) -> None:
    store = CheckpointStore(engine, token=token)
    east = timezone(timedelta(hours=14))
    first = replace(manifest(0), ingestion_ts=datetime(2026, 3, 2, 1, 0, tzinfo=east))
    run(store, first)
    run(store, manifest(1))
    run(store, manifest(2))
    days = [date(2026, 3, day) for day in (1, 2, 3)]
    assert [[r.manifest.batch_id for r in store.history(JOB, ingestion_date=day)] for day in days] == [[1, 0], [2], []]
    assert store.history(JOB, ingestion_date=date(2026, 3, 1))[-1].manifest == first


def test_a_process_goes_batch_by_batch_and_may_repeat_its_last(engine: Engine, clock: FakeClock) -> None:
    processes = BatchMetadataStore(engine)
    processes.record(manifest(4), "data", {"landed": 1}, clock.now)
    processes.record(manifest(4), "data", {"landed": 2}, clock.now)
    processes.record(manifest(5), "data", {"landed": 3}, clock.now)
    processes.record(manifest(5), "notification", {}, clock.now)
    for refused in (manifest(4), manifest(7)):
        with pytest.raises(StaleBatch, match="process data is at batch 5"):
            processes.record(refused, "data", {}, clock.now)
    state = processes.get(JOB)
    assert sorted(state) == ["data", "notification"]
    assert (state["data"].batch_id, state["data"].counts, state["data"].modified_ts) == (5, {"landed": 3}, clock.now)


def test_a_writer_whose_lease_went_to_somebody_else_writes_nothing(engine: Engine, clock: FakeClock) -> None:
    store, processes = CheckpointStore(engine, token=token, clock=clock), BatchMetadataStore(engine)
    leases = LeaseStore(engine, ttl=timedelta(seconds=60), clock=clock, sleep=clock.sleep)
    old = leases.acquire("job/x", purpose="first")
    store.begin(manifest(), fences=[old.fence])
    clock.advance(timedelta(seconds=61))
    new = leases.acquire("job/x", purpose="second")
    before = store.latest(JOB)
    for write in (
        lambda: store.begin(manifest(), fences=[old.fence]),
        lambda: store.succeed(manifest(), {}, {}, clock.now, fences=[new.fence, old.fence]),
        lambda: store.fail(manifest(), "no", fences=[old.fence]),
        lambda: processes.record(manifest(), "data", {}, clock.now, fences=[old.fence]),
        lambda: store.reset(JOB, fences=[old.fence]),
        lambda: store.fail(manifest(), "no", fences=[Fence("never-heard-of", 1)]),
    ):
        with pytest.raises(LeaseLost):
            write()
    assert (store.latest(JOB), processes.get(JOB)) == (before, {})
    store.succeed(manifest(), {}, {}, clock.now, fences=[new.fence])
    new.release()
    old.release()


def test_of_two_runs_that_begin_different_batches_at_once_one_is_refused(engine: Engine) -> None:
    store, barrier = CheckpointStore(engine, token=token), threading.Barrier(2)

    def begin(until: int) -> bool:
        barrier.wait(timeout=30)
        try:
            store.begin(manifest(until=until))
        except StaleBatch:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        begun = dict(zip((10, 11), pool.map(begin, (10, 11)), strict=True))
    assert sorted(begun.values()) == [False, True]
    latest = store.latest(JOB)
    assert latest is not None
    assert begun[latest.manifest.end["0"]]


def test_processes_that_start_together_agree_on_one_schema(store_url: str) -> None:
    code = "import sys; from engagement_platform.engine.database import open_engine; open_engine(sys.argv[1])"
    started = [
        subprocess.Popen([sys.executable, "-c", code, store_url], stderr=subprocess.PIPE, text=True) for _ in range(4)
    ]
    for process in started:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    engine = open_engine(store_url)
    assert set(inspect(engine).get_table_names()) == set(METADATA.tables)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT version FROM schema_version")).scalars().all() == [SCHEMA_VERSION]
    engine.dispose()


def test_stores_of_another_edition_are_left_alone(engine: Engine, store_url: str) -> None:
    for version in (99, SCHEMA_VERSION - 1):
        with engine.begin() as connection:
            connection.execute(text("UPDATE schema_version SET version = :version"), {"version": version})
        with pytest.raises(StoresOfAnotherVersion, match=f"schema version {version}.* Start anew"):
            open_engine(store_url)


def test_sqlite_waits_for_the_disk_and_lets_readers_pass_a_writer(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path / 'stores.db'}")
    # As it is opened: tests have their transactions begin with another word about the disk.
    with closing(engine.raw_connection()) as opened:
        said = {name: opened.cursor().execute(f"PRAGMA {name}").fetchone() for name in ("journal_mode", "synchronous")}
    assert said == {"journal_mode": ("wal",), "synchronous": (2,)}


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg2://someone:s3cret@127.0.0.1:1/none",
        "mysql://u:s3cret@h/d",
        "postgresql+pg8000://u:s3cret@h/d",
        "nonsense s3cret",
        "sqlite:////proc/no/s.db",
    ],
)
def test_stores_that_cannot_be_opened_are_named_without_the_password(url: str) -> None:
    with pytest.raises(PlatformError) as caught:
        open_engine(url)
    assert "s3cret" not in str(caught.value)
    assert "ENGAGEMENT_PLATFORM_STORES__URL" in str(caught.value)
    assert isinstance(caught.value, StoresUnavailable) == url.startswith(("postgresql+psycopg2", "sqlite"))


def test_a_time_without_a_zone_is_refused(engine: Engine) -> None:
    with pytest.raises(ValueError, match="needs a zone"):
        CheckpointStore(engine, token=token).begin(replace(manifest(), ingestion_ts=INGESTED.replace(tzinfo=None)))


class CheckpointTransitions(RuleBasedStateMachine):
    """Any sequence of calls leaves what a dictionary and four ifs leave."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.engine = open_engine(f"sqlite:///{self.folder.name}/stores.db")
        self.store = CheckpointStore(self.engine, token=token)
        self.store.app_id(JOB)
        self.generation = 1
        self.last: tuple[Manifest, JobState] | None = None
        self.finished: list[tuple[Manifest, JobState]] = []

    @rule(step=st.integers(-1, 2), generation=st.integers(-1, 1), until=st.sampled_from([10, 10, 11]))
    def begin(self, step: int, generation: int, until: int) -> None:
        at = self.last[0].batch_id if self.last else -1
        batch = manifest(max(0, at + step), generation=max(1, self.generation + generation), until=until)
        if self.last is None:
            allowed = batch.batch_id == 0
        elif self.last[1] is JobState.SUCCEEDED:
            allowed = batch.batch_id == at + 1
        else:
            allowed = batch == self.last[0]
        if allowed and batch.app_id == f"{JOB}@{self.generation}.t":
            self.store.begin(batch)
            self.last = (batch, JobState.RUNNING)
        else:
            with pytest.raises(StaleBatch):
                self.store.begin(batch)

    @precondition(lambda self: self.last is not None)
    @rule()
    def succeed(self) -> None:
        assert self.last is not None
        batch, state = self.last
        if state is JobState.RUNNING:
            self.store.succeed(batch, {"rows_in": 1}, {}, INGESTED)
            self.last = (batch, JobState.SUCCEEDED)
        else:
            with pytest.raises(StaleBatch):
                self.store.succeed(batch, {}, {}, INGESTED)

    @precondition(lambda self: self.last is not None)
    @rule()
    def fail(self) -> None:
        assert self.last is not None
        batch, state = self.last
        if state is JobState.SUCCEEDED:
            with pytest.raises(StaleBatch):
                self.store.fail(batch, "boom")
        else:
            self.store.fail(batch, "boom")
            self.last = (batch, JobState.FAILED)

    @rule()
    def reset(self) -> None:
        self.generation += 1
        self.last = None
        assert self.store.reset(JOB) == f"{JOB}@{self.generation}.t"

    @invariant()
    def the_store_holds_what_the_model_holds(self) -> None:
        latest = self.store.latest(JOB)
        assert (None if latest is None else (latest.manifest, latest.state)) == self.last
        assert self.store.unfinished() == ([] if latest is None or latest.state is JobState.SUCCEEDED else [latest])
        ids = [
            r.manifest.batch_id for r in self.store.history(JOB) if r.manifest.app_id == f"{JOB}@{self.generation}.t"
        ]
        assert ids == (list(range(self.last[0].batch_id, -1, -1)) if self.last else [])

    def teardown(self) -> None:
        self.engine.dispose()
        self.folder.cleanup()


TestCheckpointTransitions = CheckpointTransitions.TestCase
TestCheckpointTransitions.settings = settings(
    max_examples=15, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_two_stores_never_give_the_same_application_id(engine: Engine, tmp_path: Path) -> None:
    """Delta would take the batches of new stores for those it knows from the lost ones, and skip them."""
    other = open_engine(f"sqlite:///{tmp_path / 'other.db'}")
    assert CheckpointStore(engine).app_id(JOB) != CheckpointStore(other).app_id(JOB)
    assert CheckpointStore(engine).app_id(JOB) == CheckpointStore(engine).app_id(JOB)


def test_a_damaged_file_is_a_database_that_is_not_available_and_a_fault_of_ours_is_not(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path / 'stores.db'}")
    with writing(engine) as connection:
        connection.execute(text("CREATE TABLE once (id INTEGER PRIMARY KEY)"))
    with pytest.raises(IntegrityError), writing(engine) as connection:
        connection.execute(text("INSERT INTO once VALUES (1), (1)"))
    engine.dispose()
    (tmp_path / "stores.db").write_bytes(b"no database at all" * 1000)
    for transaction in (reading, writing):
        with pytest.raises(StoresUnavailable, match="not a database"), transaction(engine):
            pass


def test_a_damaged_file_or_one_that_cannot_be_opened_is_so_from_the_start_too(tmp_path: Path) -> None:
    (tmp_path / "damaged.db").write_bytes(b"no database at all" * 1000)
    (tmp_path / "folder.db").mkdir()
    for name, why in (("damaged.db", "not a database"), ("folder.db", "unable to open")):
        with pytest.raises(StoresUnavailable, match=why):
            open_engine(f"sqlite:///{tmp_path / name}")
