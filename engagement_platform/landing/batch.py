"""One batch of decoded records in this process: accepted, refused, and the figures that people ask of both.

Decoding them is `sources`, and which of them are refused after all is for the packages that know the rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.engine.model import Manifest
from engagement_platform.lake.lake import Lake

COORDINATES = ("topic", "partition", "offset")
_QUANTILES = tuple(i / 20 for i in range(21))


@dataclass(frozen=True)
class DecodedBatch:
    """Decoded records of one batch, in this process: a batch is bounded in rows and bytes, and decoded in Spark."""

    lake: Lake
    manifest: Manifest
    decoded: pa.Table
    """All records but known duplicates; reason_code is null for accepted ones."""
    duplicates: int

    @cached_property
    def rejected(self) -> pa.Table:
        """Records for quarantine, of which some may be there already when old records are gone over again."""
        return self.decoded.filter(self.decoded.column("reason_code").is_valid())

    @cached_property
    def accepted(self) -> pa.Table:
        """Records that land."""
        return self.decoded.filter(self.decoded.column("reason_code").is_null())

    @property
    def by_reason(self) -> dict[str, int]:
        """Reason code -> rejected records."""
        counted = self.rejected.group_by("reason_code").aggregate([([], "count_all")]).to_pylist()
        return {row["reason_code"]: row["count_all"] for row in counted}

    @property
    def produced_quantiles_ms(self) -> list[int]:
        """Of the production times, for freshness."""
        times = self.decoded.column("produced_ts").drop_null().cast(pa.int64()).to_numpy()
        return [int(at) // 1000 for at in np.quantile(times, _QUANTILES)] if len(times) else []


def with_reason(decoded: pa.Table, refused: pa.ChunkedArray, code: str, reason: str, raw: pa.Table) -> pa.Table:
    """Some rows as decoding would have refused them: with the whole record.

    refused: which, true or false for each row. raw: the same records with key and value, which decoding keeps of those
    only that it refused itself.
    """
    place = {(row["partition"], row["offset"]): n for n, row in enumerate(raw.select(COORDINATES[1:]).to_pylist())}
    order = [place[row["partition"], row["offset"]] for row in decoded.select(COORDINATES[1:]).to_pylist()]
    whole = raw.take(pa.array(order, pa.int64()))
    said = {"key": whole.column("key"), "value": whole.column("value"), "reason_code": code, "reason": reason}
    for name, value in said.items():
        column = pc.if_else(refused, value, decoded.column(name))
        decoded = decoded.set_column(
            decoded.column_names.index(name), name, column.cast(decoded.schema.field(name).type)
        )
    return decoded
