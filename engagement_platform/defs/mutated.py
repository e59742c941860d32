"""What the logs of the tables tell of mutations at little cost: whether chains of aliases end, whether there are as
many notifications as changed rows, what is hidden. Whether identities are right is `verify`. No Dagster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa

from engagement_platform.engine.job import Stores
from engagement_platform.engine.model import Transaction
from engagement_platform.engine.stores import BatchRecord
from engagement_platform.lake import log
from engagement_platform.lake.engagement import ALIAS, NOTIFICATION, data_table
from engagement_platform.lake.lake import Lake
from engagement_platform.mutation.accepted import edges_of
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.pipelines.mutations.edges import Edge
from engagement_platform.pipelines.mutations.identity import Identities
from engagement_platform.settings import Settings
from engagement_platform.status import succeeded
from engagement_platform.verify import Finding

SAMPLED_ORGANIZATIONS = 20
"""Organizations that one verification looks at; which ones changes with every batch, so all get their turn."""

ANNOUNCED_BATCHES = 6
"""Newest batches whose commits are looked up. At a batch every 5 s (`drain.pace`) and a look every 30 s that is all of
them; each costs a search in the histories of two tables."""


def sampled(names: Collection[str], most: int, turn: int) -> list[str]:
    """At most so many of the names: those from place `turn` on, in their order and around the end.

    >>> sampled({"a", "b", "c", "d"}, 3, turn=2)
    ['c', 'd', 'a']
    """
    ordered = sorted(names)
    begin = turn % len(ordered) if ordered else 0
    return [*ordered[begin:], *ordered[:begin]][:most]


def chain_findings(lake: Lake, organizations: int = SAMPLED_ORGANIZATIONS) -> list[Finding]:
    """Whether the aliases of some organizations can be followed to an end. Reads their edges; nothing before the first.

    organizations: at most so many; the next version of the table begins at others.
    """
    found = log.open_log(lake.uri(ALIAS))
    if found is None:
        return []
    version = found.version()
    names = {str(partition["organization_id"]) for partition in found.partitions()}
    chosen = sampled(names, organizations, turn=version)
    if not chosen:
        return []
    return chains(edges_of(lake.find(ALIAS, version, ALIAS.column_names, {"organization_id": chosen})))


def chains(edges: Sequence[Edge]) -> list[Finding]:
    """Each accepted request stands once, and its chain ends at a later request or at itself: no row's identity depends
    on itself. Without that a conversion could be followed for ever.
    """
    of = {(edge.organization_id, edge.request_id): edge for edge in edges}
    counts = Counter((edge.organization_id, edge.request_id) for edge in edges)
    doubled = [f"{request} of {organization}" for (organization, request), count in counts.items() if count > 1]
    unending = []
    for (organization, request), (last, count) in Identities(edges).hops(edges).items():
        begins, ends = of[organization, request].order, of[last].order
        if count > len(of) or (ends <= begins if count > 1 else ends != begins):
            unending.append(f"{request} of {organization}")
    return [
        Finding("acyclic", "every chain of aliases ends, later than it begins", len(of), len(unending), unending[:5]),
        Finding("accepted_once", "every accepted alias stands once", len(of), len(doubled), doubled[:5]),
    ]


@dataclass(frozen=True)
class Announced:
    """One batch of mutations: what it says it did, and what the tables' logs say was committed."""

    batch: str
    seen: int
    """Rows inserted, updated or deleted for readers."""
    notifications: int
    written: int
    """Rows that it says it changed in the Data Table; those of aliases that wait are not among them."""
    changed: int | None
    """Rows that its one MERGE changed; None where the log does not say, such as after an overwrite."""


def announced_rows(settings: Settings, stores: Stores, batches: int = ANNOUNCED_BATCHES) -> list[Announced]:
    """The newest finished batches that changed rows and whose commits the notification table still tells of."""
    newest = succeeded(stores.checkpoints.history(APPLY_MUTATIONS, limit=batches))
    return [found for record in newest if (found := _announced(settings, record)) is not None]


def _announced(settings: Settings, record: BatchRecord) -> Announced | None:
    counts, manifest = record.counts, record.manifest
    seen = sum(counts.get(kind, 0) for kind in ("inserted", "updated", "deleted"))
    data = data_table(settings.layout.scheme)

    def commit(table_uri: str, name: str) -> log.Commit | None:
        return log.find_commit(table_uri, Transaction(f"{manifest.app_id}/{name}", manifest.batch_id).marker)

    told = commit(NOTIFICATION.uri(settings.lake), "notification/append")
    if told is None:
        return None
    uri = data.uri(settings.lake)
    merged = commit(uri, "data/rows")
    # Rows that operations moved may be merged again with their patches; a MERGE alone changes each row once.
    alone = merged is not None and merged.operation == "MERGE" and commit(uri, "data/move") is None
    changed = merged.rows_updated if merged is not None and alone else None
    return Announced(str(manifest), seen, told.rows_added, counts.get("changed", 0), changed)


def not_announced(found: Sequence[Announced]) -> list[str]:
    """Batches whose notifications are not as many as their rows, as sentences."""
    wrong = [
        f"{of.batch} changed {of.seen:,} rows for readers and announced {of.notifications:,}"
        for of in found
        if of.seen != of.notifications
    ]
    return wrong + [
        f"{of.batch} meant to change {of.written:,} rows of the Data Table and changed {of.changed:,}"
        for of in found
        if of.changed is not None and of.changed != of.written
    ]


def hidden_rows(settings: Settings) -> int:
    """Deleted rows that are still in the Data Table, as the statistics of its files say; those without say nothing."""
    found = log.open_log(data_table(settings.layout.scheme).uri(settings.lake))
    if found is None:
        return 0
    files = pa.table(found.get_add_actions(flatten=True))
    if "null_count.person_id" not in files.column_names:
        return 0
    return sum(int(count or 0) for count in files.column("null_count.person_id").to_pylist())
