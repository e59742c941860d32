"""Bytes of one object to Arrow batches of the schema that was asked for, a piece at a time.

Decompression, lines, formats, and what counts as a bad record. Where bytes come from is `s3_objects`.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from engagement_platform.sources.s3_events import S3File
from engagement_platform.sources.s3_json import BadRecord, objects, record_converter
from engagement_platform.sources.s3_sqs_errors import S3SqsSchemaRefused

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from engagement_platform.sources.s3_sqs_options import Compression, S3SqsOptions

# A batch is what a task holds at a time: large enough that Arrow pays, far below what a worker may use.
_ROWS = 4096
_BYTES = 4 * 1024 * 1024

CORRUPT = "_corrupt_record"
_MADE = {"_file": pa.string(), "_line": pa.int64(), "_event_ts": pa.timestamp("us", "UTC"), CORRUPT: pa.string()}
_SUFFIXES = {".gz": "gzip", ".gzip": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd", ".zstd": "zstd"}
BROKEN = (EOFError, OSError, zlib.error, lzma.LZMAError, pa.ArrowInvalid)


class Unreadable(Exception):
    """The rest of an object cannot be read; what came before was. Says why, without any of its content."""


@dataclass
class Bad:
    """Bad records of one object."""

    count: int = 0
    first_line: int = 0
    first_reason: str = ""

    def add(self, line: int, reason: str) -> None:
        """One more."""
        if not self.count:
            self.first_line, self.first_reason = line, reason
        self.count += 1

    def __str__(self) -> str:
        more = f", and {self.count - 1} more" if self.count > 1 else ""
        return f"line {self.first_line}: {self.first_reason}{more}"


class Line(NamedTuple):
    number: int
    content: bytes


@dataclass(frozen=True)
class Shape:
    """The columns that were asked for: those that are read, and those that are made (`_file`, `_line`, …)."""

    arrow: pa.Schema
    options: S3SqsOptions
    data: list[pa.Field] = field(default_factory=list)

    @classmethod
    def of(cls, schema: StructType, options: S3SqsOptions) -> Shape:
        """The shape of a Spark schema. Raises S3SqsSchemaRefused for what the format cannot fill."""
        from pyspark.sql.pandas.types import to_arrow_schema

        arrow = to_arrow_schema(schema, timezone="UTC")
        data = [column for column in arrow if column.name not in _MADE]
        for column in arrow:
            if column.name in _MADE and column.type != _MADE[column.name]:
                raise S3SqsSchemaRefused(f"the column {column.name} has to be of the type {_MADE[column.name]}")
        _check(data, [column.name for column in arrow], options)
        return cls(arrow, options, data)

    def batch(
        self, columns: Sequence[pa.Array], lines: Sequence[int], file: S3File, corrupt: pa.Array
    ) -> pa.RecordBatch:
        """A batch exactly as Spark wants it. columns: those of `data`, in their order."""
        rows = len(lines)
        made = {
            "_file": lambda: pa.repeat(pa.scalar(file.url), rows),
            "_line": lambda: pa.array(lines, pa.int64()),
            "_event_ts": lambda: pa.repeat(pa.scalar(_event_time(file), _MADE["_event_ts"]), rows),
            CORRUPT: lambda: corrupt,
        }
        read = iter(columns)
        return pa.RecordBatch.from_arrays(
            [made[column.name]() if column.name in _MADE else next(read) for column in self.arrow], schema=self.arrow
        )


def decode(stream: BinaryIO, file: S3File, shape: Shape, bad: Bad) -> Iterator[pa.RecordBatch]:
    """The records of an object in order, as many at a time as a task can hold; bad ones are counted in `bad`.

    An object without a byte has no records. Raises Unreadable, after the batches that came before.
    """
    options = shape.options
    buffered = io.BufferedReader(cast(Any, stream), 1024 * 1024)
    try:
        if not buffered.peek(1):
            return
        if options.file_format == "parquet":
            yield from _parquet(cast(BinaryIO, buffered), file, shape)
            return
        numbered = _lines(decompressed(cast(BinaryIO, buffered), file.key, options.compression), options)
        reader = _READERS[options.file_format](shape, numbered, bad)
        for columns, lines, corrupt in reader:
            if lines:
                yield shape.batch(columns, lines, file, corrupt)
    except BROKEN as broken:
        raise Unreadable(f"{type(broken).__name__}: the content is damaged or no {options.file_format}") from broken


Piece = tuple[Sequence[pa.Array], Sequence[int], pa.Array]


def _json(shape: Shape, numbered: Iterator[Line], bad: Bad) -> Iterator[Piece]:
    convert = cast(Callable[[object], dict[str, object]], record_converter(shape.data))
    exact = any("decimal" in str(column.type) for column in shape.data)
    for piece in _pieces(numbered):
        rows: list[dict[str, object]] = []
        lines: list[int] = []
        corrupt: list[str | None] = []
        for line in piece:
            try:
                made = [convert(value) for value in objects(_utf8(line.content), exact=exact)]
            except BadRecord as wrong:
                bad.add(line.number, str(wrong))
                if shape.options.bad_records == "column":
                    rows.append({})
                    lines.append(line.number)
                    corrupt.append(line.content.decode(errors="replace"))
                continue
            rows += made
            lines += [line.number] * len(made)
            corrupt += [None] * len(made)
        columns = [pa.array([row.get(column.name) for row in rows], column.type) for column in shape.data]
        yield columns, lines, pa.array(corrupt, pa.string())


def _text(shape: Shape, numbered: Iterator[Line], bad: Bad) -> Iterator[Piece]:
    (column,) = shape.data
    for piece in _pieces(numbered):
        values: list[bytes | None] = []
        lines: list[int] = []
        corrupt: list[str | None] = []
        for line in piece:
            if pa.types.is_string(column.type) and not _is_utf8(line.content):
                bad.add(line.number, "no UTF-8")
                if shape.options.bad_records != "column":
                    continue
                values.append(None)
                corrupt.append(line.content.decode(errors="replace"))
            else:
                values.append(line.content)
                corrupt.append(None)
            lines.append(line.number)
        yield [pa.array(values, pa.binary()).cast(column.type)], lines, pa.array(corrupt, pa.string())


def _csv(shape: Shape, numbered: Iterator[Line], bad: Bad) -> Iterator[Piece]:
    names = [column.name for column in shape.data]
    delimiter = shape.options.delimiter
    if shape.options.header:
        header = next((line for line in numbered if line.content.strip()), None)
        if header is None:
            return
        names = next(csv.reader([_utf8(header.content).removeprefix("\ufeff")], delimiter=delimiter))
    parse = _csv_parser(shape, names)
    for piece in _pieces(line for line in numbered if line.content.strip()):
        whole = parse(b"\n".join(line.content for line in piece))
        if isinstance(whole, pa.Table) and whole.num_rows == len(piece):
            lines = [line.number for line in piece]
            yield _columns(whole), lines, pa.nulls(len(piece), pa.string())
            continue
        for line in piece:
            one = parse(line.content)
            if isinstance(one, pa.Table) and one.num_rows == 1:
                yield _columns(one), [line.number], pa.nulls(1, pa.string())
                continue
            bad.add(line.number, one if isinstance(one, str) else "a quote that is not closed")
            if shape.options.bad_records == "column":
                nulls = [pa.nulls(1, column.type) for column in shape.data]
                yield nulls, [line.number], pa.array([line.content.decode(errors="replace")], pa.string())


def _csv_parser(shape: Shape, names: list[str]) -> Callable[[bytes], pa.Table | str]:
    """A function from lines to a table of the data columns, or what is wrong with them."""
    convert = pa_csv.ConvertOptions(
        column_types={column.name: column.type for column in shape.data},
        include_columns=[column.name for column in shape.data],
        include_missing_columns=True,
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    required = [column.name for column in shape.data if not column.nullable]
    read, parsed = pa_csv.ReadOptions(column_names=names), pa_csv.ParseOptions(delimiter=shape.options.delimiter)

    def parse(content: bytes) -> pa.Table | str:
        try:
            table = pa_csv.read_csv(
                io.BytesIO(content), read_options=read, parse_options=parsed, convert_options=convert
            )
        except pa.ArrowInvalid as wrong:
            return "another number of columns" if "Expected" in str(wrong) else "a value that its column cannot hold"
        except UnicodeDecodeError:
            return "no UTF-8"
        missing = [name for name in required if table.column(name).null_count]
        return f"{missing[0]} is null or missing" if missing else table

    return parse


def _columns(table: pa.Table) -> list[pa.Array]:
    return [column.combine_chunks() for column in table.columns]


def _parquet(stream: BinaryIO, file: S3File, shape: Shape) -> Iterator[pa.RecordBatch]:
    # Its directory is at its end, so it has to be whole somewhere; on disk, because it may be larger than memory.
    with tempfile.TemporaryFile() as spool:
        shutil.copyfileobj(stream, spool, 1024 * 1024)
        parquet = pq.ParquetFile(spool)
        groups = (parquet.metadata.row_group(number) for number in range(parquet.num_row_groups))
        if sum(group.total_byte_size for group in groups) > shape.options.max_object_bytes:
            raise Unreadable(f"more than maxObjectBytes ({shape.options.max_object_bytes}), unpacked")
        there = set(parquet.schema_arrow.names)
        wanted = [column.name for column in shape.data if column.name in there]
        row = 0
        for batch in parquet.iter_batches(_ROWS, columns=wanted):
            lines = range(row + 1, row + batch.num_rows + 1)
            row += batch.num_rows
            columns = [_cast(batch, column) for column in shape.data]
            if batch.num_rows:
                yield shape.batch(columns, lines, file, pa.nulls(batch.num_rows, pa.string()))


def _cast(batch: pa.RecordBatch, column: pa.Field) -> pa.Array:
    found = batch.schema.get_field_index(column.name)
    values = pa.nulls(batch.num_rows, column.type) if found < 0 else batch.column(found)
    if values.null_count and not column.nullable:
        raise Unreadable(f"{column.name} is null or missing")
    try:
        return values.cast(column.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise Unreadable(f"{column.name} is {values.type} in the object, and {column.type} was asked for") from None


def decompressed(stream: BinaryIO, key: str, compression: Compression = "auto") -> BinaryIO:
    """What is in a stream of bytes; auto: compressed as the suffix of the key says. Reading raises one of BROKEN."""
    match _by_suffix(key) if compression == "auto" else compression:
        case "gzip":
            # Several members in one object are one stream: Firehose and `cat` make such.
            return cast(BinaryIO, gzip.GzipFile(fileobj=stream, mode="rb"))
        case "bz2":
            return cast(BinaryIO, bz2.BZ2File(stream))
        case "xz":
            return cast(BinaryIO, lzma.LZMAFile(stream))
        case "zstd":
            return cast(BinaryIO, io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), "zstd")))
        case _:
            return stream


def compressing(stream: BinaryIO, key: str) -> BinaryIO:
    """Where to write so that `decompressed` reads it; closing it leaves the stream open."""
    match _by_suffix(key):
        case "gzip":
            return cast(BinaryIO, gzip.GzipFile(fileobj=stream, mode="wb", filename="", mtime=0))
        case "bz2":
            return cast(BinaryIO, bz2.BZ2File(stream, "wb"))
        case "xz":
            return cast(BinaryIO, lzma.LZMAFile(stream, "wb"))
        case "zstd":
            return cast(BinaryIO, pa.CompressedOutputStream(pa.PythonFile(_Kept(stream), mode="w"), "zstd"))
        case _:
            return cast(BinaryIO, _Kept(stream))


class _Kept(io.RawIOBase):
    """A stream that outlives who writes to it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        return self._stream.write(content)


