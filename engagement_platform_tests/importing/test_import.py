"""Old stores imported: every format, what does not parse, kills in the middle, and folders converted where they are."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
from collections import Counter
from datetime import date
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from engagement_platform.importing.files import FormatUnknown, NothingToImport, SourceFile
from engagement_platform.importing.job import SourceChanged, TableTaken, cut, gathered
from engagement_platform.importing.lines import Record, records
from engagement_platform.importing.schema import SchemaUnusable
from engagement_platform.importing.types import UnknownType, parsed, words
from engagement_platform.lake.checksums import checksum
from engagement_platform_tests.importing.stores import called, imported, quarantined, row, rows_in, store, text_of


def test_a_mixed_store_becomes_one_table_with_every_row_once(home: Path) -> None:
    rows = store(home / "store")
    shown = called("store", "old/clicks", input="n\n")
    assert shown.exit_code == 1
    assert not (home / "home/lake/old").exists(), "columns were shown, and refused"
    assert all(word in shown.output for word in ("timestamp", "double", "partition", "csv (gzip)"))
    report = imported("store", "old/clicks", "--yes")
    table = home / "home/lake/old/clicks"
    found = [tuple(one[name] for name in ("id", "name", "score", "at", "day")) for one in rows_in(table)]
    assert Counter(found) == Counter(rows)
    assert (report["rows"], report["rejected"], report["files_before"]) == (len(rows), 0, 5)
    assert report["files_after"] == 2, "one file a folder"
    assert DeltaTable(str(table)).metadata().partition_columns == ["day"]
    again = imported("store", "old/clicks", "--yes")
    assert (again["slices_now"], again["rows"], again["checksum"]) == (0, len(rows), report["checksum"])
    (home / "store/day=2026-11-02/f.csv").write_bytes(text_of([row(500)], "csv") + b"no number,,,\n")
    more = imported("store", "old/clicks", "--yes")
    assert (more["slices_now"], more["rows"], more["rejected"]) == (1, len(rows) + 1, 1), "columns stay as they are"
    (home / "store/day=2026-11-02/f.csv").write_bytes(text_of([row(501)], "csv"))
    assert isinstance(called("store", "old/clicks", "--yes").exception, SourceChanged)


def test_what_does_not_parse_is_in_quarantine_whole_and_with_its_reason(home: Path) -> None:
    source = home / "store"
    source.mkdir()
    (source / "a.csv").write_bytes(b'id,name\n1,one\nx,two\n3\n"4","fo\nur"\n\n5,"open\n6,six\n7,\xff\n8,""\n9,\n')
    (source / "b.jsonl").write_bytes(
        b'{"id": 10, "name": "ten"}\n{"id": 11} junk\n{"id":12}{"id":13}\n[1]\n{"id": "14"}\n'
    )
    (source / "c.csv.gz").write_bytes(gzip.compress(text_of([row(n) for n in range(9)], "csv"))[:-20])
    (source / "d.parquet").write_bytes(b"PAR1 and no more")
    good = pa.table({"id": pa.array([20, 2**40, 22]), "name": ["a", "b", "c"]})
    pq.write_table(good, source / "e.parquet")
    (home / "schema.json").write_text('{"id": "int", "name": "string"}')
    report = imported("store", "old/bad", "--schema", "schema.json")
    found = {(one["id"], one["name"]) for one in rows_in(home / "home/lake/old/bad")}
    assert {(1, "one"), (4, "fo\nur"), (6, "six"), (8, ""), (9, None), (10, "ten"), (20, "a"), (22, "c")} <= found
    bad = [(one["path"], one["line"], one["value"]) for one in quarantined(home)]
    assert bad[:4] == [("a.csv", 3, b"x,two"), ("a.csv", 4, b"3"), ("a.csv", 8, b'5,"open'), ("a.csv", 10, b"7,\xff")]
    assert bad[4:8] == [
        ("b.jsonl", 2, b'{"id": 11} junk'), ("b.jsonl", 3, b'{"id":12}{"id":13}'),
        ("b.jsonl", 4, b"[1]"), ("b.jsonl", 5, b'{"id": "14"}'),
    ]  # fmt: skip
    assert bad[8:] == [
        ("c.csv.gz", None, b""), ("d.parquet", None, b""), ("e.parquet", 2, b'{"id": 1099511627776, "name": "b"}'),
    ]  # fmt: skip
    assert all(one["reason"] for one in quarantined(home))
    assert (report["rows"], report["rejected"]) == (len(rows_in(home / "home/lake/old/bad")), len(bad))


def test_plain_text_is_lines_and_an_unknown_format_is_named(home: Path) -> None:
    source = home / "store"
    source.mkdir()
    (source / "a.log").write_bytes(b"one\r\n\ntwo \xe2\x82\xac\nbroken \xff\nlast")
    report = imported("store", "old/text", "--yes")
    assert {one["value"] for one in rows_in(home / "home/lake/old/text")} == {"one", "", "two €", "last"}
    assert (report["rows"], report["rejected"]) == (4, 1)
    (source / "b.rc").write_bytes(b"RCF\x01 of Hive")
    assert isinstance(called("store", "old/other", "--yes").exception, FormatUnknown)
    assert isinstance(called("nowhere", "old/other", "--yes").exception, NothingToImport)
    (home / "home/lake/own/table").mkdir(parents=True)
    DeltaTable.create(str(home / "home/lake/own/table"), pa.schema([("value", pa.string())]))
    (source / "b.rc").unlink()
    assert isinstance(called("store", "own/table", "--yes").exception, TableTaken)
    assert called("store", "engagement/data", "--yes").exit_code == 2
    (home / "bad.json").write_text("[]")
    assert isinstance(called("store", "old/other", "--schema", "bad.json").exception, SchemaUnusable)


DIES = """
import os, signal, sys
from engagement_platform.importing import job
from engagement_platform.lake import imported

