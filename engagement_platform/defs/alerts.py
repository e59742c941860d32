"""Failed checks and failed runs as alerts, and their recoveries: the sensor that looks at what Dagster has recorded.

It looks at where things stand and not at every event, so what failed and recovered while nobody looked is no news.
Whom to tell, and how often, is `alerting`.
"""

# No `from __future__ import annotations` beside Dagster's decorators.

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import dagster as dg

from engagement_platform.alerting.alerts import NOBODY, Alerts
from engagement_platform.alerting.model import Alert, Severity, State
from engagement_platform.defs.evaluations import CheckResult, newest_results
from engagement_platform.defs.platform import Platform
from engagement_platform.engine.database import open_engine
from engagement_platform.settings import Settings

CHECK, RUN = "asset check", "run"
SEVERITIES = {dg.AssetCheckSeverity.WARN: Severity.WARNING, dg.AssetCheckSeverity.ERROR: Severity.ERROR}

# Runs are counted from the tick before; a sensor that has never ticked looks back so far.
FIRST_LOOK_BACK = timedelta(hours=1)
# One query; after a long absence the rest comes with the next ticks.
RUNS_AT_ONCE = 200

# Of an error; a whole plan of Spark says no more.
MAX_REASON_CHARS = 1000


@dataclass(frozen=True)
class Seen:
    """What the sensor has seen, as its cursor."""

    checks: Mapping[str, float] = field(default_factory=dict)
    """Key of the alert -> when the newest result that was looked at was recorded, Unix time."""
    runs: Mapping[str, str] = field(default_factory=dict)
    """Kind of event -> cursor of the event log."""

    @classmethod
    def read(cls, cursor: str | None) -> "Seen":
        """From the sensor's cursor; nothing at its first tick."""
        return cls(**json.loads(cursor)) if cursor else cls()

    def written(self) -> str:
        """For the sensor's cursor."""
        return json.dumps({"checks": self.checks, "runs": self.runs}, sort_keys=True)


@dataclass(frozen=True)
class News:
    """What became of one key: an alert, or the words of its end."""

    key: str
    alert: Alert | None
    words: str = ""


def check_key(check: dg.AssetCheckKey) -> str:
    """The alert of a check, such as check/engagement/data/fresh."""
    return f"check/{check.asset_key.to_user_string()}/{check.name}"


def news_of_checks(
    results: Mapping[dg.AssetCheckKey, CheckResult], seen: Mapping[str, float]
) -> tuple[list[News], dict[str, float]]:
    """Results that were not looked at before, and what has been looked at now."""
    news, looked = [], {}
    for check, result in sorted(results.items(), key=lambda item: check_key(item[0])):
        key = check_key(check)
        looked[key] = result.timestamp
        if seen.get(key) != result.timestamp:
            news.append(_news_of_check(key, check, result))
    return news, looked


def _news_of_check(key: str, check: dg.AssetCheckKey, result: CheckResult) -> News:
    evaluated, table = result.evaluation, check.asset_key.to_user_string()
    if evaluated.passed:
        return News(key, None, f"The check {check.name} of {table} passes again.")
    remedy = evaluated.metadata.get("remedy")
    sentences = [evaluated.description or f"The check {check.name} failed; its page in the UI shows its figures"]
    sentences += [remedy.text] if isinstance(remedy, dg.TextMetadataValue) and remedy.text else []
    body = " ".join(sentence if sentence.endswith(".") else f"{sentence}." for sentence in sentences)
    labels = {"asset": table, "check": check.name, **({"run": result.run_id} if result.run_id else {})}
    began, severity = datetime.fromtimestamp(result.timestamp, UTC), SEVERITIES[evaluated.severity]
    return News(key, Alert(key, severity, f"{table}: {check.name} failed", body, CHECK, began, labels))


def news_of_runs(
    instance: dg.DagsterInstance, seen: Mapping[str, str], now: datetime
) -> tuple[list[News], dict[str, str]]:
    """How the newest ended run of each job went, of those that ended since, and how far that is."""
    newest: dict[str, dg.EventLogEntry] = {}
    looked = dict(seen)
    for kind in (dg.DagsterEventType.RUN_FAILURE, dg.DagsterEventType.RUN_SUCCESS):
        since = dg.RunStatusChangeRecordsFilter(kind, after_timestamp=(now - FIRST_LOOK_BACK).timestamp())
        cursor = seen.get(kind.value)
        found = instance.fetch_run_status_changes(
            kind if cursor else since, limit=RUNS_AT_ONCE, cursor=cursor, ascending=True
        )
        for record in found.records:
            entry = record.event_log_entry
            key = _run_key(instance, entry)
            if key not in newest or newest[key].timestamp <= entry.timestamp:
                newest[key] = entry
        if found.records:
            looked[kind.value] = found.cursor
    return [_news_of_run(key, entry) for key, entry in sorted(newest.items())], looked


