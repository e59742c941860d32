"""A storm of faults over messages and objects: rounds of new data, with a fault in the middle of each job's batch.

The services, the jobs and the faults are real: processes are killed, the disk of the lake is full, answers are lost.
What is there afterwards is compared with an oracle, and a reader looks all the while.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from confluent_kafka import Message, Producer
from deltalake import DeltaTable

from engagement_platform.local.aws import BUCKET, QUEUE, EmbeddedAws
from engagement_platform.pipelines.games.event_type import QUARANTINE
from engagement_platform.pipelines.games.registry import SHIPPED, registry
from engagement_platform_tests.conformance.disturbances import (
    copy_database,
    disk_full,
    kill_jvm,
    small_disk,
    store_down,
    store_locked,
)
from engagement_platform_tests.conformance.driver import Event, Jobs, JobsEnded
from engagement_platform_tests.conformance.fault_errors import (
    ANSWER,
    BEHIND,
    BROKER,
    CLOCK,
    COMMITTED,
    CONNECT,
    CYCLES,
    DOWN,
    GAMES,
    INGEST,
    LASTING,
    LATE,
    LOCKED,
    PROCESS,
    PROXIED,
    Lasted,
    came,
    met,
    unnoticed,
    wrong,
)
from engagement_platform_tests.conformance.sent import NO_EVENT, Messages, Objects
from engagement_platform_tests.conformance.watched import Watcher
from engagement_platform_tests.conftest import SPARK_CONF
from engagement_platform_tests.ingestion.oracle import CONTENT, as_bytes
from engagement_platform_tests.ingestion.test_whole_path import Machine, started
from engagement_platform_tests.pipelines.games.faulty import FaultyProxy

PREFIX = "ENGAGEMENT_PLATFORM_"
TYPES = ("heartbeat", "login", "purchase")
POINTS = {
    INGEST: (
        "manifest:before", "manifest:after", "tables.quarantine:before", "tables.mapping:before",
        "tables.mapping:after", "tables.changeset:before", "tables.changeset:after", "tables.data:before",
        "tables.data:after", "tables:recorded", "notification.append:before", "notification.append:after",
        "notification:recorded",
    ),
    GAMES: (
        "manifest:before", "manifest:after", "lines:recorded", "tables.login:before", "tables.heartbeat:before",
        "tables.heartbeat:after", "tables.purchase:before", "tables.purchase:after", "tables:recorded",
        "figures:recorded", "finalized",
    ),
}  # fmt: skip
BEFORE_STORES: Mapping[str, tuple[str, ...]] = {
    INGEST: ("manifest:before", "notification:recorded"),
    GAMES: ("manifest:before", "tables:recorded", "figures:recorded"),
}
"""Points after which the same thread commits to the stores before it comes to another one."""

LASTS_S = (4.0, 8.0)
"""How long stores are locked or down, and the disk is full: longer than a transaction waits for a lock (`driven`)."""
JUMPS_S = 6 * 3600
KILLED = (BROKER, CONNECT, PROCESS)
GOES_ON_S = 3.0
"""How long a job may go on after its point before something is killed: in the middle of a write, as a rule."""
IN_A_BATCH = 4
READING = ("manifest:before", "manifest:after", "finalized")
"""Points after which objects are read, or announcements received and deleted."""
EMPTY_WITHIN_S = 600.0
"""How long the job of events may need until nothing is announced any more, once both were idle."""
REQUESTS = 12
"""Most requests that fail in a row."""


@dataclass(frozen=True)
class Fault:
    """One that happened. seconds: until the job that it was in had done all that there was."""

    kind: str
    job: str
    seconds: float


@dataclass
class Outcome:
    """What a storm did, and what is wrong after it."""

    messages: int = 0
    objects: int = 0
    faults: list[Fault] = field(default_factory=list)
    failed: int = 0
    """Runs that ended with an error meanwhile."""
    requests: Counter[str] = field(default_factory=Counter)
    """Requests to S3 and SQS that failed, by service and way."""
    late: int = 0
    """Those that were answered late, and did not fail."""
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    """What the reader must not see: torn batches, rows twice or gone, errors."""
    unnoticed: list[str] = field(default_factory=list)
    """Faults that a job has to refuse to go on after, and went on."""
    wrong: list[str] = field(default_factory=list)
    """Errors that no fault may cause, and refusals and repairs without a cause."""
    polls: int = 0
    seconds: float = 0.0


def storm(messages: int, objects: int, faults: int, *, minutes: float, seed: int = 0) -> Outcome:
    """At least so many of each, or what fits into so many minutes. Raises JobsEnded where a job gets stuck."""
    os.environ |= {"SPARK_CONF_DIR": str(SPARK_CONF), "AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"}
    with ExitStack() as opened:
        folder = Path(opened.enter_context(TemporaryDirectory(prefix="faults-")))
        disk = folder / "disk"
        opened.enter_context(small_disk(disk))
        settings = {
            f"{PREFIX}LAKE_URI": str(disk / "lake"),
            f"{PREFIX}STORES__URL": f"sqlite:///{disk}/stores.db",
            f"{PREFIX}GAMES__VISIBILITY": "PT5S",
            # Where stores were down, nobody could give a lease back.
            f"{PREFIX}STORES__LEASE_TTL": "PT10S",
            f"{PREFIX}STORES__LEASE_WAIT": "PT30S",
            f"{PREFIX}LAYOUT__AUTO_COMPACT": "false",
        }
        machine = opened.enter_context(started(folder, settings))
        upstream = f"http://127.0.0.1:{machine.environment[f'{PREFIX}EMBEDDED__AWS_PORT']}"
        proxy = opened.enter_context(FaultyProxy(upstream, seed, {}))
        storm = Storm(machine, disk, proxy, seed)
        opened.callback(storm.jobs.close)
        # The disk stays until what disturbs it is undone.
        opened.enter_context(storm.disturbing)
        return storm.run(messages, objects, faults, minutes)


class Storm:
    """A machine, its jobs, and the faults that they get."""

    def __init__(self, machine: Machine, disk: Path, proxy: FaultyProxy, seed: int) -> None:
        self.machine, self.disk, self.proxy, self.rng = machine, disk, proxy, random.Random(seed)
        self.stores, self.copies = disk / "stores.db", (machine.folder / "older.db", machine.folder / "old.db")
        self.messages, self.objects = Messages(self.rng), Objects(TYPES, self.rng)
        self.outcome = Outcome()
        environment = dict(machine.environment)
        self.aws = EmbeddedAws(int(environment[f"{PREFIX}EMBEDDED__AWS_PORT"]))
        self.lake, self.home = environment[f"{PREFIX}LAKE_URI"], environment[f"{PREFIX}HOME"]
        self.tables = {name: registry()[name].table.uri(self.lake) for name in TYPES}
        through = {"AWS_ENDPOINT_URL": proxy.url, f"{PREFIX}GAMES__QUEUE_URL": self._queue(proxy.url)}
        types = machine.folder / "types"
        types.mkdir()
        for name in TYPES:
            shutil.copy(SHIPPED / f"{name}.toml", types)
        self.jobs = Jobs(environment | through, types, machine.folder / "jobs.log")
        self.watcher = Watcher(self.lake, machine.folder, self.tables)
        servers = environment[f"{PREFIX}KAFKA__BOOTSTRAP_SERVERS"]
        self._producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "log_level": 0})
        self._s3, self._sqs = self.aws.client("s3"), self.aws.client("sqs")
        # One after the other: of stores that are down nobody can lock anything.
        self.disturbing = ThreadPoolExecutor(1)
        self._undone: list[Future[Lasted]] = []
        self._lasted: list[Lasted] = []
        self._cycles: dict[str, list[str]] = {INGEST: [], GAMES: []}

    def run(self, messages: int, objects: int, faults: int, minutes: float) -> Outcome:
        """Rounds until there were as many of each, or the time is over; then compare."""
        began, rounds = time.monotonic(), -(-faults // (2 * IN_A_BATCH))
        number = 0
        while self.messages.sent < messages or self.objects.sent < objects or len(self.outcome.faults) < faults:
            self.round(number, -(-messages // rounds), -(-objects // rounds))
            if number == 0:
                self.watcher.start()
            number += 1
            if time.monotonic() - began > minutes * 60:
                break
        self.watcher.stop()
        self.compare()
        outcome = self.outcome
        outcome.messages, outcome.objects, outcome.polls = self.messages.sent, self.objects.sent, self.watcher.polls
        outcome.seen += self.watcher.seen
        outcome.wrong += too_seldom(outcome.polls, number)
        outcome.requests, outcome.late = without_late(self.proxy.injected)
        outcome.seconds = time.monotonic() - began
        return outcome

    def round(self, number: int, messages: int, objects: int) -> None:
        """New data, and faults in the batch that each job makes of it, until both have done everything."""
        kinds = {job: self._next_kinds(job) for job in (INGEST, GAMES)}
        older, old = self.copies
        if old.exists():
            old.replace(older)
        copy_database(self.stores, old)
        self.produce(number, messages)
        self.put(objects)
        began, before = time.monotonic(), self.proxy.injected.copy()
        goes_back = BEHIND in kinds[INGEST] and number > 1
        if goes_back:
            copy_database(older, self.stores)
        due = [fault for job in kinds for fault in due_faults(self.rng, job, kinds[job])]
        events = self.jobs.run([INGEST, GAMES], due, self._happens)
        events += self.until_empty()
        self._undo()
        self.proxy.coming.clear()
        self.outcome.seen += [f"round {number}: {one}" for one in self.watcher.across()]
        self.outcome.unnoticed += [f"round {number}: {one}" for one in unnoticed(events) if goes_back]
        there = {kind for of_job in kinds.values() for kind in of_job if kind != BEHIND or goes_back}
        self.outcome.wrong += [f"round {number}: {one}" for one in wrong(events, there)]
        ways = {name.rpartition(" ")[2] for name in self.proxy.injected - before}
        happened = [event for event in came(events) if met(event, events, self._lasted, ways)]
        self._lasted.clear()
        if goes_back:
            happened.append(Event("at", INGEST, began, BEHIND))
        for one in happened:
            done = max(event.when for event in events if event.what == "done" and event.name == one.name)
            self.outcome.faults.append(Fault(one.why, one.name, done - one.when))
        self.outcome.failed += sum(event.what == "failed" for event in events)

    def until_empty(self) -> list[Event]:
        """Run the job of events until nothing is announced any more. Raises JobsEnded."""
        deadline, events = time.monotonic() + EMPTY_WITHIN_S, list[Event]()
        while waiting := self._announced():
            if time.monotonic() > deadline:
                raise JobsEnded(f"{waiting} announcements are still there after {EMPTY_WITHIN_S:g} s of runs")
            events += self.jobs.run([GAMES], [], lambda _job, _kind: None)
        return events

    def _next_kinds(self, job: str) -> list[str]:
        """Kinds of faults, each once."""
        left, kinds = self._cycles[job], list[str]()
        while len(kinds) < IN_A_BATCH:
            if not left:
                left += self.rng.sample(CYCLES[job], len(CYCLES[job]))
            if (kind := left.pop()) not in kinds:
                kinds.append(kind)
        return kinds

    def _happens(self, job: str, kind: str) -> None:
        """While a job waits at its point, or some time after it."""
        if kind == BROKER:
            kill_jvm("kafka.Kafka", f"{self.home}/kafka")
        elif kind == CONNECT:
            kill_jvm("connect_server.py", f"{self.home}/spark/log4j2.properties")
        elif kind == PROCESS:
            self.jobs.kill()
        elif kind in PROXIED:
            self.proxy.coming.extend([PROXIED[kind]] * self.rng.randint(1, REQUESTS))
        else:
            made = {LOCKED: store_locked, DOWN: store_down}.get(kind)
            self._for_a_while(job, kind, made(self.stores) if made else disk_full(self.disk))

    def _for_a_while(self, job: str, kind: str, disturbance: AbstractContextManager[None]) -> None:
        self._undo()
        begun, seconds = threading.Event(), self.rng.uniform(*LASTS_S)

        def last() -> Lasted:
            try:
                with disturbance:
                    since = time.monotonic()
                    begun.set()
                    time.sleep(seconds)
                    until = time.monotonic()
                return Lasted(kind, job, since, until)
            finally:
                begun.set()

        self._undone.append(self.disturbing.submit(last))
        assert begun.wait(90), "the fault did not begin within 90 s"

    def _undo(self) -> None:
        """Wait until what lasts is over. Raises what beginning or undoing it has raised."""
        while self._undone:
            self._lasted.append(self._undone.pop(0).result())

    def produce(self, number: int, count: int) -> None:
        """The next messages, all of which the broker has afterwards."""
        messages, landed = self.messages.slice(count)
        self.watcher.landed[number] = landed
        offsets = list[int]()

        def delivered(error: object, message: Message) -> None:
            assert error is None, error
            offsets.append(message.offset() or 0)

        for message in messages:
            self._producer.produce("engagements", as_bytes(message), on_delivery=delivered)
            self._producer.poll(0)
        assert self._producer.flush(120) == 0, "the broker does not take messages"
        first = self.messages.sent - len(messages)
        assert offsets == list(range(first, self.messages.sent)), "the oracle knows messages by their offsets"

    def put(self, count: int) -> None:
        """The next objects."""
        contents = self.objects.slice(count)
        for name in TYPES:
            self.watcher.lines[name] = {_url(key): lines for key, lines in self.objects.of_objects(name).items()}
        for key, content in contents.items():
            self._s3.put_object(Bucket=BUCKET, Key=key, Body=content)

    def compare(self) -> None:
        """Every table with the oracle's."""
        machine, oracle, outcome = self.machine, self.messages.oracle, self.outcome
        data = machine.view(
            "engagement/current", "organization_id", "engagement_id", "person_id", "version", "engagement_ts",
            "engagement",
        )  # fmt: skip
        names = machine.view("engagement/mapping", "organization_id", "id", "name", "name_ts")
        notified = machine.rows(
            "engagement/notification", "batch_id", "change_type", "organization_id", "engagement_id",
            "previous_person_id",
        )  # fmt: skip
        found: dict[str, tuple[Iterable[Any], Iterable[Any]]] = {
            "engagement": (
                (
                    (*key, row["person"], row["version"], row["ts"], _content(row))
                    for key, row in oracle.data.items()
                ),
                ((*row, _moment(ts), _content(said)) for *row, ts, said in map(tuple[Any, ...], data)),
            ),
            "name": (
                ((*key, name, ts) for key, (ts, name, _) in oracle.names.items()),
                ((*row, _moment(ts)) for *row, ts in names),
            ),
            "notification": (((batch, kind, *key, was) for batch, kind, key, was in oracle.notifications), notified),
            "quarantined message": (
                ((offset, reason, self.messages.refused[offset]) for offset, reason in oracle.quarantined.items()),
                (
                    # Where decoding decides, any reason will do.
                    (offset, reason and (reason if oracle.quarantined.get(int(str(offset))) else ""), value)
                    for offset, reason, value in machine.rows("engagement/quarantine", "offset", "reason_code", "value")
                ),
            ),
            "engagement of a consumer": (
                ((*key, row["version"]) for key, row in oracle.data.items()),
                ((*key, version) for key, version in self.watcher.mirror.items()),
            ),
        }  # fmt: skip
        found |= self.appended() | {name: self.events(name) for name in self.tables}
        rows = DeltaTable(QUARANTINE.uri(self.lake)).to_pyarrow_table().to_pylist()
        refused = (("", row["source_object"], row["source_line"], row["reason_code"], row["value"]) for row in rows)
        broken = ((*row, "not_json", NO_EVENT) for row in self._of_objects("quarantine"))
        found["quarantined line"] = broken, refused
        dead = int(self._attribute(f"{QUEUE}-dead-letters", "ApproximateNumberOfMessages"))
        outcome.lost += [f"{dead} announcements are dead letters"] * bool(dead)
        for what, (expected, there) in found.items():
            lost, doubled = differences(expected, there)
            outcome.lost += [f"{what} {row}" for row in lost]
            outcome.doubled += [f"{what} {row}" for row in doubled]

    def appended(self) -> dict[str, tuple[Iterable[Any], Iterable[Any]]]:
        """Rows of the tables below the views, which collapse them: one that a replay appends again is there twice."""
        oracle, key = self.messages.oracle, ("organization_id", "engagement_id")
        new = ((batch, *of) for batch, kind, of, _ in oracle.notifications if kind == "INSERT")
        data = self.machine.rows("engagement/data", "batch_id", *key)
        images = self.machine.rows("engagement/changeset", "batch_id", *key, "version")
        said = self.machine.rows("engagement/mapping", "batch_id", "organization_id", "id", "name", "name_ts")
        return {
            "row of the Data Table": (new, data),
            "image": (((batch, *of, version) for batch, of, version in oracle.images), images),
            "name as it arrived": (((batch, *of, name, ts) for batch, of, name, ts in oracle.said), said),
        }

    def events(self, name: str) -> tuple[list[Any], list[Any]]:
        """Rows that a table of events has to have, and those that it has."""
        columns = ["event_id", "source_object", "source_line", "event_ts", "player_id", *registry()[name].fields]
        rows = DeltaTable(self.tables[name]).to_pyarrow_table(columns=columns).to_pylist()
        sent = [(*row, *self.objects.columns[row[0]].values()) for row in self._of_objects(name)]
        return sent, [tuple(row[column] for column in columns) for row in rows]

    def _of_objects(self, kind: str) -> Iterator[tuple[str, str, int]]:
        return ((event, _url(key), line) for event, key, line in self.objects.rows.get(kind, ()))

    def _announced(self) -> int:
        """Objects in the queue, those that somebody has received included."""
        names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
        return sum(int(self._attribute(QUEUE, name)) for name in names)

    def _attribute(self, queue: str, name: str) -> str:
        url = self._queue(self.aws.endpoint).removesuffix(QUEUE) + queue
        return str(self._sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name])

    def _queue(self, endpoint: str) -> str:
        return self.aws.queue_url.replace(self.aws.endpoint, endpoint)


