"""Removes an erased subject from the spool and from the objects of the sink `local`.

Deliveries wait meanwhile (`pii.erasure.erase`). What comes in later is discarded at delivery, by its tombstone.
"""

from __future__ import annotations

import gzip
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from engagement_platform.engine.durable_files import write_durably
from engagement_platform.ingest_server.intake import SpoolSeal
from engagement_platform.ingest_server.sinks import local_folder, objects, packed, unfinished
from engagement_platform.ingest_server.spool import Record, RecordKind, connected, empty, readable, spool_folder, stored
from engagement_platform.pii.erasure import Erasable, Subject, is_event_of, is_named, naming, reported
from engagement_platform.pii.keys import truncate_log
from engagement_platform.pii.sealing import SealBroken
from engagement_platform.pii.vault import open_vault
from engagement_platform.settings import Settings


@dataclass
class SpooledRecords(Erasable):
    """The spool, also while a server fills it."""

    settings: Settings
    name: str = "events in the spool"

    def erase(self, subject: Subject) -> int:
        """Empty the subject's records where they are, and overwrite their bytes; how many.

        Raises SpoolDamaged, SealBroken, after it emptied what can be read.
        """
        if not self._path.exists():
            return 0
        found: list[tuple[int, Record]] = []
        with closing(connected(self._path)) as connection, readable(self._path):
            try:
                for each in self._found(connection, subject):
                    found.append(each)
            finally:
                empty(connection, found)
                truncate_log(connection)
        return len(found)

    def left(self, subject: Subject) -> int:
        """How many records of the subject wait. Raises SpoolDamaged, SealBroken."""
        if not self._path.exists():
            return 0
        with closing(connected(self._path)) as connection:
            return sum(1 for _ in self._found(connection, subject))

    @property
    def _path(self) -> Path:
        return spool_folder(self.settings) / "spool.db"

    def _found(self, connection: sqlite3.Connection, subject: Subject) -> Iterator[tuple[int, Record]]:
        if (named := connection.execute("SELECT id FROM spool").fetchone()) is None:
            return
        seal = SpoolSeal(open_vault(self.settings).keyring.secret("spool"), named[0])
        broken: SealBroken | None = None
        for place, record in stored(self._path, connection):
            try:
                if record.open and subject.game in (None, record.game) and _is_of(record, seal, subject):
                    yield place, record
            except SealBroken as error:
                broken = error
        if broken is not None:
            raise broken


@dataclass
class StoredObjects(Erasable):
    """The objects of the sink `local`, whichever sink is used now. Those in S3 are `pipelines.games.raw_objects`."""

    settings: Settings
    name: str = "objects of raw events"
    stays: list[str] = field(default_factory=list)

    def erase(self, subject: Subject) -> int:
        """Write objects anew without the subject's events; one without any event left is removed.

        So is what a killed delivery left of an object; its segment is delivered again. Where one is under way
        nevertheless, as on an object store, where no lock is, it fails once and is tried again.
        """
        gone = 0
        for path in unfinished(local_folder(self.settings)):
            path.unlink(missing_ok=True)
        for path, mine, kept in self._with(subject):
            gone += mine
            if kept:
                write_durably(path, packed(kept))
            else:
                path.unlink()
        return gone

    def left(self, subject: Subject) -> int:
        """How many events of the subject there are; one more for each object that is damaged."""
        return sum(mine for _, mine, _ in self._with(subject)) + len(self.stays)

    def _with(self, subject: Subject) -> Iterator[tuple[Path, int, list[bytes]]]:
        """Objects with events of the subject, how many those are, and the lines of others."""
        is_of = is_event_of(subject, self.settings)
        self.stays.clear()
        for path in objects(local_folder(self.settings)):
            lines = kept = list[bytes]()
            with reported(str(path), self.stays):
                read = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
                lines, kept = read, [line for line in read if not is_of(line)]
            if len(kept) < len(lines):
                yield path, len(lines) - len(kept), kept


def _is_of(record: Record, seal: SpoolSeal, subject: Subject) -> bool:
    if record.ref or record.kind is not RecordKind.REFUSED:
        return record.ref == subject.ref
    # Refused without a subject that could be read: in the vault, too, it is found by its text only.
    return is_named(naming(subject), zlib.decompress(seal.open(record)))
