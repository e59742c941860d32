"""Live-ops in Dagster: what asks for a run, what a run judges, shows and tells. No Spark."""

# No `from __future__ import annotations` beside Dagster's decorators.

import base64
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import numpy as np
import pytest

from engagement_platform.defs import live_ops
from engagement_platform.defs.live_ops import (
    INGESTS,
    JOB,
    LIVE_OPS,
    definitions,
    judged_metadata,
    judging,
    live_ops_asset,
)
from engagement_platform.defs.platform import Platform
from engagement_platform.defs.sensors import recent_runs
from engagement_platform.defs.specs import table_spec
from engagement_platform.errors import ExtraMissing
from engagement_platform.local.services import all_services
from engagement_platform.pipelines.games.detection import Finding
from engagement_platform.pipelines.games.live_ops import Judged, LiveOpsJob
from engagement_platform.pipelines.games.registry import registry
from engagement_platform.settings import Settings
from engagement_platform_tests.defs.conftest import materialized
from engagement_platform_tests.pipelines.games.counted import Games

# Tomorrow: with events of long ago time would go on by this machine's clock, `live_ops.patience` behind it.
BEGIN = datetime.now(UTC).replace(hour=10, minute=0, second=0, microsecond=0) + timedelta(days=1)
MINUTE = timedelta(minutes=1)
AUTOMATIC = "ENGAGEMENT_PLATFORM_LIVE_OPS__AUTOMATIC"


@pytest.fixture
def games(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Games:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path))
    return Games(tmp_path)


def run(instance: dg.DagsterInstance) -> dict[str, Any]:
    """One run; what its materialization says."""
    dg.materialize([live_ops_asset(registry())], instance=instance, resources={"platform": Platform()})
    return materialized(instance, "live_ops/figures")


def test_a_run_tells_of_players_and_that_no_minute_is_complete(games: Games, instance: dg.DagsterInstance) -> None:
    for rows, players in ((3, 1), (2, 2)):
        row = {"game_id": "g1", "event_ts": BEGIN, "player_id": f"p{players}"}
        games.append("login", [row] * rows, BEGIN)
        told = run(instance)
        assert (told["games_judged"], told["wrong"]) == (0, 0)
        assert told["players"] == players
        # Not one minute is complete: the newest event was ingested just now.
        until = BEGIN - games.settings.live_ops.delay
        assert told["figures"] == f"no events in the 15 minutes before {until:%Y-%m-%d %H:%M} UTC"


def test_a_run_shows_the_last_minutes_of_each_game_and_which_are_not_judged_yet(
    games: Games, instance: dg.DagsterInstance
) -> None:
    counts = {"g1": [3, 1, 4, 1, 5], "g2": [2, 7, 1]}
    for game, each in counts.items():
        for minute, count in enumerate(each):
            row = {"game_id": game, "event_ts": BEGIN + minute * MINUTE, "player_id": "p"}
            games.append("login", [row] * count, BEGIN + minute * MINUTE)
    # Complete are the minutes that ended so long ago, by when events were ingested.
    games.append("login", [{"game_id": "g1", "event_ts": BEGIN + 8 * MINUTE, "player_id": "p"}], BEGIN + 6 * MINUTE)
    told = run(instance)
    until = BEGIN + 6 * MINUTE - games.settings.live_ops.delay
    assert told["judged_until"] == until.timestamp()
    complete = (until - BEGIN) // MINUTE
    shown = {record.data["game"]: record.data for record in told["figures"].records}
    for game, each in counts.items():
        last = min(complete, len(each)) - 1
        assert shown[game]["minute"] == f"{BEGIN + last * MINUTE:%Y-%m-%d %H:%M}"
        assert shown[game]["events"] == str(each[last])
        assert shown[game]["players"] == "1"
    picture = base64.b64decode(told["last_minutes"].partition("base64,")[2].rstrip(")")).decode()
    both = [sum(each[minute] for each in counts.values() if minute < len(each)) for minute in range(complete)]
    assert [int(said) for said in re.findall(r'text-anchor="middle">(\d+)<', picture)] == both
    assert told["not_judged_yet"] == "g1, g2: two days of figures before today are needed"