def differences(expected: Iterable[Any], found: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """What is lost, and what is doubled or should not be there, as often as it is."""
    wanted, there = Counter(expected), Counter(found)
    return list((wanted - there).elements()), list((there - wanted).elements())


def too_seldom(polls: int, rounds: int) -> list[str]:
    """What is wrong with a reader that has not looked once a round."""
    return [f"the reader looked {polls} times in {rounds} rounds"] * (polls < rounds)


def without_late(injected: Counter[str]) -> tuple[Counter[str], int]:
    """Requests that failed, and how many of the others were answered late."""
    failed = Counter({name: count for name, count in injected.items() if not name.endswith(f" {PROXIED[LATE]}")})
    return failed, injected.total() - failed.total()


def _is_for(kind: str, job: str, point: str) -> bool:
    """Whether a kind of fault means something at a point of a job."""
    if kind == ANSWER:
        return point.endswith(":before") and not point.startswith("manifest")
    if kind == COMMITTED:
        return point in BEFORE_STORES[job]
    # After the last batch leases are given back, and nothing else is written.
    return point != "finalized" if kind in LASTING else kind not in PROXIED or point in READING


def due_faults(rng: random.Random, job: str, kinds: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What the process of the jobs is asked for, each at another point; nothing for what is there before."""
    free = list(POINTS[job])
    # Those first that mean something at few points.
    for kind in sorted(kinds, key=lambda one: (one not in PROXIED, one != COMMITTED, one != ANSWER)):
        if kind == BEHIND:
            continue
        points = [point for point in free if _is_for(kind, job, point)] or free
        free.remove(point := rng.choice(points))
        does = {ANSWER: "lose", COMMITTED: "lose of stores", CLOCK: "jump"}.get(kind, "pause")
        seconds = rng.uniform(-JUMPS_S, JUMPS_S)
        if kind in KILLED and rng.random() < 0.7:
            does, seconds = "pass", rng.uniform(0, GOES_ON_S)
        yield {"kind": kind, "job": job, "point": point, "does": does, "seconds": seconds}


def _content(of: Mapping[str, Any]) -> str:
    return json.dumps({name: of[name] for name in CONTENT}, sort_keys=True)


def _moment(text: object) -> datetime:
    return datetime.fromisoformat(str(text)).astimezone(UTC)


def _url(key: str) -> str:
    return f"s3://{BUCKET}/{key}"


def table(faults: Sequence[Fault]) -> Iterator[str]:
    """Kinds of faults, how often each was, and how long it took to recover, as Markdown."""
    yield from ("| fault | in the middle of | times | recovered, median s | slowest s |", "|---|---|---|---|---|")
    by_kind: dict[tuple[str, str], list[float]] = {}
    for fault in faults:
        by_kind.setdefault((fault.kind, fault.job), []).append(fault.seconds)
    for (kind, job), seconds in sorted(by_kind.items()):
        middle = sorted(seconds)[len(seconds) // 2]
        yield f"| {kind} | `{job}` | {len(seconds)} | {middle:.0f} | {max(seconds):.0f} |"
