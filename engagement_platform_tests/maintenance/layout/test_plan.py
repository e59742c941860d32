"""Which slices are worth doing, in which order, within which budget; against loops that anybody believes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engagement_platform.lake.log import Value
from engagement_platform.maintenance.layout import plan, statistics
from engagement_platform.maintenance.layout.delta_log import Recent
from engagement_platform.maintenance.layout.files import Shape
from engagement_platform.maintenance.layout.plan import FIXED_S, TOGETHER_S, Slice, ordered, presses, together, within
from engagement_platform.maintenance.layout.survey import Survey, Target, fingerprint
from engagement_platform.settings import HealthSettings, Settings
from engagement_platform_tests.maintenance.layout import logs

MIB = 1024**2
TABLE = Target("engagement/data", "/lake/engagement/data")

File = tuple[int, int, int]
"""Bytes, first and last day."""


def surveyed(
    partitions: dict[str, list[File]],
    target: int = 128 * MIB,
    clustering: str | None = "engagement_date",
    *,
    append_only: bool = False,
) -> Survey:
    """A table with these files, one partition for each organization."""
    live = logs.live(
        (f"organization_id={name}", size, (first, last)) for name, of in partitions.items() for size, first, last in of
    )
    summed = statistics.by_partition(live, small_file_bytes=1, target_file_bytes=target, clustered=True)
    where = {f"organization_id={name}": (Value("organization_id", name, "string"),) for name in partitions}
    properties = {"delta.appendOnly": "true"} if append_only else {}
    shape = Shape(7, ("organization_id",), properties, {}, {}, deletion_vectors=False)
    return Survey(TABLE, shape, Recent(7, None, (), {}), clustering, target, live, summed, where)


def chosen(survey: Survey, last: dict[str, str] | None = None, depth: int = 10) -> dict[str, Slice]:
    settings = Settings(health=HealthSettings(max_overlap_depth=depth))
    return {one.partition.partition("=")[2]: one for one in plan.slices(survey, settings, last or {})}


def small(count: int) -> list[File]:
    return [(7 * 1024, 0, 90)] * count


def test_a_partition_of_many_small_files_is_merged_and_ordered_into_one() -> None:
    one = chosen(surveyed({"org": small(175)}))["org"]
    assert (one.action, one.order_by) == ("zorder", "engagement_date")
    assert (one.gain.files_before, one.gain.files_after, one.gain.bytes_to_rewrite) == (175, 1, 175 * 7 * 1024)
    assert "up to 175 of 175 files" in one.why


@pytest.mark.parametrize("files", [[], [(1000, 0, 90)], [(128 * MIB, i * 9, i * 9 + 8) for i in range(10)]])
def test_what_cannot_get_better_is_left_alone(files: list[File]) -> None:
    assert chosen(surveyed({"org": files, "other": small(2)})).keys() == {"other"}


def test_a_large_ordered_partition_has_only_its_new_small_files_merged() -> None:
    ordered_files = [(128 * MIB, i * 3, i * 3 + 2) for i in range(80)]
    one = chosen(surveyed({"org": ordered_files + small(8)}))["org"]
    assert (one.action, one.gain.bytes_to_rewrite) == ("optimize", 8 * 7 * 1024)
    assert one.why.endswith("merging those is enough")


def test_ranges_that_lie_too_deep_are_ordered_anew_even_without_small_files() -> None:
    one = chosen(surveyed({"org": [(128 * MIB, 0, 90)] * 20}))["org"]
    assert (one.action, one.gain.bytes_to_rewrite) == ("zorder", 20 * 128 * MIB)


def test_one_small_file_beside_a_nearly_full_one_waits_for_more() -> None:
    assert not chosen(surveyed({"org": [(100 * MIB, 0, 9), (7 * 1024, 10, 11)]}))
    assert chosen(surveyed({"org": [(100 * MIB, 0, 9), (7 * 1024, 10, 11), (7 * 1024, 10, 11)]}))


def test_a_table_without_an_order_is_merged() -> None:
    one = chosen(surveyed({"org": small(9)}, clustering=None, append_only=True))["org"]
    assert (one.action, one.order_by, one.append_only) == ("optimize", None, True)


def test_a_partition_with_the_files_its_last_rewrite_left_is_left_alone() -> None:
    survey, key = surveyed({"org": small(3)}), "organization_id=org"
    assert not chosen(survey, {key: fingerprint(survey.paths(key))})
    assert chosen(survey, {key: fingerprint(surveyed({"org": small(2)}).paths(key))}), "a file came"


def test_what_saves_most_for_its_time_comes_first_and_equals_by_name() -> None:
    files = {"few": small(3), "many": small(150), "large": [(40 * MIB, 0, 90)] * 3, "b": small(20), "a": small(20)}
    names = [one.partition.partition("=")[2] for one in ordered(chosen(surveyed(files)).values())]
    assert names == ["many", "a", "b", "few", "large"]


def test_what_saves_enough_files_for_its_time_is_not_left_for_the_night() -> None:
    found = chosen(surveyed({"few": small(99), "just": small(101), "large": [(4 * MIB, 0, 90)] * 101}))
    assert found["just"].seconds < 10 < found["large"].seconds
    assert [name for name, one in found.items() if presses(one, 100)] == ["just"]
    assert presses(found["few"], 98)


@given(st.lists(st.floats(0.01, 50), max_size=12), st.floats(0, 100))
def test_a_plan_is_the_longest_beginning_that_fits_and_never_empty(seconds: list[float], budget: float) -> None:
    one = chosen(surveyed({"org": small(9)}))["org"]
    found = [replace(one, seconds=s, partition=str(i)) for i, s in enumerate(seconds)]
    done, left = within(found, budget)
    count = 0
    while count < len(seconds) and (count == 0 or sum(seconds[: count + 1]) <= budget):
        count += 1
    assert done == found[:count]
    assert [item.slice for item in left] == found[count:]


@st.composite
def tables(draw: st.DrawFn) -> dict[str, list[File]]:
    size = st.integers(1, 3_000)
    days = st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted)
    files = st.lists(st.builds(lambda b, d: (b, d[0], d[1]), size, days), min_size=1, max_size=30)
    return draw(st.dictionaries(st.sampled_from("abcdef"), files, min_size=1))


@given(tables())
def test_every_slice_saves_files_or_opens_and_pays_for_its_bytes(partitions: dict[str, list[File]]) -> None:
    for name, one in chosen(surveyed(partitions, 1_000), depth=3).items():
        files = partitions[name]
        mergeable = [f for f in files if f[0] < 1_000]
        assert len(mergeable) >= 2 or depth(files) > 3
        assert one.gain.saved > 0
        rewritten = files if one.action == "zorder" else mergeable
        assert one.gain.bytes_to_rewrite == sum(f[0] for f in rewritten)
        assert one.gain.files_before == len(files)
        assert one.gain.files_after >= 1


def test_days_of_a_table_that_is_only_appended_to_are_merged_by_one_statement_up_to_a_minute_of_work() -> None:
    [day] = chosen(surveyed({"org": small(3)}, clustering=None, append_only=True)).values()
    days = [replace(day, partition=f"{n}", seconds=FIXED_S + seconds) for n, seconds in enumerate((1, 58, 1, 90, 1, 2))]
    other = Target("game/login", "/lake/game/login")
    alone = [
        replace(day, append_only=False), replace(day, order_by="at"), replace(day, where=()),
        replace(day, where=day.where * 2),
    ]  # fmt: skip
    some = [*days[:2], replace(day, table=other), *alone, *days[2:], replace(day, table=other)]
    assert [len(one) for one in together(some)] == [3, 2, 1, 1, 1, 1, 1, 2]
    assert [one.partition for one in together(days)[0]] == ["0", "1", "2"]
    for one in together(some):
        assert len({(each.table, each.target_file_bytes) for each in one}) == 1
        assert len(one) == 1 or sum(each.seconds - FIXED_S for each in one) <= TOGETHER_S
    assert sorted(map(id, (each for one in together(some) for each in one))) == sorted(map(id, some))


def depth(files: list[File]) -> int:
    """Most files that hold one same day; a file that ends where another begins does not overlap with it."""
    most = 0
    for value in {file[1] for file in files}:
        holds = [f for f in files if (f[1] == f[2] == value) or (f[1] <= value < f[2])]
        most = max(most, len(holds))
    return most
