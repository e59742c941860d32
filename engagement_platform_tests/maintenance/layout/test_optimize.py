"""Slices that are really done: the same rows in fewer files, and what is remembered of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from engagement_platform.engine.database import writing
from engagement_platform.engine.lease import LeaseLost
from engagement_platform.engine.model import Transaction
from engagement_platform.engine.schema import LEASE
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.engagement import QUARANTINE, data_table
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.restore import RESTORE
from engagement_platform.maintenance.layout.delta_log import recent
from engagement_platform.maintenance.layout.history import LAYOUT_HISTORY, last_rewrites, predicted_and_actual
from engagement_platform.maintenance.layout.optimize import Asked, Callbacks, Done, NotByOrganization, Run, planned
from engagement_platform.maintenance.layout.plan import Left, Slice
from engagement_platform.maintenance.layout.survey import Target
from engagement_platform.settings import LayoutSettings, MaintenanceSettings, Settings
from engagement_platform_tests import plant
from engagement_platform_tests.maintenance.layout import logs
from engagement_platform_tests.maintenance.layout.seeded import (
    DATA,
    NOTIFICATION,
    SeededLake,
    append_foreign,
    engagement_rows,
    partitions,
)

ODD = ("it's", "a/b", "100%41", "two words", "back\\slash", 'say "hi"', "日本", "new\nline", "`tick`", "= 1 OR 1")


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> SeededLake:
    return SeededLake(tmp_path, spark=spark)


def test_the_same_rows_lie_in_a_tenth_of_the_files_afterwards(lake: SeededLake) -> None:
    lake.engagements("org-1", 30)
    lake.engagements("org-2", 1)
    before, version = lake.rows(), DeltaTable(lake.uri()).version()
    [done] = lake.optimize()
    assert isinstance(done, Done)
    assert (lake.files("org-1"), lake.files("org-2"), lake.rows()) == (1, 1, before)
    assert (done.files_before, done.files_after, done.attempts) == (30, 1, 1)
    assert len(done.rewritten.removed) == 30
    assert sum(done.rewritten.added.values()) < sum(done.rewritten.removed.values())

    [(_, actions)] = lake.commits(after=version)
    changes = [action[kind]["dataChange"] for action in actions for kind in ("add", "remove") if kind in action]
    assert changes == [False] * 31
    [commit] = recent(lake.uri(), most=1, small_file_bytes=1).commits
    assert commit.z_order_by == ("engagement_date",)

    [row] = predicted_and_actual(lake.settings, [lake.target()])["engagement/data"]
    assert (row["files_before"], row["files_after"]) == (30, 1)
    assert row["bytes_rewritten"] == done.slice.gain.bytes_to_rewrite
    assert row["predicted_gain"] == pytest.approx(29 + done.slice.gain.read_files_saved)
    assert row["actual_gain"] == pytest.approx(row["predicted_gain"])
    assert row["partition"] == "organization_id=org-1"
    elsewhere = Target("engagement/data", str(lake.home / "elsewhere" / "engagement" / "data"))
    assert predicted_and_actual(lake.settings, [elsewhere]) == {}, "of the same name, but of another house"

    assert lake.optimize() == [], "nothing is left to do"
    lake.engagements("org-2", 2)
    meanwhile = Callbacks(on_outcome=lambda _: lake.engagements("org-2", 4))
    assert partitions(lake.optimize(callbacks=meanwhile)) == ["organization_id=org-2"]
    assert lake.files("org-2") == 5
    assert partitions(lake.optimize()) == ["organization_id=org-2"], "files came after the rewrite of their partition"


def test_only_the_organization_that_was_asked_for_is_planned(lake: SeededLake) -> None:
    lake.engagements("org-1", 12)
    lake.engagements("org-2", 12)
    lake.notifications("org-2", 12)
    plant.create(lake.uri(RESTORE), RESTORE)
    chosen = planned(lake.settings, Asked(organizations=("org-2",))).chosen
    assert sorted((one.table.name, one.partition) for one in chosen) == [
        ("engagement/data", "organization_id=org-2"),
        ("engagement/notification", "organization_id=org-2/ingestion_date=2024-01-01"),
    ]
    with pytest.raises(NotByOrganization, match="layout/restore is not partitioned"):
        planned(lake.settings, Asked("layout/restore", ("org-1",)))


def test_an_organization_of_a_lake_that_no_table_is_partitioned_by_is_refused(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    plant.create(RESTORE.uri(settings.lake), RESTORE)
    with pytest.raises(NotByOrganization, match="No table of the lake is partitioned"):
        planned(settings, Asked(organizations=("org-1",)))


def test_a_table_that_cannot_be_read_keeps_no_other_from_being_merged_by_day(tmp_path: Path) -> None:
    lake = SeededLake(tmp_path, maintenance=MaintenanceSettings(files_by_day=20))
    lake.engagements("org-1", 30)
    beyond = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["wishes"], "writerFeatures": ["wishes"]}
    logs.table(tmp_path / "lake" / "a" / "newer", protocol=beyond)
    plan = planned(lake.settings, Asked(by_day=True))
    assert [one.partition for one in plan.chosen] == ["organization_id=org-1"]
    assert [reason.partition(" cannot")[0] for reason in plan.unread] == ["The log of a/newer"]


def test_an_append_only_table_is_merged_and_a_reader_of_the_version_before_sees_what_it_saw(
    lake: SeededLake, spark: SparkSession
) -> None:
    """And a stream from it sees no row twice."""
    out = f"{lake.home}/out"

    def follow() -> int:
        stream = Lake(spark, lake.settings).stream(NOTIFICATION).writeStream.format("parquet")
        query = stream.option("checkpointLocation", f"{lake.home}/checkpoint").trigger(availableNow=True).start(out)
        assert query.awaitTermination(120), "the stream did not end within 120 s"
        return spark.read.parquet(out).count()

    lake.notifications("org-1", 6)
    assert follow() == 12
    lake.notifications("org-1", 6)
    pinned, version = lake.rows(NOTIFICATION), DeltaTable(lake.uri(NOTIFICATION)).version()
    [done] = lake.optimize()
    assert isinstance(done, Done)
    assert (done.slice.action, lake.files("org-1", NOTIFICATION)) == ("optimize", 1)
    assert lake.rows(NOTIFICATION, version) == lake.rows(NOTIFICATION) == pinned
    lake.notifications("org-1", 1)
    assert follow() == 26
    assert spark.read.parquet(out).select("notification_id").distinct().count() == 26


def test_a_run_counts_files_that_came_after_its_plan_and_writes_down_all_tables_in_one_commit(lake: SeededLake) -> None:
    lake.engagements("org-1", 3)
    lake.notifications("org-1", 4)
    late = Callbacks(on_slice=lambda one: lake.notifications("org-1", 5) if one.append_only else None)
    outcomes = lake.optimize(callbacks=late)
    done = {one.slice.table.name: one for one in outcomes if isinstance(one, Done)}
    assert {name: (one.files_before, one.files_after) for name, one in done.items()} == {
        "engagement/data": (3, 1), "engagement/notification": (9, 1),
    }  # fmt: skip
    history = DeltaTable(lake.uri(LAYOUT_HISTORY))
    assert (len(history.file_uris()), history.to_pyarrow_table().num_rows) == (1, 2)


def test_days_of_a_table_are_merged_by_one_commit_and_each_has_its_own_outcome(lake: SeededLake) -> None:
    plant.create(lake.uri(QUARANTINE), QUARANTINE)
    days, table = [date(2026, 11, day) for day in (1, 2, 3)], DeltaTable(lake.uri(QUARANTINE))
    for batch in range(3):
        rows = [{"reason": f"{batch}", "ingestion_date": day} for day in (*days[: batch + 1], *days[:batch])]
        plant.append(table, table_of(rows, QUARANTINE), Transaction("test", batch))
    before, version = lake.rows(QUARANTINE), DeltaTable(lake.uri(QUARANTINE)).version()
    done = {one.slice.partition: one for one in lake.optimize() if isinstance(one, Done)}
    assert {name: (one.files_before, one.files_after) for name, one in done.items()} == {
        "ingestion_date=2026-11-01": (3, 1), "ingestion_date=2026-11-02": (2, 1),
    }  # fmt: skip
    assert {one.rewritten.version for one in done.values()} == {version + 1}
    assert all(len(one.rewritten.removed) == one.files_before for one in done.values())
    assert (lake.rows(QUARANTINE), DeltaTable(lake.uri(QUARANTINE)).version()) == (before, version + 1)
    assert lake.optimize() == [], "each is remembered as it was left"


def test_a_day_whose_file_is_lost_keeps_the_other_days_from_nothing(lake: SeededLake) -> None:
    plant.create(lake.uri(QUARANTINE), QUARANTINE)
    table = DeltaTable(lake.uri(QUARANTINE))
    for batch in range(2):
        rows = [{"reason": f"{batch}", "ingestion_date": date(2026, 11, day)} for day in (1, 2)]
        plant.append(table, table_of(rows, QUARANTINE), Transaction("test", batch))
    next(Path(lake.uri(QUARANTINE)).rglob("ingestion_date=2026-11-01/*.parquet")).unlink()
    assert [(type(one), one.slice.partition) for one in lake.optimize()] == [
        (Left, "ingestion_date=2026-11-01"), (Done, "ingestion_date=2026-11-02"),
    ]  # fmt: skip


def test_a_run_whose_place_another_one_has_taken_begins_nothing_more(lake: SeededLake) -> None:
    lake.engagements("org-1", 12)
    lake.notifications("org-1", 3)
    begun: list[str] = []

    def taken_over(one: Slice) -> None:
        begun.append(one.table.name)
        with writing(lake.stores.leases.engine, "test") as connection:
            connection.execute(LEASE.update().values(fencing=LEASE.c.fencing + 1, owner="another run"))

    with pytest.raises(LeaseLost, match=r"table/engagement/data .*held by another run"):
        lake.optimize(callbacks=Callbacks(on_slice=taken_over))
    assert begun == [DATA.name]


def test_a_run_whose_session_another_one_has_closed_begins_nothing_more(lake: SeededLake) -> None:
    lake.engagements("org-1", 12)
    lake.notifications("org-1", 3)
    begun: list[str] = []

    def session() -> SparkSession:
        if begun:
            raise PySparkRuntimeError("[INVALID_HANDLE.SESSION_CLOSED] Session was closed")
        return lake.session()

    run = Run(lake.settings, lake.stores, session, Callbacks(on_slice=lambda one: begun.append(one.table.name)))
    with pytest.raises(PySparkRuntimeError):
        list(run.do(planned(lake.settings, Asked())))
    assert begun == [DATA.name]


def test_of_many_outcomes_the_newest_count(tmp_path: Path) -> None:
    lake, now = SeededLake(tmp_path), datetime.now(UTC)
    for n, (name, size) in enumerate((("a", 9), ("b", 9), ("a", 8))):
        row: dict[str, object] = {"table_name": "engagement/data", "partition": name, "target_file_bytes": size}
        row |= {"fingerprint": f"{n}", "started_ts": now + timedelta(seconds=n), "ingestion_date": now.date()}
        append_foreign(lake.uri(LAYOUT_HISTORY), table_of([row], LAYOUT_HISTORY))
    told = predicted_and_actual(lake.settings, [lake.target()], most=2)["engagement/data"]
    assert [row["partition"] for row in told] == ["a", "b"]
    assert last_rewrites(lake.settings, "engagement/data", 8) == {"a": "2", "b": "1"}
    assert last_rewrites(lake.settings, "engagement/data", 9) == {"b": "1"}, "the target grew"


@pytest.mark.slow
def test_writing_down_what_was_done_is_no_reason_to_do_more(lake: SeededLake) -> None:
    lake.engagements("org-1", 12)
    lake.notifications("org-1", 12)
    assert len(lake.optimize()) == 2
    assert lake.optimize() == []
    today = table_of([{"ingestion_date": datetime.now(UTC).date()}], LAYOUT_HISTORY)
    for _ in range(9):
        append_foreign(lake.uri(LAYOUT_HISTORY), today)
    days = [one.slice.partition for one in lake.optimize()]
    table = DeltaTable(lake.uri(LAYOUT_HISTORY))
    assert (len(days), len(table.file_uris()) <= 2) == (1, True), "but its own files are merged, too"
    assert table.to_pyarrow_table().column("table_name").to_pylist().count("layout/history") == 1


def test_the_second_round_merges_what_the_first_left_alone(lake: SeededLake) -> None:
    lake.engagements("org-1", 4, rows=40)
    tiny = replace(lake, maintenance=lake.maintenance.model_copy(update={"target_file_bytes": 1_000}))
    assert tiny.optimize() == []
    assert partitions(tiny.optimize(Asked(second_round=True))) == ["organization_id=org-1"]
    assert lake.files() == 1


@pytest.mark.parametrize("scheme", ["organization", pytest.param("liquid", marks=pytest.mark.slow)])
def test_organizations_of_any_name_are_rewritten_and_a_liquid_table_as_a_whole(
    tmp_path: Path, spark: SparkSession, scheme: str
) -> None:
    lake = SeededLake(tmp_path, layout=LayoutSettings(scheme=scheme, auto_compact=False), spark=spark)
    table = data_table(lake.settings.layout.scheme)
    written = Lake(spark, lake.settings)
    written.ensure(table)
    if scheme == "organization":
        written.accept_folders("organization_id", ODD, table)
    for batch in range(2):
        rows = pa.concat_tables([engagement_rows(name, batch * 20 + i, 2) for i, name in enumerate(ODD)])
        written.append(written.frame(rows), table, lake._txn(f"{batch}"), rows=rows.num_rows)
    before, version = lake.rows(), DeltaTable(lake.uri()).version()
    asked = Asked("engagement/data", () if scheme == "liquid" else ODD[:3])
    outcomes = lake.optimize(asked)
    for done in outcomes:
        assert isinstance(done, Done)
        assert (done.files_before, done.files_after) == (2, 1), done.slice
    assert spark.conf.get("spark.databricks.delta.optimize.maxFileSize", None) is None, "left as it was found"
    assert len(outcomes) == (1 if scheme == "liquid" else 3)
    assert lake.rows() == before
    for _, actions in lake.commits(after=version):
        assert all(not action["add"]["dataChange"] for action in actions if "add" in action)
