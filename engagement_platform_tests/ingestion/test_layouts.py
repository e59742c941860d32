"""The layouts of the Data Table: the same rows in each, few files a batch, and reads that touch only what they need."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from datetime import date
from io import StringIO
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, get_args
from urllib.parse import unquote

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from engagement_platform.consumers.current_rows import CurrentRows
from engagement_platform.engine.job import BatchReport
from engagement_platform.engine.model import Transaction
from engagement_platform.lake.contract import Mode, Table
from engagement_platform.lake.engagement import (
    CHANGESET,
    MAPPING,
    NOTIFICATION,
    QUARANTINE,
    data_table,
    engagement_tables,
)
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.optimize import Place, rewrite, vacuum
from engagement_platform.lake.session import classic_conf, session_conf
from engagement_platform.pipelines.jobs import INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS
from engagement_platform.pipelines.mutations.move import REMATERIALIZE_ALIASES
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.settings import LayoutScheme, LayoutSettings, Settings
from engagement_platform_tests.conftest import Broker
from engagement_platform_tests.ingestion.oracle import engagement
from engagement_platform_tests.ingestion.world import World

pytestmark = [pytest.mark.broker]

SCHEMES: tuple[LayoutScheme, ...] = get_args(LayoutScheme)
ORGANIZATIONS = ("org-1", "Org 2", "org-3")
DAYS = ("2026-11-18", "2026-11-19", "2026-11-20")
Message = dict[str, Any] | None


@dataclass
class Reader:
    """Reads `engagement/current` all the time, and also the names whenever a commit was made."""

    world: World
    rows: list[Any] = field(default_factory=list)
    """Of the run that goes on: what was seen, without what was seen the time before."""
    names: list[Any] = field(default_factory=list)
    runs: dict[str, tuple[list[Any], list[Any]]] = field(default_factory=dict)
    """What was seen of each run, from before its first batch until after its last one."""
    _one_at_a_time: Lock = field(default_factory=Lock)
    """Commits are made side by side, and what is seen is kept in the order in which it was seen."""
    _looked_after: int = -1

    def look(self, point: str = ":after") -> None:
        if point.endswith(":after") and (commits := self.commits()) != self._looked_after:
            self._looked_after = commits
            self.look_at(self.rows, self.read_rows)
            self.look_at(self.names, self.world.names)

    def look_at(self, seen: list[Any], read: Callable[[], list[Any]]) -> None:
        with self._one_at_a_time:
            now = read()
            if not seen or seen[-1] != now:
                seen.append(now)

    def commits(self) -> int:
        """How many there are in all tables; only another one can change what is seen."""
        return sum(1 for _ in Path(self.world.lake.root).glob("*/*/_delta_log/*.json"))

    def read_rows(self) -> list[Any]:
        found = CurrentRows.of(self.world.lake.root)
        columns = ("organization_id", "engagement_id", "person_id", "version")
        parts = () if found is None else found.rows((*columns, "engagement"))
        rows = [row for part in parts for row in part.to_pylist()]
        return sorted((*(row[c] for c in columns), row["engagement"]["subject"] or "") for row in rows)

    def run(self, name: str, job: str = INGEST_ENGAGEMENTS) -> list[BatchReport]:
        """Run a job while a thread of its own reads."""
        self.look()
        self.rows, self.names = self.rows[-1:], self.names[-1:]
        with self._reading():
            reports = self.world.run(self.look, name=job)
        self.look()
        self.runs[name] = self.rows, self.names
        return reports

    @contextmanager
    def _reading(self) -> Iterator[None]:
        ended, failed = Event(), list[BaseException]()

        def read() -> None:
            try:
                before = 0
                while not ended.wait(0.01):
                    if (commits := self.commits()) != before:
                        before = commits
                        self.look_at(self.rows, self.read_rows)
            except BaseException as error:
                failed.append(error)

        thread = Thread(target=read)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        assert not failed, failed[0]


@dataclass
class Laid:
    """A world with three batches in it, and a conversion that is moved."""

    world: World
    reports: list[BatchReport]
    reader: Reader

    @property
    def scheme(self) -> LayoutScheme:
        return self.world.layout.scheme


def at(organization: str, day: str, nth: int, **more: Any) -> dict[str, Any]:
    return engagement(organization, f"{day} {nth}", engagement_ts=f"{day}T23:59:59Z", person_name=f"Ann {nth}", **more)


def batches() -> list[list[Message]]:
    """New ones everywhere; updates, known and new ones in two organizations; new ones on one day of one."""
    return [
        [*(at(o, day, nth) for o in ORGANIZATIONS for day in DAYS for nth in range(2)), None, at("org-1", DAYS[0], 0)],
        [
            *(at(o, day, 0, version=2, subject="again") for o in ORGANIZATIONS[:2] for day in DAYS[:2]),
            *(at(o, DAYS[0], nth) for o in ORGANIZATIONS[:2] for nth in (1, 5, 6)),
        ],
        [at("org-1", DAYS[2], nth) for nth in (7, 8)],
    ]


@pytest.fixture(
    scope="module", params=[pytest.param(one, marks=[] if one == "liquid" else pytest.mark.slow) for one in SCHEMES]
)
def laid(
    request: pytest.FixtureRequest, spark: SparkSession, broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> Laid:
    """The three batches in one layout, then a conversion that is announced and moved."""
    layout = LayoutSettings(scheme=request.param, auto_compact=False)
    # Its own session, since the shared one compacts.
    session = session_with(spark, Settings(layout=layout))
    world = World(session, broker, tmp_path_factory.mktemp(request.param), layout=layout)
    reports, reader = list[BatchReport](), Reader(world)
    world.job()
    for number, messages in enumerate(batches()):
        world.produce(messages)
        reports += reader.run(f"batch {number}")
    convert = {"request_id": "r1", "operation": "CONVERT", "from_id": "lead-1", "to_id": "contact-1"}
    world.produce_requests([{**convert, "organization_id": "org-3", "execution_ts": "2026-11-20T12:00:00Z"}])
    for job in (INGEST_MUTATION_REQUESTS, APPLY_MUTATIONS, REMATERIALIZE_ALIASES):
        reader.run(job, job)
    return Laid(world, reports, reader)


def entries(world: World, table: Table) -> list[list[dict[str, Any]]]:
    """The actions of each commit of a table, oldest first."""
    paths = sorted(Path(world.lake.uri(table), "_delta_log").glob("*.json"))
    return [[json.loads(line) for line in path.read_text().split("\n") if line] for path in paths]


def info(actions: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = [action["commitInfo"] for action in actions if "commitInfo" in action]
    return found  # type: ignore[no-any-return]


def added(actions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [action["add"] for action in actions if "add" in action]


# Filled by the parametrized test below; every layout must end in what the first one ended in.
ROWS: dict[LayoutScheme, list[tuple[Any, ...]]] = {}


def test_every_layout_ends_in_the_same_rows(laid: Laid) -> None:
    ROWS[laid.scheme] = laid.world.data_rows()
    assert ROWS[laid.scheme] == next(iter(ROWS.values()))
    assert len(ROWS[laid.scheme]) == 18 + 4 + 2
    assert sum(row[4] == 2 for row in ROWS[laid.scheme]) == 4
    assert {row[3] for row in ROWS[laid.scheme] if row[0] == "org-3"} == {"lead-1", "contact-1"}
    for number, (inserted, updated, duplicates, quarantined) in enumerate([(18, 0, 1, 1), (4, 4, 2, 0), (2, 0, 0, 0)]):
        counts = laid.reports[number].counts
        assert (counts["inserted"], counts["updated"]) == (inserted, updated)
        assert (counts["duplicates"], counts["quarantined"]) == (duplicates, quarantined)


def test_who_reads_all_the_time_sees_whole_batches_and_no_move(laid: Laid) -> None:
    """Each batch is one step, the second of which brings no newer name; an announcement and a move are none."""
    states = {name: (len(rows), len(names)) for name, (rows, names) in laid.reader.runs.items()}
    assert states == {
        "batch 0": (2, 2),
        "batch 1": (2, 1),
        "batch 2": (2, 2),
        INGEST_MUTATION_REQUESTS: (2, 2),
        APPLY_MUTATIONS: (1, 1),
        REMATERIALIZE_ALIASES: (1, 1),
    }
    (rows, _), (last, names) = laid.reader.runs["batch 0"], laid.reader.runs[REMATERIALIZE_ALIASES]
    assert rows[0] == []
    assert [row[:2] for row in last[0]] == [row[:2] for row in laid.world.data_rows()]
    assert names[0] == laid.world.names()


def test_batches_append_and_only_the_move_changes_rows(laid: Laid) -> None:
    operations = {
        table.name: [info(actions)["operation"] for actions in entries(laid.world, table)]
        for table in engagement_tables(laid.scheme)
    }
    assert operations[laid.world.data.name] == ["CREATE TABLE", "WRITE", "WRITE", "WRITE", "MERGE"]
    assert operations[CHANGESET.name] == ["CREATE TABLE", "WRITE", "DELETE"]
    assert operations[MAPPING.name] == ["CREATE TABLE", "WRITE", "WRITE", "WRITE", "WRITE"]
    assert operations[NOTIFICATION.name] == ["CREATE TABLE", *["WRITE"] * 4]


def test_a_batch_writes_one_file_a_table_or_a_partition(laid: Laid) -> None:
    for table in engagement_tables(laid.scheme):
        for actions in entries(laid.world, table):
            if info(actions)["operation"] == "WRITE":
                folders = {tuple(sorted(add["partitionValues"].items())) for add in added(actions)}
                assert len(added(actions)) == len(folders), table.name
    for report in laid.reports:
        assert report.counts["files"] <= (6 if laid.scheme == "liquid" else 6 + 9)


def test_a_batch_starts_no_more_spark_jobs_than_are_known(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """Each costs a tenth of a second or more, whatever it does; docs/performance.md says what they are."""
    layout = LayoutSettings(auto_compact=False)
    world = World(session_with(spark, Settings(layout=layout)), broker, tmp_path, layout=layout)
    world.job()
    counted = []
    for messages in (batches()[0], [*batches()[1], None]):
        world.produce(messages)
        before = started_jobs(spark)
        (report,) = world.run()
        counted.append(started_jobs(spark) - before)
        assert report.counts["quarantined"] == 1
    assert counted[1] <= 8, counted


def started_jobs(spark: SparkSession) -> int:
    """Spark jobs that this Spark has started, of all its sessions."""
    context: Any = spark.sparkContext._jsc.sc()
    return int(context.dagScheduler().numTotalJobs())


def test_files_lie_where_the_layout_says(laid: Laid) -> None:
    adds = [add for actions in entries(laid.world, laid.world.data) for add in added(actions)]
    assert adds
    for add in adds:
        values = add["partitionValues"]
        assert sorted(values) == sorted(laid.world.data.partitioned_by)
        # A path in the log is a URI. Folders may escape blanks, too; what counts are the values above.
        folders = [unquote(folder) for folder in unquote(add["path"]).split("/")[:-1]]
        assert folders == [f"{name}={values[name]}" for name in laid.world.data.partitioned_by]


def test_the_report_counts_the_files_and_bytes_that_are_in_the_logs(laid: Laid) -> None:
    for report in laid.reports:
        of_batch = [
            add
            for table in (laid.world.data, CHANGESET, MAPPING, NOTIFICATION, QUARANTINE)
            for actions in entries(laid.world, table)
            if re.match(
                rf"ingest-engagements@1\.\w+/\w+/\w+#{report.manifest.batch_id}\n",
                info(actions).get("userMetadata", ""),
            )
            for add in added(actions)
        ]
        assert report.counts["files"] == len(of_batch) > 0
        assert report.counts["bytes"] == sum(add["size"] for add in of_batch)


def of_plan(block: str, name: str) -> str:
    found = re.search(rf"^{name}: (.*)$", block, re.MULTILINE)
    return found.group(1) if found else ""


def explained(frame: DataFrame) -> str:
    text = StringIO()
    with redirect_stdout(text):
        frame.explain("formatted")
    return text.getvalue()


def test_a_range_of_days_of_one_organization_reads_only_its_files(laid: Laid) -> None:
    world = laid.world
    days = F.col("engagement_date").between(date(2026, 11, 18), date(2026, 11, 19))
    wanted = world.lake.read(world.data).where((F.col("organization_id") == "org-3") & days)
    assert sorted(row["engagement_id"] for row in wanted.collect()) == [f"{d} {n}" for d in DAYS[:2] for n in (0, 1)]
    files = wanted.inputFiles()
    if laid.scheme == "liquid":
        assert "engagement_date" in of_plan(explained(wanted), "PushedFilters")
        return
    assert "organization_id" in of_plan(explained(wanted), "PartitionFilters")
    assert files
    assert all("/organization_id=org-3/" in path for path in files)
    if laid.scheme == "organization_date":
        assert {re.findall(r"engagement_date=([\d-]+)", path)[0] for path in files} == set(DAYS[:2])


def test_spark_makes_every_commit_of_every_engagement_table_also_what_maintenance_commits(laid: Laid) -> None:
    """Last, since the tests above tell what was committed before."""
    lake = laid.world.lake
    for table in (laid.world.data, NOTIFICATION):
        place = Place(table.name, lake.uri(table), lake.root)
        assert rewrite(place, lake.spark, target_file_bytes=1 << 27, marker="by hand").version is not None
        vacuum(place, lake.spark)
    made = set()
    for table in engagement_tables(laid.scheme):
        commits = [info(actions) for actions in entries(laid.world, table)]
        assert {commit["engineInfo"].split("/")[0] for commit in commits} == {"Apache-Spark"}, table.name
        made |= {commit["operation"] for commit in commits}
    assert made >= {"CREATE TABLE", "WRITE", "MERGE", "DELETE", "OPTIMIZE", "VACUUM START", "VACUUM END"}


def session_with(spark: SparkSession, settings: Settings) -> SparkSession:
    """Another session of the same Spark, configured as the platform configures one."""
    session = spark.newSession()
    for key, value in session_conf(settings).items():
        session.conf.set(key, value)
    return session


def append(lake: Lake, table: Table, number: int) -> Transaction:
    """One commit of four rows, in many tasks."""
    rows = lake.spark.range(4).repartition(4)
    kinds = {column.name: column.type for column in table.columns}
    rows = rows.select(*(F.lit(None).cast(kind).alias(name) for name, kind in kinds.items()))
    rows = rows.withColumns({"batch_id": F.lit(number).cast("long"), "ingestion_date": F.lit(date(2026, 11, 20))})
    txn = Transaction("job/append", number)
    lake.append(rows, table, txn, rows=4)
    return txn


def operations(lake: Lake, table: Table) -> list[str]:
    history = lake.spark.sql(f"DESCRIBE HISTORY delta.`{lake.uri(table)}`").orderBy("version").collect()
    return [row["operation"] for row in history]


@pytest.mark.parametrize("switched_on", [True, False])
def test_small_files_are_compacted_after_a_write_of_partitions_whose_rows_change_and_of_no_others(
    spark: SparkSession, tmp_path: Path, switched_on: bool
) -> None:
    layout = LayoutSettings(auto_compact=switched_on, auto_compact_min_files=3, scheme="organization")
    settings = Settings(home=tmp_path, layout=layout)
    lake = Lake(session_with(spark, settings), settings)
    # What one job writes in one session, in whatever order.
    for table in (NOTIFICATION, data_table("organization"), QUARANTINE):
        compacted = ["OPTIMIZE"] if switched_on and table.mode is Mode.MUTABLE else []
        lake.ensure(table)
        transactions = [append(lake, table, number) for number in range(3)]
        assert operations(lake, table) == ["CREATE TABLE", "WRITE", "WRITE", "WRITE", *compacted]
        found = [lake.commit_of(table, txn) for txn in transactions]
        assert [commit and (commit.operation, commit.files_added) for commit in found] == [("WRITE", 1)] * 3
        assert lake.read(table).count() == 12
        assert len(DeltaTable(lake.uri(table)).file_uris()) == (1 if compacted else 3)


def test_the_settings_are_what_spark_goes_by(spark: SparkSession, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    on = dict.fromkeys(
        (
            "spark.databricks.delta.autoOptimize.optimizeWrite",
            "spark.databricks.delta.optimizeWrite.enabled",
        ),
        "true",
    )
    more = {
        "spark.sql.shuffle.partitions": str(settings.spark.shuffle_partitions),
        "spark.sql.session.timeZone": "UTC",
        "spark.databricks.delta.autoCompact.minNumFiles": str(settings.layout.auto_compact_min_files),
    }
    assert {key: spark.conf.get(key) for key in (*on, *more)} == on | more
    assert spark.sparkContext.defaultParallelism == settings.spark.default_parallelism
    assert spark.sparkContext.getConf().get("spark.default.parallelism") == str(settings.spark.default_parallelism)
    off = Settings(home=tmp_path, layout=LayoutSettings(auto_compact=False, optimize_write=False))
    switched_off = (*on, "spark.databricks.delta.autoCompact.enabled")
    assert {key: classic_conf(off, [])[key] for key in switched_off} == dict.fromkeys(switched_off, "false")
