"""The pipe of a batch of game events: read the objects, decode their lines, leave out what has landed before.

Frames in, frames out; what becomes of a line is decided by `rules`. Nothing is written: commits only filter the plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from operator import and_, or_

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from engagement_platform.engine.model import Manifest
from engagement_platform.lake import live_files
from engagement_platform.lake.contract import Table
from engagement_platform.lake.lake import Lake
from engagement_platform.pii.tombstones import Tombstones
from engagement_platform.pipelines.engagements.pipe import BROADCAST_ROWS
from engagement_platform.pipelines.games import rules
from engagement_platform.pipelines.games.decoding import EventLimits, event_decoder
from engagement_platform.pipelines.games.event_type import ENVELOPE
from engagement_platform.pipelines.games.objects import LINE_SCHEMA, BatchObjects
from engagement_platform.pipelines.games.registry import Registry
from engagement_platform.pipelines.parts import QUANTILES, kept
from engagement_platform.sources.lateness import from_microseconds
from engagement_platform.sources.s3_sqs import S3SqsDataSource

_GROUPS = 16
"""Into so many groups the ids of a batch fall for the search for copies."""
PLAYER = ("game_id", "player_id")
_EARLIEST, _LATEST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Summary:
    """What one pass over the decoded lines counts."""

    rows_in: int = 0
    bytes_in: int = 0
    unknown_fields: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    """Reason code -> lines that are no event."""
    accepted: Mapping[str, int] = field(default_factory=dict)
    """Type -> events of it, copies included."""
    times: Mapping[tuple[str, date], tuple[datetime, datetime]] = field(default_factory=dict)
    """Type and day -> first and last time of its events."""
    arrival_quantiles_ms: Sequence[int] = ()

    @property
    def refused(self) -> int:
        """Lines that are no event."""
        return sum(self.rejected.values())


def read_lines(spark: SparkSession, objects: BatchObjects) -> DataFrame:
    """The lines of objects, fetched by Spark's executors. Columns: LINE_SCHEMA."""
    spark.dataSource.register(S3SqsDataSource)
    return spark.read.format("s3-sqs").options(**objects.as_options()).schema(LINE_SCHEMA).load()


def decode_lines(lines: DataFrame, types: Registry, limits: EventLimits, planned: datetime) -> DataFrame:
    """What each line is; columns as rules.decoded_ddl says. Lazily checkpointed."""

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Made in the worker: the parser inside cannot be pickled.
        decoder = event_decoder(types, limits)
        for batch in batches:
            yield rules.decoded_lines(batch, decoder, types, planned)

    return kept(lines.mapInArrow(decode, rules.decoded_ddl(types)))


def summarize(decoded: DataFrame) -> Summary:
    """Run one job over decoded lines; it also computes a lazily checkpointed frame."""
    is_event = F.col("reason_code").isNull()
    keyed = decoded.withColumns(
        {"of": F.when(is_event, F.col("event_type")), "day": F.when(is_event, F.col("event_date"))}
    )
    each, all_of_them = ["reason_code", "of", "day"], F.grouping_id().alias("level")
    groups = keyed.groupingSets([each, []], *each).agg(
        all_of_them,
        F.count("*").alias("lines"),
        F.sum("value_bytes").alias("bytes"),
        F.sum("unknown_fields").alias("unknown_fields"),
        F.min(F.unix_micros("event_ts")).alias("first"),
        F.max(F.unix_micros("event_ts")).alias("last"),
        F.percentile_approx(F.unix_millis("arrived"), list(QUANTILES), 1000).alias("arrived"),
    )
    return _summary(groups.collect())


def _summary(groups: Sequence[Row]) -> Summary:
    rejected: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    times = {}
    total: Row | None = None
    for row in groups:
        if row["level"]:
            total = row
        elif row["reason_code"] is not None:
            rejected[row["reason_code"]] += row["lines"]
        else:
            accepted[row["of"]] += row["lines"]
            times[row["of"], row["day"]] = from_microseconds(row["first"]), from_microseconds(row["last"])
    if total is None or not total["lines"]:
        return Summary()
    counts = {"rows_in": total["lines"], "bytes_in": total["bytes"], "unknown_fields": total["unknown_fields"]}
    return Summary(**counts, rejected=rejected, accepted=accepted, times=times, arrival_quantiles_ms=total["arrived"])


def without_erased(decoded: DataFrame, tombstones: Tombstones, lake: Lake, sequence: int) -> DataFrame | None:
    """The lines that are not of erased players, kept; None where all are.

    sequence: of the batch; those count who were erased before it began, so that a replay of it drops the same. An
    erasure waits for batches that began before it. Cost: a job for the ids.
    """
    players = decoded.where("player_id IS NOT NULL").select(F.coalesce("game_id", F.lit("")), "player_id").distinct()
    pairs = {(str(game), str(player)) for game, player in players.collect()}
    gone = tombstones.erased_players(pairs, sequence)
    if not gone:
        return None
    rows = pa.Table.from_pylist([dict(zip(PLAYER, pair, strict=True)) for pair in sorted(gone)])
    named = decoded.alias("line").join(
        F.broadcast(lake.frame(rows)).alias("gone"),
        (F.coalesce("line.game_id", F.lit("")) == F.col("gone.game_id"))
        & (F.col("line.player_id") == F.col("gone.player_id")),
        "left_anti",
    )
    return kept(named)


