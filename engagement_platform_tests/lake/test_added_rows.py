"""Reading a table's growth: every row once and in order, whichever engine wrote it and whatever was compacted.

Most tables are written by delta-rs; Spark writes, compacts and reads its share of them where the engines differ.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from engagement_platform.engine.model import Transaction
from engagement_platform.lake import added_rows
from engagement_platform.lake.added_rows import (
    Added,
    AddedRowsUnknown,
    added,
    read_here,
)
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.contract import Column, Mode, Table
from engagement_platform.lake.lake import Lake
from engagement_platform.settings import LayoutSettings, Settings
from engagement_platform_tests import plant

GROWING = Table(
    key=("test", "growing"),
    description="For tests.",
    mode=Mode.APPEND_ONLY,
    partitioned_by=("organization_id", "day"),
    columns=(
        Column("id", "string", "Which."),
        Column("organization_id", "string", "Tenant."),
        Column("day", "date", "Of it."),
        Column("at", "timestamp", "When."),
        Column("words", "map<string,string>", "Some."),
        Column("list", "array<string>", "More."),
        Column("n", "int", "A number."),
    ),
)
COLUMNS = GROWING.column_names
ORGANIZATIONS = ("org", "Org 2", "a%20b", "100%", "a=b", "a/b", "a:b", "x[1]{2}*", "back\\slash", "it's", "日本", "a+b")
# Without Japanese: Spark's folders are named in the JVM's locale, which may be C.
IN_SPARK = ("a%20b", "100%", "a/b", "x[1]{2}*", "back\\slash", "it's", None)
Row = dict[str, Any]


def row(number: int, organization: str | None = "org", day: date | None = date(2026, 11, 20)) -> Row:
    return {
        "id": f"id-{number}",
        "organization_id": organization,
        "day": day,
        # Beyond what fits into nanoseconds, and with microseconds.
        "at": datetime(2300 if number % 5 == 0 else 2026, 11, 20, 12, 30, 0, number % 1000, tzinfo=UTC),
        "words": None if number % 7 == 0 else {"k": f"v {number}", "empty": None},
        "list": [None, "x"] if number % 2 else [],
        "n": None if number % 3 == 0 else number,
    }


def rows_for(count: int, organizations: Sequence[str | None] = ORGANIZATIONS, since: int = 0) -> list[Row]:
    return [row(n, organizations[n % len(organizations)]) for n in range(since, since + count)]


def create(uri: str, table: Table = GROWING) -> str:
    """An empty table, version 0."""
    schema = table_of([], table).schema
    partitions = list(table.partitioned_by)
    DeltaTable.create(uri, schema, partition_by=partitions, configuration=dict(table.properties))
    return uri


def append(uri: str, rows: Sequence[Row], table: Table = GROWING) -> int:
    """One light commit; its version."""
    found = DeltaTable(uri)
    plant.append(found, table_of(rows, table), Transaction("test", found.version()))
    return int(found.version())


def compact(uri: str) -> None:
    """Rewrite all small files of every partition; adds no rows."""
    DeltaTable(uri).optimize.compact()


def touch(uri: str) -> None:
    """A commit without files."""
    DeltaTable(uri).alter.set_table_properties({"delta.logRetentionDuration": "interval 30 days"})


def sorted_rows(rows: pa.Table | Sequence[Row]) -> list[Row]:
    listed = rows.to_pylist(maps_as_pydicts="strict") if isinstance(rows, pa.Table) else list(rows)
    return sorted(listed, key=lambda one: str(one["id"]))


def between(uri: str, after: int, through: int) -> list[Added]:
    """The files that some versions added, in their order."""
    return [file for version in range(after + 1, through + 1) for file in added(uri, version)]


def here(uri: str, after: int, through: int, columns: Sequence[str] = COLUMNS) -> pa.Table:
    return read_here(uri, GROWING, between(uri, after, through), columns)


def test_commits_of_spark_are_read_as_they_came(spark: SparkSession, tmp_path: Path) -> None:
    """Two kinds of compaction in between, odd organizations and nulls."""
    lake = Lake(spark, Settings(home=tmp_path, layout=LayoutSettings(auto_compact=False)))
    lake.ensure(GROWING)
    uri = lake.uri(GROWING)
    commits: dict[int, list[Row]] = {}
    for nth in range(4):
        rows = rows_for(9, IN_SPARK, since=100 * nth)
        rows.append(row(100 * nth + 50, "org", None))
        txn = Transaction("job/insert", nth)
        frame = spark.createDataFrame([tuple(one[name] for name in COLUMNS) for one in rows], GROWING.ddl)
        lake.append(frame, GROWING, txn, rows=len(rows))
        # Not simply the newest version: Spark may have compacted of itself since.
        commit = lake.commit_of(GROWING, txn)
        assert commit is not None
        commits[commit.version] = rows
        if nth == 1:
            spark.sql(f"OPTIMIZE delta.`{uri}`").collect()
        if nth == 2:
            DeltaTable(uri).optimize.compact()
    assert len(commits) == 4
    last = lake.version(GROWING)
    assert last > 5, "the compactions must have made commits"
    for version, rows in commits.items():
        assert sorted_rows(here(uri, version - 1, version)) == sorted_rows(rows)
    everything = sorted_rows([one for rows in commits.values() for one in rows])
    assert sorted_rows(here(uri, -1, last)) == everything


def test_rows_come_in_the_order_of_versions_with_the_contracts_types(tmp_path: Path) -> None:
    uri = create(str(tmp_path / "growing"))
    for nth in range(4):
        append(uri, rows_for(3, since=10 * nth))
        compact(uri)
    read = here(uri, 1, 7, ("n", "organization_id", "day", "id", "at"))
    assert read.schema == table_of([], GROWING).select(["n", "organization_id", "day", "id", "at"]).schema
    tens = [int(one["id"].removeprefix("id-")) // 10 for one in read.to_pylist()]
    assert tens == sorted(tens)
    assert set(tens) == {1, 2, 3}
    assert here(uri, 2, 2, ("id",)).num_rows == 0


@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_an_organization_of_any_spelling_is_read_through_delta_rs_own_store_too(
    tmp_path: Path, organization: str
) -> None:
    """As a URI the files are opened by the client that object stores are read with."""
    local = create(str(tmp_path / "growing"))
    append(local, [row(1, organization)])
    uri = f"file://{local}"
    assert sorted_rows(here(uri, -1, 1)) == sorted_rows(here(local, -1, 1)) == [row(1, organization)]
    (file,) = added(uri, 1)
    assert added_rows.rows_in(uri, replace(file, records=None)) == 1
    shutil.rmtree(next(folder for folder in Path(local).iterdir() if folder.name != "_delta_log"))
    with pytest.raises(AddedRowsUnknown, match="removed by VACUUM"):
        added_rows.rows_in(uri, replace(file, records=None))
    Path(local, "_delta_log", f"{0:020}.json").unlink()
    with pytest.raises(AddedRowsUnknown, match="begins at version 1 of 2"):
        added(uri, 0)


STEPS = st.lists(
    st.one_of(st.integers(1, 6).map(lambda count: ("append", count)), st.just(("compact", 0)), st.just(("touch", 0))),
    max_size=14,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_each_commit_has_the_rows_it_added_whatever_comes_in_between(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    uri = create(str(tmp_path_factory.mktemp("growth") / "growing"))
    commits: dict[int, list[Row]] = {}
    for step, count in steps:
        if step == "append":
            rows = rows_for(count, ("org", "a%20b"), since=sum(map(len, commits.values())))
            commits[append(uri, rows)] = rows
        elif step == "compact":
            compact(uri)
        else:
            touch(uri)
    for version in range(int(DeltaTable(uri).version()) + 1):
        files = added(uri, version)
        expected = commits.get(version, [])
        assert sorted_rows(read_here(uri, GROWING, files, COLUMNS)) == sorted_rows(expected)
        assert sum(added_rows.rows_in(uri, file) for file in files) == len(expected)


def test_a_file_without_statistics_is_counted_from_its_footer(tmp_path: Path) -> None:
    uri = create(str(tmp_path / "growing"))
    append(uri, rows_for(4, ("org",)))
    entry = Path(uri, "_delta_log", f"{1:020}.json")
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            del action["add"]["stats"]
    entry.write_text("\n".join(map(json.dumps, actions)))
    (file,) = added(uri, 1)
    assert (file.records, added_rows.rows_in(uri, file)) == (None, 4)


def test_absolute_paths_of_the_log_are_followed(tmp_path: Path) -> None:
    uri = create(str(tmp_path / "growing"))
    append(uri, [row(1, "a b")])
    (file,) = added(uri, 1)
    for root in (quote(str(tmp_path)), f"file:{quote(str(tmp_path))}", f"file://{quote(str(tmp_path))}"):
        moved = replace(file, path=f"{root}/growing/{file.path}")
        added_rows.refuse_vacuumed("/elsewhere", [moved])
        assert sorted_rows(read_here("/elsewhere", GROWING, [moved], COLUMNS)) == [row(1, "a b")]


def test_files_from_before_a_column_was_added_have_nulls_in_it(tmp_path: Path) -> None:
    narrow = replace(GROWING, columns=GROWING.columns[:-2])
    uri = create(str(tmp_path / "growing"), narrow)
    append(uri, [row(1)], narrow)
    write_deltalake(uri, table_of([row(2)], GROWING), mode="append", schema_mode="merge")
    assert sorted_rows(here(uri, -1, 2)) == [{**row(1), "list": None, "n": None}, row(2)]


def test_a_lost_log_entry_names_what_is_lost(tmp_path: Path) -> None:
    uri = create(str(tmp_path / "growing"))
    for number in range(3):
        append(uri, [row(number)])
    DeltaTable(uri).create_checkpoint()
    for version in range(3):
        Path(uri, "_delta_log", f"{version:020}.json").unlink()
    with pytest.raises(AddedRowsUnknown, match=r"version 2 .* begins at version 3 of 2"):
        added(uri, 2)
    assert sorted_rows(here(uri, 2, 3)) == [row(2)]


def test_vacuumed_files_are_named(tmp_path: Path) -> None:
    uri = create(str(tmp_path / "growing"))
    rows = rows_for(6, ("org",))
    for nth in range(3):
        append(uri, rows[2 * nth : 2 * nth + 2])
    compact(uri)
    DeltaTable(uri).vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(AddedRowsUnknown, match=r"2 files that version 2 of 2"):
        added_rows.refuse_vacuumed(uri, between(uri, 1, 3))
    append(uri, [row(9)])
    added_rows.refuse_vacuumed(uri, between(uri, 3, int(DeltaTable(uri).version())))


def test_rows_that_were_taken_away_are_not_passed_by(tmp_path: Path) -> None:
    uri = create(str(tmp_path / "growing"), replace(GROWING, mode=Mode.MUTABLE))
    append(uri, rows_for(4, ("org",)))
    DeltaTable(uri).delete("id = 'id-1'")
    with pytest.raises(AddedRowsUnknown, match=r"version 2 of 2.*DELETE"):
        added(uri, 2)
