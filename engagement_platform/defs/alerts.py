"""The sensor that raises alerts of failed checks and failed runs, takes them back, and sends what is due.

It compares states and not events, so what failed and recovered between two looks is no alert. How often messages go to
`alerting.urls` is `alerting`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg

from engagement_platform.alerting.alerts import NOTHING_SENT, Alerts
from engagement_platform.alerting.model import Alert, Severity, State
from engagement_platform.defs.evaluations import CheckResult, as_code, newest_results
from engagement_platform.defs.sensors import Answer, own_runs, sensor
from engagement_platform.engine.database import open_engine
from engagement_platform.settings import Settings

CHECK, RUN = "asset check", "run"
SEVERITIES = {dg.AssetCheckSeverity.WARN: Severity.WARNING, dg.AssetCheckSeverity.ERROR: Severity.ERROR}

FIRST_LOOK_BACK = timedelta(hours=1)
"""Runs that ended since the tick before count; at the first tick those of so long."""
RUNS_AT_ONCE = 200
"""One query; after a long absence the rest comes with the next ticks."""
MAX_REASON_CHARS = 1000
"""Of an error; a whole plan of Spark says no more."""

LATE = timedelta(minutes=2)
"""An end of a run is found that is written so much later than others."""


@dataclass(frozen=True)
class RunsSeen:
    """Up to when ends of runs have been looked at, and those of the last moments, by run."""

    until: datetime
    ids: Mapping[str, datetime] = field(default_factory=dict)

    @classmethod
    def read(cls, written: Mapping[str, Any] | str) -> RunsSeen:
        """From a cursor; that of an earlier version is the moment only."""
        if isinstance(written, str):
            return cls(datetime.fromisoformat(written).replace(tzinfo=UTC))
        ids = {run: datetime.fromisoformat(at) for run, at in written["ids"].items()}
        return cls(datetime.fromisoformat(written["until"]), ids)

    def written(self) -> dict[str, Any]:
        """For a cursor."""
        return {"until": self.until.isoformat(), "ids": {run: at.isoformat() for run, at in self.ids.items()}}


News = Alert | str
"""An alert, or the words about its end."""


def check_key(check: dg.AssetCheckKey) -> str:
    """The alert of a check, such as check/engagement/data/fresh."""
    return f"check/{check.asset_key.to_user_string()}/{check.name}"


def news_of_check(check: dg.AssetCheckKey, result: CheckResult) -> News:
    """What the newest result of a check means."""
    evaluated, table = result.evaluation, check.asset_key.to_user_string()
    if evaluated.passed:
        return f"The check {check.name} of {table} passes again."
    remedy = evaluated.metadata.get("remedy")
    sentences = [evaluated.description or f"The check {check.name} failed; its page in the UI shows its figures"]
    sentences += [remedy.text] if isinstance(remedy, dg.TextMetadataValue) and remedy.text else []
    body = " ".join(sentence if sentence.endswith(".") else f"{sentence}." for sentence in sentences)
    labels = {"asset": table, "check": check.name, **({"run": result.run_id} if result.run_id else {})}
    began, severity = datetime.fromtimestamp(result.timestamp, UTC), SEVERITIES[evaluated.severity]
    return Alert(check_key(check), severity, f"{table}: {check.name} failed", body, CHECK, began, labels)


def news_of_runs(
    instance: dg.DagsterInstance, seen: RunsSeen, now: datetime, ours: Mapping[str, str] | None = None
) -> tuple[dict[str, News], RunsSeen]:
    """How the newest run of each job went, of those that ended since the last look; and what has been seen by now.

    ours: tags of the runs that are looked at; None: of all.
    """
    # Not beyond now: a run that ended by a clock that was ahead would hide all others until then.
    since, known = min(seen.until, now), set(seen.ids)
    lately = {run: at for run, at in seen.ids.items() if at > since - LATE}
    # An end may be written later than one that was earlier: by another machine, or to a database that was busy.
    statuses = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE]
    ended = dg.RunsFilter(statuses=statuses, updated_after=(since - LATE).replace(tzinfo=None), tags=ours)
    news: dict[str, News] = {}
    most = RUNS_AT_ONCE + len(known)
    for record in instance.get_run_records(ended, most, order_by="update_timestamp", ascending=True):
        run, at = record.dagster_run, record.update_timestamp.replace(tzinfo=UTC)
        key = _run_key(run)
        if run.run_id in known:
            # It came after those that were written late, and has been looked at.
            news.pop(key, None)
            continue
        since, lately[run.run_id] = min(max(since, at), now), at
        name = key.partition("/")[2]
        if run.status is dg.DagsterRunStatus.SUCCESS:
            news[key] = f"A later run of {name} succeeded."
        else:
            body = f"{as_code(_reason(instance, run))} The log of the run is in the UI."
            title, labels = f"a run of {name} failed", {"run": run.run_id}
            news[key] = Alert(key, Severity.ERROR, title, body, RUN, at, labels)
    return news, RunsSeen(since, lately)


def _run_key(run: dg.DagsterRun) -> str:
    """The alert of a job, such as run/verify_engagements; of assets that are materialized by hand, those."""
    if not run.job_name.startswith("__"):
        return f"run/{run.job_name}"
    assets = sorted(key.to_user_string() for key in run.asset_selection or ())
    return f"run/of/{'+'.join(assets) or run.job_name}"


def _reason(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str:
    """What the step that failed first raised, in one line; what Dagster says where no step did."""
    message = "The run failed"
    for kind in (dg.DagsterEventType.RUN_FAILURE, dg.DagsterEventType.STEP_FAILURE):
        for entry in instance.all_logs(run.run_id, of_type=kind)[:1]:
            event = entry.dagster_event
            error = getattr(event.event_specific_data, "error", None) if event else None
            while error is not None and error.cause is not None:
                error = error.cause
            message = error.message if error else (event.message if event else None) or message
    line = " ".join(message.split())
    return line[:MAX_REASON_CHARS] if line.endswith(".") else f"{line[:MAX_REASON_CHARS]}."


def record_news(alerts: Alerts, news: Mapping[str, News]) -> tuple[str, bool]:
    """Raise and recover; (how much of that was new, whether every alert is kept)."""
    states = [alerts.raised(one) for _, one in sorted(news.items()) if isinstance(one, Alert)]
    over = [alerts.recovered(key, one) for key, one in sorted(news.items()) if isinstance(one, str)]
    return f"{states.count(State.RAISED)} new alerts, {over.count(True)} over.", None not in (*states, *over)


_lock = threading.Lock()
_kept: list[tuple[Settings, Alerts]] = []


def alerts_of(settings: Settings) -> Alerts:
    """The one of this process for these settings: it knows which URLs are still busy with a message."""
    with _lock:
        if not _kept or _kept[0][0] != settings:
            _kept[:] = [(settings, Alerts(open_engine(settings.store_url), settings.alerting))]
        return _kept[0][1]


def send_alerts(context: dg.SensorEvaluationContext, settings: Settings) -> Answer:
    """Results of checks and ends of runs since the last tick."""
    now = datetime.now(UTC)
    alerts = alerts_of(settings)
    seen: dict[str, Any] = json.loads(context.cursor or "{}")
    assert context.repository_def is not None
    checks = {check_key(check): check for check in context.repository_def.asset_graph.asset_check_keys}
    results = {check_key(check): found for check, found in newest_results(context.instance, checks.values()).items()}
    looked = {key: result.timestamp for key, result in results.items()}
    news = {
        key: news_of_check(checks[key], result)
        for key, result in results.items()
        if seen.get("checks", {}).get(key) != result.timestamp
    }
    # Nothing will ever say that a check passes that no longer exists.
    gone = {one.alert.key for one in alerts.standing() if one.alert.source == CHECK} - checks.keys()
    news |= dict.fromkeys(gone, "There is no such check any more.")
    ends = RunsSeen.read(seen["runs"]) if "runs" in seen else RunsSeen(now - FIRST_LOOK_BACK)
    of_runs, ends = news_of_runs(context.instance, ends, now, own_runs(context))
    words, kept = record_news(alerts, {**news, **of_runs})
    if not kept:
        return dg.SkipReason(f"{words} The stores did not take all of them; the next tick tries again.")
    context.update_cursor(json.dumps({"checks": looked, "runs": ends.written()}, sort_keys=True))
    alerts.deliver_in_background()
    return dg.SkipReason(words if settings.alerting.urls else f"{words} {NOTHING_SENT}.")


def definitions() -> dg.Definitions:
    sends = sensor(
        "send_alerts",
        send_alerts,
        "Sends alerts of failed checks and failed runs, and of their end, to `alerting.urls`, in threads beside this "
        "sensor. `engagement-platform alert list` shows them.",
        every=30,
    )
    return dg.Definitions(sensors=[sends])
