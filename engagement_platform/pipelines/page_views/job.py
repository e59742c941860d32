"""Runs the hops of page views, each until it has read all that waits; what they make is `pipe`.

Each hop is a stream with a checkpoint folder of its own, kept beside the tables; one that was killed goes on where its
folder says, and Delta skips what it had written.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from engagement_platform.engine.cursors import CheckpointRefused, StreamCheckpoints
from engagement_platform.engine.job import Stores
from engagement_platform.engine.model import Offsets
from engagement_platform.lake import log
from engagement_platform.lake.contract import Table
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.streaming import Drained, drain_stream, finished_batch
from engagement_platform.pipelines.page_views import pipe, tables
from engagement_platform.settings import Settings
from engagement_platform.sources.kafka import KafkaSource
from engagement_platform.sources.messages import DecodingLimits

PAGE_VIEWS = "page-views"


@dataclass(frozen=True)
class Hop:
    """One stream: from Kafka, or from the table of a hop before, into a table."""

    name: str
    source: Table | None
    """None: the topic."""
    table: Table
    event_time: str
    """Column of the table that its lag is measured by."""
    frame: Callable[[DataFrame, Lake], DataFrame]

    @property
    def stream(self) -> str:
        """As the stores know who owns which folder."""
        return f"{PAGE_VIEWS}/{self.name}"


_ALL_FILES = 2**31 - 1
"""The greatest maxFilesPerTrigger."""


def _limits(lake: Lake) -> DecodingLimits:
    own = lake.settings.page_views
    return replace(DecodingLimits.of(lake.settings.decoding), max_ahead=min(own.max_ahead, own.max_late))


VIEWS = Hop("page_view", None, tables.PAGE_VIEW, "viewed_at", lambda raw, lake: pipe.page_views(raw, _limits(lake)))
REFUSED = Hop("quarantine", None, tables.VIEW_QUARANTINE, "", lambda raw, lake: pipe.refused(raw, _limits(lake)))
SESSIONS = Hop(
    "session", tables.PAGE_VIEW, tables.SESSION, "ended_at",
    lambda rows, lake: pipe.sessions(rows, lake.settings.page_views.session_gap, lake.settings.page_views.max_late),
)  # fmt: skip
DAYS = Hop(
    "daily", tables.SESSION, tables.DAILY, "session_date",
    lambda rows, lake: pipe.daily(rows, lake.settings.page_views.max_late),
)  # fmt: skip
HOPS = (VIEWS, REFUSED, SESSIONS, DAYS)
"""In the order in which rows travel."""


def run_hop(hop: Hop, lake: Lake, stores: Stores) -> Drained:
    """Everything that waits for a hop; one run of it at a time.

    Raises PlatformError when the hop's folder is gone, belongs to another stream, is of another topic or is behind what
    the stores say, StreamFailed, and what `KafkaSource` raises.
    """
    with stores.leases.acquire(f"job/{hop.stream}", purpose="drain", wait=lake.settings.stores.lease_wait):
        lake.ensure(*(table for table in (hop.source, hop.table) if table is not None))
        folder = checkpoint(hop, lake.root)
        streams = StreamCheckpoints(stores.leases.engine)
        streams.claim(hop.stream, folder)
        if lake.is_local and not Path(folder).is_dir() and lake.version(hop.table) > 0:
            raise CheckpointRefused(
                f"The checkpoint folder {folder} of the stream {hop.stream} is gone, and {hop.table.name} holds what "
                "it wrote: started anew it would write everything twice. Nothing was started. Put the folder back; or, "
                "to begin anew, move the table and those after it away and run `engagement-platform consumers "
                f"--forget-stream {hop.stream}` for each."
            )
        streams.refuse_behind(hop.stream, folder, finished_batch(folder))
        drained = drain_stream(hop.frame(_source(hop, lake), lake), hop.table, lake, folder)
        if (batch := finished_batch(folder)) is not None:
            streams.record(hop.stream, batch)
        return drained


def run_hops(lake: Lake, stores: Stores, *, until_idle: bool, pause: timedelta) -> Iterator[Mapping[str, Drained]]:
    """Every hop, in the order in which rows travel, round after round; what each hop did in each round, by its name.

    until_idle: ends after a round in which nothing came; otherwise for ever, `pause` after each of those.
    """
    while True:
        done = {hop.name: run_hop(hop, lake, stores) for hop in HOPS}
        yield done
        if not any(drained.rows_in for drained in done.values()):
            if until_idle:
                return
            time.sleep(pause.total_seconds())


def checkpoint(hop: Hop, root: str) -> str:
    """The hop's folder, beside the tables below a root: they are only worth anything together."""
    return f"{root}/_checkpoints/{PAGE_VIEWS}/{hop.name}"


