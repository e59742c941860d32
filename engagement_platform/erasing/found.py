"""Finds what the tables have of somebody: rows, edges, names that follow, refused records. Reads only, without Spark
where delta-rs can. What is done about it is `processes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from engagement_platform.engine.model import Manifest
from engagement_platform.erasing.whom import Side, Whom
from engagement_platform.errors import PlatformError
from engagement_platform.lake import light, log
from engagement_platform.lake.arrow import schema_of
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import ALIAS, QUARANTINE, data_table
from engagement_platform.lake.lake import Lake
from engagement_platform.landing.withheld import said_in
from engagement_platform.mutation.accepted import Accepted, edges_of
from engagement_platform.pii.erasure import Subject, naming
from engagement_platform.pii.tombstones import ENGAGEMENT, PERSON, StoredTombstones
from engagement_platform.pipelines.mutations.edges import Edge
from engagement_platform.pipelines.mutations.identity import Identities, identities_of

ROW = ("organization_id", "engagement_date", "engagement_ts", "engagement_id", "person_id", "source_person_id")
PLACE = ("topic", "partition", "offset", "job_name", "batch_id")
"""By which a row of quarantine is found."""


class AliasesNotMoved(PlatformError):
    """Conversions of somebody who is to be erased are visible through the view only."""

    def __init__(self, organizations: Sequence[str]) -> None:
        self.organizations = tuple(organizations)
        super().__init__(
            f"{len(organizations)} organizations have conversions of this person that the Data Table does not show, so "
            "which rows are the person's is not decided there. No row of the engagement tables was "
            "touched. Run `engagement-platform run rematerialize-aliases --until-idle`, then erase again."
        )


@dataclass
class Found:
    """What the tables have of somebody at the versions that a manifest pins."""

    lake: Lake
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
        return data_table(self.lake.settings.layout.scheme)

    def find(
        self, table: Table, columns: Sequence[str], where: Mapping[str, Sequence[Any]], *, now: bool = False
    ) -> pa.Table:
        """Rows of a table, of the organizations that are asked for; as pinned, or now."""
        version = log.version(self.lake.uri(table)) if now else self.versions.get(table.name)
        if version is None or not all(where.values()):
            return schema_of(table, *columns).empty_table()
        asked = self.whom.organizations if "organization_id" in table.column_names else ()
        within = {"organization_id": asked} if asked else {}
        if asked and "organization_id" in where:
            where = {**where, "organization_id": sorted(set(asked).intersection(where["organization_id"]))}
            if not where["organization_id"]:
                return schema_of(table, *columns).empty_table()
        return self._read(table, version, columns, {**within, **where})

    def _read(self, table: Table, version: int, columns: Sequence[str], where: Mapping[str, Sequence[Any]]) -> pa.Table:
        """Through delta-rs, wherever the table is: it reads what only Spark writes, too."""
        opened = DeltaTable(log.storage_uri(self.lake.uri(table)), version=version)
        return light.find(opened, columns, where).cast(schema_of(table, *columns))

    def edges_with(self, *, now: bool = False) -> list[Edge]:
        """Edges that lead to the person or away from it."""
        found = [self.find(ALIAS, ALIAS.column_names, {name: self.ids}, now=now) for name in ("from_id", "to_id")]
        return list(dict.fromkeys(edges_of(pa.concat_tables(found))))

    @cached_property
    def rows(self) -> pa.Table:
        """Rows of the Data Table that are the person's: what it said itself, what it has now, and what it had when it
        was deleted; columns ROW, each once. Nothing waits to be moved, see `refuse_waiting`.
        """
        own = [self.find(self.data, ROW, {name: self.ids}) for name in ("source_person_id", "person_id")]
        found = pa.concat_tables([*own, self._hidden()])
        return found.group_by(list(ROW)).aggregate([])

    def told_by(self, table: Table, side: Side) -> pa.Table:
        """Rows of a table as it is now that name the person or one of its engagements, also of such as were erased
        before; columns of the side's key, each once."""
        columns = list(dict.fromkeys((*side.key, "organization_id", *(n for of in side.named.values() for n in of))))
        parts = [schema_of(table, *columns).empty_table()]
        parts += [self.find(table, columns, {name: self.ids}, now=True) for name in side.named.get(PERSON, ())]
        for name in side.named.get(ENGAGEMENT, ()):
            organizations = sorted(self.tombstones.organizations(ENGAGEMENT))
            rows = self.find(table, columns, {"organization_id": organizations}, now=True)
            pairs = list(zip(rows.column("organization_id").to_pylist(), rows.column(name).to_pylist(), strict=True))
            gone = self.tombstones.erased(ENGAGEMENT, {pair for pair in pairs if pair[1] is not None})
            parts.append(rows.filter(pa.array([pair in gone for pair in pairs], pa.bool_())))
        return pa.concat_tables(parts).group_by(list(side.key)).aggregate([])

    def refuse_waiting(self) -> None:
        """Raise AliasesNotMoved when the Data Table does not show yet who somebody of these became."""
        organizations = sorted({edge.organization_id for edge in self.edges_with()})
        if organizations and (pending := self._accepted(organizations, self.versions).pending):
            raise AliasesNotMoved(sorted(pending))

    def _hidden(self) -> pa.Table:
        """Deleted rows that others said, and that were the person's before they were deleted."""
        nothing = schema_of(self.data, *ROW).empty_table()
        organizations = sorted({edge.organization_id for edge in self.edges_with()})
        if not organizations:
            return nothing
        accepted = self._accepted(organizations, self.versions)
        ids = set(self.ids)
        before = [edge for edge in accepted.edges if edge.from_id not in ids]
        sources = _leading_back(before, ids)
        if not sources:
            return nothing
        where = {"organization_id": organizations, "source_person_id": sorted(sources)}
        rows = self.find(self.data, ROW, where)
        rows = rows.filter(pc.is_null(rows.column("person_id")))
        # Where they would be, had nobody deleted the person.
        reached = identities_of(rows, Identities(edge for edge in before if edge.from_id is not None))
        return rows.filter(pc.is_in(reached, pa.array(sorted(ids))))

    def accepted_now(self, organizations: Sequence[str]) -> Accepted:
        """Logs of requests and names as they are now."""
        versions = {name: log.version(f"{self.lake.root}/{name}") for name in self.versions}
        return self._accepted(organizations, {name: v for name, v in versions.items() if v is not None})

    def _accepted(self, organizations: Sequence[str], versions: Mapping[str, int]) -> Accepted:
        pins = Manifest("", "", 0, {}, {}, _NEVER, versions)
        unbounded = self.lake.settings.mutation.model_copy(update={"light_edges": 10**12})
        return Accepted(self.lake, pins, organizations, unbounded)

    def refused(self, *, now: bool = False) -> pa.Table:
        """Records in quarantine that name one of the ids, or of which only the id can be read; columns PLACE."""
        words = [naming(Subject(id_, "")) for id_ in self.whom.ids]
        columns = (*PLACE, "key", "value")
        version = log.version(self.lake.uri(QUARANTINE)) if now else self.versions.get(QUARANTINE.name)
        if version is None:
            return schema_of(QUARANTINE, *PLACE).empty_table()
        # In one piece: what is refused is little, and everything else that goes over it reads it so, too.
        rows = self._read(QUARANTINE, version, columns, {})
        keys, values = rows.column("key").to_pylist(), rows.column("value").to_pylist()
        named = [self._names(key, value, words) for key, value in zip(keys, values, strict=True)]
        return rows.filter(pa.array(named, pa.bool_())).select(list(PLACE)).group_by(list(PLACE)).aggregate([])

    def _names(self, key: bytes | None, value: bytes | None, words: Sequence[Any]) -> bool:
        said = said_in(value)
        organization = said.get("organization_id")
        if self.whom.organizations and organization is not None and organization not in self.whom.organizations:
            return False
        # Unpacked, too: JSON can write one id in many ways.
        texts = [text for text in (key, value, *(of.encode("utf-8", "surrogatepass") for of in said.values())) if text]
        return any(word.search(text) for word in words for text in texts)


_NEVER = datetime.min.replace(tzinfo=UTC)


def _leading_back(edges: Sequence[Edge], ids: set[str]) -> set[str]:
    """The ids from which edges lead to one of `ids`, whatever their times: more than needed, never less."""
    found, before = set(ids), 0
    while len(found) > before:
        before = len(found)
        found |= {edge.from_id for edge in edges if edge.to_id in found and edge.from_id is not None}
    return found - ids
