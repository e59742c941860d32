"""The first record of a name stands, whatever types name it and however a history is cut; against a loop."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engagement_platform.pipelines.rules import LACKS, PLACE, judged
from engagement_platform.sources.column_types import SCALARS
from engagement_platform.sources.decoded_batches import arrow_type
from engagement_platform_tests.pipelines.kafka_tables.clicks import landed

NAMES: dict[str, Sequence[object]] = {
    "string": ["a", "it's", "back\\slash", "日本"],
    "long": [0, -1, 2**63 - 1, -(2**63)],
    "double": [0.1, -1.5, 1e300, 5e-324, 3.0],
    "boolean": [True, False],
    "decimal(38,3)": [Decimal("0.1"), Decimal(-1), Decimal("12345678901234567890123456789012345.678")],
    "date": [date(2026, 11, 20), date.min, date.max],
    "timestamp": [datetime(2026, 11, 20, 10, tzinfo=UTC), datetime(2000, 1, 1, 0, 0, 0, 1, tzinfo=UTC)],
}
_PLACES = [pa.field("topic", pa.string()), pa.field("partition", pa.int32()), pa.field("offset", pa.int64())]


def records(rows: Sequence[tuple[Any, ...]], *kinds: pa.DataType, first: int = 0) -> pa.Table:
    """Records of columns a, b, … from an offset on."""
    schema = pa.schema([*_PLACES, *(pa.field(name, kind) for name, kind in zip("abc", kinds, strict=False))])
    placed = [("t", 0, first + at, *row) for at, row in enumerate(rows)]
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in placed], schema)


def verdicts(copies: pa.Table, known: pa.Table, unique: Sequence[str]) -> list[str]:
    found = judged(copies, known, unique, [name for name in copies.column_names if name not in PLACE])
    return list(found.column("verdict").to_pylist())


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), max_size=12), st.integers(0, 12))
@settings(deadline=None)
def test_the_first_of_a_name_stands_however_a_history_is_cut(history: list[tuple[str, int]], cut: int) -> None:
    kinds = (pa.string(), pa.int64())
    known, found = records([], *kinds), dict[str, list[str]]()
    for first, part in ((0, history[:cut]), (cut, history[cut:])):
        copies = records(part, *kinds, first=first)
        told = judged(copies.take(pa.array(range(len(part))[::-1], pa.int64())), known, ["a"], ["a", "b"])
        assert told.column("offset").to_pylist() == copies.column("offset").to_pylist()
        for row in told.to_pylist():
            found.setdefault(row["verdict"], []).append(row["a"])
        new = pa.array([verdict == "new" for verdict in told.column("verdict").to_pylist()], pa.bool_())
        known = pa.concat_tables([known, told.filter(new).drop_columns(["verdict"])])
    messages = [{"click_id": name, "price": price} for name, price in history]
    assert tuple(found.get(verdict, []) for verdict in ("new", "known", "conflict")) == landed(messages)


def test_every_type_that_may_name_a_record_is_tried() -> None:
    assert {kind.partition("(")[0] for kind in NAMES} == {*SCALARS, "decimal"}


@pytest.mark.parametrize("kind", NAMES)
def test_what_landed_is_known_and_what_contradicts_it_is_refused_whatever_type_names_it(kind: str) -> None:
    kinds, names = (arrow_type(kind), pa.int64()), NAMES[kind]
    once = records([(name, 1) for name in names], *kinds)
    other = records([(name, 2) for name in names], *kinds, first=len(names))
    assert verdicts(once, once.slice(0, 0), ["a"]) == ["new"] * len(names)
    assert verdicts(once, once, ["a"]) == ["known"] * len(names)
    assert verdicts(other, once, ["a"]) == ["conflict"] * len(names)


def test_nested_content_is_compared_whole() -> None:
    kinds = (pa.string(), arrow_type("struct<a:array<long>,b:map<string,string>>"))
    known = records([("x", {"a": [1, None], "b": {"k": "v"}})], *kinds)
    same, other, less = known, {"a": [None, 1], "b": {"k": "v"}}, {"a": [1, None], "b": None}
    assert verdicts(same, known, ["a"]) == ["known"]
    assert verdicts(records([("x", other), ("x", less)], *kinds), known, ["a"]) == ["conflict"] * 2


def test_the_keys_of_a_map_have_no_order() -> None:
    kinds = (pa.string(), arrow_type("map<string,string>"))
    known = records([("x", [("k", None), ("l", "2")])], *kinds)
    assert verdicts(records([("x", [("l", "2"), ("k", None)])], *kinds), known, ["a"]) == ["known"]
    assert verdicts(records([("x", []), ("x", None)], *kinds), known, ["a"]) == ["conflict"] * 2


def test_what_was_declared_after_a_row_had_landed_is_not_compared_with_it() -> None:
    kinds = (pa.string(), pa.int64(), pa.int64())
    rows = records([("x", 1, None), ("y", 1, None)], *kinds)
    known = rows.append_column(LACKS, pa.array([["c"], []], pa.list_(pa.string())))
    again = records([("x", 1, 5), ("x", 2, None), ("y", 1, 5), ("y", 1, None)], *kinds)
    assert verdicts(again, known, ["a"]) == ["known", "conflict", "conflict", "known"]


def test_where_nothing_names_a_record_its_place_does_unless_the_topic_was_made_anew() -> None:
    kinds = (pa.string(), pa.int64())
    known = records([("a", 1), ("b", None)], *kinds)
    again = records([("a", 1), ("b", 2), ("a", 1)], *kinds)
    assert verdicts(again, known, []) == ["known", "known", "new"], "b was declared after the second had landed"
    anew = records([("x", 1), ("b", None)], *kinds)
    assert verdicts(anew, known, []) == ["new", "known"]
