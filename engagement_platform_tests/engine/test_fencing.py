"""A run that lost its leases writes nothing more, and what it may still have under way is closed by its successor."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine

from engagement_platform.engine.database import open_engine, writing
from engagement_platform.engine.drain import drain
from engagement_platform.engine.fencing import Committer, TableTransaction, lease_transaction
from engagement_platform.engine.job import Callbacks, MicroBatchJob, Step
from engagement_platform.engine.lease import Fence, LeaseLost, LeaseStore
from engagement_platform.engine.model import Counts, Manifest
from engagement_platform.engine.schema import LEASE
from engagement_platform_tests.engine.sleeping_run import AT_ONCE, JOB, TABLE, Closing, job, writes

SAY_S = 60


class Killed(BaseException):
    """Ends a run as a kill does."""


def forget_the_holders(engine: Engine) -> None:
    """As if every lease had been silent for its ttl."""
    with writing(engine, "test") as connection:
        connection.execute(LEASE.update().values(expires_ts=datetime(2020, 1, 1, tzinfo=UTC)))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'stores.db'}"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def lines(out: Path) -> list[str]:
    return [line.partition(" by ")[0] for line in out.read_text().splitlines()] if out.exists() else []


def closing(run: MicroBatchJob[Manifest]) -> list[str]:
    assert isinstance(run.fencing, Closing)
    return [f"{one.table} {re.sub(r'@1[.][0-9a-f]+', '', one.transaction.marker)}" for one in run.fencing.closed]


@contextmanager
def stopped_run(url: str, out: Path, point: str) -> Iterator[subprocess.Popen[str]]:
    """A run in its own process that has stopped at a point."""
    command = [sys.executable, "-m", "engagement_platform_tests.engine.sleeping_run", url, str(out), point]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        # Returns once it has stopped, or has ended too early.
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"the run ended before {point}"
        yield process
    finally:
        process.kill()
        process.wait(timeout=SAY_S)


@pytest.mark.parametrize(
    ("point", "written"),
    [
        ("data.first:before", []),
        ("data.first:after", ["data/first#0"]),
        ("data.second:before", ["data/first#0"]),
        ("data.second:after", ["data/first#0", "data/second#0"]),
    ],
)
def test_a_stopped_process_that_goes_on_after_its_successor_writes_nothing(
    url: str, out: Path, point: str, written: list[str]
) -> None:
    with stopped_run(url, out, point) as sleeper:
        assert lines(out) == written
        run = job(url, out)
        forget_the_holders(run.stores.leases.engine)
        (report,) = drain(run, AT_ONCE)
        assert report.replayed
        assert closing(run) == [f"{TABLE} ingest/data/{name}#0" for name in ("first", "second")]
        after = out.read_text()
        os.kill(sleeper.pid, signal.SIGCONT)
        assert "LeaseLost" in sleeper.communicate(timeout=SAY_S)[1]
        assert sleeper.returncode == 1
        assert out.read_text() == after
        assert lines(out) == [*written, "data/first#0", "data/second#0"]


def test_leases_are_checked_once_more_when_the_rows_are_ready(url: str, out: Path) -> None:
    run = job(url, out)

    def loses(_work: Manifest, commit: Committer) -> Counts:
        with commit("first") as txn:
            take_over(run.stores.leases, f"table/{TABLE}")
            txn.guard()
            out.write_text("written")
        return {}

    with pytest.raises(LeaseLost, match=f"table/{TABLE}"):
        list(drain(replace(run, processes=(Step("data", loses, ("first",)),)), AT_ONCE))
    assert not out.exists()


def take_over(leases: LeaseStore, name: str) -> Fence:
    forget_the_holders(leases.engine)
    return leases.acquire(name, purpose="somebody else").fence


def test_a_batch_that_nobody_began_before_closes_nothing(url: str, out: Path) -> None:
    run = job(url, out)
    assert len(list(drain(run, AT_ONCE))) == 1
    assert closing(run) == []


def test_the_successor_also_closes_commits_that_only_the_former_code_made(url: str, out: Path) -> None:
    """A version without a commit goes on with a batch that one with it began."""
    former = job(url, out)

    def die(point: str) -> None:
        if point == "data.second:before":
            raise Killed

    with pytest.raises(Killed):
        list(drain(replace(former, callbacks=Callbacks(observe=die)), AT_ONCE))
    run = replace(job(url, out), processes=(writes(out, "first"),), fencing=Closing(targets={"data/first": TABLE}))
    list(drain(run, AT_ONCE))
    assert closing(run) == [f"{TABLE} ingest/data/{name}#0" for name in ("first", "second")]


def assert_closed_from(silent: Fence, closed: Sequence[TableTransaction]) -> None:
    """Numbers are drawn in part, so what is closed is every number up to the one before the next holder's."""
    assert len(closed) == 1
    one = closed[0]
    assert (one.table, one.transaction.app_id) == (TABLE, lease_transaction(silent).app_id)
    assert one.transaction.version >= silent.number, "the silent holder's write could still land"


def test_what_a_silent_holder_writes_outside_of_batches_is_closed_before_the_next_batch(url: str, out: Path) -> None:
    run = job(url, out)
    silent = run.stores.leases.acquire(f"table/{TABLE}", purpose="migrate-layout")
    forget_the_holders(run.stores.leases.engine)
    list(drain(run, AT_ONCE))
    assert isinstance(run.fencing, Closing)
    assert_closed_from(silent.fence, run.fencing.closed)


def test_a_holder_that_released_its_lease_has_nothing_left_to_close(url: str, out: Path) -> None:
    run = job(url, out)
    with run.stores.leases.acquire(f"table/{TABLE}", purpose="migrate-layout"):
        pass
    list(drain(run, AT_ONCE))
    assert closing(run) == []


class Refuses(Closing):
    """Cannot reach the lake."""

    def close(self, transactions: Sequence[TableTransaction]) -> None:
        if transactions:
            raise OSError("no lake")


def test_who_fails_to_close_leaves_it_to_the_next(url: str, out: Path) -> None:
    run = job(url, out)
    silent = run.stores.leases.acquire(f"table/{TABLE}", purpose="migrate-layout")
    forget_the_holders(run.stores.leases.engine)
    fails = replace(run, fencing=Refuses())
    with pytest.raises(OSError, match="no lake"):
        list(drain(fails, AT_ONCE))
    assert lines(out) == []
    forget_the_holders(run.stores.leases.engine)
    again = job(url, out)
    list(drain(again, AT_ONCE))
    assert isinstance(again.fencing, Closing)
    assert_closed_from(silent.fence, again.fencing.closed)


def test_a_job_has_to_say_which_table_each_commit_writes(url: str, out: Path) -> None:
    with pytest.raises(ValueError, match=f"{JOB} does not say which table data/third writes"):
        replace(job(url, out), processes=(writes(out, "first", "third"),))


def test_a_lease_says_from_whom_it_was_taken(url: str) -> None:
    leases = LeaseStore(open_engine(url), ttl=timedelta(seconds=60))
    first = leases.acquire("x", purpose="a run")
    assert first.replaced is None
    forget_the_holders(leases.engine)
    second = leases.acquire("x", purpose="another")
    assert second.replaced is not None
    assert second.replaced.purpose == "a run"
    second.release()
    assert leases.acquire("x", purpose="a third").replaced is None
