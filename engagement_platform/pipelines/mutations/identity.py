"""Which person a row belongs to after all accepted CONVERTs and DELETEs: one row, and whole Arrow columns.

Pure functions; nothing here reads or writes a table.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from datetime import date, datetime
from operator import attrgetter, itemgetter
from typing import Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.lake.arrow import moments

_Id = tuple[str, str]
"""organization_id, and an id within it."""


class Edge(NamedTuple):
    """One accepted CONVERT or DELETE, as a row of `engagement/alias` has it. Ids verbatim, dates UTC."""

    organization_id: str
    request_id: str
    """Unique within an organization."""
    operation: Literal["CONVERT", "DELETE"]
    from_id: str | None
    """None only for a DELETE of one engagement, whatever its person."""
    to_id: str | None
    """None for DELETE."""
    engagement_id: str | None
    engagement_date_from: date | None
    """First day, included; None is open."""
    engagement_date_to: date | None
    """Last day, included; None is open."""
    execution_ts: datetime
    """UTC. Only engagements whose engagement_ts is strictly earlier are subject to this edge."""

    @property
    def branches(self) -> bool:
        """Whether it may apply to some rows of an id and not to others: it has a range or an engagement_id."""
        return (self.engagement_id, self.engagement_date_from, self.engagement_date_to) != (None, None, None)

    def applies_to(self, person_id: str, engagement_id: str, engagement_date: date) -> bool:
        """Whether a row that has this identity when the edge is executed follows it; its time is not looked at."""
        return (
            (self.from_id is None or self.from_id == person_id)
            and (self.engagement_id is None or self.engagement_id == engagement_id)
            and (self.engagement_date_from is None or self.engagement_date_from <= engagement_date)
            and (self.engagement_date_to is None or engagement_date <= self.engagement_date_to)
        )


class Operation(NamedTuple):
    """What all edges together do to the rows of an id whose engagement_ts lies in [engaged_from, engaged_before)."""

    organization_id: str
    from_id: str
    engaged_from: datetime | None
    """UTC; None is open. Rows from before it left the id by an earlier edge."""
    engaged_before: datetime
    """UTC: the execution_ts of the first edge such rows meet."""
    to_id: str | None
    """None: deleted."""


class _Depends:
    """An end that differs between the rows of an id."""


_DEPENDS: Final = _Depends()
_End = str | None | _Depends
_Step = tuple[Edge, _End]
"""An edge, and where a row that follows it ends."""

ORDER: Final = attrgetter("execution_ts", "request_id")
"""Place among the edges of an organization: time, then request id by code points. By fields and in C: with a property
10,000 edges took 31 ms instead of 17."""


class Identities:
    """The edges of one or many organizations, each resolved to where it ends.

    Of several edges with the same organization_id and request_id the first counts. Cost: one sort, then a few
    dictionary look-ups per edge: about 20 ms for 10,000 edges (one core, Python 3.11), whatever the chains.
    Edges are taken from newest to oldest: final[from] = final.get(to, to), DELETE ends in None.
    """

    def __init__(self, edges: Iterable[Edge]) -> None:
        self._leaving: dict[_Id, list[_Step]] = {}
        self._erasing: dict[_Id, list[Edge]] = {}
        self._branching: set[_Id] = set()
        # Where a row goes that sits at an id just before the edges looked at so far.
        final: dict[_Id, _End] = {}
        self._newest_first = sorted(first_of_each(edges), key=ORDER, reverse=True)
        for edge in self._newest_first:
            if edge.from_id is None:
                if edge.engagement_id is not None:
                    self._erasing.setdefault((edge.organization_id, edge.engagement_id), []).append(edge)
            elif edge.from_id != edge.to_id:
                start = (edge.organization_id, edge.from_id)
                end = None if edge.to_id is None else final.get((edge.organization_id, edge.to_id), edge.to_id)
                final[start] = _DEPENDS if edge.branches else end
                if final[start] is _DEPENDS:
                    self._branching.add(start)
                self._leaving.setdefault(start, []).append((edge, end))
        for steps in self._leaving.values():
            steps.reverse()

    def follow(
        self,
        organization_id: str,
        source_person_id: str,
        engagement_id: str,
        engagement_ts: datetime,
        engagement_date: date,
    ) -> str | None:
        """The identity of one row after all edges that it is subject to; None: deleted.

        engagement_ts: UTC; only edges with a later execution_ts count. engagement_date: its UTC date.
        Cost: a bisection, and for ids in `branching` one more per hop and a look at the branching edges of each.
        """
        for edge in self._erasing.get((organization_id, engagement_id), ()):
            # Whatever person has the engagement by then: no conversion takes it out of reach.
            if edge.execution_ts > engagement_ts and edge.applies_to(source_person_id, engagement_id, engagement_date):
                return None
        person_id = source_person_id
        steps = self._leaving.get((organization_id, person_id), [])
        place = bisect_right(steps, engagement_ts, key=lambda step: step[0].execution_ts)
        while place < len(steps):
            edge, end = steps[place]
            if not edge.applies_to(person_id, engagement_id, engagement_date):
                place += 1
            elif not isinstance(end, _Depends):
                return end
            else:
                # An end that depends is never that of a DELETE.
                person_id = edge.to_id or person_id
                steps = self._leaving.get((organization_id, person_id), [])
                place = bisect_right(steps, ORDER(edge), key=lambda step: ORDER(step[0]))
        return person_id

    def operations(self) -> list[Operation]:
        """What happens to the rows of ids whose end is the same for all rows of a time: at most one matches a row.

        Rows of ids in `branching` and of engagements in `erased_engagements` go by `follow` instead; rows that
        neither those nor an operation match keep their identity. Ordered by id and time; at most one per edge.
        """
        found = []
        for start, steps in sorted(self._leaving.items(), key=itemgetter(0)):
            previous: datetime | None = None
            for edge, end in steps if start not in self._branching else ():
                # Of equal times the first edge takes all rows. An end at from_id is a cycle, and an operation all the
                # same: requests that came earlier may have taken its rows elsewhere, and now they come back.
                if edge.execution_ts != previous and not isinstance(end, _Depends):
                    found.append(Operation(*start, previous, edge.execution_ts, end))
                previous = edge.execution_ts
        return found

    def starts(self) -> set[_Id]:
        """(organization_id, person id) that an edge leaves."""
        return set(self._leaving)

    def branching(self) -> set[_Id]:
        """(organization_id, person id) from which some rows may meet an edge with a range or an engagement_id."""
        return set(self._branching)

    def erased_engagements(self) -> set[_Id]:
        """(organization_id, engagement_id) named by a DELETE without from_id, which no person id leads to."""
        return set(self._erasing)

    def reached_by(self, new: Iterable[Edge]) -> set[_Id]:
        """The ids whose rows these of the edges may have given another identity: (organization_id, source_person_id).

        Engagements that a DELETE in `new` names without a person have no id by which they are found, see
        `erased_engagements`. Cost: two set look-ups per edge.
        """
        added = set(new)
        # Ids from which a row that sits there just before the edges looked at so far may meet a new one.
        leading: set[_Id] = set()
        ever: set[_Id] = set()
        for edge in self._newest_first:
            if edge.from_id is None or edge.from_id == edge.to_id:
                continue
            start = (edge.organization_id, edge.from_id)
            if edge in added or (edge.to_id is not None and (edge.organization_id, edge.to_id) in leading):
                leading.add(start)
                ever.add(start)
            elif not edge.branches:
                # All rows that sit here before it follow it, so none of them meets a new edge that leaves later.
                leading.discard(start)
        return ever


def first_of_each(edges: Iterable[Edge]) -> Iterable[Edge]:
    """The first edge of each request."""
    first: dict[_Id, Edge] = {}
    for edge in edges:
        first.setdefault((edge.organization_id, edge.request_id), edge)
    return first.values()


def identities_of(rows: pa.Table, identities: Identities) -> pa.Array:
    """The identity of each row after all edges that it is subject to; null: deleted.

    rows: organization_id, source_person_id, engagement_id (text), engagement_date, engagement_ts (UTC), other columns
    are not looked at. Raises ValueError where one of these is null, since that would look like a deleted row.
    Cost: two hash look-ups a row, and `follow`, about 4 µs, for rows whose person or engagement an edge names.
    """
    columns = ("organization_id", "source_person_id", "engagement_id", "engagement_ts", "engagement_date")
    for name in columns:
        if rows[name].null_count:
            raise ValueError(f"{name} is null in {rows[name].null_count} rows; a row without it has no identity")
    texts = {name: rows[name].cast(pa.string()).combine_chunks() for name in columns[:3]}
    source = texts["source_person_id"]
    reached = pc.or_(
        pc.is_in(source, _ids(identities.starts())),
        pc.is_in(texts["engagement_id"], _ids(identities.erased_engagements())),
    )
    few = pa.table({**texts, **{name: rows[name] for name in columns[3:]}}).filter(reached)
    values = (moments(few[name]) if name == "engagement_ts" else few[name].to_pylist() for name in columns)
    ends = [identities.follow(*row) for row in zip(*values, strict=True)]
    return pc.replace_with_mask(source, reached, pa.array(ends, pa.string()))


def _ids(pairs: set[_Id]) -> pa.Array:
    return pa.array(sorted({one for _, one in pairs}), pa.string())
