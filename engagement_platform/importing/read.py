"""Lines and rows of an old store's files as declared columns, in Spark: each fits, or has a reason why it does not.

Which files there are is `files`, which columns `schema`, and what is written `job`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.orc as paorc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructType

from engagement_platform.importing.files import NO_VALUE, SourceFile
from engagement_platform.lake import log
from engagement_platform.lake.optimize import configured

AT_ONCE = 16
"""Files that are looked into at the same time: a small object is all waiting for its answer (a guess)."""
TEXT = "value"
"""The column of plain text."""
PATH, VALUE, REASON = "__path", "__value", "__reason"

_DELIMITERS = (",", "\t", ";", "|")
_EMPTY, _CORRUPT = "\x1a", "__corrupt"
_BLOCK = 1024 * 1024
_GLOB = re.compile(r"([\\{}\[\]*?])")

# A value that does not fit makes the whole line null, not the value alone.
_STRICT = {"spark.sql.json.enablePartialResults": "false"}


@dataclass(frozen=True)
class Shape:
    """What files have in common that one reader takes. header: first line of CSV. columns: of Parquet and ORC."""

    format: str
    header: str = ""
    columns: str = ""

    @property
    def delimiter(self) -> str:
        """What separates the names in the header."""
        return max(_DELIMITERS, key=self.header.count)

    @property
    def names(self) -> list[str]:
        """Columns of CSV."""
        return next(csv.reader([self.header], delimiter=self.delimiter), [])


@dataclass(frozen=True)
class Looked:
    """Files by their shapes, and why some cannot be read."""

    shapes: Mapping[Shape, Sequence[SourceFile]]
    damaged: Mapping[str, str]
    """Path -> reason."""


@contextmanager
def strictly(spark: SparkSession) -> Iterator[None]:
    """While it lasts, what `read` returns can be computed."""
    with configured(spark, _STRICT):
        yield


def look(root: str, files: Sequence[SourceFile]) -> Looked:
    """Open every file: the first line of CSV, the footers of Parquet and ORC, all of what is compressed as a whole."""
    shapes: dict[Shape, list[SourceFile]] = {}
    damaged: dict[str, str] = {}
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for file, found in zip(files, threads.map(lambda file: _shape(root, file), files), strict=True):
            if isinstance(found, Shape):
                shapes.setdefault(found, []).append(file)
            else:
                damaged[file.path] = f"the file cannot be read: {found}"
    return Looked(shapes, damaged)


def _shape(root: str, file: SourceFile) -> Shape | str:
    filesystem, path = log.opened(f"{root}/{file.path}")
    try:
        if file.format == "parquet":
            with filesystem.open_input_file(path) as opened:
                return Shape(file.format, columns=str(pq.read_schema(opened).remove_metadata()))
        if file.format == "orc":
            with filesystem.open_input_file(path) as opened:
                return Shape(file.format, columns=str(paorc.ORCFile(opened).schema.remove_metadata()))
        with filesystem.open_input_stream(path, compression=file.codec) as opened:
            stream = io.BufferedReader(opened, _BLOCK)
            first = stream.readline(_BLOCK)
            while file.codec is not None and stream.read(_BLOCK):
                pass
        shape = Shape(file.format, header=first.decode("utf-8-sig").rstrip("\r\n") if file.format == "csv" else "")
        twice = len(set(shape.names)) < len(shape.names)
        return f"its first line names a column twice: {shape.header[:200]!r}" if twice else shape
    except (FileNotFoundError, PermissionError):
        raise
    except (OSError, ValueError, EOFError, pa.ArrowException) as error:
        return str(error).split("\n", maxsplit=1)[0][:500] or type(error).__name__


def raw(spark: SparkSession, root: str, shape: Shape, files: Iterable[SourceFile]) -> DataFrame:
    """Files of one shape as they are: lines in `value`, or the columns of Parquet and ORC."""
    paths = places(root, files)
    if shape.format in ("parquet", "orc"):
        return spark.read.format(shape.format).load(paths)
    return spark.read.text(paths)


def places(root: str, files: Iterable[SourceFile]) -> list[str]:
    """Where files are, as Spark takes them: no character stands for others."""
    return [_GLOB.sub(r"\\\1", f"{root}/{file.path}") for file in files]


def read(spark: SparkSession, root: str, looked: Looked, schema: StructType) -> DataFrame:
    """All lines and rows of the files, each once.

    Out: the schema's columns; PATH, relative to the root; REASON, null where every value fits; VALUE, the line where
    one does not. A column that a file lacks is null, one that nobody declared is left out.
    """
    columns = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in schema)
    nothing = spark.createDataFrame([], f"{columns}, {PATH} string, {VALUE} binary, {REASON} string")
    parts = (_parsed(spark, root, shape, files, schema) for shape, files in looked.shapes.items())
    return reduce(DataFrame.unionAll, parts, nothing)


def _parsed(spark: SparkSession, root: str, shape: Shape, files: Sequence[SourceFile], schema: StructType) -> DataFrame:
    # As the file is called: its place is a URI.
    place = F.url_decode(F.replace("_metadata.file_path", F.lit("+"), F.lit("%2B")))
    rows = raw(spark, root, shape, files).select("*", place.alias(PATH))
    folders = list(files[0].partition)
    own = [field for field in schema if field.name not in folders]
    found: dict[str, tuple[Column, DataType]] = {name: (_of_folder(name), StringType()) for name in folders}
    whole: list[Column] = []
    if shape.format in ("parquet", "orc"):
        there = {field.name: field.dataType for field in rows.schema if field.name not in (*folders, PATH)}
        found |= {name: (F.col(name), kind) for name, kind in there.items()}
        value = F.to_json(F.struct(*there), {"ignoreNullFields": "false"}).cast("binary")
    else:
        value = F.col("value").cast("binary")
        whole.append(F.when(~F.expr("is_valid_utf8(value)"), "it is no UTF-8"))
        rows, texts = _of_text(rows, shape, [field.name for field in own], whole)
        found |= {name: (text, StringType()) for name, text in texts.items()}
    fitted, reasons = [], whole
    for field in schema:
        if field.name not in found:
            fitted.append(F.lit(None).cast(field.dataType).alias(field.name))
            continue
        said, kind = found[field.name]
        fits, differs = _fitted(said, kind, field.dataType)
        reasons.append(F.when(differs, f"{field.name} is no {field.dataType.simpleString()}"))
        fitted.append(fits.alias(field.name))
    reason = F.coalesce(*reasons, F.lit(None).cast("string"))
    return rows.select(
        *fitted,
        F.substring(PATH, F.locate(f"{root}/", F.col(PATH)) + len(root) + 1, F.length(PATH)).alias(PATH),
        F.when(reason.isNotNull(), value).alias(VALUE),
        reason.alias(REASON),
    )


def _of_folder(name: str) -> Column:
    """What the folders of a file say of a column, as Hive writes it."""
    said = F.regexp_extract(PATH, f"/{re.escape(name)}=([^/]*)/", 1)
    plain = F.coalesce(F.try_url_decode(F.replace(said, F.lit("+"), F.lit("%2B"))), said)
    return F.when(said != NO_VALUE, plain)


def _of_text(
    lines: DataFrame, shape: Shape, wanted: Sequence[str], whole: list[Column]
) -> tuple[DataFrame, Mapping[str, Column]]:
    """Lines that are records, and the text of each column in them. whole: gets what refuses a line as such."""
    if shape.format == "text":
        return lines, {TEXT: F.col("value")}
    lines = lines.where(F.trim("value") != "")
    if shape.format == "jsonl":
        fields = ", ".join(f"`{name}`: string" for name in wanted)
        # Between brackets, since what follows an object is not looked at.
        one = F.from_json(
            F.concat(F.lit("["), "value", F.lit("]")), f"array<struct<{fields}>>", {"allowSingleQuotes": "false"}
        )
        lines = lines.withColumn("record", one)
        whole.append(F.when(F.coalesce(F.size("record") != 1, F.lit(True)), "it is not one JSON object"))
        first = F.get("record", F.lit(0))
        whole.append(F.when(first.isNull(), "it is not one JSON object"))
        return lines, {name: first[name] for name in wanted}
    quotes = F.length("value") - F.length(F.replace("value", F.lit('"'), F.lit("")))
    whole.append(F.when(quotes % 2 == 1, "a quote is not closed on its line"))
    if not set(shape.names) & set(wanted):
        whole.append(F.lit("the first line of its file names none of the columns"))
    options = {
        "sep": shape.delimiter, "escape": '"', "nullValue": "\\N", "emptyValue": _EMPTY, "maxCharsPerColumn": "-1",
        "columnNameOfCorruptRecord": _CORRUPT,
    }  # fmt: skip
    declared = ", ".join(f"`{name}` string" for name in (*shape.names, _CORRUPT))
    # A header is no record, also where files were put together.
    lines = lines.where(F.col("value") != shape.header).withColumn("record", F.from_csv("value", declared, options))
    whole.append(F.when(F.col(f"record.{_CORRUPT}").isNotNull(), f"it has not {len(shape.names)} fields"))
    record = F.col("record")
    return lines, {
        name: F.when(record[name] == _EMPTY, "").otherwise(record[name]) for name in shape.names if name in wanted
    }


def _fitted(said: Column, kind: DataType, wanted: DataType) -> tuple[Column, Column]:
    """A value in the wanted type, and whether it does not fit."""
    if kind.simpleString() == wanted.simpleString():
        return said, F.lit(False)
    if isinstance(wanted, StructType | ArrayType | MapType):
        text = said if isinstance(kind, StringType) else F.to_json(said)
        listed = F.from_json(F.concat(F.lit("["), text, F.lit("]")), f"array<{wanted.simpleString()}>")
        fits = F.get(listed, F.lit(0))
    elif isinstance(kind, StructType | ArrayType | MapType):
        fits = F.to_json(said).try_cast(wanted)
    else:
        fits = said.cast(wanted) if isinstance(wanted, BinaryType) else said.try_cast(wanted)
        if not isinstance(kind, StringType | BinaryType):
            # Nothing is cut off on the way, as a fraction of a whole number would be.
            return fits, said.isNotNull() & ~fits.try_cast(kind).eqNullSafe(said)
    return fits, said.isNotNull() & fits.isNull()
