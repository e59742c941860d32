"""Old stores as tests make them, what is in them, and the command that imports them."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, date, datetime
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


def expected(n: int, day: str) -> tuple[Any, ...]:
    return (*row(n).values(), date.fromisoformat(day))


def text_of(rows: Rows, kind: str) -> bytes:
    if kind == "csv":
        lines = ["id,name,score,at"]
        for one in rows:
            name = "" if one["name"] is None else '"' + one["name"].replace('"', '""') + '"'
            lines.append(f"{one['id']},{name},{one['score']},{one['at'].isoformat()}")
    else:
        lines = [json.dumps({**one, "at": one["at"].isoformat()}) for one in rows]
    return ("\n".join(lines) + "\n").encode()


def store(source: Path) -> set[tuple[Any, ...]]:
    """Five files in two folders, one of each format and compression; the rows that are in them."""
    days = {"day=2026-11-01": ("a.parquet", "b.orc", "c.csv"), "day=2026-11-02": ("d.json.gz", "e.csv.gz")}
    rows, n = set(), 0
    for day, names in days.items():
        (source / day).mkdir(parents=True)
        for name in names:
            some = [row(k) for k in range(n, n + 15)]
            rows |= {expected(k, day[4:]) for k in range(n, n + 15)}
            n += 15
            path = source / day / name
            if name.endswith(".parquet"):
                pq.write_table(pa.Table.from_pylist(some), path)
            elif name.endswith(".orc"):
                paorc.write_table(pa.Table.from_pylist(some), path)
            else:
                content = text_of(some, "csv" if "csv" in name else "jsonl")
                path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    (source / "_SUCCESS").touch()
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
    return sorted(rows_in(home / "home/lake/import/quarantine"), key=lambda one: (one["path"], one["value"] or b""))
