"""Bytes of an object to rows: formats, compression, bad records, and how much is held at a time."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import json
import lzma
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import types as T

from engagement_platform.sources.s3_events import S3File
from engagement_platform.sources.s3_formats import Bad, Shape, Unreadable, decode
from engagement_platform.sources.s3_sqs_errors import ObjectNotReadable, S3SqsSchemaRefused
from engagement_platform.sources.s3_sqs_options import parse_options

Rows = list[dict[str, Any]]


# Spark's own parser of DDL is in the JVM.
TYPES = {
    "int": T.IntegerType(),
    "long": T.LongType(),
    "byte": T.ByteType(),
    "double": T.DoubleType(),
    "float": T.FloatType(),
    "floats": T.StructType().add("m", T.MapType(T.StringType(), T.FloatType())).add("l", T.ArrayType(T.FloatType())),
    "boolean": T.BooleanType(),
    "string": T.StringType(),
    "binary": T.BinaryType(),
    "date": T.DateType(),
    "timestamp": T.TimestampType(),
    "timestamp_ntz": T.TimestampNTZType(),
    "decimal": T.DecimalType(10, 2),
    "interval": T.DayTimeIntervalType(),
    "map": T.MapType(T.StringType(), T.IntegerType()),
    "array": T.ArrayType(T.StringType()),
    "struct": T.StructType().add("p", "integer").add("q", "string"),
}


def schema(columns: str) -> T.StructType:
    """Columns as in DDL, with the types above."""
    words = [column.split() for column in columns.split(", ")]
    return T.StructType([T.StructField(name, TYPES[kind], not more) for name, kind, *more in words])


def shape(columns: str, **options: str) -> Shape:
    given = {"queueUrl": "http://127.0.0.1:1/q", "stateLocation": "x", **options}
    return Shape.of(schema(columns), parse_options(given))


def rows_of(content: bytes, of: Shape, key: str = "k") -> tuple[Rows, Bad, str | None]:
    """All rows, what was bad, and why reading ended early."""
    bad, rows, broken = Bad(), [], None
    try:
        for batch in decode(io.BytesIO(content), S3File("raw", key, event_time="2026-11-22T01:00:00+01:00"), of, bad):
            assert batch.schema.equals(of.arrow)
            rows += batch.to_pylist()
    except Unreadable as unreadable:
        broken = str(unreadable)
    return rows, bad, broken


def test_json_of_every_kind_becomes_its_column() -> None:
    ddl = (
        "t timestamp, n timestamp_ntz, d date, l long, b byte, f double, o boolean, s string, x binary, "
        "m map, a array, r struct, c decimal"
    )
    said = {
        "t": "2026-11-22T02:00:00.123456789+02:00", "n": "2026-11-22T02:00:00", "d": "2026-11-22", "l": 2**40,
        "b": -128, "f": 1, "o": True, "s": "ü", "x": "eA==", "m": {"k": 1, "z": None}, "a": ["q", None],
        "r": {"p": 1, "other": 2}, "c": 1.25, "unknown": [1],
    }  # fmt: skip
    rows, bad, broken = rows_of(json.dumps(said).encode(), shape(ddl))
    assert (bad.count, broken) == (0, None)
    assert rows == [
        {
            "t": datetime(2026, 11, 22, 0, 0, 0, 123456, UTC),
            "n": datetime(2026, 11, 22, 2, tzinfo=UTC).replace(tzinfo=None), "d": date(2026, 11, 22), "l": 2**40,
            "b": -128, "f": 1.0, "o": True, "s": "ü", "x": b"x", "m": [("k", 1), ("z", None)],
            "a": ["q", None], "r": {"p": 1, "q": None}, "c": Decimal("1.25"),
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"a":"1"}', "a has the wrong JSON type"),
        (b'{"a":3000000000}', "a is beyond the numbers that its column holds"),
        (b'{"a":1} junk', "The message is not JSON"),
        (b'{"a":1,"a":2}', "A key stands twice in one object, so which value counts is anybody's guess"),
        (b"[1]", "The message is JSON, but not an object"),
        (b'{"s":"\\ud800"}', "A string holds half of a surrogate pair, which is no character"),
        (b'{"t":"2026-11-22T00:00:00"}', "t has no offset from UTC; append Z or one such as +01:00"),
        (b"[" * 100_000, "nested too deep"),
    ],
)
def test_a_bad_record_is_counted_with_its_line_and_the_good_ones_are_read(line: bytes, reason: str) -> None:
    content = b'{"a":1}\n\n' + line + b'\n{"a":2}\r\n{"a":null}'
    rows, bad, broken = rows_of(content, shape("a int, s string, t timestamp, _line long"))
    assert [(row["a"], row["_line"]) for row in rows] == [(1, 1), (2, 4), (None, 5)]
    assert (bad.count, str(bad), broken) == (1, f"line 3: {reason}", None)


def test_a_bad_record_can_have_a_row_of_its_own() -> None:
    of = shape("a int, _corrupt_record string, _file string, _event_ts timestamp", badRecords="column")
    rows, bad, _ = rows_of(b'{"a":1}\n{"a":\n', of)
    assert [(row["a"], row["_corrupt_record"]) for row in rows] == [(1, None), (None, '{"a":')]
    assert {row["_file"] for row in rows} == {"s3://raw/k"}
    assert {row["_event_ts"] for row in rows} == {datetime(2026, 11, 22, tzinfo=UTC)}
    assert bad.count == 1


def test_objects_without_line_breaks_between_them_are_read_one_by_one() -> None:
    rows, bad, _ = rows_of(b'{"a":1}{"a":2} {"a":3}', shape("a int"))
    assert ([row["a"] for row in rows], bad.count) == ([1, 2, 3], 0)


def test_a_null_in_a_column_that_takes_none_makes_a_bad_record() -> None:
    for content, options in ((b'{"a":1}\n{"b":1}\n', {}), (b"1\n,\n", {"fileFormat": "csv"})):
        ddl = "a int NOT NULL, b int" if not options else "a int NOT NULL, b string"
        rows, bad, _ = rows_of(content.replace(b"1\n,", b"1,x\n,y"), shape(ddl, **options))
        assert ([row["a"] for row in rows], str(bad)) == ([1], "line 2: a is missing or null, and required")


def test_csv_with_and_without_a_header() -> None:
    rows, bad, _ = rows_of(b'1,"x,y"\nz,q\n3\n4,\n', shape("a int, b string, _line long", fileFormat="csv"))
    assert [tuple(row.values()) for row in rows] == [(1, "x,y", 1), (4, None, 4)]
    assert str(bad) == "line 2: a value that its column cannot hold, and 1 more"
    rows, bad, _ = rows_of(
        b"b;other;a\nx;9;1\n", shape("a int, b string, c date", fileFormat="csv", header="true", delimiter=";")
    )
    assert (rows, bad.count) == ([{"a": 1, "b": "x", "c": None}], 0)


OPEN = "a quote that is not closed"


@pytest.mark.parametrize(
    ("content", "good", "bad"),
    [
        (b'1,"a, comment\nwith, commas"\n5,x\n', [(5, "x", 3)], f"line 1: {OPEN}, and 1 more"),
        (b'1,"two\nlines"\n5,x\n', [(5, "x", 3)], f"line 1: {OPEN}, and 1 more"),
        (b'1,"a\n2,b\nd"\n5,x\n', [(2, "b", 2), (5, "x", 4)], f"line 1: {OPEN}, and 1 more"),
        (b'5,x\n1,"cut o', [(5, "x", 1)], f"line 2: {OPEN}"),
        (b'5,x\n1,a"b"",\n', [(5, "x", 1)], f"line 2: {OPEN}"),
        (b'1,"cut\n5,x\n1,"cut\n', [(5, "x", 2)], f"line 1: {OPEN}, and 1 more"),
        (b'1,5" disk\n5,x\n1,3" disk\n', [(5, "x", 2)], f"line 1: {OPEN}, and 1 more"),
        (b'1,"foo\nbar"\n2,x\r3,y\n5,x\n', [(5, "x", 4)], f"line 1: {OPEN}, and 2 more"),
        (b"2,x\r3,y\n5,x\r\r\n", [(5, "x", 2)], "line 1: a carriage return within the line"),
        (b'5,"x"\r\n6,"a""b, c"\n7,""\n', [(5, "x", 1), (6, 'a"b, c', 2), (7, "", 3)], ""),
    ],
)
def test_a_row_of_csv_is_a_line_and_neither_begins_nor_ends_within_quotes(
    content: bytes, good: list[tuple[object, ...]], bad: str
) -> None:
    rows, found, broken = rows_of(content, shape("a int, b string, _line long", fileFormat="csv"))
    assert ([tuple(row.values()) for row in rows], str(found), broken) == (good, bad, None)


def test_the_end_of_a_line_of_csv_is_never_within_quotes_and_adds_no_row() -> None:
    of = shape("a string", fileFormat="csv")
    assert rows_of(b'x\n""\n\n"y', of)[:2] == ([{"a": "x"}, {"a": ""}], Bad(1, f"line 4: {OPEN}"))
    # Two quotes, of which the first is a part of its value.
    two = shape("a string, b string", fileFormat="csv")
    assert rows_of(b'a"b,"c\n1,2', two)[:2] == ([{"a": "1", "b": "2"}], Bad(1, f"line 1: {OPEN}"))


def test_an_object_whose_header_is_no_line_of_csv_is_reported_and_ends_no_task() -> None:
    of = shape("a int", fileFormat="csv", header="true")
    for header in (b"a\r,b", b"x" * 200_000, b'a,"b'):  # what Python's own reader of CSV raises for
        rows, _, broken = rows_of(header + b"\n1,2\n", of)
        assert (rows, broken) == ([], "line 1: the header is no line of CSV")


def test_text_keeps_every_line_as_it_is() -> None:
    rows, _, _ = rows_of(b"a\r\n\n b", shape("value string, _line long", fileFormat="text"))
    assert [tuple(row.values()) for row in rows] == [("a", 1), ("", 2), (" b", 3)]
    rows, _, _ = rows_of(b"\xff\n", shape("value binary", fileFormat="text"))
    assert rows == [{"value": b"\xff"}]
    rows, bad, _ = rows_of(b"\xff\nx\n", shape("value string", fileFormat="text"))
    assert (rows, str(bad)) == ([{"value": "x"}], "line 1: no UTF-8")


def test_parquet_is_cast_to_the_schema_and_refused_where_that_would_change_a_value() -> None:
    written = io.BytesIO()
    pq.write_table(pa.table({"a": pa.array([1, None], pa.int64()), "z": ["x", "y"]}), written)
    of = shape("a int, b string, _line long", fileFormat="parquet")
    rows, _, broken = rows_of(written.getvalue(), of)
    assert (rows, broken) == ([{"a": 1, "b": None, "_line": 1}, {"a": None, "b": None, "_line": 2}], None)
    _, _, broken = rows_of(written.getvalue(), shape("a struct", fileFormat="parquet"))
    assert "a is int64 in the object" in str(broken)
    _, _, broken = rows_of(written.getvalue()[:-9], of)
    assert "damaged" in str(broken)


INF = float("inf")


def test_a_number_beyond_its_column_is_refused_and_an_infinity_stays_one() -> None:
    json_of = shape("a float, b double, c array, d floats")
    lines = [
        b'{"a":1e300}',
        b'{"a":-3.5e38}',
        b'{"d":{"l":[1e300]}}',
        b'{"d":{"m":{"k":1e39}}}',
        b'{"a":3.4e38,"b":1e300}',
    ]
    rows, bad, _ = rows_of(b"\n".join(lines), json_of)
    assert [row["b"] for row in rows] == [1e300]
    assert (bad.count, bad.first) == (4, "line 1: a is beyond the numbers that its column holds")
    csv_of = shape("a float, b double", fileFormat="csv")
    rows, bad, _ = rows_of(b"1e300,1\n1,1e999\n-1e39,\ninf,-Infinity\n1e38,1e300\n,", csv_of)
    assert (rows[0], rows[1]["b"], len(rows), bad.count) == ({"a": INF, "b": -INF}, 1e300, 3, 3)
    assert bad.first == "line 1: a value that its column cannot hold"
    floats = pa.struct([("m", pa.map_(pa.string(), pa.float64())), ("l", pa.list_(pa.float64()))])
    for value, is_held in ((1e300, False), (-1e39, False), (INF, True), (1e38, True)):
        for column in (
            pa.array([None, value, 1], pa.float64()),
            pa.array([{"m": {"k": value}, "l": None}, None], floats),
            pa.array([{"m": None, "l": [1, value]}], floats),
        ):
            written = io.BytesIO()
            pq.write_table(pa.table({"a": column}), written)
            kind = "floats" if pa.types.is_struct(column.type) else "float"
            rows, _, broken = rows_of(written.getvalue(), shape(f"a {kind}", fileFormat="parquet"))
            assert (len(rows) == len(column), "does not hold" in str(broken)) == (is_held, not is_held)


def test_a_machine_that_makes_no_temporary_file_has_no_damaged_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.raises(ObjectNotReadable, match="this machine cannot keep a copy of it: No space left"):
        rows_of(b"x", shape("a int", fileFormat="parquet"))


def test_a_byte_that_is_damaged_anywhere_in_parquet_ends_no_task() -> None:
    written, ended = io.BytesIO(), set[str]()
    pq.write_table(pa.table({"a": pa.array([1, None], pa.int8()), "b": ["x", "y"]}), written, compression="none")
    whole = written.getvalue()
    for place in range(len(whole)):
        damaged = whole[:place] + b"B" + whole[place + 1 :]
        ended.add(str(rows_of(damaged, shape("a int, b string", fileFormat="parquet"))[2]))
    assert "ArrowNotImplementedError: the content is damaged or no parquet" in ended


@pytest.mark.parametrize("file_format", ["json", "csv", "text", "parquet"])
def test_an_object_without_a_byte_has_no_rows(file_format: str) -> None:
    assert rows_of(b"", shape("a string", fileFormat=file_format), "k.gz") == ([], Bad(), None)


LINES = b"".join(b'{"a":%d}\n' % n for n in range(10_000))


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        (".gz", gzip.compress(LINES)),
        (".gz", gzip.compress(LINES[:50]) + gzip.compress(LINES[50:])),
        (".BZ2", bz2.compress(LINES)),
        (".xz", lzma.compress(LINES)),
        (".zst", pa.compress(LINES, "zstd", asbytes=True)),
        ("", LINES),
    ],
    ids=["gzip", "gzip of two members", "bzip2", "xz", "zstd", "none"],
)
def test_compression_goes_by_the_suffix(suffix: str, content: bytes) -> None:
    rows, bad, broken = rows_of(content, shape("a int"), f"x/y.json{suffix}")
    assert ([row["a"] for row in rows], bad.count, broken) == (list(range(10_000)), 0, None)


@pytest.mark.parametrize(("suffix", "compress"), [(".bz2", bz2.compress), (".xz", lzma.compress)])
def test_what_follows_a_compressed_stream_is_another_one_or_damage(
    suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    first, second, of = compress(LINES[:50]), compress(LINES[50:]), shape("a int")
    for padding in (b"", b"\0" * 20_000):
        rows, bad, broken = rows_of(first + padding + second + padding, of, f"x{suffix}")
        assert ([row["a"] for row in rows], bad.count, broken) == (list(range(10_000)), 0, None)
    for damaged in (b"?" + second[1:], second[:3], second[:-9], b"\0?", b"\0" + b"?" * 20_000):
        rows, _, broken = rows_of(first + damaged, of, f"x{suffix}")
        assert rows[0]["a"] == 0
        assert "damaged" in str(broken)
    assert rows_of(b"\0" * 100, of, f"x{suffix}")[0] == []


def test_what_comes_before_a_break_in_gzip_is_read() -> None:
    whole = gzip.compress(LINES)
    rows, _, broken = rows_of(whole[: len(whole) // 2], shape("a int"), "x.gz")
    assert [row["a"] for row in rows] == list(range(len(rows)))
    assert rows
    assert "damaged" in str(broken)
    assert "damaged" in str(rows_of(b"no gzip", shape("a int"), "x.gz")[2])


def test_an_object_is_never_held_whole() -> None:
    class Endless(io.RawIOBase):
        taken = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            line = b'{"a":1}\n'
            content = (line * (len(buffer) // len(line)))[: len(buffer)]
            buffer[: len(content)] = content
            self.taken += len(content)
            return len(content)

    endless = Endless()
    batches = decode(endless, S3File("raw", "k"), shape("a int"), Bad())  # type: ignore[arg-type]
    for _ in range(3):
        assert next(batches).num_rows == 4096
    assert endless.taken < 3 * 1024 * 1024


def test_an_object_that_is_larger_unpacked_than_the_limit_ends_there() -> None:
    bomb = gzip.compress(b'{"a":1}\n' * 1000)
    assert len(bomb) < 100
    rows, bad, broken = rows_of(bomb, shape("a int", maxObjectBytes="80"), "k.gz")
    assert (len(rows), bad.count) == (10, 0)
    assert broken == "line 11 is beyond maxObjectBytes (80), unpacked"
    made = io.BytesIO()
    pq.write_table(pa.table({"a": list(range(10_000))}), made)
    rows, _, broken = rows_of(made.getvalue(), shape("a int", fileFormat="parquet", maxObjectBytes="1000"))
    assert rows == []
    assert broken == "more than maxObjectBytes (1000), unpacked"


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("0001-01-01T00:00:00+23:59", None),
        ("9999-12-31T23:59:59-23:59", None),
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
        ("9999-12-31T23:59:59Z", datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
        ("2026-11-22T01:00:00+02:00", datetime(2026, 11, 21, 23, tzinfo=UTC)),
        ("2026-11-22T01:00:00", None),
        ("no time", None),
        (None, None),
    ],
)
def test_an_announcement_at_either_end_of_time_is_read(said: str | None, found: datetime | None) -> None:
    file, of = S3File("raw", "k", event_time=said), shape("a int, _event_ts timestamp")
    (batch,) = decode(io.BytesIO(b'{"a":1}'), file, of, Bad())
    assert batch.to_pylist() == [{"a": 1, "_event_ts": found}]


def test_a_line_longer_than_the_limit_ends_the_object() -> None:
    rows, _, broken = rows_of(b'{"a":1}\n{"a":  1}\n', shape("a int", maxRecordBytes="8"))
    assert ([row["a"] for row in rows], broken) == ([1], "line 2 is longer than maxRecordBytes (8)")


@pytest.mark.parametrize(
    ("ddl", "options", "said"),
    [
        ("_file string", {}, "no column to read into"),
        ("a int, _line string", {}, "_line has to be of the type int64"),
        ("a interval", {}, "json cannot fill the column a"),
        ("a struct", {"fileFormat": "csv"}, "csv cannot fill the column a"),
        ("a string, b string", {"fileFormat": "text"}, "text cannot fill the column b"),
        ("a int", {"badRecords": "column"}, "go together"),
        ("a int, _corrupt_record string", {}, "go together"),
        ("a int NOT NULL, _corrupt_record string", {"badRecords": "column"}, "a is NOT NULL"),
    ],
)
def test_a_schema_that_cannot_be_filled_is_refused_before_anything_is_read(
    ddl: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(S3SqsSchemaRefused, match=said):
        shape(ddl, **options)
