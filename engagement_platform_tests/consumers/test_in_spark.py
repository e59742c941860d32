"""Streams of notifications: their checkpoint folders, and what happens to one that was stopped for too long."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from engagement_platform.consumers import TooFarBehind
from engagement_platform.consumers.current_rows import CurrentRows
from engagement_platform.consumers.in_spark import stream
from engagement_platform.consumers.lag import lags, late
from engagement_platform.engine.cursors import CheckpointRefused
from engagement_platform.engine.model import Transaction
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.engagement import NOTIFICATION
from engagement_platform.lake.lake import Lake
from engagement_platform.pipelines.snapshot import DATA
from engagement_platform.settings import Settings
from engagement_platform_tests import plant
from engagement_platform_tests.consumers.hour import Streamed
from engagement_platform_tests.consumers.lakes import PlainLake
from engagement_platform_tests.consumers.test_changes import land
from engagement_platform_tests.ingestion.world import World
from engagement_platform_tests.maintenance.rollback.filled import FIRST, send


@pytest.mark.broker
def test_a_stream_that_was_stopped_for_too_long_is_told_how_to_go_on_and_its_folder_stays_its_own(
    world: World, tmp_path: Path
) -> None:
    streamed = Streamed(world, tmp_path)
    checkpoint = streamed.checkpoint
    send(world, FIRST[:1])
    engine = world.stores.leases.engine
    streamed.follow(Random(0))
    assert streamed.rows
    (kept_up,) = lags(world.settings, engine)
    assert (kept_up.name, kept_up.behind.rows, kept_up.behind.lost) == ("stream", 0, None)
    send(world, FIRST[1:])
    stream(world.lake, name="stream", checkpoint=checkpoint)
    (behind,) = lags(world.settings, engine)
    assert behind.behind.rows == len(world.rows(NOTIFICATION)) - len(streamed.rows)
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
    read = lags(world.settings, engine)[0].position.version
    shutil.rmtree(uri)
    # With as many versions as were read, so that only its id tells.
    plant.create(str(uri), NOTIFICATION)
    for number in range(read + 1):
        plant.append(DeltaTable(str(uri)), table_of([], NOTIFICATION), Transaction("anew", number))
    assert DeltaTable(str(uri)).version() > read
    with pytest.raises(TooFarBehind, match=r"it has another id .* it was made anew.*--forget-stream stream"):
        stream(world.lake, name="stream", checkpoint=checkpoint)


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
