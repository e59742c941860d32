"""What logs tell of mutations at little cost: whether there are as many notifications as changed rows, what is hidden.

Whether identities are right is `verify`. No Dagster.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.engine.job import Stores
from engagement_platform.engine.model import BatchRecord, Transaction
from engagement_platform.lake import log
from engagement_platform.lake.engagement import NOTIFICATION
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.pipelines.snapshot import DATA
from engagement_platform.pipelines.status import succeeded
from engagement_platform.settings import Settings

ANNOUNCED_BATCHES = 6
"""Newest batches whose commits are looked up. At a batch and a look every 30 s that is all of them; each costs a
search in the history of a table."""


@dataclass(frozen=True)
class Announced:
    """One batch of `apply-mutations`: the changes that it counted, and the notifications that its commit has."""

    batch: str
    seen: int
    """Rows inserted, updated or deleted for readers."""
    notifications: int


def announced_rows(settings: Settings, stores: Stores) -> list[Announced]:
    """Of the newest ANNOUNCED_BATCHES the finished ones whose commits the notification table still tells of."""
    newest = succeeded(stores.checkpoints.history(APPLY_MUTATIONS, limit=ANNOUNCED_BATCHES))
    return [found for record in newest if (found := _announced(settings, record)) is not None]


def _announced(settings: Settings, record: BatchRecord) -> Announced | None:
    counts, manifest = record.counts, record.manifest
    marker = Transaction(f"{manifest.app_id}/notification/append", manifest.batch_id).marker
    commit = log.find_commit(NOTIFICATION.uri(settings.lake), marker)
    if commit is None:
        return None
    seen = sum(counts.get(kind, 0) for kind in ("inserted", "updated", "deleted"))
    return Announced(str(manifest), seen, commit.rows_added)


def hidden_rows(settings: Settings) -> int:
    """Deleted rows in the Data Table that are not tombstones yet, as the statistics of its files say."""
    found = log.open_log(DATA.uri(settings.lake))
    files = None if found is None else pa.table(found.get_add_actions(flatten=True))
    if files is None or not {"null_count.person_id", "null_count.source_person_id"} <= {*files.column_names}:
        return 0
    deleted, tombstones = (pc.sum(files.column(f"null_count.{of}person_id")).as_py() or 0 for of in ("", "source_"))
    return int(deleted - tombstones)
