"""Reads keys of the view without a JVM; the time it takes schedules moves."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from engagement_platform.lake import live_files, log, scan
from engagement_platform.lake.contract import Table
from engagement_platform.pipelines.profiles import rules
from engagement_platform.pipelines.profiles.entity import Entity
from engagement_platform.pipelines.profiles.snapshot import Snapshot, snapshot


def read_keys(root: str, entity: Entity, keys: Sequence[str], at: Snapshot) -> dict[str, dict[str, Any]]:
    """What readers see of these keys at a snapshot, by key; keys that are not there are absent.

    Files of base and changeset that cannot have them are skipped.
    """
    before = {row[entity.key]: row for row in _rows(root, entity, entity.base, keys, at.base_version)}
    changes: dict[str, list[dict[str, Any]]] = {}
    for row in _rows(root, entity, entity.changeset, keys, at.changeset_version) if at.pending else ():
        if at.watermark < row["batch_id"] <= at.latest:
            changes.setdefault(row[entity.key], []).append(row)
    states = (rules.state_after(before.get(key), changes.get(key, ()), entity) for key in before.keys() | changes)
    found = (rules.shown(state, entity) for state in states)
    return {row[entity.key]: row for row in found if row is not None}


def _rows(
    root: str, entity: Entity, table: Table, keys: Sequence[str], version: int | None = None
) -> list[dict[str, Any]]:
    opened = log.open_version(table.uri(root), version)
    found: list[dict[str, Any]] = scan.find(opened, table.column_names, {entity.key: list(keys)}).to_pylist()
    return found


def point_read_seconds(root: str, entity: Entity) -> float | None:
    """Seconds to find the newest state of one key, log and all; None where there is no row yet.

    The key is one that a file's bounds begin with: it is read or looked for in any case.
    """
    return _seconds(root, entity, lambda key: read_keys(root, entity, [key], snapshot(root, entity)))


def base_read_seconds(root: str, entity: Entity) -> float | None:
    """Of the same key, in the base alone: what is left of it once all changes are moved."""
    return _seconds(root, entity, lambda key: _rows(root, entity, entity.base, [key]))


def _seconds(root: str, entity: Entity, read: Callable[[str], object]) -> float | None:
    key = _some_key(root, entity)
    if key is None:
        return None
    began = time.monotonic()
    read(key)
    return round(time.monotonic() - began, 4)


def _some_key(root: str, entity: Entity) -> str | None:
    for table in (entity.base, entity.changeset):
        files = pa.table(log.open_version(table.uri(root)).get_add_actions(flatten=True))
        known = live_files.of_files(files, f"min.{entity.key}", pa.string()).drop_null()
        if len(known):
            return str(known[len(known) // 2].as_py())
    return None
