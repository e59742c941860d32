"""The processes of an erasure, in their order. Each removes or changes rows in one table and says how many.

Tombstones first, so that nothing comes in again; the Data Table before the notifications, so that readers never hear of
a row that still stands. What is removed is `rewrites`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.model import Counts, Manifest, Transaction
from engagement_platform.erasing.found import Found
from engagement_platform.erasing.rewrites import Rewrite
from engagement_platform.erasing.rules import follow
from engagement_platform.erasing.whom import Whom
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.audit_columns import stamped_here
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import NOTIFICATION
from engagement_platform.lake.erased import rewrite
from engagement_platform.lake.lake import Lake
from engagement_platform.pii.tombstones import ANYWHERE, ENGAGEMENT, PERSON, StoredTombstones, entity
from engagement_platform.pipelines.engagements.job import ANNOUNCED
from engagement_platform.pipelines.mutations.identity import Identities
from engagement_platform.pipelines.profiles.entity import Entity


@dataclass
class Erasing:
    """One erasure: whom, and what the tables had when it began."""

    lake: Lake
    manifest: Manifest
    whom: Whom
    tombstones: StoredTombstones
    entity: Entity

    @cached_property
    def found(self) -> Found:
        """As pinned, so that every attempt finds the same."""
        return Found(self.lake.settings, self.whom, self.tombstones, self.manifest.table_versions)

    def rows(self, table: Table, txn: Transaction) -> Counts:
        """How many rows a commit changed or removed, by the table's name; also when that was before a crash."""
        commit = self.lake.commit_of(table, txn)
        count = 0 if commit is None else commit.rows_deleted + commit.rows_updated
        return {table.name: count} if count else {}


@dataclass(frozen=True)
class TombstoneProcess:
    """From here on nothing about the person, its engagements and its profile comes in."""

    name: str = "tombstones"
    commits: tuple[str, ...] = ()

    def run(self, work: Erasing, commit: Committer) -> Counts:  # noqa: ARG002
        """Counts: tombstones (new ones)."""
        now, put_up = work.manifest.ingestion_ts, work.tombstones.put_up
        organizations = work.whom.organizations or (ANYWHERE,)
        persons = [(organization, id_) for organization in organizations for id_ in work.whom.persons]
        engagements = [(row["organization_id"], row["engagement_id"]) for row in work.found.rows]
        kept = put_up(PERSON, persons, now) + put_up(ENGAGEMENT, engagements, now)
        kept += put_up(entity(work.entity.name), [(ANYWHERE, id_) for id_ in work.whom.profiles], now)
        return {"tombstones": kept}


@dataclass(frozen=True)
class RewriteProcess:
    """Rows of one engagement table that name the person go, or lose what they say of it.

    In one commit: bounds of what an earlier one left would stand in the log.
    """

    table: Table
    decide: Callable[[Found], Rewrite]
    commits: tuple[str, ...] = ("rewrite",)

    @property
    def name(self) -> str:
        """Of the table."""
        return self.table.key[-1]

    def run(self, work: Erasing, commit: Committer) -> Counts:
        """Counts: rows of the table, by its name."""
        on, gone, changed, where = self.decide(work.found)
        # Also without a row: then it closes a table that a crash left open.
        with commit("rewrite") as txn:
            rewrite(work.lake, self.table, txn, on=on, gone=gone, changed=changed, where=where)
        return work.rows(self.table, txn)


@dataclass(frozen=True)
class AnnounceProcess:
    """A notification for each row that is gone, so that readers drop it."""

    name: str = "announce"
    commits: tuple[str, ...] = ("append",)

    def run(self, work: Erasing, commit: Committer) -> Counts:
        """Counts: notifications."""
        gone = list(self._gone(work))
        if gone:
            rows = work.lake.frame(stamped_here(table_of(gone, NOTIFICATION, *gone[0]), work.manifest))
            with commit("append") as txn:
                work.lake.append(rows, NOTIFICATION, txn, rows=len(gone))
        return {"notifications": len(gone)}

    def _gone(self, work: Erasing) -> Iterator[dict[str, Any]]:
        """Of rows that readers were told of: under the requests that are announced."""
        begin = f"{work.manifest.app_id}/{work.manifest.batch_id}"
        announced = int(str(work.manifest.source[ANNOUNCED]))
        told = Identities(edge for sequence, edge in work.found.edges if sequence <= announced)
        for row in work.found.rows:
            if (before := follow(told, row)) is None:
                continue
            organization, engagement = row["organization_id"], row["engagement_id"]
            yield {
                # The length says where the organization ends: ids may hold any character.
                "notification_id": f"{begin}/{len(organization)}/{organization}/{engagement}",
                "organization_id": organization,
                "change_type": "DELETE",
                "engagement_id": engagement,
                "engagement_date": row["engagement_date"],
                "person_id": None,
                "previous_person_id": work.tombstones.pseudonym(before) if before in work.whom.persons else before,
            }


@dataclass(frozen=True)
class EntityProcess:
    """Changes of a profile, or its row in the base, go."""

    table: Table
    key: str
    commits: tuple[str, ...] = ("remove",)

    @property
    def name(self) -> str:
        """Of the table; `profile/changeset` and `profile/materialized` have each its own."""
        return "-".join(self.table.key)

    def run(self, work: Erasing, commit: Committer) -> Counts:
        """Counts: rows of the table, by its name."""
        there = work.found.find(self.table, (self.key,), {self.key: work.whom.profiles})
        with commit("remove") as txn:
            # Also without a row: then it closes a table that a crash left open.
            rewrite(work.lake, self.table, txn, on=(self.key,), gone=there.group_by(self.key).aggregate([]))
        return work.rows(self.table, txn)
