"""Files as rows of a declared schema, and what of them does not parse: whole, with its reason. Writes nothing."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.orc as paorc
import pyarrow.parquet as pq

from engagement_platform.importing.files import SourceFile
from engagement_platform.importing.lines import Record, lines, records
from engagement_platform.lake import log
from engagement_platform.lake.plain import plain_rows
from engagement_platform.sources.arrow_types import TIMESTAMP

BLOCK = 20_000
"""Records that are parsed together; one that does not parse is found by halving."""
TEXT = "value"
"""The column of plain text."""
DELIMITERS = (",", "\t", ";", "|")

Kinds = dict[str, pa.DataType]
"""Columns of a file, or of the whole table, with their types."""


@dataclass(frozen=True)
class Rejected:
    """What was refused. line: None for the file as such."""

    path: str
    line: int | None
    value: bytes
    reason: str


@dataclass(frozen=True)
class Parsed:
    """Some rows of a file with all declared columns, and what was refused among them."""

    rows: pa.Table
    rejected: Sequence[Rejected]


def parsed(place: str, file: SourceFile, schema: pa.Schema) -> Iterator[Parsed]:
    """A whole file at a path or URI, some rows at a time.

    Columns that it lacks are null, those that nobody declared are left out. A damaged file is refused from where it
    cannot be read on; what came before is rows.
    """
    partition = file.partition
    own = {field.name: field.type for field in schema if field.name not in partition}
    seen = 0
    try:
        for part in _PARSERS[file.format](place, file, own):
            seen += part.rows.num_rows + len(part.rejected)
            yield Parsed(_whole(part.rows, partition, schema), part.rejected)
    except (OSError, ValueError, EOFError, pa.ArrowException) as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        after = f" after {seen:,} records" if seen else ""
        reason = f"the file cannot be read{after}: {_said(error)}"
        yield Parsed(schema.empty_table(), [Rejected(file.path, None, b"", reason)])


def _whole(rows: pa.Table, partition: dict[str, str | None], schema: pa.Schema) -> pa.Table:
    arrays = [
        _repeated(partition[field.name], field.type, rows.num_rows)
        if field.name in partition
        else rows.column(field.name)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


def _repeated(value: str | None, kind: pa.DataType, count: int) -> pa.Array:
    return pa.nulls(count, kind) if value is None else pa.repeat(pa.scalar(value).cast(kind), count)


# Rows of lines


def _text(place: str, file: SourceFile, kinds: Kinds) -> Iterator[Parsed]:
    def accept(block: Sequence[Record]) -> pa.Table:
        values = pa.array([record.value for record in block], pa.binary()).cast(pa.string())
        return fitted(pa.table({TEXT: values}), kinds)

    return _in_blocks(file, kinds, lines(place, file), accept)


def _json(place: str, file: SourceFile, kinds: Kinds) -> Iterator[Parsed]:
    told = pa.schema([pa.field(name, _told(kind)) for name, kind in kinds.items()])
    options = pajson.ParseOptions(explicit_schema=told, unexpected_field_behavior="ignore")

    def accept(block: Sequence[Record]) -> pa.Table:
        return fitted(json_of(block, options), kinds)

    return _in_blocks(file, kinds, _not_blank(lines(place, file)), accept)


def json_of(block: Sequence[Record], options: pajson.ParseOptions) -> pa.Table:
    """Lines of JSON as rows, with the types that the options say. Raises ArrowInvalid."""
    text = b"\n".join(record.value for record in block)
    return pajson.read_json(io.BytesIO(text), pajson.ReadOptions(use_threads=False, block_size=len(text) + 2), options)


def _csv(place: str, file: SourceFile, kinds: Kinds) -> Iterator[Parsed]:
    read = records(lines(place, file))
    first = next(read, None)
    if first is None:
        return iter(())
    names, delimiter = header(first.value)
    if not set(names) & kinds.keys():
        raise ValueError(f"its first line {first.value[:80]!r} names none of the declared columns")
    told = {name: _told(kind) for name, kind in kinds.items()}

    def accept(block: Sequence[Record]) -> pa.Table:
        return fitted(csv_of(block, names, delimiter, told), kinds)

    return _in_blocks(file, kinds, read, accept)


def csv_of(block: Sequence[Record], names: Sequence[str], delimiter: str, kinds: Kinds | None) -> pa.Table:
    """Records of CSV as rows. kinds: columns wanted, with their types; None: all, as Arrow finds them.

    Nothing between two delimiters is null, nothing between two quotes is an empty text. Raises ArrowInvalid.
    """
    text = b"\n".join(record.value for record in block) + b"\n"
    wanted = {} if kinds is None else {"column_types": kinds, "include_columns": list(kinds)}
    return pacsv.read_csv(
        io.BytesIO(text),
        pacsv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=list(names)),
        pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        pacsv.ConvertOptions(
            null_values=["", "\\N"], strings_can_be_null=True, quoted_strings_can_be_null=False,
            include_missing_columns=kinds is not None, **wanted,
        ),
    )  # fmt: skip


def header(line: bytes) -> tuple[list[str], str]:
    """Names of the columns in the first line of CSV, and what separates them. Raises ValueError."""
    text = line.decode("utf-8")
    delimiter = max(DELIMITERS, key=text.count)
    names = next(csv.reader([text], delimiter=delimiter))
    if len(set(names)) < len(names):
        raise ValueError(f"its first line names a column twice: {text[:200]!r}")
    return names, delimiter


def _not_blank(read: Iterator[Record]) -> Iterator[Record]:
    return (record for record in read if record.broken or record.value.strip())


def _in_blocks(
    file: SourceFile, kinds: Kinds, read: Iterator[Record], accept: Callable[[Sequence[Record]], pa.Table]
) -> Iterator[Parsed]:
    while block := list(islice(read, BLOCK)):
        rejected = [Rejected(file.path, r.line, r.value, r.broken) for r in block if r.broken is not None]
        good, bad = sifted([record for record in block if record.broken is None], accept)
        rejected += [Rejected(file.path, record.line, record.value, reason) for record, reason in bad]
        yield Parsed(pa.concat_tables([_empty(kinds), *good]), rejected)


def sifted(
    block: Sequence[Record], accept: Callable[[Sequence[Record]], pa.Table]
) -> tuple[list[pa.Table], list[tuple[Record, str]]]:
    """(rows of the records that are accepted, those that are not with why). A row for each record, or it is refused."""
    if not block:
        return [], []
    try:
        rows = accept(block)
        if rows.num_rows == len(block):
            return [rows], []
        reason = f"the line holds {rows.num_rows} records and not one"
    except (pa.ArrowException, UnicodeDecodeError) as error:
        reason = _said(error)
    if len(block) == 1:
        return [], [(block[0], reason)]
    middle = len(block) // 2
    left, right = sifted(block[:middle], accept), sifted(block[middle:], accept)
    return [*left[0], *right[0]], [*left[1], *right[1]]


# Rows of columns


def _parquet(place: str, file: SourceFile, kinds: Kinds) -> Iterator[Parsed]:
    filesystem, path = log.opened(place)
    with filesystem.open_input_file(path) as opened:
        read = pq.ParquetFile(opened, coerce_int96_timestamp_unit="us")
        wanted = [name for name in read.schema_arrow.names if name in kinds]
        batches = (pa.Table.from_batches([batch]) for batch in read.iter_batches(BLOCK, columns=wanted))
        yield from _of_columns(file, batches, kinds)


def _orc(place: str, file: SourceFile, kinds: Kinds) -> Iterator[Parsed]:
    filesystem, path = log.opened(place)
    with filesystem.open_input_file(path) as opened:
        read = paorc.ORCFile(opened)
        wanted = [name for name in read.schema.names if name in kinds]
        stripes = (pa.table(read.read_stripe(number, columns=wanted)) for number in range(read.nstripes))
        yield from _of_columns(file, stripes, kinds)


def _of_columns(file: SourceFile, parts: Iterator[pa.Table], kinds: Kinds) -> Iterator[Parsed]:
    row = 1
    for part in parts:
        good, bad = _sifted_rows(part, row, kinds)
        row += part.num_rows
        rejected = [
            Rejected(file.path, number, json.dumps(next(plain_rows(one)), ensure_ascii=False).encode(), reason)
            for number, one, reason in bad
        ]
        yield Parsed(pa.concat_tables([_empty(kinds), *good]), rejected)


def _sifted_rows(part: pa.Table, first: int, kinds: Kinds) -> tuple[list[pa.Table], list[tuple[int, pa.Table, str]]]:
    try:
        return [fitted(part, kinds)], []
    except pa.ArrowException as error:
        if part.num_rows == 1:
            return [], [(first, part, _said(error))]
    middle = part.num_rows // 2
    left = _sifted_rows(part.slice(0, middle), first, kinds)
    right = _sifted_rows(part.slice(middle), first + middle, kinds)
    return [*left[0], *right[0]], [*left[1], *right[1]]


# Values


def fitted(rows: pa.Table, kinds: Kinds) -> pa.Table:
    """Exactly these columns in these types; absent ones are null. Raises ArrowInvalid when a value does not fit."""
    columns = {name: _as(rows, name, kind) for name, kind in kinds.items()}
    return pa.table(columns) if columns else rows.select([])


def _as(rows: pa.Table, name: str, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    if name not in rows.column_names:
        return pa.nulls(rows.num_rows, kind)
    column = rows.column(name)
    if kind != TIMESTAMP or column.type == TIMESTAMP:
        return column.cast(kind)
    if pa.types.is_timestamp(column.type):
        # Nanoseconds are cut: the table keeps microseconds.
        cut = column.cast(pa.timestamp("us", tz=column.type.tz), safe=False)
        return cut.cast(TIMESTAMP) if column.type.tz else pc.assume_timezone(cut, "UTC")
    if not pa.types.is_string(column.type):
        return pc.assume_timezone(column.cast(pa.timestamp("us")), "UTC")
    try:
        return column.cast(TIMESTAMP)
    except pa.ArrowInvalid:
        return pc.assume_timezone(column.cast(pa.timestamp("us")), "UTC")


def _told(kind: pa.DataType) -> pa.DataType:
    """What a parser of text is told of a column: days and times are text to it, and made from that here."""
    return pa.string() if kind in (TIMESTAMP, pa.date32()) else kind


def _empty(kinds: Kinds) -> pa.Table:
    return pa.schema(list(kinds.items())).empty_table()


def _said(error: Exception) -> str:
    return str(error).split("\n", maxsplit=1)[0][:500] or type(error).__name__


_PARSERS: dict[str, Callable[[str, SourceFile, Kinds], Iterator[Parsed]]] = {
    "text": _text, "jsonl": _json, "csv": _csv, "parquet": _parquet, "orc": _orc,
}  # fmt: skip
