"""The job of game events: objects to lines, lines to rows of a table for each type, in one plan and then side by side.

Nothing is decided after the plan; which lines are events and which are copies is decided by `rules`, in Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.engine.database import open_engine
from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.job import Callbacks, MicroBatchJob, Step, Stores
from engagement_platform.engine.model import Counts, JobState, Limits, Manifest
from engagement_platform.engine.stores import CheckpointStore
from engagement_platform.engine.table_logs import NotResumable
from engagement_platform.lake import log
from engagement_platform.lake.fencing import LakeFencing, targets
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.log import added_by
from engagement_platform.lake.session import spark_session
from engagement_platform.pii.erasure import nobody_writes
from engagement_platform.pii.tombstones import StoredTombstones, Tombstones
from engagement_platform.pipelines.games.counting import counted, of_plan, of_tables
from engagement_platform.pipelines.games.decoding import EventLimits
from engagement_platform.pipelines.games.event_type import GROUP, QUARANTINE_NAME
from engagement_platform.pipelines.games.feed import Feed, shipped
from engagement_platform.pipelines.games.live_ops_store import LiveOpsStore
from engagement_platform.pipelines.games.objects import BatchObjects, ObjectSource
from engagement_platform.pipelines.games.pipe import (
    Summary,
    decode_lines,
    landed_by_type,
    landed_events,
    new_events,
    not_there_yet,
    read_lines,
    rows_of,
    summarize,
    without_erased,
)
from engagement_platform.pipelines.parts import FEW_ROWS, Appends, kept, side_by_side, tune_for
from engagement_platform.pipelines.pinned_settings import as_pinned, that_decide
from engagement_platform.settings import Settings
from engagement_platform.sources.s3_events import S3File
from engagement_platform.sources.s3_formats import event_time

_DECIDING = ("max_lateness", "max_ahead", "duplicate_window")

_CLOCKS_AGREE = timedelta(hours=1)

RECOUNT = "recount-live-ops"
"""Stands for a job where figures are counted from tables."""
LINES = "lines"
DECLARED = "types"
"""In the settings of a manifest: a digest of how the types of events are declared."""
TABLES = "tables"
"""The process that writes."""
ROWS_OF = "rows/"
"""How the counts begin that say how many rows were written into a table; its name follows."""
INGEST_GAME_EVENTS = f"ingest-{GROUP}-events"
REPLAY_GAME_EVENTS = f"replay-{GROUP}-events"


@dataclass(frozen=True)
class GameBatch:
    """A batch with its finished plan."""

    lake: Lake
    manifest: Manifest
    feed: Feed
    objects: int
    """How many were announced."""
    found: Summary
    """Of all lines that were read."""
    stays: Summary
    """Without those of players who were erased."""
    plan: DataFrame
    """Lines that are refused, and events that land. Checkpointed."""
    refused: DataFrame
    """Of the plan those that quarantine does not hold yet."""
    refused_rows: int
    landed: Mapping[str, int]
    """Type -> events that land."""


def count_lines(work: GameBatch, commit: Committer) -> Counts:  # noqa: ARG001
    """Count what was read. Kept before anything is written: a resume that reads less does not end.

    Counts: objects, rows_in, bytes_in, unknown_fields.
    """
    found = work.found
    counts = {"rows_in": found.rows_in, "bytes_in": found.bytes_in, "unknown_fields": found.unknown_fields}
    return {"objects": work.objects, **counts}


def write_tables(work: GameBatch, commit: Committer) -> Counts:
    """Write the table of each type that the batch has events of, and quarantine.

    Counts: landed, duplicates, quarantined, erased, and as the tables' logs have them files, bytes, commits,
    rows_written, and rows/<name> of each table.
    """
    appends = Appends(work.lake, work.manifest, commit)

    def events(name: str, rows: int) -> None:
        declared = work.feed.types[name]
        appends.add(name, declared.table, rows_of(work.plan, name, list(declared.fields)), rows)

    if work.found.rows_in <= FEW_ROWS:
        # One task writes the days of a table: thirty tables have tasks enough.
        work.lake.spark.conf.set("spark.sql.shuffle.partitions", "1")
    side_by_side(*(partial(events, name, rows) for name, rows in sorted(work.landed.items())))
    if work.refused_rows:
        # The last one: that it is there says that the batch is.
        appends.add(QUARANTINE_NAME, work.feed.quarantine, work.refused, work.refused_rows)
    landed = sum(work.landed.values())
    copies = sum(work.stays.accepted.values()) - landed
    commits = appends.commits()
    rows = {f"{ROWS_OF}{name}": commit.rows_added for name, commit in commits.items()}
    return {
        "landed": landed,
        "duplicates": copies + work.stays.refused - work.refused_rows,
        "quarantined": work.refused_rows,
        "erased": work.found.rows_in - work.stays.rows_in,
        **added_by(commits.values()),
        "rows_written": sum(rows.values()),
        **rows,
    }


def count_figures(
    store: LiveOpsStore,
    left_before: Callable[[Manifest], Iterable[Manifest]],
    landed: Callable[[], int],
    work: GameBatch,
    commit: Committer,  # noqa: ARG001
) -> Counts:
    """Add the batch to the figures of games and the features of players, which are in the stores.

    Adds them once, whatever dies in between, and first what a batch that was given up has left in the tables. landed:
    how many events the tables got of this one; a resume that reads less, since an object is gone by now, counts what is
    in the tables.
    """
    manifest, types = work.manifest, work.feed.types

    def add(of: Manifest, events: DataFrame | None) -> None:
        if events is not None:
            quantiles = work.found.arrival_quantiles_ms if of is manifest else ()
            arrived = datetime.fromtimestamp(quantiles[-1] / 1000, UTC) if quantiles else None
            store.add(of.app_id, of.batch_id, counted(events), of.ingestion_ts, arrived)

    def in_tables(of: Manifest) -> DataFrame | None:
        of_it = (F.col("batch_id") == of.batch_id) & (F.col("ingestion_ts") == F.lit(of.ingestion_ts))
        return of_tables(work.lake, types, of_it)

    for left in left_before(manifest):
        if not store.counted(left.app_id, left.batch_id):
            add(left, in_tables(left))
    if landed() != sum(work.landed.values()):
        add(manifest, in_tables(manifest))
    elif work.landed:
        add(manifest, of_plan(work.plan, types, work.landed))
    return {}


def given_up(checkpoints: CheckpointStore, job: str, app_id: str | None = None) -> list[Manifest]:
    """The job's batches that a reset gave up, newest first. app_id: of the batches of now."""
    records = checkpoints.history(job)
    return [each.manifest for each in records if each.state is JobState.FAILED and each.manifest.app_id != app_id]


