"""Three hops, each over the table of the one before, end in what a loop over page views makes; once, whatever ends."""

from __future__ import annotations

import json
import random
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.connect.session import SparkSession as RemoteSession

from engagement_platform.engine.cursors import CheckpointRefused, StreamCheckpoints
from engagement_platform.errors import PlatformError
from engagement_platform.lake import scan
from engagement_platform.lake.contract import Column, Mode, NotAStreamSource, Table
from engagement_platform.lake.engagement import MAPPING
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.streaming import StreamFailed, drain_stream, summed
from engagement_platform.pipelines.jobs import open_stores
from engagement_platform.pipelines.page_views.job import (
    DAYS,
    HOPS,
    REFUSED,
    SESSIONS,
    VIEWS,
    _source,
    checkpoint,
    lag,
    read_up_to,
    run_hop,
)
from engagement_platform.pipelines.page_views.rules import refused_ahead
from engagement_platform.pipelines.page_views.tables import DAILY, PAGE_VIEW, SESSION, SHAPE, VIEW_QUARANTINE
from engagement_platform.settings import KafkaSettings, PageViewsSettings, Settings
from engagement_platform.sources.decoded_batches import decode_records
from engagement_platform.sources.kafka import KafkaSource
from engagement_platform.sources.kafka_errors import TopicMissing
from engagement_platform.sources.messages import DecodingLimits
from engagement_platform_tests.conftest import Broker
from engagement_platform_tests.pipelines.page_views.oracle import Chain, View

BEGIN = datetime(2026, 3, 1, 8, tzinfo=UTC)
GAP, LATE = timedelta(minutes=30), timedelta(hours=1)


class World:
    """A lake, stores and a topic of page views."""

    def __init__(self, spark: SparkSession, broker: Broker, folder: Path) -> None:
        topic = f"views-{uuid4().hex[:8]}"
        broker.create_topic(topic)
        self.broker, self.settings = broker, Settings(
            home=folder,
            kafka=KafkaSettings(bootstrap_servers=broker.bootstrap_servers),
            page_views=PageViewsSettings(topic=topic, session_gap=GAP, max_late=LATE),
        )  # fmt: skip
        self.lake, self.stores = Lake(spark, self.settings), open_stores(self.settings)
        self.sent = 0

    def send(self, views: list[View], *more: bytes) -> None:
        """Page views, and what is none."""
        said = [
            {"view_id": f"v{self.sent + n}", "user_id": user, "page": "/", "viewed_at": at.isoformat()}
            for n, (user, at) in enumerate(views)
        ]
        self.sent += len(views)
        messages = [*(json.dumps(one).encode() for one in said), *more]
        self.broker.produce(self.settings.page_views.topic, [(0, None, message) for message in messages])

    def rows(self, table: Table, *columns: str) -> list[tuple[object, ...]]:
        """Without a JVM, while the chain runs or not."""
        found = scan.find(DeltaTable(self.lake.uri(table)), columns, {}).to_pylist()
        return sorted(tuple(row.values()) for row in found)

    def optimize(self, table: Table) -> int:
        """Merge files; how many there are then."""
        opened = DeltaTable(self.lake.uri(table))
        opened.optimize.compact()
        return len(opened.file_uris())


def some_views(dice: random.Random, begin: datetime, hours: int, users: int = 4) -> list[View]:
    """Bursts of views of some users, somewhat out of order, never exactly a gap apart."""
    views = []
    for _ in range(hours * 3):
        user, at = f"u{dice.randrange(users)}", begin + timedelta(seconds=dice.randrange(hours * 3600))
        views += [(user, at + timedelta(seconds=dice.randrange(1500), microseconds=dice.randrange(10**6)))
                  for _ in range(dice.randrange(1, 4))]  # fmt: skip
    return sorted(views, key=lambda view: view[1] + timedelta(seconds=dice.randrange(1800)))


def assert_is(world: World, chain: Chain) -> None:
    assert world.rows(SESSION, "user_id", "started_at", "ended_at", "views") == sorted(chain.sessions)
    assert world.rows(DAILY, "session_date", "sessions", "views", "seconds") == chain.days()


