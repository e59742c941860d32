"""Names in Spark: those that a sequential replay leaves, for all histories at once."""

from __future__ import annotations

from datetime import UTC, datetime

from engagement_platform.mutation.naming import concerned, differing, named, plain, sayings
from pyspark.sql import SparkSession

from engagement_platform.pipelines.mutations.edges import Edge
from engagement_platform_tests.mutation.histories import Message, at, convert, random_history
from engagement_platform_tests.mutation.oracle import replay
from engagement_platform_tests.mutation.test_cascade import EDGES
from engagement_platform_tests.mutation.test_names import CASES, all_edges, all_sayings, called

SAID = "organization_id string, id string, name string, name_ts timestamp"
RENAMES = (
    "organization_id string, request_id string, operation string, from_id string, name string, execution_ts timestamp"
)
LONG = [called("e1", "p0", 0, "Ann"), *(convert(f"r{n}", f"p{n}", f"p{n + 1}", 1 + n) for n in range(7))]


def of(organization: str, messages: list[Message]) -> list[Message]:
    """The same messages, apart from those of other cases with ids like theirs."""
    return [{**message, "organization_id": f"{organization}/{message['organization_id']}"} for message in messages]


def test_names_in_spark_are_those_that_a_sequential_replay_leaves(spark: SparkSession) -> None:
    histories = [
        *(of(case, messages) for case, (messages, _) in CASES.items()),
        *(of(f"history {seed}", random_history(seed, size=30, conflicts=seed % 4 == 0)) for seed in range(150)),
        of("long", LONG),
    ]
    expected = {key: said for history in histories for key, said in replay(history).names.items()}
    assert sum(len(replay(history).names) for history in histories) == len(expected) > 300
    assert ("long/org", "p7") in expected
    messages = [message for history in histories for message in history]
    said = [(o, i, s.name, s.name_ts) for o, i, s in all_sayings(messages) if not s.by_rename]
    renames = [(o, s.request_id, "RENAME", i, s.name, s.name_ts) for o, i, s in all_sayings(messages) if s.by_rename]
    first: dict[tuple[str, str], Edge] = {}
    for edge in all_edges(messages):
        first.setdefault((edge.organization_id, edge.request_id), edge)
    edges = [
        (e.organization_id, e.request_id, "DELETE" if e.to_id is None else "CONVERT", e.from_id, e.to_id,
         e.engagement_id, e.engagement_date_from, e.engagement_date_to, e.execution_ts, True)
        for e in first.values()
    ]  # fmt: skip
    moves = plain(spark.createDataFrame(edges, EDGES))
    found = named(sayings(spark.createDataFrame(said, SAID), spark.createDataFrame(renames, RENAMES)), moves)
    rows = found.toArrow().to_pylist()
    names = {(row["organization_id"], row["id"]): (row["name"], row["name_ts"]) for row in rows}
    assert len(names) == len(rows), "an id has two names"
    assert names == expected


def test_only_names_that_the_mapping_does_not_say_are_written(spark: SparkSession) -> None:
    early, late = (datetime.fromisoformat(at(hours)) for hours in (1, 2))
    found = [("org", "same", "Ann", early), ("org", "newer", "Bo", late), ("org", "new", "Cy", early)]
    stands = [
        ("org", "same", "Ann", early), ("org", "newer", "Bo", early), ("org", "gone", "Dee", early),
        ("org", "was gone", None, None),
    ]  # fmt: skip
    rows = differing(spark.createDataFrame(found, SAID), spark.createDataFrame(stands, SAID)).collect()
    assert {(row["id"], row["name"]) for row in rows} == {("newer", "Bo"), ("new", "Cy"), ("gone", None)}


def test_ids_are_concerned_that_edges_of_whole_persons_join_or_requests_rename(spark: SparkSession) -> None:
    edges = [
        ("org", "r1", "CONVERT", "a", "b", None, None, None, datetime(2026, 11, 15, tzinfo=UTC), True),
        ("org", "r2", "CONVERT", "c", "d", "e1", None, None, datetime(2026, 11, 15, tzinfo=UTC), True),
        ("org", "r3", "CONVERT", "f", "f", None, None, None, datetime(2026, 11, 15, tzinfo=UTC), True),
        ("org", "r4", "DELETE", "g", None, None, None, None, datetime(2026, 11, 15, tzinfo=UTC), True),
    ]
    renames = [("org", "r5", "RENAME", "h", "Ann", None), ("org", "r6", "UPDATE", "i", None, None)]
    ids = concerned(plain(spark.createDataFrame(edges, EDGES)), spark.createDataFrame(renames, RENAMES)).collect()
    assert sorted(row["id"] for row in ids) == ["a", "b", "g", "h"]
