"""Requests judged as columns: the same as one by one, whatever shares an id or was known."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from engagement_platform.lake.arrow import schema_of, table_of
from engagement_platform.lake.engagement import MUTATION_REQUEST
from engagement_platform.pipelines.mutations.requests import FIELDS, Request, judge, judged
from engagement_platform_tests.pipelines.mutations.histories import Message, convert

# Few ids and times, so that they meet.
MOMENTS = [datetime(2026, 11, 20, 12, tzinfo=UTC), datetime(2026, 11, 20, 12, microsecond=1, tzinfo=UTC)]
PLACE = ("topic", "partition", "offset")
REQUESTS = st.fixed_dictionaries(
    {
        "request_id": st.sampled_from([f"r{n}" for n in range(8)]),
        "operation": st.sampled_from(["CONVERT", "DELETE", "UPDATE"]),
        "from_id": st.sampled_from([None, "p1", "p2"]),
        "attributes": st.sampled_from([None, [], [("k", "1")], [("k", None), ("l", "2")], [("l", "2"), ("k", None)]]),
        "set_null": st.sampled_from([None, [], ["channel", "subject"], ["subject", "channel"]]),
        "execution_ts": st.sampled_from(MOMENTS),
    }
)


def table(rows: list[dict[str, Any]]) -> pa.Table:
    of = [{"organization_id": "a", "topic": "t", "partition": 0, "offset": n, **row} for n, row in enumerate(rows)]
    return table_of(of, MUTATION_REQUEST, *PLACE, *FIELDS)


@given(
    st.lists(REQUESTS, max_size=12),
    st.lists(REQUESTS, max_size=4, unique_by=lambda r: str(r["request_id"])),
    st.randoms(use_true_random=False),
)
def test_judging_columns_is_judging_each_request(
    rows: list[dict[str, Any]], before: list[dict[str, Any]], rng: Any
) -> None:
    landed, known = table(rows), table(before)
    verdicts = judge(map(Request.of, landed.to_pylist()), map(Request.of, known.to_pylist()))
    in_any_order = landed.take(pa.array(rng.sample(range(landed.num_rows), landed.num_rows), pa.int64()))
    found = judged(in_any_order, known.select(FIELDS))
    assert found.column("verdict").to_pylist() == [verdict.value for verdict in verdicts]
    assert found.drop_columns(["verdict"]).to_pylist() == landed.to_pylist()


def test_no_request_and_no_history_are_nothing_to_judge() -> None:
    nothing = schema_of(MUTATION_REQUEST, *PLACE, *FIELDS).empty_table()
    assert judged(nothing, nothing.select(FIELDS)).num_rows == 0


def test_the_first_of_each_request_id_counts_whatever_comes_with_it_later() -> None:
    def of(message: Message) -> Request:
        return Request.of({**message, "execution_ts": datetime.fromisoformat(message["execution_ts"])})

    first, other, known = convert("c1", "p1", "p2", 0), convert("c1", "p1", "p3", 0), convert("c2", "a", "b", 1)
    verdicts = judge(map(of, [first, other, first, known]), [of(known)])
    assert verdicts == ["accepted", "request_conflict", "duplicate", "duplicate"]
