"""Holds the view against a replay in plain Python for some keys: the check that both engines fold as the rules say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from engagement_platform.lake import light, log
from engagement_platform.pipelines.profiles.entity import Entity, version_of
from engagement_platform.pipelines.profiles.here import current_here
from engagement_platform.pipelines.profiles.snapshot import Snapshot, snapshot

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Sampled:
    """What a look at some keys found."""

    keys: int
    differing: tuple[str, ...]
    """Keys whose rows the view shows otherwise than a replay ends."""


def sample(root: str, entity: Entity, most: int = 200) -> Sampled:
    """Compare up to so many keys of the newest pending batch. Reads their rows in both tables; nothing else."""
    taken = snapshot(root, entity)
    if not taken.pending:
        return Sampled(0, ())
    # Through the engine, since it skips the partitions of other batches.
    engine = QueryBuilder()
    changeset = DeltaTable(log.storage_uri(entity.changeset.uri(root)), version=taken.changeset_version)
    engine.register("changeset", changeset)
    newest = engine.execute(f'SELECT DISTINCT "{entity.key}" AS k FROM changeset WHERE batch_id = {taken.latest}')
    keys = sorted(pa.table(newest).column("k").to_pylist())
    step = max(1, len(keys) // most)
    chosen = keys[taken.latest % step :: step][:most]
    shown = {row[entity.key]: row for row in current_here(root, entity, keys=chosen, at=taken).to_pylist()}
    replayed = _replayed(root, entity, taken, chosen)
    return Sampled(len(chosen), tuple(key for key in chosen if shown.get(key) != replayed.get(key)))


def replay(before: Row | None, changes: Sequence[Row], entity: Entity) -> dict[str, Any] | None:
    """One key's row after its changes, as the view shows it; None when it is not there.

    before: its row of the base. changes: its rows of the changeset, in any order. One change after the other in the
    order of landing; each column takes a word whose version is greater than that of the one it has.
    """
    # The empty name stands for whether the key is there at all.
    columns: dict[str, tuple[int, Any]] = dict.fromkeys(entity.columns, (0, None)) | {"": (0, False)}
    newest = 0
    if before is not None:
        columns = {name: (before[version_of(name)] or 0, before[name]) for name in entity.columns}
        columns[""] = (before["present_version"] or 0, bool(before["present"]))
        newest = before[entity.version]
    for change in sorted(changes, key=lambda row: (row["batch_id"], row["partition"], row["offset"])):
        version, op = change[entity.version], change["op"]
        newest = max(newest, version)
        said = {n: change[n] for n in entity.columns if change[n] is not None or n in (change["set_null"] or ())}
        if op == "DELETE":
            said = dict.fromkeys(entity.columns)
        if op != "UPDATE" or entity.unknown_update != "ignore":
            said[""] = op != "DELETE"
        columns |= {name: (version, value) for name, value in said.items() if version > columns[name][0]}
    if not columns[""][1]:
        return None
    some = (before or changes[0])[entity.key]
    return {entity.key: some, entity.version: newest, **{name: columns[name][1] for name in entity.columns}}


def _replayed(root: str, entity: Entity, taken: Snapshot, keys: Sequence[str]) -> dict[str, dict[str, Any] | None]:
    def rows(found: pa.Table) -> list[Row]:
        return [row for row in found.to_pylist() if row[entity.key] in wanted]

    wanted = set(keys)
    changeset = DeltaTable(log.storage_uri(entity.changeset.uri(root)), version=taken.changeset_version)
    base = DeltaTable(log.storage_uri(entity.base.uri(root)), version=taken.base_version)
    asked = {entity.key: list(keys)}
    before = {row[entity.key]: row for row in rows(light.find(base, entity.state_columns, asked))}
    changes: dict[str, list[Row]] = {key: [] for key in keys}
    for row in rows(light.find(changeset, entity.changeset.column_names, asked)):
        if row["batch_id"] > taken.watermark:
            changes[row[entity.key]].append(row)
    return {key: replay(before.get(key), changes[key], entity) for key in keys}
