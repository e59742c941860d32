"""Resolving many requests at once: every row ends where the sequential oracle says, by both engines."""

from __future__ import annotations

import inspect
import io
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from engagement_platform.mutation import cascade, components, many, naming, walk
from engagement_platform.mutation.cascade import ChainTooDeep, figures, must_walk, operations, resolve
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from engagement_platform.pipelines.mutations.connected_components import GraphFramesMissing, resolve_components
from engagement_platform.pipelines.mutations.edges import Edge
from engagement_platform_tests.conftest import skip_without_graphframes
from engagement_platform_tests.mutation.histories import Message, edges, random_history
from engagement_platform_tests.mutation.oracle import Row, is_request, replay

EDGES = (
    "organization_id string, request_id string, operation string, from_id string, to_id string, engagement_id string, "
    "engagement_date_from date, engagement_date_to date, execution_ts timestamp, is_new boolean"
)
ROWS = (
    "organization_id string, engagement_id string, engagement_date date, engagement_ts timestamp, "
    "source_person_id string, person_before string, subject string"
)
T0 = datetime(2026, 11, 15, 12, tzinfo=UTC)
HISTORIES = 240
NOT_IN_SPARK = ("udf", ".rdd", "sparkContext", "_jdf", "_jvm", "toPandas", "toLocalIterator")


def at(hours: int) -> datetime:
    return T0 + timedelta(hours=hours)


def convert(request_id: str, hours: int, from_id: str, to_id: str, organization: str = "org", **some: Any) -> Edge:
    narrow = {"engagement_id": None, "engagement_date_from": None, "engagement_date_to": None, **some}
    return Edge(organization, request_id, "CONVERT", from_id, to_id, execution_ts=at(hours), **narrow)


def delete(request_id: str, hours: int, from_id: str | None, organization: str = "org", **some: Any) -> Edge:
    narrow = {"engagement_id": None, "engagement_date_from": None, "engagement_date_to": None, **some}
    return Edge(organization, request_id, "DELETE", from_id, None, execution_ts=at(hours), **narrow)


def frame(spark: SparkSession, new: Sequence[Edge], history: Sequence[Edge] = ()) -> DataFrame:
    rows = [(*edge, is_new) for some, is_new in ((new, True), (history, False)) for edge in some]
    return spark.createDataFrame(rows, EDGES)


def ends(resolved: DataFrame) -> dict[str, tuple[str | None, int]]:
    """request_id -> (to_id, hops); the word `branches` for those that do."""
    return {
        row["request_id"]: ("branches" if row["branches"] else row["to_id"], row["hops"]) for row in resolved.collect()
    }


@dataclass
class World:
    """Many histories in one frame: of each the whole at once, its later half upon the rest, and any half upon it."""

    edges: DataFrame
    rows: DataFrame
    expected: dict[tuple[str, str], str | None]
    """organization_id, engagement_id -> identity in the end, None when deleted."""


def known_rows(messages: Sequence[Message], history: set[str]) -> Iterator[tuple[Row, str, str, str | None]]:
    """Rows as if no request had come, with organization, engagement, and the identity by the history alone."""
    engagements = [message for message in messages if not is_request(message)]
    before = replay([m for m in messages if not is_request(m) or m["request_id"] in history]).data
    for (organization, engagement_id), row in replay(engagements).data.items():
        standing = before.get((organization, engagement_id))
        yield row, organization, engagement_id, standing.person_id if standing else None


