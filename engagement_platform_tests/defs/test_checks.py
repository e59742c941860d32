"""What the checks make of findings and figures."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pytest
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError

from engagement_platform.consumers import Position
from engagement_platform.consumers.lag import Behind, Lag
from engagement_platform.defs import checks
from engagement_platform.defs.backlog import Waiting
from engagement_platform.defs.checks import (
    DATA,
    QUARANTINE_WARN_PERCENT,
    freshness_result,
    keep_up_result,
    quarantine_share_result,
)
from engagement_platform.defs.evaluations import cannot_tell, report
from engagement_platform.defs.verification import (
    ALIASES,
    SEE,
    TABLE_CHECKS,
    guards_kept,
    landed_in,
    sample_day,
    table_check_results,
)
from engagement_platform.engine.model import Manifest
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.engagement import ALIAS, NOTIFICATION
from engagement_platform.maintenance.verify.finding import Finding
from engagement_platform.pipelines.jobs import INGEST_ENGAGEMENTS, open_stores
from engagement_platform.settings import Settings
from engagement_platform_tests.consumers.lakes import PlainLake
from engagement_platform_tests.consumers.test_changes import land

NOW = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
LIMIT, MAX_LAG = timedelta(minutes=5), timedelta(hours=1)
EVERYWHERE = {asset for asset, _ in TABLE_CHECKS}


def finding(check: str, wrong: int = 0) -> Finding:
    return Finding(check, f"{check} means", 100, wrong, ["e-1", "e-2"] if wrong else [])


ALL = (
    "ledger", "lost", "vanished", "doubled", "announced", "notified_twice", "quarantined_twice",
    "identity", "contents", "names", "accepted_once",
)  # fmt: skip


def test_every_finding_of_verify_decides_a_check() -> None:
    assert sorted(name for names, _ in TABLE_CHECKS.values() for name in names) == sorted(ALL)


@pytest.mark.parametrize("broken", ALL)
def test_one_broken_rule_fails_its_own_check_alone_and_says_which_rows(broken: str) -> None:
    results = table_check_results([finding(name, wrong=2 if name == broken else 0) for name in ALL], EVERYWHERE)
    failed = [result for result in results if not result.passed]
    assert len(failed) == 1
    assert broken in next(names for (_, check), (names, _) in TABLE_CHECKS.items() if check == failed[0].check_name)
    # Of names the rows are persons: what Dagster keeps, and what goes out as an alert, is beyond any erasure.
    which = SEE if broken == "names" else ", such as e-1, e-2"
    assert failed[0].description == f"2 of 100 break the rule that {broken} means{which}"


def test_before_the_first_batch_everything_passes() -> None:
    assert all(result.passed for result in table_check_results([finding("ledger")], landed=set()))


@pytest.mark.parametrize("missing", ALL)
def test_what_was_not_looked_for_warns_in_its_own_check_once_something_has_landed(missing: str) -> None:
    results = table_check_results([finding(name) for name in ALL if name != missing], EVERYWHERE)
    [failed] = [result for result in results if not result.passed]
    assert missing in TABLE_CHECKS[failed.asset_key or DATA, failed.check_name or ""][0]
    assert failed.description == f"Nobody can tell: {missing} was not looked for, though something has landed"
    assert failed.severity is dg.AssetCheckSeverity.WARN


def test_what_is_known_to_be_wrong_is_an_error_also_when_the_rest_was_not_looked_for() -> None:
    results = table_check_results([finding("ledger", wrong=1)], {DATA})
    failed = {result.check_name: result.severity for result in results if not result.passed}
    assert failed.pop("nothing_lost") is dg.AssetCheckSeverity.ERROR
    assert failed == dict.fromkeys(["unique_engagement_id", "identity", "contents"], dg.AssetCheckSeverity.WARN)


def test_something_has_landed_when_a_batch_has_finished_or_an_alias_stands(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    stores = open_stores(settings)

    def begin(batch: int) -> Manifest:
        app_id = stores.checkpoints.app_id(INGEST_ENGAGEMENTS)
        begun = Manifest(INGEST_ENGAGEMENTS, app_id, batch, {"0": batch}, {"0": batch + 1}, NOW, {})
        stores.checkpoints.begin(begun)
        return begun

    write_deltalake(ALIAS.uri(settings.lake), table_of([], ALIAS))
    first = begin(0)
    assert landed_in(settings, stores) == set(), "a batch that is under way may have written nothing yet"
    stores.checkpoints.succeed(first, {})
    begin(1)
    assert landed_in(settings, stores) == EVERYWHERE - {ALIASES}
    edge = table_of([{"organization_id": "org-1", "request_id": "r-1", "batch_id": 0}], ALIAS)
    write_deltalake(ALIAS.uri(settings.lake), edge, mode="append")
    assert landed_in(settings, stores) == EVERYWHERE


@pytest.mark.parametrize(
    ("age", "passed"),
    [(None, True), (timedelta(0), True), (LIMIT, True), (LIMIT + timedelta(seconds=1), False)],
)
def test_exactly_the_limit_is_fresh(age: timedelta | None, passed: bool) -> None:
    oldest = None if age is None else NOW - age
    assert freshness_result(DATA, oldest, 7, NOW, LIMIT).passed is passed


def test_exactly_the_limit_of_rejected_records_is_fine_and_so_is_no_record() -> None:
    def passes(**jobs: tuple[int, int]) -> bool | None:
        counts = {job: {"rows_in": rows_in, "quarantined": rejected} for job, (rows_in, rejected) in jobs.items()}
        return quarantine_share_result(counts, QUARANTINE_WARN_PERCENT).passed

    assert QUARANTINE_WARN_PERCENT == 5
    assert passes()
    assert passes(a=(0, 0))
    assert passes(a=(100, 5))
    assert not passes(a=(100, 6))
    assert passes(a=(1, 1))
    assert not passes(a=(2, 2))


def test_requests_that_are_all_rejected_are_not_hidden_by_many_engagements() -> None:
    jobs = {"engagements": {"rows_in": 200_000}, "requests": {"rows_in": 3_000, "quarantined": 3_000}}
    result = quarantine_share_result(jobs, QUARANTINE_WARN_PERCENT)
    assert not result.passed
    assert "3,000 of the last 3,000 records of requests" in str(result.description)
    assert "engagements" not in str(result.description)


def lag(name: str, waited: timedelta | None, *, lost: str | None = None) -> Lag:
    oldest = None if waited is None else NOW - waited
    behind = Behind(7, 2, oldest, lost)
    return Lag(name, NOTIFICATION.name, Position(3), behind, NOW - timedelta(days=1), 100)


@pytest.mark.parametrize("waited", [None, timedelta(0), MAX_LAG])
def test_who_reads_within_the_limit_keeps_up_and_so_does_nobody(waited: timedelta | None) -> None:
    assert keep_up_result([lag("scoring", waited)], NOW, MAX_LAG).passed
    assert keep_up_result([], NOW, MAX_LAG).passed


def test_who_is_late_and_who_is_lost_are_named_with_what_to_do() -> None:
    found = [
        lag("scoring", MAX_LAG + timedelta(seconds=1)),
        lag("fine", MAX_LAG),
        lag("backup", None, lost="VACUUM"),
    ]
    result = keep_up_result(found, NOW, MAX_LAG)
    assert not result.passed
    said = result.description or ""
    assert "scoring has 7 changes to read, the oldest for 3601 s (limit 3600 s)" in said
    assert "`engagement-platform consume --name backup --resnapshot" in said
    assert "fine" not in said


def test_a_consumers_table_that_nobody_can_read_keeps_no_other_check_from_being_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = PlainLake(tmp_path)
    land(lake, "e1")

    def unreadable(*_: object) -> list[Lag]:
        raise DeltaError("Unsupported reader features: strange")

    monkeypatch.setattr(checks, "lags", unreadable)
    monkeypatch.setattr(checks, "freshness", lambda _job, asset, _looked: cannot_tell(asset, checks.FRESH, "no broker"))
    found = {result.check_name: result for result in checks.results(Waiting(lake.settings))}
    assert len(found) == len({check for _, check in checks.CHECKS})
    assert "Unsupported reader features" in str(found[checks.CONSUMERS_KEEP_UP].description)


def test_what_a_verification_found_wrong_is_in_the_next_ones_sample_until_it_is_right() -> None:
    day = date(2026, 11, 20)
    wrong = Finding("identity", "identities follow", 10, 1, ("org-7/e1",))
    with dg.instance_for_test() as instance:
        assert sample_day(instance) == datetime.now(UTC).date()
        for findings, then in (([wrong], day), ([replace(wrong, wrong=0)], datetime.now(UTC).date())):
            results = table_check_results(findings, (), day)
            report(instance, [one for one in results if one.check_name == "identity"])
            assert sample_day(instance) == then


def test_a_commit_of_somebody_else_warns_with_what_to_do(tmp_path: Path) -> None:
    lake = PlainLake(tmp_path)
    land(lake, "e1")
    kept = guards_kept(lake.settings, lake.stores)
    assert kept.passed
    assert kept.description is None
    write_deltalake(lake.uri(lake.data), lake.rows(lake.data), mode="append")
    found = guards_kept(lake.settings, lake.stores)
    assert not found.passed
    assert found.severity is dg.AssetCheckSeverity.WARN
    said = str(found.description)
    assert "engagement/data version 2: WRITE by delta-rs" in said
    assert "stop it, then run engagement-platform verify" in said
    each = found.metadata["each"]
    assert isinstance(each, dg.TableMetadataValue)
    assert [record.data["state"] for record in each.records][:4] == ["kept", "broken", "kept", "broken"]


def test_a_rule_that_cannot_be_looked_at_warns(tmp_path: Path) -> None:
    lake = PlainLake(tmp_path)
    land(lake, "e1")
    missing = lake.settings.model_copy(update={"defs_folder": tmp_path / "nowhere"})
    assert guards_kept(lake.settings, lake.stores).passed
    found = guards_kept(missing, lake.stores)
    assert not found.passed
    assert "Nobody can tell" in str(found.description)


@pytest.mark.parametrize(
    ("timestamps", "waits"),
    [
        ([timedelta(minutes=-9), timedelta(minutes=-3)], timedelta(minutes=9)),
        ([timedelta(minutes=30)], timedelta(0)),
        ([timedelta(days=26_000)], timedelta(days=3)),
        ([timedelta(days=26_000), timedelta(minutes=-9)], timedelta(days=3)),
        ([], None),
    ],
)
def test_messages_of_the_far_future_have_waited_since_the_last_batch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, timestamps: list[timedelta], waits: timedelta | None
) -> None:
    looked, now = Waiting(Settings(home=tmp_path)), datetime.now(UTC)
    ended = SimpleNamespace(updated_ts=now - timedelta(days=3), unread_from={})
    produced = {str(n): (now + ahead).timestamp() * 1000 for n, ahead in enumerate(timestamps)}
    source = SimpleNamespace(
        end_offsets=lambda: dict.fromkeys(produced, 4), earliest_offsets=dict, first_timestamps=lambda _: produced
    )
    monkeypatch.setattr(looked, "source", lambda *_: source)
    monkeypatch.setattr(looked, "checkpoint", lambda _: ended)
    oldest = looked.oldest("ingest-engagements")
    found = None if oldest is None else now - oldest
    assert (found is None) == (waits is None)
    assert found is None or waits is None or abs(found - waits) < timedelta(minutes=1)
