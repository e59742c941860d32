"""Engagements as they stand now, without a JVM: rows by their keys, or all, with everything pending applied.

The view that `snapshot.current` builds in Spark, by the same rules. Which rows are wanted is for others to say.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from engagement_platform.lake import log, scan
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import ALIAS, CHANGESET, MUTATION_REQUEST
from engagement_platform.pipelines.engagements.schema import CURRENT_ROW, ROW, STATE
from engagement_platform.pipelines.mutations.identity import Identities, identities_of
from engagement_platform.pipelines.mutations.rules import current_rows
from engagement_platform.pipelines.snapshot import DATA, Snapshot, snapshot
from engagement_platform.pipelines.state import Requests, one_chunk

Where = Mapping[str, Sequence[Any]]

_KEY = ("organization_id", "engagement_id")
_SOUGHT = ("organization_id", "engagement_date", "engagement_id")
_IDENTITY = (*_SOUGHT, "engagement_ts", "person_id", "source_person_id")
_LAST_SEQUENCE = 2**63 - 1


def schema_of_rows(*columns: str) -> pa.Schema:
    """Arrow schema of these columns of `engagement/current`, or of all."""
    return pa.schema([CURRENT_ROW.field(name) for name in (columns or CURRENT_ROW.names)])


def standing_now(root: str) -> Standing | None:
    """`engagement/current` of the lake under a root, as it is; None while there is no Data Table. Reads logs only."""
    at = snapshot(root)
    return Standing(root, at) if DATA.name in at.versions else None


@dataclass(frozen=True)
class Standing:
    """The view at one moment. Each question reads what is pending of the engagements it is about."""

    root: str
    at: Snapshot

    def find(self, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        """Rows of these engagements with these columns of CURRENT_ROW; those that are gone are absent.

        keys: organization_id, engagement_id, engagement_date. Files are skipped by the bounds that the log has of all
        three; of the others, the given columns are read, or all where something is pending.
        """
        where = {name: sorted(set(keys[name].to_pylist())) for name in _SOUGHT}
        pending = _Pending(self, where)
        rows = scan.find(self._open(DATA), pending.columns(columns), where)
        wanted = _keys(keys)
        rows, images = rows.filter(_among(rows, wanted)), pending.images.filter(_among(pending.images, wanted))
        special = _among(rows, pending.special)
        parts = [self._plain(rows.filter(pc.invert(special)), pending), self._special(rows.filter(special), images)]
        return pa.concat_tables(part.select(list(columns)) for part in parts)

    def every(self, columns: Sequence[str], organizations: Collection[str] | None) -> Iterator[pa.Table]:
        """All rows, some at a time. organizations: only theirs. Rows of which images or patches are pending come last,
        at once."""
        where = {} if organizations is None else {"organization_id": sorted(organizations)}
        pending, held = _Pending(self, where), [ROW.empty_table()]
        for rows in scan.batches(self._open(DATA), pending.columns(columns), where):
            special = _among(rows, pending.special)
            if pending.special:
                held.append(rows.filter(special).cast(ROW))
            plain = self._plain(rows.filter(pc.invert(special)), pending).select(list(columns))
            if plain.num_rows:
                yield plain
        last = self._special(pa.concat_tables(held), pending.images).select(list(columns))
        if last.num_rows:
            yield last

    def log_rows(self, table: Table, columns: Sequence[str], where: Where, *, above: int | None = None) -> pa.Table:
        """Rows of a log that count, with `sequence`. above: only those of batches after this sequence."""
        names = [*dict.fromkeys(["organization_id", *columns])]
        if table.name not in self.at.newest or (above is not None and not self.at.is_pending(table, above)):
            return pa.table({name: pa.nulls(0) for name in (*names, "sequence")})
        between = None if above is None else {"batch_sequence": (above + 1, _LAST_SEQUENCE)}
        found = scan.find(self._open(table), [*names, "batch_sequence"], where, between)
        if (unpublished := self.at.unpublished.get(table.name)) is not None:
            found = found.filter(pc.not_equal(found["batch_sequence"], unpublished))
        return found.rename_columns([*names, "sequence"])

    def edges(self, organizations: Sequence[str]) -> pa.Table:
        """Every edge of these organizations, as a state."""
        return _part("edge", self.log_rows(ALIAS, _fields("edge"), {"organization_id": organizations}))

    def _open(self, table: Table) -> DeltaTable:
        return DeltaTable(log.storage_uri(table.uri(self.root)), version=self.at.versions[table.name])

    def _plain(self, rows: pa.Table, pending: _Pending) -> pa.Table:
        """Rows that only edges may change, under the identity of now."""
        rows = rows.filter(pc.is_valid(rows["source_person_id"])).cast(_schema(rows))
        if rows.num_rows and pending.moving:
            moves = pc.is_in(rows["organization_id"], pa.array(pending.moving, pa.string()))
            now = pc.if_else(moves, identities_of(rows, pending.identities), rows["person_id"])
            rows = rows.set_column(rows.column_names.index("person_id"), rows.schema.field("person_id"), now)
        return rows.filter(pc.is_valid(rows["person_id"]))

    def _special(self, rows: pa.Table, images: pa.Table) -> pa.Table:
        """Rows of the Data Table and their newer images, as the rules have them."""
        keys = _keys(rows) | _keys(images)
        if not keys:
            return ROW.empty_table()
        organizations, ids = (sorted(set(names)) for names in zip(*keys, strict=True))
        where = {"operation": ["UPDATE"], "organization_id": organizations, "engagement_id": ids}
        patches = self.log_rows(MUTATION_REQUEST, _fields("patch"), where)
        parts = [_part("row", rows), _part("row", images), self.edges(organizations), _part("patch", patches)]
        found = [current_rows(organization, state) for organization, state in _each(pa.concat_tables(parts))]
        shown = pa.concat_tables(found)
        return shown.filter(pc.is_valid(shown["person_id"]))


@dataclass(frozen=True)
class _Pending:
    """What the Data Table does not show yet of some engagements."""

    of: Standing
    where: Where
    """Which engagements, by their columns."""

    @cached_property
    def images(self) -> pa.Table:
        return self.of.log_rows(CHANGESET, _fields("row"), self.where, above=self.of.at.watermark)

    @cached_property
    def special(self) -> frozenset[tuple[str, str]]:
        """The engagements that have newer images or patches."""
        if not self.of.at.has_patches:
            return _keys(self.images)
        where = {name: values for name, values in self.where.items() if name in _KEY}
        where["operation"] = ["UPDATE"]
        return _keys(self.images) | _keys(self.of.log_rows(MUTATION_REQUEST, _KEY, where, above=self.of.at.watermark))

    @cached_property
    def moving(self) -> list[str]:
        """The organizations that have newer edges."""
        where = {name: values for name, values in self.where.items() if name == "organization_id"}
        late = self.of.log_rows(ALIAS, ("organization_id",), where, above=self.of.at.watermark)
        return sorted(set(late["organization_id"].to_pylist()))

    @cached_property
    def identities(self) -> Identities:
        """Of the organizations that have newer edges."""
        state = self.of.edges(self.moving)
        return Identities(edge for organization, part in _each(state) for edge in Requests.edges_of(organization, part))

    def columns(self, asked: Sequence[str]) -> list[str]:
        """The columns of the Data Table to read."""
        return list(ROW.names) if self.special else list(dict.fromkeys([*_IDENTITY, *asked]))


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


def _keys(rows: pa.Table) -> frozenset[tuple[str, str]]:
    return frozenset(zip(*(rows[name].to_pylist() for name in _KEY), strict=True))


def _among(rows: pa.Table, keys: frozenset[tuple[str, str]]) -> pa.BooleanArray:
    """Whether each row is of one of these engagements."""
    if not keys:
        return pa.repeat(pa.scalar(value=False), rows.num_rows)
    each = zip(*(rows[name].to_pylist() for name in _KEY), strict=True)
    return pa.array([key in keys for key in each], pa.bool_())


def _schema(rows: pa.Table) -> pa.Schema:
    return pa.schema([ROW.field(name) for name in rows.column_names])
