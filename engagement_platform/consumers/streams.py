"""How far Structured Streaming queries have read a table, from their checkpoint folders. Starts no Spark.

The stores keep which folders there are (`engine.cursors`); what VACUUM makes of it is `vacuum`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from deltalake.exceptions import DeltaError

from engagement_platform.errors import first_line
from engagement_platform.lake import log


@dataclass(frozen=True)
class Followed:
    """Where a stream is in a table."""

    version: int
    """The last version whose files it will not open again."""
    committed_ts: datetime
    """When it finished its last batch."""
    table_id: str
    """Of the table's metadata, by which Delta's offsets name it (`reservoirId`)."""


@dataclass(frozen=True)
class Unreadable:
    """A checkpoint folder of which nobody can tell from here which tables its stream reads, and how far."""

    why: str


def followed(folder: str, table_id: str | None) -> Followed | Unreadable | None:
    """Where the stream of a checkpoint folder is in a table; None when it has finished no batch, or reads others. A
    folder that is not there is one of a stream that has not begun.

    table_id: None: in the first table that it reads. A batch that was begun and not finished is read again, so the
    offsets of the last finished one count.
    """
    try:
        return _followed(folder, table_id)
    except (OSError, ValueError, KeyError, DeltaError) as error:
        return Unreadable(first_line(error))


def _followed(folder: str, table_id: str | None) -> Followed | None:
    filesystem, path = log.opened(folder.rstrip("/"))
    listed = log.listed(filesystem, f"{path}/commits")
    finished = {int(one.base_name): one for one in listed if one.base_name.isdigit()}
    if not finished:
        return None
    newest = max(finished)
    with filesystem.open_input_file(f"{path}/offsets/{newest}") as file:
        lines = file.read().decode().splitlines()
    for offset in (json.loads(line) for line in lines if line.startswith("{")):
        found = offset.get("reservoirId") if isinstance(offset, Mapping) else None
        if found is not None and table_id in (None, found):
            # Of the version that is named a part may be left; all before it is read.
            ended = finished[newest].mtime or datetime.now(UTC)
            return Followed(int(offset["reservoirVersion"]) - 1, ended, str(found))
    return None
