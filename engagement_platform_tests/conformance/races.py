"""Pairs of operations at once on one lake: what they leave is what they leave one after the other, in some order.

Every race has a copy of the same lake and stores, on the same topics and the same Connect server. Both programs start
together; or the first is stopped immediately before one of its commits, longer than its leases live, while the second
runs to its end; or both are stopped, each before one of its commits, and go on together. A program that refuses, or
leaves some of its work, has to say why in a sentence, and has to work when both are over. By itself each changes
something.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from pathlib import Path
from random import Random

from pyspark.sql import SparkSession

from engagement_platform.lake.engagement import NOTIFICATION
from engagement_platform_tests.conformance.disturbed import points, times, without_points
from engagement_platform_tests.conformance.matrix import (
    LEASE_S,
    MEASURED,
    Contents,
    contents,
    copy,
    differences,
    filled,
    served,
    stored,
    traces,
    words_of,
)
from engagement_platform_tests.conformance.programs import Program
from engagement_platform_tests.conformance.refusals import Ended
from engagement_platform_tests.conformance.scenarios import (
    APPLY,
    BACKFILL,
    CLI,
    ERASE,
    INGEST,
    MOVE,
    PREFIX,
    REQUESTS,
    RESTORE,
    Scenario,
    after,
    job,
    keyed,
    more,
)
from engagement_platform_tests.ingestion.test_whole_path import Machine
from engagement_platform_tests.matrix import spread

REASON = "too_late"
KEEP_NOTHING = {f"{PREFIX}MAINTENANCE__ROLLBACK_WINDOW": "PT0S", f"{PREFIX}MUTATION__MAX_LATENESS": "PT0S"}
OPERATIONS = (
    Scenario("ingest", job(INGEST)),
    Scenario("apply", job(APPLY)),
    Scenario("rematerialize", job(MOVE)),
    Scenario("optimize", (CLI, "optimize")),
    Scenario("vacuum", (CLI, "vacuum"), variables=KEEP_NOTHING),
    Scenario("restore", RESTORE, finish=((CLI, "restore", "--finish"), RESTORE)),
    Scenario("erase", ERASE),
    Scenario("backfill", BACKFILL),
    Scenario("redrive", (*job("redrive-quarantine"), "--reason", REASON)),
)

WORKED = Ended(0, "")
PATIENCE_S = 3 * LEASE_S
"""How long a program waits for the leases of one that is stopped, and for its batch."""
MEET_S = 6.0
"""How long a program that is stopped waits for another one to come to its own point: that may wait for a lease."""
STORES = frozenset({"pii_erased", "pii_erasure", "pii_key", "pii_secret", "foreign_application", "job_generation"})
"""Tables of the stores that do not say how many batches something took."""
TIMES_AGAIN = 3
PAIRED = "+"
_SEQUENCE = re.compile(r"(?<=sequence': )\d+")
"""In a row, or in the end of a batch: `'batch_sequence': 14`, `'sequence': 14`."""
_BEGAN = re.compile(r", 'batches_before': \d+")
_PROPERTIES = "properties of "


@dataclass(frozen=True)
class Race:
    """timing: who was stopped where, and whether both were at work at once. order: which of both orders left the same;
    empty: none, or something went wrong, and `differs` says what. refused: names and sentences of those that had to run
    again."""

    first: str
    second: str
    timing: str
    order: str
    refused: Sequence[tuple[str, str]]
    differs: str
    seconds: float


def pairs(only: Sequence[str]) -> list[tuple[Scenario, Scenario]]:
    """Each pair, each operation with itself, too, in an order of chance.

    only: those among these operations, and pairs such as `ingest+erase`.
    """
    every = list(combinations_with_replacement(OPERATIONS, 2))
    Random(0).shuffle(every)
    # Of some pairs the one is stopped, of others the other.
    turned = [pair[::-1] if number % 2 else pair for number, pair in enumerate(every)]
    named = {frozenset(name.split(PAIRED)) for name in only}
    among = {name for name in only if PAIRED not in name}

    def is_asked(pair: tuple[Scenario, Scenario]) -> bool:
        names = frozenset(operation.name for operation in pair)
        return not only or names <= among or (len(names) > 1 and names in named)

    return [pair for pair in turned if is_asked(pair)]


def race(racing: Sequence[tuple[Scenario, Scenario]], most: int, within_s: float, only: str = "") -> Iterator[Race]:
    """Race pairs: together, the one that is named first held at points, and the other one crossed by it at points.

    most: of these points, spread over the commits of each that contain `only`. within_s: begins no pair after so long;
    each that it begins is raced to its end.
    """
    deadline = time.monotonic() + within_s
    with served() as machine:
        arena = _Arena(_prepared(filled(machine, 0)))
        for held, other in racing:
            if (began := time.monotonic()) > deadline:
                return
            try:
                own, others = (
                    spread([point for point in arena.commits(one) if only in point], most) for one in (held, other)
                )
                for points_of in ((), *((point,) for point in own), *zip(own, others, strict=False)):
                    began = time.monotonic()
                    yield arena.race(held, other, *points_of)
            except AssertionError as error:
                # One of them does not work by itself: the other pairs may.
                yield Race(held.name, other.name, "", "", (), str(error), time.monotonic() - began)


def _prepared(lake: Machine) -> Machine:
    """Work for every operation: messages and requests that wait, in quarantine, too, and those of two batches."""
    keyed(lake)
    after(INGEST, REQUESTS, APPLY)(lake)
    # It leaves former files, which VACUUM may remove.
    lake.cli("optimize")
    more(lake, 100, "mutation-requests")
    late = {**lake.environment, f"{PREFIX}MUTATION__MAX_LATENESS": "PT1H"}
    after(REQUESTS)(replace(lake, environment=late))
    more(lake, 200, "mutation-requests")
    after(REQUESTS)(lake)
    more(lake, 300, "engagements")
    _let_files_go(lake)
    return lake


def _let_files_go(lake: Machine) -> None:
    """VACUUM may remove files at once, unless somebody may still read them."""
    spark = SparkSession.Builder().remote(lake.environment[f"{PREFIX}SPARK__REMOTE"]).create()
    for log in Path(lake.lake).glob("*/*/_delta_log"):
        kept = "'delta.deletedFileRetentionDuration' = 'interval 0 hours'"
        spark.sql(f"ALTER TABLE delta.`{log.parent}` SET TBLPROPERTIES ({kept})")
    spark.stop()


class _Arena:
    """Copies of one lake, and what one operation after the other leaves on it."""

    def __init__(self, prepared: Machine) -> None:
        self.prepared = prepared
        self.alone: dict[str, tuple[Machine, list[str]]] = {}
        self.orders: dict[tuple[str, ...], Contents] = {}
        """As `in_order`."""
        self.refusing: dict[tuple[str, ...], set[str]] = {}
        """Which of both refuse in an order, when they are run for the last time."""
        self.number = 0

    def race(self, first: Scenario, second: Scenario, held: str = "", crossed: str = "") -> Race:
        """held: the point before which the first is stopped while the second runs; crossed: to its point, too."""
        began, own, operations = time.monotonic(), self._copy(self.prepared), (first, second)
        if held and not crossed:
            short = {f"{PREFIX}STORES__LEASE_TTL": f"PT{LEASE_S}S", f"{PREFIX}STORES__LEASE_WAIT": f"PT{PATIENCE_S}S"}
            own = replace(own, environment={**own.environment, **short})
        if crossed:
            timing, both = self._crossed(own, operations, (held, crossed))
        elif held:
            timing, both = f"{first.name} stopped before `{held}`", self._held(own, first, second, held)
        else:
            timing, both = self._together(own, first, second)
        refused = [
            (operation.name, ended.undone) for operation, ended in zip(operations, both, strict=True) if ended.undone
        ]
        wrong = [ended.wrong for ended in both if ended.wrong]
        if not wrong:
            wrong, refusing = self._until_done(own, operations, both)
        order, differs = "", "; ".join(wrong)
        if not wrong:
            order, differs = self._equals(operations, _left(own), refusing)
        shutil.rmtree(own.folder)
        return Race(first.name, second.name, timing, order, refused, differs, time.monotonic() - began)

    def _until_done(
        self, own: Machine, operations: Sequence[Scenario], both: Sequence[Ended]
    ) -> tuple[list[str], dict[str, str]]:
        """Run again those that refused or left something, a few times since each may wait for the other; what is wrong
        with any that was run again, and name -> sentence of those that refuse still."""
        waiting = [(operation, ended) for operation, ended in zip(operations, both, strict=True) if ended.undone]
        wrong = list[str]()
        for _ in range(TIMES_AGAIN):
            again = [(operation, self._again(own, operation)) for operation, _ in waiting]
            wrong += [f"{operation.name} again: {ended.wrong}" for operation, ended in again if ended.wrong]
            waiting = [(operation, ended) for operation, ended in again if ended.undone]
        return wrong, {one.name: ended.undone for one, ended in waiting}

    def _equals(
        self, operations: tuple[Scenario, Scenario], found: Contents, refusing: Mapping[str, str]
    ) -> tuple[str, str]:
        """Which order of the two leaves this; where none does, what differs.

        Both one after the other, or the one between two runs of the other: who drains makes batch after batch, between
        which others have theirs, and who refused is run again. refusing: those that never did their work; one that the
        order does not let do it either is none of these, such as a restore of what an erasure has changed.
        """
        one, other = operations
        differing = [f"{name} refuses still: {said}" for name, said in refusing.items()]
        for order in ((one, other), (other, one), (one, other, one), (other, one, other)):
            names = tuple(operation.name for operation in order)
            difference = unlike(self._order(order), found)
            if not difference and set(refusing) == self.refusing[names]:
                return ", ".join(names), ""
            differing.append(f"unlike {', then '.join(names)}: {difference or 'refuses otherwise'}")
        return "", "\n  ".join(differing)

    def commits(self, operation: Scenario) -> list[str]:
        """The points immediately before the commits to tables that it passes alone."""
        return [
            point
            for point in self._alone(operation)[1]
            if point.startswith("lake.") and point.endswith(":before") and not any(name in point for name in MEASURED)
        ]

    def _copy(self, of: Machine) -> Machine:
        self.number += 1
        return copy(of, f"race-{self.number}", {})

    def _alone(self, operation: Scenario) -> tuple[Machine, list[str]]:
        if operation.name not in self.alone:
            own = self._copy(self.prepared)
            before = contents(own) | traces(own)
            done, passed = _watched(own, operation)
            assert (ended := done.wrong or done.undone) == "", f"{operation.name} alone: {ended}"
            assert differences(before, contents(own) | traces(own)), f"{operation.name} alone changes nothing"
            self.alone[operation.name] = own, points(passed)
        return self.alone[operation.name]

    def _order(self, operations: Sequence[Scenario]) -> Contents:
        names = tuple(operation.name for operation in operations)
        if names not in self.orders:
            own, refused = self._copy(self._alone(operations[0])[0]), dict[str, bool]()
            for operation in operations[1:]:
                done = _run(own, operation, operation.program)
                assert not done.wrong, f"{', then '.join(names)}: {operation.name}: {done.wrong}"
                refused[operation.name] = bool(done.undone)
            self.orders[names] = _left(own)
            self.refusing[names] = {name for name, refuses in refused.items() if refuses}
            shutil.rmtree(own.folder)
        return self.orders[names]

    def _together(self, own: Machine, first: Scenario, second: Scenario) -> tuple[str, tuple[Ended, Ended]]:
        """How both ended that began at one moment, and whether they were at work at once."""
        with ThreadPoolExecutor(2) as pool:
            (one, passed), (other, passed_other) = pool.map(lambda each: _watched(own, each), (first, second))
        return f"together, {overlap(times(passed), times(passed_other))}", (one, other)

    def _crossed(
        self, own: Machine, operations: tuple[Scenario, Scenario], at: tuple[str, str]
    ) -> tuple[str, tuple[Ended, Ended]]:
        """How both ended that were stopped, the second one first, and went on together; and whether both were in their
        middle at once. One of them may wait for the lease of the other, or refuse."""
        (crossing, crossed), (own_point, point) = operations, at
        begun = [_begin(own, crossed, crossed.program, point, "stop")]
        try:
            if not begun[0].stopped():
                return "", (Ended(-1, f"never reached {point}: {_ended(begun[0])}"), WORKED)
            begun.append(_begin(own, crossing, crossing.program, own_point, "stop"))
            met = begun[1].stopped(MEET_S)
            begun[0].wake()
            if met or begun[1].stopped():
                begun[1].wake()
            other, one = map(_ended, begun)
        finally:
            for program in begun:
                program.kill()
        how = "both in their middle" if met else f"{crossing.name} waited or refused"
        return f"{crossed.name} stopped before `{point}`, {crossing.name} before `{own_point}`: {how}", (one, other)

    def _held(self, own: Machine, first: Scenario, second: Scenario, point: str) -> tuple[Ended, Ended]:
        program = _begin(own, first, first.program, point, "stop")
        if not program.stopped():
            return Ended(-1, f"never reached {point}: {_ended(program)}"), WORKED
        try:
            # Its lease is over before the other begins, which else would only show that it waits.
            time.sleep(LEASE_S)
            other = _run(own, second, second.program)
        finally:
            program.wake()
        return _ended(program), other

    def _again(self, own: Machine, operation: Scenario) -> Ended:
        for program in operation.finish or (operation.program,):
            if (done := _run(own, operation, program)).status:
                break
        return done


def overlap(one: Sequence[float], other: Sequence[float]) -> str:
    """Whether two programs were between their first and their last commit at once. When they passed their points."""
    if not one or not other:
        return "one without a commit"
    at_once = max(min(one), min(other)) < min(max(one), max(other))
    return "at work at once" if at_once else "one after the other"


def _left(own: Machine) -> Contents:
    """What two operations leave, whatever it took.

    Of tombstones which there are: those of players, by which batches of engagements do not go, are drawn at once, and
    those of persons when the batches of others are over.
    """
    kept = {name: rows for name, rows in stored(own).items() if name.split()[0] in STORES}
    return in_order(contents(own) | {name: [_BEGAN.sub("", row) for row in rows] for name, rows in kept.items()})


def in_order(found: Contents) -> Contents:
    """Contents with the place of each sequence among all in them: erasure is several batches, between which others draw
    theirs.

    Of notifications among those of their own table, since what becomes of a row goes by those of all others: a batch
    that has drawn its sequence and waits has one below that of another which comes before it.
    """
    others = {name: rows for name, rows in found.items() if name != NOTIFICATION.name}
    return _placed(others) | _placed({name: rows for name, rows in found.items() if name not in others})


def unlike(expected: Contents, found: Contents) -> str:
    """What is not as expected. A table that somebody made who then refused has no row and counts as none."""
    made = [
        {name for name, rows in one.items() if rows or name in other}
        for one, other in ((expected, found), (found, expected))
    ]
    kept = (
        {name: rows for name, rows in one.items() if name.removeprefix(_PROPERTIES) in names}
        for one, names in zip((expected, found), made, strict=True)
    )
    return differences(*kept)


def _placed(found: Contents) -> Contents:
    drawn = sorted({int(number) for rows in found.values() for row in rows for number in _SEQUENCE.findall(row)})
    places = {str(number): str(place) for place, number in enumerate(drawn)}
    return {name: sorted(_SEQUENCE.sub(lambda at: places[at[0]], row) for row in rows) for name, rows in found.items()}


def _ended(program: Program) -> Ended:
    return _watched_end(program)[0]


def _watched(own: Machine, operation: Scenario) -> tuple[Ended, str]:
    """How an operation ended, and the points that it printed."""
    return _watched_end(_begin(own, operation, operation.program, "", "none"))


def _watched_end(program: Program) -> tuple[Ended, str]:
    try:
        done = program.ended()
    finally:
        program.kill()
    return Ended(done.returncode, without_points(done.stderr), done.stdout), done.stderr


def _run(own: Machine, operation: Scenario, program: Sequence[str]) -> Ended:
    return _ended(_begin(own, operation, program))


def _begin(own: Machine, operation: Scenario, program: Sequence[str], at: str = "", fault: str = "") -> Program:
    its_own = replace(own, environment={**own.environment, **operation.variables})
    return Program(its_own, words_of(own, program), at, fault)
