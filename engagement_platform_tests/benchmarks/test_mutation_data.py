"""The data set of the mutation benchmark keeps the proportions of its source."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.mutation_data import CHAINED_PERCENT, LONGEST, DataSet, Scale, apportion, shares, tally
from engagement_platform.lake.arrow import schema_of
from engagement_platform.lake.engagement import MAPPING, data_table


@pytest.fixture(scope="module")
def data_set() -> DataSet:
    """As many rows as take a moment, enough for a few requests in each larger organization."""
    return DataSet(Scale(60_000))


@pytest.fixture(scope="module")
def rows(data_set: DataSet) -> pa.Table:
    """All rows of it."""
    return pa.concat_tables(data_set.rows())


@given(st.integers(0, 10_000), st.lists(st.floats(0.01, 1e6), min_size=1, max_size=50))
def test_parts_sum_up_and_none_is_a_whole_one_away_from_its_share(total: int, weights: list[float]) -> None:
    parts = apportion(total, weights)
    assert sum(parts) == total
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - total * weight / sum(weights)) < 1 + 1e-6


@pytest.mark.parametrize("size", [300_000, 3_000_000])
def test_requests_touch_241_engagements_each_and_87_percent_of_all(size: int) -> None:
    of = shares(Scale(size))
    requests, touched = sum(one.requests for one in of), sum(one.touched for one in of)
    assert len(of) == 48
    assert sum(one.rows for one in of) == size
    assert requests == size * 36 // 10_000
    assert touched / requests == pytest.approx(241, abs=2)
    assert touched / size == pytest.approx(0.867, abs=0.005)
    small = sum(one.organization_id.endswith("-s") for one in of)
    assert small / len(of) == pytest.approx(0.90, abs=0.02)


def test_organizations_share_the_rows_as_they_share_a_days_traffic() -> None:
    of = {one.organization_id.rpartition("-")[2]: one.rows for one in shares(Scale(2_576_000))}
    assert of["xxl"] / of["s"] == pytest.approx(1_968_764 / 2_814, rel=0.01)


def test_the_rows_are_those_of_the_data_table_and_sorted_by_time(data_set: DataSet, rows: pa.Table) -> None:
    assert rows.schema == schema_of(data_table("liquid"))
    assert rows.num_rows == data_set.scale.rows
    assert pc.count_distinct(rows.column("engagement_id")).as_py() == rows.num_rows
    assert rows.column("person_id").null_count == 0
    for of in data_set.rows():
        times = of.column("engagement_ts")
        assert pc.all(pc.less_equal(times[:-1], times[1:])).as_py() in {True, None}
        assert times.cast(pa.date32()).equals(of.column("engagement_date"))


def test_a_content_is_about_150_bytes(rows: pa.Table) -> None:
    said = rows.column("engagement").slice(0, 2_000).to_pylist()
    texts = [json.dumps({**one, "attributes": dict(one["attributes"])}, separators=(",", ":")) for one in said]
    assert sum(map(len, texts)) / len(texts) == pytest.approx(150, rel=0.2)


def test_the_touched_rows_are_those_of_converted_ids(data_set: DataSet, rows: pa.Table) -> None:
    persons = zip(rows.column("organization_id").to_pylist(), rows.column("source_person_id").to_pylist(), strict=True)
    assert sum(person in data_set.ends for person in persons) == data_set.touched
    assert data_set.touched == sum(members.share.touched for members in data_set.members)


def test_three_of_ten_requests_are_in_chains_that_end_where_following_them_ends() -> None:
    data_set = DataSet(Scale(1_000_000))
    begins = {(c.organization_id, c.from_id) for c in data_set.conversions}
    inner = Counter((c.organization_id, c.to_id) in begins or c.hop > 0 for c in data_set.conversions)
    assert 100 * inner[True] / inner.total() == pytest.approx(CHAINED_PERCENT, abs=3)
    assert max(c.hop for c in data_set.conversions) == LONGEST - 1
    assert not {(organization, end) for (organization, _), end in data_set.ends.items()} & begins


def test_requests_are_executed_after_all_engagements_each_once(data_set: DataSet, rows: pa.Table) -> None:
    requests = data_set.conversion_requests()
    times = [datetime.fromisoformat(request["execution_ts"]) for request in requests]
    assert min(times) > pc.max(rows.column("engagement_ts")).as_py()
    assert len({request["request_id"] for request in requests}) == len(requests) == len(data_set.conversions)


def test_every_person_with_engagements_has_a_name(data_set: DataSet) -> None:
    for of in data_set.rows():
        names = data_set.names(of)
        assert names.schema == schema_of(MAPPING)
        assert names.column("evidence").null_count == names.num_rows, "a name is folded that no move has met"
        persons = set(of.column("source_person_id").to_pylist())
        assert set(names.column("id").to_pylist()) == persons
        assert names.num_rows == len(persons)


def test_the_tally_moves_rows_to_where_their_ids_end() -> None:
    rows = pa.table(
        {
            "organization_id": ["a", "a", "b"],
            "source_person_id": ["p", "q", "p"],
            "engagement_id": ["eng-000000001", "eng-000000002", "eng-000000004"],
        }
    )
    assert tally(rows, "source_person_id", {("a", "p"): "q"}) == {("a", "q"): (2, 3), ("b", "p"): (1, 4)}


def test_the_same_seed_makes_the_same_data(data_set: DataSet, rows: pa.Table) -> None:
    again = DataSet(data_set.scale)
    assert pa.concat_tables(again.rows()).equals(rows)
    assert again.conversion_requests() == data_set.conversion_requests()
