"""Incremental read with Spark: a stream of notifications and a batch pull, both joined to the rows as they are now.

Writes nothing. Which stream owns which checkpoint folder is kept in the stores; the same without a JVM is `changes`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.consumers.changes import CHANGE_TYPES, chosen, lake_root
from engagement_platform.consumers.notified import (
    KEY,
    READ,
    TooFarBehind,
    commits,
    refuse_replaced,
    told_too_far_behind,
)
from engagement_platform.consumers.position import CursorReader, Position, Start
from engagement_platform.engine.cursors import StreamCheckpoints, checkpoint_folder
from engagement_platform.engine.database import open_engine
from engagement_platform.errors import PlatformError
from engagement_platform.lake import added_rows, log
from engagement_platform.lake.added_rows import Added
from engagement_platform.lake.engagement import NOTIFICATION
from engagement_platform.lake.lake import Lake, any_of
from engagement_platform.layout.streams import Followed, followed
from engagement_platform.pipelines.engagements.schema import CURRENT_ROW
from engagement_platform.pipelines.snapshot import current, snapshot

MAX_ROWS = 1_000_000
"""Notifications in one pull (a guess: what a driver of 1 GB joins without spilling)."""

MAX_VALUES = 1_000
"""More organizations or days than this are not listed; then the join alone finds the rows."""


class StreamTooFarBehind(PlatformError):
    """What a stream has not read yet can no longer be read one by one."""

    def __init__(self, name: str, version: int, why: str) -> None:
        self.name, self.version, self.why = name, version, why
        super().__init__(
            f"The stream {name} cannot go on after version {version} of {NOTIFICATION.name}: {why}. It was stopped for "
            "longer than these are kept. Nothing was read. Replace what it has by all rows that stand now (`Pull(...)"
            f".resnapshot()`), then `engagement-platform consumers --forget-stream {name}`, and start it with a new "
            "checkpoint folder and the option startingVersion."
        )


def stream(lake: Lake, *, name: str, checkpoint: str, store_url: str | None = None) -> DataFrame:
    """Notifications as a streaming frame, for a query whose checkpointLocation is `checkpoint`; that becomes its own.

    Join each micro-batch with `as_now` in foreachBatch: joined as a stream, rows would be those of when it started. For
    some organizations only, filter the frame. Raises CheckpointTaken when the folder belongs to another stream,
    CheckpointChanged when this stream has another one, StreamTooFarBehind, StoresUnavailable.
    """
    # Before anything is read of the folder: what another stream has yet to read says nothing of this one.
    StreamCheckpoints(open_engine(store_url or lake.settings.store_url)).claim(name, checkpoint)
    uri = lake.uri(NOTIFICATION)
    found = log.open_log(uri)
    at = followed(checkpoint_folder(checkpoint), str(found.metadata().id)) if found is not None else None
    if isinstance(at, Followed):
        _refuse_lost(name, uri, at.version)
    return lake.stream(NOTIFICATION)


def _refuse_lost(name: str, uri: str, version: int) -> None:
    """Raise StreamTooFarBehind when what follows a version cannot be read any more. Reads the log, no rows."""
    newest = log.version(uri)
    try:
        refuse_replaced(name, Position(version), newest)
        with told_too_far_behind(name, Position(version)):
            for _, files in commits(uri, version, version if newest is None else newest):
                if files:
                    # What was removed longest ago is what follows at once.
                    added_rows.refuse_vacuumed(uri, files)
                    return
    except TooFarBehind as behind:
        raise StreamTooFarBehind(name, version, behind.why) from behind


def as_now(lake: Lake, notified: DataFrame) -> DataFrame:
    """What became of the engagements that some notifications name, one row each.

    In:  rows of `engagement/notification`, at least READ; not streaming.
    Out: the columns of CURRENT_ROW with `change_type` first and `previous_person_id` last. A DELETE has only
         organization_id, engagement_id, engagement_date and previous_person_id.
    Cost: one pass over the notifications for their organizations and days, by which files of the Data Table are
    skipped, then one join.
    """
    changed = notified.groupBy(*KEY).agg(
        F.first("engagement_date").alias("changed_date"),
        F.min_by(F.struct("previous_person_id"), "batch_sequence").alias("before"),
    )
    rows = current(lake, snapshot(lake.root))
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
    return shown.select("change_type", *CURRENT_ROW.names, "previous_person_id")


@dataclass(frozen=True)
class Pulled:
    """One stretch of notifications, as `as_now` shows it."""

    rows: DataFrame
    position: Position


class Pull(CursorReader):
    """What changed since a consumer committed last, in Spark. Iterate it, write each frame, then `commit()`.

    organizations, change_types, columns, start: as of `Changes`, whose cursor this is, moved by whole commits: at least
    one a frame, together about max_rows rows. Raises UnknownChoice, UnknownStart, StoresUnavailable.
    """

    def __init__(
        self,
        lake: Lake,
        *,
        name: str,
        organizations: Collection[str] | None = None,
        change_types: Collection[str] | None = None,
        columns: Sequence[str] | None = None,
        start: Start = "beginning",
        max_rows: int = MAX_ROWS,
        store_url: str | None = None,
    ) -> None:
        self.lake = lake
        self.organizations = None if organizations is None else frozenset(organizations)
        self.change_types, self.columns = chosen(change_types, columns)
        root, store_url = lake_root(lake.root), store_url or lake.settings.store_url
        uri = lake.uri(NOTIFICATION)
        super().__init__(root, uri, name=name, start=start, max_rows=max_rows, store_url=store_url)
        # A commit of which another reader took a part comes whole: its rows may be in any order here.
        self._position = Position(self.committed.version)

    def __iter__(self) -> Iterator[Pulled]:
        """Frames until all is read. Raises TooFarBehind."""
        while (pulled := self._next()) is not None:
            yield pulled

    def resnapshot(self) -> Pulled:
        """Everything that stands now, each row an INSERT; `commit()` then goes on after it.

        Later frames may repeat some of it. Replace by it what you have.
        """
        # In this order: a change that was announced by then is in the view.
        newest = log.version(self._uri)
        self._position = Position(added_rows.BEFORE_ALL if newest is None else newest)
        rows = current(self.lake, snapshot(self.lake.root)).withColumns(
            {"change_type": F.lit("INSERT"), "previous_person_id": F.lit(None).cast("string")}
        )
        if self.organizations is not None:
            rows = rows.where(any_of("organization_id", sorted(self.organizations)))
        return Pulled(self._shown(rows), self._position)

    def _shown(self, rows: DataFrame) -> DataFrame:
        return rows.select("change_type", *self.columns, "previous_person_id")

    def _next(self) -> Pulled | None:
        newest = log.version(self._uri)
        refuse_replaced(self.name, self._position, newest)
        if newest is None or newest == self._position.version:
            return None
        files, rows, end = list[Added](), 0, self._position.version
        with told_too_far_behind(self.name, self._position):
            for version, added in commits(self._uri, end, newest):
                count = sum(added_rows.rows_in(self._uri, file) for file in added)
                if files and rows + count > self.max_rows:
                    break
                files, rows, end = [*files, *added], rows + count, version
            added_rows.refuse_vacuumed(self._uri, files)
        self._position = Position(end)
        self._rows_read += rows
        if not files:
            return None
        notified = added_rows.read_frame(self.lake.spark, self._uri, NOTIFICATION, files, READ)
        if self.organizations is not None:
            notified = notified.where(any_of("organization_id", sorted(self.organizations)))
        found = as_now(self.lake, notified)
        if len(self.change_types) < len(CHANGE_TYPES):
            found = found.where(any_of("change_type", sorted(self.change_types)))
        return Pulled(self._shown(found), self._position)
