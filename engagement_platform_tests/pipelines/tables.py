"""The tables of lakes in memory as Arrow tables, with the columns that the pipelines read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from engagement_platform.pipelines.engagements.schema import ROW, STATE
from engagement_platform_tests.pipelines.lakes import MemoryLake


def table(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=schema)


def state_tables(
    lakes: Sequence[MemoryLake], sequence: Callable[[MemoryLake, int], int] = lambda _lake, number: number
) -> tuple[pa.Table, pa.Table, pa.Table, pa.Table]:
    """Data, changeset, alias and requests of these lakes. sequence: of one lake -> of all."""
    row, edge, patch = (STATE.field(name).type for name in ("row", "edge", "patch"))
    images = pa.schema([pa.field("organization_id", pa.string()), *row])
    aliases = pa.schema([pa.field("organization_id", pa.string()), *edge])
    requests = pa.schema([pa.field("organization_id", pa.string()), pa.field("operation", pa.string()), *patch])

    def of(name: str, **more: Any) -> list[dict[str, Any]]:
        found = []
        for lake in lakes:
            rows = getattr(lake, name)
            rows = rows.values() if isinstance(rows, dict) else rows
            for one in rows:
                number = None if one["sequence"] is None else sequence(lake, one["sequence"])
                found.append({"organization_id": lake.organization_id, **more, **one, "sequence": number})
        return found

    return (
        table(of("base"), pa.schema([*ROW])),
        table(of("changeset"), images),
        table(of("edges"), aliases),
        table(of("patches", operation="UPDATE"), requests),
    )
