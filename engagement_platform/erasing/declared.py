"""Takes an erased person out of tables that somebody declared, streams' and entities', while nobody lands anything.

What comes later about the person becomes a marker, by the tombstone that is put up first. Former versions keep their
files until VACUUM, as those of game tables do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from engagement_platform.engine.database import utc_now
from engagement_platform.erasing.found import PLACE
from engagement_platform.lake import light, log
from engagement_platform.lake.arrow import schema_of
from engagement_platform.lake.contract import Table
from engagement_platform.lake.erased import current_files, rewrite
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.optimize import Place, checkpoint_log
from engagement_platform.lake.session import spark_session
from engagement_platform.pii.erasure import Former, Subject, naming, once
from engagement_platform.pii.tombstones import ANYWHERE, StoredTombstones, entity
from engagement_platform.pipelines.declarations.declared import declarations
from engagement_platform.pipelines.games.erasing import kept_for, nobody_writes
from engagement_platform.pipelines.kafka_tables.tables import Stream
from engagement_platform.pipelines.profiles.entity import Entity
from engagement_platform.pipelines.redrive import turn_of
from engagement_platform.pipelines.tombstones import said_in
from engagement_platform.settings import Settings
from engagement_platform.sources.messages import Reason


@dataclass(frozen=True)
class DeclaredTables:
    """The tables of one declaration, and where an id stands in them."""

    settings: Settings
    name: str
    """As receipts say it."""
    kind: str
    """Of the tombstone."""
    holding: Mapping[Table, str]
    """Table -> column with the id of whoever a row is about."""
    leased: tuple[str, ...]
    """Of all who write these tables."""
    quarantine: Table | None = None
    """Of refused records, where it is the declaration's own."""

    def erase(self, subject: Subject) -> int:
        """Tombstone, then rows and refused records that name the subject; how many. Log entries that expired go, too.

        Raises LeaseUnavailable, OthersBatchUnfinished, TableBusy; the same call does the rest.
        """
        gone = 0
        with self._lake() as lake, nobody_writes(self.settings, self.leased) as leases:
            # Not before: the rest of a batch that is half done would take for a marker what its books count as a row.
            StoredTombstones(self.settings).put_up(self.kind, [(ANYWHERE, subject.id)], utc_now())
            for table, column in self._there():
                for lease in leases:
                    lease.check()
                count = self._count(table, column, subject)
                # Also without a row: then it closes a table that a crash left open.
                self._rewrite(lake, table, (column,), gone=pa.table({column: [subject.id]}).slice(0, 1 if count else 0))
                gone += count
            refused = self._refused(subject)
            if self.quarantine is not None:
                self._rewrite(lake, self.quarantine, PLACE, changed=_as_markers(self.quarantine, refused))
        return gone + int(refused.num_rows)

    def _rewrite(self, lake: Lake | None, table: Table, on: Sequence[str], **rows: pa.Table) -> None:
        if lake is not None and self._open(table) is not None:
            rewrite(lake, table, once(), on=on, **rows)
            checkpoint_log(Place(table.name, table.uri(lake.root), lake.root), clean=True)

    def left(self, subject: Subject) -> int:
        """How many rows and refused records name the subject; one more where the tombstone is missing."""
        key = (ANYWHERE, subject.id)
        missing = 0 if key in StoredTombstones(self.settings).erased(self.kind, {key}) else 1
        counts = [self._count(table, column, subject) for table, column in self._there()]
        return missing + sum(counts) + int(self._refused(subject).num_rows)

    def keeps(self) -> Mapping[Former, timedelta]:
        """As the slowest of the tables keeps them."""
        there = [table for table in self._tables if log.version(table.uri(self.settings.lake)) is not None]
        return kept_for(self.settings, there) if there else {}

    def former(self, path: Path) -> Former | None:
        """What a file of these tables is that no row of today is in."""
        root = self.settings.lake
        for table in self._tables if "://" not in root else ():
            folder = Path(table.uri(root))
            if folder in path.parents:
                if path.relative_to(folder).parts[0] == "_delta_log":
                    return Former.LOG
                return None if path in current_files(root, table) else Former.FILES
        return None

    @property
    def _tables(self) -> tuple[Table, ...]:
        return (*self.holding, *((self.quarantine,) if self.quarantine is not None else ()))

    def _there(self) -> Iterator[tuple[Table, str]]:
        return ((table, column) for table, column in self.holding.items() if self._open(table) is not None)

    def _open(self, table: Table) -> DeltaTable | None:
        return log.open_log(table.uri(self.settings.lake))

    def _count(self, table: Table, column: str, subject: Subject) -> int:
        found = self._open(table)
        return 0 if found is None else int(light.find(found, (column,), {column: [subject.id]}).num_rows)

    def _refused(self, subject: Subject) -> pa.Table:
        """Where refused records stand that name the subject as a word of its own, in whatever way JSON writes it."""
        table = self.quarantine
        found = None if table is None else self._open(table)
        if table is None or found is None:
            return schema_of(table, *PLACE).empty_table() if table is not None else pa.table({})
        word, rows = naming(subject), light.find(found, (*PLACE, "key", "value"), {})
        named = []
        for key, value in zip(rows.column("key").to_pylist(), rows.column("value").to_pylist(), strict=True):
            said = json.dumps(dict(said_in(value)), ensure_ascii=False).encode("utf-8", "surrogatepass")
            named.append(any(word.search(text) for text in (key, value, said) if text))
        # Only places: Arrow filters no views of binary values.
        return rows.select(list(PLACE)).filter(pa.array(named, pa.bool_())).group_by(list(PLACE)).aggregate([])

    @contextmanager
    def _lake(self) -> Iterator[Lake | None]:
        """With a session of Spark; None where there is no table."""
        if not any(self._open(table) for table in self._tables):
            yield None
            return
        with spark_session(self.settings, "erase") as spark:
            yield Lake(spark, self.settings)


def declared_tables(settings: Settings) -> list[DeclaredTables]:
    """What an erasure reaches of declared tables: of streams that say whom records are about, and of all entities."""
    found = declarations(settings)
    streams = [of_stream(settings, stream) for stream in found.streams if stream.subject is not None]
    return [*streams, *(_of_entity(settings, declared.entity) for declared in found.entities)]


def of_stream(settings: Settings, stream: Stream) -> DeclaredTables:
    """The tables of a stream that says whom its records are about."""
    assert stream.subject is not None, "without it nobody knows which records to take out"
    return DeclaredTables(
        settings,
        stream.table.name,
        stream.tombstone,
        {stream.table: stream.subject},
        (turn_of(stream.table), stream.table.name),
        stream.quarantine,
    )


def _of_entity(settings: Settings, declared: Entity) -> DeclaredTables:
    """Those of an entity, by its key. Its refused changes stand among those of engagements."""
    return DeclaredTables(
        settings,
        f"{declared.name}/*",
        entity(declared.name),
        {declared.changeset: declared.key, declared.base: declared.key},
        (turn_of(declared.changeset), declared.changeset.name, declared.base.name),
    )


def _as_markers(quarantine: Table, places: pa.Table) -> pa.Table:
    """Refused records at these places without what they said."""
    said = (None, None, Reason.ERASED.value, Reason.ERASED.sentence)
    for kind, value in zip(schema_of(quarantine, "key", "value", "reason_code", "reason"), said, strict=True):
        places = places.append_column(kind, pa.array([value] * places.num_rows, kind.type))
    return places
