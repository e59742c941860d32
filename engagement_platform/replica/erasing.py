"""Takes an erased person out of the replica's file, with the bytes that DuckDB keeps of removed rows."""

from __future__ import annotations

from dataclasses import dataclass

from engagement_platform.consumers.standing import DATA
from engagement_platform.erasing.whom import Whom
from engagement_platform.pii.erasure import Subject
from engagement_platform.replica.file import opened, state
from engagement_platform.replica.refresh import place_of, refresh
from engagement_platform.settings import Settings

_PERSON = ("person_id", "source_person_id")
assert set(_PERSON) <= set(DATA.column_names)


@dataclass(frozen=True)
class ReplicaFile:
    """The replica of the settings; others drop the rows when they follow next."""

    settings: Settings
    whom: Whom
    name: str = "replica"

    def erase(self, subject: Subject) -> int:
        """Make the file anew from what stands, where it has rows of the person; how many. After the tables.

        Raises ReplicaInUse, NotAReplica.
        """
        rows = self.left(subject)
        if rows:
            self.settings.replica_path.unlink()
            refresh(self.settings, place_of(self.settings))
        return rows

    def left(self, subject: Subject) -> int:  # noqa: ARG002
        """How many rows have or had the person. Raises ReplicaInUse, NotAReplica."""
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
