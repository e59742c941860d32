"""What logs and edges tell of mutations at little cost: whether each alias is there once, whether there are as many
notifications as changed rows, what is hidden. Whether identities are right is `verify`. No Dagster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from engagement_platform.engine.job import Stores
from engagement_platform.engine.model import BatchRecord, Transaction
from engagement_platform.lake import log
from engagement_platform.lake.engagement import ALIAS, NOTIFICATION
from engagement_platform.lake.lake import Lake
from engagement_platform.maintenance.verify.finding import Finding
from engagement_platform.pipelines.engagements.schema import STATE
from engagement_platform.pipelines.frames import state_part
from engagement_platform.pipelines.mutations.identity import Edge
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.pipelines.snapshot import DATA, pending, snapshot
from engagement_platform.pipelines.state import Requests
from engagement_platform.pipelines.status import succeeded
from engagement_platform.settings import Settings

SAMPLED_ORGANIZATIONS = 20
"""Organizations that one verification looks at; which ones changes with every batch, so all get their turn."""

ANNOUNCED_BATCHES = 6
"""Newest batches whose commits are looked up. At a batch and a look every 30 s that is all of them; each costs a
search in the history of a table."""


def sampled(names: Collection[str], most: int, turn: int) -> list[str]:
    """At most so many of the names: those from place `turn` on, in their order and around the end.

    >>> sampled({"a", "b", "c", "d"}, 3, turn=2)
    ['c', 'd', 'a']
    """
    ordered = sorted(names)
    begin = turn % len(ordered) if ordered else 0
    return [*ordered[begin:], *ordered[:begin]][:most]


def chain_findings(lake: Lake) -> list[Finding]:
    """Whether each alias of SAMPLED_ORGANIZATIONS stands once. Nothing before the first alias.

    The next version of the table begins at other organizations. Cost: one column of all edges, and the edges of these
    organizations, which come into this process.
    """
    at = snapshot(lake.root)
    alias = pending(lake, at).alias
    if alias is None:
        return []
    names = {row[0] for row in alias.select("organization_id").distinct().collect()}
    chosen = sampled(names, SAMPLED_ORGANIZATIONS, turn=at.versions[ALIAS.name])
    state = state_part(alias.where(F.col("organization_id").isin(chosen)), "edge").toArrow().cast(STATE)
    ids = state.column("organization_id")
    return chains([edge for name in chosen for edge in Requests.edges_of(name, state.filter(pc.equal(ids, name)))])


def chains(edges: Sequence[Edge]) -> list[Finding]:
    """Each accepted request stands once. Then chains end, since each edge of one is later than the edge before it."""
    counts = Counter((edge.organization_id, edge.request_id) for edge in edges)
    doubled = [f"{request} of {organization}" for (organization, request), count in counts.items() if count > 1]
    return [Finding("accepted_once", "every accepted alias stands once", len(counts), len(doubled), doubled[:5])]


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
