"""Finds the engagements of a person, and those of others that name it, at pinned versions. Reads only, without Spark.

Which rows are the person's is decided in `rules`; what an erasure does to each table is `rewrites`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from engagement_platform.erasing.rules import Belonging, leading_back
from engagement_platform.lake import log, scan
from engagement_platform.lake.arrow import schema_of
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import ALIAS, CHANGESET, MUTATION_REQUEST, data_table
from engagement_platform.pii.tombstones import ANYWHERE, PERSON, StoredTombstones, entity
from engagement_platform.pipelines.engagements.schema import ROW, STATE, STATE_FIELDS
from engagement_platform.pipelines.mutations.identity import Edge
from engagement_platform.pipelines.mutations.rules import current_rows
from engagement_platform.pipelines.profiles.entity import PROFILE
from engagement_platform.settings import Settings

PAIR = ("organization_id", "engagement_id")
_IMAGE = (*PAIR, "engagement_date", "engagement_ts", "person_id", "source_person_id", "version")

Pair = tuple[str, str]
Image = Mapping[str, Any]


@dataclass(frozen=True)
class SubjectIds:
    """Who a subject is in these tables: by default its id is that of a person everywhere, and of a profile.

    persons: ids as person_id and source_person_id have them. organizations: only in these; none: in all, also later
    ones. profiles: keys of the entity `profile`.
    """

    persons: tuple[str, ...]
    organizations: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        subject: str,
        persons: Sequence[str] = (),
        organizations: Sequence[str] = (),
        profiles: Sequence[str] = (),
    ) -> SubjectIds:
        """The subject's own id where no other is given."""
        return cls(tuple(persons) or (subject,), tuple(organizations), tuple(profiles) or (subject,))

    @property
    def ids(self) -> tuple[str, ...]:
        """All ids, each once."""
        return tuple(dict.fromkeys((*self.persons, *self.profiles)))

    @property
    def keys(self) -> dict[str, set[tuple[str, str]]]:
        """Kind -> the (organization, id) of which tombstones are put up."""
        persons = {(organization, id_) for organization in self.organizations or (ANYWHERE,) for id_ in self.persons}
        return {PERSON: persons, entity(PROFILE.name): {(ANYWHERE, id_) for id_ in self.profiles}}


