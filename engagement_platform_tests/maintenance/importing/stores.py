"""Old stores as tests make them, what is in them, and the command that imports them."""

from __future__ import annotations

import bz2
import gzip
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as paorc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from typer.testing import CliRunner, Result

from engagement_platform.cli import app

Rows = list[dict[str, Any]]


def row(n: int) -> dict[str, Any]:
    at = datetime(2026, 11, 1 + n % 20, 9, n % 60, tzinfo=UTC)
    return {"id": n, "name": None if n % 7 == 0 else f'name "{n}", really', "score": n / 4, "at": at}


def text_of(rows: Rows, kind: str) -> bytes:
    if kind == "csv":
        lines = ["id,name,score,at"]
        for one in rows:
            name = "" if one["name"] is None else '"' + one["name"].replace('"', '""') + '"'
            lines.append(f"{one['id']},{name},{one['score']},{one['at'].isoformat()}")
    else:
        lines = [json.dumps({**one, "at": one["at"].isoformat()}) for one in rows]
    return ("\n".join(lines) + "\n").encode()


def written(source: Path, name: str, content: bytes) -> None:
    (source / name).parent.mkdir(parents=True, exist_ok=True)
    (source / name).write_bytes(content)


def store(source: Path) -> list[tuple[Any, ...]]:
    """Files of each format and compression in folders of two columns; the rows that are in them."""
    rows: list[tuple[Any, ...]] = []
    folders = [("7", "S%C3%A3o%20Paulo", 7, "São Paulo"), ("12", "__HIVE_DEFAULT_PARTITION__", 12, None)]
    compressions: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}
    for number, (ending, compress) in enumerate(compressions.items()):
        hour, city, *values = folders[number % 2]
        for kind in ("csv", "jsonl"):
            # Two streams one after the other, as parallel compressors write them.
            some = [row(number * 20 + n) for n in range(12)]
            content = compress(text_of(some[:7], kind)) + compress(text_of(some[7:], kind))
            written(source, f"_hour={hour}/city={city}/deep down+up/a b%.{kind}{ending}", content)
            rows += [(*one.values(), *values) for one in some]
    folder = source / "_hour=7/city=x+%2Fy"
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist([row(100)]), folder / "a.parquet", compression="ZSTD")
    paorc.write_table(pa.Table.from_pylist([row(101)]), folder / "a.orc", compression="ZLIB")
    rows += [(*row(n).values(), 7, "x+/y") for n in (100, 101)]
    return rows


def called(*words_: str, **options: Any) -> Result:
    return CliRunner().invoke(app, ["import", *words_], **options)


def imported(*words_: str) -> dict[str, Any]:
    result = called(*words_, "--json")
    assert result.exit_code == 0, result.output + repr(result.exception)
    report: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return report


def rows_in(table: Path) -> Rows:
    rows: Rows = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return rows


def quarantined(home: Path) -> Rows:
    return sorted(rows_in(home / "home/lake/import/quarantine"), key=lambda one: (one["path"], one["value"]))
