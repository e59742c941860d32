"""The layouts of the Data Table: the same rows in each, few files a batch, and reads that touch only what they need."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import date
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any, get_args
from urllib.parse import unquote

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from engagement_platform.engine.job import BatchReport
from engagement_platform.engine.model import Transaction
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import MAPPING, NOTIFICATION, QUARANTINE
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.session import classic_conf, session_conf
from engagement_platform.settings import LayoutScheme, LayoutSettings, Settings
from engagement_platform_tests.conftest import Broker
from engagement_platform_tests.daily import of_today
from engagement_platform_tests.ingestion.oracle import engagement
from engagement_platform_tests.ingestion.world import World

pytestmark = [pytest.mark.broker]

SCHEMES: tuple[LayoutScheme, ...] = get_args(LayoutScheme)
ORGANIZATIONS = ("org-1", "Org 2", "org-3")
DAYS = ("2026-11-18", "2026-11-19", "2026-11-20")
Message = dict[str, Any] | None


@dataclass
class Laid:
    """A world with three batches in it."""

    world: World
    reports: list[BatchReport]
    last_plans: list[str]
    """Executed plans of the last batch, as Spark's own listing has them."""

    @property
    def scheme(self) -> LayoutScheme:
        return self.world.layout.scheme

    @property
    def in_spark(self) -> bool:
        """Everything through Spark, as batches of many rows go; otherwise as batches of few."""
        return self.world.layout.light_write_rows == 0


def at(organization: str, day: str, nth: int, **more: Any) -> dict[str, Any]:
    return engagement(organization, f"{day} {nth}", engagement_ts=f"{day}T23:59:59Z", person_name=f"Ann {day}", **more)


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


# By organization and day the writes are the same in Spark, only more files; few rows of a liquid table go through
# Spark, too.
IN_TURN = [(scheme, rows) for scheme, rows in product(SCHEMES, (0, 1000)) if scheme == "organization" or rows]
ALL_IN_SPARK = [(scheme, 0) for scheme in SCHEMES if scheme != "organization"]


