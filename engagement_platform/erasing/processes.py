"""The processes of an erasure, in their order. Each removes or changes rows in one table and says how many.

Tombstones first, so that nothing comes in again; the Data Table before the notifications, so that readers never hear of
a row that still stands. What is removed is `found`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.model import Counts, Manifest, Transaction
from engagement_platform.erasing.found import PLACE, Found
from engagement_platform.erasing.whom import Side, Whom
from engagement_platform.lake.arrow import schema_of, table_of
from engagement_platform.lake.audit_columns import stamped_here
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import ALIAS, MAPPING, NOTIFICATION, QUARANTINE
from engagement_platform.lake.erased import change, take_out
from engagement_platform.lake.lake import Lake
from engagement_platform.merge_on_read.entity import Entity
from engagement_platform.mutation.accepted import settled_names
from engagement_platform.mutation.batch import KEY
from engagement_platform.pii.tombstones import ANYWHERE, ENGAGEMENT, PERSON, StoredTombstones, entity
from engagement_platform.sources.messages import SENTENCES, Reason

_NOTIFIED = ("notification_id", "person_id", "previous_person_id")


@dataclass
class Erasing:
    """One erasure: whom, and what the tables had when it began."""

    lake: Lake
    manifest: Manifest
    whom: Whom
    subject_ref: str
    tombstones: StoredTombstones
    entity: Entity

    @cached_property
    def found(self) -> Found:
        """As pinned, so that every attempt finds the same."""
        return Found(self.lake, self.whom, self.tombstones, self.manifest.table_versions)

    @cached_property
    def instead(self) -> Mapping[str, str]:
        """Id -> what stands in its place."""
        return {id_: self.tombstones.pseudonym(id_) for id_ in self.whom.persons}

    def written(self, table: Table, *transactions: Transaction) -> int:
        """How many rows these commits changed or removed, also when that was before a crash."""
        commits = (self.lake.commit_of(table, txn) for txn in transactions)
        return sum(commit.rows_deleted + commit.rows_updated for commit in commits if commit is not None)


@dataclass(frozen=True)
class TombstoneProcess:
    """From here on nothing about the person, its engagements and its profile comes in."""

    name: str = "tombstones"
    commits: tuple[str, ...] = ()

    def run(self, work: Erasing, commit: Committer) -> Counts:  # noqa: ARG002
        """Counts: tombstones (new ones)."""
        rows, now, put_up = work.found.rows, work.manifest.ingestion_ts, work.tombstones.put_up
        organizations = work.whom.organizations or (ANYWHERE,)
        persons = [(organization, id_) for organization in organizations for id_ in work.whom.persons]
        engagements = zip(
            *(rows.column(name).to_pylist() for name in ("organization_id", "engagement_id")), strict=True
        )
        kept = put_up(PERSON, persons, now) + put_up(ENGAGEMENT, engagements, now)
        kept += put_up(entity(work.entity.name), [(ANYWHERE, id_) for id_ in work.whom.profiles], now)
        return {"tombstones": kept}


@dataclass(frozen=True)
class DataProcess:
    """The person's rows leave the Data Table."""

    table: Table
    name: str = "data"
    commits: tuple[str, ...] = ("remove",)

    def run(self, work: Erasing, commit: Committer) -> Counts:
        """Counts: rows of the table, by its name."""
        rows = work.found.rows.select(list(KEY))
        if not rows.num_rows:
            return {}
        with commit("remove") as txn:
            take_out(work.lake.root, self.table, rows, txn, work.lake)
        return {self.table.name: work.written(self.table, txn)}


@dataclass(frozen=True)
class SideProcess:
    """Rows of a table that keeps what was said go, by the person or by its engagements.

    In one commit: bounds of what an earlier one left would stand in the log.
    """

    table: Table
    side: Side
    commits: tuple[str, ...] = ("remove",)

    @property
    def name(self) -> str:
        """Of the table."""
        return self.table.key[-1]

    def run(self, work: Erasing, commit: Committer) -> Counts:
        """Counts: rows of the table, by its name."""
        rows = work.found.told_by(self.table, self.side)
        # Also without a row: then it closes a table that a crash left open.
        with commit("remove") as txn:
            take_out(work.lake.root, self.table, rows, txn, work.lake)
        return {self.table.name: count} if (count := work.written(self.table, txn)) else {}


@dataclass(frozen=True)
class EdgeProcess:
    """Who became whom stays, without the id: rows of others still follow it. What only deleted the person goes."""

    name: str = "alias"
    commits: tuple[str, ...] = ("rename", "delete")

    def run(self, work: Erasing, commit: Committer) -> Counts:
        """Counts: rows of the table, by its name."""
        edges, ids, on = work.found.edges_with(now=True), work.found.ids, ("organization_id", "request_id")
        renamed = [
            {
                **{name: getattr(edge, name) for name in on},
                "from_id": work.instead.get(edge.from_id or "", edge.from_id),
                "to_id": work.instead.get(edge.to_id or "", edge.to_id),
            }
            for edge in edges
            if {edge.from_id, edge.to_id} & set(work.instead)
        ]
        deleting = [edge for edge in edges if edge.operation == "DELETE" and edge.from_id in ids]
        gone = [{name: getattr(edge, name) for name in on} for edge in deleting]
        # First without the id, since bounds of what a commit leaves stand in the log.
        with commit("rename") as first:
            change(work.lake.root, ALIAS, table_of(renamed, ALIAS, *on, "from_id", "to_id"), first, work.lake, on=on)
        with commit("delete") as second:
            take_out(work.lake.root, ALIAS, table_of(gone, ALIAS, *on), second, work.lake)
        done = (first, second)
        return {ALIAS.name: count} if (count := work.written(ALIAS, *done)) else {}