point, count = sys.argv[1], int(sys.argv[2])
real = getattr(imported, point)

def dies(*arguments):
    global count
    done = real(*arguments) if point == "committed" or count else None
    if count == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    count -= 1
    return done

setattr(imported, point, dies)
source, lake = sys.argv[3:]
from engagement_platform.importing.files import found
from engagement_platform.importing.schema import inferred
files = found(source)
job.Import(lake, source, source, "old/clicks", slice_bytes=1).run(files, inferred(source, files), lambda done: None)
"""


@pytest.mark.crash
def test_an_import_that_is_killed_anywhere_goes_on_and_adds_nothing_twice(home: Path) -> None:
    rows = store(home / "store")
    with (home / "store/day=2026-11-01/c.csv").open("ab") as file:
        file.write(b"no record\n")
    # In this order each call gets further: the first notes are the plan's, then each slice has its outcome; a slice
    # that is read back is committed, and its books are not. Slice 2 has a quarantine.
    for point, count in (("note", 0), ("append", 0), ("committed", 0), ("committed", 2), ("note", 0), ("compact", 0)):
        command = [sys.executable, "-c", DIES, point, str(count), str(home / "store"), str(home / "home/lake")]
        died = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=dict(os.environ))
        assert died.returncode == -signal.SIGKILL, f"{point}: {died.stderr[-2000:]}"
    report = imported("store", "old/clicks", "--yes")
    found = [tuple(one[name] for name in ("id", "name", "score", "at", "day")) for one in
             rows_in(home / "home/lake/old/clicks")]  # fmt: skip
    assert Counter(found) == Counter(rows)
    assert (report["slices"], report["rejected"], len(quarantined(home))) == (5, 1, 1)


def test_a_folder_of_parquet_becomes_a_table_where_it_is(home: Path) -> None:
    source = home / "store"
    for day in ("2026-11-01", "2026-11-02"):
        (source / f"day={day}").mkdir(parents=True)
        for n in range(3):
            pq.write_table(pa.Table.from_pylist([row(k) for k in range(4)]), source / f"day={day}" / f"{n}.parquet")
    before = {path: path.read_bytes() for path in source.rglob("*.parquet")}
    report = imported("store", "--in-place", "--yes")
    assert (report["rows"], report["files_before"], report["files_after"]) == (24, 6, 6)
    assert {path: path.read_bytes() for path in source.rglob("*.parquet")} == before
    assert {one["day"] for one in rows_in(source)} == {date(2026, 11, 1), date(2026, 11, 2)}
    assert isinstance(called("store", "--in-place", "--yes").exception, NothingToImport)
    assert called("store", "--yes").exit_code == 2


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text(st.sampled_from('a",\n'), max_size=6), min_size=1, max_size=8))
def test_records_are_what_the_fields_were_made_from_whatever_is_in_them(fields: list[str]) -> None:
    made = ['x,"' + field.replace('"', '""') + '"' for field in fields]
    lines = "\n".join(made).split("\n")
    read = records(iter([Record(number, line.encode()) for number, line in enumerate(lines, 1)]))
    assert [one.value.decode() for one in read] == made


def test_an_open_quote_costs_one_line_and_not_the_rest_of_the_file() -> None:
    lines = [b'1,"open', b"2,two", b"3,three"]
    read = list(records(iter([Record(number, line) for number, line in enumerate(lines, 1)])))
    assert [(one.line, one.value, one.broken is None) for one in read] == [
        (1, b'1,"open', False), (2, b"2,two", True), (3, b"3,three", True),
    ]  # fmt: skip


@given(st.lists(st.integers(1, 9), max_size=12), st.integers(1, 20))
def test_slices_hold_all_files_in_order_and_are_as_large_as_they_may_be(sizes: list[int], most: int) -> None:
    files = [SourceFile(f"{n}", size, 0, "csv", None) for n, size in enumerate(sizes)]
    parts = list(cut(files, most))
    assert [file for part in parts for file in part] == files
    assert all(len(part) == 1 or sum(file.bytes for file in part) <= most for part in parts)
    assert all(sum(f.bytes for f in left) + right[0].bytes > most for left, right in pairwise(parts))


@given(st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=12), st.integers(1, 12))
def test_rows_of_small_files_are_put_together_in_their_order(parts: list[list[int]], least: int) -> None:
    tables = [pa.table({"n": pa.array(part, pa.int64())}) for part in parts]
    together = [table.column("n").to_pylist() for table in gathered(iter(tables), least)]
    assert [n for table in together for n in table] == [n for part in parts for n in part]
    assert all(len(table) >= least for table in together[:-1])


@pytest.mark.parametrize("text", ["long", "decimal(10,2)", "array<map<string,double>>", "struct<a:int,b:array<date>>"])
def test_types_are_written_as_they_are_read(text: str) -> None:
    assert words(parsed(text)) == text
    with pytest.raises(UnknownType):
        parsed(f"{text}x")


def test_the_same_rows_have_the_same_checksum_in_any_order_and_others_another() -> None:
    kind = pa.schema([("a", pa.int64()), ("b", pa.map_(pa.string(), pa.string()))])
    rows = [{"a": 1, "b": [("k", "v"), ("l", None)]}, {"a": None, "b": None}, {"a": 2, "b": []}]
    turned = [{"a": 2, "b": []}, {"a": 1, "b": [("l", None), ("k", "v")]}, {"a": None, "b": None}]
    first = checksum([pa.Table.from_pylist(rows, kind)], kind)
    assert first == checksum([pa.Table.from_pylist([one], kind) for one in turned], kind)
    assert first.rows == 3
    for changed in ({"a": 3, "b": []}, {"a": 2, "b": None}):
        assert first != checksum([pa.Table.from_pylist([*rows[:2], changed], kind)], kind)
