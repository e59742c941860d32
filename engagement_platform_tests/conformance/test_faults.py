"""The reader and the books of a storm of faults notice what they are there for. The storm is `make conformance`."""

from __future__ import annotations

import gzip
import random
import shutil
import sqlite3
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.errors import PythonException
from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from pyspark.sql.connect.proto import Command, SqlCommand, WriteOperation
from sqlalchemy import text

from engagement_platform.engine.database import StoresUnavailable, open_engine, reading, writing
from engagement_platform.engine.job import BatchFailed, Callbacks
from engagement_platform.lake.lake import Lake
from engagement_platform.local.aws import BUCKET
from engagement_platform.pipelines.games.decoding import Event as Decoded
from engagement_platform.pipelines.games.decoding import EventLimits, event_decoder
from engagement_platform.pipelines.games.registry import registry
from engagement_platform.pipelines.jobs import build_job, open_stores
from engagement_platform.pipelines.parts import Parts
from engagement_platform.settings import GamesSettings, Settings
from engagement_platform_tests.conformance import driven, faults
from engagement_platform_tests.conformance.disturbances import copy_database, exchange, store_down, store_locked
from engagement_platform_tests.conformance.driven import (
    Driven,
    ShiftedDatetime,
    told_of_stores,
    told_of_the_lake,
    why,
)
from engagement_platform_tests.conformance.driver import LAKE, STORES, Event, Jobs, JobsEnded
from engagement_platform_tests.conformance.fault_errors import (
    ANSWER,
    BEHIND,
    BROKER,
    CLOCK,
    COMMITTED,
    CONNECT,
    CYCLES,
    DOWN,
    FULL,
    GAMES,
    INGEST,
    KINDS,
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
from engagement_platform_tests.conformance.faults import (
    BEFORE_STORES,
    POINTS,
    Fault,
    Storm,
    differences,
    due_faults,
    table,
    too_seldom,
    without_late,
)
from engagement_platform_tests.conformance.sent import LINES, NO_EVENT, Messages, Objects
from engagement_platform_tests.conformance.watched import (
    Watcher,
    doubled,
    gone_back,
    torn,
    torn_across,
    torn_objects,
)
from engagement_platform_tests.consumers.lakes import PlainLake
from engagement_platform_tests.engine.test_stores import manifest
from engagement_platform_tests.ingestion.oracle import as_bytes
from engagement_platform_tests.ingestion.test_whole_path import Machine
from engagement_platform_tests.pipelines.mutations.histories import engagement as message

LANDED = {0: {("o", "a"): 1, ("o", "b"): 1}, 1: {("o", "a"): 2, ("o", "c"): 1}}


def test_whole_batches_are_not_torn() -> None:
    assert torn({}, LANDED) == []
    assert torn({("o", "a"): 1, ("o", "b"): 1}, LANDED) == []
    assert torn({("o", "a"): 2, ("o", "b"): 1, ("o", "c"): 1}, LANDED) == []
    assert torn({("o", "a"): 3, ("o", "b"): 1, ("o", "c"): 1}, LANDED) == [], "a later batch has landed, too"


def test_a_batch_of_which_a_row_or_a_newer_version_is_missing_is_torn() -> None:
    assert torn({("o", "a"): 1}, LANDED) == ["batch 0 is torn: 1 of 2 rows"]
    assert torn({("o", "a"): 2, ("o", "b"): 1}, LANDED) == ["batch 1 is torn: 1 of 2 rows"]
    assert torn({("o", "a"): 1, ("o", "b"): 1, ("o", "c"): 1}, LANDED) == ["batch 1 is torn: 1 of 2 rows"]


def test_a_row_that_is_there_twice_is_seen() -> None:
    assert doubled(["a", "b"], "row") == []
    assert doubled(["a", "b", "a"], "row") == ["row a is there 2 times"]


def test_a_row_that_goes_back_or_is_gone_is_seen() -> None:
    before = {("o", "a"): 2, ("o", "b"): 1}
    assert gone_back(before, {("o", "a"): 2, ("o", "b"): 3, ("o", "c"): 1}) == []
    assert len(gone_back(before, {("o", "a"): 1, ("o", "b"): 1})) == 1
    assert len(gone_back(before, {("o", "a"): 2})) == 1


def test_an_object_of_which_a_line_is_missing_is_torn() -> None:
    lines = {"one": 2, "two": 1}
    assert torn_objects([("one", 1), ("one", 2)], lines) == []
    assert torn_objects([("one", 2), ("two", 1)], lines) == ["one is torn: 1 of 2 lines"]


def test_an_object_that_a_table_has_and_another_lacks_is_torn_across_tables() -> None:
    of_objects = {"login": {"one": 1, "two": 1}, "purchase": {"one": 2}}
    assert torn_across({}, of_objects) == []
    assert torn_across({"login": [("one", 1)], "purchase": [("one", 2), ("one", 3)]}, of_objects) == []
    assert torn_across({"login": [("one", 1), ("two", 1)]}, of_objects) == ["one is torn across tables: 1 of 3 lines"]


def test_the_tables_themselves_are_looked_at_for_what_is_torn_across_them(tmp_path: Path) -> None:
    tables = {name: str(tmp_path / name) for name in ("login", "purchase")}
    watcher = Watcher(str(tmp_path / "lake"), tmp_path, tables)
    watcher.lines = {"login": {"one": 1}, "purchase": {"one": 1}}
    assert watcher.across() == []
    for name, torn_there in (("login", ["one is torn across tables: 1 of 2 lines"]), ("purchase", [])):
        write_deltalake(tables[name], pa.table({"source_object": ["one"], "source_line": [1]}))
        assert watcher.across() == torn_there


def test_books_name_what_is_lost_and_what_is_doubled_as_often_as_it_is() -> None:
    assert differences("aab", "aab") == ([], [])
    assert differences("aab", "abbb") == (["a"], ["b", "b"])


def test_a_slice_lands_versions_in_every_way_and_the_next_one_newer_ones() -> None:
    messages = Messages(random.Random(1))
    first, landed = messages.slice(300)
    second, newer = messages.slice(300)
    assert (len(first), len(second), messages.sent) == (300, 300, 600)
    kinds = {kind for _, kind, _, _ in messages.oracle.notifications}
    assert kinds == {"INSERT", "UPDATE"}
    assert messages.oracle.quarantined
    assert any(key in landed and version > landed[key] for key, version in newer.items())
    bulk = [row for (organization, _), row in messages.oracle.data.items() if organization.startswith("bulk-")]
    assert len({row["ts"] for row in bulk}) == len(bulk), "rows that were swapped are seen"
    assert len({row["type"] for row in bulk}) > 2


def test_every_line_of_an_object_is_expected_once() -> None:
    objects = Objects(("login", "purchase"), random.Random(1))
    contents = objects.slice(20)
    expected = [(key, line) for rows in objects.rows.values() for _, key, line in rows]
    assert sorted(expected) == [(key, line) for key in sorted(contents) for line in range(1, LINES + 1)]
    assert len(objects.rows["quarantine"]) == 2


def test_every_event_that_is_sent_becomes_what_its_row_has_to_say() -> None:
    types, decode = ("heartbeat", "login", "purchase"), event_decoder(registry(), EventLimits.of(Settings()))
    objects = Objects(types, random.Random(1))
    for key, content in objects.slice(20).items():
        for number, line in enumerate(gzip.decompress(content).splitlines(), 1):
            decoded = decode(line, datetime.now(UTC))
            if isinstance(decoded, Decoded):
                columns = [column.name for column in registry()[decoded.event_type].table.columns]
                row = dict(zip(columns, decoded.values, strict=False))
                expected = objects.columns[decoded.event_id]
                assert {name: row[name] for name in expected} == expected
                assert (decoded.event_id, key, number) in objects.rows[decoded.event_type]
            else:
                assert (decoded.code, line) == ("not_json", NO_EVENT)
    ids = [event for event, *_ in objects.rows["purchase"]]
    assert len({objects.columns[event]["quantity"] for event in ids}) > len(ids) / 2, "rows that were swapped are seen"


def test_a_value_in_the_row_of_another_event_is_seen(tmp_path: Path) -> None:
    objects, types = Objects(("login", "purchase"), random.Random(1)), ("login", "purchase")
    objects.slice(20)
    storm: Any = SimpleNamespace(objects=objects, tables={name: str(tmp_path / name) for name in types})
    storm._of_objects = partial(Storm._of_objects, storm)

    def written(name: str, change: Mapping[str, object]) -> None:
        rows = [
            {"event_id": event, "source_object": f"s3://{BUCKET}/{key}", "source_line": line, **objects.columns[event]}
            for event, key, line in objects.rows[name]
        ]
        rows[0] |= change
        write_deltalake(tmp_path / name, pa.Table.from_pylist(rows), mode="overwrite")

    for name in types:
        written(name, {})
    assert [differences(*Storm.events(storm, name)) for name in types] == [([], [])] * 2
    written("purchase", {"quantity": 99_999})
    assert [list(map(len, differences(*Storm.events(storm, name)))) for name in types] == [[0, 0], [1, 1]]


@pytest.mark.parametrize("again", ["", "row of the Data Table", "image", "name as it arrived"])
def test_a_row_that_is_appended_again_is_seen_below_the_views(tmp_path: Path, again: str) -> None:
    messages, machine, key = Messages(random.Random(1)), Machine(tmp_path, {}), ("organization_id", "engagement_id")
    for _ in range(2):
        messages.slice(100)
    storm: Any = SimpleNamespace(messages=messages, machine=machine)
    of, name = messages.oracle, ("organization_id", "id", "name", "name_ts")
    assert len(set(of.said)) < len(of.said), "a batch may bring a name twice"
    new = [(batch, *key) for batch, kind, key, _ in of.notifications if kind == "INSERT"]
    for what, name_of_table, columns, rows in (
        ("row of the Data Table", "data", key, new),
        ("image", "changeset", (*key, "version"), [(batch, *key, version) for batch, key, version in of.images]),
        ("name as it arrived", "mapping", name, [(batch, *key, *rest) for batch, key, *rest in of.said]),
    ):
        there = [*rows, *rows[: what == again]]
        made = pa.table(dict(zip(("batch_id", *columns), map(list, zip(*there, strict=True)), strict=True)))
        write_deltalake(f"{machine.lake}/engagement/{name_of_table}", made)
    found = {what: list(map(len, differences(*both))) for what, both in Storm.appended(storm).items()}
    assert found == {what: [0, int(what == again)] for what in found}
    assert len(found) == 3


def test_messages_that_have_to_be_refused_are_kept_whole() -> None:
    messages = Messages(random.Random(1))
    slices = [each for _ in range(2) for each in messages.slice(200)[0]]
    assert messages.refused == {offset: as_bytes(slices[offset]) for offset in messages.oracle.quarantined}
    assert len(messages.refused) > 2


def test_what_was_there_once_and_is_gone_is_seen(tmp_path: Path) -> None:
    uri = tmp_path / "login"
    watcher = Watcher(str(tmp_path / "lake"), tmp_path, {"login": str(uri)})
    watcher.poll()
    write_deltalake(uri, pa.table({"source_object": ["one"], "source_line": [1]}))
    watcher.lines["login"] = {"one": 1}
    watcher.poll()
    assert watcher.seen == []
    shutil.rmtree(uri)
    watcher._state = watcher.mirror = {("o", "a"): 1}
    watcher.poll()
    assert watcher.seen == ["the engagements are gone", "engagement/notification is gone", "login is gone"]


def test_a_batch_of_which_readers_see_a_part_and_rows_that_are_there_twice_or_go_back_are_seen(tmp_path: Path) -> None:
    lake, one, other = PlainLake(tmp_path / "home"), ("org", "e1"), ("org", "e2")
    watcher = Watcher(lake.settings.lake, tmp_path, {})
    watcher.landed[0] = {one: 1, other: 1}
    first = lake.land([message("e1", "p1", 10), message("e2", "p2", 10)])
    watcher.poll()
    assert (watcher.seen, watcher.mirror) == ([], {one: 1, other: 1})

    watcher.landed[1] = {one: 2, ("org", "e3"): 1}
    lake.land([message("e1", "p1", 10, version=2)])
    watcher.poll()
    assert watcher.seen == ["batch 1 is torn: 1 of 2 rows"]
    assert watcher.mirror == {one: 2, other: 1}

    del watcher.landed[1]
    watcher.seen.clear()
    [row] = [row for row in lake.rows(lake.data).to_pylist() if row["engagement_id"] == "e2"]
    lake.append(lake.data, [row], first, commit="again")
    changed = {**row, "change_type": "UPDATE", "previous_person_id": "p2"}
    lake.notify([changed], lake.begin("ingest-engagements"))
    watcher.mirror[other] = 3
    watcher.poll()
    assert watcher.seen == [
        f"engagement {other} is there 2 times",
        f"changed engagement {other} is there 2 times",
        f"{other} went back from version 3 to 1",
    ]


def test_a_shifted_clock_makes_plain_values() -> None:
    assert type(ShiftedDatetime.fromisoformat("2026-11-20T10:00:00+00:00")).__name__ == "datetime"
    assert isinstance(ShiftedDatetime.fromisoformat("2026-11-20T10:00:00+00:00"), ShiftedDatetime)


def failed(name: str, why: str) -> Event:
    return Event("failed", name, 0.0, why)


def stopped(why: str, *causes: str) -> str:
    """What is told of a batch that Spark gave up."""
    quoted = f"BatchFailed: ingest-engagements batch 3 stopped: {why}. What its finished processes wrote …"
    return "\n".join((quoted, *causes))


FETCHED = stopped("PythonException: An exception was thrown from the Python worker")
CAUSED = [
    ("StoresUnavailable: the stores cannot be used", LOCKED),
    ("LeaseLost: no heartbeat", CLOCK),
    ("OSError: [Errno 28] No space left on device", FULL),
    (stopped("SparkConnectGrpcException: the answer is lost"), ANSWER),
    (stopped("PySparkRuntimeError: [RESPONSE_ALREADY_RECEIVED] INVALID_…"), CONNECT),
    (stopped("SparkConnectException: [NO_ACTIVE_SESSION] No active Spark session found"), CONNECT),
    (stopped("AnalysisException: [TABLE_OR_VIEW_NOT_FOUND] The table or view `a` cannot be found"), CONNECT),
    (stopped("SparkException: [TASK_WRITE_FAILED] Task failed while writing rows"), FULL),
    (stopped("SparkException: Job aborted", "Caused by: java.io.IOException: No space left on device"), FULL),
    (stopped("SparkException: Job aborted", "org.apache.kafka.common.errors.TimeoutException: Timed out"), BROKER),
    (f"{FETCHED}\nengagement_platform.sources.s3_sqs_errors.ObjectNotReadable: SlowDown", "S3 and SQS answer 503"),
    ("QueueUnavailable: SlowDown: injected", "S3 and SQS answer 503"),
    ("StoresUnavailable: the stores cannot be used: server closed the connection", COMMITTED),
    ("LeaseUnavailable: a process holds the lease; waited 30 s for it", DOWN),
]


@pytest.mark.parametrize(("why", "kind"), CAUSED)
def test_an_error_is_none_of_the_product_where_a_fault_of_its_round_may_cause_it(why: str, kind: str) -> None:
    assert wrong([failed(INGEST, why)], {kind, PROCESS}) == []


@pytest.mark.parametrize("kind", sorted(KINDS - {CLOCK, CONNECT, PROCESS} - LASTING))
@pytest.mark.parametrize("why", ["LeaseLost: no heartbeat", "FenceNotPlaced: others", "LeaseUnavailable: waited 30 s"])
def test_leases_are_lost_only_by_what_keeps_a_run_from_its_stores_or_stops_it(kind: str, why: str) -> None:
    assert wrong([failed(INGEST, why)], {kind}) == [f"failed {INGEST}: {why}"]


@pytest.mark.parametrize("why", ["ObjectNotReadable: no answer", "QueueUnavailable: no answer", stopped("OSError: no")])
def test_an_answer_that_is_late_excuses_no_error(why: str) -> None:
    assert wrong([failed(GAMES, why)], {LATE}) == [f"failed {GAMES}: {why}"]


@pytest.mark.parametrize("why", [why for why, kind in CAUSED if kind not in {CLOCK, DOWN}])
def test_the_same_error_is_wrong_in_a_round_without_such_a_fault(why: str) -> None:
    assert wrong([failed(INGEST, why)], {PROCESS, CLOCK}) == [f"failed {INGEST}: {why}"]


@pytest.mark.parametrize(
    "why",
    [
        "KeyError: 'a'",
        "AssertionError: ",
        "BooksDoNotBalance: 3 received, 2 accounted for",
        stopped("TypeError: no text"),
        stopped("PySparkRuntimeError: [DATA_TYPE_MISMATCH] no text"),
        stopped("AnalysisException: [UNRESOLVED_COLUMN] A column cannot be resolved"),
        stopped("AnalysisException: [PATH_NOT_FOUND] Path does not exist"),
        stopped("SparkException: [INTERNAL_ERROR] The query planner is broken"),
        f"{FETCHED}\nKeyError: 'batch'",
        "OSError: [Errno 2] No such file",
        "PySparkRuntimeError: [RESULT_TYPE_MISMATCH]",
        "StoresBehind: the stores are older than the tables",
        "ObjectsForgotten: of batch 3",
    ],
)
def test_an_error_that_no_fault_may_cause_is_wrong(why: str) -> None:
    assert wrong([failed(GAMES, why)], KINDS - {BEHIND}) == [f"failed {GAMES}: {why}"]


def test_what_an_error_comes_of_is_told_without_stacks() -> None:
    spark = PythonException(
        "\n  An exception was thrown.\n  File a.py\nKeyError: 'batch'\n\tat org.apache.spark.A(A.scala)"
    )
    error = BatchFailed(manifest(), spark)
    error.__cause__ = spark
    said = why(error).splitlines()
    assert said[0].startswith(
        "BatchFailed: ingest-engagements batch 0 stopped: PythonException: An exception was thrown"
    )
    assert said[1:] == ["PythonException: ", "KeyError: 'batch'"]


@pytest.mark.parametrize("event", [Event("recovered", "['a']", 0.0), Event("reset", GAMES, 0.0)])
def test_stores_are_mended_only_after_they_went_back(event: Event) -> None:
    assert len(wrong([event], KINDS - {BEHIND})) == 1
    assert wrong([event], {BEHIND}) == []


def test_each_job_whose_stores_went_back_has_to_refuse() -> None:
    ingest, games = failed(INGEST, "StoresBehind: batch 3"), failed(GAMES, "ObjectsForgotten: of batch 3")
    assert wrong([ingest, games], {BEHIND}) == unnoticed([ingest, games]) == []
    assert [one.partition(" ")[0] for one in unnoticed([ingest])] == [GAMES]
    assert [one.partition(" ")[0] for one in unnoticed([games, failed(INGEST, "LeaseLost: gone")])] == [INGEST]


@pytest.mark.parametrize("job", CYCLES)
@pytest.mark.parametrize("seed", range(20))
def test_only_answers_to_commits_are_lost_and_what_lasts_comes_before_one(job: str, seed: int) -> None:
    rng = random.Random(seed)
    kinds = {ANSWER, COMMITTED, *rng.sample(sorted({*CYCLES[job]} - {ANSWER, COMMITTED, BEHIND}), 2)}
    due = {fault["kind"]: fault for fault in due_faults(rng, job, sorted(kinds))}
    assert due[ANSWER]["point"].endswith(":before")
    assert due[ANSWER]["point"] != "manifest:before"
    assert due[COMMITTED]["point"] in BEFORE_STORES[job]
    assert "finalized" not in {due[kind]["point"] for kind in LASTING & kinds}
    assert [due[kind]["does"] for kind in (ANSWER, COMMITTED)] == ["lose", "lose of stores"]
    assert set(BEFORE_STORES[job]) <= set(POINTS[job])


def wrote(to: str, began: float, ended: float, why: str = "") -> Event:
    return Event("wrote", to, ended, why, began)


GONE = "StoresUnavailable: the stores cannot be used"


@pytest.mark.parametrize(
    ("kind", "attempt", "has_met"),
    [
        (LOCKED, wrote(STORES, 11, 14), True),
        (DOWN, wrote(STORES, 11, 11, GONE), True),
        (DOWN, wrote(STORES, 9, 11, GONE), True),
        (FULL, wrote(STORES, 11, 12, GONE), True),
        (FULL, wrote(LAKE, 9, 13, "SparkConnectGrpcException: No space left on device"), True),
        (LOCKED, wrote(STORES, 5, 9), False),
        (LOCKED, wrote(STORES, 15, 16), False),
        (LOCKED, wrote(STORES, 9, 11), False),
        (DOWN, wrote(LAKE, 11, 12), False),
        (FULL, wrote(STORES, 11, 12), False),
        (FULL, wrote(LAKE, 11, 12), False),
        (FULL, wrote(STORES, 11, 12, "StaleBatch: another one"), False),
        (FULL, wrote(LAKE, 11, 12, f"SparkConnectGrpcException: {driven.LOST}"), False),
        (FULL, wrote(LAKE, 15, 16, "SparkConnectGrpcException: No space left on device"), False),
    ],
)
def test_what_lasts_has_met_its_job_where_an_attempt_to_write_waited_or_failed(
    kind: str, attempt: Event, has_met: bool
) -> None:
    fault, lasted = Event("at", GAMES, 9.0, kind), [Lasted(kind, GAMES, 10.0, 14.5)]
    assert met(fault, [fault, attempt], lasted, ()) is has_met
    assert not met(fault, [fault], lasted, ())
    assert not met(fault, [fault, attempt], [Lasted(kind, INGEST, 10.0, 14.5)], ())
    assert not met(fault, [fault, attempt], [], ())


def test_requests_that_are_answered_late_have_met_a_fault_and_are_none_that_failed() -> None:
    late = Event("at", GAMES, 9.0, LATE)
    assert not met(late, [late], [], {"lost"})
    assert met(late, [late], [], {PROXIED[LATE]})
    assert without_late(Counter({"s3 slow": 3, "sqs slow": 1, "s3 lost": 2})) == (Counter({"s3 lost": 2}), 4)


def test_a_round_counts_the_faults_that_have_met_their_job_and_reports_what_is_torn_after_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    injected, kinds = Counter({"s3 lost": 1}), {INGEST: [LOCKED], GAMES: [LOCKED, LATE, "S3 and SQS: answers lost"]}
    came_to = [Event("at", job, 9.0, kind) for job in kinds for kind in kinds[job]]

    def run(*_: object) -> list[Event]:
        injected["s3 slow"] += 2
        return [*came_to, wrote(STORES, 11, 14), Event("done", INGEST, 30.0), Event("done", GAMES, 40.0)]

    storm = Storm.__new__(Storm)
    members = {
        "stores": tmp_path / "stores.db", "copies": (tmp_path / "older", tmp_path / "old"), "rng": random.Random(1),
        "outcome": faults.Outcome(), "_undone": [], "proxy": SimpleNamespace(injected=injected, coming=deque(["lost"])),
        "_lasted": [Lasted(LOCKED, GAMES, 10.0, 15.0), Lasted(LOCKED, INGEST, 1.0, 5.0)],
        "jobs": SimpleNamespace(run=run), "watcher": SimpleNamespace(across=lambda: ["one is torn across tables"]),
        "_next_kinds": kinds.__getitem__, "produce": Mock(), "put": Mock(), "until_empty": list,
    }  # fmt: skip
    for name, value in members.items():
        monkeypatch.setattr(storm, name, value, raising=False)
    storm.round(7, 10, 10)
    assert storm.outcome.faults == [Fault(LOCKED, GAMES, 31.0), Fault(LATE, GAMES, 31.0)]
    assert storm.outcome.seen == ["round 7: one is torn across tables"]
    assert (storm.outcome.wrong, storm.outcome.unnoticed, list(storm.proxy.coming), storm._lasted) == ([], [], [], [])


def test_a_reader_that_looks_less_often_than_once_a_round_fails_the_storm() -> None:
    assert too_seldom(3, 3) == []
    assert too_seldom(2, 3) == ["the reader looked 2 times in 3 rounds"]


def test_what_undoing_a_disturbance_raises_is_raised_where_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "LASTS_S", (0.0, 0.0))
    storm: Any = SimpleNamespace(rng=random.Random(1), disturbing=ThreadPoolExecutor(1), _undone=[], _lasted=[])
    storm._undo = partial(Storm._undo, storm)

    @contextmanager
    def disturbs(*before: Exception, after: Sequence[Exception] = ()) -> Iterator[None]:
        for error in before:
            raise error
        yield
        for error in after:
            raise error

    with storm.disturbing:
        Storm._for_a_while(storm, GAMES, LOCKED, disturbs())
        storm._undo()
        assert [(one.kind, one.job, one.since <= one.until) for one in storm._lasted] == [(LOCKED, GAMES, True)]
        for broken in (disturbs(OSError("not begun")), disturbs(after=[OSError("not undone")])):
            Storm._for_a_while(storm, GAMES, DOWN, broken)
            with pytest.raises(OSError, match=r"not begun|not undone"):
                storm._undo()
    assert len(storm._lasted) == 1


