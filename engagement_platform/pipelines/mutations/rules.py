"""What accepted requests make of the engagements and names of one organization, over Arrow tables.

Pure functions: no Spark, no I/O, no clock. The view applies them to what is pending, `apply-mutations` announces by
them, the move writes what they return, verification compares with it: there is no second implementation.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Set
from datetime import datetime
from operator import itemgetter
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.pipelines.engagements.rules import change_type
from engagement_platform.pipelines.engagements.schema import ROW, arrow_schema
from engagement_platform.pipelines.mutations.identity import Edge, Identities, first_of_each, identities_of
from engagement_platform.pipelines.state import Requests, newest_rows, one_chunk, struct_rows

_Place = tuple[datetime, bool, str]
"""When something happens: its time, requests (False) before engagements, requests by request_id."""

CHANGE_DDL: Final = (
    "organization_id string, engagement_id string, engagement_date date, person_id string, previous_person_id string, "
    "change_type string"
)
"""A change that readers see, as it is announced."""
CHANGE: Final = arrow_schema(CHANGE_DDL)

MOVE_DDL: Final = (
    "organization_id string, source_person_id string, engagement_id string, engaged_from timestamp, "
    "engaged_before timestamp, to_id string"
)
"""What edges do to the rows of an id. With engaged_before: rows of the id from [engaged_from, engaged_before) get
to_id, null when they are deleted. Without: rows of the id, or the engagement, are followed one by one."""
MOVE: Final = arrow_schema(MOVE_DDL)


def moves(organization_id: str, state: pa.Table, since: int) -> pa.Table:
    """What the edges of one organization do to the rows that those from a sequence on may reach.

    state: schema STATE with every accepted CONVERT and DELETE. Returns schema MOVE: of each id that may be reached
    either its moves, at most one of which matches a row, or one row without engaged_before; and one for each engagement
    that any DELETE without a person names, since moves of its person must not bring it back.
    """
    edges, earlier = Requests.edges_since(organization_id, state, since)
    identities = Identities(edges)
    return _moves(organization_id, identities, identities.reached_by(edges[earlier:]), identities.branching())


def moves_apart(organization_id: str, state: pa.Table, since: int) -> pa.Table:
    """The moves of the ids that the edges from a sequence on may reach: without those edges, and with them.

    Returns schema MOVE and `is_after`. An id of which some rows go one by one, without or with them, has no moves.
    """
    edges, earlier = Requests.edges_since(organization_id, state, since)
    before, after = Identities(edges[:earlier]), Identities(edges)
    reached = after.reached_by(edges[earlier:])
    branching = before.branching() | after.branching()
    parts = []
    for is_after, identities in ((False, before), (True, after)):
        part = _moves(organization_id, identities, reached, branching)
        parts.append(part.append_column("is_after", pa.repeat(pa.scalar(is_after), part.num_rows)))
    return pa.concat_tables(parts)


def _moves(
    organization_id: str, identities: Identities, reached: Set[tuple[str, str]], branching: Set[tuple[str, str]]
) -> pa.Table:
    """The moves of the ids that are reached; rows of those that branch go one by one."""
    alone = branching & reached
    rows: list[tuple[str | None, str | None, datetime | None, datetime | None, str | None]]
    rows = [(person, None, None, None, None) for _, person in sorted(alone)]
    rows += [(None, engagement, None, None, None) for _, engagement in sorted(identities.erased_engagements())]
    rows += [
        (operation.from_id, None, operation.engaged_from, operation.engaged_before, operation.to_id)
        for operation in identities.operations()
        if (start := operation[:2]) in reached and start not in alone
    ]
    columns = zip(*rows, strict=True) if rows else [()] * 5
    return pa.table([[organization_id] * len(rows), *map(list, columns)], schema=MOVE)


def current_rows(organization_id: str, state: pa.Table, *, before: int | None = None) -> pa.Table:
    """The engagements of one organization under the identity and with the content that they have now.

    state: schema STATE: rows of the Data Table and the changeset, every accepted CONVERT and DELETE, and every accepted
    UPDATE of these rows. before: requests with this sequence and later ones do not count.
    Returns schema ROW, one row per engagement, by id; person_id is null where the row is deleted.
    Always from the event itself, so that applying a request twice changes nothing.
    """
    requests = Requests.of(organization_id, state, before=before)
    rows = [row for _, row in sorted(newest_rows(state).items())]
    columns = [row.columns(organization_id, requests.patches.get(row.engagement_id, ())) for row in rows]
    made = pa.Table.from_pylist(columns, schema=ROW)
    standing = pc.is_valid(made.column("source_person_id")).combine_chunks()
    now = identities_of(made.filter(standing), requests.identities)
    persons = pc.replace_with_mask(pa.nulls(len(rows), pa.string()), standing, one_chunk(now))
    return made.set_column(made.schema.get_field_index("person_id"), "person_id", persons)


def changes(organization_id: str, state: pa.Table, since: int) -> pa.Table:
    """What the requests from a sequence on change for readers of one organization.

    state: as for `current_rows`, with all rows that these requests may concern. Returns schema CHANGE, by engagement
    id: rows whose person or content differs, of those that readers see before or after.
    """
    before, after = current_rows(organization_id, state, before=since), current_rows(organization_id, state)
    found = []
    for was, now in zip(before.to_pylist(), after.to_pylist(), strict=True):
        change = change_type(was["person_id"], now["person_id"])
        if change is None or all(was[name] == now[name] for name in ("person_id", "engagement")):
            continue
        kept = {name: now[name] for name in ("organization_id", "engagement_id", "engagement_date", "person_id")}
        found.append({**kept, "previous_person_id": was["person_id"], "change_type": change})
    return pa.Table.from_pylist(found, schema=CHANGE)


def base_rows(organization_id: str, state: pa.Table, horizon: datetime) -> pa.Table:
    """The rows of the Data Table after a move: as `current_rows`, and tombstones of what is deleted for good.

    horizon: every request that may still be accepted has this execution_ts or a later one. A row is deleted for good
    when the edges before the horizon delete it, since none to come can take it out of their reach. Its content goes;
    its id, version and digests stay, so that a late copy of a lower version does not bring it back.
    """
    rows = current_rows(organization_id, state)
    edges = Requests.edges_of(organization_id, state)
    final = Identities(edge for edge in edges if edge.execution_ts < horizon)
    newest = newest_rows(state)
    hidden = rows.filter(pc.and_(pc.is_null(rows.column("person_id")), pc.is_valid(rows.column("source_person_id"))))
    gone = hidden.filter(pc.is_null(identities_of(hidden, final))).column("engagement_id")
    tombstones = [newest[one].tombstone().columns(organization_id, ()) for one in gone.to_pylist()]
    kept = rows.filter(pc.invert(pc.is_in(rows.column("engagement_id"), gone)))
    return pa.concat_tables([kept, pa.Table.from_pylist(tombstones, schema=ROW)])


class Evidence(NamedTuple):
    """One name of an id, as an event or a RENAME gave it."""

    id: str
    name: str
    name_ts: datetime
    """UTC: engagement_ts, or the execution_ts of a RENAME."""
    request_id: str | None
    """Of the RENAME; None for an engagement."""

    @classmethod
    def of(cls, state: pa.Table) -> list[Evidence]:
        """From the state."""
        return [cls(**row) for row in struct_rows(state, "name_evidence")]

    @property
    def place(self) -> _Place:
        """Its place among edges."""
        return self.name_ts, self.request_id is None, self.request_id or ""

    @property
    def age(self) -> tuple[datetime, bool, str, str]:
        """The greater is the newer: at equal times a RENAME, then the larger name."""
        return self.name_ts, self.request_id is not None, self.request_id or "", self.name


def current_names(
    organization_id: str, evidence: Iterable[Evidence], edges: Iterable[Edge]
) -> dict[str, tuple[str, datetime]]:
    """Id -> the name that it has now and the time of its evidence; ids without a name are absent.

    evidence: of all ids of the organization, as far as `needed_evidence` keeps it, in any order, repeated or not.
    edges: every accepted CONVERT and DELETE, in the order in which they were accepted.
    A CONVERT hands the newest name that from_id has by then to to_id, where it competes by its own time; a
    DELETE removes the name that its id has by then. At equal times requests come before engagements.
    Cost: one sort of evidence and edges, and one step for each.
    """
    events: list[tuple[_Place, Evidence | Edge]] = [(one.place, one) for one in evidence]
    events += [(_place(edge), edge) for edge in plain(edges) if edge.organization_id == organization_id]
    names: dict[str, Evidence] = {}
    for _, event in sorted(events, key=itemgetter(0)):
        if isinstance(event, Evidence):
            person, name = event.id, event
        elif event.to_id is None:
            names.pop(event.from_id or "", None)
            continue
        elif event.from_id in names:
            person, name = event.to_id, names[event.from_id]
        else:
            continue
        if person not in names or names[person].age < name.age:
            names[person] = name
    return {person: (one.name, one.name_ts) for person, one in sorted(names.items())}


def needed_evidence(evidence: Iterable[Evidence], edges: Iterable[Edge], horizon: datetime) -> list[Evidence]:
    """The evidence that names can still depend on, when no request to come is executed before the horizon.

    Evidence is dropped where newer evidence of the same id is from before the horizon and no whole-person CONVERT or
    DELETE left the id between the two: whatever comes next meets both, and the newer one counts.
    """
    left: dict[str | None, list[_Place]] = {}
    for edge in plain(edges):
        left.setdefault(edge.from_id, []).append(_place(edge))
    kept: list[Evidence] = []
    newer: dict[tuple[str, int], Evidence] = {}
    for one in sorted(set(evidence), key=lambda each: (each.id, each.age), reverse=True):
        key = one.id, bisect_right(left.get(one.id, ()), one.place)
        if key not in newer or newer[key].name_ts >= horizon:
            kept.append(one)
            newer[key] = one
    return kept[::-1]


def plain(edges: Iterable[Edge]) -> list[Edge]:
    """The edges that move names, oldest first: of whole persons, not within a range, not from an id to itself.

    Of several edges with the same organization_id and request_id the first given counts, plain or not.
    """
    whole = (e for e in first_of_each(edges) if e.from_id is not None and e.from_id != e.to_id and not e.branches)
    return sorted(whole, key=_place)


def _place(edge: Edge) -> _Place:
    return edge.execution_ts, False, edge.request_id
