"""Old stores imported: every format, what does not fit, ends in the middle, and folders converted where they are."""

from __future__ import annotations

import bz2
import gzip
import json
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import date, datetime
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.orc as paorc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from engagement_platform.importing.files import CompressionUnknown, FormatUnknown, NothingToImport, SourceFile, found
from engagement_platform.importing.job import (
    APPENDED,
    COMPACTED,
    PLANNED,
    READ,
    REFUSED,
    Import,
    ImportDiffers,
    SourceChanged,
    TableTaken,
    cut,
)
from engagement_platform.importing.schema import SchemaUnusable, inferred
from engagement_platform.lake.lake import Lake
from engagement_platform.settings import Settings
from engagement_platform_tests.importing.stores import called, imported, quarantined, row, rows_in, store, text_of


def written(source: Path, name: str, content: bytes) -> None:
    (source / name).parent.mkdir(parents=True, exist_ok=True)
    (source / name).write_bytes(content)


def test_a_mixed_store_becomes_one_table_with_every_row_once(home: Path) -> None:
    rows = store(home / "store")
    shown = called("store", "old/clicks", input="n\n")
    assert shown.exit_code == 1
    assert not (home / "home/lake/old").exists(), "columns were shown, and refused"
    assert all(word in shown.output for word in ("timestamp", "double", "partition", "csv (gzip)"))
    report = imported("store", "old/clicks", "--yes")
    table = home / "home/lake/old/clicks"
    found_rows = [tuple(one[name] for name in ("id", "name", "score", "at", "day")) for one in rows_in(table)]
    assert Counter(found_rows) == Counter(rows)
    assert (report["rows"], report["rejected"], report["files_before"]) == (len(rows), 0, 5)
    assert report["files_after"] == 2, "one file a folder"
    assert DeltaTable(str(table)).metadata().partition_columns == ["day"]
    again = imported("store", "old/clicks", "--yes")
    assert (again["slices_now"], again["rows"], again["checksum"]) == (0, len(rows), report["checksum"])
    late = home / "store/day=2026-11-02/f.csv"
    late.write_bytes(text_of([row(500)], "csv") + b"no number,,,\n")
    more = imported("store", "old/clicks", "--yes")
    assert (more["slices_now"], more["rows"], more["rejected"]) == (1, len(rows) + 1, 1), "columns stay as they are"
    late.write_bytes(text_of([row(501)], "csv"))
    assert isinstance(called("store", "old/clicks", "--yes").exception, SourceChanged)


def test_what_does_not_fit_is_in_quarantine_whole_and_with_its_reason(home: Path) -> None:
    source = home / "store"
    written(
        source,
        "a.csv",
        b'\xef\xbb\xbfid,name\r\n1,one\r\nx,two\n3\n"4","a ""b"", c"\n\n5,"open\n6,six\n7,\xff\n8,""\n9,\n',
    )
    written(source, "b.jsonl", b'{"id": 10, "name": "ten"}\n{"id": 11} junk\n{"id":12}{"id":13}\n[1]\n{"id": "x"}\n\n')
    written(source, "c.csv.gz", gzip.compress(text_of([row(n) for n in range(9)], "csv"))[:-20])
    written(source, "d.parquet", b"PAR1 and no more")
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
    } | {(path, None): reasons[path] for reasons in [whole(home)] for path in ("c.csv.gz", "d.parquet")}
    assert (report["rows"], report["rejected"]) == (len(rows), len(quarantined(home)))


def whole(home: Path) -> dict[str, str]:
    """Files that are in quarantine as such, with their reasons."""
    found_rows = {one["path"]: one["reason"] for one in quarantined(home) if one["value"] is None}
    assert all(reason.startswith("the file cannot be read: ") for reason in found_rows.values())
    return found_rows