@pytest.mark.parametrize("name", POINTS)
def test_faults_wait_at_points_that_their_job_passes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    settings = Settings(home=tmp_path, games=GamesSettings(queue_url="https://sqs.eu-west-1.amazonaws.com/1/events"))
    monkeypatch.setattr(Lake, "ensure", lambda *_: None)
    job = build_job(name, Parts(Lake(Mock(), settings), open_stores(settings), settings, Callbacks()))
    assert set(POINTS[name]) <= set(job.crash_points), "a point is spelled wrong, and would never come"
    assert len(POINTS[name]) == len(set(POINTS[name]))


@pytest.mark.parametrize("done", [True, False])
def test_what_is_killed_after_its_job_was_done_has_met_nobody(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, done: bool
) -> None:
    jobs, killed = Jobs({}, tmp_path, tmp_path / "log"), list[str]()
    monkeypatch.setattr(jobs, "_ask", lambda *_: None)

    def say(*said: dict[str, object]) -> None:
        for each in said:
            jobs._said.put(each)

    def happens(job: str, kind: str) -> None:
        assert job == GAMES
        killed.append(kind)
        say(*ends)

    ends: list[dict[str, object]] = [{"done": GAMES}, {"idle": True}]
    say({"at": GAMES, "why": PROCESS}, *(ends if done else []))
    fault = {"kind": PROCESS, "job": GAMES, "point": "finalized", "does": "pass", "seconds": 0.0}
    events = jobs.run([GAMES], [fault], happens)
    assert killed == [event.why for event in came(events)] == ([] if done else [PROCESS])


