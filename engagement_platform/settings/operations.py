"""Freshness, alerts, consumers and what Dagster does by itself."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Literal

from pydantic import Field, SecretStr

from engagement_platform.settings.section import Duration, Section

SeverityName = Literal["info", "warning", "error"]


class QualitySettings(Section):
    freshness: Duration = timedelta(minutes=5)
    """The freshness check fails when the oldest message that waits is older than this."""


class AlertingSettings(Section):
    """Whom to tell of alerts, which, and how often."""

    urls: list[SecretStr] = Field(default_factory=list)
    """Apprise URLs that alerts are sent to: Slack, mail, a webhook ([alerts.md](alerts.md)). They hold tokens and are
    never printed. One JSON list in the environment. Empty: alerts are kept and listed, and nothing is sent."""
    severities: list[SeverityName] = Field(["warning", "error"])
    """Alerts of other severities are kept and listed, and not sent."""
    mute: list[str] = Field(default_factory=list)
    """Patterns of keys, as in file names (`check/*/layout`), whose alerts are kept and not sent."""
    dedupe: Duration = timedelta(hours=1)
    """An alert that goes on is sent again at most once in so long; one that gets worse at once."""
    settle: Duration = timedelta(minutes=2)
    """A recovery is sent when it has lasted so long. What fails again before that goes on as one alert: a check at its
    limit would otherwise send two messages a minute (sensors look every 30 s)."""
    per_minute: int = Field(10, ge=1)
    """Most messages a minute to each URL. What is more is summed up in the last one. Slack takes one a second (a guess
    at what people take)."""
    timeout: Duration = timedelta(seconds=10)
    """How long a URL may take to connect, and to answer. Sending goes on beside everything else, so this delays no run;
    Apprise itself spaces messages to some services by up to 5.5 s."""


class ConsumerSettings(Section):
    """How long a consumer of changes may be behind, and what is kept for it meanwhile."""

    max_lag: Duration = timedelta(hours=1)
    """The check `consumers_keep_up` warns when the oldest change that a consumer has not read is older."""
    keep_for: Duration = timedelta(days=7)
    """What a consumer has yet to read is kept from VACUUM until it has committed nothing for so long; from then on its
    next read may be refused, with the advice to take a snapshot. One that nobody runs any more would otherwise keep
    files for ever. More than 7 days keeps files and no consumer: the log of a table, by which it goes on, has the
    entries of 7 days."""
    poll: Duration = timedelta(seconds=1)
    """How often `consume --follow` looks for new changes; one small request."""


class DagsterSettings(Section):
    owners: list[str] = Field(default_factory=lambda: ["team:engagement-platform"])
    """Owners of all assets, each an address or team:NAME."""
    overdue_after: timedelta = Field(timedelta(days=1), ge=timedelta(minutes=1))
    """A table of engagements or profiles that was not materialized for so long is overdue in the UI: Dagster's own
    freshness policy. Whether messages wait is the check `fresh`."""
    automation: Literal["running", "stopped"] = "stopped"
    """State in which sensors and schedules are loaded, until they are switched in the UI. `engagement-platform up`
    sets `running`."""
    shared_drain: bool = False
    """Whether one run drains for all pipelines that ship, by turns in one process, or one run for each. On one machine
    the one run is cheaper, and `engagement-platform up` sets it; runs for each use several machines. Decides which
    sensors are loaded as running; jobs of both kinds can always be launched."""
    report_interval: Duration = timedelta(minutes=5)
    """How often a run that drains for long records an event of each asset, with the sums of its batches: a
    materialization at most once in `health.check_pause`, an observation in between. Events of each batch would fill
    Dagster's database."""
    first_day: date | None = None
    """First day partition, of days on which batches were ingested. Not set: the day of the first batch that the stores
    know, which Dagster's processes read when they load the definitions."""
    secrets: list[str] = Field(default_factory=list)
    """ARNs of secrets in AWS Secrets Manager, each named like a variable of these settings, such as
    prod/ENGAGEMENT_PLATFORM_STORES__URL; what is before the last / is free. Dagster's processes fetch them when they
    load the definitions, and they win over variables: reload the code location after a rotation. Other commands take
    variables only."""
    retention: Duration = timedelta(days=14)
    """How long Dagster's database keeps runs that have ended, their events and the results of checks; the job
    `remove_old_runs` removes the others every night. The newest of each asset and check stays."""
