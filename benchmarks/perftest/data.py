"""Seeded rows to measure merge on read with: a base in the order of its days, and changes that meet every day of it.

Arrow tables only, and tables filled with them through delta-rs; what is measured on them is elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pydantic import Field

from engagement_platform.engine.model import Transaction
from engagement_platform.lake import store_tables
from engagement_platform.lake.arrow import schema_of
from engagement_platform.lake.contract import Table
from engagement_platform.pipelines.profiles.entity import PROFILE, Attribute, Entity, version_of
from engagement_platform.pipelines.profiles.snapshot import INSERTS_ARE_NEW, checked_since
from engagement_platform.settings import Section

ENTITY = Entity(
    name="record",
    key="record_id",
    version="version",
    attributes=(
        *PROFILE.attributes,
        Attribute("region", "string", "One of sixteen; never changes."),
        Attribute("joined", "date", "Day on which it was first seen; never changes."),
        Attribute("note", "string", "Letters without a pattern, so that a row has as many bytes as the source's."),
    ),
    # True of these rows, so that all four strategies are valid.
    unknown_update="quarantine",
    inserts_are_new=True,
)
"""What the rows describe: a profile with a day, and with text that makes a row about as large as the source's."""

PARTITIONED = replace(ENTITY, partitioned_by=("region",))
"""The same in partitions, which replace_where needs; every partition has rows of every day."""

REGIONS = tuple(f"r{n:02d}" for n in range(16))
CHANGING = ("title", "company", "city", "plan", "score")
NOTE_BYTES = 224
"""With it a row has about as many bytes in memory as the source counted, 364."""

BEGIN = date(2015, 6, 1)
LANDED = datetime(2020, 11, 20, 9, 0, tzinfo=UTC)
CHUNK = 250_000

_TITLES = ("Analyst", "Buyer", "Director", "Engineer", "Partner")
_COMPANIES = ("Acme", "Globex", "Initech", "Umbrella", "Hooli", "Vandelay")
_CITIES = ("Berlin", "Lyon", "Oslo", "Porto", "Kraków", "Austin", "Osaka")
_PLANS = ("free", "team", "business")


class Generated(Section):
    """How many rows, and how the changes meet them."""

    base_rows: int = Field(default=200_000, ge=1, description="Rows of the base.")
    changes: int = Field(default=50_000, ge=1, description="Changes in a batch; the source's sample had so many.")
    batches: int = Field(default=2, ge=0, description="Batches that wait in the changeset.")
    dates: int = Field(default=2_000, ge=1, description="Days that the base spans, and that each batch meets.")
    insert_percent: int = Field(default=5, ge=0, le=100, description="Of the changes: new records.")
    delete_percent: int = Field(default=1, ge=0, le=100, description="Of the changes: deletions.")
    regions: int = Field(default=len(REGIONS), ge=1, le=len(REGIONS), description="Regions whose records change.")
    seed: int = Field(default=20201120, ge=0, description="The same seed makes the same rows.")


