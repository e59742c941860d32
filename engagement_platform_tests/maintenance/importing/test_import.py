"""Old stores imported: every format, what does not fit, ends in the middle, and files that change."""

from __future__ import annotations

import bz2
import gzip
import importlib
import json
import pkgutil
from collections import Counter
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.orc as paorc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from benchmarks.perftest.timer import TIMER
from engagement_platform import lake as lakes
from engagement_platform import maintenance, pii, pipelines
from engagement_platform.lake.contract import Table
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.optimize import configured
from engagement_platform.maintenance.importing.files import ImportRefused, Source, find
from engagement_platform.maintenance.importing.job import (
    APPENDED,
    COMPACTED,
    PLANNED,
    REFUSED,
    ImportDiffers,
    import_into,
)
from engagement_platform.maintenance.importing.rows import REASON, STRICT, VALUE, declared, inferred, read
from engagement_platform.pipelines.kafka_tables.tables import OURS
from engagement_platform.pipelines.profiles.entity import Entity
from engagement_platform.settings import Settings
from engagement_platform_tests.maintenance.importing.stores import (
    called,
    imported,
    quarantined,
    row,
    rows_in,
    store,
    text_of,
    written,
)


def test_a_mixed_store_becomes_one_table_with_every_row_once(home: Path) -> None:
    rows, table = store(home / "store"), home / "home/lake/old/clicks"
    sizes = [path.stat().st_size for path in (home / "store").rglob("*") if path.is_file()]
    written(home / "store", "_temporary/0/part-9.csv", b"id\n99\n")
    written(home / "store", "_hour=7/.part-0.csv.crc", b"crc")
    shown = called("store", "old/clicks", input="n\n")
    assert shown.exit_code == 1
    assert not table.exists(), "columns were shown, and refused"
    assert all(word in shown.output for word in ("timestamp", "double", "partition", "csv (gzip)"))
    report = imported("store", "old/clicks", "--yes")
    assert Counter(tuple(one.values()) for one in rows_in(table)) == Counter(rows)
    assert DeltaTable(str(table)).metadata().partition_columns == ["_hour", "city"]
    assert (report["rows"], report["rejected"]) == (len(rows), 0)
    assert (report["files_before"], report["bytes_before"]) == (len(sizes), sum(sizes))
    in_use = [Path(uri.removeprefix("file://")) for uri in DeltaTable(str(table)).file_uris()]
    assert (report["files_after"], report["bytes_after"]) == (3, sum(path.stat().st_size for path in in_use))
    again = imported("store", "old/clicks", "--yes")
    assert (again["rows"], again["checksum"]) == (len(rows), report["checksum"])
    assert len(rows_in(table)) == len(rows)


def test_what_does_not_fit_is_in_quarantine_whole_and_with_its_reason(home: Path) -> None:
    source = home / "store"
    written(
        source,
        "a.csv",
        b'\xef\xbb\xbfid,name\r\n1,one\r\nx,two\n3\n"4","a ""b"", c"\n\n5,"open\n6,six\n7,\xff\n8,""\n9,\n',
    )
    written(source, "b.jsonl", b'{"id": 10, "name": "ten"}\n{"id": 11} junk\n{"id":12}{"id":13}\n[1]\n{"id": "x"}\n\n')
    written(source, "e.csv", b"one,two\n1,2\n")
    pq.write_table(pa.table({"id": pa.array([20, 2**40, 22]), "name": ["a", "b", "c"]}), source / "f.parquet")
    (home / "schema.json").write_text('{"id": "int", "name": "string"}')
    report = imported("store", "old/bad", "--schema", "schema.json")
    rows = {(one["id"], one["name"]) for one in rows_in(home / "home/lake/old/bad")}
    assert rows == {(1, "one"), (4, 'a "b", c'), (6, "six"), (8, ""), (9, None), (10, "ten"), (20, "a"), (22, "c")}
    assert {(one["path"], one["value"]): one["reason"] for one in quarantined(home)} == {
        ("a.csv", b"x,two"): "id is no int",
        ("a.csv", b"3"): "it has not 2 fields",
        ("a.csv", b'5,"open'): "a quote is not closed on its line",
        ("a.csv", b"7,\xff"): "it is no UTF-8",
        ("b.jsonl", b'{"id": 11} junk'): "it is not one JSON object",
        ("b.jsonl", b'{"id":12}{"id":13}'): "it is not one JSON object",
        ("b.jsonl", b"[1]"): "it is not one JSON object",
        ("b.jsonl", b'{"id": "x"}'): "id is no int",
        ("e.csv", b"1,2"): "the first line of its file names none of the columns",
        ("f.parquet", b'{"id":1099511627776,"name":"b"}'): "id is no int",
    }
    assert (report["rows"], report["rejected"]) == (len(rows), len(quarantined(home)))


