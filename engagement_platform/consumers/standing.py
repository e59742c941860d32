"""Engagements as they stand now, without a JVM: rows by their keys, or all, with pending aliases resolved.

The same view that `mutation.current` builds in Spark. Which rows are wanted is for others to say.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from engagement_platform.lake import light, log
from engagement_platform.lake.arrow import schema_of
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import ALIAS, PENDING, data_table
from engagement_platform.mutation.accepted import edges_of
from engagement_platform.pipelines.mutations.identity import Identities, identities_of

DATA = data_table("organization")
"""The Data Table's columns; how it is partitioned is told by its log."""

_KEY = ("organization_id", "engagement_id")
_SOUGHT = ("organization_id", "engagement_date", "engagement_id")
_IDENTITY = (*_SOUGHT, "engagement_ts", "person_id", "source_person_id")


@dataclass(frozen=True)
class Standing:
    """The view at one moment."""

    table: DeltaTable
    identities: Identities | None
    waiting: Collection[str]
    """Organizations whose aliases the Data Table does not show."""

    def find(self, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        """Rows of these engagements with these columns of the Data Table; those that are gone are absent.

        keys: organization_id, engagement_id, engagement_date. Files are skipped by the bounds that the log has of all
        three; the given columns of the others are read.
        """
        where = {name: sorted(set(keys[name].to_pylist())) for name in _SOUGHT}
        rows = light.find(self.table, _with_identity(columns), where)
        wanted = set(zip(*(keys[name].to_pylist() for name in _KEY), strict=True))
        found = zip(*(rows[name].to_pylist() for name in _KEY), strict=True)
        return self._shown(rows.filter(pa.array([key in wanted for key in found], pa.bool_())), columns)

    def every(self, columns: Sequence[str], organizations: Collection[str] | None) -> Iterator[pa.Table]:
        """All rows, batch by batch. organizations: only theirs."""
        where = {} if organizations is None else {"organization_id": sorted(organizations)}
        for rows in light.batches(self.table, _with_identity(columns), where):
            shown = self._shown(rows, columns)
            if shown.num_rows:
                yield shown

    def _shown(self, rows: pa.Table, columns: Sequence[str]) -> pa.Table:
        """The rows that readers see, under the identity of now."""
        rows = rows.cast(schema_of(DATA, *rows.column_names))
        if rows.num_rows and self.identities is not None:
            waits = pc.is_in(rows["organization_id"], pa.array(sorted(self.waiting), pa.string()))
            now = pc.if_else(waits, identities_of(rows, self.identities), rows["person_id"])
            rows = rows.set_column(rows.column_names.index("person_id"), rows.schema.field("person_id"), now)
        return rows.filter(pc.is_valid(rows["person_id"])).select(list(columns))


class View:
    """`engagement/current` of one lake. Each look is one consistent moment, not older than when it was taken."""

    def __init__(self, root: str) -> None:
        self._uris = {table.name: table.uri(root) for table in (DATA, PENDING, ALIAS)}
        self._tables: dict[str, DeltaTable] = {}
        self._edges: tuple[int, tuple[str, ...], Identities] | None = None

    def now(self) -> Standing | None:
        """The view as it is; None while there is no Data Table. Reads the ends of three logs, and aliases that wait.

        Good until the next look, which moves on the table that it reads.
        """
        while True:
            pending = self._version(PENDING)
            data, _ = self._version(DATA), self._version(ALIAS)
            # Organizations are marked before their aliases land and unmarked after their rows moved.
            if pending == self._version(PENDING):
                break
        if data is None:
            return None
        waiting = self._waiting() if pending is not None else ()
        return Standing(self._tables[DATA.name], self._identities(waiting) if waiting else None, waiting)

    def _version(self, table: Table) -> int | None:
        found = self._tables.get(table.name) or log.open_log(self._uris[table.name])
        if found is None:
            return None
        if table.name in self._tables:
            found.update_incremental()
        self._tables[table.name] = found
        return int(found.version())

    def _waiting(self) -> tuple[str, ...]:
        rows = light.find(self._tables[PENDING.name], ("organization_id", "pending_from"), {}).to_pylist()
        return tuple(sorted(row["organization_id"] for row in rows if row["pending_from"] is not None))

    def _identities(self, waiting: tuple[str, ...]) -> Identities:
        aliases = self._tables[ALIAS.name]
        moment = (int(aliases.version()), waiting)
        if self._edges is None or self._edges[:2] != moment:
            rows = light.find(aliases, ALIAS.column_names, {"organization_id": waiting})
            self._edges = (*moment, Identities(edges_of(rows)))
        return self._edges[2]


def _with_identity(columns: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*_IDENTITY, *columns]))
