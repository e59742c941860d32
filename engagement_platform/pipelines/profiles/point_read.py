"""How long a reader waits for one key of the view: the figure by which rematerialization is timed. Needs no JVM."""

from __future__ import annotations

import time

import pyarrow as pa
from deltalake import DeltaTable

from engagement_platform.lake import log
from engagement_platform.pipelines.profiles.entity import Entity
from engagement_platform.pipelines.profiles.here import current_here
from engagement_platform.pipelines.profiles.snapshot import snapshot


def point_read_seconds(root: str, entity: Entity) -> float | None:
    """Seconds to find the newest state of one key, log and all; None where there is no row yet.

    The key is one that a file's bounds begin with: it is read or looked for in any case.
    """
    key = _some_key(root, entity)
    if key is None:
        return None
    began = time.monotonic()
    current_here(root, entity, keys=[key], at=snapshot(root, entity))
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
