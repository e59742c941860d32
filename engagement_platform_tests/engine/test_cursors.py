"""Cursors of consumers and checkpoint folders of streams: who may move them; and older stores get room for them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, inspect, text

from engagement_platform.engine.cursors import (
    CheckpointRefused,
    CursorMoved,
    CursorStore,
    StreamCheckpoints,
)
from engagement_platform.engine.database import open_engine
from engagement_platform.engine.stores import CheckpointStore
from engagement_platform_tests.engine.conftest import FakeClock


def test_a_cursor_moves_only_for_who_has_seen_it_last(engine: Engine, clock: FakeClock) -> None:
    store = CursorStore(engine, clock=clock)
    began = store.begin("lake", "scoring", {"version": 3, "rows": 0})
    clock.advance(timedelta(minutes=1))
    assert store.begin("lake", "scoring", {"version": 9, "rows": 0}) == began, "a known consumer goes on where it is"
    moved = store.move(began, {"version": 4, "rows": 7}, rows=5)
    assert (dict(moved.position), moved.rows_read, moved.committed_ts) == ({"version": 4, "rows": 7}, 5, clock.now)
    assert store.get("lake", "scoring") == moved
    with pytest.raises(CursorMoved, match="it is at"):
        store.move(began, {"version": 5, "rows": 0}, rows=1)
    assert store.move(moved, {"version": 5, "rows": 0}, rows=2).rows_read == 7
    assert store.forget("lake", "scoring")
    assert not store.forget("lake", "scoring")
    with pytest.raises(CursorMoved, match="it was forgotten"):
        store.move(moved, {"version": 6, "rows": 0}, rows=1)


def test_consumers_of_another_lake_are_others(engine: Engine) -> None:
    store = CursorStore(engine)
    for lake, version in (("lake", 1), ("pond", 2)):
        store.begin(lake, "scoring", {"version": version, "rows": 0})
    assert [cursor.position["version"] for cursor in store.all("pond")] == [2]
    store.forget("pond", "scoring")
    assert [cursor.lake for cursor in store.all("lake")] == ["lake"]


def test_a_checkpoint_folder_belongs_to_one_stream_and_a_stream_to_one_folder(engine: Engine) -> None:
    streams = StreamCheckpoints(engine)
    streams.claim("scores", "/checkpoints/scores")
    streams.claim("scores", "/checkpoints/scores/")
    with pytest.raises(CheckpointRefused, match="belongs to the stream scores"):
        streams.claim("others", "/checkpoints/scores")
    with pytest.raises(CheckpointRefused, match="has its checkpoint in /checkpoints/scores and was now started with"):
        streams.claim("scores", "/checkpoints/new")
    assert streams.all() == {"scores": "/checkpoints/scores"}
    assert streams.forget("scores")
    streams.claim("scores", "/checkpoints/new")


@pytest.mark.parametrize("written", ["file:///there/scores", "file:/there/scores/", "/there/x/../scores"])
def test_a_folder_is_the_same_however_it_is_written(engine: Engine, written: str) -> None:
    streams = StreamCheckpoints(engine)
    streams.claim("scores", "/there/scores")
    streams.claim("scores", written)
    with pytest.raises(CheckpointRefused, match="belongs to the stream scores"):
        streams.claim("others", written)
    assert streams.all() == {"scores": "/there/scores"}


def test_a_relative_folder_is_the_one_below_where_its_stream_was_started(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    streams = StreamCheckpoints(engine)
    streams.claim("scores", "scores")
    with pytest.raises(CheckpointRefused):
        streams.claim("others", str(tmp_path / "scores"))
    streams.claim("far", "s3a://bucket/./scores")
    assert streams.all() == {"far": "s3a://bucket/./scores", "scores": str(tmp_path / "scores")}


def test_a_folder_that_has_finished_less_than_is_recorded_is_refused(engine: Engine) -> None:
    streams = StreamCheckpoints(engine)
    streams.claim("scores", "/checkpoints/scores")
    streams.refuse_behind("scores", "/checkpoints/scores", None)
    assert streams.recorded("scores") is None
    for batch in (0, 7):
        streams.record("scores", batch)
        assert streams.recorded("scores") == batch
        streams.refuse_behind("scores", "/checkpoints/scores", batch)
        streams.refuse_behind("scores", "/checkpoints/scores", batch + 1)
    for found, said in ((6, "ends at batch 6"), (None, "has finished none")):
        with pytest.raises(CheckpointRefused, match=said):
            streams.refuse_behind("scores", "/checkpoints/scores", found)
    streams.forget("scores")
    streams.refuse_behind("scores", "/checkpoints/scores", None)


def test_stores_that_are_older_get_the_tables_they_lack_and_keep_what_they_have(engine: Engine, store_url: str) -> None:
    before = CheckpointStore(engine).app_id("job")
    with engine.begin() as connection:
        for table in ("consumer", "stream_checkpoint", "stream_batch"):
            connection.execute(text(f"DROP TABLE {table}"))
    again = open_engine(store_url)
    assert {"consumer", "stream_checkpoint", "stream_batch"} <= set(inspect(again).get_table_names())
    assert CheckpointStore(again).app_id("job") == before
    again.dispose()
