"""Leases among real processes, and everything about time with a clock that the test moves."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine

from engagement_platform.engine.database import StoresUnavailable, open_engine
from engagement_platform.engine.lease import Holder, LeaseLost, LeaseStore, LeaseUnavailable
from engagement_platform.engine.owner import is_gone, this_process
from engagement_platform.engine.schema import LEASE, LEASE_WAITER
from engagement_platform_tests.engine.conftest import FakeClock

TTL = timedelta(seconds=60)
NAME = "table/engagement/data"

# Says what became of it, then keeps what it has until its input closes.
CONTENDER = """
import sys
from datetime import timedelta
from engagement_platform.engine.lease import LeaseStore, LeaseUnavailable
from engagement_platform.engine.database import open_engine
url, name, wait = sys.argv[1:]
store = LeaseStore(open_engine(url), ttl=timedelta(seconds=60))
print("ready", flush=True)
sys.stdin.readline()
try:
    lease = store.acquire(
        name, purpose="contend", wait=timedelta(seconds=float(wait)), on_wait=lambda h: print("waiting", flush=True)
    )
except LeaseUnavailable:
    print("refused", flush=True)
else:
    print("held", lease.fence.turn, flush=True)
    sys.stdin.readline()
    lease.release()
"""


class Contender:
    def __init__(self, url: str, wait: float = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CONTENDER, url, NAME, str(wait)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=30)


@pytest.fixture
def leases(engine: Engine, clock: FakeClock) -> LeaseStore:
    return LeaseStore(engine, ttl=TTL, clock=clock, sleep=clock.sleep)


def pretend_elsewhere(engine: Engine) -> None:
    """From now on the holder seems to be on another machine, where nobody here can see whether it lives."""
    with engine.begin() as connection:
        connection.execute(LEASE.update().values(place="elsewhere", owner="elsewhere:1:1"))


def test_one_holds_the_other_is_told_who_and_since_when(leases: LeaseStore, clock: FakeClock) -> None:
    since = clock.now
    with leases.acquire(NAME, purpose="ingest-engagements") as lease:
        lease.check()
        holder = Holder(NAME, str(this_process()), "ingest-engagements", since)
        assert leases.holders() == [holder]
        with pytest.raises(LeaseUnavailable, match=r"ingest-engagements.*since 2026-03-01 23:59:30") as caught:
            leases.acquire(NAME, purpose="other")
        assert (caught.value.holder, caught.value.waited) == (holder, timedelta(0))
        with leases.acquire("table/other", purpose="other"):
            pass
    assert leases.holders() == []
    with pytest.raises(LeaseLost, match="released"):
        lease.check()


def test_fencing_numbers_only_grow(leases: LeaseStore, clock: FakeClock) -> None:
    numbers = []
    for _ in range(3):
        with leases.acquire(NAME, purpose="p") as lease:
            numbers.append(lease.fence.turn)
    abandoned = leases.acquire(NAME, purpose="p")
    clock.advance(TTL)
    taken = leases.acquire(NAME, purpose="q")
    assert [*numbers, abandoned.fence.turn, taken.fence.turn] == [1, 2, 3, 4, 5]
    assert abandoned.fence.number < taken.fence.number
    abandoned.release()
    taken.check()
    taken.release()


def test_a_number_that_something_else_has_seen_is_left_behind_by_all_later_ones(leases: LeaseStore) -> None:
    with leases.acquire(NAME, purpose="p") as lease:
        seen = lease.fence.number + 2**40
    with leases.acquire(NAME, purpose="p", above=seen) as lease:
        above = lease.fence.number
    with leases.acquire(NAME, purpose="p", above=seen) as lease:
        assert seen < above < lease.fence.number
    with leases.acquire(NAME, purpose="p") as lease:
        assert lease.fence.number > above


def test_a_holder_from_before_a_restore_of_the_stores_does_not_find_its_number_again(
    engine: Engine, leases: LeaseStore
) -> None:
    """Stores from a backup, or new ones, count from an earlier turn; the same turn is another number."""
    before = leases.acquire(NAME, purpose="before")
    with engine.begin() as connection:
        connection.execute(LEASE.delete())
    with leases.acquire(NAME, purpose="after") as lease:
        assert lease.fence.turn == before.fence.turn
        with pytest.raises(LeaseLost, match="held by"):
            before.check()


def test_a_holder_without_heartbeat_is_replaced_and_finds_out(leases: LeaseStore, clock: FakeClock) -> None:
    old = leases.acquire(NAME, purpose="old")
    clock.advance(TTL - timedelta(microseconds=1))
    with pytest.raises(LeaseUnavailable):
        leases.acquire(NAME, purpose="new")
    clock.advance(timedelta(microseconds=1))
    old.check()  # nobody took it yet
    with leases.acquire(NAME, purpose="new"):
        for stale in (old.check, old.heartbeat):
            with pytest.raises(LeaseLost, match=r"went on to number 2, held by .*new"):
                stale()


def test_a_heartbeat_extends_the_lease(leases: LeaseStore, clock: FakeClock) -> None:
    with leases.acquire(NAME, purpose="p") as lease:
        for _ in range(5):
            clock.advance(TTL * 0.9)
            lease.heartbeat()
        with pytest.raises(LeaseUnavailable):
            leases.acquire(NAME, purpose="q")


def test_the_thread_keeps_the_lease_alive_by_itself(sqlite_engine: Engine) -> None:
    # A heartbeat every 0.7 s: a busy machine may hold the thread back for longer than shorter ones allow.
    short = LeaseStore(sqlite_engine, ttl=timedelta(seconds=2.1))
    with short.acquire(NAME, purpose="p"):
        pretend_elsewhere(sqlite_engine)
        with pytest.raises(LeaseUnavailable):
            short.acquire(NAME, purpose="q", wait=timedelta(seconds=3))


def test_waiting_ends_with_the_holder_and_says_once_whom_it_waits_for(
    engine: Engine, leases: LeaseStore, clock: FakeClock
) -> None:
    leases.acquire(NAME, purpose="gone without a word")
    pretend_elsewhere(engine)
    told: list[Holder] = []
    began = clock.now
    with leases.acquire(NAME, purpose="patient", wait=timedelta(seconds=90), on_wait=told.append) as lease:
        assert lease.fence.turn == 2
    assert [holder.purpose for holder in told] == ["gone without a word"]
    assert timedelta(seconds=60) <= clock.now - began < timedelta(seconds=61)


def test_a_wait_that_was_too_short_leaves_no_place_in_the_line(engine: Engine, leases: LeaseStore) -> None:
    with leases.acquire(NAME, purpose="p"):
        with pytest.raises(LeaseUnavailable, match="waited 5 s"):
            leases.acquire(NAME, purpose="q", wait=timedelta(seconds=5))
        with engine.connect() as connection:
            assert connection.execute(LEASE_WAITER.select()).all() == []


def test_the_one_who_came_first_is_served_first(engine: Engine, leases: LeaseStore, clock: FakeClock) -> None:
    first = leases.acquire(NAME, purpose="first")
    pushed_away: list[Holder] = []

    def meanwhile(seconds: float) -> None:
        clock.sleep(seconds)
        first.release()
        with pytest.raises(LeaseUnavailable) as caught:
            leases.acquire(NAME, purpose="third")
        pushed_away.append(caught.value.holder)

    second = LeaseStore(engine, ttl=TTL, clock=clock, sleep=meanwhile)
    with second.acquire(NAME, purpose="second", wait=timedelta(seconds=10)):
        [holder] = pushed_away
        assert (holder.purpose, holder.waiting) == ("second", True)


def test_a_waiter_who_died_far_away_holds_nobody_up_for_long(
    engine: Engine, leases: LeaseStore, clock: FakeClock
) -> None:
    far = {"name": NAME, "owner": "elsewhere:1:1", "place": "elsewhere", "purpose": "dead"}
    with engine.begin() as connection:
        connection.execute(LEASE_WAITER.insert().values(**far, since_ts=clock.now, heartbeat_ts=clock.now))
    with pytest.raises(LeaseUnavailable, match=r"elsewhere:1:1 \(dead\) waits for"):
        leases.acquire(NAME, purpose="p")
    clock.advance(TTL / 3)
    leases.acquire(NAME, purpose="p").release()


def test_a_waiter_who_was_struck_off_the_line_lines_up_again(
    engine: Engine, leases: LeaseStore, clock: FakeClock
) -> None:
    def struck_off(seconds: float) -> None:
        clock.sleep(seconds)
        with engine.begin() as connection:
            connection.execute(LEASE_WAITER.delete())

    with leases.acquire(NAME, purpose="p"), pytest.raises(LeaseUnavailable):
        LeaseStore(engine, ttl=TTL, clock=clock, sleep=struck_off).acquire(NAME, purpose="q", wait=timedelta(seconds=3))
    leases.acquire(NAME, purpose="r").release()


def test_a_lost_database_is_forgiven_until_the_last_heartbeat_is_too_old(tmp_path: Path, clock: FakeClock) -> None:
    folder, hidden = tmp_path / "stores", tmp_path / "unplugged"
    leases = LeaseStore(open_engine(f"sqlite:///{folder}/stores.db"), ttl=TTL, clock=clock, sleep=clock.sleep)
    lease = leases.acquire(NAME, purpose="p")
    folder.rename(hidden)
    clock.advance(TTL - timedelta(seconds=1))
    lease.check()
    with pytest.raises(StoresUnavailable):
        lease.heartbeat()
    clock.advance(timedelta(seconds=1))
    with pytest.raises(LeaseLost, match="no heartbeat for 60 s"):
        lease.check()
    lease.release()
    hidden.rename(folder)
    assert [holder.purpose for holder in leases.holders()] == ["p"]


@pytest.mark.crash
def test_of_two_processes_that_race_exactly_one_holds(store_url: str) -> None:
    contenders = [Contender(store_url), Contender(store_url)]
    try:
        assert [c.says() for c in contenders] == ["ready", "ready"]
        for contender in contenders:
            contender.go()
        assert sorted(c.says() for c in contenders) == ["held 1", "refused"]
    finally:
        for contender in contenders:
            contender.end()


@pytest.mark.crash
def test_a_killed_holder_is_replaced_at_once_even_while_it_is_a_zombie(store_url: str) -> None:
    holder, waiting = Contender(store_url), Contender(store_url, wait=50)
    try:
        for contender, said in ((holder, "held 1"), (waiting, "waiting")):
            assert contender.says() == "ready"
            contender.go()
            assert contender.says() == said
        os.kill(holder.process.pid, signal.SIGKILL)
        # The ttl is 60 s and the wait 50 s: only the dead process can be why the lease is given.
        assert waiting.says() == "held 2"
        os.kill(waiting.process.pid, signal.SIGKILL)
        waiting.process.wait(timeout=30)
        engine = open_engine(store_url)
        with LeaseStore(engine, ttl=TTL).acquire(NAME, purpose="next") as lease:
            assert lease.fence.turn == 3
        engine.dispose()
    finally:
        holder.end()
        waiting.end()


@pytest.mark.crash
def test_a_killed_waiter_holds_nobody_up(store_url: str) -> None:
    engine = open_engine(store_url)
    store, waiting = LeaseStore(engine, ttl=TTL), Contender(store_url, wait=50)
    try:
        held = store.acquire(NAME, purpose="p")
        assert waiting.says() == "ready"
        waiting.go()
        assert waiting.says() == "waiting"
        os.kill(waiting.process.pid, signal.SIGKILL)
        waiting.process.wait(timeout=30)
        held.release()
        store.acquire(NAME, purpose="q").release()
    finally:
        waiting.end()
        engine.dispose()


def test_a_process_is_told_from_a_later_one_with_its_number() -> None:
    me = this_process()
    assert not is_gone(str(me), me.place)
    if me.start == "0":
        pytest.skip("this system does not tell when a process started (no /proc)")
    assert is_gone(f"{me.host}:{me.pid}:{int(me.start) - 1}", me.place)


def test_nobody_is_taken_for_dead_on_another_machine_or_before_a_reboot() -> None:
    me = this_process()
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait(timeout=30)
    gone = f"{me.host}:{ended.pid}:1"
    assert is_gone(gone, me.place)
    assert not is_gone(gone, "another machine")


# Imports before it changes its user, which may not be allowed to read the modules.
_AS_ANOTHER = """
import os, sys
from engagement_platform.engine.owner import this_user
os.seteuid(int(sys.argv[1]))
print(this_user())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take on the rights of another user")
def test_who_is_the_user_whose_rights_the_process_has_and_not_the_one_who_started_it() -> None:
    other = pwd.getpwnam("nobody")
    env = {**os.environ, "LOGNAME": "mallory", "USER": "mallory"}
    arguments = [sys.executable, "-c", _AS_ANOTHER, str(other.pw_uid)]
    told = subprocess.run(arguments, env=env, check=True, capture_output=True, text=True)
    assert told.stdout == f"nobody@{socket.gethostname()}\n"
