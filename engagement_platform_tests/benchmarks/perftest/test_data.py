"""Made rows are as they are told: spread over all days, no key twice, the same from the same seed."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.perftest.data import BEGIN, Generated, Records


def days(rows: pa.Table, base: pa.Table) -> int:
    """Different days of the records of the base that changes meet."""
    met = base.filter(pc.is_in(base.column("record_id"), rows.column("record_id").combine_chunks()))
    return int(pc.count_distinct(met.column("joined")).as_py())


def test_fifty_thousand_changes_meet_two_thousand_days() -> None:
    scale = Generated(base_rows=100_000, changes=50_000, dates=2_000)
    base, changes = pa.concat_tables(Records(scale).base()), Records(scale).changes(0)
    assert changes.num_rows == 50_000
    assert days(changes, base) == 2_000
    ops = {row["values"]: row["counts"] for row in pc.value_counts(changes.column("op")).to_pylist()}
    assert ops == {"UPDATE": 47_000, "INSERT": 2_500, "DELETE": 500}
    assert pc.min(base.column("joined")).as_py() == BEGIN
    # Some 364 bytes a row, as the source counted.
    assert 350 < base.nbytes / base.num_rows < 380


@settings(deadline=None, max_examples=30)
@given(
    st.integers(1, 400), st.integers(1, 60), st.integers(1, 50), st.integers(0, 100), st.integers(0, 30),
    st.integers(1, 16),
)  # fmt: skip
def test_a_batch_has_no_key_twice_and_inserts_are_new(
    base_rows: int, changes: int, dates: int, inserts: int, deletes: int, regions: int
) -> None:
    scale = Generated(
        base_rows=base_rows, changes=changes, dates=dates, insert_percent=inserts, delete_percent=deletes,
        regions=regions,
    )  # fmt: skip
    records = Records(scale)
    base = pa.concat_tables(records.base())
    known = set(base.column("record_id").to_pylist())
    region_of = dict(zip(base.column("record_id").to_pylist(), base.column("region").to_pylist(), strict=True))
    changing = {f"r{n:02d}" for n in range(regions)}
    assert len(known) == base_rows
    for batch in range(2):
        rows = records.changes(batch)
        keys, ops = rows.column("record_id").to_pylist(), rows.column("op").to_pylist()
        assert len(set(keys)) == len(keys) <= changes
        met = {key for key, op in zip(keys, ops, strict=True) if op != "INSERT"}
        assert met <= known
        assert {region_of[key] for key in met} <= changing
        inserted = set(keys) - met
        assert not inserted & known
        assert {region for region in rows.column("region").to_pylist() if region is not None} <= changing
        if regions == 16:
            assert days(rows, base) == min(len(met), len(set(base.column("joined").to_pylist())))
        known |= inserted
