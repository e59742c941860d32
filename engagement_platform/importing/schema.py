"""Which columns an import makes: looked for in the files by Spark, or declared in a JSON file. Nothing is written."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    IntegralType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from engagement_platform.errors import PlatformError
from engagement_platform.importing.files import SourceFile
from engagement_platform.importing.read import TEXT, Shape, look, places, raw, strictly

LOOKED_AT = 200
"""Files that are looked into at most, spread over all of them; what the others have beside that is left out."""

_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,17}")
_NOT_IN_NAMES = re.compile(r"[ ,;{}()\n\t=.`]")


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

    columns: StructType
    partitioned_by: tuple[str, ...]

    def as_json(self) -> str:
        """As `declared` reads it."""
        said = {field.name: field.dataType.simpleString() for field in self.columns}
        return json.dumps(said, indent=2, ensure_ascii=False)


def declared(path: Path, files: Sequence[SourceFile]) -> Schema:
    """From a JSON file. Partition columns that it leaves out are text. Needs a session. Raises SchemaUnusable."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SchemaUnusable(str(path), f"it cannot be read ({error})") from error
    if not isinstance(said, dict) or not said or not all(isinstance(kind, str) for kind in said.values()):
        raise SchemaUnusable(str(path), "it is no object of names and types")
    kinds: dict[str, DataType] = {}
    for name, kind in said.items():
        try:
            kinds[name] = DataType.fromDDL(kind)
        except Exception as error:
            raise SchemaUnusable(str(path), f"{kind!r} is no type of a column") from error
    folders = {name: kinds.get(name, StringType()) for name in files[0].partition}
    return _schema(kinds, folders)


def inferred(spark: SparkSession, root: str, files: Sequence[SourceFile]) -> Schema:
    """What the files say, or look like: for each column the narrowest type that holds all values that were looked at.

    Cost: reads up to LOOKED_AT files. Raises SchemaUnusable.
    """
    kinds: dict[str, DataType] = {}
    folders = {name: _of_folder(files, name) for name in files[0].partition}
    step = max(1, -(-len(files) // LOOKED_AT))
    # A damaged file is refused when it is its turn, whole and with its reason.
    with strictly(spark):
        for shape, some in look(root, files[::step]).shapes.items():
            for field in _looks_like(spark, root, shape, some):
                kinds[field.name] = _held(kinds.get(field.name, NullType()), field.dataType)
    return _schema(kinds, folders)


def _looks_like(spark: SparkSession, root: str, shape: Shape, files: Sequence[SourceFile]) -> StructType:
    if shape.format == "text":
        return StructType([StructField(TEXT, StringType())])
    if shape.format == "csv":
        options = {"header": "true", "inferSchema": "true", "escape": '"', "nullValue": "\\N", "sep": shape.delimiter}
        rows = spark.read.options(**options).csv(places(root, files))
        # Digits that fit into 32 bits in these files need not do so in others.
        wide = (LongType() if isinstance(field.dataType, IntegerType) else field.dataType for field in rows.schema)
        return StructType([StructField(name, kind) for name, kind in zip(rows.schema.names, wide, strict=True)])
    if shape.format == "jsonl":
        rows = spark.read.option("inferTimestamp", "true").json(places(root, files))
    else:
        rows = raw(spark, root, shape, files)
    return StructType([f for f in rows.schema if f.name != "_corrupt_record" and f.name not in files[0].partition])


def _schema(own: Mapping[str, DataType], folders: Mapping[str, DataType]) -> Schema:
    fields = {**{name: kind for name, kind in own.items() if name not in folders}, **folders}
    if not fields.keys() - folders.keys():
        raise SchemaUnusable("The source", "no column was found in it")
    folded = [name.lower() for name in fields]
    if len(set(folded)) < len(folded):
        twice = sorted({name for name in fields if folded.count(name.lower()) > 1})
        raise SchemaUnusable("The source", f"columns differ only in case: {', '.join(twice)}")
    if odd := [name for name in fields if _NOT_IN_NAMES.search(name)]:
        raise SchemaUnusable("The source", f"no column of a table can be called {odd[0]!r}")
    return Schema(StructType([StructField(name, _wide(kind)) for name, kind in fields.items()]), tuple(folders))


def _wide(kind: DataType) -> DataType:
    """Times without a zone are taken to be in UTC, and what says nothing is text."""
    if isinstance(kind, NullType):
        return StringType()
    return TimestampType() if isinstance(kind, TimestampNTZType) else kind


def _held(one: DataType, other: DataType) -> DataType:
    """The narrowest type that holds both; text when nothing else does."""
    if NullType() in (one, other) or one == other:
        return other if isinstance(one, NullType) else one
    one, other = _wide(one), _wide(other)
    if isinstance(one, StructType) and isinstance(other, StructType):
        names = dict.fromkeys([*one.names, *other.names])
        parts = {n: [part[n].dataType if n in part.names else NullType() for part in (one, other)] for n in names}
        return StructType([StructField(name, _held(*pair)) for name, pair in parts.items()])
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        return ArrayType(_held(one.elementType, other.elementType))
    kinds = (one, other)
    if all(isinstance(kind, IntegralType) for kind in kinds):
        return LongType()
    if all(isinstance(kind, IntegralType | FloatType | DoubleType) for kind in kinds):
        return DoubleType()
    return TimestampType() if {type(kind) for kind in kinds} == {DateType, TimestampType} else StringType()


def _of_folder(files: Sequence[SourceFile], name: str) -> DataType:
    """Whole numbers and days where all values are written so that they are written the same again: `007` is a name."""
    values = {value for file in files if (value := file.partition[name]) is not None}
    if values and all(_NUMBER.fullmatch(value) for value in values):
        return LongType()
    return DateType() if values and all(_is_day(value) for value in values) else StringType()


def _is_day(value: str) -> bool:
    try:
        return date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False
