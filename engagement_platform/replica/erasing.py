"""Takes an erased person out of the replica's file, with the bytes that DuckDB keeps of removed rows."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from engagement_platform.erasing.found import Whom
from engagement_platform.pii.erasure import Erasable, Subject
from engagement_platform.pipelines.engagements.schema import CURRENT_ROW
from engagement_platform.replica.file import beside, opened, state
from engagement_platform.replica.refresh import place_of, refresh
from engagement_platform.settings import Settings

_PERSON = ("person_id", "source_person_id")
assert set(_PERSON) <= set(CURRENT_ROW.names)


@dataclass
class ReplicaFile(Erasable):
    """The replica of the settings; others drop the rows when they follow next."""

    settings: Settings
    whom: Whom
    name: str = "replica"
    done: int | None = None
    """How many rows of the person it had, once it is made anew."""

    def erase(self, subject: Subject) -> int:  # noqa: ARG002
        """Make the file anew, unless that is done; how many rows of the person it had. After the tables.

        Raises ReplicaInUse, NotAReplica.
        """
        self.make_anew()
        return self.done or 0

    def make_anew(self) -> None:
        """From what stands, once, also where it has no row of the person.

        A refresh may have dropped them a moment ago, or last year, and DuckDB keeps what a removed row said, in the
        file or in its log, until something else is written there. Raises ReplicaInUse, NotAReplica.
        """
        if self.done is not None:
            return
        rows, path = self._rows(), self.settings.replica_path
        if path.exists():
            # The file last: one that is killed here is followed by the same call.
            for file in (*beside(path), path):
                shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
            refresh(self.settings, place_of(self.settings))
        self.done = rows

    def left(self, subject: Subject) -> int:  # noqa: ARG002
        """How many rows have the person. Raises ReplicaInUse, NotAReplica."""
        return self._rows()

    def _rows(self) -> int:
        place = place_of(self.settings)
        if not place.path.exists():
            return 0
        with opened(place.path, read_only=True, wait_s=place.wait_s) as connection:
            state(connection, place.path)
            ids, within = list(self.whom.persons), list(self.whom.organizations)
            where = " OR ".join(f"list_contains(?, {column})" for column in _PERSON)
            of = "TRUE" if not within else "list_contains(?, organization_id)"
            query = f"SELECT count(*) FROM engagement WHERE ({where}) AND {of}"
            (count,) = connection.execute(query, [ids, ids, *([within] if within else [])]).fetchone() or (0,)
            return int(count)
