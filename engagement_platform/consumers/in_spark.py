"""Incremental read with Spark: a stream of notifications and a batch pull, both joined to the rows as they are now.

Writes nothing. Which stream owns which checkpoint folder is kept in the stores; the same without a JVM is `changes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.consumers.changes import lake_root
from engagement_platform.consumers.notified import KEY, READ, commits, refuse_replaced, told_too_far_behind
from engagement_platform.consumers.position import Position, Start, first_position
from engagement_platform.microbatch.cursors import CursorStore, StreamCheckpoints
from engagement_platform.microbatch.database import open_engine
from engagement_platform.mutation.current import current
from engagement_platform.tables import growth, log
from engagement_platform.tables.engagement import NOTIFICATION, data_table
from engagement_platform.tables.growth import Added
from engagement_platform.tables.lake import Lake, any_of

MAX_ROWS = 1_000_000
"""Notifications in one pull (a guess: what a driver of 1 GB joins without spilling)."""

MAX_VALUES = 1_000
"""More organizations or days than this are not listed; then the join alone finds the rows."""


def stream(lake: Lake, *, name: str, checkpoint: str, store_url: str | None = None) -> DataFrame:
    """Notifications as a streaming frame, for a query whose checkpointLocation is `checkpoint`; that becomes its own.

    Join each micro-batch with `as_now` in foreachBatch: joined as a stream, rows would be those of when it started.
    Raises CheckpointTaken when the folder belongs to another stream, CheckpointChanged when this stream has another
    one, StoresUnavailable.
    """
    StreamCheckpoints(open_engine(store_url or lake.settings.store_url)).claim(name, checkpoint)
    return lake.stream(NOTIFICATION)


def as_now(lake: Lake, notified: DataFrame) -> DataFrame:
    """What became of the engagements that some notifications name, one row each.

    In:  rows of `engagement/notification`, at least READ; not streaming.
    Out: the columns of the Data Table with `change_type` first and `previous_person_id` last. A DELETE has only
         organization_id, engagement_id, engagement_date and previous_person_id.
    Cost: one pass over the notifications for their organizations and days, by which files of the Data Table are
    skipped, then one join.
    """
    changed = notified.groupBy(*KEY).agg(
        F.first("engagement_date").alias("changed_date"),
        F.min_by(F.struct("previous_person_id"), "ingestion_ts").alias("before"),
    )
    data = data_table(lake.settings.layout.scheme)
    rows = current(lake, data)
    for column, named in (("organization_id", "organization_id"), ("engagement_date", "engagement_date")):
        values = [row[0] for row in notified.select(named).distinct().limit(MAX_VALUES + 1).collect()]
        if len(values) <= MAX_VALUES:
            rows = rows.where(any_of(column, values))
    joined = changed.join(rows.withColumn("stands", F.lit(True)), list(KEY), "left")
    previous = F.col("before.previous_person_id")
    kind = F.when(F.col("stands").isNull(), "DELETE").when(previous.isNull(), "INSERT").otherwise("UPDATE")
    shown = joined.withColumns(
        {"engagement_date": F.col("changed_date"), "change_type": kind, "previous_person_id": previous}
    )
    return shown.select("change_type", *data.column_names, "previous_person_id")


@dataclass(frozen=True)
class Pulled:
    """One stretch of notifications, as `as_now` shows it."""

    rows: DataFrame
    position: Position


class Pull:
    """What changed since a consumer committed last, in Spark. Iterate it, write each frame, then `commit()`.

    The same cursor as that of `Changes`, moved by whole commits: at least one a frame, together about max_rows rows.
    Raises UnknownStart, StoresUnavailable.
    """

    def __init__(
        self,
        lake: Lake,
        *,
        name: str,
        start: Start = "beginning",
        max_rows: int = MAX_ROWS,
        store_url: str | None = None,
    ) -> None:
        self.name, self.lake, self.max_rows = name, lake, max_rows
        self._uri, root = lake.uri(NOTIFICATION), lake_root(lake.root)
        self._cursors = CursorStore(open_engine(store_url or lake.settings.store_url))
        self._cursor = self._cursors.get(root, name) or self._cursors.begin(
            root, name, first_position(self._uri, start).as_json()
        )
        # A commit of which another reader took a part comes whole: its rows may be in any order here.
        self._position, self._unsaid = Position(self.committed.version), 0

    @property
    def committed(self) -> Position:
        """Where a crash now would lead back to."""
        return Position.of(self._cursor.position)

    def __iter__(self) -> Iterator[Pulled]:
        """Frames until all is read. Raises TooFarBehind."""
        while (pulled := self._next()) is not None:
            yield pulled

    def commit(self) -> None:
        """Go on from the end of the last frame from now on. Raises CursorMoved, StoresUnavailable."""
        if self._position != self.committed:
            self._cursor = self._cursors.move(self._cursor, self._position.as_json(), self._unsaid)
        self._unsaid = 0

    def _next(self) -> Pulled | None:
        newest = log.version(self._uri)
        refuse_replaced(self.name, self._position, newest)
        if newest is None or newest == self._position.version:
            return None
        files, rows, end = list[Added](), 0, self._position.version
        with told_too_far_behind(self.name, self._position):
            for version, added in commits(self._uri, end, newest):
                count = sum(growth.rows_in(self._uri, file) for file in added)
                if files and rows + count > self.max_rows:
                    break
                files, rows, end = [*files, *added], rows + count, version
            growth.refuse_vacuumed(self._uri, files)
        self._position = Position(end)
        self._unsaid += rows
        if not files:
            return None
        notified = growth.read_frame(self.lake.spark, self._uri, NOTIFICATION, files, READ)
        return Pulled(as_now(self.lake, notified), self._position)
