"""Incremental read without a JVM: batches of changed engagements as they are now, and a durable cursor."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.consumers.current_rows import KEY, CurrentRows, keys_of, schema_of_rows
from engagement_platform.consumers.reader import ConsumerRefused, CursorReader, Position
from engagement_platform.lake import log, scan
from engagement_platform.lake.added_rows import BEFORE_ALL
from engagement_platform.lake.engagement import NOTIFICATION
from engagement_platform.pipelines.engagements.schema import CURRENT_ROW

READ = (*KEY, "engagement_date", "change_type", "previous_person_id", "batch_sequence")
"""Columns of notifications that consumers need."""

_ID = "notification_id"

_FIRST = pc.ScalarAggregateOptions(skip_nulls=False, min_count=0)


@dataclass(frozen=True)
class Batch:
    """What changed in one stretch of notifications; each engagement is in one of the three tables, once."""

    inserts: pa.Table
    """Rows as they are now, with the columns that were asked for."""
    updates: pa.Table
    """The same, and previous_person_id: who the person was before the stretch."""
    deletes: pa.Table
    """organization_id, engagement_id, engagement_date, previous_person_id (null: inserted within the stretch)."""
    position: Position
    """Where the stretch ends."""
    notifications: int

    def __len__(self) -> int:
        return int(self.inserts.num_rows + self.updates.num_rows + self.deletes.num_rows)

    def table(self) -> pa.Table:
        """All changes: change_type first, previous_person_id last; null what a delete lacks.

        Of deletes only the columns that were asked for: a null of another one would stand for a value in the others.
        """
        # The updates have all columns, so that the others follow their order.
        asked = [name for name in self.deletes.column_names if name in self.updates.column_names]
        kinds = (("UPDATE", self.updates), ("INSERT", self.inserts), ("DELETE", self.deletes.select(asked)))
        return pa.concat_tables([with_change_type(kind, rows) for kind, rows in kinds], promote_options="default")


def with_change_type(kind: str, rows: pa.Table) -> pa.Table:
    """Rows with their change_type as the first column."""
    return rows.add_column(0, pa.field("change_type", pa.string()), pa.repeat(pa.scalar(kind), rows.num_rows))


@dataclass(frozen=True)
class Snapshot:
    """Everything that stands at one moment. Replace by it what you have, then `commit()` what it came from."""

    position: Position
    current: CurrentRows
    columns: Sequence[str]
    organizations: Collection[str] | None

    def __iter__(self) -> Iterator[pa.Table]:
        """The rows, some at a time; nothing where nothing stands."""
        return self.current.rows(self.columns, organizations=self.organizations)

    @property
    def schema(self) -> pa.Schema:
        return schema_of_rows(*self.columns)

    def table(self) -> pa.Table:
        """All rows at once."""
        return pa.concat_tables([self.schema.empty_table(), *self])


@dataclass(kw_only=True, repr=False, eq=False)
class Changes(CursorReader[Batch]):
    """What changed since a consumer committed last. Iterate it, apply each batch, then `commit()`.

    lake_uri: root of the tables. name: of the consumer, unique in the lake; one process at a time reads under it.
    organizations, columns (of `engagement/current`; ids always come along): less than everything. start: where a new
    consumer begins, see `Start`; a known one goes on where it is. max_rows: at most so many notifications in a batch.
    follow: wait for more instead of ending, looking every `poll`. store_url: database of the cursor. Default: that of
    the settings, so that the platform sees the consumer, and keeps what it has yet to read.

    A row is as it is now, and not as it was when the change was announced, so that applying a batch twice, or one that
    others have overtaken, does no harm: put inserts and updates over what you have by (organization_id,
    engagement_id), remove deletes. After a crash everything since the last commit comes once more; nothing is skipped.
    Batches without a row for this consumer are left out. Raises ConsumerRefused, StoresUnavailable.
    """

    organizations: Collection[str] | None = None
    columns: Sequence[str] | None = None

    def __post_init__(self) -> None:
        self._shown = _chosen(self.columns)
        self._open(NOTIFICATION, READ, self.root)

    def resnapshot(self) -> Snapshot:
        """Everything that stands now; `commit()` then goes on after it. Later batches may repeat some of it.

        Reads the whole Data Table while the snapshot is iterated. Raises ConsumerRefused without a Data Table.
        """
        # In this order: a change that was announced by then is in the view.
        newest = log.version(self._uri)
        current = CurrentRows.of(self.root)
        if current is None:
            raise ConsumerRefused(
                f"There are no engagements under {self.root} yet.",
                "Is it the right lake? Its first table is made by `engagement-platform run ingest-engagements "
                "--until-idle`.",
            )
        self._position = Position(BEFORE_ALL if newest is None else newest, table_id=log.table_id(self._uri))
        self._looked_at = self._erased_at = BEFORE_ALL
        self._delivered = True
        return Snapshot(self._position, current, self._shown, self.organizations)

    def _stretch(self, through: int) -> tuple[pa.Table, Position]:
        """As of every reader; what an erasure has changed meanwhile is as it left it."""
        erased = self._erasure_ahead(through) is not None
        self._columns = (*READ, _ID) if erased else READ
        rows, position = super()._stretch(through)
        return self._as_erasures_left(rows) if erased else rows, position

    def _as_erasures_left(self, rows: pa.Table) -> pa.Table:
        """Notifications with the previous_person_id that they have now: files of former versions name the erased."""
        if not rows.num_rows:
            return rows
        bounds = pc.min_max(rows["batch_sequence"]).as_py()
        found = scan.find(
            log.open_version(self._uri),
            (_ID, "previous_person_id"),
            {_ID: rows[_ID].to_pylist()},
            {"batch_sequence": (bounds["min"], bounds["max"])},
        )
        now = dict(zip(found[_ID].to_pylist(), found["previous_person_id"].to_pylist(), strict=True))
        previous = pa.array([now.get(each) for each in rows[_ID].to_pylist()], pa.string())
        return rows.set_column(rows.column_names.index("previous_person_id"), "previous_person_id", previous)

    def _batch(self, rows: pa.Table, position: Position) -> Batch:
        """What a stretch of notifications comes to for each engagement, and the rows as they are now."""
        wanted = rows
        if self.organizations is not None:
            organizations = pa.array(sorted(self.organizations), pa.string())
            wanted = rows.filter(pc.is_in(rows["organization_id"], organizations))
        changed = _by_engagement(wanted)
        current = CurrentRows.of(self.root) if changed.num_rows else None
        now = schema_of_rows(*self._shown).empty_table()
        if current is not None:
            now = pa.concat_tables([now, *current.rows(self._shown, keys=changed)])
        before = dict(zip(keys_of(changed), changed["previous_person_id"].to_pylist(), strict=True))
        previous = pa.array([before[key] for key in keys_of(now)], pa.string())
        updates = now.append_column("previous_person_id", previous)
        there = set(keys_of(now))
        gone = pa.array([key not in there for key in before], pa.bool_())
        return Batch(
            inserts=now.filter(pc.is_null(previous)),
            updates=updates.filter(pc.is_valid(previous)),
            deletes=changed.filter(gone),
            position=position,
            notifications=rows.num_rows,
        )


def _by_engagement(rows: pa.Table) -> pa.Table:
    """One row an engagement: KEY, engagement_date, and previous_person_id as it was before the first of its rows."""
    of = rows.group_by(list(KEY), use_threads=False).aggregate(
        [("engagement_date", "first", _FIRST), ("previous_person_id", "first", _FIRST)]
    )
    return of.rename_columns({f"{name}_first": name for name in ("engagement_date", "previous_person_id")})


def _chosen(columns: Sequence[str] | None) -> Sequence[str]:
    """The columns of `engagement/current`, ids first. Raises ConsumerRefused."""
    if unknown := sorted(set(columns or ()).difference(CURRENT_ROW.names)):
        raise ConsumerRefused(
            f"There is no column called {', '.join(unknown)}.", f"There are {', '.join(CURRENT_ROW.names)}."
        )
    return CURRENT_ROW.names if columns is None else list(dict.fromkeys([*KEY, *columns]))
