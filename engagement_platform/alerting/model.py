"""The words of alerting: an alert, its severity, the states it goes through, a message about it.

Values only. Keeping them is `store`, wording them is `wording`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class Severity(StrEnum):
    """How bad, least first."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """0, 1, 2: the larger, the worse."""
        return list(Severity).index(self)


class State(StrEnum):
    """Where an alert stands, and what a message says of it."""

    RAISED = "raised"
    REPEATED = "repeated"
    RECOVERED = "recovered"


@dataclass(frozen=True)
class Alert:
    """Something that people should know of. Two with one key are the same trouble."""

    key: str
    """What is wrong where, such as `check/engagement/data/fresh`; stable from one look to the next."""
    severity: Severity
    title: str
    """One line, without a full stop."""
    body: str
    """What happened and what to do; sentences. No secrets, no contents of messages."""
    source: str
    """Who found it: `asset check`, `run`, `live-ops`."""
    since: datetime
    """When it began, as far as the source knows."""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Standing:
    """An alert as it is kept."""

    alert: Alert
    """With the `since` of its beginning and the words of its newest look."""
    state: State
    times: int
    """How often it was seen since it began."""
    seen_ts: datetime
    sent_ts: datetime | None
    """When the newest message about it was sent; None when none was."""


@dataclass(frozen=True)
class Message:
    """What is sent to one URL."""

    state: State
    severity: Severity
    title: str
    text: str
