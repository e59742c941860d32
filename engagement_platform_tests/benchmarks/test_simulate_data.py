"""The days of the simulation hold what their proportions say, and every message once."""

from __future__ import annotations

from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from benchmarks.mutation_data import BEGIN, DataSet, Scale, tally
from benchmarks.simulate_data import LATEST, Days


@pytest.fixture(scope="module")
def days() -> Days:
    """A few days of a few thousand rows."""
    return Days(Scale(6_000, organizations=12, days=12), batches=3, late_percent=5)


def test_every_engagement_lands_once_and_never_before_it_happens(days: Days) -> None:
    landed = [pa.concat_tables(days.landed(day)) for day in range(12)]
    ids = pa.concat_tables(landed).column("engagement_id")
    assert sorted(ids.to_pylist()) == sorted(days.rows.column("engagement_id").to_pylist())
    for day, rows in enumerate(landed):
        dates = rows.column("engagement_date")
        today = (BEGIN + timedelta(days=day)).date()
        assert pc.max(dates).as_py() <= today
        assert pc.min(dates).as_py() >= today - timedelta(days=LATEST)


def test_one_in_twenty_lands_late_until_the_days_are_over(days: Days) -> None:
    late = sum(
        pc.sum(pc.less(rows.column("engagement_date"), pa.scalar((BEGIN + timedelta(days=day)).date()))).as_py() or 0
        for day in range(12)
        for rows in days.landed(day)
    )
    # Those of the last day cannot be late any more.
    assert 0.035 <= late / 6_000 <= 0.05


def test_every_conversion_comes_on_one_day_under_its_own_id(days: Days) -> None:
    requests = [request for day in range(12) for request in days.requests(day)]
    assert len({request["request_id"] for request in requests}) == len(requests) == len(days.data_set.conversions)
    converted = {(request["organization_id"], request["from_id"]) for request in requests}
    assert converted == {(one.organization_id, one.from_id) for one in days.data_set.conversions}


def test_expected_is_what_a_replay_of_the_days_leaves(days: Days) -> None:
    found = {}
    for row in days.rows.select(["organization_id", "source_person_id", "engagement_id", "engagement_ts"]).to_pylist():
        person = row["source_person_id"]
        for day in range(12):
            if row["engagement_ts"] < BEGIN + timedelta(days=day + 1):
                for one in sorted(days.conversions(day), key=lambda one: one.hop):
                    if (one.organization_id, one.from_id) == (row["organization_id"], person):
                        person = one.to_id
        found[row["engagement_id"]] = row["organization_id"], person
    organizations, persons = zip(*(found[one] for one in days.rows.column("engagement_id").to_pylist()), strict=True)
    moved = pa.table(
        {
            "organization_id": pa.array(organizations),
            "person_id": pa.array(persons),
            "engagement_id": days.rows.column("engagement_id"),
        }
    )
    assert tally(moved, "person_id") == days.expected()


def test_what_happens_after_midnight_is_after_every_hop_of_the_day_before() -> None:
    days = Days(Scale(100_000, days=30), batches=1, late_percent=5)
    executed = {}
    for n in range(days.scale.days):
        for request in days.requests(n):
            at = datetime.fromisoformat(request["execution_ts"])
            executed[request["organization_id"], request["from_id"]] = n, at
    assert max(one.hop for one in days.data_set.conversions) > 1
    names = ["organization_id", "source_person_id", "engagement_ts"]
    for row in days.rows.select(names).to_pylist():
        if found := executed.get((row["organization_id"], row["source_person_id"])):
            day, at = found
            assert (row["engagement_ts"] < at) == (row["engagement_ts"] < BEGIN + timedelta(days=day + 1))


def test_the_same_seed_makes_the_same_days(days: Days) -> None:
    again = Days(days.scale, 3, 5)
    assert pa.concat_tables(again.landed(3)).equals(pa.concat_tables(days.landed(3)))
    assert again.requests(3) == days.requests(3)


def test_a_sample_keeps_the_rows_and_takes_that_share_of_the_conversions() -> None:
    from benchmarks.lakes import sampled

    whole = DataSet(Scale(30_000, organizations=12))
    assert whole.touched > 0
    some = sampled(whole, 10)
    assert len(some.conversions) == round(len(whole.conversions) / 10)
    assert pa.concat_tables(some.rows()).equals(pa.concat_tables(whole.rows()))
    assert set(some.ends) <= set(whole.ends)
    assert 0 < some.touched < whole.touched
