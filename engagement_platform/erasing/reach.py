"""What an erasure says of each table of engagements and profiles: what was done, what is left, what goes when.

The places of `pii.erasure`, one for each table; all of them are erased by one batch of `job`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from engagement_platform.engine.database import utc_now
from engagement_platform.engine.job import Callbacks
from engagement_platform.erasing.found import Found
from engagement_platform.erasing.job import Eraser, tables, versions
from engagement_platform.erasing.purge import Purged, purge_now
from engagement_platform.erasing.rewrites import rewrites
from engagement_platform.erasing.whom import Whom
from engagement_platform.jobs import open_stores
from engagement_platform.lake import log
from engagement_platform.lake.contract import Table
from engagement_platform.lake.erased import current_files
from engagement_platform.layout.vacuum import Readers
from engagement_platform.pii.erasure import Former, Subject
from engagement_platform.pii.tombstones import ANYWHERE, PERSON, StoredTombstones, entity
from engagement_platform.pipelines.games.erasing import kept_for
from engagement_platform.pipelines.profiles.entity import profile
from engagement_platform.settings import Settings


@dataclass
class Run:
    """One erasure of all the tables, done when the first of them is asked for it."""

    eraser: Eraser
    whom: Whom
    purge: Callable[[], list[Purged]] | None = None
    """Deletes what former versions keep, at once; None: it goes later."""
    before_purge: Callable[[], None] | None = None
    """Brings up to now whoever of ours would be behind, and by that keep former versions."""
    done: dict[str, int] | None = None
    purged: dict[str, Purged] = field(default_factory=dict)

    def rows(self, subject_ref: str, table: Table) -> int:
        """How many rows of a table were removed or changed."""
        if self.done is None:
            self.done = self.eraser.run(subject_ref, self.whom)
            if self.purge is not None:
                if self.before_purge is not None:
                    self.before_purge()
                self.purged = {one.table: one for one in self.purge()}
        return self.done.get(table.name, 0)

    def is_purged(self, table: Table) -> bool:
        """Whether no file of a former version has anything of the person any more."""
        return table.name in self.purged and not self.purged[table.name].kept_by


@dataclass(frozen=True)
class TablePlace:
    """One table, as receipts name it."""

    settings: Settings
    table: Table
    run: Run
    root: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", self.settings.lake)

    @property
    def name(self) -> str:
        """Of the table."""
        return self.table.name

    def erase(self, subject: Subject) -> int:
        """Remove the subject's rows from all tables, once; how many of this one."""
        return self.run.rows(subject.ref, self.table)

    def left(self, subject: Subject) -> int:  # noqa: ARG002
        """How many rows, by their keys, an erasure would still remove or change; of a profile, how many there are."""
        found = Found(self.settings, self.run.whom, self._tombstones, versions(self.settings))
        if (decide := rewrites(self.settings).get(self.table)) is not None:
            return decide(found).keys
        key = profile(self.settings).key
        return int(found.find(self.table, (key,), {key: self.run.whom.profiles}).num_rows)

    def keeps(self) -> Mapping[Former, timedelta]:
        """As long as this table keeps files and log entries."""
        if log.version(self.table.uri(self.root)) is None:
            return {}
        kept = kept_for(self.settings, [self.table])
        return {Former.LOG: kept[Former.LOG]} if self.run.is_purged(self.table) else kept

    def former(self, path: Path) -> Former | None:
        """What a file of this table is that no row of today is in."""
        folder = Path(self.table.uri(self.root))
        if "://" in self.root or folder not in path.parents:
            return None
        if path.relative_to(folder).parts[0] == "_delta_log":
            return Former.LOG
        return None if path in current_files(self.root, self.table) else Former.FILES

    @property
    def _tombstones(self) -> StoredTombstones:
        return StoredTombstones(self.settings)


@dataclass(frozen=True)
class TombstonePlace:
    """The tombstones of persons and profiles, for whoever looks again."""

    settings: Settings
    whom: Whom
    name: str = "tombstones of persons and profiles"

    def erase(self, subject: Subject) -> int:  # noqa: ARG002
        """Put up with the tables."""
        return 0

    def left(self, subject: Subject) -> int:  # noqa: ARG002
        """How many are missing."""
        tombstones, organizations = StoredTombstones(self.settings), self.whom.organizations or (ANYWHERE,)
        persons = {(organization, id_) for organization in organizations for id_ in self.whom.persons}
        keys, kind = {(ANYWHERE, id_) for id_ in self.whom.profiles}, entity(profile(self.settings).name)
        missing = persons - tombstones.erased(PERSON, persons) | keys - tombstones.erased(kind, keys)
        return len(missing)


def places(
    settings: Settings,
    whom: Whom,
    callbacks: Callbacks | None = None,
    spark: SparkSession | None = None,
    readers: Readers | None = None,
    before_purge: Callable[[], None] | None = None,
) -> list[TablePlace | TombstonePlace]:
    """Everything of engagements and profiles that an erasure reaches. Nothing is opened before it is asked.

    readers: jobs that follow tables; with them former versions are purged at once, unless somebody still reads them.
    before_purge: called between the tables' erasure and that.
    """
    stores = open_stores(settings)
    run = Run(Eraser(settings, stores, callbacks or Callbacks(), spark), whom, before_purge=before_purge)
    if readers is not None:
        run.purge = partial(purge_now, settings, stores, readers, whom, utc_now())
    found = [TablePlace(settings, table, run) for table in tables(settings)]
    return [*found, TombstonePlace(settings, whom)]
