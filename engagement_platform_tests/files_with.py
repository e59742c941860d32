"""Looking for bytes in files, as a person with a disk editor would, and in what compression hides from that person."""

from __future__ import annotations

import gzip
import stat
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

_CHUNK = 4 * 1024 * 1024


def places_with(folders: Sequence[Path], needles: Sequence[bytes], outside: Sequence[Path] = ()) -> list[Path]:
    """Files below the folders, and paths, in which a needle stands: as it is, unzipped, or as a value of Parquet.

    outside: folders below them that are passed over.
    Reads every file whole, so it takes as long as reading them does. Files that go meanwhile are passed over.
    """
    passed = set(outside)
    paths = (
        path for folder in folders for path in sorted(folder.rglob("*")) if passed.isdisjoint((path, *path.parents))
    )
    return [path for path in paths if _in_name(path, needles) or (path.is_file() and _has(path, needles))]


def open_to_others(folder: Path) -> dict[str, str]:
    """Modes of a folder, and of all below it, that others than the owner may enter, read or write.

    Spark lets everybody execute its copies of jars, which nobody else can read.
    """
    found = {}
    for path in (folder, *folder.rglob("*")):
        with suppress(FileNotFoundError):
            mode = path.lstat().st_mode
            if mode & (0o077 if stat.S_ISDIR(mode) else 0o066) and not stat.S_ISLNK(mode):
                found[str(path.relative_to(folder))] = f"{stat.S_IMODE(mode):o}"
    return found


def _in_name(path: Path, needles: Sequence[bytes]) -> bool:
    return any(needle in path.name.encode("utf-8", "surrogateescape") for needle in needles)


def _has(path: Path, needles: Sequence[bytes]) -> bool:
    try:
        return any(_within(chunks, needles) for chunks in _readings(path))
    except FileNotFoundError:
        return False


def _readings(path: Path) -> Iterator[Iterator[bytes]]:
    yield _raw(path)
    if path.suffix == ".gz":
        yield _unzipped(path)
    if path.suffix == ".parquet":
        yield _values(path)


def _raw(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _unzipped(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path) as file:
            while chunk := file.read(_CHUNK):
                yield chunk
    except (gzip.BadGzipFile, EOFError, zlib.error):
        return  # not what its name says; its raw bytes were looked at


def _values(path: Path) -> Iterator[bytes]:
    try:
        for batch in pq.ParquetFile(path).iter_batches():
            # Buffers hold texts and binaries one after the other, of nested columns too.
            yield from (memoryview(buffer).tobytes() for column in batch.columns for buffer in _buffers(column))
    except pa.ArrowInvalid:
        return


def _buffers(column: pa.Array) -> Iterator[pa.Buffer]:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return (buffer for buffer in column.buffers() if buffer is not None)


def _within(chunks: Iterator[bytes], needles: Sequence[bytes]) -> bool:
    overlap = max(map(len, needles)) - 1
    tail = b""
    for chunk in chunks:
        text = tail + chunk
        if any(needle in text for needle in needles):
            return True
        tail = text[-overlap:] if overlap else b""
    return False
