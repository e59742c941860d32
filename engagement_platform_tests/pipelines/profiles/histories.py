"""Histories of changes, random and meeting each other often; and a lake in which many of them stand side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from random import Random
from typing import Any, Literal

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from engagement_platform.lake.arrow import schema_of, table_of
from engagement_platform.lake.contract import Table
from engagement_platform.pipelines.profiles.entity import Attribute, Entity, profile
from engagement_platform.pipelines.profiles.point_read import read_keys
from engagement_platform.pipelines.profiles.rules import state_after
from engagement_platform.pipelines.profiles.snapshot import INSERTS_ARE_NEW, Snapshot, snapshot, to_note
from engagement_platform.settings import Settings
from engagement_platform_tests.pipelines.profiles.oracle import Row, Said, rows_of

NOW = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
PROFILE = profile(Settings())
DEVICE = Entity(
    name="device",
    key="device_id",
    version="revision",
    attributes=(
        Attribute("region", "string", "Where it stands."),
        Attribute("temperature", "double", "Degrees."),
        Attribute("active", "boolean", "Whether it answers."),
        Attribute("seen", "date", "Last day it answered."),
        Attribute("checked", "timestamp", "When it was looked after."),
    ),
    partitioned_by=("region",),
    unknown_update="ignore",
)
"""Shaped otherwise than a profile, in every respect that an entity may be."""


def declared(entity: Entity, topic: str) -> str:
    """An entity as somebody declares it, in YAML."""
    columns = {attribute.name: attribute.type for attribute in entity.attributes}
    return f"""
type: engagement_platform.MergeOnReadEntity
attributes:
  topic: {topic}
  name: {entity.name}
  key: {entity.key}
  version: {entity.version}
  columns: {json.dumps(columns)}
  partitioned_by: {json.dumps(entity.partitioned_by)}
  unknown_update: {entity.unknown_update}
