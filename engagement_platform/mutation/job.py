"""Puts the mutation job together: new requests of their table, resolved, applied, announced. No work happens here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from engagement_platform.engine.job import MicroBatchJob, Stores, Told
from engagement_platform.engine.model import Limits, Manifest
from engagement_platform.lake.append_log_source import TableSource, read_frame, read_here
from engagement_platform.lake.engagement import (
    ALIAS,
    AMENDMENT,
    MAPPING,
    MUTATION_LOGS,
    MUTATION_REQUEST,
    NOTIFICATION,
    OPERATION,
    ORIGINAL,
    PENDING,
    QUARANTINE,
    data_table,
)
from engagement_platform.lake.fencing import LakeFencing, targets
from engagement_platform.lake.lake import Lake, Rows
from engagement_platform.mutation.accepted import TooMany
from engagement_platform.mutation.batch import MutationBatch
from engagement_platform.mutation.few import open_few
from engagement_platform.mutation.many import open_many
from engagement_platform.mutation.processes import (
    AcceptedProcess,
    AnnounceProcess,
    MoveProcess,
    NameProcess,
    RejectionProcess,
    move_targets,
    replaced,
)
from engagement_platform.mutation.requests import FIELDS, PLACE
from engagement_platform.mutation.strategy import summarized
from engagement_platform.pinned_settings import as_pinned, that_decide
from engagement_platform.settings import Settings

APPLY_MUTATIONS = "apply-mutations"


Without = Callable[[Rows], Rows]
"""Rows of `engagement/mutation_request`, without those that are not to be applied."""


def apply_mutations(
    lake: Lake, stores: Stores, settings: Settings, told: Told, without_erased: Without = lambda rows: rows
) -> MicroBatchJob[MutationBatch]:
    """Requests that landed since the last batch: conversions, deletions, renames and patches, exactly once each.

    without_erased: leaves out those about somebody who is erased; such stand in files from before an erasure, which
    are read when the batch comes late, or after a reset.
    """
    data = data_table(settings.layout.scheme)
    lake.ensure(data, MAPPING, NOTIFICATION, QUARANTINE, MUTATION_REQUEST, OPERATION, PENDING, *MUTATION_LOGS)
    uri = lake.uri(MUTATION_REQUEST)

    source = TableSource(uri, MUTATION_REQUEST)
    columns = (*FIELDS, *PLACE)

    def prepare(manifest: Manifest) -> MutationBatch:
        work = resolved(manifest)
        lake.accept_folders("organization_id", work.organizations, ALIAS, AMENDMENT, ORIGINAL, MAPPING, NOTIFICATION)
        return work

    def resolved(manifest: Manifest) -> MutationBatch:
        own = as_pinned(settings, manifest)
        pinned_lake = lake.under(own)
        files = source.files(manifest.start, manifest.end)
        planned = source.size(manifest.start, manifest.end)
        if planned is not None and planned <= settings.layout.light_write_rows:
            try:
                few = without_erased(read_here(uri, MUTATION_REQUEST, files, columns))
                assert isinstance(few, pa.Table), "rows stay where they are"
                return open_few(pinned_lake, data, manifest, few, own.mutation)
            except TooMany:
                pass
        rows = without_erased(read_frame(lake.spark, uri, MUTATION_REQUEST, files, columns))
        return open_many(pinned_lake, data, manifest, lake.frame(rows), own.mutation)

    pinned = (data, MAPPING, QUARANTINE, PENDING, *MUTATION_LOGS)
    return MicroBatchJob(
        name=APPLY_MUTATIONS,
        source=source,
        prepare=prepare,
        processes=(RejectionProcess(), AcceptedProcess(), MoveProcess(data), NameProcess(), AnnounceProcess()),
        stores=stores,
        limits=Limits(settings.batch.max_records, settings.batch.max_bytes),
        pin=lambda: {table.name: lake.version(table) for table in pinned},
        decides=lambda: that_decide(settings, "mutation"),
        leased=(data.name, MAPPING.name, PENDING.name),
        lease_wait=settings.stores.lease_wait,
        describe=describe,
        fencing=LakeFencing(
            lake,
            targets(
                {
                    "quarantine/append": QUARANTINE,
                    "alias/pending": PENDING,
                    "alias/amendment": AMENDMENT,
                    "alias/alias": ALIAS,
                    **move_targets(data),
                    "mapping/merge": MAPPING,
                    "notification/append": NOTIFICATION,
                }
            ),
        ),
        observe=told.observe,
        on_wait=told.on_wait,
        on_blocked=told.on_blocked,
    )


def describe(work: MutationBatch) -> Mapping[str, object]:
    """What people want to see of a batch beside its counts."""
    figures = work.figures
    return {
        "rejected": dict(figures.rejected),
        "chains": work.settled.cascades.chains,
        "longest_chain": work.settled.cascades.longest_chain,
        "strategies": summarized(work.choices, replaced(work)),
        "pending_organizations": len(work.left_pending),
    }
