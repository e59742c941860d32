"""Results of checks stay in sight when another run writes the table they are about."""

# No `from __future__ import annotations`: Dagster reads the annotation of an asset's context.

from collections.abc import Iterator

import dagster as dg
import pytest

from engagement_platform.defs.evaluations import carry_over, newest, out_of_sight, report, report_again

TABLE = dg.AssetKey("table")
GOOD, BAD, NEVER = (dg.AssetCheckKey(TABLE, name) for name in ("good", "bad", "never"))
RESULTS = [
    dg.AssetCheckResult(passed=True, asset_key=TABLE, check_name="good"),
    dg.AssetCheckResult(passed=False, asset_key=TABLE, check_name="bad", metadata={"wrong": 3}, description="3 wrong"),
]


@dg.asset(key=TABLE)
def written() -> None: ...


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


def seen(instance: dg.DagsterInstance) -> list[str]:
    latest = instance.get_latest_materialization_event(TABLE)
    records = newest(instance, [GOOD, BAD, NEVER]).items()
    return [check.name for check, record in records if not out_of_sight(record, latest)]


def test_a_result_without_any_materialization_is_in_sight_and_a_check_without_a_result_has_none(
    instance: dg.DagsterInstance,
) -> None:
    report(instance, RESULTS)
    assert seen(instance) == ["good", "bad"]


def test_a_result_goes_out_of_sight_with_the_next_run_and_comes_back_when_it_is_reported_again(
    instance: dg.DagsterInstance,
) -> None:
    report(instance, RESULTS)
    run = dg.materialize([written], instance=instance)
    assert seen(instance) == []
    report_again(instance, newest(instance, [BAD]).values())
    assert seen(instance) == ["bad"]
    record = newest(instance, [BAD])[BAD]
    assert record.run_id == run.run_id
    assert record.evaluation is not None
    assert (record.evaluation.passed, record.evaluation.description) == (False, "3 wrong")
    assert record.evaluation.metadata["wrong"].value == 3
    first = record.evaluation.metadata["evaluated"]
    report_again(instance, newest(instance, [BAD]).values())
    again = newest(instance, [BAD])[BAD].evaluation
    assert again is not None
    assert again.metadata["evaluated"] == first


def test_a_run_carries_results_over_once(instance: dg.DagsterInstance) -> None:
    report(instance, RESULTS)

    @dg.asset(key=TABLE)
    def carrying(context: dg.AssetExecutionContext) -> None:
        context.log_event(dg.AssetMaterialization(TABLE))
        for _ in range(2):
            carry_over(context, [GOOD, BAD, NEVER])

    run = dg.materialize([carrying], instance=instance)
    assert seen(instance) == ["good", "bad"]
    for check in (GOOD, BAD):
        history = instance.event_log_storage.get_asset_check_execution_history(check, limit=10)
        assert [record.run_id == run.run_id for record in history] == [True, False]
