"""A migration keeps every row and every transaction, in one commit, whatever ends in the middle of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from engagement_platform.cli import app
from engagement_platform.engine.database import writing
from engagement_platform.engine.fencing import lease_transaction
from engagement_platform.engine.job import Callbacks
from engagement_platform.engine.lease import Fence, LeaseUnavailable
from engagement_platform.engine.model import Manifest, Transaction
from engagement_platform.engine.schema import LEASE
from engagement_platform.engine.unfinished_batches import OthersBatchUnfinished
from engagement_platform.lake import log, scan
from engagement_platform.lake.contract import AUTO_COMPACT, ContractBroken
from engagement_platform.lake.engagement import MAPPING, data_table
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.repartition import last_relaid, scheme_of
from engagement_platform.maintenance.layout.migrate import (
    Migrated,
    MigrationDiffers,
    NotMigratable,
    _alone,
    plan,
    run,
)
from engagement_platform.maintenance.rollback import plan as rollback
from engagement_platform.maintenance.rollback.groups import RestoreRefused
from engagement_platform.settings import LayoutScheme, LayoutSettings, Settings, StoreSettings
from engagement_platform_tests import plant
from engagement_platform_tests.maintenance.guards.strangers import strangers
from engagement_platform_tests.maintenance.layout.seeded import SeededLake, engagement_rows, leased

DATA = data_table("organization").name
ORGANIZATIONS = ("org-1", "Org 2", "org-3")


class Crash(Exception):
    """Stands for the end of the process."""


class Home:
    """A lake whose Data Table has rows of three organizations, on many days, in one layout."""

    def __init__(self, home: Path, scheme: LayoutScheme, organizations: Sequence[str] = ORGANIZATIONS) -> None:
        self.home = home
        data = data_table(scheme)
        self.seeded = SeededLake(home, layout=LayoutSettings(scheme=scheme))
        self.uri = data.uri(self.seeded.settings.lake)
        plant.create(self.uri, data)
        for number, organization in enumerate(organizations):
            self.append(engagement_rows(organization, number, 8), number)
        self.before = self.rows()

    def append(self, rows: pa.Table, batch: int) -> None:
        plant.append(DeltaTable(self.uri), rows, Transaction("ingest@1.t/data/insert", batch))

    @property
    def environment(self) -> dict[str, str]:
        """Of a process that migrates to `organization`."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("ENGAGEMENT_PLATFORM_")}
        scheme = {"ENGAGEMENT_PLATFORM_LAYOUT__SCHEME": "organization"}
        return {**kept, **scheme, "ENGAGEMENT_PLATFORM_HOME": str(self.home)}

    def settings(self, scheme: LayoutScheme) -> Settings:
        stores = StoreSettings(lease_wait=timedelta(0))
        return Settings(home=self.home, stores=stores, layout=LayoutSettings(scheme=scheme))

    def rows(self, version: int | None = None) -> list[str]:
        """Every row as text, sorted, read without Spark."""
        read = scan.find(DeltaTable(self.uri, version=version), data_table("liquid").column_names, {})
        return sorted(map(repr, read.to_pylist()))

    def files(self) -> list[dict[str, object]]:
        found: list[dict[str, object]] = pa.table(DeltaTable(self.uri).get_add_actions(flatten=True)).to_pylist()
        return found

    def migrate(self, spark: SparkSession | None, scheme: LayoutScheme, callbacks: Callbacks | None = None) -> Migrated:
        lake = Lake(spark or no_spark_at_all(), self.settings(scheme))
        return run(lake, self.seeded.stores, DATA, scheme, callbacks or Callbacks())


def no_spark_at_all() -> SparkSession:
    return object()  # type: ignore[return-value]


def crash_at(point: str) -> Callbacks:
    def observe(passed: str) -> None:
        if passed == point:
            raise Crash(point)

    return Callbacks(observe=observe)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path, "organization_date")


