"""Keeps check results in sight while batches come: reported in the log of the run that wrote what they looked at.

Dagster shows a result as current when it came from the run of the asset's latest materialization, or after it. With a
batch every few seconds a result of any other run would be "Not evaluated" before anybody saw it.
"""

from __future__ import annotations

from collections.abc import Iterable

import dagster as dg
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecord


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
    """Record results under the run of each asset's latest materialization; without a run where there is none."""
    for result in results:
        _report(instance, evaluation(result))


def _report(instance: dg.DagsterInstance, told: dg.AssetCheckEvaluation) -> None:
    latest = instance.get_latest_materialization_event(told.asset_key)
    run = instance.get_run_by_id(latest.run_id) if latest and latest.run_id else None
    if run is None:
        instance.report_runless_asset_event(told)
        return
    event = dg.DagsterEvent(
        event_type_value=dg.DagsterEventType.ASSET_CHECK_EVALUATION.value,
        job_name=run.job_name,
        event_specific_data=told,
        message=f"{told.asset_key.to_user_string()}: {told.check_name} {'passed' if told.passed else 'failed'}",
    )
    instance.report_dagster_event(event, run.run_id)


def newest(
    instance: dg.DagsterInstance, checks: Iterable[dg.AssetCheckKey]
) -> dict[dg.AssetCheckKey, AssetCheckExecutionRecord]:
    """The newest result of each check, in one query; without those that have none yet, or are under way."""
    asked = list(checks)
    records = instance.event_log_storage.get_latest_asset_check_execution_by_key(asked)
    return {check: records[check] for check in asked if check in records and records[check].evaluation}


def out_of_sight(record: AssetCheckExecutionRecord, latest: dg.EventLogEntry | None) -> bool:
    """Whether a result is older than the asset's latest materialization, and of another run."""
    if latest is None or latest.run_id == record.run_id:
        return False
    return record.create_timestamp < latest.timestamp


def report_again(instance: dg.DagsterInstance, records: Iterable[AssetCheckExecutionRecord]) -> None:
    """Record results once more, where `report` does."""
    for record in records:
        _report(instance, _again(record))


def carry_over(context: dg.AssetExecutionContext | dg.OpExecutionContext, checks: Iterable[dg.AssetCheckKey]) -> None:
    """Record the newest result of each check under this run as well; for a run that has just written its first batch.

    The result still says when it was come by (`evaluated`). A check without a result, or under way elsewhere, is
    left as it is.
    """
    for record in newest(context.instance, checks).values():
        if record.run_id != context.run.run_id:
            # Accepted and stored, though its signature does not name it (Dagster 1.13).
            context.log_event(_again(record))  # type: ignore[arg-type]


def _again(record: AssetCheckExecutionRecord) -> dg.AssetCheckEvaluation:
    """The result of a record, which says when it was come by."""
    told = record.evaluation
    assert told is not None
    return dg.AssetCheckEvaluation(
        asset_key=told.asset_key,
        check_name=told.check_name,
        passed=told.passed,
        metadata={"evaluated": dg.MetadataValue.timestamp(record.create_timestamp), **told.metadata},
        severity=told.severity,
        description=told.description,
    )
