"""Which faults a storm has, and which errors those of a round may cause; any other is a defect that they have shown."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from engagement_platform_tests.conformance.driver import Event

INGEST, GAMES = "ingest-engagements", "ingest-game-events"
BROKER, CONNECT, PROCESS = "broker killed", "Connect server killed", "process of the jobs killed"
LOCKED, DOWN, FULL = "stores locked", "stores down", "disk of the lake and the stores full"
ANSWER, CLOCK, BEHIND = "answer lost after a commit", "clock jumps", "stores put back one batch"
PROXIED = {
    "S3 and SQS answer 503": "refused",
    "S3 and SQS: answers lost": "lost",
    "S3 and SQS: answers broken off": "cut",
    "S3 and SQS answer late": "slow",
}
CYCLES = {
    INGEST: (BROKER, CONNECT, PROCESS, LOCKED, DOWN, FULL, ANSWER, ANSWER, CLOCK, BEHIND),
    GAMES: (*PROXIED, *PROXIED, PROCESS, LOCKED, DOWN, FULL, ANSWER, ANSWER, CLOCK),
}
"""Kinds of faults in each job; each comes as often, in a new order each time."""
SHOWN = 2_000
"""Characters of an error that are shown."""

BEHIND_ERRORS = frozenset({"StoresBehind", "ObjectsForgotten"})
"""By these a job refuses to go on with stores that went back, and nothing else may make it say so."""
KINDS = frozenset(kind for cycle in CYCLES.values() for kind in cycle)
_OF_STORES, _OF_AWS = frozenset({LOCKED, DOWN, FULL, BEHIND}), frozenset(PROXIED)
FROM_FAULTS: Mapping[str, frozenset[str]] = {
    # These quote what has stopped a batch, and whatever delays a run may cost it its leases.
    **dict.fromkeys(("BatchFailed", "FenceNotPlaced", "LeaseLost", "LeaseUnavailable"), KINDS),
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
    **dict.fromkeys(PROXIED, r"ObjectNotReadable|QueueUnavailable|injected"),
}


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