def test_a_drop_is_said_by_the_run_that_found_it(games: Games, instance: dg.DagsterInstance) -> None:
    random, midnight = np.random.default_rng(5), BEGIN.replace(hour=0)

    def play(begin: datetime, minutes: int, mean: int) -> datetime:
        counts = random.poisson(mean, minutes)
        at = np.repeat(np.arange(minutes), counts) * 60 + random.uniform(0, 60, counts.sum())
        end = begin + minutes * MINUTE
        games.append_many(
            "heartbeat", (begin.timestamp() + at) * 1e6, ["p1", "p2"], end + games.settings.live_ops.delay
        )
        return end

    today = play(midnight, 2 * 1440, 60)
    dropped = play(today, 90, 60)
    told = run(instance)
    assert (told["games_judged"], told["wrong"]) == (1, 0)
    assert "not_judged_yet" not in told
    play(play(dropped, 20, 6), 1, 6)
    told = run(instance)
    assert told["wrong"] > 0
    assert "g1: events since" in told["what_is_wrong"]


def test_what_is_wrong_is_said_by_game_and_figure() -> None:
    finding = Finding("g1", "purchases", BEGIN, None, 0.5, "offer 7")
    shown = judged_metadata(Judged(BEGIN, ("g1", "g2"), (finding,)), [], 0)
    assert shown["what_is_wrong"] == f"g1: purchases since {BEGIN:%Y-%m-%d} 10:00 UTC"


