"""Records of an erased subject that wait in the spool, emptied where they lie: nobody knows how long the sink is away.

What is delivered later is asked for tombstones by `delivery`; this is for the bytes on the disk.
"""

from __future__ import annotations

import fcntl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from engagement_platform.ingest_server.intake import SpoolSeal
from engagement_platform.ingest_server.records import Record, RecordKind, encode
from engagement_platform.ingest_server.spool import Segment, finish_segment, segment_of, write_durably
from engagement_platform.pii.erasure import Erasable, Former, Subject, naming
from engagement_platform.pii.vault import open_vault
from engagement_platform.settings import Settings

_SLACK = timedelta(minutes=1)


def spool_folder(settings: Settings) -> Path:
    """Where the server of these settings keeps events until they are delivered."""
    return (settings.ingest_server.spool or settings.home / "ingest" / "spool").expanduser().absolute()


@dataclass
class SpooledRecords(Erasable):
    """The segments of one spool. Only while deliveries wait: `pii.erasure.erase` sees to that."""

    settings: Settings
    name: str = "events in the spool"

    def erase(self, subject: Subject) -> int:
        """Empty the subject's records in sealed segments, each in its place; how many.

        The segment that a running server writes stays as it is; `keeps` says how long. Raises SpoolDamaged.
        """
        _seal_what_a_crash_left(self._folder)
        found = self._found(subject)
        for segment, records, mine in found:
            kept = (emptied(one) if gone else one for gone, one in zip(mine, records, strict=True))
            header = segment.path.read_bytes()[: segment.first]
            write_durably(segment.path, header + b"".join(map(encode, kept)))
        return sum(sum(mine) for _, _, mine in found)

    def left(self, subject: Subject) -> int:
        """How many records of the subject there are in sealed segments. Raises SpoolDamaged."""
        return sum(sum(mine) for _, _, mine in self._found(subject))

    def keeps(self) -> Mapping[Former, timedelta]:
        """As long as a server writes one segment: then it is delivered without the subject, or emptied by the next."""
        written = any(self._folder.glob("*.open"))
        return {Former.FILES: self.settings.ingest_server.segment_age + _SLACK} if written else {}

    def former(self, path: Path) -> Former | None:
        """A segment, whether it is written still or waits."""
        ours = path.parent == self._folder and path.suffix in (".open", ".sealed")
        return Former.FILES if ours else None

    @property
    def _folder(self) -> Path:
        return spool_folder(self.settings)

    def _found(self, subject: Subject) -> list[tuple[Segment, list[Record], list[bool]]]:
        """Sealed segments with records of the subject, their records, and which those are."""
        found = []
        for path in sorted(self._folder.glob("*.sealed")):
            segment = segment_of(path)
            records = list(segment.records())
            mine = [self._is_of(record, segment, subject) for record in records]
            if any(mine):
                found.append((segment, records, mine))
        return found

    def _is_of(self, record: Record, segment: Segment, subject: Subject) -> bool:
        if not record.open or subject.game not in (None, record.game):
            return False
        if record.ref or record.kind is not RecordKind.REFUSED:
            return record.ref == subject.ref
        # Refused without a subject that could be read: in the vault, too, it is found by its words only.
        seal = SpoolSeal(open_vault(self.settings).keyring.secret("spool"), segment.spool)
        return naming(subject).search(seal.open(record)) is not None


def emptied(record: Record) -> Record:
    """As long as before and in its place, with nothing in it: sizes of segments and places of records stay true."""
    length = len(bytes.fromhex(record.ref)) + len(record.open) + len(record.sealed)
    return replace(record, ref="", open=b"", sealed=bytes(length))


def _seal_what_a_crash_left(folder: Path) -> None:
    """Seal the segment of a server that is gone; where one runs, nothing is done."""
    if not any(folder.glob("*.open")):
        return
    with (folder / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        for path in sorted(folder.glob("*.open")):
            finish_segment(path)
