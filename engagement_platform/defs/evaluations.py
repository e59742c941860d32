"""Check results outside of the op that a check belongs to: reported without a run by sensors, and read back."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import dagster as dg

# Changes are reported at once, unchanged results this often, so that the history of a check stays readable.
REPORT_AGAIN_AFTER = timedelta(minutes=5)
# A check that is under way, or whose run died, has its result some records back.
_LOOK_BACK = 10


@dataclass(frozen=True)
class CheckResult:
    """A finished evaluation of a check."""

    evaluation: dg.AssetCheckEvaluation
    timestamp: float
    """When it was recorded, Unix time."""
    run_id: str
    """Empty for a result that a sensor reported."""


def evaluation(result: dg.AssetCheckResult) -> dg.AssetCheckEvaluation:
    """A result as an event that can be reported outside the op that its check belongs to."""
    assert result.asset_key is not None
    assert result.check_name is not None
    return dg.AssetCheckEvaluation(
        asset_key=result.asset_key,
        check_name=result.check_name,
        passed=bool(result.passed),
        metadata=dict(result.metadata or {}),
        severity=result.severity,
        description=result.description,
    )


def report(instance: dg.DagsterInstance, results: Iterable[dg.AssetCheckResult]) -> None:
    """Record results that no run has come by."""
    for result in results:
        instance.report_runless_asset_event(evaluation(result))


def report_news(context: dg.SensorEvaluationContext, results: Sequence[dg.AssetCheckResult]) -> int:
    """Report those of a sensor's results that are news, and keep in its cursor what was reported; returns how many."""
    keys = [result.asset_key for result in results if result.asset_key]
    events = context.instance.get_latest_materialization_events(keys)
    written = {key: event.timestamp for key, event in events.items() if event}
    news, cursor = news_of(results, context.cursor, time.time(), written)
    report(context.instance, news)
    context.update_cursor(cursor)
    return len(news)


def news_of(
    results: Sequence[dg.AssetCheckResult], cursor: str | None, now: float, written: dict[dg.AssetKey, float]
) -> tuple[list[dg.AssetCheckResult], str]:
    """Results that changed, that were reported a while ago, or before the newest materialization of their asset.

    The last since Dagster shows no result that is older than that. written: asset -> when that was, Unix time.
    Returns them, and the cursor that remembers what was reported: check -> [passed, Unix time].
    """
    reported: dict[str, tuple[bool, float]] = json.loads(cursor or "{}")
    news = []
    for result in results:
        assert result.asset_key is not None
        name = f"{result.asset_key.to_user_string()}:{result.check_name}"
        passed, at = reported.get(name, (None, 0.0))
        old = now - at >= REPORT_AGAIN_AFTER.total_seconds() or at < written.get(result.asset_key, 0.0)
        if passed != result.passed or old:
            news.append(result)
            reported[name] = (bool(result.passed), now)
    return news, json.dumps(reported)


def newest_results(
    instance: dg.DagsterInstance, checks: Iterable[dg.AssetCheckKey]
) -> dict[dg.AssetCheckKey, CheckResult]:
    """The newest result of each check that has one: a query, and one more for each that is under way or whose run died.

    Dagster's table holds other checks of these assets that bear one of these names; they were not asked for.
    """
    storage, asked = instance.event_log_storage, list(checks)
    found = {}
    for check, record in storage.get_latest_asset_check_execution_by_key(asked).items():
        history = [record]
        if not isinstance(record.evaluation, dg.AssetCheckEvaluation):
            history = list(storage.get_asset_check_execution_history(check, limit=_LOOK_BACK))
        done = (
            CheckResult(one.evaluation, one.event.timestamp, one.run_id)
            for one in history
            if isinstance(one.evaluation, dg.AssetCheckEvaluation) and one.event
        )
        if check in asked and (result := next(done, None)):
            found[check] = result
    return found
