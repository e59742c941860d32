"""Freshness, and where alerts go."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field, SecretStr

from engagement_platform.settings.section import Section

SeverityName = Literal["info", "warning", "error"]


class QualitySettings(Section):
    freshness: timedelta = Field(
        default=timedelta(minutes=5),
        description="The freshness check fails when the oldest message that waits is older than this.",
    )


class AlertingSettings(Section):
    """Whom to tell of alerts, which, and how often."""

    urls: list[SecretStr] = Field(
        default_factory=list,
        description="Apprise URLs of those who are told: Slack, mail, a webhook ([alerts.md](alerts.md)). They hold "
        "tokens and are never printed. One JSON list in the environment. Empty: alerts are kept and listed, and "
        "nothing is sent.",
    )
    severities: list[SeverityName] = Field(
        default=["warning", "error"],
        description="Alerts of other severities are kept and listed, and not sent.",
    )
    mute: list[str] = Field(
        default_factory=list,
        description="Patterns of keys, as in file names (`check/*/layout`), whose alerts are kept and not sent.",
    )
    dedupe: timedelta = Field(
        default=timedelta(hours=1),
        description="An alert that goes on is told again at most once in so long; one that gets worse at once.",
    )
    settle: timedelta = Field(
        default=timedelta(minutes=2),
        description="A recovery is told when it has lasted so long. What fails again before that goes on as one alert: "
        "a check at its limit would otherwise send two messages a minute (sensors look every 30 s).",
    )
    per_minute: int = Field(
        default=10,
        ge=1,
        description="Most messages a minute to each URL. What is more is summed up in the last one. "
        "Slack takes one a second (a guess at what people take).",
    )
    timeout: timedelta = Field(
        default=timedelta(seconds=10),
        description="How long a URL may take to connect, and to answer. Sending goes on beside everything else, so "
        "this delays no run; Apprise itself spaces messages to some services by up to 5.5 s.",
    )