@pytest.mark.slow
@pytest.mark.broker
def test_the_chain_ends_in_what_a_loop_makes_whatever_ends_or_is_merged_on_the_way(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    world, chain, dice = World(spark, broker, tmp_path), Chain(GAP, LATE), random.Random(11)
    first = some_views(dice, BEGIN, 20)
    world.send(first, b"{", b'{"view_id": "x", "user_id": "u", "page": "/", "viewed_at": "2999-01-01T00:00:00Z"}')
    for hop in (VIEWS, REFUSED):
        run_hop(hop, world.lake, world.stores)
    # Everything ends here, between two hops. Anybody can read what there is; files are merged meanwhile.
    assert [user for (user,) in world.rows(PAGE_VIEW, "user_id")] == sorted(user for user, _ in first)
    assert world.rows(VIEW_QUARANTINE, "reason_code") == [("not_json",), ("time_out_of_range",)]
    world.optimize(PAGE_VIEW)
    for hop in (SESSIONS, DAYS):
        run_hop(hop, world.lake, world.stores)
    chain.drain(first)
    assert_is(world, chain)

    # A hop that died between the commit of its table and its own: what it does again is skipped.
    versions = world.lake.version(SESSION)
    newest = max(
        (Path(checkpoint(SESSIONS, world.lake.root)) / "commits").glob("[0-9]*"), key=lambda path: int(path.name)
    )
    newest.unlink()
    (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
    with pytest.raises(CheckpointRefused, match="an older copy was put in its place"):
        run_hop(SESSIONS, world.lake, world.stores)
    # What dies then has not recorded the batch.
    StreamCheckpoints(world.stores.leases.engine).record(SESSIONS.stream, int(newest.name) - 1)
    run_hop(SESSIONS, world.lake, world.stores)
    assert world.lake.version(SESSION) == versions
    assert_is(world, chain)

    second = [*some_views(dice, BEGIN + timedelta(hours=22), 20), ("u1", BEGIN - timedelta(days=3))]
    world.send(second)
    drained = [run_hop(hop, world.lake, world.stores) for hop in HOPS]
    chain.drain(second)
    assert_is(world, chain)
    assert (drained[2].rows_in, drained[2].late, chain.late_views) == (len(second), 1, 1)
    assert chain.days()
    assert lag(SESSIONS, world.lake).behind_s is not None
    world.optimize(PAGE_VIEW)
    world.optimize(SESSION)
    again = [run_hop(hop, world.lake, world.stores) for hop in HOPS]
    assert [drain.rows_in for drain in again] == [0, 0, 0, 0]
    assert_is(world, chain)

    for hop in HOPS:
        # Files are merged by this test alone.
        commits = [one for one in DeltaTable(world.lake.uri(hop.table)).history() if one["operation"] != "OPTIMIZE"]
        assert {one["engineInfo"].split("/")[0] for one in commits} == {"Apache-Spark"}, hop.table.name

    shutil.rmtree(checkpoint(DAYS, world.lake.root))
    with pytest.raises(PlatformError, match="of the stream page-views/daily is gone"):
        run_hop(DAYS, world.lake, world.stores)
    owned = StreamCheckpoints(world.stores.leases.engine).all()
    assert set(owned) == {hop.stream for hop in HOPS}


def test_no_stream_is_written_into_a_table_whose_rows_change(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, Settings(home=tmp_path))
    lake.ensure(MAPPING)
    with pytest.raises(NotAStreamSource):
        drain_stream(spark.readStream.format("rate").load(), MAPPING, lake, str(tmp_path / "checkpoint"))


def test_a_stream_that_spark_ends_is_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, Settings(home=tmp_path))
    table = Table(("view", "length"), "", (Column("length", "int", ""),), Mode.APPEND_ONLY)
    lake.ensure(table)
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "one.txt").write_text("no number\n")
    frame = spark.readStream.text(str(folder)).select(F.col("value").cast("int").alias("length"))
    with pytest.raises(
        StreamFailed, match=r"The stream into view/length failed: \[TASK_WRITE_FAILED\] Task failed"
    ) as failed:
        drain_stream(frame, table, lake, str(tmp_path / "checkpoint"))
    assert "\n" not in str(failed.value)
    assert "move the checkpoint folder" in str(failed.value)


def test_a_topic_that_is_missing_is_named_before_spark_asks_for_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(home=tmp_path, page_views=PageViewsSettings(topic="nowhere"))

    def is_missing(source: KafkaSource, _pinned: object) -> None:
        raise TopicMissing("here", source.topic)

    monkeypatch.setattr(KafkaSource, "identify", is_missing)
    with pytest.raises(TopicMissing, match="no topic nowhere"):
        run_hop(VIEWS, Lake(spark, settings), open_stores(settings))


