"""Profiles as Dagster sees them: drain runs, rematerializations with their reasons, and checks on seeded faults."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from deltalake import DeltaTable

from engagement_platform.defs.entity import WHY
from engagement_platform.defs.entity_checks import size_result, watermark_result
from engagement_platform.defs.platform import Platform
from engagement_platform.pipelines.profiles.entity import PROFILE
from engagement_platform.pipelines.profiles.snapshot import Snapshot, snapshot
from engagement_platform.settings import Settings
from engagement_platform_tests.defs.conftest import Home, loaded, skipped
from engagement_platform_tests.pipelines.profiles.histories import Changes, seen_by_rules
from engagement_platform_tests.pipelines.profiles.oracle import Said


def change(profile_id: str, version: int, op: str = "UPDATE", **changes: object) -> bytes:
    return json.dumps({"profile_id": profile_id, "version": version, "op": op, "changes": changes}).encode()


def asked(home: Home, name: str) -> dg.RunRequest | dg.SkipReason:
    """One look of a sensor or a schedule."""
    definitions = loaded()
    repository, resources = definitions.get_repository_def(), {"platform": Platform()}
    context: Any = dg.build_sensor_context(home.instance, definitions=definitions, resources=resources)
    who: Any = definitions.resolve_sensor_def(name) if repository.has_sensor_def(name) else None
    if who is None:
        context = dg.build_schedule_context(home.instance, resources=resources)
        who = repository.get_schedule_def(name)
    # Left in order: the context of a schedule opens an instance of its own, and one that is never left stays Dagster's
    # current one for every later test of this process, even when it is gone.
    with context as opened:
        result = who(opened)
    assert isinstance(result, dg.RunRequest | dg.SkipReason)
    return result


@pytest.fixture
def lasting(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """With an instance that has a reference: the context of a schedule opens it by that."""
    with dg.DagsterInstance.local_temp(str(tmp_path_factory.mktemp("dagster"))) as instance:
        home.instance = instance
        yield home
    left = dg.UPathDefsStateStorage.get() is None
    assert left, "a context of Dagster was not left; definitions load through its instance"


@pytest.mark.broker
def test_changes_flow_into_the_view_and_are_moved_for_a_reason_that_is_told(
    lasting: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = lasting
    assert "has no topic" in skipped(asked(home, "profile_changes_backlog"))
    asked(home, "watch_profiles")
    assert home.passed("profile/changeset", "fresh")

    monkeypatch.setenv("ENGAGEMENT_PLATFORM_BATCH__MAX_RECORDS", "100")
    home.broker.create_topic(home.profile_changes)
    messages = [change("a", 1, "INSERT", name="Ann"), change("a", 2, city="Oslo"), b"{"]
    home.broker.produce(home.profile_changes, [(0, None, message) for message in messages])
    launched = asked(home, "profile_changes_backlog")
    assert isinstance(launched, dg.RunRequest)
    today = datetime.now(UTC).date()
    assert home.run("ingest_profile_changes", [today]).success
    [landed] = home.events("profile/changeset")
    figures = {
        name: landed.metadata[name].value for name in ("rows_in", "landed", "quarantined", "pending_rows", "inserts")
    }
    assert figures == {"rows_in": 3, "landed": 2, "quarantined": 1, "pending_rows": 2, "inserts": 1}
    assert home.passed("profile/changeset", "conservation")

    asked(home, "watch_profiles")
    assert home.passed("profile/materialized", "watermark")
    calm = asked(home, "profile_changes_pressing")
    assert isinstance(calm, dg.SkipReason)
    due = asked(home, "rematerialize_profile_by_cadence")
    assert isinstance(due, dg.RunRequest)
    assert "2 changes wait; due" in due.tags[WHY]

    job = loaded().resolve_job_def("rematerialize_profile")
    assert job.execute_in_process(instance=home.instance, tags=due.tags).success
    [moved] = home.events("profile/materialized")
    assert {n: moved.metadata[n].value for n in ("changes", "batches", "watermark", "batches_removed")} == {
        "changes": 2, "batches": 1, "watermark": 0, "batches_removed": 1,
    }  # fmt: skip
    assert "base64," in str(moved.metadata["last_batches"].value)
    rows = DeltaTable(PROFILE.base.uri(str(home.folder / "lake"))).to_pyarrow_table().to_pylist()
    assert [(row["name"], row["city"], row["version"]) for row in rows] == [("Ann", "Oslo", 2)]
    assert skipped(asked(home, "rematerialize_profile_by_cadence")) == "no changes wait"

    # Beyond the limit it does not wait for the cadence, and says that.
    messages = [change("a", 3, city="Bonn"), change("a", 4, city="Rome")]
    home.broker.produce(home.profile_changes, [(0, None, message) for message in messages])
    assert home.run("ingest_profile_changes", [today]).success
    assert "2 changes wait; next in" in skipped(asked(home, "rematerialize_profile_by_cadence"))
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_REMATERIALIZE__MAX_PENDING_ROWS", "1")
    pressed = asked(home, "profile_changes_pressing")
    assert isinstance(pressed, dg.RunRequest)
    assert pressed.tags[WHY] == "2 changes wait, more than rematerialize.max_pending_rows (1)"
    assert job.execute_in_process(instance=home.instance, tags=pressed.tags).success


@pytest.mark.broker
def test_a_backfill_is_one_run_that_materializes_no_empty_day_and_changes_nothing_that_readers_see(home: Home) -> None:
    """Of days on which nothing came, and of one that is read again after its changes were moved."""
    today = datetime.now(UTC).date()
    days = [today - timedelta(days=age) for age in (3, 2, 1)]
    home.broker.create_topic(home.profile_changes)
    messages = [change("a", 1, "INSERT", name="Ann"), change("a", 2, city="Oslo"), b"{"]
    home.broker.produce(home.profile_changes, [(0, None, message) for message in messages])
    assert home.run("ingest_profile_changes", [today]).success
    assert home.run_op("rematerialize_profile").success
    seen = seen_by_rules(str(home.folder / "lake"), PROFILE)
    assert [(row[2], row[6]) for row in seen] == [("Ann", "Oslo")]

    assert home.run("ingest_profile_changes", days).success
    assert {event.partition for event in home.events("profile/changeset")} == {today.isoformat()}
    observed = {event.partition: event.metadata for event in home.observed("profile/changeset")}
    assert {day: observed[day.isoformat()]["batches"].value for day in days} == dict.fromkeys(days, 0)
    assert observed[days[0].isoformat()]["why"].value == f"No batch was recorded on {days[0]}."

    assert home.run("ingest_profile_changes", [today], mode="reread").success
    again = home.events("profile/changeset")[0]
    assert (again.metadata["job"].value, again.metadata["landed"].value) == ("reread-profile-changes", 2)
    assert again.partition == today.isoformat()
    assert home.passed("profile/changeset", "conservation")
    assert seen_by_rules(str(home.folder / "lake"), PROFILE) == seen


@pytest.mark.broker
def test_a_reader_who_waits_longer_than_the_limit_launches_a_move_and_the_run_says_so(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = Changes(tmp_path / "lake", PROFILE)
    changes.land(0, [Said("a", 1, "INSERT", {"name": "Ann"})])
    assert isinstance(asked(home, "profile_changes_pressing"), dg.SkipReason)
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_REMATERIALIZE__MAX_VIEW_LATENCY", "PT0S")
    pressed = asked(home, "profile_changes_pressing")
    assert isinstance(pressed, dg.RunRequest)
    assert "rematerialize.max_view_latency" in pressed.tags[WHY]


def test_what_waits_and_how_long_a_reader_waits_is_observed_of_the_view_when_something_changed(
    home: Home, tmp_path: Path
) -> None:
    changes, look = Changes(tmp_path / "lake", PROFILE), loaded().resolve_sensor_def("profile_changes_pressing")
    # It keeps the cursor from one look to the next.
    context = dg.build_sensor_context(home.instance, definitions=loaded(), resources={"platform": Platform()})
    for number in range(3):
        changes.land(number, [Said("a", number + 1, "UPDATE", {"score": number})])
        for _ in range(2):
            look(context)
    observed = home.observed("profile/current")
    assert [one.metadata["pending_rows"].value for one in observed] == [3, 2, 1], "a look that saw nothing new is none"
    assert all(float(str(one.metadata["point_read_s"].value)) > 0 for one in observed)


def seeded(tmp_path: Path) -> tuple[Settings, Snapshot]:
    changes = Changes(tmp_path, PROFILE)
    changes.land(0, [Said("a", 1, "INSERT", {"name": "Ann"}), Said("b", 2, "DELETE")])
    changes.land(1, [Said("a", 3, "UPDATE", {"city": "Oslo"}), Said("b", 1, "INSERT")])
    return Settings(lake_uri=str(tmp_path)), snapshot(str(tmp_path), PROFILE)


def test_the_check_of_the_size_fails_beyond_the_limit(tmp_path: Path) -> None:
    _, found = seeded(tmp_path)
    assert size_result(PROFILE, found, 4).passed
    assert not size_result(PROFILE, found, 3).passed
    assert size_result(PROFILE, None, 3).passed


def test_the_check_of_the_watermark_sees_batches_in_both_tables_and_a_base_that_was_put_back(tmp_path: Path) -> None:
    settings, found = seeded(tmp_path)
    assert watermark_result(PROFILE, found, under_way=False, recorded=None).passed
    Changes(tmp_path, PROFILE).move(replace(found, through=0))
    both = snapshot(settings.lake, PROFILE)
    assert watermark_result(PROFILE, both, under_way=True, recorded=0).passed
    assert "[0]" in (watermark_result(PROFILE, both, under_way=False, recorded=0).description or "")
    assert "put back" in (watermark_result(PROFILE, both, under_way=True, recorded=1).description or "")
