"""Events of a subject in the objects of the sink `local`, found and taken out. Objects in S3 are not looked into."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from engagement_platform.ingest_server.events import EventRefused, subject_of
from engagement_platform.ingest_server.sinks import local_folder, objects, packed
from engagement_platform.ingest_server.spool import write_durably
from engagement_platform.pii.declared import EVERY_TYPE, parts
from engagement_platform.pii.erasure import Erasable, Subject
from engagement_platform.settings import Settings


@dataclass
class StoredObjects(Erasable):
    """The objects below a folder. subject: steps to whom an event is about."""

    folder: Path
    subject: Sequence[str]
    name: str = "objects of raw events"

    def erase(self, subject: Subject) -> int:
        """Write objects anew without the subject's events; one without any event left is removed."""
        gone = 0
        for path, mine, kept in self._with(subject):
            gone += len(mine)
            if kept:
                write_durably(path, packed(kept))
            else:
                path.unlink()
        return gone

    def left(self, subject: Subject) -> int:
        """How many events of the subject there are."""
        return sum(len(mine) for _, mine, _ in self._with(subject))

    def _with(self, subject: Subject) -> Iterator[tuple[Path, list[bytes], list[bytes]]]:
        for path in objects(self.folder):
            lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
            of_subject = [self._is_of(line, subject) for line in lines]
            if any(of_subject):
                mine = [line for line, is_of in zip(lines, of_subject, strict=True) if is_of]
                yield path, mine, [line for line, is_of in zip(lines, of_subject, strict=True) if not is_of]

    def _is_of(self, line: bytes, subject: Subject) -> bool:
        # Most lines have nothing of the id in them and need not be parsed; one that escapes characters does.
        if subject.id.encode("utf-8", "surrogatepass") not in line and b"\\" not in line:
            return False
        event = json.loads(line)
        try:
            found = subject_of(event, tuple(self.subject))
        except EventRefused:
            return False
        return found == subject.id and subject.game in (None, event.get("game_id"))


def stored_objects(settings: Settings) -> list[StoredObjects]:
    """What an erasure has to look into: the folder of the sink `local`, whichever sink is used now."""
    return [StoredObjects(local_folder(settings), parts(settings.pii.subject, EVERY_TYPE))]