"""


VALUES: dict[str, Sequence[Any]] = {
    "string": ("a", "b", "", "O'Neil \\ \" 😀"),
    "long": (0, -1, 2**63 - 1),
    "double": (0.5, -1e300),
    "boolean": (True, False),
    "date": (date(2026, 1, 1), date(1969, 12, 31)),
    "timestamp": (datetime(2026, 1, 1, 12, 0, 0, 1, tzinfo=UTC), datetime(2001, 1, 1, tzinfo=UTC)),
}

Batches = list[list[Said]]
"""Changes batch by batch, in the order of landing."""


def history(
    rng: Random, key: str, entity: Entity, batches: int, size: int = 8, *, inserts_first: bool = False
) -> Batches:
    """Up to `size` changes of one key over some batches: versions from a few, so that they tie and come late.

    inserts_first: an INSERT lands before anything else, and none after it; that is what `inserts_are_new` promises.
    """
    made: Batches = [[] for _ in range(batches)]
    places = sorted(rng.randrange(batches) for _ in range(rng.randint(1, size)))
    for number, place in enumerate(places):
        op = rng.choice(("INSERT", "UPDATE", "UPDATE", "DELETE"))
        if inserts_first:
            op = "INSERT" if number == 0 else rng.choice(("UPDATE", "UPDATE", "DELETE"))
        changes = {a.name: rng.choice((*VALUES[a.type], None)) for a in entity.attributes if rng.random() < 0.4}
        changes = {n: v for n, v in changes.items() if v != "" or n not in entity.partitioned_by}
        cleared = tuple(name for name in entity.columns if rng.random() < 0.15)
        if op == "DELETE":
            changes, cleared = {}, ()
        made[place].append(Said(key, rng.randint(1, 6), op, changes, cleared))
    return made


@dataclass
class Changes:
    """An entity's two tables under a root, filled as batches land and are moved; no engine, no broker, no Spark."""

    root: Path
    entity: Entity

    def __post_init__(self) -> None:
        for table in (self.entity.changeset, self.entity.base):
            schema = schema_of(table)
            partitions = list(table.partitioned_by)
            DeltaTable.create(
                self.uri(table), schema, mode="ignore", partition_by=partitions, configuration=dict(table.properties)
            )

    def uri(self, table: Table) -> str:
        return table.uri(str(self.root))

    def land(self, number: int, changes: Sequence[Said]) -> None:
        """One batch into the changeset, in this order."""
        rows = [self._row(change, number, offset) for offset, change in enumerate(changes)]
        # The order of a file's rows must not matter.
        Random(number).shuffle(rows)
        if not rows:
            return
        table = self.entity.changeset
        if (policy := to_note(str(self.root), self.entity, number)) is not None:
            DeltaTable(self.uri(table)).alter.set_table_properties({INSERTS_ARE_NEW: policy}, raise_if_not_exists=False)
        write_deltalake(self.uri(table), table_of(rows, table), mode="append")

    def move(self, at: Snapshot | None = None, *, keys: Sequence[str] | None = None) -> None:
        """The base with everything that waits at a snapshot, as a rematerialization leaves it. keys: appends them only,
        as a file of their own."""
        taken = at or snapshot(str(self.root), self.entity)
        before = {row[self.entity.key]: row for row in self._rows(self.entity.base, taken.base_version)}
        changes: dict[str, list[dict[str, Any]]] = {key: [] for key in before}
        for row in self._rows(self.entity.changeset, taken.changeset_version):
            if taken.watermark < row["batch_id"] <= taken.latest:
                changes.setdefault(row[self.entity.key], []).append(row)
        states = [state_after(before.get(key), changes[key], self.entity) for key in changes]
        if keys is not None:
            states = [state for state in states if state[self.entity.key] in keys]
        base = self.entity.base
        watermark = CommitProperties(app_transactions=[Transaction(self.entity.watermark, taken.latest)])
        mode: Literal["append", "overwrite"] = "overwrite" if keys is None else "append"
        write_deltalake(self.uri(base), table_of(states, base), mode=mode, commit_properties=watermark)

    def drop(self, through: int) -> None:
        """Take batches out of the changeset."""
        DeltaTable(self.uri(self.entity.changeset)).delete(f"batch_id <= {through}")

    def _rows(self, table: Table, version: int) -> list[dict[str, Any]]:
        return DeltaTable(self.uri(table), version=version).to_pyarrow_table().to_pylist()  # type: ignore[no-any-return]

    def _row(self, change: Said, number: int, offset: int) -> dict[str, Any]:
        values = {name: None if name in change.set_null else value for name, value in change.changes.items()}
        return {
            self.entity.key: change.key,
            self.entity.version: change.version,
            "op": change.op,
            **values,
            "set_null": list(change.set_null) or None,
            "topic": "t",
            "partition": 0,
            "offset": offset,
            "ingestion_ts": NOW,
            "batch_id": number,
        }


def side_by_side(seed: int, entity: Entity, histories: int, batches: int, *, inserts_first: bool = False) -> Batches:
    """Many histories, each of a key of its own, batch by batch; the same seed, the same ones."""
    rng = Random(seed)
    each = [history(rng, f"k{number:04}", entity, batches, inserts_first=inserts_first) for number in range(histories)]
    return [[change for one in each for change in one[number]] for number in range(batches)]


def plain(table: pa.Table) -> list[dict[str, Any]]:
    """Rows with times in UTC."""
    return [_in_utc(row) for row in table.to_pylist()]


def seen_by_rules(root: str, entity: Entity, at: Snapshot | None = None) -> list[Row]:
    """What readers see, by the rules and without Spark: every key that stands in base or changeset."""
    taken = at or snapshot(root, entity)
    keys: set[str] = set()
    for table, version in ((entity.base, taken.base_version), (entity.changeset, taken.changeset_version)):
        found = DeltaTable(table.uri(root), version=version).to_pyarrow_table(columns=[entity.key])
        keys.update(found.column(entity.key).to_pylist())
    return rows_of(map(_in_utc, read_keys(root, entity, sorted(keys), taken).values()), entity)


def _in_utc(row: dict[str, Any]) -> dict[str, Any]:
    return {n: v.astimezone(UTC) if isinstance(v, datetime) else v for n, v in row.items()}