def recount(settings: Settings) -> None:
    """Forget what was counted, and count what is in the tables: a Spark job for each day of events.

    Nobody lands events meanwhile. A call that was interrupted is made again. Raises LeaseUnavailable,
    OthersBatchUnfinished, StoresUnavailable.
    """
    engine, feed = open_engine(settings.store_url), shipped(settings)
    store, checkpoints = LiveOpsStore(engine), CheckpointStore(engine)
    with nobody_writes(settings, (feed.quarantine.name,)) as (lease,):
        left = [manifest for job in (feed.job, feed.replay_job) for manifest in given_up(checkpoints, job)]
        store.reset(RECOUNT, [(manifest.app_id, manifest.batch_id) for manifest in left])
        if not any(log.version(table.uri(settings.lake)) for table in feed.tables):
            return
        with spark_session(settings, RECOUNT) as spark:
            lake = Lake(spark, settings)
            lake.ensure(*feed.tables)
            events = of_tables(lake, feed.types, F.lit(True))
            days = [] if events is None else events.select(F.to_date("event_ts").alias("day")).distinct().collect()
            for number, day in enumerate(sorted(row["day"] for row in days)):
                lease.check()
                of_day = of_tables(lake, feed.types, F.col("event_date") == F.lit(day))
                assert of_day is not None, "it has a day"
                store.add(RECOUNT, number, counted(of_day), datetime.fromtimestamp(0, UTC))


