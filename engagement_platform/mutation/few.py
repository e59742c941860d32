"""A batch of requests that fits into this process many times over: everything is resolved here, without Spark.

Identities are recomputed from what the event said (source_person_id) and all edges of an organization, never from the
identity that stands, so a request that comes late needs no rule of its own. `many` does the same in Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import date
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.engine.model import Manifest
from engagement_platform.lake import log
from engagement_platform.lake.affected_files import touched as files_touched
from engagement_platform.lake.arrow import schema_of, table_of
from engagement_platform.lake.audit_columns import stamped_here
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import (
    ALIAS,
    AMENDMENT,
    QUARANTINE,
)
from engagement_platform.lake.lake import Lake
from engagement_platform.mutation.accepted import (
    Accepted,
    Id,
    TooMany,
    as_content,
    as_struct,
    edges_of,
    known_originals,
    moved_names,
)
from engagement_platform.mutation.batch import KEY, Cascades, Changes, Figures, MutationBatch
from engagement_platform.mutation.content import Patch, patched
from engagement_platform.mutation.identity import identities_of, leading_to, told_apart
from engagement_platform.mutation.model import Edge, Operation
from engagement_platform.mutation.requests import LANDING_ORDER, Request
from engagement_platform.mutation.resolver import Identities
from engagement_platform.mutation.rows import (
    REJECTED,
    data_rows,
    logged,
    notified,
    operation_rows,
    rejected,
    walked_rows,
)
from engagement_platform.mutation.sorting import sorted_rows
from engagement_platform.mutation.strategy import Choice, choose
from engagement_platform.settings import MutationSettings

PERSON = "source_person_id"
ROW = ("organization_id", "engagement_date", "engagement_ts", "engagement_id", "person_id", PERSON)

MOST_ROWS_BY_KEY = 20_000
"""Changed rows that are written in one merge by their keys. Above it they are moved by operations: delta-rs took 1.4 s
for 260,000 rows by key and 0.3 s by 1,300 operations, and 40 s against 2.2 s for ten times as many (2 cores)."""


def open_few(
    lake: Lake,
    data: Table,
    manifest: Manifest,
    rows: pa.Table,
    settings: MutationSettings,
    organizations: Sequence[str] = (),
) -> MutationBatch:
    """Resolve the requests of a batch.

    rows: the batch's rows of `engagement/mutation_request`, FIELDS and PLACE, in any order.
    organizations: others that wait to be moved and have no request.
    Raises TooMany before anything large is read.
    """
    landed = rows.sort_by([(name, "ascending") for name in LANDING_ORDER])
    named = set(pc.unique(landed.column("organization_id")).to_pylist())
    log_ = Accepted(lake, manifest, sorted(named | set(organizations)), settings)
    amended = log_.amendments_named(pc.unique(landed.column("request_id")).to_pylist())
    known = pa.concat_tables([log_.aliases, amended], promote_options="default")
    result = sorted_rows(landed, known)
    accepted = result.accepted
    moves_identity = pc.is_in(accepted.column("operation"), pa.array(["CONVERT", "DELETE"]))
    new, amendments = accepted.filter(moves_identity), accepted.filter(pc.invert(moves_identity))
    settled = _Settled(lake, data, manifest, settings, log_, new, amendments)
    refused = [rejected(landed.slice(at, 1).to_pylist()[0], reason) for at, reason in result.rejected]
    return MutationBatch(
        lake=lake,
        data=data,
        manifest=manifest,
        organizations=log_.organizations,
        figures=Figures(
            rows_in=landed.num_rows,
            accepted=accepted.num_rows,
            duplicates=result.duplicates,
            rejected=Counter(reason for _, reason in result.rejected),
            by_operation=Counter(accepted.column("operation").to_pylist()),
        ),
        settled=settled,
        rejected=stamped_here(table_of(refused, QUARANTINE, *REJECTED), manifest),
        aliases=logged(new, ALIAS, manifest),
        aliases_count=new.num_rows,
        amendments=logged(amendments, AMENDMENT, manifest),
        amendments_count=amendments.num_rows,
        moving=sorted(pc.unique(new.column("organization_id")).to_pylist()),
        was_pending=log_.pending,
    )


class _Settled:
    """Resolves one batch: identities, contents, names, and the rows that change."""

    def __init__(
        self,
        lake: Lake,
        data: Table,
        manifest: Manifest,
        settings: MutationSettings,
        log_: Accepted,
        new: pa.Table,
        amendments: pa.Table,
    ) -> None:
        self._lake, self._data, self._manifest, self._settings, self._log = lake, data, manifest, settings, log_
        self._accepted, self._amendments = new, amendments
        if new.num_rows > settings.light_edges:
            raise TooMany
        moving = sorted({*pc.unique(new.column("organization_id")).to_pylist(), *log_.pending})
        held = log.stored(lake.uri(data), manifest.table_versions[data.name], moving) if moving else {}
        if sum(stored.rows for stored in held.values()) > settings.light_rows:
            raise TooMany
        self.originals: list[dict[str, Any]] = []
        self.choices: dict[str, Choice] = {}

    @cached_property
    def _new(self) -> list[Edge]:
        return edges_of(self._accepted)

    @cached_property
    def _edges(self) -> list[Edge]:
        return [*self._log.edges, *self._new]

    @cached_property
    def _identities(self) -> Identities:
        return Identities(self._edges)

    @cached_property
    def _sources(self) -> set[Id]:
        return leading_to(self._edges, [*self._new, *self._log.waiting])

    @cached_property
    def _updates(self) -> list[Patch]:
        updates = self._amendments.filter(pc.equal(self._amendments.column("operation"), "UPDATE"))
        return [Request.of(row).patch() for row in updates.to_pylist()]

    @cached_property
    def _renames(self) -> list[Request]:
        renames = self._amendments.filter(pc.equal(self._amendments.column("operation"), "RENAME"))
        return [Request.of(row) for row in renames.to_pylist()]

    @cached_property
    def _found(self) -> list[Operation]:
        """What happens to the rows of ids that a new edge can be reached from, or one that waits."""
        return [op for op in self._identities.operations() if (op.organization_id, op.from_id) in self._sources]

    @cached_property
    def cascades(self) -> Cascades:
        """Operations: those that begin with a new request, and new requests whose rows are walked one by one."""
        hops = self._identities.hops(self._new)
        ends = Counter(end for end, count in hops.values() if count > 1)
        new = {(edge.organization_id, edge.request_id) for edge in self._new}
        begun = sum((op.organization_id, op.request_id) in new for op in self._found)
        return Cascades(
            chains=len(ends),
            longest_chain=max((count for _, count in hops.values()), default=0),
            operations=begun + sum(edge.branches for edge in self._new),
        )

    def names(self) -> list[dict[str, Any]]:
        """Rows of the mapping that differ from what stands."""
        return moved_names(self._log, self._edges, self._new, self._renames)

    def changes(self) -> Changes:
        """The rows that change, and what becomes of them."""
        walked = self._rows_of_engagements()
        moved = self._rows_of_persons(walked)
        self._choose(moved, walked)
        return self._changes(moved, walked)

    def _pinned(self, where: Mapping[str, Sequence[Any]], *columns: str) -> pa.Table:
        return self._lake.find(self._data, self._manifest.table_versions[self._data.name], (*ROW, *columns), where)

    def _rows_of_persons(self, walked: Mapping[Id, Any]) -> pa.Table:
        """Rows whose identity a new edge, or one that waits, may have changed; with `now` and `previous`.

        Without those that were looked up by their engagement.
        """
        organizations = sorted({organization for organization, _ in self._sources})
        persons = sorted({person for _, person in self._sources})
        rows = schema_of(self._data, *ROW).empty_table()
        if organizations:
            rows = self._pinned({"organization_id": organizations, "source_person_id": persons})
        if walked and rows.num_rows:
            at = pc.indices_nonzero(pc.is_in(rows.column("engagement_id"), pa.array([e for _, e in walked])))
            few = rows.take(at)
            keys = zip(few.column("organization_id").to_pylist(), few.column("engagement_id").to_pylist(), strict=True)
            drop = [place for place, key in zip(at.to_pylist(), keys, strict=True) if key in walked]
            keep = pc.invert(pc.is_in(pa.array(range(rows.num_rows), pa.int64()), pa.array(drop, pa.int64())))
            rows = rows.filter(keep)
        now, previous = identities_of(rows, self._identities), rows.column("person_id")
        if self._log.pending and rows.num_rows:
            previous = identities_of(rows, Identities(self._log.edges))
        return rows.append_column("now", now).append_column("previous", previous)

    def _rows_of_engagements(self) -> dict[Id, dict[str, Any]]:
        """Rows that requests name by their engagement, each with now, previous, and engagement (None: stays)."""
        erased = [e for e in (*self._new, *self._log.waiting) if e.from_id is None and e.engagement_id is not None]
        named = {(edge.organization_id, str(edge.engagement_id)) for edge in erased}
        updated = {(patch.organization_id, patch.engagement_id) for patch in self._updates}
        wanted = named | updated
        if not wanted:
            return {}
        where = {
            "organization_id": sorted({organization for organization, _ in wanted}),
            "engagement_id": sorted({engagement for _, engagement in wanted}),
        }
        rows = [row for row in self._pinned(where, "version", "engagement").to_pylist() if _key(row) in wanted]
        before = Identities(self._log.edges) if self._log.pending else None
        originals = known_originals(self._lake, self._manifest, [row for row in rows if _key(row) in updated])
        patches = self._patches_of(updated)
        found = {}
        for row in rows:
            key = _key(row)
            place = (row["source_person_id"], row["engagement_id"], row["engagement_ts"], row["engagement_date"])
            row["now"] = self._identities.follow(row["organization_id"], *place)
            row["previous"] = before.follow(row["organization_id"], *place) if before else row["person_id"]
            standing = row.pop("engagement")
            row["engagement"] = self._patched(row, standing, originals, patches[key]) if key in updated else None
            found[key] = row
        return found

    def _patches_of(self, updated: set[Id]) -> dict[Id, list[Patch]]:
        known = self._log.patches(updated)
        of: dict[Id, list[Patch]] = {key: list(known.get(key, ())) for key in updated}
        for patch in self._updates:
            of[patch.organization_id, patch.engagement_id].append(patch)
        return of

    def _patched(
        self,
        row: Mapping[str, Any],
        standing: Mapping[str, Any],
        originals: Mapping[tuple[Id, int], Mapping[str, Any]],
        patches: Sequence[Patch],
    ) -> dict[str, Any] | None:
        """The content after all patches; None when it is what stands. Notes the original of a first patch."""
        key = _key(row), row["version"]
        original = originals.get(key)
        patched_ = as_struct(patched(as_content(original or standing), row["engagement_ts"], patches))
        if as_content(patched_) == as_content(standing):
            return None
        if original is None:
            of = {name: row[name] for name in ("organization_id", "engagement_id", "version")}
            self.originals.append({**of, "batch_id": self._manifest.batch_id, "engagement": standing})
        return patched_

    def _choose(self, moved: pa.Table, walked: Mapping[Id, Mapping[str, Any]]) -> None:
        """A strategy for each organization whose stored identities differ from those of now."""
        differs = pc.not_equal(_comparable(moved.column("now")), _comparable(moved.column("person_id")))
        counted = moved.filter(differs).group_by(list(KEY[:2])).aggregate([([], "count_all")])
        alone = [row for row in walked.values() if row["now"] != row["person_id"]]
        changed: Counter[str] = Counter()
        days: dict[str, set[date]] = {}
        for row in (*counted.to_pylist(), *alone):
            changed[row["organization_id"]] += row.get("count_all", 1)
            days.setdefault(row["organization_id"], set()).add(row["engagement_date"])
        # Those that wait and have nothing left to move are settled, too.
        marked = {edge.organization_id for edge in self._new}
        touched = sorted(changed.keys() | marked | self._log.pending.keys())
        pinned = self._manifest.table_versions[self._data.name]
        held = files_touched(self._lake.uri(self._data), pinned, {org: days.get(org, ()) for org in touched})
        partitioned = "organization_id" in self._data.partitioned_by
        for organization in touched:
            self.choices[organization] = choose(
                changed[organization], *held[organization], self._settings, partitioned=partitioned
            )

    def _changes(self, moved: pa.Table, walked: Mapping[Id, Mapping[str, Any]]) -> Changes:
        direct = {org for org, choice in self.choices.items() if choice.strategy != "alias"}
        now, stored = _comparable(moved.column("now")), _comparable(moved.column("person_id"))
        here = pc.is_in(moved.column("organization_id"), pa.array(sorted(direct), pa.string()))
        written = moved.filter(pc.and_(pc.not_equal(now, stored), here))
        overwrites = any(choice.strategy == "overwrite" for choice in self.choices.values())
        by_operation = written.num_rows > MOST_ROWS_BY_KEY and not overwrites
        operations = self._operations(direct)
        keyed = written
        if by_operation:
            alone = self._told_apart(moved, walked)
            keyed = written.filter(_is_of(written, alone))
            operations = operations.filter(pc.invert(_is_of(operations.rename_columns({"from_id": PERSON}), alone)))
        rows = [
            row for (org, _), row in walked.items()
            if row["engagement"] is not None or (org in direct and row["now"] != row["person_id"])
        ]  # fmt: skip
        own = walked_rows(rows, direct, self._data, self._manifest)
        written_rows = pa.concat_tables([data_rows(keyed, self._data, self._manifest), own])
        announced = moved.filter(pc.not_equal(now, _comparable(moved.column("previous"))))
        seen = [row for row in walked.values() if _announces(row)]
        return Changes(
            operations=operations,
            operation_rows=operations.num_rows,
            rows=written_rows,
            rows_count=written_rows.num_rows,
            within={name: sorted(pc.unique(written_rows.column(name)).to_pylist()) for name in KEY[:2]},
            changed_rows=written.num_rows + len(rows),
            by_operation=by_operation,
            **notified(announced, seen, self._manifest),
        )

    def _operations(self, direct: set[str]) -> pa.Table:
        return operation_rows(op for op in self._found if op.organization_id in direct)

    def _told_apart(self, rows: pa.Table, walked: Mapping[Id, Mapping[str, Any]]) -> set[Id]:
        """The ids (as the event said them) with rows that a request tells apart from others of their id.

        No operation may move those: it would also move rows that an earlier request has taken elsewhere.
        """
        erased = self._identities.erased_engagements()
        own = {(row["organization_id"], row[PERSON]) for key, row in walked.items() if key in erased}
        return told_apart(rows, self._identities) | own


def _is_of(rows: pa.Table, ids: Collection[Id]) -> pa.Array:
    """Whether each row is of one of these (organization, person as the event said it)."""
    candidates = pc.is_in(rows.column(PERSON), pa.array(sorted({person for _, person in ids}), pa.string()))
    at = pc.indices_nonzero(candidates)
    few = rows.take(at)
    keys = zip(few.column("organization_id").to_pylist(), few.column(PERSON).to_pylist(), strict=True)
    mask = np.zeros(rows.num_rows, dtype=bool)
    mask[[place for place, key in zip(at.to_pylist(), keys, strict=True) if key in ids]] = True
    return pa.array(mask)


def _key(row: Mapping[str, Any]) -> Id:
    return row["organization_id"], row["engagement_id"]


def _announces(row: Mapping[str, Any]) -> bool:
    visible = row["now"] is not None
    return row["now"] != row["previous"] or (visible and row["engagement"] is not None)


def _comparable(ids: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """With a value for null that is no id, so that deleted equals deleted."""
    return pc.fill_null(ids, "\x00")
