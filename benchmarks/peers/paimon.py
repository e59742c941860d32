"""Paimon tables with a primary key, in Python without a JVM: each batch is a sorted run, merged as it is read.

Runs in the environment of `paimon.txt`:  python -m benchmarks.peers.paimon
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pypaimon import CatalogFactory, Schema

from benchmarks.peers.protocol import DELETE, KEY, OP, VERSION, Opened, serve
from benchmarks.peers.words import GONE, NO_DAY, NO_NUMBER, NO_TEXT

# A bucket is merged by one process; about as many rows as a bucket of Hudi's has.
_ROWS_OF_A_BUCKET = 350_000


class Paimon:
    """A catalog in a folder."""

    def __init__(self, opened: Opened) -> None:
        self._catalog = CatalogFactory.create({"warehouse": str(opened.folder / "tables")})
        self._catalog.create_database("bench", True)
        self.versions: Mapping[str, str] = {"pypaimon": version("pypaimon"), "pyarrow": pa.__version__}

    def table(self, name: str, rows: int) -> PaimonTable:
        """Its buckets are as many as the rows want."""
        return PaimonTable(self._catalog, f"bench.{name}", max(2, -(-rows // _ROWS_OF_A_BUCKET)))


class PaimonTable:
    """One table."""

    def __init__(self, catalog: Any, name: str, buckets: int) -> None:
        self._catalog, self._name, self._buckets = catalog, name, buckets
        self._table: Any = None

    def load(self, base: Path) -> None:
        options = {"bucket": str(self._buckets), "merge-engine": "partial-update"}
        file = pq.ParquetFile(base)
        rows = file.schema_arrow
        key_is_there = rows.set(rows.get_field_index(KEY), rows.field(KEY).with_nullable(False))
        schema = Schema.from_pyarrow_schema(
            key_is_there.append(pa.field(GONE, pa.bool_())), primary_keys=[KEY], options=options
        )
        self._catalog.create_table(self._name, schema, False)
        self._table = self._catalog.get_table(self._name)
        self._write(pa.Table.from_batches([batch]) for batch in file.iter_batches(100_000))

    def apply(self, batch: Path) -> None:
        self._write([pq.read_table(batch)])

    def read(self) -> int:
        return int(self._rows().num_rows)

    def compact(self) -> None:
        raise NotImplementedError("pypaimon does not compact; that takes a JVM")

    def dump(self, out: Path) -> None:
        out.mkdir()
        pq.write_table(self._rows(), out / "rows.parquet")

    def _rows(self) -> pa.Table:
        builder = self._table.new_read_builder()
        return shown(builder.new_read().to_arrow(builder.new_scan().plan().splits()))

    def _write(self, parts: Any) -> None:
        builder = self._table.new_batch_write_builder()
        write, commit = builder.new_write(), builder.new_commit()
        try:
            for rows in parts:
                write.write_arrow(said(rows))
            commit.commit(write.prepare_commit())
        finally:
            write.close()
            commit.close()


def said(rows: pa.Table) -> pa.Table:
    """Rows of the base, or changes with their operation, as rows of the table."""
    if OP not in rows.column_names:
        gone: pa.ChunkedArray = pa.chunked_array([pa.repeat(False, rows.num_rows)])
    else:
        gone = pc.equal(rows.column(OP), DELETE)
        rows = rows.drop_columns([OP])
    said = {
        name: column if name in (KEY, VERSION) else pc.if_else(gone, _no_word(column.type), column)
        for name, column in zip(rows.column_names, rows.columns, strict=True)
    }
    schema = rows.schema.set(rows.schema.get_field_index(KEY), rows.schema.field(KEY).with_nullable(False))
    return pa.table({**said, GONE: gone}, schema.append(pa.field(GONE, pa.bool_())))


def shown(rows: pa.Table) -> pa.Table:
    """Rows of the table as readers see them."""
    rows = rows.filter(pc.invert(rows.column(GONE))).drop_columns([GONE])
    words = {
        name: column
        if name in (KEY, VERSION)
        else pc.if_else(pc.equal(column, _no_word(column.type)), pa.scalar(None, column.type), column)
        for name, column in zip(rows.column_names, rows.columns, strict=True)
    }
    return pa.table(words)


def _no_word(of: pa.DataType) -> pa.Scalar:
    """What stands for null in a column of this type."""
    kinds: tuple[tuple[Callable[[pa.DataType], bool], object], ...] = (
        (pa.types.is_string, NO_TEXT),
        (pa.types.is_integer, NO_NUMBER),
        (pa.types.is_date, NO_DAY),
    )
    for is_one, word in kinds:
        if is_one(of):
            return pa.scalar(word, of)
    raise NotImplementedError(f"no word for null in a column of {of}")


if __name__ == "__main__":
    serve(Paimon)
