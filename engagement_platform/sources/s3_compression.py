"""Compression of objects, as the suffix of a key says it: what is in a stream of bytes, and how to write one anew."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import pyarrow as pa

if TYPE_CHECKING:
    from engagement_platform.sources.s3_sqs_options import Compression

_SUFFIXES = {".gz": "gzip", ".gzip": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd", ".zstd": "zstd"}
BROKEN = (EOFError, OSError, zlib.error, lzma.LZMAError, pa.ArrowException)
"""What reading raises where the content is damaged."""


def decompressed(stream: BinaryIO, key: str, compression: Compression = "auto") -> BinaryIO:
    """What is in a stream of bytes; auto: compressed as the suffix of the key says. Reading raises one of BROKEN."""
    match _by_suffix(key) if compression == "auto" else compression:
        case "gzip":
            # Several members in one object are one stream: Firehose and `cat` make such.
            return cast(BinaryIO, gzip.GzipFile(fileobj=stream, mode="rb"))
        case "bz2":
            return cast(BinaryIO, io.BufferedReader(_Streams(stream, bz2.BZ2Decompressor)))
        case "xz":
            return cast(BinaryIO, io.BufferedReader(_Streams(stream, lzma.LZMADecompressor)))
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


class _Streams(io.RawIOBase):
    """Compressed streams, one after the other, as one; NULs may follow each.

    Python's own files take anything else that follows for the end, and what is damaged there would be passed by.
    """

    def __init__(self, source: BinaryIO, begin: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor]) -> None:
        self._source, self._begin, self._stream = source, begin, begin()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            if self._stream.eof:
                rest = self._stream.unused_data.lstrip(b"\0")
                while not rest:
                    if not (content := self._source.read(io.DEFAULT_BUFFER_SIZE)):
                        return 0
                    rest = content.lstrip(b"\0")
                self._stream = self._begin()
            elif not self._stream.needs_input:
                rest = b""
            elif not (rest := self._source.read(io.DEFAULT_BUFFER_SIZE)):
                raise EOFError
            if unpacked := self._stream.decompress(rest, len(buffer)):
                buffer[: len(unpacked)] = unpacked
                return len(unpacked)


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
