"""Which records of a batch are new, which are known, and which contradict one that has landed: over Arrow tables.

The first to land stays. No Spark, no I/O.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from enum import StrEnum

import pyarrow as pa

PLACE = ("topic", "partition", "offset")

Values = tuple[object, ...]


class Verdict(StrEnum):
    """What becomes of a record."""

    NEW = "new"
    KNOWN = "known"
    """A record of the same name has the same content."""
    CONFLICT = "conflict"
    """A record of the same name has other content."""


def judged(copies: pa.Table, landed: pa.Table, unique: Sequence[str], content: Sequence[str]) -> pa.Table:
    """The records of a batch with their `verdict`, in the order of their Kafka coordinates.

    copies: PLACE, `unique` and `content`. landed: the same columns of rows that the table has, at least those with one
    of the names. unique: columns that name a record; none: its coordinates do. Those are counted anew where a topic was
    made anew, so that other content at a known place is a new record.
    """
    copies = copies.sort_by([(name, "ascending") for name in PLACE])
    names, known = _rows(copies, unique or PLACE), _rows(landed, unique or PLACE)
    first = defaultdict[Values, list[Values]](list)
    for name, values in zip(known, _rows(landed, content), strict=True):
        first[name].append(values)
    count = Counter(names)
    doubtful = [at for at, name in enumerate(names) if count[name] > 1 or name in first]
    verdicts = [Verdict.NEW.value] * len(names)
    for at, values in zip(doubtful, _rows(copies.take(pa.array(doubtful, pa.int64())), content), strict=True):
        of_name = first[names[at]]
        if not unique:
            verdicts[at] = (Verdict.KNOWN if any(_says(old, values) for old in of_name) else Verdict.NEW).value
        elif of_name:
            verdicts[at] = (Verdict.KNOWN if values in of_name else Verdict.CONFLICT).value
        else:
            of_name.append(values)
    return copies.append_column("verdict", pa.array(verdicts, pa.string()))


def _says(old: Values, values: Values) -> bool:
    """Whether a landed record has this content; a column that was declared later is null in it."""
    return all(before in (None, now) for before, now in zip(old, values, strict=True))


def _rows(rows: pa.Table, columns: Sequence[str]) -> list[Values]:
    """Rows as tuples; the keys of a map in their order, since those of a JSON object have none."""
    values = []
    for name in columns:
        of = rows.column(name).to_pylist()
        is_map = pa.types.is_map(rows.schema.field(name).type)
        values.append([None if one is None else sorted(one) for one in of] if is_map else of)
    return list(zip(*values, strict=True))