def _by_suffix(key: str) -> Compression:
    suffix = key[key.rfind(".") :].lower() if "." in key else ""
    return cast("Compression", _SUFFIXES.get(suffix, "none"))


def _lines(stream: BinaryIO, options: S3SqsOptions) -> Iterator[Line]:
    """Lines from 1, without their ends; never more of them in memory than one."""
    number, left, max_bytes = 0, options.max_object_bytes, options.max_record_bytes
    while content := stream.readline(max_bytes + 2):
        number += 1
        left -= len(content)
        if len(content.rstrip(b"\r\n")) > max_bytes:
            raise Unreadable(f"line {number} is longer than maxRecordBytes ({max_bytes})")
        if left < 0:
            raise Unreadable(f"line {number} is beyond maxObjectBytes ({options.max_object_bytes}), unpacked")
        yield Line(number, content.removesuffix(b"\n").removesuffix(b"\r"))


def _pieces(numbered: Iterator[Line]) -> Iterator[list[Line]]:
    """Lines in lists of what a task holds at a time. What came before a break is handed out before it is told."""
    piece: list[Line] = []
    size = 0
    broken: Exception | None = None
    while True:
        try:
            line = next(numbered, None)
        except (Unreadable, *BROKEN) as error:
            line, broken = None, error
        if line is not None:
            piece.append(line)
            size += len(line.content)
        if piece and (line is None or len(piece) == _ROWS or size >= _BYTES):
            yield piece
            piece, size = [], 0
        if broken is not None:
            raise broken
        if line is None:
            return