@pytest.fixture(scope="module")
def world(spark: SparkSession) -> World:
    some_edges, some_rows, expected = [], [], {}
    for seed in range(HISTORIES):
        for kind in ("at once", "later half", "any half"):
            # Larger than by default, so that chains form.
            messages = random_history(seed, organization=f"{kind} {seed}", size=40)
            found = edges(messages)
            by_time = [edge.request_id for edge in sorted(found, key=lambda edge: edge.order)]
            by_name = sorted(by_time, key=lambda name: name[::-1])
            halves: dict[str, list[str]] = {"at once": [], "later half": by_time, "any half": by_name}
            half = halves[kind]
            history = set(half[: len(half) // 2])
            some_edges += [(*edge, edge.request_id not in history) for edge in found]
            data = replay(messages).data
            for row, organization, engagement_id, standing in known_rows(messages, history):
                end = data.get((organization, engagement_id))
                expected[organization, engagement_id] = end.person_id if end else None
                some_rows.append(
                    (
                        organization,
                        engagement_id,
                        row.engagement_date,
                        row.engagement_ts,
                        row.source_person_id,
                        standing,
                        row.subject,
                    )
                )
    return World(spark.createDataFrame(some_edges, EDGES), spark.createDataFrame(some_rows, ROWS), expected)


@pytest.fixture(scope="module")
def resolved(world: World) -> DataFrame:
    return resolve(world.edges).localCheckpoint()


def applied(rows: DataFrame, edges: DataFrame, resolved: DataFrame) -> DataFrame:
    """Rows as a batch leaves them: settled by at most one operation, or walked. Adds person_id and `how`."""
    row_key = ["organization_id", "engagement_id"]
    r = rows.withColumnRenamed("person_before", "before").alias("r")
    scope = must_walk(resolved, edges).alias("s")
    inside = F.col("r.organization_id") == F.col("s.organization_id")
    for mine, bound in (("before", "from_id"), ("engagement_id", "engagement_id")):
        inside &= F.col(f"s.{bound}").isNull() | (F.col(f"r.{mine}") == F.col(f"s.{bound}"))
    day = F.col("r.engagement_date")
    inside &= F.col("s.engagement_date_from").isNull() | (F.col("s.engagement_date_from") <= day)
    inside &= F.col("s.engagement_date_to").isNull() | (F.col("s.engagement_date_to") >= day)
    inside &= F.col("r.engagement_ts") < F.col("s.engaged_before")
    walked = walk.walk(r.join(scope, inside, "left_semi"), edges).withColumn("how", F.lit("walked"))
    o = operations(resolved).alias("o")
    ts = F.col("r.engagement_ts")
    moves = (
        (F.col("r.organization_id") == F.col("o.organization_id"))
        & (F.col("r.before") == F.col("o.from_id"))
        & (F.col("o.engaged_from").isNull() | (F.col("o.engaged_from") <= ts))
        & (ts < F.col("o.engaged_before"))
    )
    settled = (
        r.join(walked.select(*row_key), row_key, "left_anti")
        .alias("r")
        .join(o, moves, "left")
        .select(
            *(f"r.{name}" for name in row_key),
            F.when(F.col("o.request_id").isNotNull(), F.col("o.to_id")).otherwise(F.col("r.before")).alias("person_id"),
            F.when(F.col("o.request_id").isNotNull(), "operation").otherwise("as it was").alias("how"),
        )
    )
    return settled.unionByName(walked.select(*row_key, "person_id", "how"))


def late(edges: DataFrame) -> DataFrame:
    """The new requests that history has overtaken: rows have left their from_id, or reached it, at a later time.

    Their rows may stand under any id that history leads to, which `operations` by the id of now cannot find.
    """
    known = cascade._known(edges)
    place, key = F.struct("execution_ts", "request_id"), ["organization_id", "from_id"]
    ends = F.explode(F.array("from_id", "to_id")).alias("from_id")
    touched = known.where("NOT is_new").select("organization_id", ends, place.alias("touched"))
    newest = touched.groupBy(*key).agg(F.max("touched").alias("touched"))
    return known.where("is_new").join(newest, key).where(F.col("touched") > place)


def test_operations_and_walks_end_where_the_oracle_ends(world: World, resolved: DataFrame) -> None:
    overtaken = {row["organization_id"] for row in late(world.edges).select("organization_id").distinct().collect()}
    found = applied(world.rows.where(F.col("person_before").isNotNull()), world.edges, resolved).collect()
    assert len({(row["organization_id"], row["engagement_id"]) for row in found}) == len(found), "a row matched twice"
    wrong = [row for row in found if row["person_id"] != world.expected[row["organization_id"], row["engagement_id"]]]
    assert not [row for row in wrong if row["organization_id"] not in overtaken]
    assert wrong, "no history is overtaken by a late request in a way that matters, so `late` was not put to the test"
    ways = {(row["organization_id"].rpartition(" ")[0], row["how"]) for row in found}
    assert ways >= {(kind, how) for kind in ("at once", "later half") for how in ("operation", "walked", "as it was")}
    assert any(name.startswith("any half") for name in overtaken)
    assert not any(name.startswith(("at once", "later half")) for name in overtaken)


def test_a_walk_of_every_row_ends_where_the_oracle_ends(world: World) -> None:
    rows = walk.walk(world.rows, world.edges)
    assert rows.columns == [*world.rows.columns, "person_id", "deleted", "hops"]
    found = {(row["organization_id"], row["engagement_id"]): row for row in rows.collect()}
    assert {key: row["person_id"] for key, row in found.items()} == world.expected
    assert {key: row["deleted"] for key, row in found.items()} == {k: v is None for k, v in world.expected.items()}


def connected(links: DataFrame) -> DataFrame:
    """Components by a loop anyone believes."""
    label: dict[int, int] = {}
    pairs = [(row["src"], row["dst"]) for row in links.collect()]
    for src, dst in pairs:
        label.setdefault(src, src)
        label.setdefault(dst, dst)
    while moving := [(src, dst) for src, dst in pairs if label[src] != label[dst]]:
        for src, dst in moving:
            label[src] = label[dst] = min(label[src], label[dst])
    return links.sparkSession.createDataFrame(list(label.items()) or [(0, 0)], "id long, component long")


def test_walking_the_components_ends_where_doubling_ends(world: World, resolved: DataFrame) -> None:
    walked = resolve_components(cascade._known(world.edges), connected)
    walked = walked.where("is_new").select(*resolved.columns)
    assert sorted(map(repr, walked.collect())) == sorted(map(repr, resolved.collect()))


def graphframes_missing(spark: SparkSession) -> GraphFramesMissing | None:
    try:
        resolve(frame(spark, [convert("r1", 1, "a", "b"), convert("r2", 2, "b", "c")]), engine="graphframes")
    except GraphFramesMissing as missing:
        return missing
    return None


def test_graphframes_ends_where_doubling_ends(world: World, resolved: DataFrame) -> None:
    skip_without_graphframes()
    found = resolve(world.edges, engine="graphframes")
    assert sorted(map(repr, found.collect())) == sorted(map(repr, resolved.collect()))


def test_without_its_jar_the_graphframes_engine_says_what_it_needs(spark: SparkSession) -> None:
    said = str(graphframes_missing(spark) or pytest.skip("GraphFrames' jar is on the class path of this session."))
    assert "io.graphframes:graphframes-spark4_2.13" in said
    assert "pointer_doubling" in said


def test_a_chain_reaches_its_end_where_a_naive_batch_update_stops_at_the_first_hop(spark: SparkSession) -> None:
    chain = [convert("r1", 1, "id1", "id2"), convert("r2", 2, "id2", "id3"), convert("r3", 3, "id3", "id4")]
    known = frame(spark, chain)
    rows = spark.createDataFrame([("org", f"e{n}", T0.date(), T0, f"id{n}", f"id{n}", "") for n in (1, 2, 3, 4)], ROWS)
    # One update that joins rows and requests by id, as they stand before the batch.
    requests = known.select(F.col("from_id").alias("person_before"), "to_id")
    naive = rows.join(requests, "person_before", "left").select("engagement_id", F.coalesce("to_id", "person_before"))
    assert {row[0]: row[1] for row in naive.collect()}["e1"] == "id2"
    right = applied(rows, known, resolve(known)).select("engagement_id", "person_id")
    assert {row[0]: row[1] for row in right.collect()} == {"e1": "id4", "e2": "id4", "e3": "id4", "e4": "id4"}


def test_each_case_ends_by_the_order_of_time(spark: SparkSession) -> None:
    days = {"engagement_date_from": date(2026, 11, 1)}
    new = [
        # A cycle is left by the edge that is later, and ends where no later one leaves.
        convert("cycle-1", 1, "a", "b", "cycle"),
        convert("cycle-2", 2, "b", "a", "cycle"),
        # What left before does not take along what arrives later.
        convert("early-1", 1, "b", "c", "early"),
        convert("early-2", 2, "a", "b", "early"),
        # Two ids become one; one id leads to two, by time.
        convert("fan-1", 1, "a", "m", "fan"),
        convert("fan-2", 2, "b", "m", "fan"),
        convert("fan-3", 3, "m", "x", "fan"),
        convert("fan-4", 4, "m", "y", "fan"),
        # Equal times go by request id, also from one edge to the next.
        convert("tie-1", 1, "a", "b", "tie"),
        convert("tie-2", 1, "b", "c", "tie"),
        convert("tie-0", 1, "c", "d", "tie"),
        # Deleted for good, unless rows arrive after the delete.
        convert("gone-1", 1, "a", "b", "gone"),
        delete("gone-2", 2, "b", "gone"),
        convert("gone-3", 3, "c", "b", "gone"),
        # Ids of another organization are other ids.
        convert("apart-1", 1, "a", "b", "apart"),
        convert("apart-2", 2, "b", "c", "another"),
        # A request for some rows makes what runs into it depend on the row, unless it comes too early to be met.
        convert("some-1", 1, "a", "b", "some"),
        convert("some-2", 2, "b", "c", "some"),
        delete("some-3", 3, "c", "some", **days),
        convert("some-4", 4, "d", "c", "some"),
        delete("some-5", 5, None, "some", engagement_id="e"),
        # From an id to itself: no place of its own in the chain of others.
        convert("self-1", 1, "a", "a", "self"),
        convert("self-2", 2, "a", "b", "self"),
    ]
    branches = "branches"
    resolved = resolve(frame(spark, new)).localCheckpoint()
    assert ends(resolved) == {
        "cycle-1": ("a", 2),
        "cycle-2": ("a", 1),
        "early-1": ("c", 1),
        "early-2": ("b", 1),
        "fan-1": ("x", 2),
        "fan-2": ("x", 2),
        "fan-3": ("x", 1),
        "fan-4": ("y", 1),
        "tie-0": ("d", 1),
        "tie-1": ("c", 2),
        "tie-2": ("c", 1),
        "gone-1": (None, 2),
        "gone-2": (None, 1),
        "gone-3": ("b", 1),
        "apart-1": ("b", 1),
        "apart-2": ("c", 1),
        "some-1": (branches, 3),
        "some-2": (branches, 2),
        "some-3": (branches, 1),
        "some-4": ("c", 1),
        "some-5": (branches, 1),
        "self-1": ("b", 2),
        "self-2": ("b", 1),
    }
    found = {row["request_id"]: row for row in operations(resolved).collect()}
    assert set(found) == {name for name, (end, _) in ends(resolved).items() if end != branches}
    assert (found["fan-3"]["engaged_from"], found["fan-3"]["engaged_before"]) == (None, at(3).replace(tzinfo=None))
    assert found["fan-4"]["engaged_from"] == at(3).replace(tzinfo=None)
    assert figures(resolved).head().asDict() == {  # type: ignore[union-attr]
        "requests": len(new),
        # cycle, fan, tie, gone, some, self.
        "chains": 6,
        "longest_chain": 3,
        "operations": len(new),
        "walked": 4,
    }


def test_of_two_requests_for_one_id_and_time_the_smaller_request_id_takes_the_rows(spark: SparkSession) -> None:
    known = frame(spark, [convert("r2", 5, "a", "late"), convert("r1", 5, "a", "first"), convert("r3", 6, "a", "next")])
    found = operations(resolve(known))
    assert {row["request_id"]: (row["to_id"], row["engaged_from"] is None) for row in found.collect()} == {
        "r1": ("first", True),
        "r3": ("next", False),
    }
    assert figures(resolve(known)).head()["operations"] == 2  # type: ignore[index]


def test_a_delete_that_carries_an_unused_to_id_deletes(spark: SparkSession) -> None:
    known = frame(spark, [delete("r1", 1, "a")._replace(to_id="b"), convert("r2", 2, "b", "c")])
    assert ends(resolve(known)) == {"r1": (None, 1), "r2": ("c", 1)}
    row = spark.createDataFrame([("org", "e1", T0.date(), T0, "a", "a", "")], ROWS)
    assert [tuple(end)[-3:] for end in walk.walk(row, known).collect()] == [(None, True, 1)]


def test_history_gives_a_late_request_its_place(spark: SparkSession) -> None:
    history = [convert("h1", 5, "b", "c"), convert("h2", 6, "c", "d"), convert("h3", 1, "old", "older")]
    known = frame(spark, [convert("n1", 2, "a", "b"), convert("n2", 7, "b", "z"), convert("n3", 3, "c", "x")], history)
    assert ends(resolve(known)) == {"n1": ("d", 3), "n2": ("z", 1), "n3": ("x", 1)}
    assert [row["request_id"] for row in late(known).collect()] == ["n3"]


def test_a_chain_of_a_thousand_takes_eleven_rounds(spark: SparkSession) -> None:
    known = frame(spark, [convert(f"r{n:04}", n, f"p{n}", f"p{n + 1}") for n in range(1000)])
    found = ends(resolve(known, max_rounds=11))
    assert found == {f"r{n:04}": ("p1000", 1000 - n) for n in range(1000)}
    with pytest.raises(ChainTooDeep, match=r"request 'r0\d+' of organization 'org' goes on after 4 rounds"):
        resolve(known, max_rounds=4)
    row = spark.createDataFrame([("org", "e1", T0.date(), T0 - timedelta(hours=1), "p0", "p0", "")], ROWS)
    with pytest.raises(ChainTooDeep, match=r"request 'r0002' of organization 'org' goes on after 3 rounds"):
        walk.walk(row, known, max_rounds=3)


def test_no_requests_are_no_operations(spark: SparkSession) -> None:
    nothing = frame(spark, [])
    resolved = resolve(nothing)
    assert resolved.columns == list(cascade.RESOLVED)
    assert resolved.isEmpty()
    assert operations(resolved).columns == [
        *("organization_id", "from_id", "engaged_from", "engaged_before", "to_id", "request_id"),
    ]
    counts = figures(resolved).head()
    assert counts is not None
    assert set(counts.asDict().values()) == {0}
    rows = spark.createDataFrame([("org", "e1", T0.date(), T0, "p0", "p0", "")], ROWS)
    assert [tuple(row)[-3:] for row in walk.walk(rows, nothing).collect()] == [("p0", False, 0)]


def test_nothing_runs_in_python_or_comes_to_the_driver(world: World, resolved: DataFrame) -> None:
    known = cascade._known(world.edges)
    grouped = known.withColumn("component", F.lit(0))
    frames = (
        cascade._with_next(known),
        operations(resolved),
        figures(resolved),
        components.walk_components(grouped),
    )
    for some in frames:
        told = io.StringIO()
        with redirect_stdout(told):
            some.explain("extended")
        assert "Physical Plan" in told.getvalue()
        for python in ("PythonUDF", "ArrowEvalPython", "BatchEvalPython", "MapInArrow", "MapInPandas", "FlatMapGroups"):
            assert python not in told.getvalue()
    # Checkpoints hide the plans before them, so the source is asked too.
    source = "".join(inspect.getsource(module) for module in (cascade, components, walk))
    source += inspect.getsource(naming)
    for word in (*NOT_IN_SPARK, ".collect()", "toArrow"):
        assert word not in source
    # A batch collects figures, and what it resolves here: rejected requests, UPDATEs, and names while edges are few.
    batch = inspect.getsource(many)
    for word in NOT_IN_SPARK:
        assert word not in batch
    bounded = (many._rejected, many._Settled._names_here, vars(many._Settled)["_patched"].func)
    assert batch.count("toArrow") == sum(inspect.getsource(some).count("toArrow") for some in bounded)
    assert batch.count("edges_of(") == inspect.getsource(many._Settled._names_here).count("edges_of(") == 1