def _run_key(instance: dg.DagsterInstance, entry: dg.EventLogEntry) -> str:
    """The alert of a job, such as run/verify_engagements; of assets that somebody materializes, those."""
    if entry.job_name and not entry.job_name.startswith("__"):
        return f"run/{entry.job_name}"
    run = instance.get_run_by_id(entry.run_id)
    assets = sorted(key.to_user_string() for key in (run.asset_selection or ())) if run else []
    return f"run/of/{'+'.join(assets) or entry.job_name or 'unknown'}"


def _news_of_run(key: str, entry: dg.EventLogEntry) -> News:
    name = key.partition("/")[2]
    if entry.dagster_event_type is dg.DagsterEventType.RUN_SUCCESS:
        return News(key, None, f"A later run of {name} succeeded.")
    began = datetime.fromtimestamp(entry.timestamp, UTC)
    body = f"{_reason(entry)} The log of the run is in the UI."
    return News(key, Alert(key, Severity.ERROR, f"a run of {name} failed", body, RUN, began, {"run": entry.run_id}))


def _reason(entry: dg.EventLogEntry) -> str:
    """What the step that failed first raised, in one line; what Dagster says where no step did."""
    event = entry.dagster_event
    failure = event.event_specific_data if event else None
    error = getattr(failure, "error", None)
    step = getattr(failure, "first_step_failure_event", None)
    if step is not None and step.step_failure_data.error is not None:
        error = step.step_failure_data.error
    while error is not None and error.cause is not None:
        error = error.cause
    said = error.message if error is not None else (event.message if event else None) or entry.user_message
    line = " ".join(said.split())
    return line[:MAX_REASON_CHARS] if line.endswith(".") else f"{line[:MAX_REASON_CHARS]}."


def vanished(alerts: Alerts, known: Iterable[str]) -> list[News]:
    """Alerts of checks that no longer exist: nothing will ever say that they passed."""
    there = set(known)
    standing = [one.alert for one in alerts.standing() if one.alert.source == CHECK]
    return [News(alert.key, None, "There is no such check any more.") for alert in standing if alert.key not in there]


def tell(alerts: Alerts, news: Iterable[News]) -> str:
    """Raise and recover; says how much of that was new."""
    raised = recovered = 0
    for one in news:
        if one.alert is not None:
            raised += alerts.raised(one.alert) is State.RAISED
        else:
            recovered += alerts.recovered(one.key, one.words)
    return f"{raised} new alerts, {recovered} over."


_lock = threading.Lock()
_kept: list[tuple[Settings, Alerts]] = []


def alerts_of(settings: Settings) -> Alerts:
    """The one of this process for these settings: it knows which URLs are still busy with a message."""
    with _lock:
        if not _kept or _kept[0][0] != settings:
            _kept[:] = [(settings, Alerts(open_engine(settings.store_url), settings.alerting))]
        return _kept[0][1]


@dg.sensor(
    minimum_interval_seconds=30, default_status=dg.DefaultSensorStatus.RUNNING,
    description="Tells people of failed checks and failed runs, and when they are over: to `alerting.urls`, in threads "
    "beside this sensor. `engagement-platform alert list` shows what stands.",
)  # fmt: skip
def tell_people(context: dg.SensorEvaluationContext, platform: Platform) -> dg.SkipReason:
    """Results of checks and ends of runs since the last tick."""
    settings = platform.settings()
    alerts = alerts_of(settings)
    seen = Seen.read(context.cursor)
    assert context.repository_def is not None
    checks = context.repository_def.asset_graph.asset_check_keys
    of_checks, checks_seen = news_of_checks(newest_results(context.instance, checks), seen.checks)
    of_runs, runs_seen = news_of_runs(context.instance, seen.runs, datetime.now(UTC))
    said = tell(alerts, [*of_checks, *of_runs, *vanished(alerts, map(check_key, checks))])
    context.update_cursor(Seen(checks_seen, runs_seen).written())
    alerts.deliver_in_background()
    return dg.SkipReason(said if settings.alerting.urls else f"{said} {NOBODY}.")


def definitions() -> dg.Definitions:
    """The sensor of this module."""
    return dg.Definitions(sensors=[tell_people])