def _utf8(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise BadRecord("no UTF-8") from None


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _event_time(file: S3File) -> datetime | None:
    try:
        time = datetime.fromisoformat(file.event_time or "")
        return time.astimezone(UTC) if time.tzinfo else None
    except (ValueError, OverflowError):
        # No time, or one that is before the first or after the last year in UTC.
        return None


def _check(data: list[pa.Field], names: list[str], options: S3SqsOptions) -> None:
    if not data:
        raise S3SqsSchemaRefused("the schema has no column to read into")
    if (CORRUPT in names) != (options.bad_records == "column"):
        raise S3SqsSchemaRefused(f"{CORRUPT} string and badRecords = column go together, and one of them is missing")
    required = [column.name for column in data if not column.nullable]
    if options.bad_records == "column" and required:
        raise S3SqsSchemaRefused(f"{required[0]} is NOT NULL, but rows of bad records (badRecords = column) have nulls")
    match options.file_format:
        case "json":
            unfit = [column for column in data if record_converter([column]) is None]
        case "csv":
            unfit = [column for column in data if pa.types.is_nested(column.type)]
        case "text":
            unfit = [c for c in data if not (pa.types.is_string(c.type) or pa.types.is_binary(c.type))] or data[1:]
        case _:
            unfit = []
    if unfit:
        raise S3SqsSchemaRefused(f"{options.file_format} cannot fill the column {unfit[0].name} {unfit[0].type}")


_READERS: dict[str, Callable[[Shape, Iterator[Line], Bad], Iterator[Piece]]] = {
    "json": _json,
    "csv": _csv,
    "text": _text,
}