def assert_migrated(home: Home, done: Migrated, scheme: LayoutScheme) -> None:
    """The same rows; the table's layout, contract, properties, comments and transactions; files that do not overlap."""
    assert home.rows() == home.before
    assert done.rows == len(home.before)
    assert scheme_of(home.uri) == scheme
    found = log.describe(home.uri)
    assert found is not None
    assert found.properties.items() >= data_table(scheme).properties.items()
    assert (found.properties.get(AUTO_COMPACT) == "true") == (scheme != "liquid")
    fields = json.loads(DeltaTable(home.uri).schema().to_json())["fields"]
    assert [field["metadata"]["comment"] for field in fields] == [c.comment for c in data_table(scheme).columns]
    assert DeltaTable(home.uri).transaction_version("ingest@1.t/data/insert") == 2
    assert done.versions is not None
    assert home.rows(done.versions[0]) == home.before, "the version before is not readable any more"
    lowest, highest = "min.engagement_date", "max.engagement_date"
    by_organization: dict[object, list[tuple[object, object]]] = {}
    for file in home.files():
        key = file.get("partition.organization_id", file.get("min.organization_id"))
        days = (file[lowest], file[highest]) if lowest in file else (file["partition.engagement_date"],) * 2
        by_organization.setdefault(key, []).append(days)
    if scheme != "liquid":
        for ranges in by_organization.values():
            assert all(left[1] <= right[0] for left, right in pairwise(sorted(ranges)))  # type: ignore[operator]


def test_by_organization_the_same_rows_lie_in_few_files_with_days_that_do_not_overlap(
    spark: SparkSession, home: Home
) -> None:
    files = len(home.files())
    planned_now = plan(home.settings("organization"), DATA, "organization")
    with pytest.raises(Crash):
        home.migrate(spark, "organization", crash_at("leased"))
    assert (scheme_of(home.uri), home.rows()) == ("organization_date", home.before)
    # The rows are written and not compared yet: the next run does that.
    with pytest.raises(Crash):
        home.migrate(spark, "organization", crash_at("relaid"))
    assert (scheme_of(home.uri), home.rows()) == ("organization", home.before)
    version = log.version(home.uri)
    done = home.migrate(spark, "organization")
    assert log.version(home.uri) == version, "what was done was done again"
    assert_migrated(home, done, "organization")
    assert done.versions == (planned_now.version, planned_now.version + 1)
    known = (DATA, done.versions[1]) not in strangers(home.settings("organization"), home.seeded.stores)
    assert known, "our own migration is taken for somebody else"
    assert (planned_now.rows, planned_now.files) == (len(home.before), files)
    assert len(ORGANIZATIONS) <= len(home.files()) < files
    removed = [a["remove"] for a in log.entry(home.uri, done.versions[1]) or [] if "remove" in a]
    assert len(removed) == files, "one commit takes all files of the old layout"
    # A batch that is replayed is still known, and new ones land.
    lake, data = Lake(spark, home.settings("organization")), data_table("organization")
    lake.ensure(data)
    again = lake.frame(engagement_rows("org-1", 9, 2))
    lake.append(again, data, Transaction("ingest@1.t/data/insert", 2), rows=2)
    assert home.rows() == home.before
    lake.append(again, data, Transaction("ingest@1.t/data/insert", 3), rows=2)
    assert len(home.rows()) == len(home.before) + 2
    with pytest.raises(RestoreRefused, match=r"partitioned by \(organization_id, engagement_date\)"):
        rollback.plan(home.settings("organization"), home.seeded.stores, rollback.Asked(DATA, 1, "drop"))
    # Who began before the migration has the old layout in mind.
    old = data_table("organization_date")
    with pytest.raises(ContractBroken, match="engagement-platform migrate"):
        lake.append(again, old, Transaction("ingest@1.t/data/insert", 4), rows=2)


