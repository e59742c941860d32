"""Runs jobs in one long-lived process, which gets its faults line by line: python -m … TYPES (see `main`).

After a failure it opens Spark and its jobs anew and goes on, as the next run of an orchestrator would.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime, timedelta, tzinfo
from functools import partial, wraps
from pathlib import Path
from typing import Any

from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from pyspark.sql.connect.client import SparkConnectClient
from pyspark.sql.connect.proto import Command
from sqlalchemy import Connection, Engine

from engagement_platform.engine import database
from engagement_platform.engine.database import StoresUnavailable
from engagement_platform.engine.drain import DrainPolicy, drain
from engagement_platform.engine.job import Callbacks, MicroBatchJob
from engagement_platform.engine.lease import LeaseUnavailable
from engagement_platform.engine.recovery import recover
from engagement_platform.engine.table_logs import StoresBehind
from engagement_platform.lake.session import spark_session
from engagement_platform.pipelines.games import registry
from engagement_platform.pipelines.games.objects import ObjectsForgotten
from engagement_platform.pipelines.jobs import build_job, close_source, open_stores, parts_of, reset_job
from engagement_platform.settings import Settings
from engagement_platform_tests.conformance.driver import LAKE, STORES
from engagement_platform_tests.conformance.passed import replace

AT_ONCE = DrainPolicy(idle_timeout=timedelta(0), max_duration=timedelta.max)
LOCK_TIMEOUT_S = 3
"""How long a transaction waits for the lock of the stores here, instead of half a minute."""
TRIES, PAUSE_S = 120, 1.0
LOSES: Mapping[str, str] = {"lose": LAKE, "lose of stores": STORES}
"""What is asked for of a fault -> to what the next commit of the thread is, whose answer is lost."""
WHY = 20_000
"""Characters of what is told of an error."""
LOST = """<_MultiThreadedRendezvous of RPC that terminated with:
\tstatus = StatusCode.UNAVAILABLE
\tdetails = "Socket closed"
>"""
"""What Spark's client says where its server does not answer any more."""
_OF_STACKS = ("\tat ", "\t... ", "  ")
_TELLING = threading.Lock()
Writing = Callable[..., AbstractContextManager[Connection]]


class _Coming(threading.local):
    """What comes to this thread."""

    lost_of: str = ""
    """The answer to its next commit to STORES or LAKE is lost."""
    tells: Callable[[], None]
    """Tells so."""


_COMING = _Coming()


class _Shifted(type):
    shift = timedelta(0)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _real_datetime)


_real_datetime = datetime


class ShiftedDatetime(datetime, metaclass=_Shifted):
    """A clock that jumps; makes plain values, which may be pickled."""

    def __new__(cls, *values: Any, **named: Any) -> Any:
        return _real_datetime(*values, **named)

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Any:
        """This machine's time, shifted."""
        return _real_datetime.now(tz) + _Shifted.shift


def let_clock_jump(seconds: float) -> None:
    """From now on every module of the product sees a time that is so far from this machine's."""
    _Shifted.shift = timedelta(seconds=seconds)
    for name, module in list(sys.modules.items()):
        if name.startswith("engagement_platform.") and vars(module).get("datetime") is _real_datetime:
            module.datetime = ShiftedDatetime  # type: ignore[attr-defined]


class Driven:
    """The jobs of this process, open or not, and the faults that wait for them."""

    def __init__(self) -> None:
        self.settings = Settings()
        self._open = ExitStack()
        self._jobs: dict[str, MicroBatchJob[Any]] = {}
        self._faults: list[Mapping[str, Any]] = []
        self._lock = threading.Lock()

    def run(self, names: list[str], faults: Sequence[Mapping[str, Any]]) -> None:
        """Run these jobs, one after the other, until each is idle. Raises the last error after TRIES failures."""
        self._faults = list(faults)
        failures = 0
        while names:
            try:
                for _ in drain(self._job(names[0]), AT_ONCE):
                    pass
            except Exception as error:
                failures += 1
                tell(failed=names[0], why=why(error))
                if failures == TRIES:
                    raise
                self._recover(names[0], error)
                time.sleep(PAUSE_S)
            else:
                tell(done=names.pop(0))

    def _job(self, name: str) -> MicroBatchJob[Any]:
        if name not in self._jobs:
            if not self._jobs:
                self._spark = self._open.enter_context(spark_session(self.settings, "fault-storm"))
            callbacks = Callbacks(observe=partial(self._observe, name))
            job = build_job(name, parts_of(self._spark, self.settings, open_stores(self.settings), callbacks))
            self._open.callback(close_source, job)
            self._jobs[name] = job
        return self._jobs[name]

    def _recover(self, name: str, error: Exception) -> None:
        """What an operator does after an error: nothing where the next run finishes the batch."""
        opened, self._open, self._jobs = self._open, ExitStack(), {}
        with tolerated("closing"):
            opened.close()
        if isinstance(error, StoresBehind):
            with tolerated("recover"):
                tell(recovered=[str(each) for each in recover(open_stores(self.settings))])
        elif isinstance(error, ObjectsForgotten):
            # The stores went back, and with them which objects were in which batch.
            with tolerated("reset"):
                tell(reset=name, why=reset_job(name, self.settings, abandon=True))
        elif isinstance(error, LeaseUnavailable):
            # Stores that were down or full kept this process from giving it back, and by a clock that went back since
            # it has hours left.
            let_clock_jump(0)

    def _observe(self, name: str, point: str) -> None:
        # Where nothing was committed since the point before.
        _COMING.lost_of = ""
        with self._lock:
            due = [one for one in self._faults if (one["job"], one["point"]) == (name, point)]
        for fault in due[:1]:
            if fault["does"] in LOSES:
                _COMING.lost_of, _COMING.tells = LOSES[fault["does"]], partial(self._comes, fault)
                continue
            self._comes(fault)
            if fault["does"] == "jump":
                let_clock_jump(fault["seconds"])
            elif fault["does"] == "pause":
                sys.stdin.readline()

    def _comes(self, fault: Mapping[str, Any]) -> None:
        with self._lock:
            self._faults.remove(fault)
        tell(at=fault["job"], why=fault["kind"])


