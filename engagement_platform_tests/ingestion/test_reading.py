"""What readers of the tables may rely on: two ways to follow changes, and the log alone says what a table holds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from engagement_platform.lake.engagement import MAPPING, NOTIFICATION
from engagement_platform.lake.refusals import NotAStreamSource
from engagement_platform_tests.ingestion.oracle import Oracle, engagement
from engagement_platform_tests.ingestion.test_crashes import everything
from engagement_platform_tests.ingestion.world import World

pytestmark = [pytest.mark.broker]

KEYS = ("organization_id", "engagement_id", "change_type")


def test_streaming_and_pulling_notifications_lead_to_the_same_rows(world: World, tmp_path: Path) -> None:
    """A consumer streams, another pulls what is newer than the batch it knows; both fetch the rows that are named."""
    streamed: list[tuple[str, ...]] = []
    pulled: list[tuple[str, ...]] = []
    known = -1
    world.produce(everything("org-1", None))
    for organization in ("org-2", "org-3"):
        world.run()
        query = (
            world.lake.stream(NOTIFICATION)
            .writeStream.foreachBatch(lambda frame, _id: streamed.extend(map(tuple, frame.select(*KEYS).collect())))
            .option("checkpointLocation", str(tmp_path / "consumer"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        news = world.lake.read(NOTIFICATION).where(F.col("batch_id") > known)
        pulled += map(tuple, news.select(*KEYS).collect())
        known = max(row["batch_id"] for row in world.rows(NOTIFICATION))
        world.produce(everything(organization, "org-1"))
    assert sorted(streamed) == sorted(pulled)
    fetched = {(organization, engagement_id) for organization, engagement_id, _ in pulled}
    assert fetched == {(row[0], row[1]) for row in world.data_rows()}


def test_a_table_whose_rows_change_is_no_streaming_source(world: World) -> None:
    for table in (world.data, MAPPING):
        with pytest.raises(NotAStreamSource, match="engagement/notification"):
            world.lake.stream(table)


def test_a_file_that_no_commit_names_is_not_in_the_table(world: World) -> None:
    """A writer that died before its commit leaves such files; a listing would count their rows."""
    oracle = Oracle()
    oracle.batch(0, world.produce([engagement("org", "e1")]))
    world.run()
    folder = Path(world.lake.uri(world.data))
    (written,) = folder.glob("*.parquet")
    shutil.copy(written, folder / f"part-00099-orphan{written.suffix}")
    world.assert_equals(oracle)
