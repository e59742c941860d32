"""The peer that is no format: rows in memory, changed by a loop that anybody believes. What the others must end in.

Needs pyarrow only:  python -m benchmarks.peers.reference
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.peers.protocol import DELETE, KEY, OP, Opened, serve


class Reference:
    """Memory."""

    def __init__(self, opened: Opened) -> None:  # noqa: ARG002
        self.versions: Mapping[str, str] = {"pyarrow": pa.__version__}

    def table(self, name: str, rows: int) -> ReferenceTable:  # noqa: ARG002
        """An empty one."""
        return ReferenceTable()


class ReferenceTable:
    """Rows by key: what stays as it was loaded stays in Arrow, what was changed is in a dictionary."""

    def __init__(self) -> None:
        self._base = pa.table({KEY: pa.array([], pa.string())})
        self._place: dict[str, int] = {}
        self._changed: dict[str, dict[str, Any] | None] = {}

    def load(self, base: Path) -> None:
        self._base = pq.read_table(base)
        self._place = {key: n for n, key in enumerate(self._base.column(KEY).to_pylist())}

    def apply(self, batch: Path) -> None:
        for change in pq.read_table(batch).to_pylist():
            op, key = change.pop(OP), change[KEY]
            if op == DELETE:
                self._changed[key] = None
                continue
            row = self._now(key) or {}
            self._changed[key] = {name: row.get(name) if word is None else word for name, word in change.items()}

    def _now(self, key: str) -> dict[str, Any] | None:
        if key in self._changed:
            return self._changed[key]
        place = self._place.get(key)
        row: dict[str, Any] | None = None if place is None else self._base.slice(place, 1).to_pylist()[0]
        return row

    def read(self) -> int:
        return int(self._rows().num_rows)

    def compact(self) -> None:
        raise NotImplementedError("there is nothing to compact in memory")

    def dump(self, out: Path) -> None:
        out.mkdir()
        pq.write_table(self._rows(), out / "rows.parquet")

    def _rows(self) -> pa.Table:
        kept = [place for key, place in self._place.items() if key not in self._changed]
        new = [row for row in self._changed.values() if row is not None]
        return pa.concat_tables([self._base.take(pa.array(kept, pa.int64())),
                                 pa.Table.from_pylist(new, self._base.schema)])  # fmt: skip


if __name__ == "__main__":
    serve(Reference)
