"""Check results that no run has come by are recorded once, and read back with the time at which they were."""

from __future__ import annotations

import dagster as dg

from engagement_platform.defs.evaluations import newest_results, report, report_news

TABLE = dg.AssetKey("table")
GOOD, BAD, NEVER = (dg.AssetCheckKey(TABLE, name) for name in ("good", "bad", "never"))
RESULTS = [
    dg.AssetCheckResult(passed=True, asset_key=TABLE, check_name="good"),
    dg.AssetCheckResult(passed=False, asset_key=TABLE, check_name="bad", metadata={"wrong": 3}, description="3 wrong"),
]


@dg.asset(key=TABLE)
def written() -> None: ...


def test_a_reported_result_belongs_to_no_run_and_a_check_without_a_result_has_none(
    instance: dg.DagsterInstance,
) -> None:
    dg.materialize([written], instance=instance)
    report(instance, RESULTS)
    found = newest_results(instance, [GOOD, BAD, NEVER])
    assert set(found) == {GOOD, BAD}
    bad = found[BAD]
    assert (bad.run_id, bad.evaluation.passed, bad.evaluation.description) == ("", False, "3 wrong")
    assert bad.evaluation.metadata["wrong"].value == 3


def test_a_sensor_reports_its_results_again_after_a_materialization_and_not_before(
    instance: dg.DagsterInstance,
) -> None:
    context = dg.build_sensor_context(instance=instance)
    assert [report_news(context, RESULTS) for _ in range(2)] == [2, 0]
    before = newest_results(instance, [BAD])[BAD].timestamp
    dg.materialize([written], instance=instance)
    assert [report_news(context, RESULTS) for _ in range(2)] == [2, 0]
    assert newest_results(instance, [BAD])[BAD].timestamp > before
