"""Which faults a storm has, and which errors those of a round may cause; any other is a defect that they have shown."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from engagement_platform_tests.conformance.driver import STORES, Event

INGEST, GAMES = "ingest-engagements", "ingest-game-events"
BROKER, CONNECT, PROCESS = "broker killed", "Connect server killed", "process of the jobs killed"
LOCKED, DOWN, FULL = "stores locked", "stores down", "disk of the lake and the stores full"
ANSWER, COMMITTED = "answer lost after a commit", "answer lost after a commit of the stores"
CLOCK, BEHIND = "clock jumps", "stores put back one batch"
LASTING = frozenset({LOCKED, DOWN, FULL})
"""They are there for some seconds, and the job goes on meanwhile."""
LATE = "S3 and SQS answer late"
PROXIED = {
    "S3 and SQS answer 503": "refused",
    "S3 and SQS: answers lost": "lost",
    "S3 and SQS: answers broken off": "cut",
    LATE: "slow",
}
CYCLES = {
    INGEST: (BROKER, CONNECT, PROCESS, LOCKED, DOWN, FULL, ANSWER, ANSWER, COMMITTED, CLOCK, BEHIND),
    GAMES: (*PROXIED, *PROXIED, PROCESS, LOCKED, DOWN, FULL, ANSWER, ANSWER, COMMITTED, CLOCK),
}
"""Kinds of faults in each job; each comes as often, in a new order each time."""
SHOWN = 2_000
"""Characters of an error that are shown."""

BEHIND_ERRORS = frozenset({"StoresBehind", "ObjectsForgotten"})
"""By these a job refuses to go on with stores that went back, and nothing else may make it say so."""
KINDS = frozenset(kind for cycle in CYCLES.values() for kind in cycle)
_OF_STORES, _OF_AWS = frozenset({*LASTING, COMMITTED, BEHIND}), frozenset(PROXIED) - {LATE}
FROM_FAULTS: Mapping[str, frozenset[str]] = {
    # Spark, or what its readers ask, gave up in the middle of a batch. What it quotes is looked at, too.
    "BatchFailed": frozenset({CONNECT, BROKER, FULL, ANSWER}) | _OF_AWS,
    # Nobody could extend a lease, a clock let it end, or who held it before may still be writing.
    **dict.fromkeys(("FenceNotPlaced", "LeaseLost"), LASTING | {CLOCK, CONNECT, PROCESS}),
    # Nobody could give it back, or by a clock it has hours left.
    "LeaseUnavailable": LASTING | {CLOCK},
    # Spark's server is gone in the middle of something, and a new one knows nothing of the former session.
    **dict.fromkeys(
        ("SparkConnectException", "SparkUnavailable", "_InactiveRpcError", "_MultiThreadedRendezvous"),
        frozenset({CONNECT}),
    ),
    # What its client says of an answer that had begun to come when the server was killed.
    "PySparkRuntimeError: [RESPONSE_ALREADY_RECEIVED]": frozenset({CONNECT}),
    "SparkConnectGrpcException": frozenset({CONNECT, ANSWER, FULL}),
    **dict.fromkeys(("DatabaseError", "OperationalError", "StoresUnavailable"), _OF_STORES),
    "BrokerUnavailable": frozenset({BROKER}),
    **dict.fromkeys(("ObjectNotReadable", "QueueUnavailable"), _OF_AWS),
    **dict.fromkeys(BEHIND_ERRORS, frozenset({BEHIND})),
}
"""Classes of errors that may end a run -> the faults of its round that can cause them. Any other is a defect that the
fault has shown."""
OF_MANY_CAUSES = frozenset({"AnalysisException", "OSError", "PythonException", "SparkException", "UnknownException"})
"""Classes that may end a run, too, where they, or what they come of, say what a fault of its round makes them say."""
SAID: Mapping[str, str] = {
    CONNECT: r"(?:DATAFRAME|DATA_SOURCE|OPERATION|SESSION|TABLE_OR_VIEW)_NOT_FOUND|NO_ACTIVE_SESSION|SESSION_CLOSED"
    r"|UNAVAILABLE|Connection (?:refused|reset)|Socket closed|Broken pipe|EOFError",
    FULL: r"No space left on device|TASK_WRITE_FAILED|disk I/O error",
    BROKER: r"org\.apache\.kafka\.|KAFKA",
    **dict.fromkeys(_OF_AWS, r"ObjectNotReadable|QueueUnavailable|injected"),
}


@dataclass(frozen=True)
class Lasted:
    """A fault of LASTING: of which kind, in which job, and from when until when it was there (monotonic)."""

    kind: str
    job: str
    since: float
    until: float


def met(fault: Event, events: Sequence[Event], lasted: Sequence[Lasted], ways: Collection[str]) -> bool:
    """Whether a fault that came has disturbed something. ways: what happened to requests to S3 and SQS meanwhile."""
    if fault.why in PROXIED:
        return PROXIED[fault.why] in ways
    wrote = [event for event in events if event.what == "wrote"]
    own = [one for one in lasted if (one.kind, one.job) == (fault.why, fault.name)]
    return fault.why not in LASTING or any(_has_met(one, each) for one in own for each in wrote)


def _has_met(fault: Lasted, wrote: Event) -> bool:
    """Whether an attempt to write had to wait for a fault, or failed by it: nothing waits for a disk."""
    if wrote.began > fault.until or wrote.when < fault.since:
        return False
    of_stores = wrote.name == STORES
    if of_stores:
        failed = wrote.why.startswith("StoresUnavailable")
    else:
        failed = bool(wrote.why) and not re.search(SAID[CONNECT], wrote.why)
    return failed if fault.kind == FULL else of_stores and (failed or wrote.began >= fault.since)


def came(events: Sequence[Event]) -> list[Event]:
    """The faults that came while their job was at work."""
    missed = {(event.name, event.why) for event in events if event.what == "missed"}
    return [event for event in events if event.what == "at" and (event.name, event.why) not in missed]


def unnoticed(events: Sequence[Event]) -> list[str]:
    """Which jobs go on after the stores went back: both had a batch since."""
    refusing = {event.name for event in events if event.what == "failed" and _errors(event.why)[0] in BEHIND_ERRORS}
    return [f"{job} does not refuse to go on after the stores went back" for job in CYCLES if job not in refusing]


def wrong(events: Sequence[Event], kinds: Collection[str]) -> list[str]:
    """Failures that no fault of these kinds, which were in the round, may cause; and repairs of stores that were not
    put back."""
    repairs = () if BEHIND in kinds else ("recovered", "reset")
    return [
        f"{event.what} {event.name}: {event.why[:SHOWN]}"
        for event in events
        if event.what in repairs
        or (event.what == "failed" and not all(_is_caused(name, event.why, kinds) for name in _errors(event.why)))
    ]


def _is_caused(name: str, why: str, kinds: Collection[str]) -> bool:
    """Whether a fault of these kinds may cause an error of a class, which says why."""
    if name in OF_MANY_CAUSES:
        return any(kind in kinds and re.search(said, why) for kind, said in SAID.items())
    return not FROM_FAULTS.get(name, frozenset()).isdisjoint(kinds)


_CLASS = r"PySparkRuntimeError: \[\w+\]|\w+"


def _errors(why: str) -> list[str]:
    """The class of an error, and of the one that BatchFailed quotes; of a class for many with its condition."""
    found = re.match(rf"({_CLASS})(?:: .*? stopped: ({_CLASS})[: ])?", why)
    return [name for name in found.groups() if name] if found else [why]