@dataclass(frozen=True)
class Records:
    """The rows of one data set, made when they are asked for."""

    scale: Generated

    def base(self) -> Iterator[pa.Table]:
        """Rows as readers see them, in chunks: key, version (1), attributes; in the order of days."""
        for first in range(0, self.scale.base_rows, CHUNK):
            numbers = np.arange(first, min(first + CHUNK, self.scale.base_rows))
            rng = np.random.default_rng([self.scale.seed, 0, first])
            columns = {**self._fixed(numbers, rng), **_words(len(numbers), rng)}
            ordered = {"version": pa.repeat(pa.scalar(1, pa.int64()), len(numbers)), **columns}
            yield pa.table({name: ordered[name] for name in ENTITY.view_columns})

    def changes(self, batch: int) -> pa.Table:
        """One batch as it lies in the changeset, by key; no key twice. batch: from 0.

        Updates and deletions take turns over the days of the base, and any record of a day, so that a batch meets as
        many days as it has changes, or all. The version of a change is its batch and two: nothing comes late.
        """
        scale, rng = self.scale, np.random.default_rng([self.scale.seed, 1, batch])
        inserts = scale.changes * scale.insert_percent // 100
        known = self._spread(scale.changes - inserts, rng)
        # New numbers of the same regions, after all that are known.
        nth, turn = np.divmod(batch * inserts + np.arange(inserts), scale.regions)
        fresh = (-(-scale.base_rows // len(REGIONS)) + nth) * len(REGIONS) + turn
        deletes = min(len(known), scale.changes * scale.delete_percent // 100)
        ops = ["DELETE"] * deletes + ["UPDATE"] * (len(known) - deletes) + ["INSERT"] * inserts
        numbers = np.concatenate([rng.permutation(known), fresh]).astype(np.int64)
        values = {**self._fixed(numbers, rng), **_words(len(numbers), rng)}
        # Of the changing columns an update says one or two.
        chosen = rng.integers(0, len(CHANGING), (2, len(numbers)))
        kinds = np.array(ops)
        for n, name in enumerate(CHANGING):
            speaks = ((chosen == n).any(axis=0) & (kinds == "UPDATE")) | (kinds == "INSERT")
            values[name] = pc.if_else(pa.array(speaks), values[name], pa.scalar(None, values[name].type))
        for name in ("name", "email", "region", "joined", "note"):
            values[name] = pc.if_else(pa.array(kinds == "INSERT"), values[name], pa.scalar(None, values[name].type))
        count = len(numbers)
        stamps = {
            "version": pa.repeat(pa.scalar(batch + 2, pa.int64()), count),
            "op": pa.array(ops),
            "set_null": pa.nulls(count, pa.list_(pa.string())),
            "topic": pa.repeat(pa.scalar("record-changes"), count),
            "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
            "offset": pa.array(batch * scale.changes + np.arange(count)),
            "ingestion_ts": pa.repeat(pa.scalar(LANDED, pa.timestamp("us", tz="UTC")), count),
            "batch_id": pa.repeat(pa.scalar(batch, pa.int64()), count),
        }
        columns = {**values, **stamps}
        schema = schema_of(ENTITY.changeset)
        return pa.table([columns[name] for name in schema.names], schema.names).cast(schema).sort_by(ENTITY.key)

    def day_of(self, numbers: np.ndarray) -> np.ndarray:
        """Days since BEGIN of records by their numbers; new ones come on the last."""
        days: np.ndarray = np.minimum(numbers * self.scale.dates // self.scale.base_rows, self.scale.dates - 1)
        return days

    def _spread(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Numbers of so many different records, day after day, of the regions that change; fewer if there are no more.

        A record's number tells its day, and the rest of its division by the number of regions its region.
        """
        every = np.arange(self.scale.base_rows)
        every = every[every % len(REGIONS) < self.scale.regions]
        shuffled = rng.permutation(every)
        by_day: np.ndarray = shuffled[np.argsort(self.day_of(shuffled), kind="stable")]
        # One of each day, then a second of each, and so on.
        days, starts = np.unique(self.day_of(by_day), return_index=True)
        turn = np.arange(len(by_day)) - starts[np.searchsorted(days, self.day_of(by_day))]
        chosen: np.ndarray = by_day[np.argsort(turn, kind="stable")][:count]
        return chosen

    def _fixed(self, numbers: np.ndarray, rng: np.random.Generator) -> dict[str, pa.Array]:
        """What a record is born with."""
        text = pa.array(numbers).cast(pa.string())
        padded = pc.utf8_lpad(text, 10, "0")
        days = pa.array(np.datetime64(BEGIN, "D") + self.day_of(numbers)).cast(pa.date32())
        return {
            "record_id": pc.binary_join_element_wise("record", padded, "-"),
            "name": pc.binary_join_element_wise("Somebody", "Number", text, " "),
            "email": pc.binary_join_element_wise(text, "example.org", "@"),
            "region": pa.array(REGIONS).take(pa.array(numbers % len(REGIONS))),
            "joined": days,
            "note": _letters(len(numbers), rng),
        }


def _words(count: int, rng: np.random.Generator) -> dict[str, pa.Array]:
    every: Sequence[tuple[str, tuple[str, ...]]] = (
        ("title", _TITLES),
        ("company", _COMPANIES),
        ("city", _CITIES),
        ("plan", _PLANS),
    )
    words = {name: pa.array(some).take(pa.array(rng.integers(0, len(some), count))) for name, some in every}
    return {**words, "score": pa.array(rng.integers(0, 101, count))}


def _letters(count: int, rng: np.random.Generator) -> pa.Array:
    """Strings of NOTE_BYTES hexadecimal digits, which Snappy does not make smaller."""
    digits = pa.py_buffer(rng.bytes(count * NOTE_BYTES // 2).hex().encode())
    offsets = pa.py_buffer((np.arange(count + 1) * NOTE_BYTES).astype(np.int32).tobytes())
    return pa.StringArray.from_buffers(count, offsets, digits)


def state_rows(rows: pa.Table, entity: Entity = ENTITY) -> pa.Table:
    """Rows as readers see them, as rows of the base: everything is of version 1."""
    versions = rows.column(entity.version)
    columns = {
        **{name: rows.column(name) for name in rows.column_names},
        "present": pa.repeat(pa.scalar(True), rows.num_rows),
        "present_version": versions,
        "present_ts": pa.repeat(pa.scalar(LANDED - timedelta(days=1), pa.timestamp("us", tz="UTC")), rows.num_rows),
        **{version_of(name): versions for name in entity.columns},
    }
    schema = schema_of(entity.base)
    return pa.table([columns[name] for name in schema.names], schema.names).cast(schema)


def fill(root: str, records: Records, entity: Entity = ENTITY) -> None:
    """Make base and changeset of an entity under a folder on this disk. What a killed one left is taken up again."""
    Path(root).mkdir(parents=True, exist_ok=True)
    for n, rows in enumerate(records.base()):
        put(root, entity.base, state_rows(rows, entity), Transaction("perftest/base", n))
    put(root, entity.changeset, schema_of(entity.changeset).empty_table(), Transaction("perftest/changes", -1))
    # The batches keep the promise that the entity makes, though nobody checks them.
    changeset, landed_under = DeltaTable(entity.changeset.uri(root)), checked_since(entity, 0)
    # Another version of the table would be other data, which has to be measured again.
    if changeset.metadata().configuration.get(INSERTS_ARE_NEW) != landed_under:
        changeset.alter.set_table_properties({INSERTS_ARE_NEW: landed_under}, raise_if_not_exists=False)
    for batch in range(records.scale.batches):
        put(root, entity.changeset, records.changes(batch), Transaction("perftest/changes", batch))


def put(root: str, table: Table, rows: pa.Table, txn: Transaction) -> None:
    """Append rows to a table of this disk, made where it is missing; skipped when this transaction is there."""
    uri = table.uri(root)
    store_tables.create(uri, table)
    found = DeltaTable(uri)
    if rows.num_rows and not store_tables.written(found, txn):
        store_tables.append(found, rows, txn)
