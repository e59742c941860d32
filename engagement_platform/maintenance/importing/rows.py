"""The columns of an old store, and its lines and rows as these columns, with a reason where one does not fit."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date
from functools import reduce
from operator import or_
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegralType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from engagement_platform.maintenance.importing.files import ImportRefused, Shape, Source, SourceFile
from engagement_platform.maintenance.importing.texts import says_the_same
from engagement_platform.maintenance.layout.files import NULL_PARTITION

PATH, VALUE, REASON = "__path", "__value", "__reason"
STRICT = {"spark.sql.json.enablePartialResults": "false"}
"""Configuration under which `read` has to be computed: a value that does not fit makes the whole of its JSON null."""

_TEXT = "value"
_SAMPLE = 200
"""Files that are read, at most, to find the columns; spread over all of them."""
_MORE_DIGITS = r"[\d.]{16,}"
"""Found in each JSON that has a number of more than 15 digits."""
_EMPTY, _CORRUPT = "\x1a", "__corrupt"
_GLOB = re.compile(r"([\\{}\[\]*?])")
_NOT_IN_NAMES = re.compile(r"[ ,;{}()\n\t=.`]")


def declared(path: Path, source: Source) -> StructType:
    """Columns from a JSON object of names and types. Needs a session. Raises ImportRefused."""
    try:
        columns = {name: DataType.fromDDL(kind) for name, kind in json.loads(path.read_text(encoding="utf-8")).items()}
    except Exception as error:
        why = f'no JSON object of names and types of columns, such as {{"id": "long"}} ({str(error)[:200]})'
        raise ImportRefused(str(path), why) from error
    return _schema(columns, {name: columns.get(name, StringType()) for name in source.files[0].partition})


def inferred(spark: SparkSession, source: Source) -> StructType:
    """What Spark's readers find in up to 200 files; a column of several types gets one that holds them all.

    Raises ImportRefused.
    """
    columns: dict[str, DataType] = {}
    step = -(-len(source.files) // _SAMPLE)
    folders = {name: _folder_type(source, name) for name in source.files[0].partition}
    for shape, files in Source(source.folder, source.files[::step]).shapes.items():
        loaded = _loaded(spark, shape, _paths(source, files), infer=True)
        # Spark gives other names to columns that have none, or one that differs in its case only.
        for field in (loaded.toDF(*shape.names) if shape.format == "csv" else loaded).schema:
            if field.name != "_corrupt_record":
                columns[field.name] = _common(columns.get(field.name, NullType()), field.dataType)
    return _schema(columns, folders)


def _loaded(spark: SparkSession, shape: Shape, paths: list[str], *, infer: bool = False) -> DataFrame:
    """Lines as `value`, or the columns of Parquet and ORC; infer: the columns of CSV and JSON lines, too."""
    if shape.format in ("parquet", "orc"):
        return spark.read.format(shape.format).load(paths)
    if infer and shape.format == "csv":
        options = {"header": "true", "inferSchema": "true", "escape": '"', "nullValue": "\\N", "sep": shape.separator}
        return spark.read.options(**options).csv(paths)
    if infer and shape.format == "jsonl":
        return spark.read.option("inferTimestamp", "true").json(paths)
    return spark.read.text(paths)


def _paths(source: Source, files: Sequence[SourceFile]) -> list[str]:
    """As Spark takes them, to which some characters stand for others."""
    return [_GLOB.sub(r"\\\1", f"{source.folder}/{file.path}") for file in files]


def _folder_type(source: Source, name: str) -> DataType:
    """Whole numbers and days when each is written the same way again: `007` is a text."""
    values = {value for file in source.files if (value := file.partition[name]) is not None}
    for parsed, kind in ((int, LongType()), (date.fromisoformat, DateType())):
        with suppress(ValueError):
            if values and all(str(parsed(value)) == value for value in values):
                return kind
    return StringType()


def _common(one: DataType, other: DataType) -> DataType:
    """A type that holds the values of both; text where they are of different kinds.

    Whole numbers are long: digits that fit into 32 bits in these files need not do so in others.
    """
    one, other = _wide(one), _wide(other)
    if NullType() in (one, other) or one == other:
        return other if isinstance(one, NullType) else one
    if {type(one), type(other)} <= {LongType, DoubleType}:
        return DoubleType()
    return TimestampType() if {type(one), type(other)} == {DateType, TimestampType} else StringType()


def _wide(kind: DataType) -> DataType:
    if isinstance(kind, IntegralType):
        return LongType()
    if isinstance(kind, FloatType):
        return DoubleType()
    # Times without a zone are taken to be in UTC.
    return TimestampType() if isinstance(kind, TimestampNTZType) else kind


def _schema(columns: Mapping[str, DataType], folders: Mapping[str, DataType]) -> StructType:
    fields = {**{name: kind for name, kind in columns.items() if name not in folders}, **folders}
    if not fields.keys() - folders.keys():
        raise ImportRefused("The source", "no column was found in its files; declare them by `--schema`")
    odd = [name for name in fields if _NOT_IN_NAMES.search(name)]
    if odd or len({name.lower() for name in fields}) < len(fields):
        why = f"{odd[0]!r} is no name of a column of a Delta table" if odd else "two columns differ only in case"
        raise ImportRefused("The source", f"{why}; declare the columns by `--schema`")
    kinds = {name: StringType() if isinstance(kind, NullType) else kind for name, kind in fields.items()}
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


def read(spark: SparkSession, source: Source, schema: StructType) -> DataFrame:
    """All lines and rows of the source, each once.

    Out: the schema's columns; PATH, relative to the source's folder; REASON, null where every value fits; VALUE, the
    line where one does not, a row of Parquet and ORC as JSON. A column that a file lacks is null.
    """
    return reduce(
        DataFrame.unionAll, (_parsed(spark, source, shape, files, schema) for shape, files in source.shapes.items())
    )


def _parsed(
    spark: SparkSession, source: Source, shape: Shape, files: Sequence[SourceFile], schema: StructType
) -> DataFrame:
    folders = list(files[0].partition)
    # The path of a file is a URI here.
    path = F.url_decode(F.replace("_metadata.file_path", F.lit("+"), F.lit("%2B")))
    rows = _loaded(spark, shape, _paths(source, files))
    kinds = {name: kind for name, kind in rows.dtypes if name not in folders}
    there = {name: F.col("`" + name.replace("`", "``") + "`") for name in kinds}
    within = F.substring(path, F.locate(f"{source.folder}/", path) + len(source.folder) + 1, F.length(path))
    rows = rows.select("*", within.alias(PATH))
    refusals: list[Column] = []
    if shape.format in ("parquet", "orc"):
        value = F.to_json(F.struct(*there.values()), {"ignoreNullFields": "false"}).cast("binary")
    else:
        kinds = {}
        value = F.col(_TEXT).cast("binary")
        refusals.append(F.when(~F.is_valid_utf8(_TEXT), "it is no UTF-8"))
        if shape.format != "text":
            wanted = [field.name for field in schema if field.name not in folders]
            rows, there, more = (_of_json if shape.format == "jsonl" else _of_csv)(rows, shape, wanted)
            refusals += more
    # In whatever case, as Delta has its columns: one that a file spells otherwise would be null.
    found = {name.lower(): (column, kinds.get(name, "string")) for name, column in there.items()}
    found |= {name.lower(): (_of_folder(name), "string") for name in folders}
    fitted = []
    for field in schema:
        column, kind = found.get(field.name.lower(), (F.lit(None).cast(field.dataType), field.dataType.simpleString()))
        fits, differs = _cast(column, kind, field.dataType)
        refusals.append(F.when(differs, f"{field.name} is no {field.dataType.simpleString()}"))
        fitted.append(fits.alias(field.name))
    reason = F.coalesce(*refusals)
    return rows.select(*fitted, PATH, F.when(reason.isNotNull(), value).alias(VALUE), reason.alias(REASON))


def _of_folder(name: str) -> Column:
    text = F.regexp_extract(PATH, f"(?s)^(?:.*/)?{re.escape(name)}=([^/]*)/", 1)
    plain = F.coalesce(F.try_url_decode(F.replace(text, F.lit("+"), F.lit("%2B"))), text)
    return F.when(text != NULL_PARTITION, plain)


_Parsed = tuple[DataFrame, dict[str, Column], list[Column]]
"""Lines that are records, the text of each column in them, and why a line as a whole is refused."""


def _of_json(lines: DataFrame, _shape: Shape, wanted: Sequence[str]) -> _Parsed:
    fields = ", ".join(f"`{name}`: string" for name in wanted)
    # Between brackets, since from_json does not look at what follows an object.
    listed = F.concat(F.lit("["), _TEXT, F.lit("]"))
    records = F.from_json(listed, f"array<struct<{fields}>>", {"allowSingleQuotes": "false"})
    lines = lines.where(F.trim(_TEXT) != "").withColumn("records", records)
    first = F.get("records", F.lit(0))
    refused = F.when((F.coalesce(F.size("records"), F.lit(0)) != 1) | first.isNull(), "it is not one JSON object")
    return lines, {name: _with_all_digits(first[name], name) for name in wanted}, [refused]


def _with_all_digits(text: Column, name: str) -> Column:
    """The text of a field with as many digits as its number has: from_json takes fractions for doubles, which give back
    15. Lines without a longer one are not parsed again."""
    quote = "'" if '"' in name else '"'
    exact = F.try_variant_get(F.try_parse_json(_TEXT), f"$[{quote}{name}{quote}]", "string")
    is_long = F.col(_TEXT).rlike(_MORE_DIGITS) & ~text.rlike(r"^-?\d+$")
    return F.when(is_long, F.coalesce(exact, text)).otherwise(text)


def _of_csv(lines: DataFrame, shape: Shape, wanted: Sequence[str]) -> _Parsed:
    options = {
        "sep": shape.separator, "escape": '"', "nullValue": "\\N", "emptyValue": _EMPTY, "maxCharsPerColumn": "-1",
        "columnNameOfCorruptRecord": _CORRUPT,
    }  # fmt: skip
    columns = ", ".join(f"`{name.replace('`', '``')}` string" for name in (*shape.names, _CORRUPT))
    # Files that were put together have a header in their middle.
    lines = lines.where((F.trim(_TEXT) != "") & (F.col(_TEXT) != shape.header))
    lines = lines.withColumn("record", F.from_csv(_TEXT, columns, options))
    record, known = F.col("record"), {name.lower() for name in wanted}
    texts = {name: record[name] for name in shape.names if name.lower() in known}
    refusals = [
        F.when(
            (F.length(_TEXT) - F.length(F.replace(_TEXT, F.lit('"'), F.lit("")))) % 2 == 1,
            "a quote is not closed on its line",
        ),
        F.when(F.lit(not texts), "the first line of its file names none of the columns"),
        F.when(record[_CORRUPT].isNotNull(), f"it has not {len(shape.names)} fields"),
    ]
    return lines, {name: F.when(text == _EMPTY, "").otherwise(text) for name, text in texts.items()}, refusals


def _cast(column: Column, kind: str, wanted: DataType) -> tuple[Column, Column]:
    """A value of one type in another one, and whether it does not fit without loss."""
    if kind == wanted.simpleString():
        return column, F.lit(False)
    nested = kind.startswith(("struct<", "array<", "map<"))
    text = F.to_json(column) if nested else column
    if isinstance(wanted, StructType | ArrayType | MapType):
        texts = _texts_in(text, _of_texts(wanted).simpleString())
        fits, differs = _typed(texts, wanted)
        return fits, column.isNotNull() & (texts.isNull() | differs)
    fits = text.cast(wanted) if isinstance(wanted, BinaryType) else text.try_cast(wanted)
    if nested or kind == "string":
        is_whole = says_the_same(text, fits, wanted)
    elif isinstance(wanted, StringType):
        is_whole = F.is_valid_utf8(fits)
    else:
        is_whole = F.lit(True) if isinstance(wanted, BinaryType) else fits.try_cast(kind).eqNullSafe(column)
    return fits, column.isNotNull() & (fits.isNull() | ~is_whole)


def _texts_in(text: Column, kind: str) -> Column:
    """JSON as a nested type of texts, which have all digits of their numbers; null where it is none of that type."""
    texts = F.get(F.from_json(F.concat(F.lit("["), text, F.lit("]")), f"array<{kind}>"), F.lit(0))
    if "binary" in kind:
        return texts
    exact = F.try_variant_get(F.try_parse_json(text), "$", kind)
    return F.when(texts.isNotNull() & text.rlike(_MORE_DIGITS), F.coalesce(exact, texts)).otherwise(texts)


def _of_texts(wanted: DataType) -> DataType:
    """A nested type with texts instead of all plain values, but bytes, which JSON has in Base64."""
    match wanted:
        case StructType(fields=fields):
            return StructType([StructField(field.name, _of_texts(field.dataType)) for field in fields])
        case ArrayType(elementType=element):
            return ArrayType(_of_texts(element))
        case MapType(keyType=key, valueType=value):
            return MapType(key, _of_texts(value))
    return wanted if isinstance(wanted, BinaryType) else StringType()


def _typed(texts: Column, wanted: DataType) -> tuple[Column, Column]:
    """A value of `_of_texts` as the nested type itself, and whether something in it does not fit without loss."""
    match wanted:
        case StructType(fields=fields):
            parts = {field.name: _typed(texts[field.name], field.dataType) for field in fields}
            whole = F.struct(*(fits.alias(name) for name, (fits, _) in parts.items()))
            return F.when(texts.isNotNull(), whole), reduce(or_, (differs for _, differs in parts.values()))
        case ArrayType(elementType=element):
            each = F.transform(texts, lambda text: _typed(text, element)[0])
            return each, F.coalesce(F.exists(texts, lambda text: _typed(text, element)[1]), F.lit(False))
        case MapType(valueType=value):
            each = F.transform_values(texts, lambda _key, text: _typed(text, value)[0])
            values = F.map_values(texts)
            return each, F.coalesce(F.exists(values, lambda text: _typed(text, value)[1]), F.lit(False))
    return (texts, F.lit(False)) if isinstance(wanted, BinaryType) else _cast(texts, "string", wanted)