@dataclass(frozen=True)
class NameProcess:
    """Names that the person had handed on are found anew, from what is left."""

    name: str = "names"
    commits: tuple[str, ...] = ("merge",)

    def run(self, work: Erasing, commit: Committer) -> Counts:
        """Counts: names_changed."""
        places = {
            (edge.organization_id, id_)
            for edge in work.found.edges_with(now=True)
            for id_ in work.instead.values()
            if id_ in (edge.from_id, edge.to_id)
        }
        if not places:
            return {}
        former = work.found.accepted_now(sorted({organization for organization, _ in places}))
        found = settled_names(former, places, [], work.lake, former.manifest)
        rows = [{**row, "batch_id": work.manifest.batch_id} for row in found]
        if not rows:
            return {}
        with commit("merge") as txn:
            work.lake.merge(
                table_of(rows, MAPPING),
                MAPPING,
                txn,
                on=("organization_id", "id"),
                update=("name", "name_ts", "batch_id"),
                insert=True,
                within={"organization_id": former.organizations},
                rows=len(rows),
            )
        return {"names_changed": len(rows)}


@dataclass(frozen=True)
class AnnounceProcess:
    """Notifications lose the person's id; then one for each row that is gone, so that readers drop it."""

    name: str = "notification"
    commits: tuple[str, ...] = ("redact", "append")

    def run(self, work: Erasing, commit: Committer) -> Counts:
        """Counts: rows of the table, by its name; notifications."""
        counts = {}
        rows = list(self._redacted(work))
        with commit("redact") as txn:
            change(
                work.lake.root, NOTIFICATION, table_of(rows, NOTIFICATION, *_NOTIFIED), txn, work.lake, on=_NOTIFIED[:1]
            )
        if changed := work.written(NOTIFICATION, txn):
            counts[NOTIFICATION.name] = changed
        gone = list(self._gone(work))
        if gone:
            made = stamped_here(table_of(gone, NOTIFICATION, *gone[0]), work.manifest)
            with commit("append") as txn:
                work.lake.append(made, NOTIFICATION, txn, rows=len(gone))
        return {**counts, "notifications": len(gone)}

    def _redacted(self, work: Erasing) -> Iterator[dict[str, Any]]:
        seen = set[str]()
        for name in ("person_id", "previous_person_id"):
            for row in work.found.find(NOTIFICATION, _NOTIFIED, {name: work.whom.persons}, now=True).to_pylist():
                if row["notification_id"] not in seen:
                    seen.add(row["notification_id"])
                    for column in ("person_id", "previous_person_id"):
                        row[column] = work.instead.get(row[column], row[column])
                    yield row

    def _gone(self, work: Erasing) -> Iterator[dict[str, Any]]:
        """Of rows that readers saw."""
        begin = f"{work.manifest.app_id}/{work.manifest.batch_id}"
        order = [("organization_id", "ascending"), ("engagement_id", "ascending")]
        for row in work.found.rows.sort_by(order).to_pylist():
            if row["person_id"] is None:
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
                "previous_person_id": work.instead.get(row["person_id"], row["person_id"]),
            }


@dataclass(frozen=True)
class RefusedProcess:
    """Refused records that name the person become markers: where they stood, and that somebody was erased."""

    name: str = "quarantine"
    commits: tuple[str, ...] = ("redact",)

    def run(self, work: Erasing, commit: Committer) -> Counts:
        """Counts: rows of the table, by its name."""
        rows = work.found.refused(now=True)
        schema = schema_of(QUARANTINE, "key", "value", "reason_code", "reason")
        said = (None, None, Reason.ERASED.value, SENTENCES[Reason.ERASED])
        for kind, value in zip(schema, said, strict=True):
            rows = rows.append_column(kind, pa.array([value] * rows.num_rows, kind.type))
        with commit("redact") as txn:
            change(work.lake.root, QUARANTINE, rows, txn, work.lake, on=PLACE)
        return {QUARANTINE.name: count} if (count := work.written(QUARANTINE, txn)) else {}


@dataclass(frozen=True)
class EntityProcess:
    """Changes of a profile, or its row in the base, go."""

    table: Table
    key: str
    commits: tuple[str, ...] = field(default=("remove",))

    @property
    def name(self) -> str:
        """Of the table; `profile/changeset` and `profile/materialized` have each its own."""
        return "-".join(self.table.key)

    def run(self, work: Erasing, commit: Committer) -> Counts:
        """Counts: rows of the table, by its name."""
        keys = table_of([{self.key: id_} for id_ in work.whom.profiles], self.table, self.key)
        there = work.found.find(self.table, (self.key,), {self.key: work.whom.profiles}, now=True)
        with commit("remove") as txn:
            take_out(work.lake.root, self.table, keys.slice(0, keys.num_rows if there.num_rows else 0), txn, work.lake)
        return {self.table.name: count} if (count := work.written(self.table, txn)) else {}
