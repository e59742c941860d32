"""The transactions that a table's log holds (Delta protocol: txn action), without a JVM and without its files' entries.

What a transaction's commit says of its batch is read by `batch_logs`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq

from engagement_platform.lake import log

_CHECKPOINT = re.compile(r"(?P<version>\d{20})\.checkpoint(\..+)?\.(?P<kind>parquet|json)")
_ENTRY = re.compile(r"(?P<version>\d{20})\.json")


def transactions(uri: str) -> dict[str, int]:
    """The last version of each application id in the table as it is now; none where there is no table.

    delta-rs says it for an id that one knows; this is for those that one does not. Cost: a listing of the log, one
    column of its newest checkpoint, and the entries after that, of which one kind of line is parsed.
    """
    filesystem, path = log.opened(f"{uri}/_delta_log")
    names = [info.base_name for info in log.listed(filesystem, path)]
    checkpoints = [found for name in names if (found := _CHECKPOINT.fullmatch(name))]
    newest = max((found["version"] for found in checkpoints), default="")
    held: dict[str, int] = {}
    for found in checkpoints:
        if found["version"] == newest:
            with filesystem.open_input_file(f"{path}/{found.string}") as file:
                held |= _in_parquet(file) if found["kind"] == "parquet" else dict(_in_lines(file.read()))
    for name in sorted(name for name in names if (entry := _ENTRY.fullmatch(name)) and entry["version"] > newest):
        with filesystem.open_input_file(f"{path}/{name}") as file:
            held |= dict(_in_lines(file.read()))
    return held


def _in_parquet(file: Any) -> dict[str, int]:
    opened = pq.ParquetFile(file)
    if "txn" not in opened.schema_arrow.names:
        return {}
    rows = opened.read(columns=["txn"]).column("txn").to_pylist()
    return {row["appId"]: row["version"] for row in rows if row is not None and row["appId"] is not None}


def _in_lines(content: bytes) -> Iterator[tuple[str, int]]:
    # Not splitlines(): that splits at separators such as U+2028 too, which stand in bounds as they are.
    for line in content.split(b"\n"):
        if line.startswith(b'{"txn"'):
            action = json.loads(line)["txn"]
            yield action["appId"], action["version"]
