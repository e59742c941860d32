"""What a change would touch of a table and what a commit has replaced of it, by organization, from the log alone.

Reading only, through delta-rs, without a Spark job; what the log says of a table as a whole is `log`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from engagement_platform.engine.model import Transaction
from engagement_platform.lake import log
from engagement_platform.lake.log import Stored

_NOTHING = Stored(0, 0, 0)
_PARTITION = "partition.organization_id"


class Touched(NamedTuple):
    """The files of an organization."""

    stored: Stored
    """All of them."""
    touched: Stored
    """Those whose bounds of engagement_date admit a day on which rows change."""


def touched(uri: str, version: int, days: Mapping[str, Collection[date]]) -> dict[str, Touched]:
    """What changes on these days would touch, as of a version.

    days: organization -> the engagement_dates of its rows that change. A file that has no bounds counts as touched.
    Where organization_id is no partition column, an organization is said to have all files; touched are those of them
    whose bounds admit it and one of its days.
    Cost: one reading of the log, and a look at each file of these organizations.
    """
    if not days:
        return {}
    files = pa.table(DeltaTable(log.storage_uri(uri), version=version).get_add_actions(flatten=True))
    partitioned = _PARTITION in files.column_names
    names = sorted(days)
    if partitioned:
        files = files.filter(pc.is_in(files.column(_PARTITION), pa.array(names, pa.string())))
    wanted = {name: sorted(some) for name, some in days.items()}
    all_, some_ = (dict.fromkeys(names, _NOTHING) for _ in range(2))
    whole = _NOTHING
    bounds = (_bound(files, kind, column) for column in ("organization_id", "engagement_date") for kind in _BOUNDS)
    figures = (files.column(name).to_pylist() for name in ("num_records", "size_bytes"))
    for low, high, since, until, rows, size in zip(*bounds, *figures, strict=True):
        file = Stored(rows or 0, size, 1)
        whole = _and(whole, file)
        for name in _within(names, low, high):
            all_[name] = _and(all_[name], file)
            if _within(wanted[name], since, until):
                some_[name] = _and(some_[name], file)
    return {name: Touched(all_[name] if partitioned else whole, some_[name]) for name in names}


def replaced(uri: str, transactions: Iterable[Transaction]) -> Counter[str | None]:
    """Organization -> bytes of its files that these transactions have replaced; None: where no partition says whose.

    A file that stays, with rows marked in a deletion vector, is not replaced. Nothing for a transaction that made no
    commit, or whose commit is further back than `log.HISTORY_LOOKBACK`.
    """
    found: Counter[str | None] = Counter()
    for txn in transactions:
        commit = log.find_commit(uri, txn.marker)
        actions = (log.entry(uri, commit.version) or []) if commit else []
        kept = {action["add"]["path"] for action in actions if "add" in action}
        for gone in (action["remove"] for action in actions if "remove" in action):
            if gone["path"] not in kept:
                found[(gone.get("partitionValues") or {}).get("organization_id")] += int(gone.get("size") or 0)
    return found


_BOUNDS = ("min", "max")


def _bound(files: pa.Table, kind: str, column: str) -> Sequence[Any]:
    """The bound of each file; None where the log does not say."""
    known = (name for name in (f"partition.{column}", f"{kind}.{column}") if name in files.column_names)
    name = next(known, None)
    return [None] * files.num_rows if name is None else list(files.column(name).to_pylist())


def _within(values: Sequence[Any], low: Any, high: Any) -> Sequence[Any]:
    """Those of the sorted values that these bounds admit, ends included; None is open."""
    first = 0 if low is None else bisect_left(values, low)
    return values[first : len(values) if high is None else bisect_right(values, high)]


def _and(one: Stored, other: Stored) -> Stored:
    return Stored(one.rows + other.rows, one.bytes + other.bytes, one.files + other.files)
