"""What an erasure does to each table of engagements and profiles, in the order of its commits. Decides; `job` commits.

Readers see the same before, between and after: rows leave the Data Table before their newer images leave the changeset,
and aliases change when nothing of the person depends on them any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.erasing.rules import leading_back, leading_on
from engagement_platform.erasing.subject_lookup import PAIR, SubjectLookup, distinct
from engagement_platform.lake.arrow import schema_of, table_of
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
from engagement_platform.pii.tombstones import ENGAGEMENT
from engagement_platform.pipelines.engagements.schema import ROW
from engagement_platform.pipelines.mutations.move import KEY
from engagement_platform.pipelines.mutations.rules import Evidence, current_names
from engagement_platform.pipelines.profiles.entity import profile
from engagement_platform.pipelines.tombstones import texts_of
from engagement_platform.settings import Settings
from engagement_platform.sources.messages import Reason

PLACE = ("topic", "partition", "offset", "job_name", "batch_id")
"""By which a row of quarantine is found."""
_NAME = ("organization_id", "id", "name", "name_ts")
_REQUEST = ("topic", "partition", "offset", "request_id")
_NOTIFIED = ("notification_id", "person_id", "previous_person_id")


class Rewrite(NamedTuple):
    """Rows that go and rows that change, as `lake.erased.rewrite` takes them."""

    on: tuple[str, ...]
    gone: pa.Table
    changed: pa.Table | None = None
    where: str = "TRUE"

    @property
    def keys(self) -> int:
        """Of how many keys rows go or change."""
        return int(self.gone.num_rows) + (0 if self.changed is None else int(self.changed.num_rows))


def rewrites(settings: Settings) -> Mapping[Table, Callable[[SubjectLookup], Rewrite]]:
    """Every table of engagements and profiles, in the order of the commits."""
    entity = profile(settings)
    return {
        data_table(settings.layout.scheme): _data,
        CHANGESET: _changeset,
        MAPPING: _mapping,
        MUTATION_REQUEST: _requests,
        ALIAS: _alias,
        NOTIFICATION: _notifications,
        QUARANTINE: _quarantine,
        entity.changeset: partial(_profiles, entity.changeset),
        entity.base: partial(_profiles, entity.base),
    }


def _data(found: SubjectLookup) -> Rewrite:
    """The person's rows go; others lose what a former version or a conversion that waits to be moved has of it."""
    return Rewrite(KEY, _keys(found.rows), found.others_now())


def _changeset(found: SubjectLookup) -> Rewrite:
    """All images go of the engagements that leave the Data Table, and of those that it now shows as they are."""
    pairs = pa.concat_tables([_keys(found.rows).select(list(PAIR)), found.others])
    images = (row for row in found.images_of(pairs, KEY) if row["sequence"] is not None)
    return Rewrite(KEY, _keys({tuple(row[name] for name in KEY): row for row in images}.values()))


def _mapping(found: SubjectLookup) -> Rewrite:
    """Names of the person go, with their evidence; names that it had handed on are derived anew from what is left."""
    edges, ids = found.edges, set(found.ids)
    reached = leading_on(edges, ids) - ids
    sources = sorted(leading_back(edges, reached) - ids)
    moved: dict[tuple[str, str], tuple[Any, Any]] = {}
    evidence: dict[str, list[Evidence]] = {}
    for row in found.find(MAPPING, (*_NAME, "evidence"), {"id": sources}).to_pylist():
        of_organization = evidence.setdefault(row["organization_id"], [])
        if row["evidence"] is None:
            of_organization.append(Evidence(row["id"], row["name"], row["name_ts"], None))
        else:
            moved[row["organization_id"], row["id"]] = row["name"], row["name_ts"]
            of_organization += [Evidence(row["id"], **one) for one in row["evidence"]]
    columns = ("organization_id", "from_id", "name", "execution_ts", "request_id")
    for row in found.find(MUTATION_REQUEST, columns, {"operation": ["RENAME"], "from_id": sources}).to_pylist():
        organization = row.pop("organization_id")
        evidence.setdefault(organization, []).append(Evidence(*row.values()))
    changed = []
    for organization, known in sorted(evidence.items()):
        now = current_names(organization, known, [edge for edge in edges if edge.organization_id == organization])
        for pair, name in sorted(moved.items()):
            if pair[0] == organization and pair[1] in reached and now.get(pair[1], (None, None)) != name:
                changed.append(dict(zip(_NAME, (*pair, *now.get(pair[1], (None, None))), strict=True)))
    own = found.naming(MAPPING, _NAME[:2], found.ids)
    return Rewrite(_NAME[:2], own, pa.Table.from_pylist(changed, schema_of(MAPPING, *_NAME)), "evidence IS NOT NULL")


