"""Objects that a declared queue announces land in the tables of declared types, and Dagster has everything of them."""

from __future__ import annotations

import json
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pydantic import ValidationError

from engagement_platform.consumers.reading import table_names
from engagement_platform.defs.components import S3SqsTables, folder_definitions
from engagement_platform.defs.layout_results import LAYOUT
from engagement_platform.defs.platform import Platform
from engagement_platform.engine.unfinished_batches import how_to_finish
from engagement_platform.erasing.places import game_places
from engagement_platform.errors import PlatformError
from engagement_platform.pipelines.declarations.declared import DeclarationRefused, declarations
from engagement_platform.pipelines.jobs import job_names, open_stores, reset_job
from engagement_platform.pipelines.status import backlog
from engagement_platform.settings import Settings
from engagement_platform_tests.defs.components.test_kafka_table import results_of
from engagement_platform_tests.defs.conftest import evaluated, tick
from engagement_platform_tests.pipelines.games.conftest import World, world

__all__ = ["world"]

ARCADE = """\
type: engagement_platform.S3SqsTables
attributes:
  name: arcade
  queue_url: {queue}
  bucket: {bucket}
  types_folder: types
  types:
    round_end:
      description: A round is over.
      fields:
        score: {{type: long, required: true, at_least: 0}}
        board: string
"""
COIN = 'description = "A coin was put in."\n[fields]\ncents = { type = "long", comment = "Its worth." }\n'
OBJECTS = dg.AssetKey(["s3", "arcade-events"])
ROUND_END, COIN_IN, REFUSED = (dg.AssetKey(["arcade", name]) for name in ("round_end", "coin_in", "quarantine"))


def event(kind: str, event_id: str, **fields: object) -> bytes:
    now = datetime.now(UTC).isoformat()
    said = {"event_id": event_id, "event_type": kind, "game_id": "pong", "player_id": "p1", "event_ts": now}
    return json.dumps({**said, **fields}).encode()


@pytest.fixture
def arcade(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """The queue and bucket of a world, as they are declared in a folder. The settings of this process point there."""
    folder = tmp_path / "defs" / "arcade"
    (folder / "types").mkdir(parents=True)
    (folder / "types" / "coin_in.toml").write_text(COIN)
    (folder / "defs.yaml").write_text(ARCADE.format(queue=world.queue, bucket=world.bucket))
    told = {
        "HOME": tmp_path,
        "DEFS_FOLDER": tmp_path / "defs",
        "DRAIN__IDLE_TIMEOUT": "PT0S",
        "GAMES__VISIBILITY": "PT3S",
    }
    for name, value in told.items():
        monkeypatch.setenv(f"ENGAGEMENT_PLATFORM_{name}", str(value))
    monkeypatch.setattr("engagement_platform.defs.platform.open_spark", lambda *_: nullcontext(world.spark))
    return world


def rows(name: str) -> list[dict[str, Any]]:
    from deltalake import DeltaTable

    found = DeltaTable(f"{Settings().lake}/arcade/{name}").to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: row["source_line"])


