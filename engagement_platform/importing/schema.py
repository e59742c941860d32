"""Which columns an import makes: looked for in the files, or declared in a JSON file. Nothing is written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.json as pajson
import pyarrow.orc as paorc
import pyarrow.parquet as pq

from engagement_platform.errors import PlatformError
from engagement_platform.importing.files import SourceFile
from engagement_platform.importing.lines import Record, lines, records
from engagement_platform.importing.parse import TEXT, csv_of, header, json_of, sifted
from engagement_platform.importing.types import UnknownType, holds, parsed, plain, words
from engagement_platform.lake import log
from engagement_platform.sources.arrow_types import TIMESTAMP

LOOKED_AT = 200
"""Files that are looked into at most, spread over all of them; what the others have beside that is left out."""
SAMPLE = 2_000
"""Records of each of them, where the file does not say its types."""


class SchemaUnusable(PlatformError):
    """No columns were found, or the declaration cannot be used."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(
            f"{what}: {why}. Nothing was written. Declare columns as a JSON object of names and types, such as "
            '{"id": "long", "at": "timestamp"}, and give its file with `--schema`.'
        )


@dataclass(frozen=True)
class Schema:
    """Columns of the table, and those by which the folders of the source, and so the table, are partitioned."""

    columns: pa.Schema
    partitioned_by: tuple[str, ...]

    def as_json(self) -> str:
        """As `declared` reads it."""
        return json.dumps({field.name: words(field.type) for field in self.columns}, indent=2, ensure_ascii=False)


def declared(path: Path, files: Sequence[SourceFile]) -> Schema:
    """From a JSON file. Partition columns that it leaves out are text. Raises SchemaUnusable, UnknownType."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SchemaUnusable(str(path), f"it cannot be read ({error})") from error
    if not isinstance(said, dict) or not said or not all(isinstance(kind, str) for kind in said.values()):
        raise SchemaUnusable(str(path), "it is no object of names and types")
    kinds = {name: parsed(kind) for name, kind in said.items()}
    return _schema({name: kind for name, kind in kinds.items() if name not in files[0].partition}, files, kinds)


def inferred(root: str, files: Sequence[SourceFile]) -> Schema:
    """What the files say, or look like: for each column the narrowest type that holds all values that were looked at.

    Raises SchemaUnusable.
    """
    kinds: dict[str, pa.DataType | None] = {}
    step = max(1, -(-len(files) // LOOKED_AT))
    for file in files[::step]:
        try:
            found = _FINDERS[file.format](f"{root}/{file.path}", file)
            for schema in found:
                for field in schema:
                    kind = None if pa.types.is_null(field.type) else plain(field.type)
                    kinds[field.name] = kind if kinds.get(field.name) is None else _held(kinds[field.name], kind)
        except UnknownType as error:
            raise SchemaUnusable(file.path, str(error)) from error
        except (OSError, ValueError, EOFError, pa.ArrowException):
            # A damaged file is refused when it is its turn, whole and with its reason.
            continue
    return _schema({name: kind or pa.string() for name, kind in kinds.items()}, files, {})


def _held(one: pa.DataType | None, other: pa.DataType | None) -> pa.DataType:
    return holds(one, other) if one is not None and other is not None else one or other or pa.string()


def _schema(own: Mapping[str, pa.DataType], files: Sequence[SourceFile], said: Mapping[str, pa.DataType]) -> Schema:
    partition = {name: said.get(name) or _of_folder(files, name) for name in files[0].partition}
    fields = {**{name: kind for name, kind in own.items() if name not in partition}, **partition}
    if not fields.keys() - partition.keys():
        raise SchemaUnusable("The source", "no column was found in it")
    folded = [name.lower() for name in fields]
    if len(set(folded)) < len(folded):
        twice = sorted({name for name in fields if folded.count(name.lower()) > 1})
        raise SchemaUnusable("The source", f"columns differ only in case: {', '.join(twice)}")
    return Schema(pa.schema(list(fields.items())), tuple(partition))


def _of_folder(files: Sequence[SourceFile], name: str) -> pa.DataType:
    values = {value for file in files if (value := file.partition[name]) is not None}
    if values and all(_is_number(value) for value in values):
        return pa.int64()
    return pa.date32() if values and all(_is_day(value) for value in values) else pa.string()


def _is_number(value: str) -> bool:
    """Whether a number is written so that it is written the same again: `007` is a name."""
    digits = value.removeprefix("-")
    return digits.isascii() and digits.isdigit() and str(int(value)) == value and len(digits) < 19


def _is_day(value: str) -> bool:
    try:
        return date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False


def _in_parquet(place: str, file: SourceFile) -> Iterator[pa.Schema]:  # noqa: ARG001
    filesystem, path = log.opened(place)
    with filesystem.open_input_file(path) as opened:
        yield pq.read_schema(opened)


def _in_orc(place: str, file: SourceFile) -> Iterator[pa.Schema]:  # noqa: ARG001
    filesystem, path = log.opened(place)
    with filesystem.open_input_file(path) as opened:
        yield paorc.ORCFile(opened).schema


def _in_csv(place: str, file: SourceFile) -> Iterator[pa.Schema]:
    read = records(lines(place, file))
    first = next(read, None)
    if first is None:
        return
    names, delimiter = header(first.value)
    yield pa.schema([pa.field(name, pa.null()) for name in names])

    def accept(block: Sequence[Record]) -> pa.Table:
        return csv_of(block, names, delimiter, None)

    yield from (part.schema for part in sifted(_sample(read), accept)[0])


def _in_json(place: str, file: SourceFile) -> Iterator[pa.Schema]:
    def accept(block: Sequence[Record]) -> pa.Table:
        return json_of(block, pajson.ParseOptions())

    read = (record for record in lines(place, file) if record.value.strip())
    yield from (_with_times(part) for part in sifted(_sample(read), accept)[0])


def _with_times(part: pa.Table) -> pa.Schema:
    """Columns of a part; those of text that holds nothing but times as times.

    Arrow takes times with fractions of a second for text in JSON, but not in CSV.
    """
    return pa.schema([pa.field(name, _kind_of(part.column(name))) for name in part.column_names])


def _kind_of(column: pa.ChunkedArray) -> pa.DataType:
    if not pa.types.is_string(column.type) or column.null_count == len(column):
        return column.type
    for kind in (TIMESTAMP, pa.timestamp("us")):
        try:
            column.cast(kind)
        except pa.ArrowInvalid:
            continue
        return TIMESTAMP
    return column.type


def _in_text(place: str, file: SourceFile) -> Iterator[pa.Schema]:  # noqa: ARG001
    yield pa.schema([pa.field(TEXT, pa.string())])


def _sample(read: Iterator[Record]) -> list[Record]:
    return [record for record in islice(read, SAMPLE) if record.broken is None]


_FINDERS = {"parquet": _in_parquet, "orc": _in_orc, "csv": _in_csv, "jsonl": _in_json, "text": _in_text}
