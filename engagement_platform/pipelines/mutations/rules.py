"""What accepted requests make of the engagements and names of one organization, over Arrow tables.

Pure functions: no Spark, no I/O, no clock. The view applies them to what is pending, `apply-mutations` announces by
them, the move writes what they return, verification compares with it: there is no second implementation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.pipelines.engagements.rules import change_type
from engagement_platform.pipelines.engagements.schema import ROW, TIMESTAMP
from engagement_platform.pipelines.mutations.edges import Edge
from engagement_platform.pipelines.mutations.identity import Identities, identities_of, leading_to
from engagement_platform.pipelines.mutations.name_evidence import Said, Saying, names_of, plain
from engagement_platform.pipelines.state import Requests, newest_rows, one_chunk, struct_rows

CHANGE: Final = pa.schema(
    [
        *(ROW.field(name) for name in ("organization_id", "engagement_id", "engagement_date", "person_id")),
        pa.field("previous_person_id", pa.string()),
        pa.field("change_type", pa.string()),
    ]
)
"""A change that readers see, as it is announced."""


MOVE: Final = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("organization_id", "source_person_id", "engagement_id")),
        pa.field("engaged_from", TIMESTAMP),
        pa.field("engaged_before", TIMESTAMP),
        pa.field("to_id", pa.string()),
    ]
)
"""What edges do to the rows of an id. With engaged_before: rows of the id from [engaged_from, engaged_before) get
to_id, null when they are deleted. Without: rows of the id, or the engagement, are followed one by one."""


def moves(organization_id: str, state: pa.Table, since: int) -> pa.Table:
    """What the edges of one organization do to the rows that those from a sequence on may reach.

    state: schema STATE with every accepted CONVERT and DELETE. Returns schema MOVE: of each id that may be reached
    either its moves, at most one of which matches a row, or one row without engaged_before; and one for each engagement
    that any DELETE without a person names, since moves of its person must not bring it back.
    """
    edges = Requests.edges_of(organization_id, state)
    earlier = Requests.edges_of(organization_id, state, before=since)
    reached = leading_to(edges, set(edges) - set(earlier))
    return _moves(organization_id, Identities(edges), reached)


def moves_apart(organization_id: str, state: pa.Table, since: int) -> pa.Table:
    """The moves of the ids that the edges from a sequence on may reach: without those edges, and with them.

    Returns schema MOVE and `is_after`. An id of which some rows go one by one, without or with them, has no moves.
    """
    edges = Requests.edges_of(organization_id, state)
    earlier = Requests.edges_of(organization_id, state, before=since)
    reached = leading_to(edges, set(edges) - set(earlier))
    before, after = Identities(earlier), Identities(edges)
    apart = (before.branching() | after.branching()).intersection(reached)
    parts = []
    for is_after, identities in ((False, before), (True, after)):
        part = _moves(organization_id, identities, reached, apart)
        parts.append(part.append_column("is_after", pa.repeat(pa.scalar(is_after), part.num_rows)))
    return pa.concat_tables(parts)


def _moves(
    organization_id: str,
    identities: Identities,
    reached: Collection[tuple[str, str]],
    apart: Collection[tuple[str, str]] | None = None,
) -> pa.Table:
    """The moves of these ids. apart: those of which some rows go one by one; by default what `identities` says."""
    alone = identities.branching().intersection(reached) if apart is None else apart
    rows: list[dict[str, object]] = [{"source_person_id": person} for _, person in sorted(alone)]
    rows += [{"engagement_id": one} for _, one in sorted(identities.erased_engagements())]
    for operation in identities.operations():
        start = (organization_id, operation.from_id)
        if start in reached and start not in alone:
            times = {"engaged_from": operation.engaged_from, "engaged_before": operation.engaged_before}
            rows.append({"source_person_id": operation.from_id, "to_id": operation.to_id, **times})
    return pa.Table.from_pylist([{"organization_id": organization_id, **row} for row in rows], schema=MOVE)


def current_rows(organization_id: str, state: pa.Table, *, before: int | None = None) -> pa.Table:
    """The engagements of one organization under the identity and with the content that they have now.

    state: schema STATE: rows of the Data Table and the changeset, every accepted CONVERT and DELETE, and every accepted
    UPDATE of these rows. before: requests with this sequence and later ones do not count.
    Returns schema ROW, one row per engagement, by id; person_id is null where the row is deleted.
    Always from what the event said, so that applying a request twice changes nothing.
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
        if change is None or _seen(was) == _seen(now):
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
    """One name as it was said of an id."""

    id: str
    name: str
    name_ts: datetime
    """UTC: engagement_ts, or the execution_ts of a RENAME."""
    request_id: str | None
    """Of the RENAME; None for an engagement."""

    @classmethod
    def of(cls, state: pa.Table) -> list[Evidence]:
        """From the state."""
        return [cls(**row) for row in struct_rows(state, "said")]


def current_names(
    organization_id: str, evidence: Iterable[Evidence], edges: Sequence[Edge]
) -> dict[str, tuple[str, datetime]]:
    """Id -> the name that it has now and when that was said; ids without a name are absent.

    evidence: of all ids of the organization, as far as `needed_evidence` keeps it. edges: every accepted CONVERT and
    DELETE, in the order in which they were accepted.
    """
    said = [_saying(organization_id, one) for one in evidence]
    ends = ((e.organization_id, person) for e in edges for person in (e.from_id, e.to_id) if person is not None)
    ids = {(organization_id, one.id) for one in said} | set(ends)
    found = names_of(ids, said, edges)
    return {person: (one.name, one.name_ts) for (_, person), one in sorted(found.items())}


def needed_evidence(evidence: Iterable[Evidence], edges: Iterable[Edge], horizon: datetime) -> list[Evidence]:
    """The evidence that names can still depend on, when no request to come is executed before the horizon.

    Evidence is dropped where newer evidence of the same id was said before the horizon and no whole-person CONVERT or
    DELETE left the id between the two: whatever comes next meets both, and the newer one counts.
    """
    left: dict[str, list[tuple[datetime, bool, str]]] = {}
    for edge in plain(edges):
        left.setdefault(edge.from_id or "", []).append((edge.execution_ts, False, edge.request_id))
    kept: list[Evidence] = []
    newer: dict[str, Evidence] = {}
    for one in sorted(set(evidence), key=_order, reverse=True):
        held = newer.get(one.id)
        between = held and any(_place(one) < place < _place(held) for place in left.get(one.id, ()))
        if held is None or held.name_ts >= horizon or between:
            kept.append(one)
            newer[one.id] = one
    return kept[::-1]


def _seen(row: Mapping[str, object]) -> tuple[object, object]:
    return row["person_id"], row["engagement"]


def _saying(organization_id: str, one: Evidence) -> Saying:
    said = Said(one.name_ts, one.request_id is not None, one.request_id or "", one.name)
    return Saying(organization_id, one.id, said)


def _order(one: Evidence) -> tuple[str, datetime, bool, str, str]:
    return one.id, one.name_ts, one.request_id is not None, one.request_id or "", one.name


def _place(one: Evidence) -> tuple[datetime, bool, str]:
    """Where evidence stands among edges: at equal times requests come before engagements."""
    return one.name_ts, one.request_id is None, one.request_id or ""
