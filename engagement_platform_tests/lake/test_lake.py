"""Creating, comparing and writing real Delta tables: a write that is done again under its transaction adds nothing."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from engagement_platform.engine.model import Transaction
from engagement_platform.errors import PlatformError
from engagement_platform.lake import live_files, log
from engagement_platform.lake.arrow import schema_of
from engagement_platform.lake.contract import Column, ContractBroken, Mode, Table
from engagement_platform.lake.engagement import MAPPING, MUTATION_REQUEST, NOTIFICATION, QUARANTINE, data_table
from engagement_platform.lake.lake import MAX_LITERALS, Lake, LakePathRefused, any_of
from engagement_platform.lake.overwrite import update_rows
from engagement_platform.lake.restore import is_as_at, restore
from engagement_platform.settings import LayoutSettings, Settings

THINGS = Table(
    key=("test", "things"),
    description="For tests.",
    mode=Mode.MUTABLE,
    partitioned_by=("organization_id",),
    columns=(
        Column("organization_id", "string", "Tenant."),
        Column("id", "string", "Which thing; it's unique."),
        Column("version", "long", "Highest seen."),
        Column("word", "string", "What it says."),
    ),
)
Row = tuple[str, str, int, str | None]


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """One lake for this module; tests keep apart by table."""
    return Lake(spark, Settings(home=tmp_path_factory.mktemp("lake of 'tests'")))


def named(name: str) -> Table:
    return replace(THINGS, key=("test", name))


def frame(lake: Lake, rows: Sequence[Row]) -> DataFrame:
    return lake.spark.createDataFrame(rows, THINGS.ddl)


def rows_of(lake: Lake, table: Table) -> list[Any]:
    return sorted(tuple(row) for row in lake.read(table).collect())


def test_the_platforms_tables_are_created_as_declared_and_agree_with_themselves(lake: Lake) -> None:
    tables = (data_table("organization"), MAPPING, NOTIFICATION, QUARANTINE, MUTATION_REQUEST)
    lake.ensure(*tables)
    versions = [lake.version(table) for table in tables]
    lake.ensure(*tables)
    assert [lake.version(table) for table in tables] == versions, "looking at a table must not change it"
    for table in tables:
        found = log.describe(lake.uri(table))
        assert found is not None
        assert tuple(found.columns) == table.column_names
        assert found.partitioned_by == table.partitioned_by
        assert found.properties.get("delta.appendOnly") == ("true" if table.mode is Mode.APPEND_ONLY else None)


def test_a_version_can_be_read_and_restored_when_its_commit_is_older_than_removed_files_are_kept(lake: Lake) -> None:
    table = named("quiet")
    lake.ensure(table)
    lake.append(frame(lake, [("org", "a", 1, None)]), table, Transaction("job/quiet", 0), rows=1)
    quiet, folder = lake.version(table), Path(lake.uri(table)) / "_delta_log"
    long_ago = time.time() - timedelta(days=8).total_seconds()
    for commit in folder.glob("*.json"):
        os.utime(commit, (long_ago, long_ago))
    lake.append(frame(lake, [("org", "b", 1, None)]), table, Transaction("job/quiet", 1), rows=1)
    assert [row["id"] for row in lake.read(table, quiet).collect()] == ["a"]
    restore(lake, table, quiet, Transaction("job/quiet", 2))
    assert rows_of(lake, table) == [("org", "a", 1, None)]


def test_files_of_a_log_go_with_a_checkpoint_once_its_retention_is_over(lake: Lake) -> None:
    table = named("aged")
    lake.ensure(table)
    lake.spark.sql(f"ALTER TABLE delta.`{lake.uri(table)}` SET TBLPROPERTIES ('delta.checkpointInterval' = '2')")
    folder = Path(lake.uri(table)) / "_delta_log"
    for number in range(3):
        lake.append(frame(lake, [("org", f"{number}", 1, None)]), table, Transaction("job/aged", number), rows=1)
    # Delta removes by whole days, so what is expired is a day older than the retention of 30.
    long_ago = time.time() - timedelta(days=32).total_seconds()
    for path in folder.rglob("*"):
        # Each version a minute after the one before, as they were made.
        version = re.search(r"\d{20}", path.name)
        made = long_ago + 60 * int(version.group() if version else 0)
        os.utime(path, (made, made))
    for number in range(3, 6):
        lake.append(frame(lake, [("org", f"{number}", 1, None)]), table, Transaction("job/aged", number), rows=1)
    versions = {int(found.group()) for path in folder.iterdir() if (found := re.search(r"\d{20}", path.name))}
    assert min(versions) == 4, "versions 0 to 4 are expired, and a checkpoint of 4 stands for all of them"
    assert [row[1] for row in rows_of(lake, table)] == list("012345")


def test_the_liquid_layout_clusters_by_organization_and_day(lake: Lake, tmp_path: Path) -> None:
    table = replace(data_table("liquid"), key=("test", "liquid"))
    lake.ensure(table)
    detail = lake.spark.sql(f"DESCRIBE DETAIL delta.`{lake.uri(table)}`").collect()[0]
    assert detail["clusteringColumns"] == ["organization_id", "engagement_date"]
    assert detail["partitionColumns"] == []
    lake.ensure(table)


@pytest.mark.parametrize("folder", ["100%", "a#b", "what?", "[a]", "a,b"])
def test_a_lake_in_a_folder_that_the_engines_understand_differently_is_refused(
    spark: SparkSession, tmp_path: Path, folder: str
) -> None:
    with pytest.raises(LakePathRefused, match="ENGAGEMENT_PLATFORM_HOME"):
        Lake(spark, Settings(home=tmp_path / folder))


def test_a_lake_of_the_first_edition_is_refused_and_gains_no_column(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, Settings(home=tmp_path, layout=LayoutSettings(evolve=True)))
    data = data_table("liquid")
    lacks = tuple(column for column in data.columns if column.name not in ("original", "earlier_versions"))
    write_deltalake(lake.uri(data), schema_of(replace(data, columns=lacks)).empty_table())
    with pytest.raises(PlatformError, match=f"in {lake.root} .* Start anew"):
        lake.ensure(data)
    assert lake.version(data) == 0


def test_a_table_that_differs_stops_the_job_with_every_difference(lake: Lake) -> None:
    table = named("differs")
    lake.ensure(table)
    other = replace(
        table,
        mode=Mode.APPEND_ONLY,
        columns=(*table.columns[:2], Column("version", "int", "."), Column("new", "date", ".")),
    )
    with pytest.raises(ContractBroken) as raised:
        lake.ensure(other)
    assert raised.value.differences == (
        "column new date is missing",
        "column version is long, declared int",
        "column word is not declared",
        "delta.appendOnly is false, declared append-only",
    )
    assert lake.version(table) == 0


def test_missing_columns_are_added_only_with_evolve_and_only_when_all_else_agrees(lake: Lake) -> None:
    table = named("evolves")
    lake.ensure(table)
    lake.append(frame(lake, [("org", "a", 1, "old")]), table, Transaction("job/evolve", 0), rows=1)
    more, between = Column("more", "map<string,string>", "It's new."), Column("between", "long", "New, too.")
    wider = replace(table, columns=(*table.columns[:2], between, *table.columns[2:], more))
    with pytest.raises(ContractBroken, match="column more map<string,string> is missing"):
        lake.ensure(wider)
    evolving = Lake(lake.spark, lake.settings.model_copy(update={"layout": LayoutSettings(evolve=True)}))
    with pytest.raises(ContractBroken, match="column version is long, declared int"):
        evolving.ensure(
            replace(wider, columns=(*wider.columns[:2], between, Column("version", "int", "."), *wider.columns[4:]))
        )
    evolving.ensure(wider)
    lake.ensure(wider)
    assert rows_of(lake, wider) == [("org", "a", None, 1, "old", None)]


def test_columns_that_a_call_had_not_added_where_it_ended_come_with_the_next(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = named("evolves_twice")
    lake.ensure(table)
    lake.append(frame(lake, [("org", "a", 1, "old")]), table, Transaction("job/evolve", 0), rows=1)
    wider = replace(table, columns=(*table.columns, Column("one", "long", "New."), Column("two", "long", "New, too.")))
    evolving = Lake(lake.spark, lake.settings.model_copy(update={"layout": LayoutSettings(evolve=True)}))

    seen, set_time = log.describe(lake.uri(table)), Lake._set

    def ends(*given: Any) -> None:
        set_time(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Lake, "_set", ends)
        with pytest.raises(KeyboardInterrupt):
            evolving.ensure(wider)
    ended = datetime.now(UTC)
    evolving.ensure(wider)
    lake.ensure(wider)
    added = lake.added(wider)
    assert ended < added["one"] < added["two"], "rows from before the time lack the column"
    assert seen is not None
    evolving._compare(wider, seen)
    assert lake.added(wider) == added, "a process that saw the table before it had them leaves their times as they are"
    assert rows_of(lake, wider) == [("org", "a", 1, "old", None, None)]


def test_an_append_that_is_done_again_adds_nothing_even_with_other_rows(lake: Lake) -> None:
    table = named("appended")
    lake.ensure(table)
    first, second = Transaction("job@1/data/insert", 4), Transaction("job@1/data/insert", 5)
    lake.append(frame(lake, [("org", "a", 1, "one"), ("org-2", "b", 1, None)]), table, first, rows=2)
    after = lake.version(table)
    lake.append(frame(lake, [("org", "a", 1, "one"), ("org-2", "b", 1, None)]), table, first, rows=2)
    lake.append(frame(lake, [("org", "c", 1, "another")]), table, first, rows=1)
    assert lake.version(table) == after
    lake.append(frame(lake, [("org", "d", 1, "next")]), table, second, rows=1)
    lake.append(frame(lake, [("org", "e", 1, "other application")]), table, Transaction("job@2/data/insert", 4), rows=1)
    assert sorted(row[1] for row in rows_of(lake, table)) == ["a", "b", "d", "e"]
    commit = lake.commit_of(table, first)
    assert commit is not None
    assert (commit.version, commit.files_added, commit.rows_added) == (after, 2, 2)
    assert commit.bytes_added > 0
    assert lake.commit_of(table, Transaction("job@1/data/insert", 6)) is None


def test_an_update_that_is_done_again_changes_nothing(lake: Lake) -> None:
    table = named("updated")
    lake.ensure(table)
    held = [("org", "a", 1, "one"), ("org", "b", 5, "other"), ("org-2", "a", 1, "theirs")]
    lake.append(frame(lake, held), table, Transaction("job/insert", 0), rows=len(held))
    txn = Transaction("job/update", 1)

    def update(changes: Sequence[Row]) -> None:
        within = [F.col("organization_id") == "org"]
        update_rows(lake, frame(lake, changes), table, txn, on=("organization_id", "id"), within=within)

    update([("org", "a", 2, "two"), ("org", "c", 1, "nobody's")])
    expected = [("org", "a", 2, "two"), *held[1:]]
    assert rows_of(lake, table) == expected
    after = lake.version(table)
    update([("org", "a", 3, "three")])
    assert rows_of(lake, table) == expected
    assert lake.version(table) == after
    commit = lake.commit_of(table, txn)
    assert commit is not None
    assert (commit.operation, commit.rows_updated, commit.rows_added) == ("MERGE", 1, 0)
    for key in ("write.txnAppId", "write.txnVersion", "commitInfo.userMetadata"):
        assert lake.spark.conf.get(f"spark.databricks.delta.{key}", None) is None, f"{key} names every later write"


def test_an_update_that_fails_leaves_no_transaction_behind_in_the_session(lake: Lake) -> None:
    table = named("refused")
    lake.ensure(table)
    lake.append(frame(lake, [("org", "a", 1, "one")]), table, Transaction("job/insert", 0), rows=1)
    twice = frame(lake, [("org", "a", 2, "two"), ("org", "a", 3, "three")])
    with pytest.raises(Exception, match="DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE"):
        update_rows(lake, twice, table, Transaction("job/update", 1), on=("organization_id", "id"), within=())
    lake.append(frame(lake, [("org", "b", 1, "later")]), table, Transaction("job/insert", 1), rows=1)
    assert [row[1] for row in rows_of(lake, table)] == ["a", "b"]
    assert lake.spark.conf.get("spark.databricks.delta.write.txnAppId", None) is None


def test_an_append_only_table_refuses_an_update(lake: Lake) -> None:
    table = replace(named("append_only"), mode=Mode.APPEND_ONLY)
    lake.ensure(table)
    rows = frame(lake, [("org", "a", 1, "one")])
    lake.append(rows, table, Transaction("job/insert", 0), rows=1)
    with pytest.raises(Exception, match="DELTA_CANNOT_MODIFY_APPEND_ONLY"):
        update_rows(lake, rows, table, Transaction("job/update", 0), on=("organization_id", "id"), within=())


def test_a_pinned_version_is_read_whatever_came_later(lake: Lake) -> None:
    table = named("pinned")
    lake.ensure(table)
    lake.append(frame(lake, [("org", "a", 1, "one")]), table, Transaction("job/insert", 0), rows=1)
    pinned = lake.version(table)
    lake.append(frame(lake, [("org", "b", 1, "two")]), table, Transaction("job/insert", 1), rows=1)
    assert [row["id"] for row in lake.read(table, pinned).collect()] == ["a"]
    assert lake.read(table, 0).count() == 0


@pytest.mark.parametrize("by", [(), ("day",)], ids=["liquid", "by day"])
def test_a_version_read_by_its_files_is_what_delta_reads(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, by: tuple[str, ...]
) -> None:
    """After appends, an update, a column more, a compaction, deletion vectors and a restore; and without any file."""
    liquid = () if by else ("organization_id",)
    columns = (*THINGS.columns[:2], Column("day", "date", "When."), *THINGS.columns[2:])
    table = replace(THINGS, key=("test", f"by_files{len(by)}"), partitioned_by=by, liquid_by=liquid, columns=columns)
    lake.ensure(table)
    where, within = lake.sql_name(table), [F.col("organization_id") == "org"]
    first, second = date(2026, 1, 5), date(2026, 1, 6)
    held = [("org", "a", first, 1, "one"), ("org", "b", second, 5, None), ("other", "c", None, 2, "ü")]
    for number, row in enumerate(held):
        rows = lake.spark.createDataFrame([row], table.ddl)
        lake.append(rows, table, Transaction("job/insert", number), rows=1)
    newer = lake.spark.createDataFrame([("org", "a", first, 2, "two")], table.ddl)
    update_rows(lake, newer, table, Transaction("job/update", 0), on=("organization_id", "id"), within=within)
    for statement in (
        f"ALTER TABLE {where} ADD COLUMNS (more map<string,string>)",
        f"INSERT INTO {where} VALUES ('org', 'd', DATE '2026-01-06', 1, 'word', map('k', 'v'))",
        f"OPTIMIZE {where}",
        f"ALTER TABLE {where} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
        f"DELETE FROM {where} WHERE id = 'b'",
        f"RESTORE TABLE {where} TO VERSION AS OF 3",
    ):
        lake.spark.sql(statement).collect()
    last = lake.version(table)
    found = [said(lake.read(table, version)) for version in range(last + 1)]
    plain = [live_files.plain(lake.uri(table), version) is not None for version in range(last + 1)]
    assert plain[:8] == [False, *[True] * 7], "or Delta was asked in both"
    assert not any(plain[-2:]), "their files alone do not say which rows are deleted"
    monkeypatch.setattr(live_files, "plain", lambda *_: None)
    assert found == [said(lake.read(table, version)) for version in range(last + 1)]
    assert len({str(rows) for _, rows in found}) >= 6


def test_partitions_whose_folders_do_not_say_their_day_are_read_by_delta(lake: Lake) -> None:
    text = named("by_text")
    days = replace(
        THINGS,
        key=("test", "by_prefix"),
        partitioned_by=("day",),
        columns=(*THINGS.columns, Column("day", "date", "When.")),
    )
    lake.ensure(text, days)
    lake.set_property(days, "delta.randomizeFilePrefixes", "true")
    lake.append(frame(lake, [("007", "a", 1, "one")]), text, Transaction("job/insert", 0), rows=1)
    rows = lake.spark.createDataFrame([("org", "a", 1, "one", date(2026, 1, 5))], days.ddl)
    lake.append(rows, days, Transaction("job/insert", 0), rows=1)
    for table in (text, days):
        assert live_files.plain(lake.uri(table), lake.version(table)) is None
    assert [row["organization_id"] for row in lake.read(text, lake.version(text)).collect()] == ["007"]
    assert [row["day"] for row in lake.read(days, lake.version(days)).collect()] == [date(2026, 1, 5)]


def said(rows: DataFrame) -> tuple[str, list[Any]]:
    """What a frame says: columns with their types, and its rows."""
    return rows.schema.simpleString(), sorted((tuple(row) for row in rows.collect()), key=str)


def test_a_predicate_lists_values_until_they_are_too_many(lake: Lake) -> None:
    rows = frame(lake, [("org", "a", 1, "it's"), ("org", "b", 1, "back\\slash"), ("org", "c", 1, "other")])
    assert [r["id"] for r in rows.where(any_of("word", ["it's", "back\\slash"])).collect()] == ["a", "b"]
    assert rows.where(any_of("word", [])).count() == 0
    assert rows.where(any_of("word", ["none"] * MAX_LITERALS)).count() == 0
    assert rows.where(any_of("word", ["none"] * (MAX_LITERALS + 1))).count() == 3


def test_organizations_that_make_no_folder_name_turn_a_table_to_random_ones_once(lake: Lake) -> None:
    table, unpartitioned = named("folders"), replace(named("flat"), partitioned_by=())
    lake.ensure(table, unpartitioned)
    lake.accept_folders("organization_id", ["Org 2 (EU)", "a@b.c", "o" * 200], table, unpartitioned)
    assert lake.version(table) == 0
    for strange in ("../up", "o" * 201, "a=b", "日本", ""):
        lake.accept_folders("organization_id", ["org", strange], table, unpartitioned)
        assert (lake.version(table), lake.version(unpartitioned)) == (1, 0)
    found = log.describe(lake.uri(table))
    assert found is not None
    assert found.properties["delta.randomizeFilePrefixes"] == "true"
    lake.ensure(table)
    odd = [("../up", "a", 1, "one"), ("😀" * 256, "b", 1, "two")]
    lake.append(frame(lake, odd), table, Transaction("job/insert", 0), rows=len(odd))
    assert rows_of(lake, table) == sorted(odd)


def test_whatever_texts_hold_their_commit_is_found_and_stays_small(lake: Lake) -> None:
    table, txn = named("texts"), Transaction("job/insert", 0)
    lake.ensure(table)
    rows: list[Row] = [
        ("org", str(n), 1, text) for n, text in enumerate(("x\u2028y", "\u2029", "\x85", "long " * 100_000))
    ]
    lake.append(frame(lake, rows), table, txn, rows=len(rows))
    commit = lake.commit_of(table, txn)
    assert commit is not None
    assert (commit.rows_added, commit.bytes_added > 0) == (len(rows), True)
    assert Path(lake.uri(table), "_delta_log", f"{commit.version:020}.json").stat().st_size < 5_000
    assert rows_of(lake, table) == rows


def test_a_table_is_as_it_was_at_a_version_by_its_files_columns_and_properties(tmp_path: Path) -> None:
    uri, rows = str(tmp_path / "table"), pa.table({"id": [1, 2]})
    write_deltalake(uri, rows)
    write_deltalake(uri, rows, mode="append")
    assert not is_as_at(uri, "table", 1, 0)
    DeltaTable(uri).restore(0)
    assert is_as_at(uri, "table", 2, 0)
    assert is_as_at(uri, "table", 2, 2)
    assert not is_as_at(uri, "table", 2, 1)
    DeltaTable(uri).alter.set_table_properties({"delta.dataSkippingNumIndexedCols": "0"})
    assert not is_as_at(uri, "table", 3, 0), "its properties are others"
