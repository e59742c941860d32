"""How an alert reads when it arrives: title and text of one message, and of several in one.

Pure functions. What is sent when is `outbox`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from engagement_platform.alerting.model import Alert, Message, State

# A message of a chat ends being read after a screen.
SHOWN_IN_SUMMARY = 20


def worded(alert: Alert, state: State, times: int, now: datetime, words: str = "") -> Message:
    """The message about one alert. words: what is said of a recovery; times: how often it was seen."""
    begins = {
        State.RAISED: f"[{alert.severity}]",
        State.REPEATED: f"[still {alert.severity}]",
        State.RECOVERED: "[recovered]",
    }[state]
    since = f"Since {_moment(alert.since)}"
    if state is State.RECOVERED:
        said, when = words, f"{since}, until {_moment(now)}."
    else:
        said, when = alert.body, f"{since}, seen {times} times." if times > 1 else f"{since}."
    labels = ", ".join(f"{name}: {value}" for name, value in sorted(alert.labels.items()))
    lines = [said, when, f"{alert.source}: {alert.key}", labels]
    return Message(state, alert.severity, f"{begins} {alert.title}", "\n".join(line for line in lines if line))


def summed_up(messages: Sequence[Message]) -> Message:
    """One message for several that were held back, oldest first; what is worst decides how it looks.

    At least one message.
    """
    worst = max(messages, key=lambda message: (message.state is not State.RECOVERED, message.severity.rank))
    shown = [f"- {message.title}" for message in messages[:SHOWN_IN_SUMMARY]]
    if len(messages) > SHOWN_IN_SUMMARY:
        shown.append(f"- and {len(messages) - SHOWN_IN_SUMMARY} more: engagement-platform alert list")
    title = f"{len(messages)} messages that were held back"
    return Message(worst.state, worst.severity, title, "\n".join(shown))


def _moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
