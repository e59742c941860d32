"""Rows of a table that lie between two times, in this process: what a batch compares its own rows with.

Files whose bounds lie outside are not read, so it costs what lies in between. By values: `Lake.find`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import pyarrow as pa
from pyspark.sql import functions as F

from engagement_platform.lake import light
from engagement_platform.lake.contract import Table
from engagement_platform.lake.lake import Lake


def within(
    lake: Lake, table: Table, version: int, columns: Sequence[str], by: str, first: datetime, last: datetime
) -> pa.Table:
    """The given columns of the rows of a pinned version whose column `by` is a time from first to last, in UTC."""
    found = light.opened(lake.uri(table), table, version) if lake.is_local else None
    if found is not None:
        return light.find(found, columns, {}, {by: (first, last)})
    return lake.read(table, version).where(F.col(by).between(first, last)).select(*columns).toArrow()