def read_up_to(settings: Settings) -> Offsets | None:
    """Where what no finished batch has read of the topic begins; None before the first. Reads one small file.

    Raises CheckpointRefused where the topic is another.
    """
    return _read_up_to(VIEWS, checkpoint(VIEWS, settings.lake), settings.page_views.topic)


def _read_up_to(hop: Hop, folder: str, topic: str) -> Offsets | None:
    batch = finished_batch(folder)
    if batch is None:
        return None
    filesystem, path = log.opened(f"{folder}/offsets/{batch}")
    with filesystem.open_input_stream(path) as file:
        planned = json.loads(file.read().splitlines()[-1])
    if topic not in planned:
        raise CheckpointRefused(
            f"The stream {hop.stream} has read the topic {', '.join(planned)}, by its checkpoint folder {folder}, and "
            f"page_views.topic is {topic} now. Nothing was started. Set page_views.topic to the one that it has read; "
            f"or, to begin anew, move the folder and the table {hop.table.name} away, and those of the other streams "
            f"of {PAGE_VIEWS}, and run `engagement-platform consumers --forget-stream {hop.stream}` for each."
        )
    return {str(partition): int(offset) for partition, offset in planned[topic].items()}


def _source(hop: Hop, lake: Lake) -> DataFrame:
    """Of a topic only where the broker has it and the folder is of no other: Spark says of either what nobody reads."""
    if hop.source is not None:
        # All that a drain finds is one batch: a second one would begin after the watermark has moved, and files of a
        # first read come in no order of events. (`withEventTimeOrder` would order those, and none of a later drain.)
        return lake.stream(hop.source, files=_ALL_FILES)
    topic = KafkaSource(lake.settings.page_views.topic, lake.settings.kafka)
    _read_up_to(hop, checkpoint(hop, lake.root), topic.topic)
    topic.identify({})
    return topic.stream(lake.spark)


@dataclass(frozen=True)
class Lag:
    """How far a hop's table is behind what it is made of, in the time of events."""

    newest: datetime | None
    """Newest event in the table; for days, the last day's beginning."""
    behind_s: float | None
    """Seconds from it to the newest event of the source's table. A session waits for its gap and for late views, a day
    for its end, so that much is right. None: nothing to compare."""


def lag(hop: Hop, lake: Lake) -> Lag:
    """From the bounds in the tables' logs; reads no rows."""
    newest = newest_event(hop.table.uri(lake.root), hop.event_time)
    before = next((each for each in HOPS if each.table == hop.source), None)
    before_it = newest_event(before.table.uri(lake.root), before.event_time) if before else None
    behind = (before_it - newest).total_seconds() if before_it and newest else None
    return Lag(newest, behind)


def newest_event(uri: str, column: str) -> datetime | None:
    """The greatest value of a time column, or day, that the log of a table tells; None where it tells none."""
    if not column or (found := log.open_log(uri)) is None:
        return None
    files = pa.table(found.get_add_actions(flatten=True))
    name = next((n for n in (f"max.{column}", f"partition.{column}") if n in files.column_names), None)
    if name is None or not files.num_rows:
        return None
    newest: datetime | None = pc.max(files.column(name).cast(pa.timestamp("us", tz="UTC"))).as_py()
    return newest