def test_an_attempt_to_write_has_the_times_that_its_process_tells(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    jobs = Jobs({}, tmp_path, tmp_path / "log")
    monkeypatch.setattr(jobs, "_ask", lambda *_: None)
    for said in ({"wrote": STORES, "why": GONE, "began": 1.5, "when": 2.5}, {"idle": True}):
        jobs._said.put(said)
    assert jobs.run([], [], Mock()) == [wrote(STORES, 1.5, 2.5, GONE)]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """What a process of jobs has told."""
    lines = list[dict[str, Any]]()
    monkeypatch.setattr(driven, "tell", lambda **what: lines.append(what))
    yield lines
    driven._COMING.lost_of = ""


def jobs_with(*faults: Mapping[str, Any]) -> Driven:
    jobs = Driven()
    jobs._faults = list(faults)
    return jobs


SAVED = Command(write_operation=WriteOperation())


def test_the_answer_to_the_next_save_of_a_thread_is_lost_when_it_is_done(told: list[dict[str, Any]]) -> None:
    done = list[tuple[object, ...]]()
    executed = told_of_the_lake(lambda _client, *given: done.append(given))
    fault = {"kind": ANSWER, "job": GAMES, "point": "tables.login:before", "does": "lose"}
    jobs = jobs_with(fault)
    jobs._observe(GAMES, "tables.login:before")
    other = threading.Thread(target=executed, args=(None, SAVED))
    other.start()
    other.join()
    executed(None, Command(sql_command=SqlCommand()))
    assert [line for line in told if "at" in line] == [], "neither another thread's, nor what saves nothing"
    assert jobs._faults == [fault], "it waits until it has come"
    with pytest.raises(SparkConnectGrpcException, match="UNAVAILABLE"):
        executed(None, SAVED, {})
    assert done[-1] == (SAVED, {})
    assert told[-1] == {"at": GAMES, "why": ANSWER}
    assert jobs._faults == []
    executed(None, SAVED)
    assert [line["wrote"] for line in told if "wrote" in line] == [LAKE] * 3
    assert len(done) == 4


def test_no_answer_is_lost_after_the_commit_that_it_was_to_be_of(told: list[dict[str, Any]]) -> None:
    executed = told_of_the_lake(lambda *_: "answer")
    jobs = jobs_with({"kind": ANSWER, "job": GAMES, "point": "tables.login:before", "does": "lose"})
    jobs._observe(GAMES, "tables.login:before")
    jobs._observe(GAMES, "tables.login:after")
    assert executed(None, SAVED) == "answer"
    assert [line for line in told if "at" in line] == []


def test_the_answer_to_a_commit_of_the_stores_is_lost_when_it_is_made(
    tmp_path: Path, told: list[dict[str, Any]]
) -> None:
    engine, write = open_engine(f"sqlite:///{tmp_path}/stores.db"), told_of_stores(writing)
    jobs = jobs_with({"kind": COMMITTED, "job": GAMES, "point": "manifest:before", "does": "lose of stores"})
    jobs._observe(GAMES, "manifest:before")
    with pytest.raises(StoresUnavailable, match="closed the connection"), write(engine, "one") as connection:
        connection.execute(text("CREATE TABLE one (n INTEGER)"))
    with write(engine, "one") as connection:
        connection.execute(text("INSERT INTO one VALUES (1)"))
    with reading(engine) as connection:
        assert connection.execute(text("SELECT n FROM one")).all() == [(1,)]
    assert [line.get("wrote", line.get("why")) for line in told] == [STORES, COMMITTED, STORES]


def test_attempts_to_write_are_told_with_how_they_ended_and_those_of_heartbeats_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: list[dict[str, Any]]
) -> None:
    stores, began = tmp_path / "stores.db", time.monotonic()
    monkeypatch.setattr("engagement_platform.engine.database.LOCK_TIMEOUT_S", 0)
    engine, write = open_engine(f"sqlite:///{stores}"), told_of_stores(writing)

    def beat() -> None:
        with write(engine, "one"):
            pass

    beat()
    with store_locked(stores), pytest.raises(StoresUnavailable):
        beat()
    heart = threading.Thread(target=beat, name="lease job/one")
    heart.start()
    heart.join()
    executed = told_of_the_lake(Mock(side_effect=OSError("No space left on device")))
    with pytest.raises(OSError, match="No space"):
        executed(None, SAVED)
    assert [(line["wrote"], line["why"].partition(":")[0]) for line in told] == [
        (STORES, ""),
        (STORES, "StoresUnavailable"),
        (LAKE, "OSError"),
    ]
    assert all(began <= line["began"] <= line["when"] <= time.monotonic() for line in told)


