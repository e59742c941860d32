"""Lines of a file as they stand, and records of CSV, which may span lines. Says nothing of what is in them."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from engagement_platform.importing.files import SourceFile
from engagement_platform.lake import log

MOST_BYTES = 16 * 1024 * 1024
"""A longer line is none: it is refused, cut off there."""
MOST_LINES = 1000
"""A quote that is not closed within so many lines was never meant to be one."""

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Record:
    """line: the first of its lines, counted from 1. value: whole, with the line breaks in it, without the last one."""

    line: int
    value: bytes
    broken: str | None = None
    """Why it cannot be a record, whatever is in it."""


def lines(place: str, file: SourceFile) -> Iterator[Record]:
    """All lines of a file at a path or URI, decompressed as they are read.

    Raises OSError or ValueError where the file is damaged.
    """
    filesystem, path = log.opened(place)
    with filesystem.open_input_stream(path, compression=file.codec) as opened:
        stream = io.BufferedReader(opened, 1024 * 1024)
        number = 0
        while value := stream.readline(MOST_BYTES):
            number += 1
            whole = value.endswith(b"\n") or len(value) < MOST_BYTES
            while not whole:
                rest = stream.readline(MOST_BYTES)
                whole = rest.endswith(b"\n") or not rest
                if whole:
                    yield Record(number, value, f"the line is longer than {MOST_BYTES:,} bytes")
                    value = b""
            if value:
                text = value.removesuffix(b"\n").removesuffix(b"\r")
                yield Record(number, text.removeprefix(_BOM) if number == 1 else text)


def records(read: Iterator[Record]) -> Iterator[Record]:
    """Lines put together where a quote is open at the end of one. Blank lines between records are none.

    A line is whole when the quotes up to its end are even in number (RFC 4180 writes a quote within quotes twice).
    """
    waiting = deque[Record]()
    ended = False
    while True:
        taken: list[Record] = []
        quotes = 0
        while not taken or (quotes % 2 and len(taken) < MOST_LINES):
            one = waiting.popleft() if waiting else None if ended else next(read, None)
            if one is None:
                ended = True
                break
            if not taken and not one.value.strip():
                continue
            taken.append(one)
            quotes += one.value.count(b'"')
        if not taken:
            return
        if quotes % 2:
            # The first line is to blame; the others are looked at by themselves.
            yield Record(taken[0].line, taken[0].value, "a quote is not closed")
            waiting.extendleft(reversed(taken[1:]))
        else:
            yield Record(taken[0].line, b"\n".join(one.value for one in taken))
