"""Delta logs written by hand: tables of any size and shape without a data file, as cheap as one text file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa

DAY_MS = 86_400_000
SOME_MS = 1_700_000_000_000

COLUMNS = (("organization_id", "string"), ("day", "date"), ("id", "string"), ("score", "long"))
VECTORS = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["deletionVectors"],
    "writerFeatures": ["deletionVectors"],
}


def field(name: str, kind: object) -> dict[str, object]:
    """A field of a schema in the Delta protocol's JSON."""
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def add(
    name: str,
    size: int,
    *,
    partition: Mapping[str, str | None] | None = None,
    days: tuple[str, str] | None = ("2024-01-01", "2024-01-31"),
    ids: tuple[str, str] = ("a", "a"),
    rows: int = 10,
    codec: str = ".snappy",
    vector: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """An add action. days, ids: bounds of the columns `day` and `id`; days None: without any statistics."""
    values = partition or {}
    folder = "".join(f"{key}={quote(quote(value or '', safe=''))}/" for key, value in values.items())
    action: dict[str, Any] = {
        "path": f"{folder}{name}{codec}.parquet",
        "partitionValues": dict(values),
        "size": size,
        "modificationTime": SOME_MS,
        "dataChange": True,
    }
    if days is not None:
        low, high = ({"day": day, "id": id_} for day, id_ in zip(days, ids, strict=True))
        action["stats"] = json.dumps(
            {"numRecords": rows, "minValues": low, "maxValues": high, "nullCount": {"day": 0, "id": 0}}
        )
    if vector is not None:
        action["deletionVector"] = dict(vector)
    return {"add": action}


def remove(added: Mapping[str, Any], at_ms: int) -> dict[str, Any]:
    """The action that removes what an add added."""
    told = added["add"]
    return {"remove": {"path": told["path"], "deletionTimestamp": at_ms, "dataChange": True, "size": told["size"]}}


def info(operation: str = "WRITE", at_ms: int = SOME_MS, **parameters: str) -> dict[str, Any]:
    """What a commit says of itself."""
    return {"commitInfo": {"timestamp": at_ms, "operation": operation, "operationParameters": parameters}}


def table(
    path: Path,
    actions: Iterable[Mapping[str, Any]] = (),
    *,
    partitioned_by: Sequence[str] = ("organization_id",),
    properties: Mapping[str, str] | None = None,
    columns: Sequence[tuple[str, object]] = COLUMNS,
    protocol: Mapping[str, Any] | None = None,
) -> Path:
    """Version 0 of a table, with these files in it."""
    schema = {"type": "struct", "fields": [field(name, kind) for name, kind in columns]}
    metadata = {
        "id": "00000000-0000-0000-0000-000000000000",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": list(partitioned_by),
        "configuration": dict(properties or {}),
        "createdTime": SOME_MS,
    }
    plain = {"minReaderVersion": 1, "minWriterVersion": 2}
    commit(path, 0, [{"protocol": protocol or plain}, {"metaData": metadata}, *actions])
    return path


def commit(path: Path, version: int, actions: Iterable[Mapping[str, Any]]) -> None:
    """One more commit."""
    log = path / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{version:020}.json").write_text("\n".join(map(json.dumps, actions)), encoding="utf-8")


def files(count: int, size: int, organization: str = "org-0", **more: Any) -> list[dict[str, Any]]:
    """Several files of one organization."""
    values = {"organization_id": organization}
    return [add(f"part-{organization}-{i:05}", size, partition=values, **more) for i in range(count)]


FIRST = date(2024, 1, 1)

LIVE = pa.schema(
    {
        "path": pa.string(),
        "partition": pa.string(),
        "bytes": pa.int64(),
        "rows": pa.int64(),
        "codec": pa.string(),
        "low": pa.date32(),
        "high": pa.date32(),
        "known": pa.bool_(),
    }
)
"""Columns of `files.live_files` for a table that is clustered by a day."""


def live(sizes: Iterable[tuple[str, int, tuple[int, int] | None]]) -> pa.Table:
    """Live files by partition, bytes, first and last day, counted from FIRST; None: without bounds."""
    rows = []
    for number, (partition, size, days) in enumerate(sizes):
        low, high = (FIRST + timedelta(days=day) for day in days) if days else (None, None)
        name = {"path": f"{partition}-{number:05}", "partition": partition, "codec": "snappy"}
        rows.append({**name, "bytes": size, "rows": 1, "low": low, "high": high, "known": days is not None})
    return pa.Table.from_pylist(rows, LIVE)
