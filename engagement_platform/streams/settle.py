"""Which records of a batch are new, which are known, and which contradict one that has landed. Writes nothing.

The first to land stays. A record of the same name that says the same is a known duplicate, another one is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.engine.model import Manifest
from engagement_platform.lake.lake import Lake
from engagement_platform.landing.batch import COORDINATES, with_reason
from engagement_platform.sources.messages import EVENT_DATE
from engagement_platform.streams.stream import Stream

REASONS = {
    "unique_conflict": "A record of the same name has landed, or came before in this batch, and says something else.",
}

Name = tuple[object, ...]
Content = tuple[object, ...]


def settled(
    stream: Stream, decoded: pa.Table, raw: Callable[[], pa.Table], lake: Lake, manifest: Manifest
) -> tuple[pa.Table, int]:
    """Decoded records without known duplicates, those refused that contradict a landed one; and how many were known.

    raw: the same records with key and value. Looks up, in the table as pinned, the names that this batch has.
    """
    fresh = pc.is_null(decoded.column("reason_code"))
    accepted = decoded.filter(fresh)
    if not accepted.num_rows or not (stream.unique or manifest.goes_over_again):
        return decoded, 0
    if not stream.unique:
        there = set(_rows(_landed(stream, accepted, COORDINATES, (), lake, manifest), COORDINATES))
        verdicts = ["known" if place in there else "new" for place in _rows(accepted, COORDINATES)]
    else:
        landed = _landed(stream, accepted, stream.unique, stream.columns, lake, manifest)
        order = sorted(range(accepted.num_rows), key=list(_rows(accepted, COORDINATES[1:])).__getitem__)
        names, contents = _rows(accepted, stream.unique), _rows(accepted, stream.columns)
        verdicts = judged(
            names, contents, order, dict(zip(_rows(landed, stream.unique), _rows(landed, stream.columns), strict=True))
        )
    return _told_apart(decoded, fresh, verdicts, raw)


def judged(
    names: Sequence[Name], contents: Sequence[Content], order: Sequence[int], landed: Mapping[Name, Content]
) -> list[str]:
    """new, known or conflict for each record; order: their places, in the order in which they came.

    >>> judged([("a",), ("a",), ("b",), ("a",)], [(1,), (1,), (2,), (3,)], [3, 0, 1, 2], {("b",): (2,)})
    ['conflict', 'conflict', 'known', 'new']
    """
    standing = dict(landed)
    verdicts = ["new"] * len(names)
    for place in order:
        first = standing.setdefault(names[place], contents[place])
        if first is contents[place]:
            continue
        verdicts[place] = "known" if first == contents[place] else "conflict"
    return verdicts


def _told_apart(
    decoded: pa.Table, fresh: pa.ChunkedArray, verdicts: Sequence[str], raw: Callable[[], pa.Table]
) -> tuple[pa.Table, int]:
    """The verdicts are of the rows for which `fresh` is true, in their order."""
    rest = iter(verdicts)
    every = [next(rest) if accepted else "refused" for accepted in fresh.to_pylist()]
    keep = pa.array([verdict != "known" for verdict in every], pa.bool_())
    kept = decoded.filter(keep)
    conflicts = pa.chunked_array([pa.array([v == "conflict" for v in every if v != "known"], pa.bool_())])
    if pc.any(conflicts).as_py():
        code = "unique_conflict"
        kept = with_reason(kept, conflicts, code, REASONS[code], raw())
    return kept, every.count("known")


def _landed(
    stream: Stream, rows: pa.Table, names: Sequence[str], more: Sequence[str], lake: Lake, manifest: Manifest
) -> pa.Table:
    """Rows of the table, as pinned, that have one of the names in `rows`; some others may come along."""
    columns = tuple(dict.fromkeys((*names, *more)))
    where: dict[str, list[Any]] = {}
    if EVENT_DATE in stream.table.partitioned_by:
        where[EVENT_DATE] = rows.column(EVENT_DATE).unique().to_pylist()
    # One column of a name is enough to skip by: the first is the one that people think of.
    asked = names[0] if stream.unique else "offset"
    where[asked] = rows.column(asked).unique().to_pylist()
    return lake.find(stream.table, manifest.table_versions[stream.table.name], columns, where)


def _rows(rows: pa.Table, columns: Sequence[str]) -> list[tuple[object, ...]]:
    arrays = [rows.column(name).to_pylist() for name in columns]
    return list(zip(*arrays, strict=True))
