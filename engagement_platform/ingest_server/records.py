"""What one record of the spool looks like in bytes, and finding whole records in a file that may end in the middle.

Bytes only. Files are `spool`; what is in a record is `intake`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from zlib import crc32

_FRAME = struct.Struct("<II")
_HEAD = struct.Struct("<cBBII")
_LARGEST = 256 * 1024 * 1024


class RecordKind(StrEnum):
    """What became of an event."""

    ACCEPTED = "E"
    REFUSED = "R"


@dataclass(frozen=True)
class Record:
    """One event in the spool."""

    kind: RecordKind
    game: str
    ref: str
    """Reference of its subject, 64 hexadecimal digits; empty when it has none."""
    hour: int
    """Hours since 1970 when it came, by which the key of `sealed` is found."""
    open: bytes
    """Accepted: the line for the object. Refused: JSON with reason_code, reason, received_ts."""
    sealed: bytes
    """Encrypted. Accepted: its personal data, or nothing. Refused: the event."""


def encode(record: Record) -> bytes:
    """A record with its length and checksum."""
    ref, game = bytes.fromhex(record.ref), record.game.encode()
    head = _HEAD.pack(record.kind.value.encode(), len(ref), len(game), record.hour, len(record.open))
    payload = b"".join((head, ref, game, record.open, record.sealed))
    return _FRAME.pack(len(payload), crc32(payload)) + payload


def decode(content: bytes, start: int) -> Iterator[tuple[Record, int]]:
    """Whole records from a place on, each with the place where it ends; stops at the first that is not whole."""
    while len(content) - start >= _FRAME.size:
        length, checksum = _FRAME.unpack_from(content, start)
        begin, end = start + _FRAME.size, start + _FRAME.size + length
        if not _HEAD.size <= length <= _LARGEST or end > len(content) or crc32(content[begin:end]) != checksum:
            return
        kind, ref_length, game_length, hour, open_length = _HEAD.unpack_from(content, begin)
        places = [begin + _HEAD.size]
        for part in (ref_length, game_length, open_length):
            places.append(places[-1] + part)
        ref, game, said = (content[a:b] for a, b in pairwise(places))
        yield Record(RecordKind(kind.decode()), game.decode(), ref.hex(), hour, said, content[places[3] : end]), end
        start = end
