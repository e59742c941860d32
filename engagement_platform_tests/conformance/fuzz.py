"""Sends and decodes what nobody would: HTTP to the ingest server, and bytes to every decoder, for minutes.

HTTP and decoders run side by side, each for half of the minutes. Decoders run in a process of their own, which a fault
of a library may end.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from multiprocessing import get_context
from operator import attrgetter
from typing import Any, NoReturn

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from engagement_platform_tests.conformance.fuzz_http import fuzzed_server
from engagement_platform_tests.conformance.fuzz_messages import MESSAGES
from engagement_platform_tests.conformance.fuzz_objects import OBJECTS
from engagement_platform_tests.conformance.fuzz_personal import PERSONAL
from engagement_platform_tests.conformance.fuzz_property import Property

PROPERTIES = {**MESSAGES, **OBJECTS, **PERSONAL}

_ROUND = 300
"""Examples of one seed; each round begins with another."""
_ENOUGH = 3
"""Failures after which a property is left alone."""
EXAMPLE_S = 30.0
"""What an example takes at most; a busy machine needs a second for one that is fine."""
ANSWER_S = 900.0
"""What a round takes at most, with all that looks for the smallest example. Then the process of decoders hangs."""


@dataclass
class Fuzzed:
    """What was tried, and what was found."""

    what: str
    examples: int = 0
    seconds: float = 0.0
    seen: str = ""
    failures: list[str] = field(default_factory=list)

    def add(self, examples: int, failure: str) -> None:
        """Count a round."""
        self.examples += examples
        self.failures += [failure] if failure else []


def explore(strategy: st.SearchStrategy[Any], holds: Callable[[Any], None], number: int, examples: int) -> int:
    """Look for an example for which it does not hold, and raise with the smallest; how many were tried.

    One that takes longer than EXAMPLE_S fails.
    """
    tried = 0

    @seed(number)
    @settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink], report_multiple_bugs=False,
    )  # fmt: skip
    @given(strategy)
    def run(example: Any) -> None:
        nonlocal tried
        tried += 1
        with _within(EXAMPLE_S):
            holds(example)

    run()
    return tried


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Raise AssertionError after so long; where this is not the main thread, or is in a library, at the end of it."""

    def ends(*_: object) -> NoReturn:
        raise AssertionError(f"an example took longer than {seconds:g} s")

    began, interrupts = time.monotonic(), threading.current_thread() is threading.main_thread()
    if interrupts:
        former = signal.signal(signal.SIGALRM, ends)
        timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        if interrupts:
            signal.setitimer(signal.ITIMER_REAL, *timer)
            signal.signal(signal.SIGALRM, former)
    if time.monotonic() - began > seconds:
        ends()


def fuzz(minutes: float, only: Sequence[str] | None) -> Iterator[Fuzzed]:
    """Fuzz for minutes in all, half of them HTTP. only: parts whose names contain one of these."""
    seconds = minutes * 60 / 2
    names = [name for name in PROPERTIES if only is None or any(part in name for part in only)]
    with ThreadPoolExecutor(1) as beside:
        http = beside.submit(_http, seconds) if only is None or "HTTP" in only else None
        yield from _decoders(names, seconds)
        if http is None:
            return
        try:
            yield from http.result()
        except Exception as error:  # what decoders found stays
            yield Fuzzed("HTTP: all of it", failures=[_said(error)])


def _decoders(names: Sequence[str], seconds: float) -> Iterator[Fuzzed]:
    found, pool = [Fuzzed(name) for name in names], _pool()
    for number, one in _turns(found, seconds):
        tried, failure, answered = _answer(pool, one.what, number)
        one.add(tried, failure)
        pool = pool if answered else _pool()
    pool.shutdown()
    yield from found


def _turns(found: Sequence[Fuzzed], seconds: float) -> Iterator[tuple[int, Fuzzed]]:
    """(seed, whose turn it is) until the time is over; each gets as much of it."""
    until = time.monotonic() + seconds
    for number in count(1):
        left = [one for one in found if len(one.failures) < _ENOUGH]
        if not left or time.monotonic() >= until:
            return
        one, began = min(left, key=lambda each: each.seconds), time.monotonic()
        yield number, one
        one.seconds += time.monotonic() - began


def _answer(pool: ProcessPoolExecutor, name: str, number: int) -> tuple[int, str, bool]:
    """What a round in the process of decoders came to, and whether that process can go on."""
    try:
        return *pool.submit(_decode, name, number).result(ANSWER_S), True
    except BrokenProcessPool:
        return 0, f"seed {number}: the process ended", False
    except TimeoutError:
        for process in pool._processes.values():
            process.kill()
        return 0, f"seed {number}: no answer within {ANSWER_S:g} s", False


def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def _decode(name: str, number: int) -> tuple[int, str]:
    return _tried(PROPERTIES[name], number)


def _tried(tried: Property, number: int) -> tuple[int, str]:
    try:
        return explore(*tried, number, _ROUND), ""
    except Exception as error:  # it is the result
        return _ROUND, f"seed {number}: {_said(error)}"


def _said(error: BaseException) -> str:
    notes = " ".join(getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {str(error)[:1000]} {notes[:2000]}"


def _http(seconds: float) -> list[Fuzzed]:
    with fuzzed_server() as server:
        found, whole = [Fuzzed(name) for name in server.properties], Fuzzed("HTTP: all of it")
        for number, one in _turns(found, seconds):
            one.add(*_tried(server.properties[one.what], number))
        try:
            server.finish()
        except AssertionError as error:
            whole.failures.append(_said(error))
        whole.examples, whole.seconds = (sum(map(of, found)) for of in (attrgetter("examples"), attrgetter("seconds")))
        whole.seen = server.seen()
        return [*found, whole]
