"""The files of an old store: format and compression by their names, columns by the names of their folders."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.orc as paorc
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from engagement_platform.errors import PlatformError
from engagement_platform.lake import log
from engagement_platform.maintenance.layout.files import NULL_PARTITION

FORMATS = ("parquet", "orc", "csv", "jsonl", "text")

_FORMAT_OF = {
    "parquet": "parquet", "parq": "parquet", "orc": "orc", "csv": "csv", "tsv": "csv", "json": "jsonl",
    "jsonl": "jsonl", "ndjson": "jsonl", "txt": "text", "text": "text", "log": "text",
}  # fmt: skip
_CODECS = {"gz": "gzip", "bz2": "bz2"}
_SEPARATORS = (",", "\t", ";", "|")
_OPENED_AT_ONCE = 16
"""Files that are opened at the same time: a small object is all waiting for its answer (a guess)."""
_LONGEST_HEADER = 1024 * 1024
_CHUNK = 1024 * 1024


class ImportRefused(PlatformError):
    """The source, the declared columns or the table do not allow the import."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what} cannot be imported: {why}. Nothing was written.")


@dataclass(frozen=True)
class SourceFile:
    """One file. path: relative to the folder of the source; codec: how the whole file is compressed."""

    path: str
    bytes: int
    modified_ns: int
    format: str
    codec: str | None

    @property
    def partition(self) -> dict[str, str | None]:
        """The columns that Hive's folders name, such as `day=2026-11-01`, with their values."""
        parts = [part.partition("=") for part in self.path.split("/")[:-1] if "=" in part]
        values = {unquote(name): unquote(value) for name, _, value in parts}
        return {name: None if value == NULL_PARTITION else value for name, value in values.items()}


@dataclass(frozen=True)
class Shape:
    """What one reader of Spark needs to know of the files that it takes.

    header: the first line of CSV. schema: of Parquet and ORC, as text.
    """

    format: str
    header: str = ""
    schema: str = ""

    @property
    def separator(self) -> str:
        """The one that occurs most often in the header."""
        return max(_SEPARATORS, key=self.header.count)

    @property
    def names(self) -> list[str]:
        """Columns of CSV; one without a name is called by its place, as `_c3`."""
        names = next(csv.reader([self.header], delimiter=self.separator), [])
        return [name or f"_c{place}" for place, name in enumerate(names)]


@dataclass(frozen=True)
class Source:
    """An old store. folder: an absolute path or a URI, to which the paths of the files are relative."""

    folder: str
    files: Sequence[SourceFile]

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def digest(self) -> str:
        """Of the names, sizes and times of all files: another one when a file was changed, added or removed."""
        return hashlib.sha256(repr((self.folder, self.files)).encode()).hexdigest()[:16]

    @cached_property
    def shapes(self) -> Mapping[Shape, Sequence[SourceFile]]:
        """The files by shape. Opens each for its first line or its footer. Raises ImportRefused for a damaged one."""
        shapes: dict[Shape, list[SourceFile]] = {}
        with ThreadPoolExecutor(_OPENED_AT_ONCE) as threads:
            for file, shape in zip(self.files, threads.map(partial(_shape, self.folder), self.files), strict=True):
                shapes.setdefault(shape, []).append(file)
        return shapes