@dataclass
class SubjectLookup:
    """What the tables have of a subject. versions: of the tables, by name; a table without one is empty."""

    settings: Settings
    subject_ids: SubjectIds
    tombstones: StoredTombstones
    versions: Mapping[str, int]

    @cached_property
    def ids(self) -> list[str]:
        """The person's ids, and the pseudonyms that an erasure before this one has put in their place."""
        return sorted({*self.subject_ids.persons, *map(self.tombstones.pseudonym, self.subject_ids.persons)})

    @property
    def data(self) -> Table:
        return data_table(self.settings.layout.scheme)

    def find(self, table: Table, columns: Sequence[str], where: Mapping[str, Sequence[Any]]) -> pa.Table:
        """Rows of a table, of the subject's organizations."""
        version = self.versions.get(table.name)
        asked = self.subject_ids.organizations if "organization_id" in table.column_names else ()
        if asked:
            within = where.get("organization_id", asked)
            where = {**where, "organization_id": sorted(set(asked).intersection(within))}
        if version is None or not all(where.values()):
            return schema_of(table, *columns).empty_table()
        opened = log.open_version(table.uri(self.settings.lake), version)
        return scan.find(opened, columns, where).cast(schema_of(table, *columns))

    def naming(self, table: Table, columns: Sequence[str], ids: Sequence[str]) -> pa.Table:
        """Columns of the rows that have one of these ids in a subject column; each once."""
        return distinct(*(self.find(table, columns, {name: ids}) for name in table.subject_columns))

    @cached_property
    def sequenced_edges(self) -> list[tuple[int, Edge]]:
        """Every edge of the organizations in which one names the person, with its sequence, in that order."""
        organizations = self.naming(ALIAS, ("organization_id",), self.ids)
        return self.edges_of(organizations.column("organization_id").to_pylist())

    def edges_of(self, organizations: Iterable[str]) -> list[tuple[int, Edge]]:
        """Every edge of organizations, with its sequence, in that order."""
        where = {"organization_id": sorted(set(organizations))}
        rows = self.find(ALIAS, (*Edge._fields, "batch_sequence"), where).to_pylist()
        return sorted(((row.pop("batch_sequence"), Edge(**row)) for row in rows), key=lambda each: each[0])

    @property
    def edges(self) -> list[Edge]:
        return [edge for _, edge in self.sequenced_edges]

    @cached_property
    def _images(self) -> Mapping[Pair, list[Image]]:
        """Engagements that may be the person's, or name it -> their rows in Data Table and changeset, newest first."""
        suspects = sorted(leading_back(self.edges, self.ids))
        wanted = [("source_person_id", suspects), ("person_id", self.ids)]
        pairs = distinct(*(self.find(t, PAIR, {name: ids}) for t in (self.data, CHANGESET) for name, ids in wanted))
        found: dict[Pair, list[Image]] = {}
        for row in self.images_of(pairs, _IMAGE):
            found.setdefault((row["organization_id"], row["engagement_id"]), []).append(row)
        for rows in found.values():
            rows.sort(key=lambda row: (row["version"], row["sequence"] or -1), reverse=True)
        return dict(sorted(found.items()))

    def images_of(self, pairs: pa.Table, columns: Sequence[str]) -> list[dict[str, Any]]:
        """The rows of these engagements in Data Table and changeset, with `sequence`: null in the Data Table."""
        where = {name: sorted(set(pairs.column(name).to_pylist())) for name in PAIR}
        wanted = {tuple(pair.values()) for pair in pairs.select(list(PAIR)).to_pylist()}
        rows = [{**row, "sequence": None} for row in self.find(self.data, columns, where).to_pylist()]
        for row in self.find(CHANGESET, (*columns, "batch_sequence"), where).to_pylist():
            rows.append({**row, "sequence": row.pop("batch_sequence")})
        return [row for row in rows if (row["organization_id"], row["engagement_id"]) in wanted]

    @cached_property
    def rows(self) -> list[Image]:
        """The newest image of each engagement that the person sent, has now, or had when it was deleted; sorted."""
        belonging = Belonging(self.edges, self.ids)
        return [images[0] for images in self._images.values() if belonging.holds(images[0])]

    @cached_property
    def others(self) -> pa.Table:
        """Engagements of others of which an image names the person: an older version, or before it was converted."""
        own, ids = {(row["organization_id"], row["engagement_id"]) for row in self.rows}, set(self.ids)
        named = [
            dict(zip(PAIR, pair, strict=True))
            for pair, images in self._images.items()
            if pair not in own and any({row["source_person_id"], row["person_id"]} & ids for row in images)
        ]
        return pa.Table.from_pylist(named, schema_of(self.data, *PAIR))

    def others_now(self) -> pa.Table:
        """The `others` as readers see them, with the columns of ROW; deleted rows have no person_id."""
        if not self.others.num_rows:
            return ROW.empty_table()
        states: dict[str, list[dict[str, Any]]] = {}
        for row in self.images_of(self.others, ROW.names):
            states.setdefault(row["organization_id"], []).append({"row": row})
        fields = [name for name in STATE_FIELDS["patch"] if name != "sequence"]
        where = {"operation": ["UPDATE"], "engagement_id": self.others.column("engagement_id").to_pylist()}
        columns = (*fields, "organization_id", "batch_sequence")
        for row in self.find(MUTATION_REQUEST, columns, where).to_pylist():
            patch = {**row, "sequence": row["batch_sequence"]}
            states.setdefault(row["organization_id"], []).append({"patch": patch})
        # Also where none of them names the person: they lead the others' rows on.
        for sequence, edge in self.edges_of(states):
            states[edge.organization_id].append({"edge": {**edge._asdict(), "sequence": sequence}})
        made = []
        for organization, parts in sorted(states.items()):
            state = pa.Table.from_pylist([{"organization_id": organization, **part} for part in parts], STATE)
            made.append(current_rows(organization, state))
        return pa.concat_tables(made)


def distinct(*rows: pa.Table) -> pa.Table:
    """The rows of all tables, each once."""
    found = pa.concat_tables(rows)
    return found.group_by(found.column_names).aggregate([])
