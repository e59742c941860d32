"""Scenarios × crash points × faults × seeds: each disturbed run, once it is finished, equals an undisturbed one.

Every run has a copy of the same lake and stores, on the same topics and the same Connect server, in processes of its
own. A fault is one process's: killed, ended by an exception, or stopped until its leases are over and somebody else has
done its work, and then woken up.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from engagement_platform.engine.database import open_engine
from engagement_platform.engine.stores import CheckpointStore
from engagement_platform.lake.engagement import ALIAS
from engagement_platform_tests.conformance.disturbed import PRINTED
from engagement_platform_tests.conformance.points import IN_THE_MATRIX
from engagement_platform_tests.conformance.scenarios import PREFIX, TOPICS, Scenario, fill
from engagement_platform_tests.conftest import SPARK_CONF
from engagement_platform_tests.ingestion.test_whole_path import Machine, started
from engagement_platform_tests.matrix import spread

FAULTS = ("kill", "raise", "stop")
WITHIN_S = 600
LEASE_S = 5
"""Time to live of leases where a process is stopped; a busy machine must not take so long to keep one alive."""
SETTINGS = {f"{PREFIX}LAYOUT__AUTO_COMPACT": "false"}
PASSING = frozenset({"ingestion_ts", "ingestion_date"})
"""Columns that say when something was done."""
MEASURED = frozenset({"layout/history"})
"""Tables that keep what maintenance took; a rewrite that was killed is not in them."""

Contents = dict[str, list[str]]


@dataclass(frozen=True)
class Run:
    """One disturbed run. differs: what is not as in the undisturbed one, or what went wrong; empty: nothing."""

    scenario: str
    seed: int
    point: str
    fault: str
    differs: str
    seconds: float


def disturb(scenarios: Sequence[Scenario], faults: Sequence[str], seeds: int, most: int, only: str) -> Iterator[Run]:
    """Run the matrix. most: points of each scenario, spread over all that contain `only`; 0: all of these."""
    os.environ |= {"SPARK_CONF_DIR": str(SPARK_CONF), "AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"}
    with (
        TemporaryDirectory(prefix="conformance-") as folder,
        started(Path(folder), SETTINGS) as machine,
        ExitStack() as ending,
    ):
        spark = SparkSession.Builder().remote(machine.environment[f"{PREFIX}SPARK__REMOTE"]).create()
        # Before its server ends; a client would go on asking for it.
        ending.callback(spark.stop)
        for seed in range(seeds):
            filled = _filled(machine, seed)
            for scenario in scenarios:
                prepared, began = _copy(filled, f"prepared-{seed}-{scenario.name}", scenario), time.monotonic()
                try:
                    scenario.prepare(prepared)
                    expected, passed = _undisturbed(spark, prepared, scenario)
                except AssertionError as error:
                    yield Run(scenario.name, seed, "", "none", str(error), time.monotonic() - began)
                    continue
                points = [point for point in passed if only in point]
                for point in spread(points, most or len(points)):
                    for fault in faults:
                        yield _disturbed(spark, prepared, scenario, expected, seed, point, fault)
                shutil.rmtree(prepared.folder)


def _filled(machine: Machine, seed: int) -> Machine:
    topics = {variable: f"{topic}-{seed}" for topic, variable in TOPICS.items()}
    admin = AdminClient({"bootstrap.servers": machine.environment[f"{PREFIX}KAFKA__BOOTSTRAP_SERVERS"]})
    for made in admin.create_topics([NewTopic(name, 1, 1) for name in topics.values()]).values():
        made.result(timeout=60)
    folder = machine.folder / f"filled-{seed}"
    (folder / "home").mkdir(parents=True)
    filled = _at(machine, folder, topics)
    fill(filled, seed)
    aliases = DeltaTable(ALIAS.uri(filled.lake)).version()
    return replace(filled, environment={**filled.environment, "ALIASES": str(aliases)})


def _at(machine: Machine, folder: Path, more: dict[str, str]) -> Machine:
    home = {f"{PREFIX}HOME": str(folder / "home"), f"{PREFIX}LAKE_URI": str(folder / "home" / "lake")}
    return replace(machine, folder=folder, environment={**machine.environment, **home, **more})


def _copy(machine: Machine, name: str, scenario: Scenario) -> Machine:
    folder = machine.folder.with_name(name.replace(" ", "-"))
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(machine.folder, folder)
    with closing(sqlite3.connect(folder / "home" / "stores.db")) as stores, stores:
        # Cursors go by the folder of the lake that they are in.
        stores.execute("UPDATE consumer SET lake = ?", (str(folder / "home" / "lake"),))
    return _at(machine, folder, dict(scenario.variables))


def _program(machine: Machine, program: Sequence[str]) -> list[str]:
    return [word.format(folder=machine.folder, aliases=machine.environment["ALIASES"]) for word in program]


def _begin(machine: Machine, scenario: Scenario, point: str, fault: str) -> subprocess.Popen[str]:
    disturbed = "engagement_platform_tests.conformance.disturbed"
    command = [sys.executable, "-m", disturbed, point, fault, *_program(machine, scenario.program)]
    environment = dict(machine.environment)
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _finish(machine: Machine, scenario: Scenario) -> Iterator[str]:
    """Run what does the rest, one program after the other; why each did not work."""
    for program in scenario.finish or (scenario.program,):
        done = machine._python("-m", *_program(machine, program))
        yield f"{program} ended with {done.returncode}: {done.stderr[-500:]}" if done.returncode else ""


def _undisturbed(spark: SparkSession, prepared: Machine, scenario: Scenario) -> tuple[Contents, list[str]]:
    own = _copy(prepared, "undisturbed", scenario)
    process = _begin(own, scenario, "", "none")
    _, errors = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 0, f"{scenario.name} undisturbed: {errors}"
    passed = [line.removeprefix(PRINTED) for line in errors.splitlines() if line.startswith(PRINTED)]
    for point, name in IN_THE_MATRIX.items():
        reached = any(each.startswith((f"{point} ", f"{point}:")) for each in passed)
        assert name != scenario.name or reached, f"{name} passes {passed} and not {point}"
    contents = _contents(spark, own)
    shutil.rmtree(own.folder)
    return contents, passed


def _disturbed(
    spark: SparkSession, prepared: Machine, scenario: Scenario, expected: Contents, seed: int, point: str, fault: str
) -> Run:
    began, own = time.monotonic(), _copy(prepared, "disturbed", scenario)
    if fault == "stop":
        ttl = {f"{PREFIX}STORES__LEASE_TTL": f"PT{LEASE_S}S"}
        own = replace(own, environment={**own.environment, **ttl})
    process = _begin(own, scenario, point, fault)
    try:
        differs = _fault(own, scenario, process, fault)
        for failed in () if differs else _finish(own, scenario):
            if not (differs := failed or _differences(expected, _contents(spark, own))):
                break
    finally:
        process.kill()
        process.communicate()
    shutil.rmtree(own.folder)
    return Run(scenario.name, seed, point, fault, differs, time.monotonic() - began)


def _fault(own: Machine, scenario: Scenario, process: subprocess.Popen[str], fault: str) -> str:
    """Return once the process has had its fault and is over; why it had none."""
    if fault == "stop":
        # Output stays small enough for the pipes until the process is woken up.
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return "never reached"
        time.sleep(LEASE_S)
        next(_finish(own, scenario))
        os.kill(process.pid, signal.SIGCONT)
    _, errors = process.communicate(timeout=WITHIN_S)
    ended = {"kill": process.returncode == -signal.SIGKILL, "raise": "Crash" in errors, "stop": True}[fault]
    return "" if ended else f"never reached: {errors[-500:]}"


def _contents(spark: SparkSession, own: Machine) -> Contents:
    """Every row of every table, how far each job is, and the replica's rows."""
    found = dict[str, list[str]]()
    for log in sorted(Path(own.lake).glob("*/*/_delta_log")):
        if (name := "/".join(log.parts[-3:-1])) in MEASURED:
            continue
        rows = spark.read.format("delta").load(str(log.parent))
        kept = rows.select(*(each for each in rows.columns if each not in PASSING)).toArrow().to_pylist()
        found[name] = sorted(map(repr, kept))
    engine = open_engine(f"sqlite:///{own.folder / 'home' / 'stores.db'}")
    checkpoints = CheckpointStore(engine)
    records = [record for job in checkpoints.jobs() for record in checkpoints.history(job)]
    found["batches"] = sorted(f"{r.manifest} {r.state} {dict(r.manifest.end)}" for r in records)
    engine.dispose()
    if (replica := own.folder / "replica.duckdb").exists():
        with duckdb.connect(str(replica), read_only=True) as connection:
            found["replica"] = sorted(map(repr, connection.execute("SELECT * FROM engagement").fetchall()))
    return found


def _differences(expected: Contents, found: Contents) -> str:
    differing = []
    for name in sorted({*expected, *found}):
        should, has = expected.get(name, []), found.get(name, [])
        if should != has:
            lacks, more = [one for one in should if one not in has], [one for one in has if one not in should]
            differing.append(f"{name}: {len(has)} rows instead of {len(should)}, lacks {lacks[:1]}, more {more[:1]}")
    return "; ".join(differing)