@pytest.fixture(
    scope="module",
    params=[*of_today(IN_TURN), *(pytest.param(one, marks=pytest.mark.slow) for one in ALL_IN_SPARK)],
    ids=lambda one: f"{one[0]}-{one[1]}",
)
def laid(
    request: pytest.FixtureRequest, spark: SparkSession, broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> Laid:
    """The three batches in one layout, treated as many rows or as few."""
    scheme, light_write_rows = request.param
    layout = LayoutSettings(scheme=scheme, auto_compact=False, light_write_rows=light_write_rows)
    # Its own session, since the shared one compacts: Delta rewrites the first file of a liquid table at once.
    session = session_with(spark, Settings(layout=layout))
    world = World(session, broker, tmp_path_factory.mktemp(scheme), layout=layout)
    reports: list[BatchReport] = []
    before = -1
    for messages in batches():
        before = newest(spark)
        world.produce(messages)
        reports += world.run()
    return Laid(world, reports, plans(spark, before))


def executions(spark: SparkSession) -> list[Any]:
    """Queries that this Spark has run, as far as it still lists them (the last thousand)."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    listing = spark._jsparkSession.sharedState().statusStore().executionsList()
    return [listing.apply(number) for number in range(listing.size())]


def newest(spark: SparkSession) -> int:
    """The id of the query that was run last; ids only grow, whatever the listing forgets."""
    return max((int(execution.executionId()) for execution in executions(spark)), default=-1)


def plans(spark: SparkSession, after: int) -> list[str]:
    """Executed plans of the queries since then."""
    return [str(one.physicalPlanDescription()) for one in executions(spark) if int(one.executionId()) > after]


def commits(world: World, table: Table) -> list[dict[str, Any]]:
    """Per commit its operation, user metadata, and the files it added."""
    found = []
    for path in sorted(Path(world.lake.uri(table), "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        (info,) = [action["commitInfo"] for action in actions if "commitInfo" in action]
        adds = [action["add"] for action in actions if "add" in action]
        found.append(
            {"operation": info["operation"], "marker": info.get("userMetadata", "").partition("\n")[0], "adds": adds}
        )
    return found


# Filled by the parametrized test below; every layout must end in what the first one ended in.
ROWS: dict[tuple[LayoutScheme, bool], list[tuple[Any, ...]]] = {}


def test_every_layout_ends_in_the_same_rows(laid: Laid) -> None:
    ROWS[laid.scheme, laid.in_spark] = laid.world.data_rows()
    first = next(iter(ROWS.values()))
    assert ROWS[laid.scheme, laid.in_spark] == first
    assert len(first) == 18 + 4 + 2
    assert sum(row[4] == 2 for row in first) == 4
    for number, (inserted, updated, duplicates, quarantined) in enumerate([(18, 0, 1, 1), (4, 4, 2, 0), (2, 0, 0, 0)]):
        counts = laid.reports[number].counts
        assert (counts["inserted"], counts["updated"]) == (inserted, updated)
        assert (counts["duplicates"], counts["quarantined"]) == (duplicates, quarantined)


def test_files_lie_where_the_layout_says(laid: Laid) -> None:
    adds = [add for commit in commits(laid.world, laid.world.data) for add in commit["adds"]]
    assert adds
    for add in adds:
        values = add["partitionValues"]
        assert sorted(values) == sorted(laid.world.data.partitioned_by)
        # A path in the log is a URI. delta-rs escapes blanks in folder names, too; what counts are the values above.
        folders = [unquote(folder) for folder in unquote(add["path"]).split("/")[:-1]]
        assert folders == [f"{name}={values[name]}" for name in laid.world.data.partitioned_by]


def test_one_task_writes_one_partition(laid: Laid) -> None:
    world = laid.world
    for table in (world.data, MAPPING, NOTIFICATION, QUARANTINE):
        for commit in commits(world, table):
            touched = {tuple(sorted(add["partitionValues"].items())) for add in commit["adds"]}
            assert len(commit["adds"]) == len(touched), f"{table.name} {commit['operation']}"


def test_the_report_counts_the_files_and_bytes_that_are_in_the_logs(laid: Laid) -> None:
    world = laid.world
    for report in laid.reports:
        of_batch = [
            add
            for table in (world.data, MAPPING, NOTIFICATION, QUARANTINE)
            for commit in commits(world, table)
            if re.fullmatch(rf"ingest-engagements@1\.\w+/\w+/\w+#{report.manifest.batch_id}", commit["marker"])
            for add in commit["adds"]
        ]
        assert report.counts["files"] == len(of_batch) > 0
        assert report.counts["bytes"] == sum(add["size"] for add in of_batch)


def test_a_merge_runs_only_when_there_is_something_to_update(laid: Laid) -> None:
    operations = [(c["operation"], c["marker"].rpartition("#")[2]) for c in commits(laid.world, laid.world.data)]
    assert operations == [("CREATE TABLE", ""), ("WRITE", "0"), ("MERGE", "1"), ("WRITE", "1"), ("WRITE", "2")]
    assert {c["operation"] for c in commits(laid.world, NOTIFICATION)} == {"CREATE TABLE", "WRITE"}


def data_scans(laid: Laid) -> list[str]:
    """The parts of the last batch's executed plans that read the Data Table."""
    uri = laid.world.lake.uri(laid.world.data)
    blocks = [block for plan in laid.last_plans for block in plan.split("\n\n") if "Scan parquet" in block]
    return [block for block in blocks if f"{uri}]" in block]


def field(block: str, name: str) -> str:
    found = re.search(rf"^{name}: (.*)$", block, re.MULTILINE)
    return found.group(1) if found else ""


def test_looking_for_known_ids_reads_only_key_columns_and_skips_other_organizations_and_days(laid: Laid) -> None:
    scans = data_scans(laid)
    if not laid.in_spark and laid.scheme != "liquid":
        assert not scans, "a batch of few rows started Spark to look for known ids"
        return
    assert scans, "the last batch did not look into the Data Table"
    partitioned_by = laid.world.data.partitioned_by
    keys = {"organization_id", "engagement_id", "engagement_date", "version"}
    for scan in scans:
        read = set(re.findall(r"(\w+):", field(scan, "ReadSchema")))
        assert read | set(partitioned_by) >= {"engagement_id", *(("version",) if laid.in_spark else ())}, scan
        assert read <= keys - set(partitioned_by), scan
        by_folder, by_statistics = field(scan, "PartitionFilters"), field(scan, "PushedFilters")
        for column, value in (("organization_id", "org-1"), ("engagement_date", DAYS[2])):
            where = by_folder if column in partitioned_by else by_statistics
            assert column in where, scan
            assert value in where, scan
        assert ORGANIZATIONS[2] not in scan


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
        assert "engagement_date" in field(explained(wanted), "PushedFilters")
        return
    assert "organization_id" in field(explained(wanted), "PartitionFilters")
    assert files
    assert all("/organization_id=org-3/" in path for path in files)
    if laid.scheme == "organization_date":
        assert {re.findall(r"engagement_date=([\d-]+)", path)[0] for path in files} == set(DAYS[:2])


NAMES_DDL = "organization_id string, id string, name string, name_ts timestamp, batch_id long"


def session_with(spark: SparkSession, settings: Settings) -> SparkSession:
    """Another session of the same Spark, configured as the platform configures one."""
    session = spark.newSession()
    for key, value in session_conf(settings).items():
        session.conf.set(key, value)
    return session


def append(lake: Lake, organizations: Sequence[str], number: int) -> Transaction:
    """One commit of a row for each organization, in many tasks."""
    rows = [
        (organization, f"p{number}-{nth}", "Ann", None, number) for nth in range(4) for organization in organizations
    ]
    txn = Transaction("job/append", number)
    lake.append(lake.spark.createDataFrame(rows, NAMES_DDL).repartition(4), MAPPING, txn)
    return txn


def test_small_files_are_compacted_after_a_write_and_the_write_is_still_found(
    spark: SparkSession, tmp_path: Path
) -> None:
    settings = Settings(home=tmp_path, layout=LayoutSettings(auto_compact=True, auto_compact_min_files=3))
    lake = Lake(session_with(spark, settings), settings)
    lake.ensure(MAPPING)
    transactions = [append(lake, ["org"], number) for number in range(3)]
    history = lake.spark.sql(f"DESCRIBE HISTORY delta.`{lake.uri(MAPPING)}`").orderBy("version").collect()
    assert [row["operation"] for row in history] == ["CREATE TABLE", "WRITE", "WRITE", "WRITE", "OPTIMIZE"]
    assert history[-1]["operationParameters"]["auto"] == "true"
    found = [lake.commit_of(MAPPING, txn) for txn in transactions]
    assert [commit and (commit.operation, commit.files_added) for commit in found] == [("WRITE", 1)] * 3
    assert lake.read(MAPPING).count() == 12
    without = Settings(home=tmp_path / "without", layout=LayoutSettings(auto_compact=False))
    other = Lake(session_with(spark, without), without)
    other.ensure(MAPPING)
    for number in range(3):
        append(other, ["org"], number)
    counted = [len(DeltaTable(some.uri(MAPPING)).file_uris()) for some in (lake, other)]
    assert counted == [1, 3], "files with and without auto compaction"


@pytest.mark.parametrize("optimize_write", [True, False])
def test_one_task_writes_one_partition_with_and_without_optimized_writes(
    spark: SparkSession, tmp_path: Path, optimize_write: bool
) -> None:
    settings = Settings(home=tmp_path, layout=LayoutSettings(auto_compact=False, optimize_write=optimize_write))
    lake = Lake(session_with(spark, settings), settings)
    lake.ensure(MAPPING)
    commit = lake.commit_of(MAPPING, append(lake, ORGANIZATIONS, 0))
    assert commit is not None
    assert commit.files_added == len(ORGANIZATIONS)


def test_the_settings_are_what_spark_goes_by(spark: SparkSession, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    on = dict.fromkeys(
        (
            "spark.databricks.delta.autoOptimize.optimizeWrite",
            "spark.databricks.delta.optimizeWrite.enabled",
            "spark.databricks.delta.autoCompact.enabled",
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
    assert {key: classic_conf(off, [])[key] for key in on} == dict.fromkeys(on, "false")
