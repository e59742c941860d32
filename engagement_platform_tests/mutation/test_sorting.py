"""Requests sorted out as columns: the same as one by one, whatever shares an id or was known."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from engagement_platform.mutation.sorting import sorted_rows
from hypothesis import given
from hypothesis import strategies as st

from engagement_platform.lake.arrow import schema_of, table_of
from engagement_platform.lake.engagement import ALIAS, AMENDMENT, MUTATION_REQUEST
from engagement_platform.pipelines.mutations.requests import FIELDS, Request, Verdict, judge

# Few ids and times, so that they meet.
MOMENTS = [datetime(2026, 11, 20, 12, tzinfo=UTC), datetime(2026, 11, 20, 12, microsecond=1, tzinfo=UTC)]
REQUESTS = st.fixed_dictionaries(
    {
        "organization_id": st.sampled_from(["a", "b"]),
        "request_id": st.sampled_from([f"r{n}" for n in range(8)]),
        "operation": st.sampled_from(["CONVERT", "DELETE", "UPDATE"]),
        "from_id": st.sampled_from([None, "p1", "p2"]),
        "attributes": st.sampled_from([None, [], [("k", "1")], [("k", None), ("l", "2")], [("l", "2"), ("k", None)]]),
        "set_null": st.sampled_from([None, [], ["channel", "subject"], ["subject", "channel"]]),
        "execution_ts": st.sampled_from(MOMENTS),
    }
)


def known_as(rows: list[dict[str, Any]]) -> pa.Table:
    """As the logs have them: conversions in one, all else in another."""
    aliases = [row for row in rows if row["operation"] != "UPDATE"]
    amendments = [row for row in rows if row["operation"] == "UPDATE"]
    of = [table_of(aliases, ALIAS), table_of(amendments, AMENDMENT)]
    return pa.concat_tables(of, promote_options="default")


@given(
    st.lists(REQUESTS, max_size=12),
    st.lists(REQUESTS, max_size=4, unique_by=lambda r: (r["organization_id"], r["request_id"])),
)
def test_sorting_columns_is_judging_each_request(rows: list[dict[str, Any]], before: list[dict[str, Any]]) -> None:
    # The logs have no attributes of conversions: decoding takes away what an operation does not use.
    for row in (*rows, *before):
        row.update({} if row["operation"] == "UPDATE" else {"attributes": None, "set_null": None})
    landed = table_of(rows, MUTATION_REQUEST, *FIELDS)
    verdicts = judge(map(Request.of, landed.to_pylist()), map(Request.of, known_as(before).to_pylist()))
    found = sorted_rows(landed, known_as(before))
    expected = [row for row, verdict in zip(landed.to_pylist(), verdicts, strict=True) if verdict == "accepted"]
    assert found.accepted.to_pylist() == expected
    assert found.duplicates == verdicts.count(Verdict.DUPLICATE)
    assert found.rejected == [(n, v) for n, v in enumerate(verdicts) if v not in {"accepted", "duplicate"}]


def test_no_request_and_no_history_are_nothing_to_sort() -> None:
    nothing = schema_of(MUTATION_REQUEST, *FIELDS).empty_table()
    found = sorted_rows(nothing, known_as([]))
    assert (found.accepted.num_rows, found.duplicates, found.rejected) == (0, 0, [])
