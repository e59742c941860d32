"""Sessions and days as a loop over page views makes them, drain by drain. Plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta

View = tuple[str, datetime]
"""User and moment."""
Session = tuple[str, datetime, datetime, int]
"""User, first and last view, views."""


@dataclass
class Chain:
    """What has been written after some drains, and what is still open."""

    gap: timedelta
    late: timedelta
    sessions: list[Session] = field(default_factory=list)
    late_views: int = 0
    opened: list[Session] = field(default_factory=list)
    watermark: datetime | None = None

    def drain(self, views: Sequence[View], *, closing: bool = True) -> None:
        """One batch: views that are too late are left out, the others join sessions; then those that are over go.

        closing: whether those go already; after a kill in the middle of a batch they go with the next that has rows.
        """
        for user, at in views:
            if self.watermark is not None and at + self.gap <= self.watermark:
                self.late_views += 1
                continue
            touching = [s for s in self.opened if s[0] == user and s[1] - self.gap < at < s[2] + self.gap]
            joined = (
                user, min([at, *(s[1] for s in touching)]), max([at, *(s[2] for s in touching)]),
                1 + sum(s[3] for s in touching),
            )  # fmt: skip
            self.opened = [session for session in self.opened if session not in touching] + [joined]
        if views:
            newest = max(at for _, at in views) - self.late
            self.watermark = max(newest, self.watermark or newest)
        if not closing:
            return
        over = [s for s in self.opened if self.watermark is not None and s[2] + self.gap <= self.watermark]
        self.opened = [session for session in self.opened if session not in over]
        self.sessions += over

    def days(self) -> list[tuple[date, int, int, int]]:
        """Days that are over: day, sessions, views, seconds."""
        if not self.sessions:
            return []
        mark = max(session[2] for session in self.sessions) - self.late
        found = []
        for day in sorted({session[2].date() for session in self.sessions}):
            end = datetime.combine(day, datetime.min.time(), mark.tzinfo) + timedelta(days=1)
            of_day = [session for session in self.sessions if session[2].date() == day]
            if end <= mark:
                seconds = sum(int((last - first).total_seconds()) for _, first, last, _ in of_day)
                found.append((day, len(of_day), sum(session[3] for session in of_day), seconds))
        return found
