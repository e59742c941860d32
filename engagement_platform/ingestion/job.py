"""Puts the ingestion jobs together: source, work, processes, leases. No work happens here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from pyspark.sql import DataFrame

from engagement_platform.engine.job import MicroBatchJob, Stores, Told
from engagement_platform.engine.model import Limits, Manifest, Source
from engagement_platform.ingestion.batch import EngagementBatch
from engagement_platform.ingestion.few import open_few
from engagement_platform.ingestion.many import Decoder, open_batch
from engagement_platform.ingestion.processes import (
    DataProcess,
    MappingProcess,
    NotificationProcess,
    QuarantineProcess,
)
from engagement_platform.ingestion.requests import RequestBatch, RequestProcess, RequestQuarantineProcess, open_requests
from engagement_platform.ingestion.settle import REASONS
from engagement_platform.lake.engagement import (
    MAPPING,
    MUTATION_LOGS,
    MUTATION_REQUEST,
    NOTIFICATION,
    ORIGINAL,
    PENDING,
    QUARANTINE,
    SAID_NAME,
    SUPERSEDED,
    data_table,
)
from engagement_platform.lake.fencing import LakeFencing, targets
from engagement_platform.lake.lake import Lake
from engagement_platform.landing.decoded import Step, decoded, few_records
from engagement_platform.mutation.accepted import TooMany
from engagement_platform.pii.tombstones import StoredTombstones
from engagement_platform.pinned_settings import as_pinned, that_decide
from engagement_platform.settings import DecodingSettings, Settings
from engagement_platform.sources.decoded_batches import (
    ENGAGEMENT_DECODED_DDL,
    MUTATION_REQUEST_DECODED_DDL,
    MessageKind,
    decode_batches,
)
from engagement_platform.sources.messages import DecodingLimits

Reader = Callable[[Manifest], DataFrame]
"""Raw records of a pinned range: topic, partition, offset, key, value, timestamp."""


def engagement_decoder(settings: DecodingSettings) -> Decoder:
    """Strict decoding of engagements as one step over Arrow batches, in Spark."""

    def decode(raw: DataFrame, manifest: Manifest) -> DataFrame:
        return raw.mapInArrow(_step("engagement", settings, manifest), ENGAGEMENT_DECODED_DDL)

    return decode


def _step(
    kind: MessageKind, settings: DecodingSettings, manifest: Manifest, max_lateness: timedelta | None = None
) -> Step:
    return decode_batches(kind, DecodingLimits.of(settings), manifest.ingestion_ts, max_lateness)


@dataclass(frozen=True)
class Parts:
    """What every job is built with."""

    lake: Lake
    stores: Stores
    settings: Settings
    told: Told


def ingest_engagements(name: str, source: Source, read: Reader, parts: Parts) -> MicroBatchJob[EngagementBatch]:
    """Engagements into quarantine, mapping, data and notification, exactly once in each.

    name: also the key of its checkpoint; going over old records again is the same job under its own name.
    """
    lake, settings, tombstones = parts.lake, parts.settings, StoredTombstones(parts.settings)
    data = data_table(settings.layout.scheme)
    lake.ensure(data, MAPPING, NOTIFICATION, QUARANTINE, PENDING, SUPERSEDED, *MUTATION_LOGS)
    pinned = (data, MAPPING, QUARANTINE, PENDING, SUPERSEDED, *MUTATION_LOGS)
    written = (data, MAPPING, NOTIFICATION, SAID_NAME, ORIGINAL, SUPERSEDED)

    def prepare(manifest: Manifest) -> EngagementBatch:
        own = as_pinned(settings, manifest)
        lake, decode = parts.lake.under(own), engagement_decoder(own.decoding)
        raw = read(manifest)
        planned = source.size(manifest.start, manifest.end)
        work: EngagementBatch | None = None
        if lake.is_local and planned is not None and planned <= settings.layout.light_write_rows:
            try:
                step = _step("engagement", own.decoding, manifest)
                rows = decoded(raw, step, ENGAGEMENT_DECODED_DDL, few_records(planned, lake))
                work = open_few(lake, data, manifest, raw, rows, tombstones)
            except TooMany:
                # More former requests of these organizations than are followed in this process.
                work = None
        if work is None:
            work = open_batch(lake, data, manifest, raw, decode, tombstones)
        lake.accept_folders("organization_id", work.summary.organizations, *written)
        return work

    return MicroBatchJob(
        name=name,
        source=source,
        prepare=prepare,
        processes=(QuarantineProcess(), MappingProcess(), DataProcess(data), NotificationProcess()),
        stores=parts.stores,
        limits=Limits(settings.batch.max_records, settings.batch.max_bytes),
        pin=lambda: {table.name: lake.version(table) for table in pinned},
        decides=lambda: that_decide(settings, "decoding", "mutation"),
        leased=(data.name, MAPPING.name),
        lease_wait=settings.stores.lease_wait,
        describe=describe,
        fencing=LakeFencing(
            lake,
            targets(
                {
                    "quarantine/append": QUARANTINE,
                    "mapping/said": SAID_NAME,
                    "mapping/merge": MAPPING,
                    "data/original": ORIGINAL,
                    "data/superseded": SUPERSEDED,
                    "data/update": data,
                    "data/insert": data,
                    "notification/append": NOTIFICATION,
                }
            ),
        ),
        observe=parts.told.observe,
        on_wait=parts.told.on_wait,
        on_blocked=parts.told.on_blocked,
    )


def describe(work: EngagementBatch) -> Mapping[str, object]:
    """What people want to see of a batch beside its counts."""
    summary = work.summary
    return {
        "rejected": {**summary.rejected, **{code: work.settled[code] for code in REASONS if code in work.settled}},
        "organizations": len(summary.organizations),
        "first_date": summary.dates[0].isoformat() if summary.dates else None,
        "last_date": summary.dates[-1].isoformat() if summary.dates else None,
        "produced_quantiles_ms": list(summary.produced_quantiles_ms),
    }


def ingest_mutation_requests(
    name: str, source: Source, read: Reader, parts: Parts, *, judges_lateness: bool
) -> MicroBatchJob[RequestBatch]:
    """Mutation requests into their append-only table, and the rejected ones into quarantine.

    judges_lateness: those further back than `mutation.max_lateness` when they were produced are rejected; False for a
    source that does not know when that was.
    """
    lake, settings, tombstones = parts.lake, parts.settings, StoredTombstones(parts.settings)
    lake.ensure(MUTATION_REQUEST, QUARANTINE)

    def prepare(manifest: Manifest) -> RequestBatch:
        own = as_pinned(settings, manifest)
        lateness = own.mutation.max_lateness if judges_lateness else None
        lake, step = parts.lake.under(own), _step("mutation_request", own.decoding, manifest, lateness)
        few = few_records(source.size(manifest.start, manifest.end), lake)
        rows = decoded(read(manifest), step, MUTATION_REQUEST_DECODED_DDL, few)
        return open_requests(lake, manifest, lake.frame(rows), tombstones)

    return MicroBatchJob(
        name=name,
        source=source,
        prepare=prepare,
        processes=(RequestQuarantineProcess(), RequestProcess()),
        stores=parts.stores,
        limits=Limits(settings.batch.max_records, settings.batch.max_bytes),
        pin=lambda: {table.name: lake.version(table) for table in (MUTATION_REQUEST, QUARANTINE)},
        decides=lambda: that_decide(settings, "decoding", mutation=("max_lateness",)),
        enters=(QUARANTINE.name,),
        lease_wait=settings.stores.lease_wait,
        describe=lambda work: {
            "rejected": dict(work.rejected),
            "produced_quantiles_ms": list(work.produced_quantiles_ms),
        },
        fencing=LakeFencing(
            lake, targets({"quarantine/append": QUARANTINE, "mutation_request/append": MUTATION_REQUEST})
        ),
        observe=parts.told.observe,
        on_wait=parts.told.on_wait,
        on_blocked=parts.told.on_blocked,
    )
