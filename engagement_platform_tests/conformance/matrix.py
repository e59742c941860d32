"""Scenarios × crash points × faults × seeds: each disturbed run, once it is finished, equals an undisturbed one.

Every run has a copy of the same lake and stores, on the same topics and the same Connect server, in processes of its
own. A fault is one process's: killed, ended by an exception, or stopped until its leases are over and somebody else has
done its work, and then woken up.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from engagement_platform.engine.database import open_engine
from engagement_platform.engine.model import ENDS
from engagement_platform.engine.stores import CheckpointStore
from engagement_platform.lake.engagement import ALIAS
from engagement_platform.lake.erased import ERASE_SUBJECTS
from engagement_platform.pii.schema import PII_ERASED
from engagement_platform.pipelines.jobs import REREAD_ENGAGEMENTS
from engagement_platform_tests.conformance.disturbed import points
from engagement_platform_tests.conformance.points import IN_THE_MATRIX
from engagement_platform_tests.conformance.programs import Program, Quick
from engagement_platform_tests.conformance.refusals import Ended
from engagement_platform_tests.conformance.scenarios import (
    PREFIX,
    QUEUE_URL,
    TOPICS,
    Scenario,
    fill,
    make_topics,
    messages,
)
from engagement_platform_tests.conftest import SPARK_CONF
from engagement_platform_tests.ingestion.test_whole_path import Machine, started
from engagement_platform_tests.matrix import spread

FAULTS = ("kill", "raise", "stop")
LEASE_S = 5
"""Time to live of leases where a process is stopped; a busy machine must not take so long to keep one alive."""
SETTINGS = {f"{PREFIX}LAYOUT__AUTO_COMPACT": "false"}
PASSING = frozenset({"ingestion_ts", "ingestion_date"})
"""Columns that say when something was done."""
MEASURED = frozenset({"layout/history"})
"""Tables that keep what maintenance took; a rewrite that was killed is not in them."""

_OF_A_COMMIT = re.compile(r"(?: #\d+)?:(?:before|after)$")
"""What tells points of one function and one table apart."""
_DRAWN = re.compile(r"(?<=@\d)\.[0-9a-f]{8}\b")
"""The end of an application id, which is drawn when a job begins anew; ids of notifications begin with it."""

EACH_CALL = frozenset({ERASE_SUBJECTS, REREAD_ENGAGEMENTS})
"""Jobs of which each call makes a batch, also where one before has done all: how many calls it took is not compared."""

LEFT_OUT: Mapping[str, str] = {
    "batch.*": "said as batches and records; what else is there is of an attempt",
    "lease*.*": "who works, for as long as it works",
    "schema_version.*": "made once, before any run",
    "spark_session.*": "a session of the Connect server, which a run draws anew after one that was ended",
    "*_ts": "a time",
    "*.ingested_us": "a time",
    "*.seen_s": "a time",
    "*.sent_ms": "a time",
    "place.until": "a time",
    "*.app_id": "its end is drawn, and how often a job began anew is its generation",
    "*.message_id": "drawn by the queue, of which each copy has its own",
    "*.master_version": "which key wraps says nothing of what is wrapped",
    "*.wrapped": "encrypted with bytes that are drawn",
    "*.sealed": "encrypted with bytes that are drawn",
    "pii_erased.sequence": "drawn for each tombstone; compared is how many batches began before it",
    "sequence.last": "drawn for each batch, so one higher for each that a further call makes",
    "pii_erasure.number": "drawn for each time that an erasure is asked for",
    "s3_sqs_file.number": "the order in which the queue hands out messages, those of a process that was ended last",
    "*.receipt": "drawn each time that the queue hands out a message",
    "receipt.public_key": "of a key that is drawn",
    "receipt.signature": "of a key that is drawn",
    "batch_metadata.counts": "of the attempt that wrote it last",
    "consumer.lake": "the folder, of which each copy has its own",
    "consumer.revision": "how often the cursor was moved; rows that come again are passed in one move",
    "consumer.rows_read": "rows that come again count again",
    "receipt.keys_destroyed": "by the call that wrote the receipt, which is another one after a fault",
    "place.rows": "by the call that wrote the receipt, which is another one after a fault",
    "place.objects": "by the call that wrote the receipt, which is another one after a fault",
}
"""Columns of the stores, and fields of a receipt and of its places, that are not compared -> why. All others are."""

_TOMBSTONES = f"""
SELECT kind, "within", ref, (
    SELECT count(*) FROM batch
    WHERE json_extract(manifest, '$.sequence') < {PII_ERASED.name}.sequence
      AND job_name NOT IN (SELECT value FROM json_each(?))
) AS batches_before
FROM {PII_ERASED.name}"""
"""Parameter: a JSON list of the jobs whose batches do not count."""

Contents = dict[str, list[str]]


@dataclass(frozen=True)
class Run:
    """One disturbed run. differs: what is not as in the undisturbed one, or what went wrong; empty: nothing.

    of: how many points its scenario passes in all.
    """

    scenario: str
    seed: int
    point: str
    fault: str
    differs: str
    seconds: float
    of: int = 0


def disturb(
    scenarios: Sequence[Scenario], faults: Sequence[str], seeds: int, most: int, only: str, *, each: bool = False
) -> Iterator[Run]:
    """Run the matrix. most: points of each scenario, spread over all that contain `only`; 0: all of these.

    each: of these those that `one_of_each` takes.
    """
    if not scenarios:
        return
    with served() as machine:
        for seed in range(seeds):
            lake = filled(machine, seed)
            for scenario in scenarios:
                prepared, began = copy(lake, f"prepared-{seed}-{scenario.name}", scenario.variables), time.monotonic()
                try:
                    scenario.prepare(prepared)
                    expected, passed = _undisturbed(prepared, scenario)
                except AssertionError as error:
                    yield Run(scenario.name, seed, "", "none", str(error), time.monotonic() - began)
                    continue
                among = [point for point in passed if only in point]
                among = one_of_each(among, seed) if each else among
                if not among:
                    none = f"no crash point contains {only!r}; it passes {', '.join(passed) or 'none'}"
                    yield Run(scenario.name, seed, "", "none", none, time.monotonic() - began)
                for point in spread(among, most or len(among)):
                    for fault in faults:
                        run = _disturbed(prepared, scenario, expected, seed, point, fault)
                        yield replace(run, of=len(passed))
                shutil.rmtree(prepared.folder)


def one_of_each(passed: Sequence[str], seed: int) -> list[str]:
    """One point of each function and table that it commits to; with as many seeds as these have points, each once."""
    commits = dict[str, list[str]]()
    for point in passed:
        commits.setdefault(_OF_A_COMMIT.sub("", point), []).append(point)
    # Not the first of all of them with the first seed: that is before anything of the job was written.
    return [of[(number + seed) % len(of)] for number, of in enumerate(commits.values())]


@contextmanager
def served() -> Iterator[Machine]:
    """Services of their own."""
    os.environ |= {"SPARK_CONF_DIR": str(SPARK_CONF), "AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"}
    with TemporaryDirectory(prefix="conformance-") as folder, started(Path(folder), SETTINGS) as machine:
        yield Quick(machine.folder, machine.environment)


def filled(machine: Machine, seed: int) -> Machine:
    """A home with topics, stores and a lake of its own, as `fill` leaves them."""
    topics = {variable: f"{topic}-{seed}" for topic, variable in TOPICS.items()}
    make_topics(machine, topics.values())
    folder = machine.folder / f"filled-{seed}"
    (folder / "home").mkdir(parents=True)
    own = _at(machine, folder, topics)
    fill(own, seed)
    aliases = DeltaTable(ALIAS.uri(own.lake)).version()
    return replace(own, environment={**own.environment, "ALIASES": str(aliases), "SEED": str(seed)})


def _at(machine: Machine, folder: Path, more: dict[str, str]) -> Machine:
    home = {f"{PREFIX}HOME": str(folder / "home"), f"{PREFIX}LAKE_URI": str(folder / "home" / "lake")}
    return replace(machine, folder=folder, environment={**machine.environment, **home, **more})


def copy(machine: Machine, name: str, variables: Mapping[str, str]) -> Machine:
    """The same home once more, beside it, on the same topics."""
    folder = machine.folder.with_name(name.replace(" ", "-"))
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(machine.folder, folder)
    with closing(sqlite3.connect(folder / "home" / "stores.db")) as stores, stores:
        # Cursors go by the folder of the lake that they are in.
        stores.execute("UPDATE consumer SET lake = ?", (str(folder / "home" / "lake"),))
    return _at(machine, folder, dict(variables))


def _own(prepared: Machine, name: str, scenario: Scenario) -> Machine:
    own = copy(prepared, name, scenario.variables)
    return replace(own, environment={**own.environment, **scenario.own(own)})


def words_of(machine: Machine, program: Sequence[str]) -> list[str]:
    """Module and arguments of a program on this machine."""
    known = {
        "folder": machine.folder,
        "aliases": machine.environment["ALIASES"],
        "today": f"{datetime.now(UTC):%Y-%m-%d}",
    }
    return [word.format_map(known) for word in program]


def _begin(machine: Machine, scenario: Scenario, point: str, fault: str) -> Program:
    return Program(machine, words_of(machine, scenario.program), point, fault)


def _finish(machine: Machine, scenario: Scenario) -> Iterator[Ended]:
    """Run what does the rest, one program after the other; how each ended."""
    for program in scenario.finish or (scenario.program,):
        done = machine._python("-m", *words_of(machine, program))
        yield Ended(done.returncode, done.stderr)


def _until_done(ends: Iterator[Ended], lacks: Callable[[], str]) -> str:
    """Run programs until one has worked and nothing lacks; what lacks after the last, and what is wrong with any."""
    wrong, left = list[str](), ""
    for ended in ends:
        wrong += filter(None, (ended.wrong,))
        if not (left := ended.wrong or ended.refused or lacks()):
            break
    return "; ".join(dict.fromkeys(filter(None, (*wrong, left))))


def _rescue(machine: Machine, scenario: Scenario) -> str:
    """The same as who takes over from a process that hangs: until one of them works."""
    return _until_done(_finish(machine, scenario), lambda: "")


def _undisturbed(prepared: Machine, scenario: Scenario) -> tuple[Contents, list[str]]:
    own = _own(prepared, "undisturbed", scenario)
    done = _begin(own, scenario, "", "none").ended()
    assert done.returncode == 0, f"{scenario.name} undisturbed: {done.stderr}"
    passed = points(done.stderr)
    for point, name in IN_THE_MATRIX.items():
        reached = any(each.startswith((f"{point} ", f"{point}:")) for each in passed)
        assert name != scenario.name or reached, f"{name} passes {passed} and not {point}"
    found = contents(own) | traces(own)
    shutil.rmtree(own.folder)
    return found, passed


def _disturbed(prepared: Machine, scenario: Scenario, expected: Contents, seed: int, point: str, fault: str) -> Run:
    began, own = time.monotonic(), _own(prepared, "disturbed", scenario)
    if fault == "stop":
        ttl = {f"{PREFIX}STORES__LEASE_TTL": f"PT{LEASE_S}S"}
        own = replace(own, environment={**own.environment, **ttl})
    program = _begin(own, scenario, point, fault)
    try:
        differs = _fault(own, scenario, program, fault)
        if not differs:
            ends = _finish(own, scenario)
            differs = _until_done(ends, lambda: differences(expected, contents(own) | traces(own)))
    except AssertionError as error:
        # One of the programs does not end: the others of the matrix may.
        differs = str(error)
    finally:
        program.kill()
    shutil.rmtree(own.folder)
    return Run(scenario.name, seed, point, fault, differs, time.monotonic() - began)


def _fault(own: Machine, scenario: Scenario, program: Program, fault: str) -> str:
    """Return once the program has had its fault and is over; why it had none.

    Of one that was stopped: what was wrong with the end of who did its work meanwhile, or with its own once it woke up.
    """
    if fault == "stop":
        if not program.stopped():
            return f"never reached: {program.ended().stderr[-500:]}"
        time.sleep(LEASE_S)
        rescued = "" if scenario.alone else _rescue(own, scenario)
        program.wake()
        woken = program.ended()
        wrong = Ended(woken.returncode, woken.stderr).wrong
        return "; ".join([f"rescued by {rescued}"] * bool(rescued) + [f"woken up, {wrong}"] * bool(wrong))
    done = program.ended()
    killed, raised = done.returncode == -signal.SIGKILL, done.returncode != 0 and "Crash" in done.stderr
    return "" if {"kill": killed, "raise": raised}[fault] else f"never reached: {done.stderr[-500:]}"


def contents(own: Machine) -> Contents:
    """Every row of every table, or which of its live files are gone, and its properties; how far each job is, and the
    replica's rows.

    Left out: versions and logs, since a batch that is finished by another commits more often, `MEASURED`, and `_DRAWN`.
    """
    found = dict[str, list[str]]()
    for log in _logs(own):
        name, table = _name(log), DeltaTable(str(log.parent))
        found[f"properties of {name}"] = sorted(map(repr, table.metadata().configuration.items()))
        if lost := sorted(_live(table) - _on_disk(log)):
            found[name] = [f"{file} is gone" for file in lost]
            continue
        # Without Spark: a hundredth of the time, and another reader than the one that wrote.
        rows = pa.table(QueryBuilder().register("this", table).execute("SELECT * FROM this"))
        kept = rows.drop_columns([each for each in rows.column_names if each in PASSING]).to_pylist()
        found[name] = sorted(_DRAWN.sub("", repr(row)) for row in kept)
    with _checkpoints(own) as checkpoints:
        records = [record for job in checkpoints.jobs() for record in checkpoints.history(job)]
    batches = {f"{r.manifest} {r.state} {dict(r.manifest.end)}" for r in records if r.manifest.job not in EACH_CALL}
    found["batches"] = sorted(batches | {f"{r.manifest.job} {r.state}" for r in records if r.manifest.job in EACH_CALL})
    if (replica := own.folder / "replica.duckdb").exists():
        with duckdb.connect(str(replica), read_only=True) as connection:
            found["replica"] = sorted(map(repr, connection.execute("SELECT * FROM engagement").fetchall()))
    return found


def traces(own: Machine) -> Contents:
    """What more a run leaves, by which one that did nothing differs from one that did.

    Of each table how many live files it has, and how many former ones of its log are on the disk; what became of each
    batch's records; every row of the stores and a receipt, without what is `LEFT_OUT`; and how many messages of the
    queue wait, are in flight or dead.

    Of two programs at once files and records may be others than of one after the other, so races leave these out. Left
    out here: files that no log names, which a process that was killed in the middle of a write leaves; bytes, which
    differ with the ids that are drawn; other counts of batches, which are of an attempt.
    """
    found = dict[str, list[str]]()
    for log in _logs(own):
        live, named = _live(DeltaTable(str(log.parent))), _named(log)
        former = (named & _on_disk(log)) - live
        found[f"files of {_name(log)}"] = [f"{len(live)} live, {len(former)} former"]
    with _checkpoints(own) as checkpoints:
        records = [record for job in checkpoints.jobs() for record in checkpoints.history(job)]
    found["records"] = sorted(
        f"{r.manifest} {[(end, r.counts[end]) for end in ENDS if end in r.counts]}"
        for r in records
        if r.manifest.job not in EACH_CALL
    )
    if (queue := own.environment.get(QUEUE_URL)) is not None:
        found["queue"] = messages(own, queue)
    return found | stored(own) | _receipt(own)


def stored(own: Machine) -> Contents:
    """Every row of the stores, without what is `LEFT_OUT`; of a tombstone how many batches began before it."""
    found = Contents()
    with closing(sqlite3.connect(own.folder / "home" / "stores.db")) as stores:
        stores.row_factory = sqlite3.Row
        tables = stores.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        for (table,) in tables.fetchall():
            rows = [_compared(table, dict(row)) for row in stores.execute(f'SELECT * FROM "{table}"')]
            if table == PII_ERASED.name:
                rows = [dict(row) for row in stores.execute(_TOMBSTONES, (json.dumps(sorted(EACH_CALL)),))]
            found[f"{table} of the stores"] = sorted(repr(row) for row in rows if row)
    return found


def _receipt(own: Machine) -> Contents:
    if not (file := own.folder / "receipt.json").exists():
        return {}
    said = json.loads(file.read_text("utf-8"))
    places = [_compared("place", place) for place in said.pop("places")]
    return {"receipt": [repr(_compared("receipt", said)), *sorted(map(repr, places))]}


def _compared(table: str, row: Mapping[str, object]) -> dict[str, object]:
    """What is compared of a row."""
    kept = {name: value for name, value in row.items() if not any(fnmatch(f"{table}.{name}", out) for out in LEFT_OUT)}
    if kept.get("job_name") in EACH_CALL:
        kept.pop("batch_id", None)
    return kept


def _logs(own: Machine) -> list[Path]:
    return [log for log in sorted(Path(own.lake).glob("*/*/_delta_log")) if _name(log) not in MEASURED]


def _name(log: Path) -> str:
    return "/".join(log.parts[-3:-1])


def _live(table: DeltaTable) -> set[str]:
    # By their names, which no two files share: paths are written in several ways.
    return {uri.rpartition("/")[2] for uri in table.file_uris()}


def _on_disk(log: Path) -> set[str]:
    return {file.name for file in log.parent.rglob("*.parquet") if log not in file.parents}


def _named(log: Path) -> set[str]:
    """The files that entries of a log ever added."""
    actions = (json.loads(line) for entry in log.glob("*.json") for line in entry.read_text("utf-8").splitlines())
    return {action["add"]["path"].rpartition("/")[2] for action in actions if "add" in action}


@contextmanager
def _checkpoints(own: Machine) -> Iterator[CheckpointStore]:
    engine = open_engine(f"sqlite:///{own.folder / 'home' / 'stores.db'}")
    try:
        yield CheckpointStore(engine)
    finally:
        engine.dispose()


def differences(expected: Contents, found: Contents) -> str:
    """What is not as expected; empty: nothing."""
    differing = []
    for name in sorted({*expected, *found}):
        should, has = expected.get(name, []), found.get(name, [])
        if should != has:
            lacks, more = [one for one in should if one not in has], [one for one in has if one not in should]
            differing.append(f"{name}: {len(has)} instead of {len(should)}, lacks {lacks[:1]}, more {more[:1]}")
    return "; ".join(differing)
