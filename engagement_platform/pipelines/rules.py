"""Which records of a batch are new, which are known, and which contradict one that has landed: over Arrow tables.

The first to land stays. No Spark, no I/O.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from enum import StrEnum

import pyarrow as pa

PLACE = ("topic", "partition", "offset")
LACKS = "__lacks"
"""Column of landed rows: names of the columns that were declared after the row had landed, so it never had them."""
_UNDECLARED = object()
"""What a landed row has in such a column."""

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
    of the names, and LACKS, without which none lacks any. unique: columns that name a record; none: its coordinates do.
    Those are counted anew where a topic was made anew, so that other content at a known place is a new record.
    """
    copies = copies.sort_by([(name, "ascending") for name in PLACE])
    names, known = _rows(copies, unique or PLACE), _rows(landed, unique or PLACE)
    first = defaultdict[Values, list[Values]](list)
    for name, values, lacks in zip(known, _rows(landed, content), _lacking(landed), strict=True):
        had = (_UNDECLARED if column in lacks else value for column, value in zip(content, values, strict=True))
        first[name].append(tuple(had))
    count = Counter(names)
    doubtful = [at for at, name in enumerate(names) if count[name] > 1 or name in first]
    verdicts = [Verdict.NEW.value] * len(names)
    for at, values in zip(doubtful, _rows(copies.take(pa.array(doubtful, pa.int64())), content), strict=True):
        of_name = first[names[at]]
        if not unique:
            # A row of an older declaration may be null in what was declared since, whatever LACKS has of it.
            known_place = any(_says(old, values, or_null=True) for old in of_name)
            verdicts[at] = (Verdict.KNOWN if known_place else Verdict.NEW).value
        elif of_name:
            known_name = any(_says(old, values) for old in of_name)
            verdicts[at] = (Verdict.KNOWN if known_name else Verdict.CONFLICT).value
        else:
            of_name.append(values)
    return copies.append_column("verdict", pa.array(verdicts, pa.string()))


def _says(old: Values, values: Values, *, or_null: bool = False) -> bool:
    """Whether a landed record has this content, as far as it was declared then. or_null: null is as good as that."""
    return all(
        before is _UNDECLARED or before == now or (or_null and before is None)
        for before, now in zip(old, values, strict=True)
    )


def _lacking(landed: pa.Table) -> Sequence[Sequence[str]]:
    return landed.column(LACKS).to_pylist() if LACKS in landed.column_names else [()] * landed.num_rows


def _rows(rows: pa.Table, columns: Sequence[str]) -> list[Values]:
    """Rows as tuples; the keys of a map in their order, since those of a JSON object have none."""
    values = []
    for name in columns:
        of = rows.column(name).to_pylist()
        is_map = pa.types.is_map(rows.schema.field(name).type)
        values.append([None if one is None else sorted(one) for one in of] if is_map else of)
    return list(zip(*values, strict=True))
