"""Whoever reads the tables of a chain while its streams are at work sees whole batches, and never fewer than before."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from threading import Condition

import pytest
from pydantic import SecretStr
from pyspark.sql import SparkSession

from engagement_platform.lake import log
from engagement_platform.lake.contract import Table
from engagement_platform.lake.lake import Lake
from engagement_platform.pipelines.page_views.job import DAYS, SESSIONS, VIEWS, run_hop
from engagement_platform.pipelines.page_views.tables import DAILY, PAGE_VIEW, SESSION
from engagement_platform.settings import KafkaSettings
from engagement_platform_tests.conftest import Broker
from engagement_platform_tests.pipelines.page_views.oracle import Chain
from engagement_platform_tests.pipelines.page_views.test_hops import BEGIN, GAP, LATE, World, some_views

BATCH = 40
"""Most views in a batch of the first hop, so that one run of it has several."""
PARTS, MOST_PARTS = 2, 20
"""More parts come until enough was read while a stream was running."""
WAIT_S = 120.0
COLUMNS = {
    PAGE_VIEW: ("offset",),
    SESSION: ("user_id", "started_at", "ended_at", "views"),
    DAILY: ("session_date", "sessions", "views", "seconds"),
}
State = tuple[tuple[object, ...], ...]


@dataclass
class Reader:
    """Reads every table again and again, with Spark and without, and keeps what it saw, in order."""

    world: World
    ended: bool = False
    passes: int = 0
    seen: dict[Table, list[State]] = field(default_factory=lambda: {table: [] for table in COLUMNS})
    during: set[tuple[str, str]] = field(default_factory=set)
    """(way, table) of reads that began and ended while one and the same stream was running."""
    passed: Condition = field(default_factory=Condition)

    def read(self) -> None:
        """Until it is ended."""
        while not self.ended:
            # A table of Spark costs what the streams need as well, so one of them a pass.
            by_turns = list(COLUMNS)[self.passes % len(COLUMNS)]
            for way, table in (*((self.plainly, table) for table in COLUMNS), (self.by_spark, by_turns)):
                if log.newest_entry(self.world.lake.uri(table)) is None:
                    continue
                before = self.streams()
                rows = way(table, COLUMNS[table])
                if before & self.streams():
                    self.during.add((way.__name__, table.name))
                self.seen[table].append(tuple(sorted(rows, key=repr)))
            with self.passed:
                self.passes += 1
                self.passed.notify_all()

    @property
    def enough(self) -> bool:
        """Whether every table was read while a stream was running, and one of them by Spark."""
        ways = {way for way, _ in self.during}
        return "by_spark" in ways and self.during >= {("plainly", table.name) for table in COLUMNS}

    def plainly(self, table: Table, columns: tuple[str, ...]) -> list[tuple[object, ...]]:
        """Without a JVM."""
        return self.world.rows(table, *columns)

    def by_spark(self, table: Table, columns: tuple[str, ...]) -> list[tuple[object, ...]]:
        """As a table of Spark."""
        found = self.world.lake.read(table).select(*columns).toArrow().to_pylist()
        return [tuple(row.values()) for row in found]

    def streams(self) -> set[str]:
        """Runs of streams that are under way."""
        return {str(query.runId) for query in self.world.lake.spark.streams.active}

    def wait(self, until: Callable[[], bool], why: str) -> None:
        """Until something is so. Whoever waits for a reader that has ended learns why from it."""
        with self.passed:
            assert self.passed.wait_for(lambda: self.ended or until(), WAIT_S), why


@pytest.mark.slow
@pytest.mark.broker
def test_tables_read_while_streams_fill_them_hold_whole_batches_and_only_grow(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    world, chain, dice = World(spark, broker, tmp_path), Chain(GAP, LATE), random.Random(7)
    kafka = KafkaSettings(
        bootstrap_servers=broker.bootstrap_servers, spark_options={"maxOffsetsPerTrigger": SecretStr(str(BATCH))}
    )
    world.settings = world.settings.model_copy(update={"kafka": kafka})
    world.lake = Lake(spark, world.settings)
    allowed: dict[Table, set[State]] = {table: {()} for table in COLUMNS}
    reader = Reader(world)
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(reader.read)
        reading.add_done_callback(lambda _: setattr(reader, "ended", True))
        try:
            for part in range(MOST_PARTS):
                if part >= PARTS and reader.enough:
                    break
                views = some_views(dice, BEGIN + timedelta(hours=26 * part), 24)
                first = world.sent
                world.send(views)
                for end in (*range(first + BATCH, world.sent, BATCH), world.sent):
                    allowed[PAGE_VIEW].add(tuple((offset,) for offset in sorted(range(end), key=lambda n: repr((n,)))))
                chain.drain(views)
                allowed[SESSION].add(tuple(sorted(chain.sessions, key=repr)))
                allowed[DAILY].add(tuple(sorted(chain.days(), key=repr)))
                for hop in (VIEWS, SESSIONS, DAYS):
                    run_hop(hop, world.lake, world.stores)
                # One pass may have begun before, the next one has not.
                target = reader.passes + 2
                reader.wait(lambda target=target: reader.passes >= target, "the reader stands still")  # type: ignore[misc]
        finally:
            reader.ended = True
        reading.result(WAIT_S)
    for table, states in reader.seen.items():
        assert set(states) <= allowed[table], f"{table.name} showed something that is no whole batch"
        assert all(set(a) <= set(b) for a, b in pairwise(states)), f"{table.name} lost rows"
        assert len(set(states) - {()}) >= PARTS, f"{table.name} did not grow before the reader's eyes"
    assert reader.enough, f"nothing but {reader.during} was read while a stream was running"
