"""Reads a few keys of the view without a JVM: the time it takes schedules moves, the rows it gives check the view."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import functions as F

from engagement_platform.lake import log, scan
from engagement_platform.lake.contract import Table
from engagement_platform.lake.lake import Lake
from engagement_platform.pipelines.profiles import rules
from engagement_platform.pipelines.profiles.entity import Entity
from engagement_platform.pipelines.profiles.snapshot import Snapshot, snapshot
from engagement_platform.pipelines.profiles.view import view

MOST_KEYS = 200


@dataclass(frozen=True)
class Checked:
    """What a look at some keys found."""

    keys: int
    differing: tuple[str, ...]
    """Keys whose rows the view shows otherwise than the rules say."""


def read_keys(root: str, entity: Entity, keys: Sequence[str], at: Snapshot) -> dict[str, dict[str, Any]]:
    """What readers see of these keys at a snapshot, by key; keys that are not there are absent.

    Files of base and changeset that cannot have them are skipped.
    """

    def rows(table: Table, version: int) -> list[dict[str, Any]]:
        opened = DeltaTable(log.storage_uri(table.uri(root)), version=version)
        found: list[dict[str, Any]] = scan.find(opened, table.column_names, {entity.key: list(keys)}).to_pylist()
        return found

    before = {row[entity.key]: row for row in rows(entity.base, at.base_version)}
    changes: dict[str, list[dict[str, Any]]] = {}
    for row in rows(entity.changeset, at.changeset_version) if at.pending else ():
        if at.watermark < row["batch_id"] <= at.latest:
            changes.setdefault(row[entity.key], []).append(row)
    states = (rules.state_after(before.get(key), changes.get(key, ()), entity) for key in before.keys() | changes)
    found = (rules.shown(state, entity) for state in states)
    return {row[entity.key]: row for row in found if row is not None}


def point_read_seconds(root: str, entity: Entity) -> float | None:
    """Seconds to find the newest state of one key, log and all; None where there is no row yet.

    The key is one that a file's bounds begin with: it is read or looked for in any case.
    """
    key = _some_key(root, entity)
    if key is None:
        return None
    began = time.monotonic()
    read_keys(root, entity, [key], snapshot(root, entity))
    return round(time.monotonic() - began, 4)


def _some_key(root: str, entity: Entity) -> str | None:
    for table in (entity.base, entity.changeset):
        files = pa.table(DeltaTable(log.storage_uri(table.uri(root))).get_add_actions(flatten=True))
        column = f"min.{entity.key}"
        if files.num_rows and column in files.column_names:
            known = files.column(column).drop_null()
            if len(known):
                return str(known[len(known) // 2].as_py())
    return None


def check_view(lake: Lake, entity: Entity, taken: Snapshot) -> Checked:
    """Compare up to MOST_KEYS keys of the newest batch that waits, others each time.

    Cost: a Spark job for the keys and one for the view, whose predicate on the keys reaches the scans.
    """
    if not taken.pending:
        return Checked(0, ())
    newest = lake.read(entity.changeset, taken.changeset_version).where(F.col("batch_id") == taken.latest)
    some = newest.select(entity.key).distinct().orderBy(F.xxhash64(entity.key, F.lit(taken.latest)), entity.key)
    keys = [row[0] for row in some.limit(MOST_KEYS).collect()]
    seen = view(lake, entity, keys=keys, at=taken).rows.toArrow().to_pylist()
    found, expected = {row[entity.key]: row for row in seen}, read_keys(lake.root, entity, keys, taken)
    return Checked(len(keys), tuple(key for key in keys if found.get(key) != expected.get(key)))
