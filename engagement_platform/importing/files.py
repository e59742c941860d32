"""The files of an old store: where they are, what format and compression they have, and what their folders say.

Nothing is read of them but names, sizes, and the first bytes of those whose names do not tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pyarrow.fs as pafs

from engagement_platform.errors import PlatformError
from engagement_platform.lake import log

FORMATS = ("parquet", "orc", "csv", "jsonl", "text")
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"

_SUFFIXES = {
    "parquet": ("parquet", "parq"),
    "orc": ("orc",),
    "csv": ("csv", "tsv"),
    "jsonl": ("json", "jsonl", "ndjson"),
    "text": ("txt", "text", "log"),
}
_FORMAT_OF = {suffix: kind for kind, suffixes in _SUFFIXES.items() for suffix in suffixes}
_CODECS = {"gz": "gzip", "bz2": "bz2"}
_ARCHIVES = ("xz", "z", "zip", "7z", "tar", "tgz", "zst", "lz4", "br")
_NOT_READ = frozenset({"snappy", "deflate", "lzo", "lzo_deflate", *_ARCHIVES})
"""Ways to compress a file as a whole, or to pack several, that are not undone here."""
_MAGIC = {b"PAR1": "parquet", b"ORC": "orc"}


class NothingToImport(PlatformError):
    """The source holds no file, or cannot be imported as it is."""

    def __init__(self, source: str, why: str) -> None:
        super().__init__(f"{source} cannot be imported: {why}. Nothing was written.")


class FormatUnknown(PlatformError):
    """A file whose format is not known, or not read here."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is of an unknown format. Files of these formats are imported: {', '.join(FORMATS)}. Say which one "
            "it is (`--format`), or move it away; what else there is, such as RCFile, Spark can write as ORC. Nothing "
            "was written."
        )


class CompressionUnknown(PlatformError):
    """A file that is compressed in a way that is not undone here."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is compressed in a way that is not undone here. Files of CSV, JSON lines and text may be "
            f"compressed as a whole, by {', '.join(sorted(_CODECS.values()))}; Parquet and ORC compress inside. Unpack "
            "it and import it again. Nothing was written."
        )


@dataclass(frozen=True)
class SourceFile:
    """One file. path: relative to the source."""

    path: str
    bytes: int
    modified_ns: int
    format: str
    codec: str | None

    @property
    def partition(self) -> dict[str, str | None]:
        """What its folders say, as Hive writes it: column -> value."""
        parts = [part.partition("=") for part in self.path.split("/")[:-1] if "=" in part]
        values = {unquote(name): unquote(value) for name, _, value in parts}
        return {name: None if value == NO_VALUE else value for name, value in values.items()}


def root_of(source: str) -> str:
    """A source as it is kept: an absolute path or a URI, no slash at its end."""
    return source.rstrip("/") if "://" in source else str(Path(source).expanduser().absolute())


def folder_of(root: str) -> str:
    """What the paths of a source's files are relative to."""
    filesystem, base = log.opened(root)
    return root.rpartition("/")[0] if filesystem.get_file_info(base).type == pafs.FileType.File else root


def found(root: str, declared: str | None = None) -> list[SourceFile]:
    """All files of a source by path. declared: the format of all of them, whatever they are called.

    Names that begin with a dot or an underscore are left out, as other engines do; folders such as `_day=1` are not.

    Raises NothingToImport, FormatUnknown, CompressionUnknown.
    """
    filesystem, base = log.opened(root)
    try:
        at = filesystem.get_file_info(base)
        if at.type == pafs.FileType.NotFound:
            raise NothingToImport(root, "there is no such file or folder")
        if at.type == pafs.FileType.File:
            infos, base = [at], base.rpartition("/")[0]
        else:
            infos = filesystem.get_file_info(pafs.FileSelector(base, recursive=True))
    except OSError as error:
        raise NothingToImport(root, f"it cannot be listed ({error})") from error
    if any("/_delta_log/" in info.path for info in infos):
        raise NothingToImport(root, "it is a Delta table already")
    files = []
    for info in sorted(infos, key=lambda info: str(info.path)):
        path = info.path[len(base) :].lstrip("/")
        if info.type == pafs.FileType.File and info.size and not any(map(_hidden, path.split("/"))):
            kind, codec = _kind(filesystem, info.path, declared)
            files.append(SourceFile(path, int(info.size), int(info.mtime_ns or 0), kind, codec))
    if not files:
        raise NothingToImport(root, "it has no files, or only empty ones")
    first = tuple(files[0].partition)
    for file in files:
        if (other := tuple(file.partition)) != first:
            why = f"its folders differ: {files[0].path} is partitioned by {first}, {file.path} by {other}"
            raise NothingToImport(root, f"{why}; import them one by one")
    return files


def _hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


def _kind(filesystem: pafs.FileSystem, path: str, declared: str | None) -> tuple[str, str | None]:
    """Format and compression of a file."""
    suffixes = ["", "", *path.rpartition("/")[2].lower().split(".")[1:]]
    codec = _CODECS.get(suffixes[-1])
    suffix = suffixes[-1 if codec is None else -2]
    kind = declared or _FORMAT_OF.get(suffix)
    if suffix in _NOT_READ or (codec is not None and kind in ("parquet", "orc")):
        raise CompressionUnknown(path)
    if kind is not None:
        return kind, codec
    with filesystem.open_input_stream(path, compression=None) as opened:
        first = opened.read(4)
    for magic, kind in _MAGIC.items():
        if first.startswith(magic):
            return kind, None
    raise FormatUnknown(path)