def find(place: str, declared_format: str | None = None) -> Source:
    """All files at a path or URI but empty ones and those whose names begin with a dot or an underscore.

    Raises ImportRefused.
    """
    root = place.rstrip("/") if "://" in place else str(Path(place).expanduser().absolute())
    filesystem, base = log.opened(root)
    try:
        at = filesystem.get_file_info(base)
        if at.type == pafs.FileType.NotFound:
            raise ImportRefused(root, "there is no such file or folder")
        infos = [at]
        if at.type == pafs.FileType.Directory:
            infos = filesystem.get_file_info(pafs.FileSelector(base, recursive=True))
        else:
            root, base = root.rpartition("/")[0], base.rpartition("/")[0]
    except OSError as error:
        raise ImportRefused(root, f"it cannot be listed ({error})") from error
    if any("/_delta_log/" in info.path for info in infos):
        raise ImportRefused(root, "it is a Delta table already")
    files = []
    for info in sorted(infos, key=lambda info: str(info.path)):
        path = info.path[len(base) :].lstrip("/")
        if info.type == pafs.FileType.File and info.size and not any(map(_hidden, path.split("/"))):
            files.append(SourceFile(path, int(info.size), int(info.mtime_ns or 0), *_kind(path, declared_format)))
    if not files:
        raise ImportRefused(root, "it has no files, or only empty ones")
    for file in files:
        if list(file.partition) != list(files[0].partition):
            why = f"{files[0].path} and {file.path} are in folders of different columns; import them one by one"
            raise ImportRefused(root, why)
    return Source(root, files)


def _hidden(name: str) -> bool:
    """Hive's folders such as `_day=1` are not."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


def _kind(path: str, declared_format: str | None) -> tuple[str, str | None]:
    suffixes = ["", "", *path.rpartition("/")[2].lower().split(".")[1:]]
    codec = _CODECS.get(suffixes[-1])
    kind = declared_format or _FORMAT_OF.get(suffixes[-1 if codec is None else -2])
    if kind is None or (codec is not None and kind in ("parquet", "orc")):
        raise ImportRefused(
            path,
            f"its name ends like no file of {', '.join(FORMATS)}, of which the last three may be compressed as a whole "
            "by gzip or bzip2. Name the format of all files by `--format`, or unpack it; Spark writes RCFile as ORC",
        )
    return kind, codec


def _shape(folder: str, file: SourceFile) -> Shape:
    filesystem, path = log.opened(f"{folder}/{file.path}")
    try:
        if file.format == "csv":
            with filesystem.open_input_stream(path, compression=file.codec) as opened:
                line = io.BufferedReader(opened).readline(_LONGEST_HEADER)
            shape = Shape(file.format, header=line.decode("utf-8-sig").rstrip("\r\n"))
            if not shape.header.strip():
                raise ImportRefused(file.path, "its first line is blank, and has to name the columns; remove that line")
            if len({name.lower() for name in shape.names}) < len(shape.names):
                why = f"its first line names a column twice, or in two cases only: {shape.header[:200]!r}; rename one"
                raise ImportRefused(file.path, why)
            return shape
        if file.format in ("parquet", "orc"):
            with filesystem.open_input_file(path) as opened:
                schema = pq.read_schema(opened) if file.format == "parquet" else paorc.ORCFile(opened).schema
            return Shape(file.format, schema=str(schema.remove_metadata()))
        return Shape(file.format)
    except (OSError, ValueError, csv.Error, pa.ArrowException) as error:
        raise _unreadable(file, error) from error


@contextmanager
def damage_named(source: Source) -> Iterator[None]:
    """Raise ImportRefused where Spark fails inside and a file cannot be read to its end: Spark does not always name it.

    Then reads the files one after the other.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as failed:
        for file in source.files:
            try:
                _read_through(source.folder, file)
            except (OSError, ValueError, pa.ArrowException) as error:
                raise _unreadable(file, error) from failed
        raise


def _read_through(folder: str, file: SourceFile) -> None:
    filesystem, path = log.opened(f"{folder}/{file.path}")
    if file.format not in ("parquet", "orc"):
        with filesystem.open_input_stream(path, compression=file.codec) as opened:
            while opened.read(_CHUNK):
                pass
        return
    with filesystem.open_input_file(path) as opened:
        if file.format == "parquet":
            for _ in pq.ParquetFile(opened).iter_batches():
                pass
        else:
            found = paorc.ORCFile(opened)
            for stripe in range(found.nstripes):
                found.read_stripe(stripe)


def _unreadable(file: SourceFile, error: Exception) -> ImportRefused:
    return ImportRefused(file.path, f"it cannot be read ({str(error)[:300]}); mend it or move it away")
