"""What waits, on the broker and in the requests' table: how much and since when. Nothing is consumed. No Dagster.

Clients are kept between calls, for sensors of one code server ask every few seconds: a new client costs a connection
and its threads.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime

from engagement_platform.engine.job import Stores
from engagement_platform.engine.model import BatchRecord, JobState
from engagement_platform.pipelines.games.backlog import backlog as objects_waiting
from engagement_platform.pipelines.games.feed import Feed
from engagement_platform.pipelines.jobs import PATIENCE, open_stores, topic_of
from engagement_platform.pipelines.status import Waiting as Pending
from engagement_platform.pipelines.status import in_tables, unread_from
from engagement_platform.settings import Settings
from engagement_platform.sources.kafka import KafkaSource

_AHEAD_MS = 3_600_000
"""A producer's clock may be so far ahead without a reason to look at it."""


class Waiting:
    """Looks at the stores and the broker of one set of settings."""

    def __init__(self, settings: Settings) -> None:
        self.given = settings
        # A tick of a sensor has a minute, but a broker that is down must not hold up the other sensors for its 20 s.
        patient = {"timeout": min(settings.kafka.timeout, PATIENCE)}
        self.settings = settings.model_copy(update={"kafka": settings.kafka.model_copy(update=patient)})
        self.stores: Stores = open_stores(settings)
        self._sources: dict[str, KafkaSource] = {}
        self._announced: dict[str, datetime | None] = {}

    def source(self, job: str, topic: str | None = None) -> KafkaSource:
        """The topic of a job; None: the one that the settings name."""
        topic = topic or topic_of(job, self.settings)
        return self._sources.setdefault(topic, KafkaSource(topic, self.settings.kafka))

    def checkpoint(self, job: str) -> BatchRecord | None:
        return self.stores.checkpoints.latest(job)

    def backlog(self, job: str, topic: str | None = None) -> int:
        """Messages, or rows of engagement tables, that no finished batch has read; a batch under way counts.

        Raises what the source raises.
        """
        if (waits := in_tables(job, self.settings, self.stores)) is not None:
            return waits.rows
        return self.source(job, topic).backlog(unread_from(self.checkpoint(job)))

    def oldest(self, job: str, topic: str | None = None) -> datetime | None:
        """When the oldest waiting message was produced, UTC; None when nothing waits. Raises what the source raises.

        Reads one message of each partition in which something waits. Of rows in tables: when their oldest
        batch was planned.
        """
        if (waits := in_tables(job, self.settings, self.stores)) is not None:
            return waits.since
        source = self.source(job, topic)
        end, begin = source.end_offsets(), {**source.earliest_offsets()}
        begin |= {p: max(o, begin.get(p, 0)) for p, o in (unread_from(self.checkpoint(job)) or {}).items()}
        waiting = {partition: begin.get(partition, 0) for partition in end if begin.get(partition, 0) < end[partition]}
        first = [timestamp for timestamp in source.first_timestamps(waiting).values() if timestamp is not None]
        now, last = datetime.now(UTC), self.checkpoint(job)
        now_ms = now.timestamp() * 1000
        # A producer's clock may say anything, also what no date is. What claims to be of the far future may have waited
        # since the last batch, which took what was there.
        since_ms = now_ms if last is None else last.updated_ts.timestamp() * 1000
        known = [timestamp if timestamp <= now_ms + _AHEAD_MS else since_ms for timestamp in first]
        return datetime.fromtimestamp(min(*known, now_ms) / 1000, UTC) if known else None

    def announced(self, feed: Feed, now: datetime) -> Pending:
        """Messages about objects of a feed that no finished batch has read. Raises NoGameQueue, QueueUnavailable.

        SQS does not tell how old its messages are. So: since they were first seen waiting here, or since the last
        batch, which took what was waiting then; those of an unfinished batch wait since it was planned.
        """
        last = self.checkpoint(feed.job)
        backlog = objects_waiting(feed.settings(self.settings), last)
        since = None if backlog == 0 else self._announced.get(feed.job) or now
        if since is not None and last is not None:
            done = last.state is JobState.SUCCEEDED
            since = max(since, last.updated_ts) if done else min(since, last.manifest.ingestion_ts)
        self._announced[feed.job] = since
        return Pending(backlog, since)


_lock = threading.Lock()
_kept: list[Waiting] = []


def waiting(settings: Settings) -> Waiting:
    """The one of this process for these settings; another one when the settings have changed."""
    with _lock:
        if not _kept or _kept[0].given != settings:
            _kept[:] = [Waiting(settings)]
        return _kept[0]
