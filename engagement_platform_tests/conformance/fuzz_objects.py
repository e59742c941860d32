"""What decoders of objects and of their announcements keep to, whatever bytes come: they raise nothing but Unreadable,
and each line is a row, or bad. `fuzz` runs the properties for as long as one likes.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from pyspark.sql import types as T

from engagement_platform.pipelines.games.decoding import Event, EventLimits, event_decoder
from engagement_platform.pipelines.games.registry import registry
from engagement_platform.settings import Settings
from engagement_platform.sources.s3_events import S3File, event_of, read_message
from engagement_platform.sources.s3_formats import Bad, Shape, Unreadable, decode
from engagement_platform.sources.s3_sqs_options import parse_options
from engagement_platform_tests.conformance.fuzz_property import EVENTS, NOW, TS, Property
from engagement_platform_tests.conformance.hostile import damaged, encoded, json_texts, nearly, object_text


def _game_event(line: bytes) -> None:
    decoded = event_decoder(registry(), EventLimits.of(Settings()))(line, NOW)
    if not isinstance(decoded, Event):
        assert decoded.code
        assert decoded.sentence


_FIELDS = {
    "i": T.IntegerType(), "l": T.LongType(), "b": T.ByteType(), "d": T.DoubleType(), "f": T.FloatType(),
    "o": T.BooleanType(), "s": T.StringType(), "x": T.BinaryType(), "day": T.DateType(), "t": T.TimestampType(),
    "n": T.TimestampNTZType(), "c": T.DecimalType(10, 2), "m": T.MapType(T.StringType(), T.IntegerType()),
    "a": T.ArrayType(T.StringType()), "r": T.StructType().add("p", "integer").add("q", "string"),
}  # fmt: skip
_FLAT = ("i", "l", "d", "f", "o", "s", "day", "t", "n", "c")
_JSON_LINE = {
    "i": 1, "l": 2**40, "b": -128, "d": 1, "f": 0.5, "o": True, "s": "ü", "x": "eA==", "day": "2026-11-22", "t": TS,
    "n": "2026-11-22T02:00:00", "c": 1.25, "m": {"k": 1, "z": None}, "a": ["q", None], "r": {"p": 1, "other": 2},
}  # fmt: skip


@cache
def _shape(file_format: str, names: Sequence[str], **options: str) -> Shape:
    given = {"queueUrl": "http://127.0.0.1:1/q", "stateLocation": "x", "fileFormat": file_format, **options}
    schema = T.StructType([T.StructField(name, _FIELDS[name]) for name in names])
    return Shape.of(schema.add("_line", "long").add("_corrupt_record", "string"), parse_options(given))


def _read(content: bytes, shape: Shape, key: str = "k") -> tuple[list[dict[str, Any]], Bad, bool]:
    """Rows, bad records, and whether the object was read to its end."""
    bad, rows, whole = Bad(), list[dict[str, Any]](), True
    try:
        for batch in decode(io.BytesIO(content), S3File("raw", key), shape, bad):
            assert batch.schema.equals(shape.arrow)
            rows += batch.to_pylist()
    except Unreadable:
        whole = False
    return rows, bad, whole


def _lines(file_format: str, names: tuple[str, ...], line: st.SearchStrategy[bytes], **options: str) -> Property:
    """Lines of an object: each is a row, or bad, or blank, whatever the others are."""

    def holds(lines: Sequence[bytes]) -> None:
        shape = _shape(file_format, names, badRecords="column", **options)
        rows, bad, whole = _read(b"".join(content + b"\n" for content in lines), shape)
        assert whole
        of = Counter(row["_line"] for row in rows)
        corrupt = {row["_line"] for row in rows if row["_corrupt_record"] is not None}
        assert len(corrupt) == bad.count
        for number, content in enumerate(lines, 1):
            if content.strip(b" \t\n\r\v\f") and file_format != "json":
                assert of[number] == 1, f"line {number} is neither a row nor bad"
            elif content.strip(b" \t\n\r\v\f"):
                assert of[number] >= 1, f"line {number} is neither a row nor bad"
            if number in corrupt:
                assert of[number] == 1, "a line is bad as a whole"
            alone, alone_bad, _ = _read(content + b"\n", shape)
            here = [{**row, "_line": 1} for row in rows if row["_line"] == number]
            assert repr(here) == repr(alone), f"what line {number} becomes depends on its neighbours"
            assert alone_bad.count == (number in corrupt)

    # A line has no end in it.
    clean = line.map(lambda content: content.replace(b"\n", b" ").removesuffix(b"\r"))
    return Property(st.lists(clean, min_size=1, max_size=6), holds)


_CELLS = st.one_of(
    st.sampled_from(("", "1", "-5", "1.5", '"', '""', '"a,b"', "true", "2026-11-22", TS, "NULL", "nan")),
    st.sampled_from(("a\tb", "\r", "\x00", str(2**70), "1e400", "99999999.999", "\ufeff", "é", "'", "\\", "#")),
    st.text(max_size=6),
)  # fmt: skip
_CSV = st.one_of(
    st.lists(_CELLS, max_size=12).map(",".join).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.just(",".join(("1", "2", "1.5", "0.5", "true", "x", "2026-11-22", TS, "2026-11-22T02:00:00", "1.25")).encode()),
    st.binary(max_size=30),
)


def _csv_with_header(content: Sequence[bytes]) -> None:
    """Any header: every other line is a row or bad, or the object is not read."""
    rows, _, whole = _read(b"\n".join(content), _shape("csv", ("i", "s"), header="true", badRecords="column"))
    filled = [number for number, line in enumerate(content, 1) if line.strip(b" \t\n\r\v\f")]
    if whole:
        assert [row["_line"] for row in rows] == filled[1:]


def _parquets() -> st.SearchStrategy[bytes]:
    values: dict[pa.DataType, object] = {
        pa.string(): "7", pa.large_string(): "x", pa.binary(): b"\xff", pa.bool_(): True,
        pa.list_(pa.int32()): [1, None], pa.struct([("p", pa.int64())]): {"p": 1}, pa.null(): None,
        pa.dictionary(pa.int8(), pa.string()): "k",
    }  # fmt: skip
    numbers = (pa.int8(), pa.int32(), pa.int64(), pa.uint64(), pa.float64(), pa.date32(), pa.decimal128(20, 5))
    kinds = (*values, *numbers, pa.timestamp("ns"), pa.timestamp("us", "UTC"))

    def made(columns: Mapping[str, pa.DataType], rows: int, compression: str) -> bytes:
        arrays = {
            name: pa.array([values.get(kind, 120), None, *[values.get(kind, 0)] * rows], kind)
            for name, kind in columns.items()
        }
        out = io.BytesIO()
        pq.write_table(pa.table(arrays), out, compression=compression)
        return out.getvalue()

    columns = st.dictionaries(st.sampled_from(sorted(_FIELDS)), st.sampled_from(kinds), min_size=1, max_size=4)
    return st.builds(made, columns, st.integers(0, 3), st.sampled_from(("none", "snappy", "zstd", "gzip")))


def _parquet(content: bytes) -> None:
    rows, bad, whole = _read(content, _shape("parquet", tuple(_FIELDS), badRecords="column"))
    assert bad.count == 0
    if whole and rows:
        assert [row["_line"] for row in rows] == list(range(1, len(rows) + 1))


_PACKED: dict[str, Callable[[bytes], bytes]] = {
    "k.gz": gzip.compress, "k.bz2": bz2.compress, "k.xz": lzma.compress,
    "k.zst": lambda content: pa.compress(content, codec="zstd", asbytes=True), "k": bytes,
}  # fmt: skip


def _packed(example: tuple[str, bytes]) -> None:
    key, content = example
    _read(content, _shape("json", ("s",), badRecords="column"), key)


_PACKED_LINES = st.lists(encoded(nearly([{"s": "x" * 20}])), max_size=5).map(b"\n".join)
_PACKS = st.one_of(
    [
        st.tuples(st.just(key), st.one_of(damaged(_PACKED_LINES.map(pack)), st.binary(max_size=40)))
        for key, pack in _PACKED.items()
    ]
)

_S3_EVENT = json.loads(event_of([S3File("raw", "a b/ü.json", "v1", "e", 3, TS, "05"), S3File("raw", "k")]))
_BRIDGE: dict[str, Any] = {
    "detail-type": "Object Created", "source": "aws.s3", "time": TS,
    "detail": {"bucket": {"name": "raw"}, "object": {"key": "a b", "size": 1, "etag": "e"}},
}  # fmt: skip


def _s3_message(body: str) -> None:
    announced = read_message(body)
    found = len(announced.files) + sum(announced.ignored.values()) + len(announced.refused)
    assert found, "a message is neither read nor refused"
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        parsed = None
    records = parsed.get("Records") if isinstance(parsed, dict) else None
    envelope = {"Event", "Type", "Message", "TopicArn", "detail-type"}
    if isinstance(records, list) and records and not envelope & parsed.keys() and not announced.refused[1:]:
        assert found in (len(records), 1)
    for file in announced.files:
        assert read_message(file.as_event()).files == (file,), "a dead letter names another object than the message did"
    wrapped = read_message(json.dumps({"Type": "Notification", "TopicArn": "arn", "Message": body}))
    assert (wrapped.files, wrapped.ignored) == (announced.files, announced.ignored) or any(
        refusal.code == "too_deep" for refusal in wrapped.refused
    )


_RECORDS = [{"Records": [record]} for record in _S3_EVENT["Records"]] + [
    {"Type": "Notification", "TopicArn": "a", "Message": json.dumps(_S3_EVENT)},
    _BRIDGE,
    {"Event": "s3:TestEvent"},
]
_S3_OBJECTS = nearly([_S3_EVENT["Records"][0]["s3"]["object"]])


def _bridged(detail: str) -> str:
    envelope = {**_BRIDGE, "detail": detail}
    return object_text(
        (json.dumps(name), value if name == "detail" else json.dumps(value)) for name, value in envelope.items()
    )


def _announcing(objects: Sequence[str]) -> str:
    before = '{"eventName":"ObjectCreated:Put","s3":{"bucket":{"name":"raw"},"object":'
    return '{"Records":[' + ",".join(before + each + "}}" for each in objects) + "]}"


_S3_BODIES = st.one_of(
    nearly(_RECORDS),
    nearly([_BRIDGE["detail"]]).map(_bridged),
    st.lists(_S3_OBJECTS, min_size=1, max_size=3).map(_announcing),
    json_texts(),
    st.text(max_size=20),
)

OBJECTS: Mapping[str, Property] = {
    "objects: game events": Property(
        st.one_of(encoded(nearly(EVENTS)), damaged(encoded(nearly(EVENTS))), encoded(json_texts())), _game_event
    ),
    "objects: JSON lines": _lines(
        "json", tuple(_FIELDS), st.one_of(encoded(nearly([_JSON_LINE])), encoded(json_texts()), st.binary(max_size=20))
    ),
    "objects: CSV": _lines("csv", _FLAT, _CSV),
    "objects: CSV with a header": Property(
        st.lists(_CSV.map(lambda line: line.replace(b"\n", b" ")), min_size=1, max_size=4), _csv_with_header
    ),
    "objects: text": _lines("text", ("s",), st.one_of(st.binary(max_size=20), encoded(st.text(max_size=20)))),
    "objects: Parquet": Property(st.one_of(_parquets(), damaged(_parquets()), st.binary(max_size=60)), _parquet),
    "objects: damaged compression": Property(_PACKS, _packed),
    "SQS: envelopes of S3 events": Property(_S3_BODIES, _s3_message),
}