@contextmanager
def _attempt(to: str) -> Iterator[None]:
    """Tell of an attempt to write, when it is over. Heartbeats are left out: no job waits for them."""
    began, said = time.monotonic(), ""
    try:
        yield
    except Exception as error:
        said = why(error)
        raise
    finally:
        if not threading.current_thread().name.startswith("lease "):
            tell(wrote=to, why=said, began=began, when=time.monotonic())


def _is_lost(of: str) -> bool:
    """Whether the answer to what this thread has just committed is lost; tells so."""
    if _COMING.lost_of != of:
        return False
    _COMING.lost_of = ""
    _COMING.tells()
    return True


def told_of_stores(writing: Writing) -> Writing:
    """`database.writing`, which tells of its attempts and may lose the answer to COMMIT."""

    @contextmanager
    def written(engine: Engine, *names: str) -> Iterator[Connection]:
        with _attempt(STORES), writing(engine, *names) as connection:
            yield connection
        if _is_lost(STORES):
            raise StoresUnavailable(engine.url, "server closed the connection unexpectedly")

    return written


def told_of_the_lake(execute: Callable[..., Any]) -> Callable[..., Any]:
    """`SparkConnectClient.execute_command`, which tells of attempts to save rows and may lose the answer to one."""

    @wraps(execute)
    def executed(client: object, command: Command, *given: Any) -> Any:
        if command.WhichOneof("command_type") != "write_operation":
            return execute(client, command, *given)
        with _attempt(LAKE):
            answer = execute(client, command, *given)
        if _is_lost(LAKE):
            raise SparkConnectGrpcException(LOST)
        return answer

    return executed


def why(error: BaseException) -> str:
    """What an error says, and below it what those say that it comes of, without stacks: BatchFailed quotes a line."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    lines = "\n".join(f"{type(each).__name__}: {each}" for each in chain).splitlines()
    return "\n".join(line for line in lines if not line.startswith(_OF_STACKS))[:WHY]


@contextmanager
def tolerated(doing: str) -> Iterator[None]:
    """Report an error, and go on: the next try meets it again where it matters."""
    try:
        yield
    except Exception as error:
        tell(failed=doing, why=why(error))


def tell(**what: object) -> None:
    """One line for whoever drives; several threads of a job may come to their points at once."""
    with _TELLING:
        print(json.dumps(what), flush=True)


def main(types: str) -> None:
    """Read {"jobs": [name], "faults": [{"kind", "job", "point", "does": what, "seconds"}]} a line.

    Prints {"at": job, "why": kind} where a fault is due, and goes on with the next line where it does `pause`, with the
    clock so many seconds on after `jump`, and as ever after `pass`; of those that LOSES has after the next commit of
    the thread that came to the point, which gets an error then, and not at all where it commits nothing. Prints
    {"wrote": STORES or LAKE, "why", "began", "when"} for each attempt to write, {"failed": name, "why"} for each
    failure, {"done": job} when a job is idle, {"idle": true} in the end. types: folder of the types of events there
    are: with all that ship most of the time would go by looking at tables without a row.
    """
    database.LOCK_TIMEOUT_S = LOCK_TIMEOUT_S
    replace(database.writing, told_of_stores(database.writing))
    told = told_of_the_lake(SparkConnectClient.execute_command)
    SparkConnectClient.execute_command = told  # type: ignore[method-assign]
    registry.SHIPPED = Path(types)
    driven = Driven()
    for line in iter(sys.stdin.readline, ""):
        asked = json.loads(line)
        let_clock_jump(0)
        driven.run(asked["jobs"], asked["faults"])
        tell(idle=True)


if __name__ == "__main__":
    main(sys.argv[1])
