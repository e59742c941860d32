"""Which engagements are an erased person's, by the edges of identity. Pure functions: no Spark, no I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from engagement_platform.pipelines.mutations.identity import Edge, Identities

Row = Mapping[str, Any]
"""The columns of an image that identity follows from."""

_WAS_DELETED = "\x1adeleted"
"""Where rows end that were deleted as the person's; no message can name it, for its control character."""


class Belonging:
    """Tells the rows of a person from others; edges: of their organizations all, in the order of acceptance."""

    def __init__(self, edges: Sequence[Edge], ids: Collection[str]) -> None:
        self._ids = frozenset(ids)
        turned = [_turned(edge, self._ids) for edge in edges if edge.from_id is not None]
        self._ends = Identities(turned)
        self._now = Identities(edges)
        self._staying = Identities(edge for edge in turned if edge.from_id not in self._ids)
        self._erased = self._now.erased_engagements()

    def holds(self, row: Row) -> bool:
        """Whether the person sent this row, has it now, or had it when it was deleted.

        Of a row that a DELETE of the one engagement hides it is enough that the person once had it.
        """
        if row["source_person_id"] is None:
            return False
        if row["source_person_id"] in self._ids:
            return True
        if (row["organization_id"], row["engagement_id"]) in self._erased and follow(self._now, row) is None:
            return follow(self._staying, row) in self._ids
        end = follow(self._ends, row)
        return end in self._ids or end == _WAS_DELETED


def follow(identities: Identities, row: Row) -> str | None:
    """The identity of a row; None: deleted."""
    names = ("organization_id", "source_person_id", "engagement_id", "engagement_ts", "engagement_date")
    return identities.follow(*(row[name] for name in names))


def leading_back(edges: Iterable[Edge], ids: Collection[str]) -> set[str]:
    """`ids`, and those from which edges lead to one of them, whatever their times: more than needed, never less."""
    return _closure(((edge.to_id, edge.from_id) for edge in edges), ids)


def leading_on(edges: Iterable[Edge], ids: Collection[str]) -> set[str]:
    """`ids`, and those to which edges lead from one of them, whatever their times: more than needed, never less."""
    return _closure(((edge.from_id, edge.to_id) for edge in edges), ids)


def _closure(steps: Iterable[tuple[str | None, str | None]], ids: Collection[str]) -> set[str]:
    after: dict[str, set[str]] = {}
    for start, end in steps:
        if start is not None and end is not None:
            after.setdefault(start, set()).add(end)
    found, left = set(ids), list(ids)
    while left:
        new = after.get(left.pop(), set()) - found
        found |= new
        left += new
    return found


def _turned(edge: Edge, ids: Collection[str]) -> Edge:
    """A DELETE of the person leads to an end of its own, which tells its rows from those of others."""
    if edge.operation == "DELETE" and edge.from_id in ids:
        return edge._replace(operation="CONVERT", to_id=_WAS_DELETED)
    return edge
