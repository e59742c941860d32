"""`engagement/current` without a JVM: rows by their keys, or all, with everything pending applied.

The view that `snapshot.current` builds in Spark, by the same rules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from engagement_platform.lake import log, scan
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import ALIAS, CHANGESET, MUTATION_REQUEST
from engagement_platform.pipelines.engagements.schema import CURRENT_ROW, ROW, STATE
from engagement_platform.pipelines.mutations.concerned import of_edges_since, of_rows
from engagement_platform.pipelines.mutations.identity import Identities, identities_of
from engagement_platform.pipelines.mutations.rules import current_rows
from engagement_platform.pipelines.snapshot import DATA, Snapshot, snapshot
from engagement_platform.pipelines.state import Requests, one_chunk

Where = Mapping[str, Sequence[Any]]
Key = tuple[str, str]

KEY = ("organization_id", "engagement_id")
_SOUGHT = (*KEY, "engagement_date")
_IDENTITY = (*_SOUGHT, "engagement_ts", "person_id", "source_person_id")
_LAST_SEQUENCE = 2**63 - 1


def schema_of_rows(*columns: str) -> pa.Schema:
    """Arrow schema of these columns of `engagement/current`."""
    return pa.schema([CURRENT_ROW.field(name) for name in columns])


@dataclass(frozen=True)
class CurrentRows:
    """The view at one moment. Each question reads what is pending of the engagements it is about."""

    root: str
    at: Snapshot

    @classmethod
    def of(cls, root: str) -> CurrentRows | None:
        """Of the lake under a root, as it is; None while there is no Data Table. Reads logs only."""
        at = snapshot(root)
        return cls(root, at) if DATA.name in at.versions else None

    def rows(
        self, columns: Sequence[str], *, keys: pa.Table | None = None, organizations: Collection[str] | None = None
    ) -> Iterator[pa.Table]:
        """Rows that stand, with these columns of CURRENT_ROW, some at a time; those with images or patches come last.

        keys: only these engagements: organization_id, engagement_id, engagement_date, by whose bounds in the log files
        are skipped. organizations: only theirs. Of files the given columns are read, or all where something is pending.
        """
        where: dict[str, Sequence[Any]] = {}
        if keys is not None:
            where = {name: sorted(set(keys[name].to_pylist())) for name in _SOUGHT}
        elif organizations is not None:
            where = {"organization_id": sorted(organizations)}
        wanted = None if keys is None else set(keys_of(keys))
        images = _among(self._pending(CHANGESET, _fields("row"), where), wanted)
        patched = {name: values for name, values in where.items() if name in KEY} | {"operation": ["UPDATE"]}
        special = set(keys_of(images))
        if self.at.has_patches:
            special.update(keys_of(self._pending(MUTATION_REQUEST, KEY, patched)))
        moves, held = _Moves(self, where), [ROW.empty_table()]
        read = ROW.names if special else list(dict.fromkeys([*_IDENTITY, *columns]))
        for some in scan.batches(self._open(DATA), read, where):
            rows = _among(some, wanted)
            if special:
                held.append(_among(rows, special).cast(ROW))
                rows = rows.filter(pc.invert(_mask(rows, special)))
            if (plain := moves.applied(rows)).num_rows:
                yield plain.select(list(columns))
        last = self._by_the_rules(pa.concat_tables(held), images)
        if last.num_rows:
            yield last.select(list(columns))

    def edges(self, organizations: Sequence[str]) -> pa.Table:
        """Every edge of these organizations, as a state."""
        return _part("edge", self._log(ALIAS, _fields("edge"), {"organization_id": organizations}))

    def _pending(self, table: Table, columns: Sequence[str], where: Where) -> pa.Table:
        """Rows of a log that the Data Table does not have yet, with `sequence`."""
        if not self.at.is_pending(table, self.at.watermark):
            return pa.table({name: pa.nulls(0) for name in (*dict.fromkeys(["organization_id", *columns]), "sequence")})
        return self._log(table, columns, where, {"batch_sequence": (self.at.watermark + 1, _LAST_SEQUENCE)})

    def _log(
        self, table: Table, columns: Sequence[str], where: Where, between: Mapping[str, Any] | None = None
    ) -> pa.Table:
        """Rows of a log that count, with `sequence`; none of a table that has none."""
        names = [*dict.fromkeys(["organization_id", *columns])]
        if table.name not in self.at.newest:
            return pa.table({name: pa.nulls(0) for name in (*names, "sequence")})
        found = scan.find(self._open(table), [*names, "batch_sequence"], where, between)
        if (unpublished := self.at.unpublished.get(table.name)) is not None:
            found = found.filter(pc.not_equal(found["batch_sequence"], unpublished))
        return found.rename_columns([*names, "sequence"])

    def _open(self, table: Table) -> DeltaTable:
        return log.open_version(table.uri(self.root), self.at.versions[table.name])

    def _by_the_rules(self, rows: pa.Table, images: pa.Table) -> pa.Table:
        """Rows of the Data Table and their newer images, under all edges and patches; without those deleted."""
        keys = {*keys_of(rows), *keys_of(images)}
        if not keys:
            return ROW.empty_table()
        organizations, ids = (sorted(set(names)) for names in zip(*keys, strict=True))
        where = {"operation": ["UPDATE"], "organization_id": organizations, "engagement_id": ids}
        patches = self._log(MUTATION_REQUEST, _fields("patch"), where)
        parts = [_part("row", rows), _part("row", images), self.edges(organizations), _part("patch", patches)]
        states = _each(pa.concat_tables(parts))
        found = [current_rows(organization, of_rows(state)) for organization, state in states]
        shown = pa.concat_tables(found)
        return shown.filter(pc.is_valid(shown["person_id"]))


class _Moves:
    """Edges that the Data Table does not have yet, with those that share persons with them: rows that none of these
    reaches are right in the Data Table."""

    def __init__(self, of: CurrentRows, where: Where) -> None:
        where = {name: values for name, values in where.items() if name == "organization_id"}
        late = of._pending(ALIAS, ("organization_id",), where)
        organizations = sorted(set(late["organization_id"].to_pylist()))
        edges = _each(of.edges(organizations)) if organizations else ()
        states = [(name, of_edges_since(state, of.at.watermark + 1)) for name, state in edges]
        self._identities = Identities(edge for name, state in states for edge in Requests.edges_of(name, state))
        self._persons, self._engagements = self._identities.starts(), self._identities.erased_engagements()

    def applied(self, rows: pa.Table) -> pa.Table:
        """Rows of the Data Table that only edges may change, under the identity of now; without those deleted."""
        rows = rows.filter(pc.is_valid(rows["source_person_id"]))
        rows = rows.cast(pa.schema([ROW.field(name) for name in rows.column_names]))
        if rows.num_rows and (self._persons or self._engagements):
            reached, before = self._reached(rows), one_chunk(rows["person_id"])
            now = pc.replace_with_mask(before, reached, identities_of(rows.filter(reached), self._identities))
            rows = rows.set_column(rows.column_names.index("person_id"), rows.schema.field("person_id"), now)
        return rows.filter(pc.is_valid(rows["person_id"]))

    def _reached(self, rows: pa.Table) -> pa.BooleanArray:
        columns = (rows[name].to_pylist() for name in ("organization_id", "source_person_id", "engagement_id"))
        each = zip(*columns, strict=True)
        persons, engagements = self._persons, self._engagements
        return pa.array([(of, who) in persons or (of, what) in engagements for of, who, what in each], pa.bool_())


def _fields(kind: str) -> list[str]:
    """The columns of a table that a struct of the state has, but sequence."""
    return [field.name for field in STATE.field(kind).type if field.name != "sequence"]


def _part(kind: str, rows: pa.Table) -> pa.Table:
    """Rows as one kind of a state; what they lack is null."""
    if not rows.num_rows:
        return STATE.empty_table()
    fields = list(STATE.field(kind).type)
    arrays = [
        one_chunk(rows.column(field.name).cast(field.type))
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in fields
    ]
    columns = {
        "organization_id": rows.column("organization_id").cast(pa.string()),
        kind: pa.StructArray.from_arrays(arrays, fields=fields),
    }
    return pa.table([columns.get(field.name, pa.nulls(rows.num_rows, field.type)) for field in STATE], schema=STATE)


def _each(state: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """The state of each organization."""
    state, begin = state.sort_by("organization_id"), 0
    for counted in pc.value_counts(state.column("organization_id")).to_pylist():
        yield counted["values"], state.slice(begin, counted["counts"])
        begin += counted["counts"]


def keys_of(rows: pa.Table) -> list[Key]:
    """The KEY of each row."""
    return list(zip(*(rows[name].to_pylist() for name in KEY), strict=True))


def _mask(rows: pa.Table, keys: Set[Key]) -> pa.BooleanArray:
    """Whether each row is of one of these engagements."""
    return pa.array([key in keys for key in keys_of(rows)], pa.bool_())


def _among(rows: pa.Table, keys: Set[Key] | None) -> pa.Table:
    return rows if keys is None else rows.filter(_mask(rows, keys))
