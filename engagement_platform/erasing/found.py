"""Finds what the engagement tables have of somebody: rows, edges, names, refused records. Reads only, without Spark.

Which rows are somebody's is decided in `rules`; what is done about them is `rewrites`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from engagement_platform.erasing.rules import Belonging, leading_back, leading_on
from engagement_platform.lake import log, scan
from engagement_platform.lake.arrow import schema_of
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import (
    ALIAS,
    CHANGESET,
    MAPPING,
    MUTATION_REQUEST,
    NOTIFICATION,
    QUARANTINE,
    data_table,
)
from engagement_platform.pii.erasure import Subject, is_named, naming
from engagement_platform.pii.tombstones import ANYWHERE, ENGAGEMENT, PERSON, StoredTombstones
from engagement_platform.pipelines.engagements.schema import ROW, STATE, STATE_FIELDS
from engagement_platform.pipelines.mutations.identity import Edge
from engagement_platform.pipelines.mutations.rules import Evidence, current_names, current_rows
from engagement_platform.pipelines.tombstones import texts_of
from engagement_platform.settings import Settings

PAIR = ("organization_id", "engagement_id")
IMAGE = (*PAIR, "engagement_date", "engagement_ts", "person_id", "source_person_id", "version")
PLACE = ("topic", "partition", "offset", "job_name", "batch_id")
"""By which a row of quarantine is found."""
NOTIFIED = ("notification_id", "person_id", "previous_person_id")
NAMED = ("organization_id", "id", "name", "name_ts")

Pair = tuple[str, str]
Image = Mapping[str, Any]


@dataclass(frozen=True)
class Whom:
    """Who a subject is in these tables. Unless said otherwise its id is that of a person everywhere, and of a profile.

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
    ) -> Whom:
        """The subject's own id where nothing else is said."""
        return cls(tuple(persons) or (subject,), tuple(organizations), tuple(profiles) or (subject,))

    @property
    def ids(self) -> tuple[str, ...]:
        """All ids, each once."""
        return tuple(dict.fromkeys((*self.persons, *self.profiles)))

    def keys(self, kind_of_profiles: str) -> dict[str, set[tuple[str, str]]]:
        """Kind -> the (organization, id) of which tombstones are put up."""
        persons = {(organization, id_) for organization in self.organizations or (ANYWHERE,) for id_ in self.persons}
        return {PERSON: persons, kind_of_profiles: {(ANYWHERE, id_) for id_ in self.profiles}}


