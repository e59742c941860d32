"""Failed checks and runs of a real Dagster instance, and what of them arrives at a real webhook."""

# No `from __future__ import annotations`: Dagster reads the annotation of an op's context.

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from sqlalchemy import make_url

from engagement_platform.alerting.alerts import Alerts
from engagement_platform.defs.alerts import RunsSeen, alerts_of, news_of_runs
from engagement_platform.defs.alerts import definitions as alert_definitions
from engagement_platform.defs.evaluations import as_code, report
from engagement_platform.defs.platform import Platform
from engagement_platform.engine.database import StoresUnavailable
from engagement_platform.settings import Settings
from engagement_platform_tests.alerting.receiver import Receiver

TABLE = dg.AssetKey(["engagement", "data"])


class Mishap(Exception):
    """What a job of these tests fails with."""


@dg.op(config_schema={"fails": bool})
def work(context: dg.OpExecutionContext) -> None:
    if context.op_config["fails"]:
        raise Mishap("the broker\nis away")


@dg.job
def drain() -> None:
    work()


@dg.multi_asset_check(specs=[dg.AssetCheckSpec(name, asset=TABLE) for name in ("fresh", "small_files")])
def checks() -> Iterator[dg.AssetCheckResult]:
    yield from ()


[SENDS] = SENSORS = alert_definitions().sensors or ()
DEFINITIONS = dg.Definitions(assets=[dg.AssetSpec(TABLE)], asset_checks=[checks], jobs=[drain], sensors=SENSORS)
FEWER = dg.Definitions(assets=[dg.AssetSpec(TABLE)], jobs=[drain], sensors=SENSORS)


class World:
    """An instance, a webhook, and the sensor between them."""

    def __init__(self, instance: dg.DagsterInstance, receiver: Receiver) -> None:
        self.instance, self.receiver = instance, receiver
        self.cursor: str | None = None

    def check(self, name: str, passed: bool, severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR) -> None:
        """Record a result."""
        result = dg.AssetCheckResult(
            passed=passed, asset_key=TABLE, check_name=name, severity=severity,
            description=None if passed else as_code("It is <late>"), metadata={"remedy": "Look at the sensors"},
        )  # fmt: skip
        report(self.instance, [result])

    def run(self, fails: bool) -> str:
        """Run the job to its end."""
        config = {"ops": {"work": {"config": {"fails": fails}}}}
        return drain.execute_in_process(run_config=config, instance=self.instance, raise_on_error=False).run_id

    def tick(self, definitions: dg.Definitions = DEFINITIONS) -> str:
        """One look of the sensor; returns when what it put out is sent."""
        context = dg.build_sensor_context(
            instance=self.instance, cursor=self.cursor, resources={"platform": Platform()},
            repository_def=definitions.get_repository_def(),
        )  # fmt: skip
        told = SENDS(context)
        assert isinstance(told, dg.SkipReason)
        self.cursor = context.cursor
        for thread in alerts_of(Settings()).deliver_in_background():
            thread.join(timeout=60)
        return told.skip_message or ""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, receiver: Receiver) -> Iterator[World]:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path))
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_ALERTING__URLS", json.dumps([receiver.url]))
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_ALERTING__SETTLE", "PT0S")
    with dg.DagsterInstance.ephemeral() as instance:
        yield World(instance, receiver)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as listening:
        yield listening


def test_a_failed_check_arrives_once_and_so_does_its_end(world: World) -> None:
    world.check("small_files", passed=True)
    assert world.tick() == "0 new alerts, 0 over."
    world.check("fresh", passed=False)
    world.check("small_files", passed=False, severity=dg.AssetCheckSeverity.WARN)
    assert world.tick() == "2 new alerts, 0 over."
    world.tick()
    world.check("fresh", passed=False)
    world.tick()
    assert [(body["type"], body["title"]) for body in world.receiver.arrived] == [
        ("failure", "[error] engagement/data: fresh failed"),
        ("warning", "[warning] engagement/data: small_files failed"),
    ]
    lines = world.receiver.arrived[0]["message"].splitlines()
    assert lines[0] == "` It is <late> `. Look at the sensors."
    assert lines[2] == "asset check: check/engagement/data/fresh"
    assert lines[3].startswith("asset: engagement/data, check: fresh")
    world.check("fresh", passed=True)
    assert world.tick() == "0 new alerts, 1 over."
    world.tick()
    assert world.receiver.titles[2:] == ["[recovered] engagement/data: fresh failed"]
    assert [one.alert.key for one in alerts_of(Settings()).standing()] == ["check/engagement/data/small_files"]
    assert world.tick(FEWER) == "0 new alerts, 1 over.", "the check is gone, and nothing will say that it passes"


def test_a_failed_run_arrives_with_what_it_raised_and_a_later_success_ends_it(world: World) -> None:
    world.run(fails=False)
    assert world.tick() == "0 new alerts, 0 over."
    failed = world.run(fails=True)
    world.run(fails=True)
    assert world.tick() == "1 new alerts, 0 over."
    world.run(fails=True)
    world.tick()
    [body] = world.receiver.arrived
    assert (body["type"], body["title"]) == ("failure", "[error] a run of drain failed")
    assert "Mishap: the broker is away. The log of the run is in the UI." in body["message"]
    assert failed not in body["message"], "the newest failure is the one to look at"
    world.run(fails=False)
    world.tick()
    assert world.receiver.titles[1:] == ["[recovered] a run of drain failed"]


