"""Game events in Dagster: a run fills tables and says so, backfills replay, and without a queue nothing fails."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from engagement_platform.definitions import defs
from engagement_platform.defs import games
from engagement_platform.defs.backlog import Waiting
from engagement_platform.defs.platform import Platform
from engagement_platform.engine.job import BatchReport
from engagement_platform.engine.model import Manifest
from engagement_platform.pipelines.games.event_type import GROUP
from engagement_platform.pipelines.games.feed import shipped
from engagement_platform.settings import Settings
from engagement_platform_tests.pipelines.games.conftest import World, world  # noqa: F401
from engagement_platform_tests.pipelines.games.events import line

QUARANTINE = dg.AssetKey(["game", "quarantine"])


def sensor(name: str) -> dg.SensorDefinition:
    return defs().get_repository_def().get_sensor_def(name)


def test_a_declared_type_is_an_asset_without_any_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "level_skip.toml").write_text(
        'description = "A player skipped a level."\n[fields]\nlevel_id = { type = "string", comment = "Which." }\n'
    )
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_GAMES__DECLARATIONS", str(tmp_path))
    bound = dg.Definitions.merge(games.definitions(), dg.Definitions(resources={"platform": Platform()}))
    keys = bound.get_repository_def().asset_graph.get_all_asset_keys()
    assert dg.AssetKey(["game", "level_skip"]) in keys
    assert len([key for key in keys if key.path[0] == "game"]) == 32


def test_without_a_queue_the_sensor_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path))
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_sensor_context(instance, resources={"platform": Platform()})
        said = sensor("game_events_backlog")(context)
    assert isinstance(said, dg.SkipReason)
    assert "ENGAGEMENT_PLATFORM_GAMES__QUEUE_URL" in str(said.skip_message)


def reported(**counts: int) -> BatchReport:
    manifest = Manifest(
        "ingest-game-events", "ingest-game-events@1.x", 3, {"batch": 3}, {"batch": 4}, datetime.now(UTC)
    )
    return BatchReport(manifest, counts, {}, {}, 1.0, replayed=False)


@pytest.mark.parametrize(
    ("counts", "passes"),
    [
        ({"rows_in": 6, "landed": 3, "duplicates": 2, "quarantined": 1, "rows_written": 4}, True),
        ({"rows_in": 7, "landed": 3, "duplicates": 2, "quarantined": 1, "rows_written": 4}, False),
        ({"rows_in": 6, "landed": 3, "duplicates": 2, "quarantined": 1, "rows_written": 3}, False),
    ],
)
def test_row_sums_fail_when_a_line_is_lost_or_a_table_has_other_rows(counts: dict[str, int], passes: bool) -> None:
    landing = games.ingestion(shipped(Settings()), GROUP)
    assert landing.result([reported(**counts)]).passed == passes


def test_objects_that_wait_too_long_fail_the_check_and_a_batch_clears_it(
    world: World,  # noqa: F811
) -> None:
    """SQS does not say how old messages are: they wait since they were seen, or since the last batch."""
    world.types = {name: world.types[name] for name in ("login",)}
    began, minutes = datetime.now(UTC), timedelta(minutes=1)
    looked = Waiting(world.settings)

    def check(at: datetime) -> dg.AssetCheckResult:
        feed = shipped(world.settings)
        return games.fresh(looked, feed, at)

    # The message with which S3 tries the queue waits, too.
    assert check(began).passed
    assert check(began + 5 * minutes).passed
    late = check(began + 6 * minutes)
    assert not late.passed
    assert late.metadata["oldest_waiting_s"].value == 360
    world.put("events/a.json.gz", [line(world.types["login"], "a", event_ts=began.isoformat())])
    world.run()
    assert check(began + 7 * minutes).passed
    assert check(began + 30 * minutes).passed
    world.put("events/b.json.gz", [line(world.types["login"], "b", event_ts=began.isoformat())])
    assert check(began + 31 * minutes).passed
    assert not check(began + 37 * minutes).passed


def test_a_queue_that_does_not_answer_warns_and_none_at_all_passes(tmp_path: Path) -> None:
    settings, now = Settings(home=tmp_path), datetime.now(UTC)
    feed = shipped(settings)
    assert games.fresh(Waiting(settings), feed, now).passed
    queue = settings.games.model_copy(update={"queue_url": "http://127.0.0.1:1/q"})
    down = games.fresh(Waiting(settings.model_copy(update={"games": queue})), feed, now)
    assert (down.passed, down.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert str(down.description).startswith("` Nobody can tell: ")


def test_a_run_tells_of_the_tables_that_it_wrote_and_a_past_day_is_replayed(
    world: World,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"HOME": str(world.settings.home), "GAMES__BUCKET": world.bucket, "GAMES__QUEUE_URL": world.queue,
                "DRAIN__IDLE_TIMEOUT": "PT0S"}  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setenv(f"ENGAGEMENT_PLATFORM_{name}", value)
    monkeypatch.setattr("engagement_platform.defs.platform.open_spark", lambda *_: nullcontext(world.spark))
    today, now = datetime.now(UTC).date().isoformat(), datetime.now(UTC).isoformat()
    purchase = world.types["purchase"]
    world.put("events/2026/11/05/10/a.json.gz", [line(purchase, "a", event_ts=now), b"no json"])
    job = defs().resolve_job_def("ingest_game_events")
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_sensor_context(instance, resources={"platform": Platform()})
        asked = sensor("game_events_backlog")(context)
        assert isinstance(asked, dg.RunRequest)
        assert job.execute_in_process(run_config=asked.run_config, partition_key=today, instance=instance).success
        told = {key: instance.get_latest_materialization_event(key) for key in job.asset_layer.executable_asset_keys}
        assert {key.path[1] for key, event in told.items() if event} == {"purchase", "quarantine"}
        [record] = instance.event_log_storage.get_asset_check_execution_history(
            dg.AssetCheckKey(QUARANTINE, "row_sums"), limit=1
        )
        assert record.evaluation is not None
        assert record.evaluation.passed
        assert isinstance(sensor("game_events_backlog")(context), dg.SkipReason)
        before = world.everything()
        assert job.execute_in_process(partition_key="2026-11-05", instance=instance).success
        event = instance.get_latest_materialization_event(QUARANTINE)
        assert event is not None
        assert event.asset_materialization is not None
        assert event.asset_materialization.metadata["duplicates"].value == 2
        assert world.everything() == before