def test_plain_text_is_lines_and_what_cannot_be_imported_is_refused_by_its_name(home: Path) -> None:
    source = home / "store"
    written(source, "a.log", b"one\r\n\ntwo \xe2\x82\xac\nbroken \xff\nlast")
    report = imported("store", "old/text", "--yes")
    assert {one["value"] for one in rows_in(home / "home/lake/old/text")} == {"one", "", "two €", "last"}
    assert (report["rows"], report["rejected"]) == (4, 1)
    for name in ("b.rc", "b.csv.zst", "b.parquet.gz", "b.parquet"):
        written(source, name, b"RCF\x01 of Hive")
        refused = called("store", "old/other", "--yes").exception
        assert isinstance(refused, ImportRefused)
        assert name in str(refused)
        (source / name).unlink()
    table = pa.table({"value": [f"line {n}" for n in range(9_000)]})
    pq.write_table(table, home / "whole.parquet", compression=None)
    paorc.write_table(table, home / "whole.orc", compression="zlib")
    whole = (home / "whole.orc").read_bytes()
    damaged = {
        "broken.log.gz": gzip.compress(b"line\n" * 9)[:-12],
        "broken.log.bz2": bz2.compress(b"line\n" * 9)[:-12],
        "broken.parquet": (home / "whole.parquet").read_bytes().replace(b"PAR1\x15", b"PAR1\xff", 1),
        "broken.orc": whole[: len(whole) // 3] + b"\xff" * 64 + whole[len(whole) // 3 + 64 :],
    }
    for name, content in damaged.items():
        written(source, name, content)
        refused = called("store", "old/other", "--yes").exception
        assert isinstance(refused, ImportRefused), name
        assert name in str(refused)
        (source / name).unlink()
    assert rows_in(home / "home/lake/old/other") == [], "everything is read before anything is written"
    assert isinstance(called("nowhere", "old/other", "--yes").exception, ImportRefused)
    assert called("store", "engagement/data", "--yes").exit_code == 2
    for declaration in ("[]", '{"value": "strin"}', '{"a b": "string"}'):
        (home / "bad.json").write_text(declaration)
        assert isinstance(called("store", "old/other", "--schema", "bad.json").exception, ImportRefused)


class Ended(Exception):
    """A process that ends at a point."""


def ending_at(point: str) -> Callable[[str], None]:
    def observe(passed: str) -> None:
        if passed == point:
            raise Ended

    return observe


def test_an_import_that_ends_anywhere_goes_on_and_stops_where_files_or_rows_changed(
    home: Path, spark: SparkSession
) -> None:
    table = home / "home/lake/old/clicks"
    written(home / "store", "a.csv", text_of([row(n) for n in range(5)], "csv"))
    written(home / "store", "b.csv", text_of([row(n) for n in range(5, 9)], "csv") + b"no record\n")
    lake, source = Lake(spark, Settings()), find(str(home / "store"))
    columns = inferred(spark, Source(source.folder, source.files[:1]))
    for point in (PLANNED, APPENDED, REFUSED, COMPACTED):
        with pytest.raises(Ended):
            import_into(lake, "old/clicks", source, columns, ending_at(point))
    report = import_into(lake, "old/clicks", source, columns)
    assert Counter(tuple(one.values()) for one in rows_in(table)) == Counter(tuple(row(n).values()) for n in range(9))
    assert (report.rows, report.rejected, len(quarantined(home))) == (9, 1, 1)
    write_deltalake(str(table), DeltaTable(str(table)).to_pyarrow_table().slice(0, 1), mode="append")
    with pytest.raises(ImportDiffers, match=r"has 10 with .* 9 rows with"):
        import_into(lake, "old/clicks", source, columns)
    written(home / "store", "b.csv", text_of([row(n) for n in range(6)], "csv"))
    with pytest.raises(ImportRefused):
        import_into(lake, "old/clicks", find(source.folder), columns)
    assert len(rows_in(table)) == 10


def test_columns_are_the_narrowest_that_hold_all_and_come_back_as_they_were_printed(home: Path) -> None:
    written(home / "store", "a.csv", b"id,score,at,day,what\n1,2,2026-11-01,2026-11-01,x\n")
    times = '"at": "2026-11-02T01:30:00+02:00"'
    written(home / "store", "b.jsonl", f'{{"id": 2, "score": 0.5, {times}, "what": "5", "more": {{"a": 1}}}}'.encode())
    pq.write_table(pa.table({"id": pa.array([3], pa.int32()), "more": [{"b": [True]}]}), home / "store" / "c.parquet")
    shown = called("store", "old/declared", "--show")
    columns = json.loads(shown.stdout)
    assert columns == {
        "id": "bigint", "score": "double", "at": "timestamp", "day": "date", "what": "string", "more": "string",
    }  # fmt: skip
    (home / "columns.json").write_text(json.dumps({**columns, "more": "struct<a:bigint,b:array<boolean>>"}))
    assert imported("store", "old/declared", "--schema", "columns.json")["rows"] == 3
    rows = {one["id"]: one for one in rows_in(home / "home/lake/old/declared")}
    assert rows[1]["at"] == datetime.fromisoformat("2026-11-01T00:00:00+00:00")
    assert rows[2]["at"] == datetime.fromisoformat("2026-11-01T23:30:00+00:00")
    assert [rows[n]["what"] for n in (1, 2)] == ["x", "5"]
    assert [rows[n]["more"] for n in (1, 2, 3)] == [None, {"a": 1, "b": None}, {"a": None, "b": [True]}]


WHOLE: dict[str, tuple[str, ...]] = {
    "bigint": ("9007199254740993", " -14 ", "0"),
    "double": ("0.30000000000000004", "-1.5E-3", "9007199254740992", "1e300", "NaN"),
    "float": ("0.1", "16777216"),
    "decimal(10,2)": ("1.50", "-12345678.9", "1.5e3", "0.250"),
    "date": ("2026-11-01", "2026-11-01 00:00:00"),
    "timestamp": ("2026-11-01T01:02:03.123456000Z", "2026-11-01"),
    "array<decimal(20,2)>": ("[1.5, null, 12345678901234567.25]",),
    "struct<at:date,more:map<string,bigint>>": ('{"at": "2026-11-01", "more": {"n": 9007199254740993}}',),
}
"""Type -> texts that it holds whole."""
LOST: dict[str, tuple[str, ...]] = {
    "bigint": ("1.0", "1.9", "007", "+14", "9223372036854775808"),
    "double": ("9007199254740993", "1.234567890123456789", "1e400", "1e-400", "12d", "0012"),
    "float": ("16777217", "0.12345678901"),
    "decimal(10,2)": ("1.005", "123456789.5", "1.5e-3", "01.5"),
    "date": ("2026-11-01T23:30:00", "2026-11-01 junk", "2026-11-01T00:00:00+02:00"),
    "timestamp": ("2026-11-01T01:02:03.1234567Z", "12:30:00"),
    "array<decimal(20,2)>": ("[12345678901234567.251]", '["1.5", {}]'),
    "struct<at:date,more:map<string,bigint>>": ('{"at": "2026-11-01T10:00:00"}', '{"more": {"n": 1.5}}'),
}
"""Type -> texts of which a cast would cut, round or guess something, or that it cannot make at all."""


def test_what_a_cast_would_change_is_refused_and_the_rest_is_taken(spark: SparkSession, home: Path) -> None:
    texts = [(kind, text, whole) for whole, of in ((True, WHOLE), (False, LOST)) for kind in of for text in of[kind]]
    columns = {f"c{number}": kind for number, (kind, _, _) in enumerate(texts)}
    lines = [json.dumps({f"c{number}": text}) for number, (_, text, _) in enumerate(texts)]
    written(home / "store", "a.jsonl", "\n".join(lines).encode())
    source = find(str(home / "store"))
    (home / "columns.json").write_text(json.dumps(columns))
    with configured(spark, STRICT):
        rows = read(spark, source, declared(home / "columns.json", source)).collect()
    assert len(rows) == len(texts)
    refused = {bytes(row[VALUE]).decode(): row[REASON] for row in rows if row[REASON] is not None}
    expected = {
        line: f"c{number} is no {kind}"
        for number, (line, (kind, _, whole)) in enumerate(zip(lines, texts, strict=True))
        if not whole
    }
    assert refused == expected
    taken = [{name: row[name] for name in columns if row[name] is not None} for row in rows if row[REASON] is None]
    assert sorted(name for row in taken for name in row) == sorted(
        f"c{number}" for number, (_, _, whole) in enumerate(texts) if whole
    )
    [numbers] = (value for row in taken for value in row.values() if isinstance(value, list))
    assert numbers == [Decimal("1.5"), None, Decimal("12345678901234567.25")]


def test_numbers_of_json_keep_all_their_digits_or_go_to_quarantine(home: Path) -> None:
    """One file has fractions, so the column is a double, which does not hold the other's last number."""
    written(home / "store", "a.jsonl", b'{"id": 0.5, "price": 1}\n{"id": 2, "price": 12345678901234567.25}\n')
    written(home / "store", "b.jsonl", b'{"id": 9007199254740993, "price": 2}\n')
    (home / "columns.json").write_text('{"id": "double", "price": "decimal(20,2)"}')
    called("store", "old/ids", "--schema", "columns.json")
    rows = {(one["id"], one["price"]) for one in rows_in(home / "home/lake/old/ids")}
    assert rows == {(0.5, Decimal(1)), (2.0, Decimal("12345678901234567.25"))}
    [refused] = quarantined(home)
    assert (refused["value"], refused["reason"]) == (b'{"id": 9007199254740993, "price": 2}', "id is no double")


def test_columns_of_csv_without_a_name_have_their_place_and_two_of_one_name_are_refused(home: Path) -> None:
    written(home / "store", "a.csv", b"id,,name,\n1,x,Ann,y\n")
    assert json.loads(called("store", "old/blank", "--show").stdout) == {
        "id": "bigint", "_c1": "string", "name": "string", "_c3": "string",
    }  # fmt: skip
    imported("store", "old/blank", "--yes")
    assert rows_in(home / "home/lake/old/blank") == [{"id": 1, "_c1": "x", "name": "Ann", "_c3": "y"}]
    for header in (b"id,name,id", b"id,name,ID"):
        written(home / "other", "a.csv", header + b"\n1,Ann,2\n")
        refused = called("other", "old/twice", "--yes").exception
        assert isinstance(refused, ImportRefused)
        assert "a column twice" in str(refused)


@pytest.mark.parametrize(
    "content", [b"id,name\r1,one\r2,two\r", b"\nid,name\n1,one\n", b'"' + b"x" * 140_000 + b'",name\n1,one\n']
)
def test_a_csv_whose_first_line_names_no_columns_is_refused(home: Path, content: bytes) -> None:
    written(home / "store", "a.csv", content)
    refused = called("store", "old/odd", "--yes").exception
    assert isinstance(refused, ImportRefused)
    assert "a.csv" in str(refused)


def test_a_column_that_a_file_spells_in_another_case_is_found(home: Path) -> None:
    written(home / "store", "a.csv", b"ID,name\n1,Ann\n")
    pq.write_table(pa.table({"Id": [2], "NAME": ["Bo"]}), home / "store" / "b.parquet")
    (home / "columns.json").write_text('{"id": "long", "Name": "string"}')
    imported("store", "old/cases", "--schema", "columns.json")
    assert {(one["id"], one["Name"]) for one in rows_in(home / "home/lake/old/cases")} == {(1, "Ann"), (2, "Bo")}


def test_a_folder_above_the_source_is_no_column_of_its_rows(home: Path) -> None:
    written(home, "day=2020-01-01/store/day=2026-11-01/a.csv", b"id\n1\n")
    imported("day=2020-01-01/store", "old/days", "--yes")
    assert rows_in(home / "home/lake/old/days") == [{"id": 1, "day": date(2026, 11, 1)}]


def groups_of_its_own() -> set[str]:
    """First parts of the names of all tables that a module of the platform has, by itself or as an entity's."""
    packages = (lakes, maintenance, pii, pipelines)
    names = [found.name for each in packages for found in pkgutil.walk_packages(each.__path__, f"{each.__name__}.")]
    values = [value for name in names for value in vars(importlib.import_module(name)).values()]
    tables = [TIMER, *(value for value in values if isinstance(value, Table))]
    tables += [value.changeset for value in values if isinstance(value, Entity)]
    return {table.key[0] for table in tables}


def test_no_import_goes_where_the_platform_keeps_tables_of_its_own() -> None:
    groups = groups_of_its_own()
    assert {group for group in groups if called("store", f"{group}/clicks", "--yes").exit_code == 2} == groups
    assert groups == OURS, "a name is reserved for nothing"
