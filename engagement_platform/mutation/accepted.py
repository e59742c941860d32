"""What was accepted before: the edges, patches, names and originals that organizations have, as pinned by a batch.

Reads only, into this process; for as many requests as fit in there many times over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from engagement_platform.engine.model import Manifest
from engagement_platform.lake import log
from engagement_platform.lake.arrow import moments, schema_of
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import ALIAS, AMENDMENT, MAPPING, ORIGINAL, PENDING, SAID_NAME
from engagement_platform.lake.erased import is_pseudonym
from engagement_platform.lake.lake import Lake
from engagement_platform.mutation import names
from engagement_platform.mutation.content import Content, Patch
from engagement_platform.mutation.model import Edge
from engagement_platform.mutation.requests import Request
from engagement_platform.settings import MutationSettings

Id = tuple[str, str]
"""organization_id, and an id within it."""


def pinned(manifest: Manifest, table: Table) -> int:
    """The version of a log that a batch reads. A batch planned before there was such a log finds it as it was made."""
    return manifest.table_versions.get(table.name, 0)


def edges_of(rows: pa.Table) -> list[Edge]:
    """CONVERTs and DELETEs as edges, in the order of rows: those have at least the fields of an edge."""
    columns = (
        moments(column) if name == "execution_ts" else column.to_pylist()
        for name, column in ((name, rows.column(name)) for name in Edge._fields)
    )
    return list(map(Edge, *columns))


class TooMany(Exception):
    """More than what is resolved in this process; Spark does it."""


@dataclass
class Accepted:
    """The logs of some organizations, as pinned by a manifest. Each is read when it is first needed."""

    lake: Lake
    manifest: Manifest
    organizations: Sequence[str]
    settings: MutationSettings

    def _find(self, table: Table, columns: Sequence[str], where: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
        """Rows of a pinned table; nothing where nothing is looked for."""
        if not all(where.values()):
            return []
        found = self.lake.find(table, pinned(self.manifest, table), columns, where)
        rows: list[dict[str, Any]] = found.to_pylist()
        return rows

    @cached_property
    def aliases(self) -> pa.Table:
        """Every accepted CONVERT and DELETE, with the columns of `engagement/alias`. Raises TooMany."""
        if not self.organizations:
            return schema_of(ALIAS).empty_table()
        held = log.stored(self.lake.uri(ALIAS), pinned(self.manifest, ALIAS), self.organizations)
        if sum(stored.rows for stored in held.values()) > self.settings.light_edges:
            raise TooMany
        where = {"organization_id": self.organizations}
        return self.lake.find(ALIAS, pinned(self.manifest, ALIAS), ALIAS.column_names, where)

    @cached_property
    def edges(self) -> list[Edge]:
        """Every accepted CONVERT and DELETE."""
        return edges_of(self.aliases)

    @cached_property
    def pending(self) -> dict[str, int]:
        """Organization -> first batch whose edges the Data Table does not show yet."""
        rows = self._find(PENDING, ("organization_id", "pending_from"), {"organization_id": self.organizations})
        return {row["organization_id"]: row["pending_from"] for row in rows if row["pending_from"] is not None}

    @cached_property
    def waiting(self) -> list[Edge]:
        """Edges that the Data Table does not show yet."""
        if not self.pending:
            return []
        since = self.pending
        batch_ids = self.aliases.column("batch_id").to_pylist()
        return [
            edge
            for edge, batch_id in zip(self.edges, batch_ids, strict=True)
            if batch_id >= since.get(edge.organization_id, batch_id + 1)
        ]

    def amendments_named(self, request_ids: Sequence[str]) -> pa.Table:
        """UPDATEs and RENAMEs with one of these request ids, with the columns of `engagement/amendment`."""
        if not request_ids:
            return schema_of(AMENDMENT).empty_table()
        where = {"organization_id": self.organizations, "request_id": request_ids}
        return self.lake.find(AMENDMENT, pinned(self.manifest, AMENDMENT), AMENDMENT.column_names, where)

    def patches(self, engagements: Iterable[Id]) -> dict[Id, list[Patch]]:
        """Patches of these engagements; those without are absent."""
        wanted = set(engagements)
        where = {"organization_id": self.organizations, "engagement_id": sorted({e for _, e in wanted})}
        found: dict[Id, list[Patch]] = {}
        for request in (Request.of(row) for row in self._find(AMENDMENT, _AMENDMENT, where)):
            key = (request.organization_id, request.engagement_id or "")
            if request.operation == "UPDATE" and key in wanted:
                found.setdefault(key, []).append(request.patch())
        return found

    def sayings(self, ids: Iterable[Id]) -> list[names.Saying]:
        """What was said of these persons' names, by engagements and by RENAMEs."""
        persons = sorted({person for _, person in ids})
        said = self._said(persons)
        renamed = self._find(
            AMENDMENT, _AMENDMENT, {"organization_id": self.organizations, "from_id": persons, "operation": ["RENAME"]}
        )
        return said + [said_by_request(Request.of(row)) for row in renamed]

    def _said(self, persons: Sequence[str]) -> list[names.Saying]:
        """Names that engagements carried. Once each: a person says its name on every engagement."""
        columns = ["organization_id", "id", "name", "name_ts"]
        where = {"organization_id": self.organizations, "id": persons}
        if not all(where.values()):
            return []
        found = self.lake.find(SAID_NAME, pinned(self.manifest, SAID_NAME), columns, where)
        once = found.group_by(columns).aggregate([])
        rows = zip(*(once.column(name).to_pylist() for name in columns), strict=True)
        return [names.Saying(org, person, names.Said(ts, False, "", name)) for org, person, name, ts in rows]