def test_objects_of_a_declared_queue_are_drained_by_its_sensor_and_told_of(
    arcade: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No run is needed to tell that they wait too long: the sensor asks the queue, and the stores since when."""
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_QUALITY__FRESHNESS", "PT0S")
    definitions = folder_definitions(tmp_path / "defs")
    graph = definitions.resolve_asset_graph()
    assert graph.get(ROUND_END).parent_keys == {OBJECTS}
    assert arcade.bucket in str(graph.get(OBJECTS).description)
    assert (graph.get(COIN_IN).group_name, graph.get(COIN_IN).pools) == ("arcade", {"arcade"})
    assert {check.name for check in graph.get(COIN_IN).check_keys} == {LAYOUT}
    assert {check.name for check in graph.get(REFUSED).check_keys} == {"row_sums", LAYOUT}

    with dg.DagsterInstance.ephemeral() as instance:

        def look() -> Any:
            return tick(instance, "arcade_events_backlog", definitions)

        def fresh() -> tuple[bool, object]:
            tick(instance, "watch_arcade_events_backlog", definitions)
            result = evaluated(instance, "s3/arcade-events", "fresh")
            return result.passed, result.metadata["waiting"].value

        good = event("round_end", "r1", score=7, board="upper")
        arcade.put("events/2026/11/05/10/a.json.gz", [good, good, event("coin_in", "c1", cents=5)])
        arcade.put("events/2026/11/05/11/b.json.gz", [event("round_end", "r2"), event("purchase", "x"), b"{"])
        waits = backlog("ingest-arcade-events", Settings(), None)
        assert waits == 3, "two objects, and the bucket's own test of the queue"
        assert fresh() == (True, 3), "seen just now"
        request = look()
        assert fresh() == (False, 3), "seen waiting since the look before"
        job = definitions.resolve_job_def("ingest_arcade_events")
        ran = job.execute_in_process(
            run_config=request.run_config, partition_key=request.partition_key, instance=instance
        )
        assert results_of(ran) == {"arcade/quarantine:row_sums": True}
        assert [(row["event_id"], row["score"], row["board"]) for row in rows("round_end")] == [("r1", 7, "upper")]
        assert [row["cents"] for row in rows("coin_in")] == [5]
        assert {row["reason_code"] for row in rows("quarantine")} == {"missing_field", "unknown_event_type", "not_json"}
        assert "Nothing is waiting" in look().skip_message
        assert fresh() == (True, 0)
        assert arcade.left() == 0
        told = {key: instance.get_latest_materialization_event(key) for key in (ROUND_END, COIN_IN, REFUSED)}
        assert all(told.values())

        # A past day is a replay of what arrived then, and doubles nothing.
        assert job.execute_in_process(partition_key="2026-11-05", instance=instance).success
        assert (len(rows("round_end")), len(rows("coin_in")), len(rows("quarantine"))) == (1, 1, 3)
        replay = definitions.resolve_job_def("replay_arcade_events")
        config = dg.RunConfig(ops={"replay_arcade_objects": {"config": {"dates": ["2026-11-05"]}}})
        assert replay.execute_in_process(
            run_config=config, instance=instance, resources={"platform": Platform()}
        ).success
        assert (len(rows("round_end")), len(rows("coin_in")), len(rows("quarantine"))) == (1, 1, 3)
    [record] = open_stores(Settings()).checkpoints.history("ingest-arcade-events")
    assert (record.counts["landed"], record.counts["duplicates"], record.counts["quarantined"]) == (2, 1, 3)


def test_two_queues_of_one_bucket_have_a_check_each(arcade: World, tmp_path: Path) -> None:
    (tmp_path / "defs" / "pinball").mkdir()
    said = ARCADE.format(queue=f"{arcade.queue}-2", bucket=arcade.bucket).replace("types_folder: types", "prefix: b/")
    (tmp_path / "defs" / "pinball" / "defs.yaml").write_text(said.replace("name: arcade", "name: pinball"))
    graph = folder_definitions(tmp_path / "defs").resolve_asset_graph()
    fresh = {key.asset_key.to_user_string() for key in graph.asset_check_keys if key.name == "fresh"}
    assert fresh == {"s3/arcade-events", "s3/pinball-events"}


def test_declared_tables_of_events_are_part_of_everything(arcade: World) -> None:
    settings = Settings()
    assert "ingest-arcade-events" in job_names(settings)
    assert {"arcade/round_end", "arcade/coin_in", "arcade/quarantine"} <= set(table_names(settings))
    [feed] = declarations(settings).feeds
    assert declarations(settings).feed("arcade") == feed
    with pytest.raises(PlatformError, match="declared are: arcade"):
        declarations(settings).feed("game")
    own = feed.settings(settings).games
    assert (own.queue_url, own.bucket, own.max_objects) == (arcade.queue, arcade.bucket, settings.games.max_objects)
    assert [tables.name for tables in game_places(settings)] == ["game/*", "arcade/*"]
    assert how_to_finish(feed.replay_job) == (
        "`engagement-platform replay --tables arcade --finish`, or, when its source is gone, "
        f"`engagement-platform reset {feed.replay_job} --abandon`"
    )
    assert reset_job(feed.replay_job, settings).startswith("replay-arcade-events@2")


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("name: arcade", "name: game", "among the platform's own"),
        ("name: arcade", "name: Arcade", "name: String should match"),
        ("type: long", "type: longer", "types.round_end.fields.score"),
        ("board: string", "player_id: string", "every event has the columns player_id already"),
        ("round_end:", "quarantine:", "arcade/quarantine is the table of refused events"),
        ("round_end:", "coin_in:", "coin_in is declared in types and in types_folder"),
        ("types_folder: types", "types_folder: nowhere", "there is no such folder (types_folder)"),
    ],
)
def test_tables_of_events_that_cannot_be_are_refused_with_the_file(
    tmp_path: Path, before: str, after: str, says: str
) -> None:
    folder = tmp_path / "defs"
    (folder / "types").mkdir(parents=True)
    (folder / "types" / "coin_in.toml").write_text(COIN)
    text = ARCADE.format(queue="http://127.0.0.1/q", bucket="b")
    assert before in text
    (folder / "defs.yaml").write_text(text.replace(before, after))
    with pytest.raises(DeclarationRefused, match=r"defs\.yaml") as refused:
        declarations(Settings(home=tmp_path, defs_folder=folder))
    assert says in str(refused.value)


def test_without_types_there_are_no_tables(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="has no types of events"):
        S3SqsTables.from_attributes_dict(attributes={"name": "arcade", "queue_url": "q", "bucket": "b"})
    (tmp_path / "types").mkdir()
    (tmp_path / "types" / "one.toml").write_text(f'group = "game"\n{COIN}')
    told = {"name": "arcade", "queue_url": "q", "bucket": "b", "types_folder": "types"}
    with pytest.raises(Exception, match="group: a type is of the group"):
        S3SqsTables.from_attributes_dict(attributes=told).feed(tmp_path)