def test_plain_text_is_lines_and_what_cannot_be_imported_is_refused_by_its_name(home: Path) -> None:
    source = home / "store"
    written(source, "a.log", b"one\r\n\ntwo \xe2\x82\xac\nbroken \xff\nlast")
    report = imported("store", "old/text", "--yes")
    assert {one["value"] for one in rows_in(home / "home/lake/old/text")} == {"one", "", "two €", "last"}
    assert (report["rows"], report["rejected"]) == (4, 1)
    for name, error in (
        ("b.rc", FormatUnknown),
        ("b.csv.zst", CompressionUnknown),
        ("b.parquet.gz", CompressionUnknown),
    ):
        written(source, name, b"RCF\x01 of Hive")
        refused = called("store", "old/other", "--yes").exception
        assert isinstance(refused, error)
        assert name in str(refused)
        (source / name).unlink()
    assert isinstance(called("nowhere", "old/other", "--yes").exception, NothingToImport)
    (home / "home/lake/own/table").mkdir(parents=True)
    DeltaTable.create(str(home / "home/lake/own/table"), pa.schema([("value", pa.string())]))
    assert isinstance(called("store", "own/table", "--yes").exception, TableTaken)
    assert called("store", "engagement/data", "--yes").exit_code == 2
    for said in ("[]", '{"value": "strin"}', '{"a b": "string"}'):
        (home / "bad.json").write_text(said)
        assert isinstance(called("store", "old/other", "--schema", "bad.json").exception, SchemaUnusable)


class Ended(Exception):
    """A process that ends at a point."""


def ending_at(point: str) -> Callable[[str], None]:
    def observe(passed: str) -> None:
        if passed == point:
            raise Ended

    return observe


def test_an_import_that_ends_anywhere_goes_on_and_adds_nothing_twice(home: Path, spark: SparkSession) -> None:
    source = home / "store"
    written(source, "a.csv", text_of([row(n) for n in range(5)], "csv"))
    written(source, "b.csv", text_of([row(n) for n in range(5, 9)], "csv") + b"no record\n")
    lake, files = Lake(spark, Settings()), found(str(source))
    columns = inferred(spark, str(source), files[:1])

    def begun(observe: Callable[[str], None]) -> Import:
        return Import(lake, str(source), str(source), "old/clicks", slice_bytes=1, observe=observe)

    for point in (PLANNED, READ, APPENDED, REFUSED, COMPACTED):
        with pytest.raises(Ended):
            begun(ending_at(point)).run(files, columns)
    report = begun(lambda _point: None).run(files, columns)
    rows = Counter(tuple(one.values()) for one in rows_in(home / "home/lake/old/clicks"))
    assert rows == Counter(tuple(row(n).values()) for n in range(9))
    assert (report.slices, report.slices_now, report.rejected, len(quarantined(home))) == (2, 0, 1, 1)
    operations = Counter(entry["operation"] for entry in DeltaTable(str(home / "home/lake/old/clicks")).history())
    assert (operations["WRITE"], report.files_after) == (2, 1)


def test_a_folder_of_parquet_becomes_a_table_where_it_is(home: Path) -> None:
    source = home / "store"
    for day in ("2026-11-01", "2026-11-02"):
        (source / f"day={day}").mkdir(parents=True)
        for n in range(3):
            pq.write_table(pa.Table.from_pylist([row(k) for k in range(4)]), source / f"day={day}" / f"{n}.parquet")
    before = {path: path.read_bytes() for path in source.rglob("*.parquet") if "_delta_log" not in path.parts}
    report = imported("store", "--in-place", "--yes")
    assert (report["rows"], report["files_before"], report["files_after"]) == (24, 6, 6)
    assert {path: path.read_bytes() for path in before} == before
    assert {one["day"] for one in rows_in(source)} == {date(2026, 11, 1), date(2026, 11, 2)}
    assert isinstance(called("store", "--in-place", "--yes").exception, NothingToImport)
    assert called("store", "--yes").exit_code == 2


def test_nested_folders_compressed_in_every_way_keep_every_row_and_what_the_folders_say(home: Path) -> None:
    source, rows = home / "store", []
    folders = [("7", "S%C3%A3o%20Paulo", 7, "São Paulo"), ("12", "__HIVE_DEFAULT_PARTITION__", 12, None)]
    ways: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}
    for place, (ending, compress) in enumerate(ways.items()):
        hour, city, *told = folders[place % 2]
        for kind in ("csv", "jsonl"):
            # Two streams one after the other, as parallel compressors write them.
            some = [row(place * 20 + n) for n in range(12)]
            content = compress(text_of(some[:7], kind)) + compress(text_of(some[7:], kind))
            written(source, f"_hour={hour}/city={city}/deep down+up/a b%.{kind}{ending}", content)
            rows += [(*one.values(), *told) for one in some]
    folder = source / "_hour=7/city=x+%2Fy"
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist([row(100)]), folder / "a.parquet", compression="ZSTD")
    paorc.write_table(pa.Table.from_pylist([row(101)]), folder / "a.orc", compression="ZLIB")
    rows += [(*row(n).values(), 7, "x+/y") for n in (100, 101)]
    there = [path.stat().st_size for path in source.rglob("*") if path.is_file()]
    written(source, "_temporary/0/part-9.csv", b"id\n99\n")
    written(source, "_hour=7/.part-0.csv.crc", b"crc")
    report = imported("store", "old/clicks", "--yes")
    table = home / "home/lake/old/clicks"
    assert Counter(tuple(one.values()) for one in rows_in(table)) == Counter(rows)
    assert DeltaTable(str(table)).metadata().partition_columns == ["_hour", "city"]
    assert (report["files_before"], report["bytes_before"], report["rejected"]) == (len(there), sum(there), 0)
    in_use = [Path(uri.removeprefix("file://")) for uri in DeltaTable(str(table)).file_uris()]
    assert (report["files_after"], report["bytes_after"]) == (3, sum(path.stat().st_size for path in in_use))