def _requests(found: SubjectLookup) -> Rewrite:
    """Requests go that name the person or one of its engagements, also of such as were erased before."""
    organizations = sorted(found.tombstones.organizations(ENGAGEMENT))
    rows = found.find(MUTATION_REQUEST, (*_REQUEST, *PAIR), {"organization_id": organizations})
    rows = rows.filter(pc.is_valid(rows.column("engagement_id")))
    pairs = list(zip(*(rows.column(name).to_pylist() for name in PAIR), strict=True))
    erased = found.tombstones.erased(ENGAGEMENT, set(pairs))
    of_engagements = rows.filter(pa.array([pair in erased for pair in pairs], pa.bool_())).select(list(_REQUEST))
    return Rewrite(_REQUEST, distinct(of_engagements, found.naming(MUTATION_REQUEST, _REQUEST, found.ids)))


def _alias(found: SubjectLookup) -> Rewrite:
    """Edges keep a pseudonym in place of the id: rows of others still follow them. DELETEs of the person go."""
    on, ids, instead = ("organization_id", "request_id"), set(found.ids), _pseudonyms(found)
    gone, changed = [], []
    for edge in found.edges:
        key, ends = {name: getattr(edge, name) for name in on}, {"from_id": edge.from_id, "to_id": edge.to_id}
        if edge.operation == "DELETE" and edge.from_id in ids:
            gone.append(key)
        elif set(ends.values()) & instead.keys():
            changed.append({**key, **{name: instead.get(id_, id_) for name, id_ in ends.items()}})
    return Rewrite(on, table_of(gone, ALIAS, *on), table_of(changed, ALIAS, *on, "from_id", "to_id"))


def _notifications(found: SubjectLookup) -> Rewrite:
    """They get a pseudonym in place of the person's id."""
    instead, named = _pseudonyms(found), found.naming(NOTIFICATION, _NOTIFIED, found.subject_ids.persons)
    rows = [{name: instead.get(value, value) for name, value in row.items()} for row in named.to_pylist()]
    return Rewrite(_NOTIFIED[:1], table_of((), NOTIFICATION, *_NOTIFIED[:1]), table_of(rows, NOTIFICATION, *_NOTIFIED))


def _quarantine(found: SubjectLookup) -> Rewrite:
    """Records that name one of the ids become tombstones."""
    within = found.subject_ids.organizations
    # Of all organizations: what is refused is little, and its organization may be unreadable.
    rows = found.find(QUARANTINE, (*PLACE, "key", "value"), {}).to_pylist()
    refused = refused_naming(
        rows, found.subject_ids.ids, lambda texts: not within or may_be_of(texts, "organization_id", within)
    )
    return as_tombstones(QUARANTINE, refused)


def refused_naming(
    rows: Iterable[Mapping[str, Any]], ids: Iterable[str], is_asked: Callable[[Mapping[str, Sequence[str]]], bool]
) -> list[Mapping[str, Any]]:
    """Refused records that name one of the ids. is_asked: whether the texts of one allow that it is to be erased."""
    patterns = [naming(Subject(id_, "")) for id_ in ids]
    return [
        row
        for row in rows
        if is_asked(texts_of(row["value"]))
        and any(is_named(pattern, row.get(name)) for pattern in patterns for name in ("key", "value"))
    ]


def may_be_of(texts: Mapping[str, Sequence[str]], name: str, among: Collection[str]) -> bool:
    """Whether a field of a refused record has one of these values, or none that can be read."""
    return name not in texts or not set(texts[name]).isdisjoint(among)


def as_tombstones(quarantine: Table, refused: Iterable[Mapping[str, Any]]) -> Rewrite:
    """Refused records lose their content; their coordinates on the topic stay, and the reason is `erased`."""
    places = distinct(table_of(refused, quarantine, *PLACE))
    columns = {"key": None, "value": None, "reason_code": Reason.ERASED.value, "reason": Reason.ERASED.sentence}
    emptied = table_of(({**row, **columns} for row in places.to_pylist()), quarantine, *PLACE, *columns)
    return Rewrite(PLACE, places.slice(0, 0), emptied)


def _profiles(table: Table, found: SubjectLookup) -> Rewrite:
    """Changes of a profile, or its row in the base, go."""
    return Rewrite(table.subject_columns, found.naming(table, table.subject_columns, found.subject_ids.profiles))


def _pseudonyms(found: SubjectLookup) -> Mapping[str | None, str]:
    return {id_: found.tombstones.pseudonym(id_) for id_ in found.subject_ids.persons}


def _keys(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    of_key = pa.schema([ROW.field(name) for name in KEY])
    return pa.Table.from_pylist([{name: row[name] for name in KEY} for row in rows], of_key)