def test_a_queue_that_never_gets_empty_ends_the_storm(monkeypatch: pytest.MonkeyPatch) -> None:
    storm: Any = SimpleNamespace(_announced=lambda: 3, jobs=SimpleNamespace(run=lambda *_: []))
    monkeypatch.setattr(faults, "EMPTY_WITHIN_S", 0.01)
    with pytest.raises(JobsEnded, match="3 announcements are still there"):
        Storm.until_empty(storm)


def test_the_table_has_each_kind_once_with_how_often_it_was() -> None:
    faults = [Fault("disk full", "job", 1.0), Fault("disk full", "job", 3.0), Fault("clock", "job", 2.0)]
    assert list(table(faults))[2:] == ["| clock | `job` | 1 | 2 | 2 |", "| disk full | `job` | 2 | 3 | 3 |"]


def test_stores_that_were_locked_down_or_put_back_are_whole_afterwards(tmp_path: Path) -> None:
    stores, copy = tmp_path / "stores.db", tmp_path / "copy.db"

    def execute(statement: str) -> list[tuple[int]]:
        with closing(sqlite3.connect(stores, timeout=0)) as connection, connection:
            return connection.execute(statement).fetchall()

    execute("PRAGMA journal_mode=WAL")
    execute("CREATE TABLE one (n INTEGER)")
    execute("INSERT INTO one VALUES (1)")
    copy_database(stores, copy)
    with store_locked(stores), pytest.raises(sqlite3.OperationalError, match="locked"):
        execute("INSERT INTO one VALUES (2)")
    with store_down(stores), pytest.raises(sqlite3.OperationalError, match="unable to open"):
        execute("INSERT INTO one VALUES (3)")
    execute("INSERT INTO one VALUES (4)")
    assert execute("SELECT n FROM one") == [(1,), (4,)]
    copy_database(copy, stores)
    assert execute("SELECT n FROM one") == [(1,)]
    assert {file.name for file in tmp_path.iterdir()} <= {"stores.db", "stores.db-wal", "stores.db-shm", "copy.db"}


def test_stores_that_go_down_leave_no_moment_in_which_others_would_make_new_ones(tmp_path: Path) -> None:
    stores, over, missing = tmp_path / "stores.db", threading.Event(), list[bool]()
    stores.write_bytes(b"stores")
    (tmp_path / "away").mkdir()

    def watch() -> None:
        while not over.is_set():
            missing.append(not stores.exists())

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(2_001):
        exchange(stores, tmp_path / "away")
    over.set()
    watcher.join()
    assert len(missing) > 10
    assert not any(missing)
    assert stores.is_dir()
    assert (tmp_path / "away").read_bytes() == b"stores"