def test_a_folder_that_is_of_another_topic_is_refused_with_both_names(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, page_views=PageViewsSettings(topic="former"))
    folder = Path(checkpoint(VIEWS, settings.lake))
    for name, lines in (("offsets", ["v1", "{}", '{"former":{"0":7,"1":0}}']), ("commits", ["v1", "{}"])):
        (folder / name).mkdir(parents=True)
        (folder / name / "0").write_text("\n".join(lines))
    assert read_up_to(settings) == {"0": 7, "1": 0}
    now = Settings(home=tmp_path, page_views=PageViewsSettings(topic="other"))
    with pytest.raises(CheckpointRefused, match=r"has read the topic former, .* page_views.topic is other now"):
        read_up_to(now)


def two_views(*ahead: timedelta) -> pa.RecordBatch:
    """Messages as a topic has them, of views so long after they were produced."""
    times = [BEGIN + each for each in ahead]
    values = [
        json.dumps({"view_id": "v", "user_id": "u", "page": "/", "viewed_at": at.isoformat()}).encode() for at in times
    ]
    return pa.RecordBatch.from_pydict(
        {
            "topic": ["t"] * 2, "partition": pa.array([0] * 2, pa.int32()), "offset": [1, 2],
            "key": pa.array([None] * 2, pa.binary()), "value": pa.array(values, pa.binary()),
            "timestamp": pa.array([BEGIN] * 2, pa.timestamp("us", tz="UTC")),
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("own", "ahead"),
    [({}, timedelta(minutes=5)), ({"max_late": "PT1M"}, timedelta(minutes=1)), ({"max_ahead": "PT0S"}, timedelta(0))],
    ids=["default", "never more than is late", "none"],
)
def test_a_view_that_would_make_those_of_now_late_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: dict[str, str], ahead: timedelta
) -> None:
    # Columns without a JVM.
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    settings = Settings(home=tmp_path, page_views=PageViewsSettings.model_validate(own))
    for hop in (VIEWS, REFUSED):
        raw = MagicMock()
        hop.frame(raw, MagicMock(settings=settings))
        decode = raw.mapInArrow.call_args.args[0]
        [found] = decode(iter([two_views(ahead, ahead + timedelta(microseconds=1))]))
        assert found.column("reason_code").to_pylist() == [None, "time_out_of_range"]
        assert "page_views.max_ahead" in found.column("reason")[1].as_py()


def test_a_drain_of_a_hop_s_table_is_one_batch_and_a_stream_of_a_reader_has_batches_of_delta_s_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    lake: Any = Lake(RemoteSession("sc://127.0.0.1:1"), Settings(home=tmp_path))  # type: ignore[arg-type]

    def options(frame: Any) -> dict[str, str]:
        return dict(frame._plan.plan(lake.spark.client).read.data_source.options)

    for hop in (SESSIONS, DAYS):
        found = options(_source(hop, lake))
        assert int(found["maxFilesPerTrigger"]) > 10**9
        assert found["skipChangeCommits"] == "true"
    assert "maxFilesPerTrigger" not in options(lake.stream(PAGE_VIEW))


def test_a_view_from_the_future_is_refused_whole() -> None:
    raw = two_views(timedelta(hours=24), timedelta(hours=24, microseconds=1))
    values = raw.column("value").to_pylist()
    [found] = decode_records(SHAPE, DecodingLimits(), datetime(9999, 1, 1, tzinfo=UTC))(iter([raw]))
    told = refused_ahead(raw, found, timedelta(days=1))
    assert told.schema == found.schema
    assert told.column("reason_code").to_pylist() == [None, "time_out_of_range"]
    assert told.column("value").to_pylist() == [None, values[1]]
    assert told.column("view_id").to_pylist() == ["v", None]


def test_what_spark_reports_of_batches_is_summed_up() -> None:
    """As a Connect server says it: without the sum over sources."""
    told = summed(
        [
            {"sources": [{"numInputRows": 2}, {"numInputRows": 1}],
             "eventTime": {"watermark": "1970-01-01T00:00:00.000Z"}, "sink": {}},
            {"sources": [{"numInputRows": 2}], "stateOperators": [{"numRowsDroppedByWatermark": 1}],
             "eventTime": {"watermark": "2026-03-01T00:00:00.000Z"}},
            {"sources": [{"numInputRows": 0}], "eventTime": {}, "sink": {}},
        ]
    )  # fmt: skip
    assert (told.batches, told.rows_in, told.late, told.watermark) == (2, 5, 1, "2026-03-01T00:00:00.000Z")
