"""What an erasure does to each table of engagements and profiles, in the order of its commits. Decides; `job` commits.

Readers see the same before, between and after: rows leave the Data Table before their newer images leave the changeset,
and who became whom is changed when nothing of the person depends on it any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from engagement_platform.erasing.found import NAMED, NOTIFIED, PAIR, PLACE, Found
from engagement_platform.lake.arrow import table_of
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
from engagement_platform.pipelines.engagements.schema import ROW
from engagement_platform.pipelines.mutations.move import KEY
from engagement_platform.pipelines.profiles.entity import profile
from engagement_platform.settings import Settings
from engagement_platform.sources.messages import Reason


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


def rewrites(settings: Settings) -> Mapping[Table, Callable[[Found], Rewrite]]:
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


def _data(found: Found) -> Rewrite:
    """The person's rows go; others lose what a former version or a conversion that waits to be moved says of it."""
    return Rewrite(KEY, _keys(found.rows), found.others_now())


def _changeset(found: Found) -> Rewrite:
    """All images go of the engagements that leave the Data Table, and of those that it now shows as they are."""
    pairs = pa.concat_tables([_keys(found.rows).select(list(PAIR)), found.others])
    images = (row for row in found.images_of(pairs, KEY) if row["sequence"] is not None)
    return Rewrite(KEY, _keys({tuple(row[name] for name in KEY): row for row in images}.values()))


def _mapping(found: Found) -> Rewrite:
    """Names of the person go, with their evidence; names that it had handed on are found anew from what is left."""
    return Rewrite(NAMED[:2], found.names(), found.names_handed_on(), "evidence IS NOT NULL")


def _requests(found: Found) -> Rewrite:
    rows = found.requests()
    return Rewrite(tuple(rows.column_names), rows)


def _alias(found: Found) -> Rewrite:
    """Who became whom stays, without the id: rows of others still follow it. What only deleted the person goes."""
    on, ids, instead = ("organization_id", "request_id"), set(found.ids), _instead(found)
    gone, changed = [], []
    for edge in found.edges_of_the_person():
        key = {name: getattr(edge, name) for name in on}
        if edge.operation == "DELETE" and edge.from_id in ids:
            gone.append(key)
        elif {edge.from_id, edge.to_id} & instead.keys():
            ends = {name: getattr(edge, name) for name in ("from_id", "to_id")}
            changed.append({**key, **{name: instead.get(id_, id_) for name, id_ in ends.items()}})
    return Rewrite(on, table_of(gone, ALIAS, *on), table_of(changed, ALIAS, *on, "from_id", "to_id"))


def _notifications(found: Found) -> Rewrite:
    """They lose the person's id."""
    instead = _instead(found)
    rows = [{name: instead.get(said, said) for name, said in row.items()} for row in found.notifications().to_pylist()]
    return Rewrite(NOTIFIED[:1], table_of((), NOTIFICATION, *NOTIFIED[:1]), table_of(rows, NOTIFICATION, *NOTIFIED))


def _quarantine(found: Found) -> Rewrite:
    refused = found.refused()
    return Rewrite(PLACE, refused.slice(0, 0), as_markers(QUARANTINE, refused))


def as_markers(quarantine: Table, places: pa.Table) -> pa.Table:
    """Refused records that name the person: where they were on the topic, and that somebody was erased."""
    said = {"key": None, "value": None, "reason_code": Reason.ERASED.value, "reason": Reason.ERASED.sentence}
    return table_of(({**row, **said} for row in places.to_pylist()), quarantine, *PLACE, *said)


def _profiles(table: Table, found: Found) -> Rewrite:
    """Changes of a profile, or its row in the base, go."""
    return Rewrite(table.subject_columns, found.naming(table, table.subject_columns, found.whom.profiles))


def _instead(found: Found) -> Mapping[str | None, str]:
    """Id -> what stands in its place."""
    return {id_: found.tombstones.pseudonym(id_) for id_ in found.whom.persons}


def _keys(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    of_key = pa.schema([ROW.field(name) for name in KEY])
    return pa.Table.from_pylist([{name: row[name] for name in KEY} for row in rows], of_key)