def test_an_end_of_a_run_that_is_written_after_a_later_one_is_not_missed() -> None:
    begin, written = datetime(2026, 11, 22, 10, tzinfo=UTC), list[Any]()
    noon = begin + timedelta(hours=2)

    def ended(run: str, seconds: int, status: dg.DagsterRunStatus) -> Any:
        of = SimpleNamespace(run_id=run, job_name=run, status=status, asset_selection=None)
        at = begin.replace(tzinfo=None) + timedelta(seconds=seconds)
        return SimpleNamespace(dagster_run=of, update_timestamp=at)

    def get_run_records(of: dg.RunsFilter, *_: object, **__: object) -> list[Any]:
        assert of.updated_after is not None
        after = of.updated_after
        return sorted((one for one in written if one.update_timestamp > after), key=lambda one: one.update_timestamp)

    instance: Any = SimpleNamespace(get_run_records=get_run_records, all_logs=lambda *_, **__: [])
    written.append(ended("first", 30, dg.DagsterRunStatus.SUCCESS))
    told, seen = news_of_runs(instance, RunsSeen(begin), noon)
    assert told.keys() == {"run/first"}
    written.append(ended("late", 10, dg.DagsterRunStatus.FAILURE))
    told, seen = news_of_runs(instance, RunsSeen.read(json.loads(json.dumps(seen.written()))), noon)
    assert told.keys() == {"run/late"}
    written.append(ended("much later", 3600, dg.DagsterRunStatus.SUCCESS))
    assert news_of_runs(instance, seen, noon)[0].keys() == {"run/much later"}
    assert news_of_runs(instance, news_of_runs(instance, seen, noon)[1], noon)[0] == {}
    written.append(ended("by a clock that is ahead", 400 * 86_400, dg.DagsterRunStatus.SUCCESS))
    told, seen = news_of_runs(instance, seen, noon)
    assert "run/by a clock that is ahead" in told
    written.append(ended("a day after", 86_400, dg.DagsterRunStatus.FAILURE))
    assert "run/a day after" in news_of_runs(instance, seen, noon + timedelta(days=1))[0]
    # As the cursor of an earlier version may have it.
    assert news_of_runs(instance, RunsSeen(begin + timedelta(days=400)), begin + timedelta(days=1))[
        1
    ].until < begin + timedelta(days=2)


def test_alerts_that_the_stores_do_not_take_come_with_the_next_tick(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.tick()
    world.run(fails=True)
    with monkeypatch.context() as patched:
        patched.setattr(Alerts, "_raised", locked)
        assert "the next tick tries again" in world.tick()
    assert world.receiver.arrived == []
    assert world.tick() == "1 new alerts, 0 over."
    assert world.receiver.titles == ["[error] a run of drain failed"]
    world.run(fails=False)
    with monkeypatch.context() as patched:
        patched.setattr(Alerts, "_writing", locked)
        assert "the next tick tries again" in world.tick()
    assert world.tick() == "0 new alerts, 1 over."


def locked(*_: object) -> None:
    raise StoresUnavailable(make_url("sqlite:///stores.db"), "database is locked")


def test_after_an_absence_only_where_things_stand_is_told(world: World) -> None:
    world.tick()
    for _ in range(3):
        for passed in (False, True):
            world.check("fresh", passed=passed)
            world.run(fails=not passed)
    world.check("small_files", passed=True)
    world.check("small_files", passed=False)
    assert world.tick() == "1 new alerts, 0 over."
    assert world.receiver.titles == ["[error] engagement/data: small_files failed"]
    world.cursor = None
    assert world.tick() == "0 new alerts, 0 over.", "a sensor that lost its cursor told everything again"
    assert len(world.receiver.arrived) == 1


def test_a_check_whose_newest_run_died_keeps_its_last_result(world: World) -> None:
    world.check("fresh", passed=False)
    run = world.instance.create_run_for_job(drain, run_config={"ops": {"work": {"config": {"fails": False}}}})
    # As the event log has it, for Dagster exports no class for it.
    of_check = {"__class__": "AssetCheckEvaluationPlanned", "asset_key": {"__class__": "AssetKey", "path": TABLE.path}}
    data: Any = dg.deserialize_value(json.dumps({**of_check, "check_name": "fresh"}))
    planned = dg.DagsterEvent(
        dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED.value,
        job_name="drain",
        event_specific_data=data,
    )
    world.instance.report_dagster_event(planned, run.run_id)
    assert world.tick() == "1 new alerts, 0 over."


def test_without_urls_the_sensor_says_so_and_keeps_alerts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENGAGEMENT_PLATFORM_ALERTING__URLS")
    world.check("fresh", passed=False)
    assert world.tick() == "1 new alerts, 0 over. alerting.urls is empty: nothing is sent."
    assert [one.sent for one in alerts_of(Settings()).standing()] == [False]
