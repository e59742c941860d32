"""Bytes of one object to Arrow batches of the schema that was asked for, a piece at a time.

Lines, formats, and what counts as a bad record. Where bytes come from is `s3_objects`.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from engagement_platform.sources.messages import Reason
from engagement_platform.sources.s3_compression import BROKEN, decompressed
from engagement_platform.sources.s3_csv import NotCsv, header_of, rows_reader
from engagement_platform.sources.s3_events import S3File
from engagement_platform.sources.s3_json import NotInJson, record_reader
from engagement_platform.sources.s3_sqs_errors import ObjectNotReadable, S3SqsSchemaRefused
from engagement_platform.sources.strict_json import JsonObject, Refused

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from engagement_platform.sources.s3_sqs_options import S3SqsOptions

# A batch is what a task holds at a time: large enough that Arrow pays, far below what a worker may use.
_ROWS = 4096
_BYTES = 4 * 1024 * 1024

CORRUPT = "_corrupt_record"
_MADE = {"_file": pa.string(), "_line": pa.int64(), "_event_ts": pa.timestamp("us", "UTC"), CORRUPT: pa.string()}


class BadRecord(Exception):
    """Says what is wrong with a record and where, without any of its content."""


class Unreadable(Exception):
    """The rest of an object cannot be read; what came before was. Says why, without any of its content."""


@dataclass
class Bad:
    """Bad records of one object: how many, and where and what the first one is."""

    count: int = 0
    first: str = ""

    def add(self, line: int, reason: str) -> None:
        """One more."""
        self.count += 1
        self.first = self.first or f"line {line}: {reason}"

    def __str__(self) -> str:
        return f"{self.first}, and {self.count - 1} more" if self.count > 1 else self.first


class Line(NamedTuple):
    number: int
    content: bytes


@dataclass(frozen=True)
class Shape:
    """The columns that were asked for: those that are read, and those that are made (`_file`, `_line`, …)."""

    arrow: pa.Schema
    options: S3SqsOptions
    data: list[pa.Field]

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
        self, columns: Sequence[pa.Array], lines: Sequence[int], file: S3File, corrupt: str | None = None
    ) -> pa.RecordBatch:
        """A batch exactly as Spark wants it. columns: those of `data`, in their order. corrupt: a bad record's text."""
        rows = len(lines)
        made = {
            "_file": lambda: pa.repeat(pa.scalar(file.url), rows),
            "_line": lambda: pa.array(lines, pa.int64()),
            "_event_ts": lambda: pa.repeat(pa.scalar(event_time(file), _MADE["_event_ts"]), rows),
            CORRUPT: lambda: pa.repeat(pa.scalar(corrupt, pa.string()), rows),
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
            yield from _parquet(buffered, file, shape)
            return
        numbered = _lines(decompressed(buffered, file.key, options.compression), options)
        read = _READERS[options.file_format](shape, numbered)
        for piece in _pieces(numbered):
            yield from _readable(piece, read, file, shape, bad)
    except BROKEN as broken:
        raise Unreadable(f"{type(broken).__name__}: the content is damaged or no {options.file_format}") from broken


Columns = tuple[Sequence[pa.Array], Sequence[int]]
"""Those of `Shape.data`, and the line of each row."""
Read = Callable[[list[Line]], Columns]
"""Raises BadRecord when one of the lines has a bad one."""


def _readable(piece: list[Line], read: Read, file: S3File, shape: Shape, bad: Bad) -> Iterator[pa.RecordBatch]:
    """The rows of lines. A piece with a bad line is halved until the line is alone, and the others are read."""
    corrupt: str | None = None
    try:
        columns, numbers = read(piece)
    except BadRecord as wrong:
        if len(piece) > 1:
            half = len(piece) // 2
            yield from _readable(piece[:half], read, file, shape, bad)
            yield from _readable(piece[half:], read, file, shape, bad)
            return
        (line,) = piece
        bad.add(line.number, str(wrong))
        if shape.options.bad_records != "column":
            return
        columns, numbers = [pa.nulls(1, column.type) for column in shape.data], [line.number]
        corrupt = line.content.decode(errors="replace")
    if numbers:
        yield shape.batch(columns, numbers, file, corrupt)


def _json(shape: Shape, _lines: Iterator[Line]) -> Read:
    read_line = record_reader(shape.data, shape.options.max_record_bytes)

    def read(piece: list[Line]) -> Columns:
        rows: list[JsonObject] = []
        numbers: list[int] = []
        try:
            for line in piece:
                made = list(read_line(line.content)) if line.content.strip() else []
                rows += made
                numbers += [line.number] * len(made)
        except Refused as refused:
            code, sentence = refused.rejection
            raise BadRecord("nested too deep" if code is Reason.TOO_DEEP else sentence.rstrip(".")) from None
        return [pa.array([row[column.name] for row in rows], column.type) for column in shape.data], numbers

    return read


def _text(shape: Shape, _lines: Iterator[Line]) -> Read:
    (column,) = shape.data

    def read(piece: list[Line]) -> Columns:
        try:
            values = pa.array([line.content for line in piece], pa.binary()).cast(column.type)
        except pa.ArrowInvalid:
            raise BadRecord("no UTF-8") from None
        return [values], [line.number for line in piece]

    return read


def _csv(shape: Shape, numbered: Iterator[Line]) -> Read:
    names, delimiter = [column.name for column in shape.data], shape.options.delimiter
    if shape.options.header and (header := next((line for line in numbered if line.content.strip()), None)) is not None:
        try:
            names = header_of(header.content, delimiter)
        except NotCsv:
            raise Unreadable(f"line {header.number}: the header is no line of CSV") from None
    read_rows = rows_reader(shape.data, names, delimiter)

    def read(piece: list[Line]) -> Columns:
        lines = [line for line in piece if line.content.strip()]
        if not lines:
            return [], []
        try:
            columns = read_rows(lines)
        except NotCsv as wrong:
            raise BadRecord(str(wrong)) from None
        for column, values in zip(shape.data, columns, strict=True):
            if not column.nullable and values.null_count:
                raise BadRecord(f"{column.name} is missing or null, and required")
        return columns, [line.number for line in lines]

    return read


def _parquet(stream: BinaryIO, file: S3File, shape: Shape) -> Iterator[pa.RecordBatch]:
    # Its directory is at its end, so it has to be whole somewhere; on disk, because it may be larger than memory.
    with _scratch(file) as spool:
        _copy(stream, spool, file, shape.options.max_object_bytes)
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
                yield shape.batch(columns, lines, file)


@contextmanager
def _scratch(file: S3File) -> Iterator[BinaryIO]:
    """A file of this machine's that is gone afterwards; what a full disk keeps from being written is no error then.

    Raises ObjectNotReadable where none can be made.
    """
    try:
        spool = tempfile.TemporaryFile()  # noqa: SIM115
    except OSError as failed:
        raise ObjectNotReadable(file.shown, f"this machine cannot keep a copy of it: {failed.strerror}") from failed
    try:
        yield spool
    finally:
        with suppress(OSError):
            spool.close()


def _copy(stream: BinaryIO, spool: BinaryIO, file: S3File, most: int) -> None:
    """Raises Unreadable for what is longer than it may be unpacked, ObjectNotReadable where the disk is full."""
    left = most
    try:
        while content := stream.read(1024 * 1024):
            if (left := left - len(content)) < 0:
                raise Unreadable(f"more than maxObjectBytes ({most}), unpacked")
            spool.write(content)
        spool.flush()
    except OSError as failed:
        raise ObjectNotReadable(file.shown, f"this machine cannot keep a copy of it: {failed.strerror}") from failed
    spool.seek(0)


def _cast(batch: pa.RecordBatch, column: pa.Field) -> pa.Array:
    found = batch.schema.get_field_index(column.name)
    values = pa.nulls(batch.num_rows, column.type) if found < 0 else batch.column(found)
    if values.null_count and not column.nullable:
        raise Unreadable(f"{column.name} is null or missing")
    try:
        made = values.cast(column.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise Unreadable(f"{column.name} is {values.type} in the object, and {column.type} was asked for") from None
    if (infinite := _infinities(made)) and infinite > _infinities(values):
        raise Unreadable(f"{column.name} has a number that {column.type} does not hold")
    return made


def _infinities(values: pa.Array) -> int:
    """How many there are, at any depth."""
    kind = values.type
    if pa.types.is_map(kind):
        return _infinities(values.keys) + _infinities(values.items)
    if pa.types.is_nested(kind):
        inner = values.flatten()
        return sum(map(_infinities, inner)) if pa.types.is_struct(kind) else _infinities(inner)
    return pc.sum(pc.is_inf(values)).as_py() or 0 if pa.types.is_floating(kind) else 0


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
    """Lines in lists of what a task holds at a time. What came before a break is yielded before it is reported."""
    piece: list[Line] = []
    size = 0
    try:
        for line in numbered:
            piece.append(line)
            size += len(line.content)
            if len(piece) == _ROWS or size >= _BYTES:
                yield piece
                piece, size = [], 0
    except (Unreadable, *BROKEN):
        if piece:
            yield piece
        raise
    if piece:
        yield piece


def event_time(file: S3File) -> datetime | None:
    """When an object arrived, UTC; None where its announcement does not say."""
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
            unfit = [column for column in data if not _fits_json(column)]
        case "csv":
            unfit = [column for column in data if pa.types.is_nested(column.type)]
        case "text":
            unfit = [c for c in data if not (pa.types.is_string(c.type) or pa.types.is_binary(c.type))] or data[1:]
        case _:
            unfit = []
    if unfit:
        raise S3SqsSchemaRefused(f"{options.file_format} cannot fill the column {unfit[0].name} {unfit[0].type}")


def _fits_json(column: pa.Field) -> bool:
    try:
        record_reader([column], 1)
    except NotInJson:
        return False
    return True


_READERS: dict[str, Callable[[Shape, Iterator[Line]], Read]] = {
    "json": _json,
    "csv": _csv,
    "text": _text,
}
