"""Groups of settings about telling people: whom, and what is worth it. Where they are read from is `settings`.

Values and reasons only.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field, SecretStr

from engagement_platform.sections import Section

SeverityName = Literal["info", "warning", "error"]


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
        description="Patterns of keys, as in file names (`check/*/small_files`), whose alerts are kept and not sent.",
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
        description="Most messages a minute to each URL. What is more is held back and summed up in the next message. "
        "Slack takes one a second (a guess at what people take).",
    )
    timeout: timedelta = Field(
        default=timedelta(seconds=10),
        description="How long a URL may take for one message. Sending goes on beside everything else, so this delays "
        "no run; Apprise itself spaces messages to some services by up to 5.5 s.",
    )
    keep_trying: timedelta = Field(
        default=timedelta(hours=1),
        description="A message that a URL did not take is sent again, after ever longer pauses, until it is this old.",
    )


class LiveOpsSettings(Section):
    """When the figures of a game are worth an alert. How they are compared is in docs/alerts.md."""

    watch: timedelta = Field(
        default=timedelta(hours=2),
        description="After a change of live-ops, figures are judged more strictly for so long.",
    )
    change_drop: float = Field(
        default=0.2, gt=0, lt=1, description="After a change: a smaller drop below the expected figure is never told."
    )
    change_chance: float = Field(
        default=1e-6,
        gt=0,
        lt=1,
        description="After a change: told when a drop is less likely by chance. 2,400 looks in two hours make a false "
        "alarm in some hundred changes.",
    )
    drop: float = Field(
        default=0.4, gt=0, lt=1, description="Without a change: a smaller drop below the expected figure is never told."
    )
    chance: float = Field(
        default=1e-9,
        gt=0,
        lt=1,
        description="Without a change: told when a drop is less likely by chance; 800,000 looks a game in four weeks.",
    )
    silence_events: float = Field(
        default=30.0,
        gt=0,
        description="A game is silent when nothing came for so long that so many events were expected. With Poisson's "
        "chances that is one false alarm in 10^13 looks; games are not that regular.",
    )
    shortest_silence: timedelta = Field(
        default=timedelta(minutes=3),
        description="A shorter silence is never told: a delivery that is late by a minute or two is no outage.",
    )
    delay: timedelta = Field(
        default=timedelta(minutes=2),
        description="How long events take from a device to a table. A minute is judged when events were ingested so "
        "long after it; judged earlier, a minute whose events are still coming looks like a drop. (A guess: batches "
        "of some seconds after objects of a minute.)",
    )
    patience: timedelta = Field(
        default=timedelta(minutes=15),
        description="When no game sends anything, time goes on by this machine's clock, so long behind it, so that "
        "silence of the only game is told, too. A pause of ingestion that is longer looks like silence of all.",
    )
    players_open: timedelta = Field(
        default=timedelta(days=1),
        description="Who was there in a minute is kept for so long. What comes later than that adds to all figures of "
        "its minute but `players`. 100,000 players of a minute's figures take about 10 MB (a guess).",
    )
    poll: timedelta = Field(
        default=timedelta(seconds=5),
        description="How often `live-ops run --follow` looks at the figures.",
    )
    automatic: bool = Field(
        default=False,
        description="Whether Dagster's sensor `live_ops_automation` is on from the start: a run after new events, at "
        "most once a minute. Not beside `live-ops run --follow`, which does the same without runs: of two, one would "
        "stop with CursorMoved. `up` sets it where it runs simulated games, unless it is set already.",
    )
