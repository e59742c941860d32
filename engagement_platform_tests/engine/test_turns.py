"""Jobs that write the same tables: nobody begins a batch while another's is half done, and each gets its turn."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pyspark.errors import PySparkRuntimeError
from sqlalchemy import Engine, func, select

from engagement_platform.engine.database import open_engine, writing
from engagement_platform.engine.drain import DrainPolicy, drain, pause_s
from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.job import BatchFailed, BatchReport, Callbacks, MicroBatchJob, Step, Stores
from engagement_platform.engine.lease import LeaseLost, LeaseStore
from engagement_platform.engine.model import BatchRecord, Counts, JobState, Limits, Manifest, NoIdentity, Offsets
from engagement_platform.engine.schema import LEASE, LEASE_WAITER
from engagement_platform.engine.stores import BatchMetadataStore, CheckpointStore
from engagement_platform.engine.unfinished_batches import OthersBatchUnfinished, closed, how_to_finish
from engagement_platform.errors import PlatformError

INGEST, APPLY, REQUESTS = "ingest-engagements", "apply-mutations", "ingest-mutation-requests"
DATA, MAPPING, ALIAS, QUARANTINE = "engagement/data", "engagement/mapping", "engagement/alias", "engagement/quarantine"
AT_ONCE = DrainPolicy(idle_timeout=timedelta(0), max_duration=timedelta(minutes=5))


class Killed(BaseException):
    """Ends a batch as a kill does: nothing is told to the stores, the batch stays RUNNING."""


@dataclass
class Tape(NoIdentity):
    """A source of `length` batches of one record; as a re-read of recorded ranges, it gives each of them only once."""

    length: int = 1
    given: int = 0

    def plan(self, start: Offsets | None, limits: Limits, mean_bytes: float | None) -> tuple[Offsets, Offsets] | None:
        if self.given == self.length:
            return None
        self.given += 1
        return {"0": self.given - 1}, {"0": self.given}

    def check(self, start: Offsets, end: Offsets) -> None:
        """Nothing expires here."""

    def size(self, start: Offsets, end: Offsets) -> int:
        return end["0"] - start["0"]


def write(log: list[str], meanwhile: Callable[[], None] = lambda: None) -> Step[Manifest]:
    """Notes which batch it was run for."""

    def note(work: Manifest, commit: Committer) -> Counts:
        with commit("append"):
            log.append(str(work))
            meanwhile()
        return {"rows_in": 1, "landed": 1}

    return Step("data", note, ("append",))


@dataclass
class World:
    engine: Engine
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stores = Stores(CheckpointStore(self.engine), BatchMetadataStore(self.engine), LeaseStore(self.engine))

    def job(self, name: str, *leased: str, batches: int = 1, pins: tuple[str, ...] = ()) -> MicroBatchJob[Manifest]:
        """Waits for nobody; says so with `replace(job, lease_wait=…)` when it should."""
        return MicroBatchJob(
            name=name,
            source=Tape(batches),
            prepare=lambda manifest: manifest,
            processes=(write(self.log),),
            stores=self.stores,
            limits=Limits(1, 1_000),
            pin=lambda: dict.fromkeys((*leased, *pins), 7),
            leased=leased,
            lease_wait=timedelta(0),
        )

    def stop_in_the_middle(self, job: MicroBatchJob[Manifest], state: JobState) -> None:
        """Leave a batch of the job RUNNING or FAILED, its leases free."""
        error: BaseException = Killed() if state is JobState.RUNNING else OSError("the disk went away\nand more")

        def stop(point: str) -> None:
            if point == "data.append:before":
                raise error

        with pytest.raises(type(error)):
            list(drain(replace(job, callbacks=Callbacks(observe=stop)), AT_ONCE))
        last = self.stores.checkpoints.latest(job.name)
        assert last is not None
        assert last.state is state


@pytest.fixture
def world(sqlite_engine: Engine) -> World:
    return World(sqlite_engine)


def batches(reports: Iterator[BatchReport]) -> list[str]:
    return [str(report.manifest) for report in reports]


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.FAILED])
def test_no_batch_begins_while_another_job_is_in_the_middle_of_one_on_its_tables(world: World, state: JobState) -> None:
    world.stop_in_the_middle(world.job(INGEST, DATA, MAPPING), state)
    apply = world.job(APPLY, ALIAS, DATA)
    with pytest.raises(OthersBatchUnfinished) as refused:
        list(drain(apply, AT_ONCE))
    told = str(refused.value)
    assert f"{APPLY} begins no new batch" in told
    assert f"ingest-engagements batch 0 on engagement/data ({state} since " in told
    assert ("the disk went away)" in told) == (state is JobState.FAILED)
    assert "`engagement-platform run ingest-engagements --until-idle`" in told
    assert "`engagement-platform reset ingest-engagements --abandon`" in told
    assert [batch.manifest.job for batch in refused.value.batches] == [INGEST]
    assert (world.log, world.stores.checkpoints.latest(APPLY), world.stores.leases.holders()) == ([], None, [])


@pytest.mark.parametrize(("taken", "says"), [(True, LeaseLost), (False, BatchFailed)])
def test_what_spark_says_once_another_run_has_taken_over_is_that_and_otherwise_its_own(
    world: World, taken: bool, says: type[PlatformError]
) -> None:
    def lose_the_session(point: str) -> None:
        if point == "data.append:before":
            if taken:
                with writing(world.engine, "test") as connection:
                    connection.execute(LEASE.update().values(fencing=LEASE.c.fencing + 1, owner="another run"))
            raise PySparkRuntimeError("[INVALID_HANDLE.SESSION_CLOSED] the session is gone")

    with pytest.raises(says):
        list(drain(replace(world.job(INGEST, DATA), callbacks=Callbacks(observe=lose_the_session)), AT_ONCE))


@pytest.mark.parametrize("answers", [(True,), (True, False), (False,)])
def test_a_batch_that_spark_fails_is_tried_again_as_often_as_its_source_reads_it_otherwise(
    world: World, answers: tuple[bool, ...]
) -> None:
    asked, failures = list(answers), [*answers]

    def fail(point: str) -> None:
        if point == "data.append:before" and failures:
            failures.pop()
            raise PySparkRuntimeError("a timestamp overflows")

    class Tape(NoIdentity):
        """One batch, of which it can say so many times that it reads it otherwise."""

        def plan(
            self, start: Offsets | None, limits: Limits, mean_bytes: float | None
        ) -> tuple[Offsets, Offsets] | None:
            return None if start else ({"0": 0}, {"0": 1})

        def read_otherwise(self, start: Offsets, end: Offsets) -> bool:
            assert (start, end) == ({"0": 0}, {"0": 1})
            return asked.pop(0)

    job = replace(world.job(INGEST, DATA), source=Tape(), callbacks=Callbacks(observe=fail))
    if all(answers):
        (report,) = drain(job, AT_ONCE)
        assert report.replayed
    else:
        with pytest.raises(BatchFailed, match="overflows"):
            list(drain(job, AT_ONCE))
    last = world.stores.checkpoints.latest(INGEST)
    assert last is not None
    assert (last.state is JobState.SUCCEEDED) == all(answers)
    assert last.attempts == 1 + sum(answers)
    assert asked == []


def test_who_waits_holds_no_table_and_goes_on_once_the_other_has_finished(world: World) -> None:
    world.stop_in_the_middle(world.job(INGEST, DATA, MAPPING), JobState.FAILED)
    told: list[str] = []

    def resume(batch: str) -> None:
        told.append(batch)
        assert [holder.name for holder in world.stores.leases.holders()] == [f"job/{APPLY}"]
        list(drain(world.job(INGEST, DATA, MAPPING, batches=0), AT_ONCE))

    apply = replace(
        world.job(APPLY, DATA, MAPPING, batches=2),
        lease_wait=timedelta(seconds=30),
        callbacks=Callbacks(on_blocked=resume),
    )
    assert batches(drain(apply, AT_ONCE)) == ["apply-mutations batch 0", "apply-mutations batch 1"]
    assert world.log == ["ingest-engagements batch 0", "apply-mutations batch 0", "apply-mutations batch 1"]
    assert len(told) == 1
    assert "ingest-engagements batch 0 on engagement/data, engagement/mapping (FAILED since " in told[0]
    assert "the disk went away" in told[0]


def test_a_range_that_the_source_gives_only_once_is_not_lost_in_the_wait(world: World) -> None:
    world.stop_in_the_middle(world.job(INGEST, DATA), JobState.RUNNING)

    def resume(_batch: str) -> None:
        list(drain(world.job(INGEST, DATA, batches=0), AT_ONCE))

    apply = replace(
        world.job(APPLY, DATA, batches=2), lease_wait=timedelta(seconds=30), callbacks=Callbacks(on_blocked=resume)
    )
    assert [report.manifest.start for report in drain(apply, AT_ONCE)] == [{"0": 0}, {"0": 1}]


def test_a_batch_that_was_given_up_keeps_nobody_waiting(world: World) -> None:
    world.stop_in_the_middle(world.job(INGEST, DATA), JobState.FAILED)

    def give_up(_batch: str) -> None:
        with world.stores.leases.acquire(f"job/{INGEST}", purpose="reset") as lease:
            world.stores.checkpoints.reset(INGEST, fences=[lease.fence])

    apply = replace(world.job(APPLY, DATA), lease_wait=timedelta(seconds=30), callbacks=Callbacks(on_blocked=give_up))
    assert batches(drain(apply, AT_ONCE)) == ["apply-mutations batch 0"]


@pytest.mark.parametrize(
    ("interval", "took", "pause"),
    [
        pytest.param(10.0, 3.0, 7.0, id="the rest of the interval"),
        pytest.param(10.0, 5.0, 5.0, id="half of the interval is work"),
        pytest.param(10.0, 36.0, 10.0, id="a long batch rests as long as the interval"),
        pytest.param(0.0, 12.0, 0.0, id="without an interval at once"),
    ],
)
def test_a_batch_that_was_not_full_is_followed_by_a_pause(interval: float, took: float, pause: float) -> None:
    assert pause_s(interval, took) == pause


def test_a_drain_ends_after_the_batch_in_which_somebody_began_to_wait(world: World) -> None:
    waits = iter([False, True])
    policy = replace(AT_ONCE, idle_timeout=timedelta(minutes=5), gives_way=lambda: next(waits))
    assert batches(drain(world.job(INGEST, DATA, batches=3), policy)) == [f"{INGEST} batch {n}" for n in (0, 1)]


def test_a_run_whose_batches_take_all_that_waits_leaves_to_the_next_what_comes_meanwhile(world: World) -> None:
    once = replace(AT_ONCE, once=True)
    assert batches(drain(world.job(INGEST, DATA, batches=3), once)) == [f"{INGEST} batch 0"]
    assert batches(drain(world.job(INGEST, DATA, batches=3), once)) == [f"{INGEST} batch 1"]


def test_a_run_that_finishes_a_batch_of_another_one_makes_its_own_too(world: World) -> None:
    world.stop_in_the_middle(world.job(INGEST, DATA), JobState.RUNNING)
    finished = drain(world.job(INGEST, DATA, batches=3), replace(AT_ONCE, once=True))
    assert batches(finished) == [f"{INGEST} batch {n}" for n in (0, 1)]


def test_a_drain_that_has_nothing_to_do_ends_when_somebody_waits(world: World) -> None:
    waits = iter([False, True])
    policy = DrainPolicy(idle_timeout=timedelta(minutes=5), poll=timedelta(0), gives_way=lambda: next(waits))
    assert batches(drain(world.job(INGEST, DATA, batches=0), policy)) == []


def test_the_wait_for_another_batch_ends_and_does_not_spin(world: World) -> None:
    world.stop_in_the_middle(world.job(INGEST, DATA), JobState.RUNNING)
    looks: list[float] = []

    class Counting(CheckpointStore):
        def unfinished(self) -> list[BatchRecord]:
            looks.append(time.monotonic())
            return super().unfinished()

    told: list[str] = []
    apply = replace(
        world.job(APPLY, DATA),
        stores=replace(world.stores, checkpoints=Counting(world.engine)),
        lease_wait=timedelta(seconds=1.2),
        callbacks=Callbacks(on_blocked=told.append),
    )
    began = time.monotonic()
    with pytest.raises(OthersBatchUnfinished):
        list(drain(apply, replace(AT_ONCE, min_batch_interval=timedelta(seconds=5))))
    assert time.monotonic() - began >= 1.2
    assert len(looks) <= 4, "one under the leases, then one every half second and one at the end"
    assert len(told) == 1


def test_two_jobs_that_both_stopped_in_the_middle_finish_their_own(world: World) -> None:
    """Neither may wait for the other: an unfinished batch is resumed whatever others have begun."""
    jobs = [world.job(INGEST, DATA), world.job(APPLY, DATA)]
    aside = replace(jobs[1], leased=())
    world.stop_in_the_middle(jobs[0], JobState.FAILED)
    world.stop_in_the_middle(aside, JobState.RUNNING)
    for job in jobs:
        [report] = drain(job, AT_ONCE)
        assert report.replayed
    assert world.stores.checkpoints.unfinished() == []


@pytest.mark.parametrize(
    ("leased", "pins"), [((ALIAS,), ()), ((ALIAS,), (DATA,)), ((), (DATA, MAPPING))], ids=["other", "reads", "appends"]
)
def test_who_writes_other_tables_waits_for_nobody(world: World, leased: tuple[str, ...], pins: tuple[str, ...]) -> None:
    world.stop_in_the_middle(world.job(INGEST, DATA, MAPPING, pins=(QUARANTINE,)), JobState.FAILED)
    assert batches(drain(world.job(REQUESTS, *leased, pins=pins), AT_ONCE)) == ["ingest-mutation-requests batch 0"]


def test_a_batch_that_is_in_the_way_is_told_with_each_of_its_tables_once(world: World) -> None:
    leased = (DATA, f"{DATA}, landing", MAPPING)
    world.stop_in_the_middle(world.job(INGEST, *leased), JobState.FAILED)
    told = OthersBatchUnfinished(APPLY, leased, world.stores.checkpoints.unfinished()).waits_for
    assert f" on {DATA}, {MAPPING} (" in told


def test_a_job_with_nothing_to_do_waits_for_nobody(world: World) -> None:
    world.stop_in_the_middle(world.job(INGEST, DATA), JobState.FAILED)
    assert batches(drain(world.job(APPLY, DATA, batches=0), AT_ONCE)) == []


@pytest.mark.parametrize("orders", [((DATA, MAPPING), (DATA, MAPPING)), ((DATA, MAPPING), (MAPPING, DATA))])
def test_two_jobs_that_drain_the_same_tables_take_turns(
    engine: Engine, orders: tuple[tuple[str, ...], tuple[str, ...]]
) -> None:
    """Each keeps its batch open until the other stands in line, so whoever comes back at once has to let it go first.

    The second case names the tables in opposite orders, on which jobs that took them so would block each other.
    """
    world, done = World(engine), threading.Event()

    def until_the_other_waits() -> None:
        ends = time.monotonic() + 30
        while not done.is_set():
            with engine.connect() as connection:
                if connection.execute(select(func.count()).select_from(LEASE_WAITER)).scalar_one():
                    return
            assert time.monotonic() < ends, "the other job never stood in line"
            time.sleep(0.02)

    def run(name: str, tables: tuple[str, ...]) -> None:
        job = replace(
            world.job(name, *tables, batches=3),
            processes=(write(world.log, until_the_other_waits),),
            lease_wait=timedelta(seconds=20),
        )
        try:
            list(drain(job, AT_ONCE))
        finally:
            done.set()

    with ThreadPoolExecutor(2) as pool:
        for result in [pool.submit(run, INGEST, orders[0]), pool.submit(run, APPLY, orders[1])]:
            result.result(timeout=120)
    turns = [batch.split()[0] for batch in world.log]
    assert sorted(turns) == [APPLY] * 3 + [INGEST] * 3
    assert turns in ([INGEST, APPLY] * 3, [APPLY, INGEST] * 3)


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (INGEST, "`engagement-platform run ingest-engagements --until-idle`"),
        (APPLY, "`engagement-platform reset apply-mutations --abandon`"),
        ("reread-engagements", "launch reread-engagements again"),
        (
            "redrive-quarantine:engagements:too_late",
            "`engagement-platform run redrive-quarantine --reason too_late --until-idle`",
        ),
        ("redrive-quarantine:requests:a; b", "--reason 'a; b' --until-idle`"),
    ],
)
def test_whoever_has_to_finish_a_batch_is_told_how(job: str, said: str) -> None:
    assert said in how_to_finish(job)
    assert "--abandon`" in how_to_finish(job), "a batch whose source is gone could never be let go"


def test_whoever_only_appends_begins_nothing_while_a_batch_that_closed_its_table_is_half_done(world: World) -> None:
    erase = world.job("erase-subjects", QUARANTINE, pins=(closed(QUARANTINE),))
    world.stop_in_the_middle(erase, JobState.RUNNING)

    def append() -> MicroBatchJob[Manifest]:
        return replace(world.job(REQUESTS), enters=(QUARANTINE,))

    with pytest.raises(OthersBatchUnfinished, match=rf"on {QUARANTINE} .*engagement-platform erase --finish"):
        list(drain(append(), AT_ONCE))
    assert world.log == []
    assert batches(drain(erase, AT_ONCE)) == ["erase-subjects batch 0"]
    assert batches(drain(append(), AT_ONCE)) == [f"{REQUESTS} batch 0"]


def test_who_slept_past_the_lease_by_which_it_begins_begins_nothing(world: World) -> None:
    """Whoever took the lease meanwhile has looked for unfinished batches, and has not seen this one."""

    def taken(point: str) -> None:
        if point == "manifest:before":
            with world.engine.begin() as connection:
                mine = LEASE.c.name == f"table/{QUARANTINE}"
                connection.execute(LEASE.update().where(mine).values(fencing=LEASE.c.fencing + 1))

    append = replace(world.job(REQUESTS), enters=(QUARANTINE,), callbacks=Callbacks(observe=taken))
    with pytest.raises(LeaseLost):
        list(drain(append, AT_ONCE))
    assert (world.log, world.stores.checkpoints.latest(REQUESTS)) == ([], None)


TABLES_OF = {INGEST: (DATA, MAPPING), APPLY: (ALIAS, DATA), "rematerialize": (ALIAS,), REQUESTS: ()}


class Crashes(RuleBasedStateMachine):
    """Jobs that crash, come back and are reset in any order: on each table one batch at a time is half done."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.world = World(open_engine(f"sqlite:///{self.folder.name}/stores.db"))
        self.half_done: set[str] = set()

    @rule(
        name=st.sampled_from(sorted(TABLES_OF)),
        stop_at=st.sampled_from([None, "manifest:before", "manifest:after", "data.append:after", "data:recorded"]),
        error=st.sampled_from([Killed(), OSError("gone")]),
    )
    def run(self, name: str, stop_at: str | None, error: BaseException) -> None:
        def observe(point: str) -> None:
            if point == stop_at:
                raise error

        job = replace(self.world.job(name, *TABLES_OF[name]), callbacks=Callbacks(observe=observe))
        others = {o for o in self.half_done - {name} if set(TABLES_OF[o]) & set(TABLES_OF[name])}
        if others and name not in self.half_done:
            with pytest.raises(OthersBatchUnfinished) as refused:
                list(drain(job, AT_ONCE))
            assert {batch.manifest.job for batch in refused.value.batches} == others
            return
        try:
            with job.exclusive() as lease:
                report = job.run_batch(lease)
        except (Killed, OSError):
            self.half_done |= set() if stop_at == "manifest:before" else {name}
        else:
            assert report is not None
            assert report.replayed == (name in self.half_done)
            self.half_done -= {name}

    @rule(name=st.sampled_from(sorted(TABLES_OF)))
    def give_up(self, name: str) -> None:
        self.world.stores.checkpoints.reset(name)
        self.half_done -= {name}

    @invariant()
    def one_batch_at_most_is_half_done_on_a_table(self) -> None:
        unfinished = [batch.manifest for batch in self.world.stores.checkpoints.unfinished()]
        assert {manifest.job for manifest in unfinished} == self.half_done
        tables = [table for manifest in unfinished for table in manifest.table_versions]
        assert len(tables) == len(set(tables))

    def teardown(self) -> None:
        self.world.engine.dispose()
        self.folder.cleanup()


TestCrashes = Crashes.TestCase
TestCrashes.settings = settings(
    max_examples=15, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