def test_columns_are_the_narrowest_that_hold_all_and_come_back_as_they_were_printed(home: Path) -> None:
    written(home / "store", "a.csv", b"id,score,at,day,what\n1,2,2026-11-01,2026-11-01,x\n")
    times = '"at": "2026-11-02T01:30:00+02:00"'
    written(home / "store", "b.jsonl", f'{{"id": 2, "score": 0.5, {times}, "what": "5", "more": {{"a": 1}}}}'.encode())
    pq.write_table(pa.table({"id": pa.array([3], pa.int32()), "more": [{"b": [True]}]}), home / "store" / "c.parquet")
    shown = called("store", "--show")
    assert json.loads(shown.stdout) == {
        "id": "bigint", "score": "double", "at": "timestamp", "day": "date", "what": "string",
        "more": "struct<a:bigint,b:array<boolean>>",
    }  # fmt: skip
    (home / "columns.json").write_text(shown.stdout)
    assert imported("store", "old/said", "--schema", "columns.json")["rows"] == 3
    rows = {one["id"]: one for one in rows_in(home / "home/lake/old/said")}
    assert rows[1]["at"] == datetime.fromisoformat("2026-11-01T00:00:00+00:00")
    assert rows[2]["at"] == datetime.fromisoformat("2026-11-01T23:30:00+00:00")
    assert [rows[n]["what"] for n in (1, 2)] == ["x", "5"]
    assert [rows[n]["more"] for n in (1, 2, 3)] == [None, {"a": 1, "b": None}, {"a": None, "b": [True]}]


def test_an_import_stops_where_files_change_under_it_and_where_the_table_is_not_what_was_read(
    home: Path, spark: SparkSession
) -> None:
    source, table = home / "store", home / "home/lake/old/clicks"
    for name in ("a.csv", "b.csv"):
        written(source, name, text_of([row(n) for n in range(5)], "csv"))
    lake, files = Lake(spark, Settings()), found(str(source))
    columns = inferred(spark, str(source), files)
    before = (source / "b.csv").read_bytes()
    for changed in (before + b"77,,,\n", None):
        if changed is None:
            (source / "b.csv").unlink()
        else:
            written(source, "b.csv", changed)
        with pytest.raises(SourceChanged, match=r"b\.csv"):
            Import(lake, str(source), str(source), "old/moving").run(files, columns)
        assert rows_in(home / "home/lake/old/moving") == []
    imported("store", "old/clicks", "--yes")
    # As an end between the commit and its outcome leaves it; and somebody else has written meanwhile.
    shutil.rmtree(home / "home/lake/import/outcome")
    write_deltalake(str(table), DeltaTable(str(table)).to_pyarrow_table().slice(0, 1), mode="append")
    told = called("store", "old/clicks", "--yes").exception
    assert isinstance(told, ImportDiffers)
    assert "6 rows" in str(told)
    assert "5 rows" in str(told)


@given(st.lists(st.integers(1, 9), max_size=12), st.integers(1, 20))
def test_slices_hold_all_files_in_order_and_are_as_large_as_they_may_be(sizes: list[int], most: int) -> None:
    files = [SourceFile(f"{n}", size, 0, "csv", None) for n, size in enumerate(sizes)]
    parts = list(cut(files, most))
    assert [file for part in parts for file in part] == files
    assert all(len(part) == 1 or sum(file.bytes for file in part) <= most for part in parts)
    assert all(sum(f.bytes for f in left) + right[0].bytes > most for left, right in pairwise(parts))
