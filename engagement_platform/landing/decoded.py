"""Records of a pinned range, decoded: few of them in this process, more of them by Spark's Python workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame

from engagement_platform.lake.lake import Lake, Rows, here

Step = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Decodes whole Arrow batches, one record in, one record out."""

FEW_RECORDS = 20_000
"""As many take 0.3 s here, 0.5 s in workers (2 cores). Each session starts workers of its own: its first hundred
records took 1.9 s with them, and 0.07 s here. On a Connect server one process of every session stays until the server
ends (SPARK-54055)."""


def decoded(raw: DataFrame, step: Step, ddl: str, few: bool) -> Rows:
    """One row for each record, with the columns of `ddl`, which are the step's.

    few: here, unless they are more bytes than Spark hands out; see `few_records`.
    """
    records = here(raw) if few else None
    return raw.mapInArrow(step, ddl) if records is None else _here(records, step)


def decoded_table(raw: DataFrame, step: Step, ddl: str, few: bool) -> pa.Table:
    """As `decoded`, in this process wherever it was decoded: for batches that are settled and written from here."""
    rows = decoded(raw, step, ddl, few)
    return rows if isinstance(rows, pa.Table) else rows.toArrow()


def few_records(planned: int | None, lake: Lake) -> bool:
    """Whether so many records, None for unknown, are decoded here. Not where `layout.light_write_rows` is less."""
    return planned is not None and planned <= min(FEW_RECORDS, lake.settings.layout.light_write_rows)


def _here(records: pa.Table, step: Step) -> pa.Table:
    # At least one batch, also of nothing: it has the columns.
    batches = records.to_batches() or [pa.RecordBatch.from_pylist([], records.schema)]
    return pa.Table.from_batches(list(step(iter(batches))))