@dataclass
class Found:
    """What the tables have of somebody at these versions, by the tables' names."""

    settings: Settings
    whom: Whom
    tombstones: StoredTombstones
    versions: Mapping[str, int]

    @cached_property
    def ids(self) -> list[str]:
        """The person's ids, and what stands in their place after an erasure before this one."""
        return sorted({*self.whom.persons, *map(self.tombstones.pseudonym, self.whom.persons)})

    @property
    def data(self) -> Table:
        """The Data Table."""
        return data_table(self.settings.layout.scheme)

    def find(self, table: Table, columns: Sequence[str], where: Mapping[str, Sequence[Any]]) -> pa.Table:
        """Rows of a table, of the organizations that are asked for."""
        version = self.versions.get(table.name)
        asked = self.whom.organizations if "organization_id" in table.column_names else ()
        if asked:
            within = where.get("organization_id", asked)
            where = {**where, "organization_id": sorted(set(asked).intersection(within))}
        if version is None or not all(where.values()):
            return schema_of(table, *columns).empty_table()
        opened = DeltaTable(log.storage_uri(table.uri(self.settings.lake)), version=version)
        return scan.find(opened, columns, where).cast(schema_of(table, *columns))

    def naming(self, table: Table, columns: Sequence[str], ids: Sequence[str]) -> pa.Table:
        """Columns of the rows that are about one of these ids; each once."""
        return _once(pa.concat_tables([self.find(table, columns, {name: ids}) for name in table.subject_columns]))

    @cached_property
    def edges(self) -> list[tuple[int, Edge]]:
        """Every edge of the organizations in which one names the person, with its sequence, in that order."""
        organizations = self.naming(ALIAS, ("organization_id",), self.ids)
        where = {"organization_id": organizations.column("organization_id").to_pylist()}
        rows = self.find(ALIAS, (*Edge._fields, "batch_sequence"), where).to_pylist()
        edges = [(row.pop("batch_sequence"), Edge(**row)) for row in rows]
        return sorted(edges, key=lambda each: each[0])

    @property
    def _all_edges(self) -> list[Edge]:
        return [edge for _, edge in self.edges]

    @cached_property
    def _images(self) -> Mapping[Pair, list[Image]]:
        """Engagements that may be the person's, or name it -> their rows in Data Table and changeset, newest first."""
        suspects = sorted(leading_back(self._all_edges, self.ids))
        tables = (self.data, CHANGESET)
        looks = (("source_person_id", suspects), ("person_id", self.ids))
        pairs = _once(pa.concat_tables([self.find(t, PAIR, {name: ids}) for t in tables for name, ids in looks]))
        found: dict[Pair, list[Image]] = {}
        for row in self.images_of(pairs, IMAGE):
            found.setdefault((row["organization_id"], row["engagement_id"]), []).append(row)
        for rows in found.values():
            rows.sort(key=lambda row: (row["version"], row["sequence"] or -1), reverse=True)
        return found

    def images_of(self, pairs: pa.Table, columns: Sequence[str]) -> list[dict[str, Any]]:
        """The rows of these engagements in Data Table and changeset, with `sequence`: null in the Data Table."""
        where = {name: sorted(set(pairs.column(name).to_pylist())) for name in PAIR}
        wanted = set(map(tuple, zip(*(pairs.column(name).to_pylist() for name in PAIR), strict=True)))
        rows = [{**row, "sequence": None} for row in self.find(self.data, columns, where).to_pylist()]
        for row in self.find(CHANGESET, (*columns, "batch_sequence"), where).to_pylist():
            rows.append({**row, "sequence": row.pop("batch_sequence")})
        return [row for row in rows if (row["organization_id"], row["engagement_id"]) in wanted]

    @cached_property
    def rows(self) -> list[Image]:
        """The newest image of each engagement that is the person's: that it said, has now, or had when it was deleted.

        By organization and id.
        """
        belonging = Belonging(self._all_edges, self.ids)
        return [images[0] for _, images in sorted(self._images.items()) if belonging.holds(images[0])]

    @cached_property
    def others(self) -> pa.Table:
        """Engagements of others of which an image names the person: an older version, or before it was converted."""
        own = {(row["organization_id"], row["engagement_id"]) for row in self.rows}
        ids = set(self.ids)
        named = [
            pair
            for pair, images in sorted(self._images.items())
            if pair not in own and any({row["source_person_id"], row["person_id"]} & ids for row in images)
        ]
        return pa.Table.from_pylist([dict(zip(PAIR, pair, strict=True)) for pair in named], schema_of(self.data, *PAIR))

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
        for sequence, edge in self.edges:
            if edge.organization_id in states:
                states[edge.organization_id].append({"edge": {**edge._asdict(), "sequence": sequence}})
        made = []
        for organization, parts in sorted(states.items()):
            state = pa.Table.from_pylist([{"organization_id": organization, **part} for part in parts], STATE)
            made.append(current_rows(organization, state))
        return pa.concat_tables(made)

    def requests(self) -> pa.Table:
        """Requests that name the person or one of its engagements, also of such as were erased before."""
        key = ("topic", "partition", "offset", "request_id")
        organizations = sorted(self.tombstones.organizations(ENGAGEMENT))
        rows = self.find(MUTATION_REQUEST, (*key, *PAIR), {"organization_id": organizations})
        rows = rows.filter(pc.is_valid(rows.column("engagement_id")))
        pairs = list(zip(*(rows.column(name).to_pylist() for name in PAIR), strict=True))
        gone = self.tombstones.erased(ENGAGEMENT, set(pairs))
        told = rows.filter(pa.array([pair in gone for pair in pairs], pa.bool_())).select(list(key))
        return _once(pa.concat_tables([told, self.naming(MUTATION_REQUEST, key, self.ids)]))

    def names(self) -> pa.Table:
        """Whose names the mapping has of the person, as organization_id and id."""
        return self.naming(MAPPING, NAMED[:2], self.ids)

    def names_handed_on(self) -> pa.Table:
        """Moved names of others that differ without what was said of the person: as they are then, columns NAMED."""
        edges, ids = self._all_edges, set(self.ids)
        reached = leading_on(edges, ids) - ids
        sources = sorted(leading_back(edges, reached) - ids)
        moved: dict[Pair, tuple[Any, Any]] = {}
        evidence: dict[str, list[Evidence]] = {}
        for row in self.find(MAPPING, (*NAMED, "evidence"), {"id": sources}).to_pylist():
            said = evidence.setdefault(row["organization_id"], [])
            if row["evidence"] is None:
                said.append(Evidence(row["id"], row["name"], row["name_ts"], None))
            else:
                moved[row["organization_id"], row["id"]] = row["name"], row["name_ts"]
                said += [Evidence(row["id"], **one) for one in row["evidence"]]
        columns = ("organization_id", "from_id", "name", "execution_ts", "request_id")
        where = {"operation": ["RENAME"], "from_id": sources}
        for row in self.find(MUTATION_REQUEST, columns, where).to_pylist():
            organization = row.pop("organization_id")
            evidence.setdefault(organization, []).append(Evidence(*row.values()))
        changed = []
        for organization, said in sorted(evidence.items()):
            now = current_names(organization, said, [edge for edge in edges if edge.organization_id == organization])
            for pair, name in sorted(moved.items()):
                if pair[0] == organization and pair[1] in reached and now.get(pair[1], (None, None)) != name:
                    changed.append(dict(zip(NAMED, (*pair, *now.get(pair[1], (None, None))), strict=True)))
        return pa.Table.from_pylist(changed, schema_of(MAPPING, *NAMED))

    def edges_of_the_person(self) -> list[Edge]:
        """Edges that lead to the person or away from it."""
        ids = set(self.ids)
        return [edge for edge in self._all_edges if {edge.from_id, edge.to_id} & ids]

    def notifications(self) -> pa.Table:
        """Notifications that name the person; columns NOTIFIED."""
        return self.naming(NOTIFICATION, NOTIFIED, self.whom.persons)

    def refused(self) -> pa.Table:
        """Records in quarantine that name one of the ids, or of which only the id can be read; columns PLACE."""
        words = [naming(Subject(id_, "")) for id_ in self.whom.ids]
        # In one piece, and of all organizations: what is refused is little, and has no organization of its own.
        rows = self.find(QUARANTINE, (*PLACE, "key", "value"), {})
        keys, values = rows.column("key").to_pylist(), rows.column("value").to_pylist()
        named = [self._names(key, value, words) for key, value in zip(keys, values, strict=True)]
        return _once(rows.select(list(PLACE)).filter(pa.array(named, pa.bool_())))

    def _names(self, key: bytes | None, value: bytes | None, words: Sequence[re.Pattern[bytes]]) -> bool:
        organization = texts_of(value).get("organization_id")
        if self.whom.organizations and organization is not None and organization not in self.whom.organizations:
            return False
        return any(is_named(word, text) for word in words for text in (key, value))


def _once(rows: pa.Table) -> pa.Table:
    return rows.group_by(rows.column_names).aggregate([])