def game_events(
    name: str, source: ObjectSource, lake: Lake, stores: Stores, settings: Settings, feed: Feed, callbacks: Callbacks
) -> MicroBatchJob[GameBatch]:
    """Objects with lines of events into one table for each type, exactly once, and refused ones into quarantine.

    Of the feed that ships, figures and features are counted, too. name: also the key of its checkpoint; a replay is the
    same job under its own name. settings: those of the feed.
    """
    tables = feed.tables
    lake.ensure(*tables)
    tombstones = StoredTombstones(settings)
    commits = {**{event_type: one.table for event_type, one in feed.types.items()}, QUARANTINE_NAME: feed.quarantine}

    def left_before(manifest: Manifest) -> list[Manifest]:
        # Only a reset gives up a batch, and the next one is its first.
        return [] if manifest.batch_id else given_up(stores.checkpoints, name, manifest.app_id)

    figures: tuple[Step[GameBatch], ...] = ()
    if feed.group == GROUP:
        store = LiveOpsStore(open_engine(settings.store_url))

        def landed() -> int:
            return stores.metadata.get(name)[TABLES].counts.get("landed", 0)

        figures = (Step("figures", partial(count_figures, store, left_before, landed)),)

    declared = sha256("".join(one.model_dump_json() for one in feed.types.values()).encode()).hexdigest()[:32]

    def prepare(manifest: Manifest) -> GameBatch:
        if manifest.settings.get(DECLARED, declared) != declared and is_half_written(stores, manifest):
            raise NotResumable(
                manifest,
                "events of it have landed, and their types are declared otherwise now than when it began, so the rest "
                "could be other events (the declarations of then can finish it)",
            )
        last, lines = stores.checkpoints.latest(name), stores.metadata.get(name).get(LINES)
        if last is not None and last.attempts > 1 and (lines is None or lines.batch_id != manifest.batch_id):
            # Nothing is written, and an attempt ended before it had read all: perhaps it is more than fits.
            source.split(manifest.end)
        own, objects = as_pinned(settings, manifest), source.objects(manifest.start, manifest.end)
        seen_before = manifest.is_replay or may_be_replayed(stores.checkpoints, feed, objects.files)
        return open_batch(lake.under(own), manifest, feed, objects, tombstones, seen_before=seen_before)

    return MicroBatchJob(
        name=name,
        source=source,
        prepare=prepare,
        processes=(Step(LINES, count_lines), Step(TABLES, write_tables, tuple(commits)), *figures),
        stores=stores,
        limits=Limits(settings.games.max_objects, settings.batch.max_bytes, counted_by="objects"),
        pin=lambda: {table.name: lake.version(table) for table in tables},
        decides=lambda: {**that_decide(settings, "decoding", games=_DECIDING), DECLARED: declared},
        # One lease stands for all of them: a replay beside new batches would not see what those are landing.
        leased=(feed.quarantine.name,),
        lease_wait=settings.stores.lease_wait,
        describe=describe,
        fencing=LakeFencing(lake, targets({f"{TABLES}/{commit}": table for commit, table in commits.items()})),
        callbacks=callbacks,
    )


def is_half_written(stores: Stores, manifest: Manifest) -> bool:
    """Whether a table has rows of a batch, and others may have yet to get theirs. Reads the tables' logs."""
    written = stores.metadata.get(manifest.job).get(TABLES)
    if written is not None and written.batch_id == manifest.batch_id:
        return False
    there = ((each.app_id, each.batch_id) for each in stores.tables.held(manifest.job))
    return (manifest.app_id, manifest.batch_id) in there


def may_be_replayed(checkpoints: CheckpointStore, feed: Feed, files: Iterable[S3File]) -> bool:
    """Whether a replay may have read one of these objects before their announcements were: it was there by then, as far
    as the clocks of S3 and of these machines agree.
    """
    last = checkpoints.history(feed.replay_job, limit=1)
    if not last:
        return False
    until = last[0].manifest.ingestion_ts + _CLOCKS_AGREE
    return any(arrived is None or arrived <= until for arrived in map(event_time, files))


def open_batch(
    lake: Lake,
    manifest: Manifest,
    feed: Feed,
    objects: BatchObjects,
    tombstones: Tombstones,
    *,
    seen_before: bool,
) -> GameBatch:
    """Read and decode the objects, and hold the events against what the tables have at the manifest's versions.

    tombstones: whose lines are dropped. seen_before: refused lines may be in quarantine already. Cost: three Spark jobs
    with results: over the decoded lines, their players, and the plan; with seen_before one over the refused lines.
    """
    types, window = feed.types, lake.settings.games.duplicate_window
    # Nobody knows how many lines there are; most batches have few.
    tune_for(lake, 0)
    lines = read_lines(lake.spark, objects)
    decoded = decode_lines(lines, types, EventLimits.of(lake.settings), manifest.ingestion_ts)
    found = stays = summarize(decoded)
    tune_for(lake, found.rows_in)
    if (others := without_erased(decoded, tombstones, lake, manifest.sequence)) is not None:
        decoded, stays = others, summarize(others)
    landed = landed_events(lake, manifest, types, decoded, stays, window)
    plan = new_events(decoded, landed, stays, window)
    rows = landed_by_type(plan)
    refused, refused_rows = plan.where("reason_code IS NOT NULL"), stays.refused
    if refused_rows and seen_before:
        quarantine = feed.quarantine
        refused = kept(not_there_yet(refused, lake, quarantine, manifest.table_versions[quarantine.name]))
        refused_rows = refused.count()
    return GameBatch(lake, manifest, feed, len(objects.files), found, stays, plan, refused, refused_rows, rows)


def describe(work: GameBatch) -> Mapping[str, object]:
    return {
        "rejected": dict(work.stays.rejected),
        "produced_quantiles_ms": list(work.found.arrival_quantiles_ms),
    }
