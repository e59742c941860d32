"""A stream and a consumer without a JVM lead to the same rows, through mutations and a rollback."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from engagement_platform.consumers import Changes, TooFarBehind
from engagement_platform.consumers.current_rows import CurrentRows
from engagement_platform.consumers.in_spark import as_now, stream
from engagement_platform.consumers.lag import lags, late
from engagement_platform.engine.cursors import CheckpointRefused
from engagement_platform.erasing.job import Eraser
from engagement_platform.erasing.subject_lookup import SubjectIds
from engagement_platform.lake.engagement import ALIAS, NOTIFICATION
from engagement_platform.lake.lake import Lake
from engagement_platform.pipelines.snapshot import DATA
from engagement_platform.settings import Settings
from engagement_platform_tests.consumers.hour import plain, put, standing
from engagement_platform_tests.consumers.lakes import PlainLake, Replica, Rows
from engagement_platform_tests.consumers.test_changes import land
from engagement_platform_tests.ingestion.world import World
from engagement_platform_tests.pipelines.mutations.histories import Message, convert, engagement
from engagement_platform_tests.rollback.filled import FIRST, LATER, REQUESTS, send
from engagement_platform_tests.rollback.test_restore import restored

PART: list[Message] = [convert("c9", "p2", "p9", 40, engagement_date_to="2026-11-15")]


def streamed_into(rows: Rows, world: World, checkpoint: str) -> None:
    """What the stream `stream` has not handed out yet, as readers see it now."""

    def micro_batch(frame: DataFrame, _batch: int) -> None:
        put(rows, as_now(world.lake, frame))

    source = stream(world.lake, name="stream", checkpoint=checkpoint, store_url=world.settings.store_url)
    query = source.writeStream.foreachBatch(micro_batch).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.broker
@pytest.mark.slow
def test_a_stream_and_changes_lead_to_the_rows_that_readers_see(world: World, tmp_path: Path) -> None:
    world.ticks = True
    url, checkpoint = world.settings.store_url, str(tmp_path / "checkpoint")
    streamed: Rows = {}
    here = Replica()
    changes = Changes(world.settings.lake, name="here", max_rows=2, store_url=url)

    def follow() -> None:
        streamed_into(streamed, world, checkpoint)
        here.follow(changes)

    send(world, FIRST)
    # Of the alias table: requests do not write the Data Table, whose version would mean the end of their batch.
    version = world.lake.version(ALIAS)
    follow()
    for step in (REQUESTS, LATER, PART):
        send(world, step)
    follow()
    restored(world, version, ALIAS, reason="a bad batch")
    follow()
    expected = standing(world)
    assert sorted(name for _, name in expected) == ["e1", "e2", "e3"]
    assert plain(here.rows) == plain(streamed) == plain(expected)


@pytest.mark.broker
@pytest.mark.slow
def test_a_stream_goes_on_across_a_rollback_and_an_erasure_and_has_the_keys_of_a_plain_consumer(
    world: World, tmp_path: Path
) -> None:
    """Both rewrite commits that the stream has read or passes by; it must neither stop nor keep a row."""
    world.ticks = True
    url, checkpoint = world.settings.store_url, str(tmp_path / "checkpoint")
    streamed: Rows = {}
    here, changes = Replica(), Changes(world.settings.lake, name="here", store_url=url)

    def follow() -> None:
        streamed_into(streamed, world, checkpoint)
        here.follow(changes)

    def seen() -> set[str]:
        assert set(streamed) == set(here.rows) == set(standing(world))
        return {engagement_id for _, engagement_id in streamed}

    send(world, FIRST)
    version = world.lake.version(world.data)
    follow()
    assert seen() == {"e1", "e2", "e3"}
    send(world, LATER)
    follow()
    assert seen() == {"e1", "e2", "e3", "e4", "e5"}
    # Read only after both: the rows that the rollback took away, and those of somebody who is erased then.
    restored(world, version, reason="a bad batch", mode="drop")
    Eraser(world.settings, world.stores, spark=world.spark).run("ref", SubjectIds.of("p2", organizations=["org"]))
    follow()
    assert seen() == {"e1", "e3"}
    send(world, [engagement("e6", "p2", 14), engagement("e7", "p7", 15)])
    follow()
    assert seen() == {"e1", "e3", "e7"}, "what comes late of somebody erased is never told"
    assert plain(here.rows) == plain(streamed) == plain(standing(world))


@pytest.mark.broker
def test_a_stream_that_was_stopped_for_too_long_is_told_how_to_go_on(world: World, tmp_path: Path) -> None:
    checkpoint, streamed = str(tmp_path / "checkpoint"), cast(Rows, {})
    send(world, FIRST[:1])
    engine = world.stores.leases.engine
    streamed_into(streamed, world, checkpoint)
    assert streamed
    (kept_up,) = lags(world.settings, engine)
    assert (kept_up.name, kept_up.behind.rows, kept_up.behind.lost) == ("stream", 0, None)
    send(world, FIRST[1:])
    stream(world.lake, name="stream", checkpoint=checkpoint)
    (behind,) = lags(world.settings, engine)
    assert behind.behind.rows == len(world.rows(NOTIFICATION)) - len(streamed)
    assert behind.behind.oldest is not None
    uri = Path(world.lake.uri(NOTIFICATION))
    last = {Path(found).name for found in DeltaTable(str(uri)).file_uris()}
    for file in uri.rglob("*.parquet"):
        if file.name in last:
            file.unlink()
    with pytest.raises(TooFarBehind, match=r"were removed by VACUUM.*--forget-stream stream"):
        stream(world.lake, name="stream", checkpoint=checkpoint)
    with pytest.raises(CheckpointRefused, match="belongs to the stream stream, so others cannot use it"):
        stream(world.lake, name="others", checkpoint=checkpoint)
    with pytest.raises(CheckpointRefused, match="Start it with the folder it had"):
        stream(world.lake, name="stream", checkpoint=str(tmp_path / "elsewhere"))
    (sentence,) = late(lags(world.settings, engine), datetime.now(UTC), timedelta(hours=1))
    assert sentence.startswith("stream stream has been away longer than changes are kept")
    assert "--forget-stream stream" in sentence


@pytest.mark.broker
def test_a_checkpoint_folder_of_another_stream_and_another_folder_are_refused(world: World) -> None:
    send(world, FIRST[:1])
    stream(world.lake, name="scores", checkpoint="/checkpoints/a")
    with pytest.raises(CheckpointRefused, match="belongs to the stream scores, so others cannot use it"):
        stream(world.lake, name="others", checkpoint="/checkpoints/a")
    with pytest.raises(CheckpointRefused, match="Start it with the folder it had"):
        stream(world.lake, name="scores", checkpoint="/checkpoints/b")
    assert stream(world.lake, name="scores", checkpoint="/checkpoints/a").isStreaming


def test_rows_that_a_deletion_vector_hides_are_not_found_without_spark_either(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = PlainLake(tmp_path / "plain")
    land(lake, "e1", "e2", "e3")
    made, rows = Lake(spark, Settings(home=tmp_path / "made")), lake.rows(DATA)
    made.ensure(DATA)
    uri = made.uri(DATA)
    spark.sql(f"ALTER TABLE delta.`{uri}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')").collect()
    spark.createDataFrame(rows).coalesce(1).write.format("delta").mode("append").save(uri)
    spark.sql(f"DELETE FROM delta.`{uri}` WHERE engagement_id = 'e2'").collect()
    assert pa.table(DeltaTable(uri).get_add_actions()).num_rows == 1, "a file was rewritten"
    current = CurrentRows.of(made.root)
    assert current is not None
    (found,) = current.rows(("engagement_id",), keys=rows)
    assert found.column("engagement_id").to_pylist() == ["e1", "e3"]
    (every,) = current.rows(("engagement_id",), organizations=["org"])
    assert every.equals(found)