def test_events_that_were_counted_ask_for_a_run_after_a_pause_and_silence_for_one_every_quarter_of_an_hour(
    games: Games, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [declared.table for declared in registry(games.settings.games.declarations).values()]
    defs = dg.Definitions.merge(
        dg.Definitions(assets=[table_spec(table, []) for table in tables]),
        definitions(),
        dg.Definitions(resources={"platform": Platform()}),
    )
    cursor, minute = None, 0
    # Are events counted before, seconds since the last run ended, is a run asked for.
    looks = ((False, 0, False), (True, 0, True), (False, 130, False), (True, 50, False), (False, 70, True))
    for number, (counted, seconds, expected) in enumerate((*looks, (False, 890, False), (False, 910, True))):
        if counted:
            minute += 1
            row = {"game_id": "g1", "event_ts": BEGIN + minute * MINUTE, "player_id": "p"}
            games.append("login", [row], BEGIN + minute * MINUTE)
        now = (recent_runs(instance, JOB).ended or 0) + seconds
        monkeypatch.setattr(live_ops, "time", SimpleNamespace(time=partial(float, now)))
        context = dg.build_sensor_context(instance=instance, cursor=cursor)
        asked = isinstance(live_ops.look(context, games.settings), dg.RunRequest)
        assert asked == expected, f"look {number}"
        cursor = context.cursor
        if asked:
            assert defs.resolve_job_def(JOB).execute_in_process(instance=instance).success


@pytest.mark.parametrize(("said", "running"), [(None, True), ("false", False), ("true", True)])
def test_the_sensor_is_on_where_games_are_simulated_unless_somebody_says_otherwise(
    games: Games, monkeypatch: pytest.MonkeyPatch, said: str | None, running: bool
) -> None:
    monkeypatch.delenv(AUTOMATIC, raising=False)
    [sensor] = definitions().sensors or ()
    assert isinstance(sensor, dg.SensorDefinition)
    assert sensor.default_status is dg.DefaultSensorStatus.STOPPED, "who follows without runs is not disturbed"
    if said is not None:
        monkeypatch.setenv(AUTOMATIC, said)
    services = all_services(Settings())
    assert services.aws
    assert AUTOMATIC not in services.variables
    for name in (AUTOMATIC, "ENGAGEMENT_PLATFORM_DAGSTER__AUTOMATION"):
        monkeypatch.setenv(name, services.dagster_variables[name])
    [sensor] = definitions().sensors or ()
    assert isinstance(sensor, dg.SensorDefinition)
    assert (sensor.default_status is dg.DefaultSensorStatus.RUNNING) == running


def test_a_run_that_ingests_events_judges_them_once_a_minute_and_says_so_each_report_interval(
    games: Games, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(AUTOMATIC, "true")
    settings, clock = Settings(), SimpleNamespace(now=1_000.0)
    assert settings.dagster.report_interval == 5 * MINUTE
    monkeypatch.setattr(live_ops, "time", SimpleNamespace(monotonic=lambda: clock.now, time=lambda: clock.now))
    judged = list[float]()

    def judge(_job: LiveOpsJob) -> Judged:
        judged.append(clock.now)
        return Judged(None, (), ())

    monkeypatch.setattr(LiveOpsJob, "run", judge)

    @dg.op
    def drain(context: dg.OpExecutionContext) -> None:
        look = judging(context, settings)
        for clock.now in (1_000.0, 1_030.0, 1_060.0, 1_290.0, 1_350.0):
            look()

    @dg.job
    def drains() -> None:
        drain()

    assert drains.execute_in_process(instance=instance).success
    assert judged == [1_000.0, 1_060.0, 1_290.0, 1_350.0]
    told = instance.fetch_materializations(LIVE_OPS, limit=10).records
    assert len(told) == 2


def drained(instance: dg.DagsterInstance) -> list[str]:
    """What the log of a run says that drains nothing and judges once. The run has to succeed."""

    @dg.op
    def drain(context: dg.OpExecutionContext) -> None:
        judging(context, Settings())()

    @dg.job
    def drains() -> None:
        drain()

    done = drains.execute_in_process(instance=instance)
    assert done.success
    return [entry.user_message for entry in instance.all_logs(done.run_id)]


def test_games_that_cannot_be_judged_keep_no_event_from_being_ingested(
    games: Games, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(AUTOMATIC, "true")

    def fails(_job: LiveOpsJob) -> Judged:
        raise ZeroDivisionError("a figure of nothing")

    monkeypatch.setattr(LiveOpsJob, "run", fails)

    said = drained(instance)
    assert any("a figure of nothing" in text for text in said)
    assert instance.get_latest_materialization_event(LIVE_OPS) is None


def test_without_what_judges_games_they_are_ingested_and_who_asks_is_told(
    games: Games, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, without: Callable[[str], None]
) -> None:
    monkeypatch.setenv(AUTOMATIC, "true")
    games.append("login", [{"game_id": "g1", "event_ts": BEGIN, "player_id": "p"}], BEGIN)
    without("statsmodels")

    said = drained(instance)
    assert any("This run judges no games." in text and "engagement-platform[liveops]" in text for text in said)
    skipped = live_ops.look(dg.build_sensor_context(instance=instance), games.settings)
    assert isinstance(skipped, dg.SkipReason), "a run would only fail"
    assert "engagement-platform[liveops]" in str(skipped.skip_message)
    with pytest.raises(ExtraMissing, match="statsmodels"):
        run(instance)


def test_nobody_is_asked_to_judge_while_a_run_ingests_unless_nothing_was_judged_for_a_quarter_of_an_hour(
    games: Games, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dg.job(name=INGESTS)
    def ingests() -> None: ...

    instance.create_run_for_job(ingests, status=dg.DagsterRunStatus.STARTED)
    instance.report_runless_asset_event(dg.AssetMaterialization(LIVE_OPS))
    games.append("login", [{"game_id": "g1", "event_ts": BEGIN, "player_id": "p"}], BEGIN)
    judged = datetime.now(UTC).timestamp()
    for seconds, expected in ((130, False), (890, False), (910, True)):
        monkeypatch.setattr(live_ops, "time", SimpleNamespace(time=partial(float, judged + seconds)))
        looked = live_ops.look(dg.build_sensor_context(instance=instance), games.settings)
        assert isinstance(looked, dg.RunRequest) == expected, seconds