@pytest.mark.slow
def test_every_layout_can_become_every_other(spark: SparkSession, tmp_path: Path) -> None:
    home = Home(tmp_path, "organization", ("org-1", "Org 2", "org/3 é"))
    way: list[LayoutScheme] = [
        "organization_date", "liquid", "organization_date", "organization", "liquid", "organization",
    ]  # fmt: skip
    assert {(a, b) for a, b in pairwise(["organization", *way])} == {
        (a, b) for a in get_args(LayoutScheme) for b in get_args(LayoutScheme) if a != b
    }
    for scheme in way:
        if scheme == "liquid":
            with pytest.raises(Crash):
                home.migrate(spark, scheme, crash_at("verified"))
        done = home.migrate(spark, scheme)
        assert_migrated(home, done, scheme)
        detail = spark.sql(f"DESCRIBE DETAIL delta.`{home.uri}`").collect()[0]
        assert list(detail["clusteringColumns"] or ()) == list(data_table(scheme).liquid_by)
        # Jobs write to it.
        lake, number = Lake(spark, home.settings(scheme)), len(home.before)
        lake.ensure(data_table(scheme))
        one = lake.frame(engagement_rows("org-1", number, 1))
        lake.append(one, data_table(scheme), Transaction("more@1.t", number), rows=1)
        home.before = home.rows()
        assert len(home.before) == number + 1


@pytest.mark.slow
def test_a_table_that_holds_something_else_afterwards_is_taken_back(spark: SparkSession, home: Home) -> None:
    """As if the rewrite had lost rows: its commit is made by hand, of a part of them."""
    before = log.version(home.uri)
    some = spark.read.format("delta").load(home.uri).limit(5)
    writer = some.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    writer = writer.option("userMetadata", "migrate-layout/organization").option("partitionOverwriteMode", "static")
    writer.partitionBy("organization_id").save(home.uri)
    assert last_relaid(home.uri) is not None
    with pytest.raises(MigrationDiffers, match=rf"5 with .* instead of 24 .* taken back to version {before}"):
        home.migrate(spark, "organization")
    assert (scheme_of(home.uri), home.rows()) == ("organization_date", home.before)


def test_who_does_not_agree_or_is_at_work_comes_first(home: Home) -> None:
    def refused(error: type[Exception], said: str) -> None:
        with pytest.raises(error, match=said):
            home.migrate(None, "organization")

    disagreeing = Lake(no_spark_at_all(), home.settings("organization_date"))
    with pytest.raises(NotMigratable, match="LAYOUT__SCHEME=organization "):
        run(disagreeing, home.seeded.stores, DATA, "organization", Callbacks())
    with home.seeded.stores.leases.acquire("job/apply-mutations", purpose="drain"):
        refused(LeaseUnavailable, "holds job/apply-mutations")
    with leased(home.seeded.stores, DATA, "optimize"):
        refused(LeaseUnavailable, "holds table/engagement/data")
    now = datetime(2026, 11, 21, tzinfo=UTC)
    app_id = home.seeded.stores.checkpoints.app_id("redrive-quarantine:engagements:x")
    begun = Manifest("redrive-quarantine:engagements:x", app_id, 0, {}, {"0": 1}, now, {DATA: 3})
    home.seeded.stores.checkpoints.begin(begun)
    refused(OthersBatchUnfinished, "redrive-quarantine:engagements:x batch 0")
    assert home.rows() == home.before


def test_what_cannot_be_migrated_is_said(home: Home, tmp_path: Path) -> None:
    settings = home.settings("organization")
    with pytest.raises(NotMigratable, match="only engagement/data has more than one layout"):
        plan(settings, MAPPING.name, "organization")
    with pytest.raises(NotMigratable, match="there is none yet"):
        plan(replace_home(settings, tmp_path / "empty"), DATA, "organization")
    DeltaTable(home.uri).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    with pytest.raises(NotMigratable, match="deleted and inserted"):
        plan(settings, DATA, "organization")
    other = replace_home(settings, tmp_path / "other")
    rows = pa.table({"organization_id": ["a"], "hour": [1]})
    write_deltalake(data_table("liquid").uri(other.lake), rows, partition_by=["hour"])
    with pytest.raises(NotMigratable, match="it is partitioned by hour"):
        plan(other, DATA, "organization")


