"""Puts the jobs of game events together: source, work, one process for each table. No work happens here."""

from __future__ import annotations

from engagement_platform.engine.job import MicroBatchJob, Stores, Told
from engagement_platform.engine.model import Limits, Manifest
from engagement_platform.lake.fencing import LakeFencing, targets
from engagement_platform.lake.lake import Lake
from engagement_platform.pii.tombstones import StoredTombstones
from engagement_platform.pinned_settings import as_pinned, that_decide
from engagement_platform.pipelines.games.batch import GameBatch, open_batch
from engagement_platform.pipelines.games.decoding import event_decoder
from engagement_platform.pipelines.games.event_type import GROUP, QUARANTINE_NAME
from engagement_platform.pipelines.games.feed import Feed, ingest_name, replay_name
from engagement_platform.pipelines.games.objects import ObjectSource, lines_of
from engagement_platform.pipelines.games.processes import EventsProcess, RefusedProcess
from engagement_platform.pipelines.games.reasons import EventLimits
from engagement_platform.settings import Settings

_DECIDING = ("max_lateness", "max_ahead", "duplicate_window")

INGEST_GAME_EVENTS = ingest_name(GROUP)
REPLAY_GAME_EVENTS = replay_name(GROUP)


def game_events(
    name: str, source: ObjectSource, lake: Lake, stores: Stores, settings: Settings, feed: Feed, told: Told
) -> MicroBatchJob[GameBatch]:
    """Objects with lines of events into one table for each type, exactly once, and refused ones into quarantine.

    name: also the key of its checkpoint; a replay is the same job under its own name. settings: those of the feed.
    """
    tables = feed.tables
    lake.ensure(*tables)
    tombstones = StoredTombstones(settings)

    def prepare(manifest: Manifest) -> GameBatch:
        own = as_pinned(settings, manifest)
        decode = event_decoder(feed.types, EventLimits.of(own))
        lines = lines_of(source.shares(manifest.start, manifest.end), source.options, manifest.ingestion_ts)
        return open_batch(lake, manifest, feed, lines, decode, own.games.duplicate_window, tombstones)

    return MicroBatchJob(
        name=name,
        source=source,
        prepare=prepare,
        processes=(RefusedProcess(), *(EventsProcess(event_type) for event_type in feed.types)),
        stores=stores,
        limits=Limits(settings.batch.max_records, settings.batch.max_bytes),
        pin=lambda: {table.name: lake.version(table) for table in tables},
        decides=lambda: that_decide(settings, "decoding", games=_DECIDING),
        # One lease stands for all of them: a replay beside new batches would not see what those are landing.
        leased=(feed.quarantine.name,),
        lease_wait=settings.stores.lease_wait,
        describe=lambda work: {
            "rejected": work.by_reason,
            "landed_by_type": {name: len(kept.rows) for name, kept in work.kept.items()},
            "produced_quantiles_ms": work.arrival_quantiles_ms,
        },
        fencing=LakeFencing(
            lake,
            targets(
                {
                    f"{QUARANTINE_NAME}/append": feed.quarantine,
                    **{f"{event_type}/append": one.table for event_type, one in feed.types.items()},
                }
            ),
        ),
        observe=told.observe,
        on_wait=told.on_wait,
        on_blocked=told.on_blocked,
    )
