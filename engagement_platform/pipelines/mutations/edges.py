"""An edge of identity as it was accepted, and an operation as it is applied to rows.

Values only, standard library only. Where edges end is decided in `identity`.
"""

from __future__ import annotations

from datetime import date, datetime
from typing import Literal, NamedTuple


class Edge(NamedTuple):
    """One accepted CONVERT or DELETE, as a row of `engagement/alias` has it. Ids verbatim, dates UTC.

    A tuple, since a batch makes one of each row that its organizations have there.
    """

    organization_id: str
    request_id: str
    """Unique within an organization."""
    operation: Literal["CONVERT", "DELETE"]
    from_id: str | None
    """None only for a DELETE of one engagement, whoever has it."""
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
    def order(self) -> tuple[datetime, str]:
        """Place among the edges of its organization: time, then request id by code points."""
        return self.execution_ts, self.request_id

    @property
    def branches(self) -> bool:
        """True when it may apply to some rows of an id and not to others: a range end or an engagement_id is given."""
        return not (
            self.engagement_id is None and self.engagement_date_from is None and self.engagement_date_to is None
        )

    def applies_to(self, person_id: str, engagement_id: str, engagement_date: date) -> bool:
        """Whether a row of its organization that has this identity when the edge is executed follows it.

        Says nothing about time: the caller offers only edges that come after engagement_ts and after the edge
        that brought the row to person_id.
        """
        return (
            (self.from_id is None or self.from_id == person_id)
            and (self.engagement_id is None or self.engagement_id == engagement_id)
            and (self.engagement_date_from is None or self.engagement_date_from <= engagement_date)
            and (self.engagement_date_to is None or engagement_date <= self.engagement_date_to)
        )


class Operation(NamedTuple):
    """What one change does to all rows of an id whose engagement_ts lies in [engaged_from, engaged_before).

    A tuple, in the order of the staged columns, so that many become a frame without touching each again.
    """

    organization_id: str
    from_id: str
    """The identity before all edges that were resolved together."""
    engaged_from: datetime | None
    """UTC, included; None is open. Rows from before it left the id by an earlier edge."""
    engaged_before: datetime
    """UTC, excluded: the execution_ts of the first edge such rows meet."""
    to_id: str | None
    """The identity after all edges; None: deleted."""
    request_id: str
    """The first edge such rows meet."""