def test_a_column_that_is_not_declared_is_not_dropped_the_migration_is_refused(home: Home) -> None:
    DeltaTable(home.uri).alter.add_columns([Field("note", PrimitiveType("string"))])
    with pytest.raises(NotMigratable, match=r"would drop columns that are not declared: note\. .* Nothing was changed"):
        home.migrate(None, "organization")
    assert plan(home.settings("organization_date"), DATA, "organization_date").now == "organization_date"


def replace_home(settings: Settings, home: Path) -> Settings:
    return settings.model_copy(update={"home": home})


def test_a_dry_run_says_what_it_would_take_and_what_to_set_first(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(home.home))
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_LAYOUT__SCHEME", "organization_date")

    def call(*more: str) -> str:
        ran = CliRunner().invoke(app, ["migrate", DATA, "--layout", *more, "--dry-run"])
        assert ran.exit_code == 0, ran.output
        return ran.output

    days = len(home.files())
    said = call("organization")
    assert f"from organization_date to organization: 24 rows, {days} files, " in said
    assert "First set ENGAGEMENT_PLATFORM_LAYOUT__SCHEME=organization " in said
    assert json.loads(call("organization", "--json"))["files"] == days
    assert call("organization_date").strip() == f"{DATA} is organization_date already, at version 3."
    assert home.rows() == home.before
    refused = CliRunner().invoke(app, ["migrate", DATA, "--layout", "hourly"])
    assert refused.exit_code == 2


@contextmanager
def ending_at(home: Home, point: str) -> Iterator[subprocess.Popen[str]]:
    """A process that migrates to `organization` and ends itself at a point; not there any more afterwards."""
    module = "engagement_platform_tests.maintenance.layout.killed_migration"
    command = [sys.executable, "-m", module, "organization", point]
    with subprocess.Popen(command, env=home.environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.crash
@pytest.mark.slow
def test_a_migration_that_slept_between_its_check_and_its_write_changes_nothing(
    spark: SparkSession, home: Home
) -> None:
    """Its successor has migrated meanwhile, and rows have come since."""
    with ending_at(home, "checked") as sleeper:
        _, status = os.waitpid(sleeper.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), "it never came to its write"
        with writing(home.seeded.stores.leases.engine, "test") as connection:
            connection.execute(LEASE.update().values(expires_ts=datetime(2020, 1, 1, tzinfo=UTC)))
        assert_migrated(home, home.migrate(spark, "organization"), "organization")
        home.append(engagement_rows("org-1", 90, 3), 3)
        rows, version = home.rows(), log.version(home.uri)
        assert len(rows) == len(home.before) + 3
        os.kill(sleeper.pid, signal.SIGCONT)
        sleeper.communicate(timeout=300)
    assert (home.rows(), log.version(home.uri)) == (rows, version)


@pytest.mark.crash
@pytest.mark.slow
def test_a_migration_that_is_killed_is_begun_anew_or_found_done(spark: SparkSession, home: Home) -> None:
    def killed(point: str) -> None:
        with ending_at(home, point) as migration:
            _, errors = migration.communicate(timeout=300)
            assert migration.returncode == -signal.SIGKILL, f"never reached {point}: {errors}"

    for point in ("leased", "writing"):
        killed(point)
        assert (scheme_of(home.uri), home.rows()) == ("organization_date", home.before), point
    killed("relaid")
    assert (scheme_of(home.uri), home.rows()) == ("organization", home.before)
    done = home.migrate(spark, "organization")
    assert_migrated(home, done, "organization")


def test_a_migration_by_stores_that_are_new_commits_above_what_the_table_has_of_former_ones(tmp_path: Path) -> None:
    """Delta would skip a commit under a number that is not greater, and the table would keep its layout."""
    home = Home(tmp_path, "liquid")
    before = lease_transaction(Fence(f"table/{DATA}", 7 << 40))
    plant.append(DeltaTable(home.uri), engagement_rows("org-1", 9, 1), before)
    settings = home.settings("organization")
    with _alone(settings, home.seeded.stores, DATA, Callbacks()) as leases:
        own = lease_transaction(leases[-1].fence)
    assert own.app_id == before.app_id
    assert own.version > before.version
