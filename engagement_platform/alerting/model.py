"""The words of alerting: an alert, its severity and state, and the message about one alert or about several.

Values and pure functions. Keeping and sending them is `alerts`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

SHOWN_IN_SUMMARY = 20
"""A message of a chat ends being read after a screen."""


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
    """Where an alert is, and what a message is about."""

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
    """What found it: `asset check`, `run`, `live-ops`."""
    since: datetime
    """When it began, as far as the source knows."""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Message:
    """What is sent to one URL."""

    state: State
    severity: Severity
    title: str
    text: str


_DOT = re.compile(r"\.(?=[^\W\d_])")


def without_links(name: str) -> str:
    """A name as receivers of messages make no link of it.

    >>> without_links("live-ops/www.evil.example/figures")
    'live-ops/www[.]evil[.]example/figures'
    """
    return _DOT.sub("[.]", name)


def message_about(alert: Alert, state: State, times: int, until: datetime | None = None, recovery: str = "") -> Message:
    """The message about one alert. times: how often it was seen; until, recovery: when it was over, and its words."""
    begins = {
        State.RAISED: f"[{alert.severity}]",
        State.REPEATED: f"[still {alert.severity}]",
        State.RECOVERED: "[recovered]",
    }[state]
    when = f"Since {_moment(alert.since)}"
    if until is not None:
        when += f", until {_moment(until)}"
    elif times > 1:
        when += f", seen {times} times"
    labels = without_links(", ".join(f"{name}: {value}" for name, value in sorted(alert.labels.items())))
    body = recovery if state is State.RECOVERED else alert.body
    lines = [body, f"{when}.", f"{alert.source}: {without_links(alert.key)}", labels]
    return Message(state, alert.severity, f"{begins} {alert.title}", "\n".join(line for line in lines if line))


def summed_up(messages: Sequence[Message]) -> Message:
    """One message for several that were held back, oldest first, at least one; the worst decides how it looks."""
    worst = max(messages, key=lambda message: (message.state is not State.RECOVERED, message.severity.rank))
    shown = [f"- {message.title}" for message in messages[:SHOWN_IN_SUMMARY]]
    if len(messages) > SHOWN_IN_SUMMARY:
        shown.append(f"- and {len(messages) - SHOWN_IN_SUMMARY} more: engagement-platform alert list")
    title = f"{len(messages)} messages that were held back"
    return Message(worst.state, worst.severity, title, "\n".join(shown))


def _moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
