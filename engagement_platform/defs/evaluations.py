"""Check results outside of the op that a check belongs to: reported without a run by sensors, and read back."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import dagster as dg

ERROR, WARN = dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN

REPORT_AGAIN_AFTER = timedelta(minutes=5)
"""Changes are reported at once, unchanged results this often, so that the history of a check stays readable."""
_NO_MARKDOWN = re.compile(r"(?i)(?!\d+[.)])(?!.*(?:://|www\.|\b_|_\b))[A-Za-z0-9(][\w .,;:()'\"`%/=?+\u2013\u2026-]*")
"""Sentences in which markdown finds at most code between backticks: a line of words."""
_LOOK_BACK = 10
"""A check that is under way, or whose run died, has its result some records back."""


@dataclass(frozen=True)
class CheckResult:
    """A finished evaluation of a check."""

    evaluation: dg.AssetCheckEvaluation
    timestamp: float
    """When it was recorded, Unix time."""
    run_id: str
    """Empty for a result that a sensor reported."""


def check_result(
    asset: dg.AssetKey,
    check: str,
    wrong: str | None,
    metadata: Mapping[str, Any] | None = None,
    *,
    severity: dg.AssetCheckSeverity = ERROR,
) -> dg.AssetCheckResult:
    """Passed when nothing is wrong. wrong: what is, and what to do; none or empty: nothing."""
    return dg.AssetCheckResult(
        passed=not wrong,
        asset_key=asset,
        check_name=check,
        severity=severity,
        description=as_code(wrong) if wrong else None,
        metadata=metadata,
    )


def as_code(sentence: str) -> str:
    """The sentence as a description, which Dagster and receivers of alerts render as markdown: as code, where a name
    from data in it could become a link, a picture or other markup."""
    if _NO_MARKDOWN.fullmatch(sentence):
        return sentence
    # CommonMark, "Code spans": as many backticks as nowhere inside, in one line.
    fence = "`" * (max(map(len, re.findall("`+", sentence)), default=0) + 1)
    return f"{fence} {' '.join(sentence.split())} {fence}"


def cannot_tell(
    asset: dg.AssetKey, check: str, why: object, metadata: Mapping[str, Any] | None = None
) -> dg.AssetCheckResult:
    """A warning, and no failure, where a check could not look."""
    return check_result(asset, check, f"Nobody can tell: {why}", metadata, severity=WARN)


def selected(
    context: dg.AssetCheckExecutionContext, results: Sequence[dg.AssetCheckResult]
) -> Iterator[dg.AssetCheckResult]:
    """Those a run asked for: one that materializes some assets by hand asks for the checks of those."""
    yield from (result for result in results if _check_of(result) in context.selected_asset_check_keys)


def _check_of(result: dg.AssetCheckResult) -> dg.AssetCheckKey:
    """Which check a result is of; Dagster leaves that open for checks in an op of their own."""
    assert result.asset_key is not None
    assert result.check_name is not None
    return dg.AssetCheckKey(result.asset_key, result.check_name)


def evaluation(result: dg.AssetCheckResult) -> dg.AssetCheckEvaluation:
    """A result as an event that can be reported outside the op that its check belongs to."""
    check = _check_of(result)
    return dg.AssetCheckEvaluation(
        asset_key=check.asset_key,
        check_name=check.name,
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
    """Report those of a sensor's results that changed, that were reported a while ago, or before the newest
    materialization of their asset: Dagster shows no result that is older than that. Returns how many.

    The cursor remembers what was reported: check -> [passed, Unix time].
    """
    reported: dict[str, tuple[bool, float]] = json.loads(context.cursor or "{}")
    now, asked = time.time(), [(_check_of(result), result) for result in results]
    written = context.instance.get_latest_materialization_events([check.asset_key for check, _ in asked])
    news = []
    for check, result in asked:
        name = f"{check.asset_key.to_user_string()}:{check.name}"
        passed, at = reported.get(name, (None, 0.0))
        event = written.get(check.asset_key)
        old = now - at >= REPORT_AGAIN_AFTER.total_seconds() or (event is not None and at < event.timestamp)
        if passed != result.passed or old:
            news.append(result)
            reported[name] = (bool(result.passed), now)
    report(context.instance, news)
    context.update_cursor(json.dumps(reported))
    return len(news)


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
