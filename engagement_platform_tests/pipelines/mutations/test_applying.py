"""What one batch of requests does to the tables: rows, names, notifications, files, quarantine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from engagement_platform.mutation import few
from engagement_platform.mutation.strategy import choose, summarized

from engagement_platform.jobs import INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS
from engagement_platform.lake.engagement import ALIAS, MAPPING, NOTIFICATION, OPERATION, PENDING, QUARANTINE
from engagement_platform.lake.log import Stored
from engagement_platform.pipelines.mutations.move import REMATERIALIZE_ALIASES
from engagement_platform.pipelines.mutations.requests import Request, judge
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.settings import ApplyStrategy, LayoutSettings, MutationSettings
from engagement_platform_tests.daily import every_third_day, of_today
from engagement_platform_tests.ingestion.conftest import MakeWorld
from engagement_platform_tests.ingestion.world import World
from engagement_platform_tests.pipelines.mutations.histories import Message, convert, delete, engagement, request

broker = pytest.mark.broker

LARGE = Stored(10_000_000, 10**9, 8)


def apply(world: World, requests: Sequence[Message], observe: Any = None) -> Any:
    """The requests land and are applied in one batch; its report."""
    world.produce_requests(requests)
    world.run(name=INGEST_MUTATION_REQUESTS)
    (report,) = world.run(observe or (lambda _point: None), name=APPLY_MUTATIONS)
    return report


def ingest(world: World, *engagements: Message) -> None:
    world.produce(engagements)
    world.run(name=INGEST_ENGAGEMENTS)


def persons(world: World) -> dict[str, str]:
    return {row["engagement_id"]: row["person_id"] for row in world.current()}


@broker
def test_a_chain_moves_each_row_once_to_its_end_and_tells_where_it_was(world: World) -> None:
    """id1 → id2 → id3 → id4, of which a plain MERGE makes id2, id3 and id4."""
    ingest(world, *(engagement(f"e{n}", f"id{n}", 10) for n in (1, 2, 3)))
    passed: list[str] = []
    report = apply(world, [convert(f"c{n}", f"id{n}", f"id{n + 1}", 10 + n) for n in (1, 2, 3)], passed.append)
    assert persons(world) == {"e1": "id4", "e2": "id4", "e3": "id4"}
    moved = [row for row in world.rows(NOTIFICATION) if row["change_type"] == "UPDATE"]
    assert {(row["engagement_id"], row["previous_person_id"], row["person_id"]) for row in moved} == {
        ("e1", "id1", "id4"),
        ("e2", "id2", "id4"),
        ("e3", "id3", "id4"),
    }
    counts, details = report.counts, report.details
    assert (counts["conversions"], counts["operations"], counts["updated"]) == (3, 3, 3)
    assert (details["chains"], details["longest_chain"]) == (1, 3)
    assert counts["files_rewritten"] == 1
    assert counts["bytes_rewritten"] > 0
    assert counts["bytes_changed"] > 0
    chosen = details["strategies"]["merge"]
    assert (chosen["organizations"], chosen["touched_files"]) == (1, 1)
    assert chosen["measured_bytes"] == chosen["expected_bytes"] > 0
    assert passed.index("data.rows:after") < passed.index("notification.append:before"), "told before it can be seen"
    assert len(world.rows(OPERATION)) == 3
    assert {row["request_id"] for row in world.rows(ALIAS)} == {"c1", "c2", "c3"}


@broker
def test_a_rename_writes_one_row_of_the_mapping_and_no_file_of_the_data_table(world: World) -> None:
    ingest(world, *(engagement(f"e{n}", "p1", 10 + n, person_name="Ann") for n in range(5)))
    data, mapping = (DeltaTable(world.lake.uri(table)).version() for table in (world.data, MAPPING))
    report = apply(world, [request("r1", "RENAME", 30, from_id="p1", name="Anna")])
    assert DeltaTable(world.lake.uri(world.data)).version() == data, "the Data Table got a commit"
    (entry,) = DeltaTable(world.lake.uri(MAPPING)).history(
        limit=DeltaTable(world.lake.uri(MAPPING)).version() - mapping
    )
    assert entry["operationMetrics"]["num_target_rows_updated"] == 1
    assert entry["operationMetrics"]["num_target_rows_inserted"] == 0
    assert report.counts["names_changed"] == 1
    assert report.counts["notifications"] == 0
    names = {row["id"]: row["name"] for row in world.rows(MAPPING)}
    assert {names[row["person_id"]] for row in world.current()} == {"Anna"}
    ingest(world, engagement("e9", "p1", 20, person_name="Ann"))
    assert {row["id"]: row["name"] for row in world.rows(MAPPING)} == {"p1": "Anna"}, "older evidence won"


@broker
def test_a_late_conversion_takes_rows_out_of_a_deletion_and_they_come_back(world: World) -> None:
    ingest(world, engagement("e1", "p1", 10), engagement("e2", "p2", 10))
    apply(world, [delete("d1", 30, from_id="p1")])
    assert persons(world) == {"e2": "p2"}
    apply(world, [convert("c1", "p1", "p2", 20)])
    assert persons(world) == {"e1": "p2", "e2": "p2"}
    told = [(row["change_type"], row["previous_person_id"], row["person_id"]) for row in world.rows(NOTIFICATION)]
    assert sorted(told, key=repr) == [
        ("DELETE", "p1", None),
        ("INSERT", None, "p1"),
        ("INSERT", None, "p2"),
        ("INSERT", None, "p2"),
    ]


@broker
@pytest.mark.parametrize(
    "way",
    [*of_today(["by key", "by operation", "seen before moved"]), pytest.param("in Spark", marks=pytest.mark.slow)],
)
def test_rows_that_a_cycle_brings_back_come_back(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """p3 to p1 was known first; earlier ones then lead the row over p2 back to where it began."""
    monkeypatch.setattr(few, "MOST_ROWS_BY_KEY", 0 if way == "by operation" else 20_000)
    layout = LayoutSettings(auto_compact=False, light_write_rows=0 if way == "in Spark" else 200_000)
    apply_: ApplyStrategy = "alias" if way == "seen before moved" else "merge"
    world = make_world(layout=layout, mutation=MutationSettings(apply=apply_))
    ingest(world, engagement("e1", "p3", 10))
    apply(world, [convert("r-a", "p3", "p1", 50)])
    if way == "seen before moved":
        world.run(name=REMATERIALIZE_ALIASES)
    assert persons(world) == {"e1": "p1"}
    apply(world, [convert("r-b", "p3", "p2", 30), convert("r-c", "p2", "p3", 60)])
    assert persons(world) == {"e1": "p3"}


@broker
def test_requests_that_contradict_are_in_quarantine_whole(world: World) -> None:
    ingest(world, engagement("e1", "p1", 10))
    first = convert("c1", "p1", "p2", 20)
    patch = request("u1", "UPDATE", 30, engagement_id="e1", channel=None, attributes={"a": None, "b": "1"})
    apply(world, [first, patch])
    report = apply(world, [first, {**first, "to_id": "p9"}, {**patch, "subject": "else"}])
    assert report.details["rejected"] == {"request_conflict": 2}
    assert report.counts["duplicates"] == 1
    assert persons(world) == {"e1": "p2"}
    quarantined = world.rows(QUARANTINE)
    assert {(row["topic"], row["reason_code"]) for row in quarantined} == {(world.topics[1], "request_conflict")}
    assert sorted((json.loads(row["value"]) for row in quarantined), key=lambda said: said["request_id"]) == [
        {**first, "to_id": "p9"},
        {**patch, "subject": "else"},
    ]


@broker
def test_with_aliases_a_change_is_seen_before_any_byte_of_the_data_table_moves(make_world: MakeWorld) -> None:
    world = make_world(mutation=MutationSettings(apply="alias"))
    ingest(world, engagement("e1", "p1", 10), engagement("e2", "p2", 10))
    before = DeltaTable(world.lake.uri(world.data)).version()
    seen: dict[str, dict[str, str]] = {}

    def observe(point: str) -> None:
        if point in {"alias.alias:before", "alias.alias:after"}:
            seen[point] = persons(world)

    apply(world, [convert("c1", "p1", "p3", 20), delete("d1", 20, from_id="p2")], observe)
    assert seen == {"alias.alias:before": {"e1": "p1", "e2": "p2"}, "alias.alias:after": {"e1": "p3"}}
    assert DeltaTable(world.lake.uri(world.data)).version() == before
    assert [row["pending_from"] for row in world.rows(PENDING)] == [0]
    told = {
        row["engagement_id"]: row["change_type"]
        for row in world.rows(NOTIFICATION)
        if row["job_name"] == APPLY_MUTATIONS
    }
    assert told == {"e1": "UPDATE", "e2": "DELETE"}
    ingest(world, engagement("e3", "p1", 11), {**engagement("e1", "p1", 10), "version": 2, "subject": "newer"})
    assert persons(world) == {"e1": "p3", "e3": "p3"}
    told_of_e1 = [row for row in world.rows(NOTIFICATION) if row["engagement_id"] == "e1"]
    (newest,) = [row for row in told_of_e1 if row["job_name"] == INGEST_ENGAGEMENTS and row["change_type"] == "UPDATE"]
    assert (newest["previous_person_id"], newest["person_id"]) == ("p3", "p3"), "the stale identity was told"


@every_third_day(1)
@broker
def test_what_waits_is_moved_by_so_many_organizations_a_batch_and_those_that_wait_longest_first(
    make_world: MakeWorld,
) -> None:
    world = make_world(mutation=MutationSettings(apply="alias", rematerialize_organizations=2))
    for organization in ("org-c", "org-a", "org-b"):
        of = {"organization_id": organization}
        ingest(world, {**engagement("e1", "p1", 10), **of})
        apply(world, [{**convert("c1", "p1", "p2", 20), **of}])
    stood = files = set(_files(world))
    waiting: list[set[str]] = []
    written: list[set[str]] = []

    def observe(point: str) -> None:
        nonlocal files
        if point == "data:recorded":
            waiting.append({r["organization_id"] for r in world.rows(PENDING) if r["pending_from"] is not None})
            written.append(
                {path.split("/")[0].removeprefix("organization_id=") for path in _files(world).keys() - files}
            )
            files = set(_files(world))

    reports = world.run(observe, name=REMATERIALIZE_ALIASES)
    assert [report.details["moved_organizations"] for report in reports] == [2, 1]
    assert waiting == [{"org-b"}, set()]
    assert written == [{"org-a", "org-c"}, {"org-b"}], "a batch wrote files of others"
    assert stood.isdisjoint(files)
    assert {row["person_id"] for row in world.rows(world.data)} == {"p2"}


@every_third_day(1)
@broker
@pytest.mark.parametrize("way", ["by operation", pytest.param("in Spark", marks=pytest.mark.slow)])
def test_readers_see_all_of_a_request_or_nothing_while_its_rows_move_in_two_commits(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """e1 is moved with its id, e2 alone, since an earlier request has told it apart from others of its id."""
    monkeypatch.setattr(few, "MOST_ROWS_BY_KEY", 0)
    layout = LayoutSettings(auto_compact=False, light_write_rows=0 if way == "in Spark" else 200_000)
    world = make_world(layout=layout, mutation=MutationSettings(apply="merge"))
    ingest(world, engagement("e1", "p1", 10), engagement("e2", "p2", 10))
    apply(world, [convert("c0", "p2", "p1", 20, engagement_id="e2")])
    seen: dict[str, dict[str, str]] = {}

    def observe(point: str) -> None:
        if point.startswith(("alias.", "data.")):
            seen[point] = persons(world)

    apply(world, [convert("c1", "p1", "p3", 30)], observe)
    assert {"data.move:after", "data.rows:before"} <= seen.keys(), "it was one commit"
    before, after = {"e1": "p1", "e2": "p1"}, {"e1": "p3", "e2": "p3"}
    assert {point: persons_ for point, persons_ in seen.items() if persons_ not in (before, after)} == {}
    assert persons(world) == after
    assert [row["pending_from"] for row in world.rows(PENDING)] == [None]


@pytest.mark.parametrize(
    ("changed", "touched", "apply_", "expected", "expected_bytes"),
    [
        (1, Stored(1_000, 10_000, 1), "auto", "merge", 10_000),
        (1, LARGE, "auto", "alias", 0),
        # The same change, of which one file of the same organization knows that it is not meant.
        (1, Stored(10_000, 10**6, 1), "auto", "merge", 10**6),
        (5_000_000, LARGE, "auto", "merge", 10**9),
        (100_000, LARGE, "auto", "merge", 10**9),
        (99_999, LARGE, "auto", "alias", 0),
        (0, Stored(0, 0, 0), "auto", "merge", 0),
        (1, Stored(10_000, 10**6, 1), "overwrite", "overwrite", 10**9),
        (1, LARGE, "deletion_vectors", "deletion_vectors", 0),
    ],
)
def test_bytes_are_moved_unless_much_would_be_written_for_little(
    changed: int, touched: Stored, apply_: Any, expected: str, expected_bytes: int
) -> None:
    """Of an organization with LARGE files."""
    choice = choose(changed, LARGE, touched, MutationSettings(apply=apply_), partitioned=True)
    assert (choice.strategy, choice.expected_bytes) == (expected, expected_bytes)
    assert choice.why


def test_a_choice_says_how_many_of_the_files_it_would_touch() -> None:
    choice = choose(1, LARGE, Stored(5_000_000, 5 * 10**8, 4), MutationSettings(), partitioned=True)
    assert choice.why == "moving now would write 5,000,000 times the bytes that change: 4 of 8 files"


def test_a_table_without_partitions_is_not_overwritten() -> None:
    few_files = Stored(10, 10, 1)
    choice = choose(5, few_files, few_files, MutationSettings(apply="overwrite"), partitioned=False)
    assert choice.strategy == "merge"
    assert "partition" in choice.why


def test_what_was_chosen_is_summed_up_beside_what_was_measured() -> None:
    """Bytes of files that no partition tells whose they were belong to the strategy that changed most."""
    small = Stored(100, 1_000, 1)
    auto = MutationSettings()
    choices = {
        "a": choose(5, small, small, auto, partitioned=True),
        "b": choose(7, LARGE, small, auto, partitioned=True),
        "c": choose(1, LARGE, LARGE, auto, partitioned=True),
    }
    found = summarized(choices, {"a": 900, "b": 1_100, None: 30, "another": 5})
    assert found["merge"] == {
        "organizations": 2, "changed_rows": 12, "touched_files": 2, "touched_bytes": 2_000, "expected_bytes": 2_000,
        "measured_bytes": 2_030, "why": "little is touched: 1 of 1 files",
    }  # fmt: skip
    figures = {name: found["alias"][name] for name in ("touched_bytes", "expected_bytes", "measured_bytes")}
    assert figures == {"touched_bytes": 10**9, "expected_bytes": 0, "measured_bytes": 0}


@broker
def test_only_files_with_days_that_change_are_touched_and_the_log_says_what_was_replaced(world: World) -> None:
    """Three files of different days; e1 is in the first, and the choice and the commit agree that it alone is."""
    for n, hours in enumerate((0, 48, 96), 1):
        ingest(world, engagement(f"e{n}", f"p{n}", hours))
    before = _files(world)
    assert len(before) == 3
    report = apply(world, [convert("c1", "p1", "p9", 120)])
    chosen = report.details["strategies"]["merge"]
    assert (chosen["touched_files"], chosen["why"]) == (1, "little is touched: 1 of 3 files")
    (gone,) = before.keys() - _files(world).keys()
    assert chosen["touched_bytes"] == chosen["expected_bytes"] == chosen["measured_bytes"] == before[gone]


def _files(world: World) -> dict[str, int]:
    """Path -> bytes of the files of the Data Table."""
    files = pa.table(DeltaTable(world.lake.uri(world.data)).get_add_actions(flatten=True))
    return dict(zip(files.column("path").to_pylist(), files.column("size_bytes").to_pylist(), strict=True))


def test_the_first_of_each_request_id_counts_whatever_comes_with_it_later() -> None:
    def of(message: Message) -> Request:
        return Request.of({**message, "execution_ts": datetime.fromisoformat(message["execution_ts"])})

    first, other, known = convert("c1", "p1", "p2", 0), convert("c1", "p1", "p3", 0), convert("c2", "a", "b", 1)
    verdicts = judge(map(of, [first, other, first, known]), [of(known)])
    assert verdicts == ["accepted", "request_conflict", "duplicate", "duplicate"]