_AMENDMENT = tuple(name for name in AMENDMENT.column_names if name != "batch_id")


def said_by_engagement(row: Mapping[str, Any]) -> names.Saying:
    """A row of `engagement/said_name` as a saying."""
    return names.Saying(row["organization_id"], row["id"], names.Said(row["name_ts"], False, "", row["name"]))


def said_by_request(request: Request) -> names.Saying:
    """A RENAME as a saying."""
    assert request.from_id is not None, "decoding lets no RENAME through without"
    assert request.name is not None, "decoding lets no RENAME through without"
    said = names.Said(request.execution_ts, True, request.request_id, request.name)
    return names.Saying(request.organization_id, request.from_id, said)


def changed_names(
    ids: Iterable[Id], found: Mapping[Id, names.Said], lake: Lake, manifest: Manifest
) -> list[dict[str, Any]]:
    """Rows for the mapping, and `is_new`: what these ids are called now, where the pinned mapping does not say so.

    A name that is gone becomes a row without one. Whoever was erased has none, whatever was handed on to its pseudonym.
    """
    ids = sorted(key for key in ids if not is_pseudonym(key[1]))
    where = {"organization_id": sorted({org for org, _ in ids}), "id": sorted({person for _, person in ids})}
    columns = ("organization_id", "id", "name", "name_ts")
    rows = lake.find(MAPPING, pinned(manifest, MAPPING), columns, where).to_pylist() if ids else []
    stands = {(row["organization_id"], row["id"]): (row["name"], row["name_ts"]) for row in rows}
    changed = []
    for key in ids:
        said = found.get(key)
        name = (said.name, said.name_ts) if said else (None, None)
        if name != stands.get(key, (None, None)):
            row = dict(zip(MAPPING.column_names, (*key, *name, manifest.batch_id), strict=True))
            changed.append({**row, "is_new": key not in stands})
    return changed


def settled_names(
    former: Accepted, careful: Collection[Id], sayings: Sequence[names.Saying], lake: Lake, manifest: Manifest
) -> list[dict[str, Any]]:
    """Rows for the mapping, and `is_new`, of ids whose names requests move, and of all that they hand names on to."""
    ids = names.affected(former.edges, careful)
    relevant = names.relevant(former.edges, ids)
    said = [*former.sayings(relevant), *sayings]
    return changed_names(ids, names.names_of(ids, said, former.edges), lake, manifest)


def name_ends(edges: Iterable[Edge]) -> set[Id]:
    """The ids between which requests hand names on, or from which they remove them."""
    plain = names.plain(edges)
    return {(e.organization_id, person) for e in plain for person in (e.from_id, e.to_id) if person is not None}


def moved_names(
    log_: Accepted, edges: Sequence[Edge], new: Iterable[Edge], renames: Sequence[Request]
) -> list[dict[str, Any]]:
    """Rows for the mapping, and `is_new`, after new requests. edges: all, the new ones included."""
    moved = {(edge.organization_id, edge.from_id) for edge in names.plain(new) if edge.from_id is not None}
    renamed = {(request.organization_id, request.from_id or "") for request in renames}
    ids = names.affected(edges, moved | renamed)
    if not ids:
        return []
    sayings = log_.sayings(names.relevant(edges, ids)) + [said_by_request(request) for request in renames]
    return changed_names(ids, names.names_of(ids, sayings, edges), log_.lake, log_.manifest)


def known_originals(
    lake: Lake, manifest: Manifest, rows: Sequence[Mapping[str, Any]]
) -> dict[tuple[Id, int], dict[str, Any]]:
    """What patched engagements said before their patches: (id, version) -> content, of those of `rows` that are."""
    if not rows:
        return {}
    where = {name: sorted({row[name] for row in rows}) for name in ("organization_id", "engagement_id")}
    columns = ("organization_id", "engagement_id", "version", "engagement")
    found = lake.find(ORIGINAL, pinned(manifest, ORIGINAL), columns, where).to_pylist()
    return {((row["organization_id"], row["engagement_id"]), row["version"]): row["engagement"] for row in found}


def as_content(struct: Mapping[str, Any]) -> Content:
    """The struct of a row as content."""
    attributes = struct["attributes"]
    return Content(
        struct["type"], struct["channel"], struct["subject"], None if attributes is None else dict(attributes)
    )


def as_struct(content: Content) -> dict[str, Any]:
    """Content as the struct of a row, as Arrow takes it."""
    attributes = None if content.attributes is None else sorted(content.attributes.items())
    return {"type": content.type, "channel": content.channel, "subject": content.subject, "attributes": attributes}
