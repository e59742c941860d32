"""Which records of a batch are new, which are known, and which contradict one that has landed: over Arrow tables.

The first to land stays. No Spark, no I/O.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from enum import StrEnum

import pyarrow as pa

PLACE = ("topic", "partition", "offset")
_IN_ORDER = [(name, "ascending") for name in PLACE]

Values = tuple[object, ...]


class Verdict(StrEnum):
    """What becomes of a record."""

    NEW = "new"
    KNOWN = "known"
    """It says what a record of the same name says."""
    UNIQUE_CONFLICT = "unique_conflict"
    """It says something else."""


REASONS = {
    Verdict.UNIQUE_CONFLICT: "A record of the same name has landed, or came before in this batch, and says "
    "something else.",
}


def judged(copies: pa.Table, landed: pa.Table, unique: Sequence[str], content: Sequence[str]) -> pa.Table:
    """The records of a batch with their `verdict`, in the order of their Kafka coordinates.

    copies: PLACE and `content`, which has `unique`. landed: the same columns of rows that the table has, at least those
    with one of the names. unique: columns that name a record; none: its coordinates do. Those are counted anew where a
    topic was made anew, so that other content at a known place is a new record.
    """
    copies = copies.sort_by(_IN_ORDER)
    names, known = _rows(copies, unique or PLACE), _rows(landed, unique or PLACE)
    standing = defaultdict[Values, list[Values]](list)
    for name, values in zip(known, _rows(landed, content), strict=True):
        standing[name].append(values)
    count = Counter(names)
    doubtful = [at for at, name in enumerate(names) if count[name] > 1 or name in standing]
    verdicts = [Verdict.NEW.value] * len(names)
    judge = _named if unique else _placed
    for at, values in zip(doubtful, _rows(copies.take(pa.array(doubtful, pa.int64())), content), strict=True):
        verdicts[at] = judge(values, standing[names[at]]).value
    return copies.append_column("verdict", pa.array(verdicts, pa.string()))


def _named(values: Values, standing: list[Values]) -> Verdict:
    if not standing:
        standing.append(values)
        return Verdict.NEW
    return Verdict.KNOWN if values in standing else Verdict.UNIQUE_CONFLICT


def _placed(values: Values, standing: list[Values]) -> Verdict:
    """A column that was declared later is null in what landed before."""
    same = (all(old in (None, new) for old, new in zip(landed, values, strict=True)) for landed in standing)
    return Verdict.KNOWN if any(same) else Verdict.NEW


def _rows(rows: pa.Table, columns: Sequence[str]) -> list[Values]:
    return list(zip(*(rows.column(name).to_pylist() for name in columns), strict=True))
