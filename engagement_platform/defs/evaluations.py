"""Keeps check results in sight while batches come: reported in the log of the run that wrote what they looked at.

Dagster shows a result as current when it came from the run of the asset's latest materialization, or after it. With a
batch every few seconds a result of any other run would be "Not evaluated" before anybody saw it.
"""

from __future__ import annotations

from collections.abc import Iterable

import dagster as dg


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
        told = evaluation(result)
        latest = instance.get_latest_materialization_event(told.asset_key)
        run = instance.get_run_by_id(latest.run_id) if latest and latest.run_id else None
        if run is None:
            instance.report_runless_asset_event(told)
            continue
        event = dg.DagsterEvent(
            event_type_value=dg.DagsterEventType.ASSET_CHECK_EVALUATION.value,
            job_name=run.job_name,
            event_specific_data=told,
            message=f"{told.asset_key.to_user_string()}: {told.check_name} {'passed' if told.passed else 'failed'}",
        )
        instance.report_dagster_event(event, run.run_id)


def carry_over(context: dg.AssetExecutionContext | dg.OpExecutionContext, checks: Iterable[dg.AssetCheckKey]) -> None:
    """Record the newest result of each check under this run as well; for a run that has just written its first batch.

    The result still says when it was come by (`evaluated`). A check without a result, or under way elsewhere, is
    left as it is.
    """
    for check in checks:
        for record in context.instance.event_log_storage.get_asset_check_execution_history(check, limit=1):
            told = record.evaluation
            if told is None or record.run_id == context.run.run_id:
                continue
            evaluated = {"evaluated": dg.MetadataValue.timestamp(record.create_timestamp), **told.metadata}
            context.log_event(  # accepted and stored, though its signature does not name it (Dagster 1.13)
                dg.AssetCheckEvaluation(
                    asset_key=told.asset_key,
                    check_name=told.check_name,
                    passed=told.passed,
                    metadata=evaluated,
                    severity=told.severity,
                    description=told.description,
                )  # type: ignore[arg-type]
            )