def landed_events(
    lake: Lake, manifest: Manifest, types: Registry, decoded: DataFrame, found: Summary, window: timedelta
) -> DataFrame:
    """Events that have landed with one of the ids of a batch, near its times. Columns: rules.LANDED_DDL.

    Near the times of each day: one late event among new ones would ask for all that lies between them. Cost: one scan
    of the files of all tables.
    """
    files: dict[str, str] = {}
    parts = []
    for name in found.accepted:
        table = types[name].table
        version = manifest.table_versions.get(table.name, 0)
        if version == 0:
            # As it was made: without a row. Also of a type that was declared after this batch had been planned.
            continue
        near = [_around(*times, window) for (of, _), times in found.times.items() if of == name]
        paths = live_files.between(lake.uri(table), version, "event_ts", near)
        if paths is None:
            rows = lake.read(table, version).where(reduce(or_, (F.col("event_ts").between(*span) for span in near)))
            parts.append(rows.select(F.lit(name).alias("event_type"), "event_id", "event_ts"))
        else:
            files |= dict.fromkeys(paths, name)
    if files:
        parts.append(_of_files(lake, files))
    if not parts:
        return lake.spark.createDataFrame([], rules.LANDED_DDL)
    ids = decoded.where("reason_code IS NULL").select("event_type", "event_id")
    ids = F.broadcast(ids) if found.rows_in <= BROADCAST_ROWS else ids.distinct()
    return reduce(DataFrame.unionAll, parts).join(ids, ["event_type", "event_id"], "left_semi")


def _around(first: datetime, last: datetime, window: timedelta) -> tuple[datetime, datetime]:
    """A span with a window before and behind it, as far as there are times."""
    return first - min(window, first - _EARLIEST), last + min(window, _LATEST - last)


def _of_files(lake: Lake, files: Mapping[str, str]) -> DataFrame:
    """Events in files of tables. files: path -> type of its events."""
    names = {path.rpartition("/")[2]: name for path, name in files.items()}
    of = lake.frame(pa.table({"file_name": list(names), "event_type": list(names.values())}))
    # Folders of several tables are no partitions of one.
    reader = lake.spark.read.schema("event_id string, event_ts timestamp").option("recursiveFileLookup", "true")
    rows = reader.parquet(*files).select("event_id", "event_ts", F.col("_metadata.file_name"))
    return rows.join(F.broadcast(of), "file_name").select("event_type", "event_id", "event_ts")


def new_events(decoded: DataFrame, landed: DataFrame, found: Summary, window: timedelta) -> DataFrame:
    """The plan: decoded lines but for events that have landed or are repeated, by rules.repeated. Lazily checkpointed.

    Cost: one shuffle of ids, and a broadcast of the places of what is left out.
    """

    def repeated(events: pa.Table, landed: pa.Table) -> pa.Table:
        return rules.repeated(events, landed, window)

    ids = decoded.where("reason_code IS NULL").select("event_type", "event_id", "event_ts", *rules.ORDER)
    left, right = (frame.groupBy(F.hash("event_type", "event_id") % _GROUPS) for frame in (ids, landed))
    again = left.cogroup(right).applyInArrow(repeated, rules.PLACE_DDL)
    again = F.broadcast(again) if found.rows_in <= BROADCAST_ROWS else again
    return kept(decoded.join(again, list(rules.PLACE), "left_anti"))


def landed_by_type(plan: DataFrame) -> Mapping[str, int]:
    """Type -> rows that land. Runs one job, which also computes the plan."""
    counts = plan.where("reason_code IS NULL").groupBy("event_type").count().collect()
    return {row["event_type"]: row["count"] for row in counts}


def rows_of(plan: DataFrame, name: str, fields: Sequence[str]) -> DataFrame:
    """The rows of one type, with the columns of its table but for those that every row of a batch has alike."""
    own = [F.col(rules.FIELDS)[name][each].alias(each) for each in fields]
    ours = plan.where(F.col("reason_code").isNull() & (F.col("event_type") == name))
    return ours.select(*(column.name for column in ENVELOPE), *own, *rules.PLACE)


def not_there_yet(refused: DataFrame, lake: Lake, quarantine: Table, version: int) -> DataFrame:
    """Refused lines that quarantine does not hold."""
    place = (*rules.PLACE, "value")
    held = lake.read(quarantine, version).select(*place).alias("held")
    same = reduce(and_, (F.col(f"new.{name}").eqNullSafe(F.col(f"held.{name}")) for name in place))
    return refused.alias("new").join(held, same, "left_anti")
