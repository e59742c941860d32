"""Verdicts and names on frames alone: no tables, no broker. One frame holds many organizations, each its own case."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from engagement_platform.ingestion.settle import COORDINATES, REASONS, changed_names, content, newest_names, settle
from engagement_platform.ingestion.settle_few import settle_id

ORGANIZATIONS = 150
DAYS = (date(2026, 11, 18), date(2026, 11, 19), date(2026, 11, 20))
COPIES_DDL = (
    "topic string, partition int, offset long, organization_id string, engagement_id string, engagement_date date, "
    "version long, content string"
)
KNOWN_DDL = (
    "organization_id string, engagement_id string, engagement_date date, version long, person_id string, content string"
)
SUPERSEDED_DDL = "organization_id string, engagement_id string, version long, content string"
NAMED_DDL = "organization_id string, person_id string, person_name string, engagement_ts timestamp"
NAMES_DDL = "organization_id string, id string, name string, name_ts timestamp"

Coordinates = tuple[str, int, int]
Outcome = tuple[str, str | None, str | None]


class Copy(NamedTuple):
    topic: str
    partition: int
    offset: int
    organization: str
    id: str
    day: date
    version: int
    content: str

    @property
    def coordinates(self) -> Coordinates:
        return self[:3]


class Known(NamedTuple):
    organization: str
    id: str
    day: date
    version: int
    person: str
    content: str


class Superseded(NamedTuple):
    organization: str
    id: str
    version: int
    content: str


def verdicts(
    copies: Iterable[Copy], known: Known | None, superseded: Iterable[Superseded] = ()
) -> dict[Coordinates, Outcome]:
    """(verdict, reason, previous person) of each copy of one id: the rules as a loop."""
    in_order = sorted(copies)
    day = known.day if known else in_order[0].day
    counts_as = {known.version: known.content} if known else {}
    counts_as |= {row.version: row.content for row in superseded}
    said: dict[Coordinates, Outcome] = {}
    new: dict[int, Copy] = {}
    for copy in in_order:
        is_first = copy.version not in counts_as
        if copy.day != day:
            said[copy.coordinates] = ("QUARANTINE", "moved_in_time", None)
        elif counts_as.setdefault(copy.version, copy.content) != copy.content:
            said[copy.coordinates] = ("QUARANTINE", "version_conflict", None)
        else:
            said[copy.coordinates] = ("SUPERSEDED" if is_first else "DUPLICATE", None, None)
            if is_first and (known is None or copy.version > known.version):
                new[copy.version] = copy
    if new:
        landing = new[max(new)].coordinates
        said[landing] = ("UPDATE", None, known.person) if known else ("INSERT", None, None)
    return said


def settled(
    spark: SparkSession, copies: Sequence[Copy], known: Sequence[Known], superseded: Sequence[Superseded] | None = None
) -> dict[Coordinates, Outcome]:
    frames = (spark.createDataFrame(copies, COPIES_DDL), spark.createDataFrame(known, KNOWN_DDL))
    lower = None if superseded is None else spark.createDataFrame(superseded, SUPERSEDED_DDL)
    rows = settle(*frames, lower).collect()
    assert len(rows) == len(copies), "there is not one verdict per copy"
    stand = {(row.organization, row.id): (row.version, row.content) for row in known}
    for row in rows:
        replaced = stand[row["organization_id"], row["engagement_id"]] if row["verdict"] == "UPDATE" else (None, None)
        assert (row["replaced_version"], row["replaced"]) == replaced
    return {
        (row["topic"], row["partition"], row["offset"]): (
            row["verdict"],
            row["reason_code"],
            row["previous_person_id"],
        )
        for row in rows
    }


Case = tuple[list[Copy], Known | None, list[Superseded]]


def random_case(rng: random.Random, organization: str, engagement_id: str) -> Case:
    """Copies of one id, perhaps a row of it, and lower versions. Few versions, days and contents, so that they meet."""
    contents = [f"{organization}: {word}" for word in ("one", "two")]
    known, superseded = None, []
    if rng.random() < 0.6:
        known = Known(organization, engagement_id, rng.choice(DAYS), rng.randint(1, 4), "lead-k", rng.choice(contents))
        lower = [version for version in range(1, known.version) if rng.random() < 0.5]
        superseded = [Superseded(organization, engagement_id, version, rng.choice(contents)) for version in lower]
    home = known.day if known else rng.choice(DAYS)
    copies = [
        Copy(
            rng.choice(("engagements", "engagements-2")),
            rng.randrange(3),
            offset,
            organization,
            engagement_id,
            home if rng.random() < 0.8 else rng.choice(DAYS),
            rng.randint(1, 5),
            contents[rng.random() < 0.25],
        )
        for offset in rng.sample(range(100), rng.randint(1, 6))
    ]
    return copies, known, superseded


@pytest.mark.parametrize("seed", [1, 20261121, 987654])
def test_every_copy_gets_the_verdict_that_a_loop_over_its_id_gives(spark: SparkSession, seed: int) -> None:
    rng = random.Random(seed)
    cases = [
        random_case(rng, f"org-{number}", engagement_id)
        for number in range(ORGANIZATIONS)
        # The same two ids in every organization: ids are unique within one only.
        for engagement_id in ("e1", "e2")
    ]
    # Coordinates name a record of the topic, so no two ids share one.
    cases = [
        ([copy._replace(offset=copy.offset + 100 * nth) for copy in copies], known, superseded)
        for nth, (copies, known, superseded) in enumerate(cases)
    ]
    copies = [copy for some, _, _ in cases for copy in some]
    rng.shuffle(copies)
    lower = [row for _, _, superseded in cases for row in superseded]
    found = settled(spark, copies, [known for _, known, _ in cases if known], lower)
    for some, known, superseded in cases:
        expected = verdicts(some, known, superseded)
        assert {at: found[at] for at in expected} == expected, f"seed {seed}: {sorted(some)} on {known}, {superseded}"
    seen = {(verdict, reason) for verdict, reason, _ in found.values()}
    verdicts_alone = {(verdict, None) for verdict in ("INSERT", "UPDATE", "SUPERSEDED", "DUPLICATE")}
    wanted = verdicts_alone | {("QUARANTINE", code) for code in REASONS}
    assert seen == wanted, "the cases leave a verdict out"


def settled_here(
    copies: Sequence[Copy], known: Known | None, superseded: Sequence[Superseded]
) -> dict[Coordinates, Outcome]:
    """The same question to the code for few rows; its content is person, time and what was said."""
    rows = {
        nth: {
            **dict(zip(COORDINATES, copy.coordinates, strict=True)),
            "engagement_date": copy.day,
            "version": copy.version,
            "person_id": "lead-s",
            "engagement_ts": copy.day,
            "type": copy.content,
            "channel": None,
            "subject": None,
            "attributes": None,
        }
        for nth, copy in enumerate(copies)
    }
    row = known and {
        "engagement_date": known.day,
        "version": known.version,
        "person_id": known.person,
        "source_person_id": "lead-s",
        "engagement_ts": known.day,
        "type": known.content,
        "channel": None,
        "subject": None,
        "attributes": None,
    }
    lower = [{**row, "version": other.version, "type": other.content, "person_id": None} for other in superseded if row]
    found = settle_id(rows, row, lower)
    return {copies[nth].coordinates: (outcome[0].value, *outcome[1:]) for nth, outcome in found.items()}


def test_few_copies_get_the_same_verdicts_without_spark() -> None:
    rng = random.Random(20261122)
    for _ in range(2_000):
        copies, known, superseded = random_case(rng, "org", "e1")
        expected = verdicts(copies, known, superseded)
        assert settled_here(copies, known, superseded) == expected, f"{sorted(copies)} on {known}, {superseded}"


def test_content_is_the_same_without_spark() -> None:
    base = {"engagement_ts": NOON, "type": "email", "channel": None, "subject": "Hi", "attributes": [("a", "1")]}
    place = {"topic": "t", "partition": 0, "engagement_date": DAYS[1], "version": 1, "person_id": "p"}
    others: list[dict[str, Any]] = [
        {"attributes": {"a": "1"}},
        {"attributes": [("a", "2")]},
        {"attributes": []},
        {"attributes": None},
        {"channel": ""},
        {"person_id": "q"},
        {"engagement_ts": NOON + timedelta(microseconds=1)},
    ]
    copies = {n: {**place, **base, **other, "offset": n} for n, other in enumerate([{}, *others])}
    outcomes = settle_id(copies, None)
    assert [outcomes[n][1] for n in copies] == [None, None, *["version_conflict"] * 6]


def copy(organization: str, offset: int, version: int, content: str = "same", day: date = DAYS[1]) -> Copy:
    return Copy("engagements", 0, offset, organization, "e1", day, version, content)


def stands(organization: str, version: int, content: str = "same") -> Known:
    return Known(organization, "e1", DAYS[1], version, "lead-before", content)


NAMED_CASES: list[tuple[str, list[Copy], list[Known], list[str]]] = [
    ("the only copy of a new id", [copy("a", 1, 1)], [], ["INSERT"]),
    ("a new id twice", [copy("b", 2, 1), copy("b", 3, 1)], [], ["INSERT", "DUPLICATE"]),
    ("two new versions", [copy("c", 4, 1), copy("c", 5, 2, "new")], [], ["SUPERSEDED", "INSERT"]),
    ("two new versions backwards", [copy("d", 6, 2, "new"), copy("d", 7, 1)], [], ["INSERT", "SUPERSEDED"]),
    ("the known version", [copy("e", 8, 3)], [stands("e", 3)], ["DUPLICATE"]),
    ("the known version, other content", [copy("f", 9, 3, "other")], [stands("f", 3)], ["version_conflict"]),
    ("an older version, other content", [copy("g", 10, 2, "older")], [stands("g", 3)], ["SUPERSEDED"]),
    (
        "an older version that contradicts itself",
        [copy("m", 21, 2, "older"), copy("m", 22, 2, "other"), copy("m", 23, 2, "older")],
        [stands("m", 3)],
        ["SUPERSEDED", "version_conflict", "DUPLICATE"],
    ),
    ("a newer version", [copy("h", 11, 4, "newer")], [stands("h", 3)], ["UPDATE"]),
    (
        "three newer versions",
        [copy("i", 12, 4, "x"), copy("i", 13, 6, "z"), copy("i", 14, 5, "y")],
        [stands("i", 3)],
        ["SUPERSEDED", "UPDATE", "SUPERSEDED"],
    ),
    (
        "the highest contradicts itself",
        [copy("j", 15, 2, "first"), copy("j", 16, 2, "second"), copy("j", 17, 2, "first")],
        [stands("j", 1)],
        ["UPDATE", "version_conflict", "DUPLICATE"],
    ),
    ("a newer version on another day", [copy("k", 18, 4, day=DAYS[2])], [stands("k", 3)], ["moved_in_time"]),
    (
        "a new id on two days",
        [copy("l", 19, 1), copy("l", 20, 2, day=DAYS[0])],
        [],
        ["INSERT", "moved_in_time"],
    ),
]  # fmt: skip


def test_each_kind_of_copy_gets_its_verdict(spark: SparkSession) -> None:
    found = settled(
        spark,
        [copy for _, copies, _, _ in NAMED_CASES for copy in copies],
        [known for _, _, some, _ in NAMED_CASES for known in some],
    )
    for case, copies, _, expected in NAMED_CASES:
        outcomes = [found[copy.coordinates] for copy in copies]
        assert [reason or verdict for verdict, reason, _ in outcomes] == expected, case
        for verdict, _, previous in outcomes:
            assert previous == ("lead-before" if verdict == "UPDATE" else None), case


def test_a_copy_of_a_superseded_version_is_known_or_contradicts_what_landed_first(spark: SparkSession) -> None:
    copies = [copy("a", 1, 1), copy("b", 2, 1, "other"), copy("b", 3, 1), copy("c", 4, 2), copy("d", 5, 4, "new")]
    known = [stands(organization, 3) for organization in "abcd"]
    # Of the last one there is what a batch left that was let go before it finished: its version never landed.
    lower = [Superseded(organization, "e1", 1, "same") for organization in "abc"] + [Superseded("d", "e1", 4, "gone")]
    expected = ["DUPLICATE", "version_conflict", "DUPLICATE", "SUPERSEDED", "UPDATE"]
    found = settled(spark, copies, known, lower)
    assert [found[copy.coordinates][1] or found[copy.coordinates][0] for copy in copies] == expected
    for row in known:
        mine = [copy for copy in copies if copy.organization == row.organization]
        of_it = [other for other in lower if other.organization == row.organization]
        assert settled_here(mine, row, of_it) == {copy.coordinates: found[copy.coordinates] for copy in mine}


CONTENT_DDL = (
    "case string, person_id string, engagement_ts timestamp, type string, channel string, subject string, "
    "attributes map<string,string>"
)
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def test_content_is_person_time_and_what_was_said_whatever_the_order_of_attributes(spark: SparkSession) -> None:
    base: tuple[Any, ...] = ("lead-1", NOON, "email", None, "Hi", {"a": "1", "b": "2"})
    rows: dict[str, tuple[Any, ...]] = {
        "base": base,
        "the same": base,
        "attributes in another order": (*base[:5], {"b": "2", "a": "1"}),
        "another person": ("lead-2", *base[1:]),
        "another time": (base[0], NOON + timedelta(microseconds=1), *base[2:]),
        "another type": (*base[:2], "call", *base[3:]),
        "an empty channel": (*base[:3], "", *base[4:]),
        "no subject": (*base[:4], None, base[5]),
        "another attribute": (*base[:5], {"a": "1", "b": "3"}),
        "swapped attributes": (*base[:5], {"a": "2", "b": "1"}),
        "no attributes": (*base[:5], None),
        "empty attributes": (*base[:5], {}),
    }
    frame = spark.createDataFrame([(case, *row) for case, row in rows.items()], CONTENT_DDL)
    said = frame.select("case", content("person_id").alias("content"))
    base_said = said.where("case = 'base'").select(said["content"].alias("base"))
    equal = said.crossJoin(base_said).where("content <=> base").collect()
    assert {row["case"] for row in equal} == {"base", "the same", "attributes in another order"}
    empty = said.where("case in ('no attributes', 'empty attributes')").select("content").distinct()
    assert empty.count() == 2, "no attributes and empty ones are taken for the same"


# Code point order and UTF-16 order differ for the last two.
NAMES = ("", "Ann", "ann", "Bo", "Zoë", "Zo", "�", "😀")
TIMES = tuple(NOON + timedelta(microseconds=step) for step in range(3))


def test_the_newest_name_wins_and_of_equal_times_the_larger(spark: SparkSession) -> None:
    rng = random.Random(7)
    named = [
        (f"org-{number}", rng.choice(("lead-1", "lead-2")), rng.choice((*NAMES, None)), rng.choice(TIMES))
        for number in range(ORGANIZATIONS)
        for _ in range(rng.randint(1, 5))
    ]
    expected: dict[tuple[str, str], tuple[datetime, str]] = {}
    for organization, person, name, time in named:
        if name is not None:
            key = (organization, person)
            expected[key] = max(expected.get(key, (time, name)), (time, name))
    rows = newest_names(spark.createDataFrame(named, NAMED_DDL)).collect()
    assert len(rows) == len(expected)
    found = {(r["organization_id"], r["id"]): (r["name_ts"].astimezone(UTC), r["name"]) for r in rows}
    assert found == expected


def test_a_name_changes_the_mapping_when_it_is_newer_or_of_the_same_time_and_larger(spark: SparkSession) -> None:
    rng = random.Random(8)
    said = [(f"org-{number}", "lead-1", rng.choice(NAMES), rng.choice(TIMES)) for number in range(ORGANIZATIONS)]
    known = [
        (f"org-{number}", "lead-1", rng.choice(NAMES), rng.choice(TIMES))
        for number in range(ORGANIZATIONS)
        if rng.random() < 0.8
    ]
    stand = {organization: (time, name) for organization, _, name, time in known}
    expected = {
        organization: (name, time, organization not in stand)
        for organization, _, name, time in said
        if organization not in stand or (time, name) > stand[organization]
    }
    rows = changed_names(spark.createDataFrame(said, NAMES_DDL), spark.createDataFrame(known, NAMES_DDL)).collect()
    assert len(rows) == len(expected)
    found = {r["organization_id"]: (r["name"], r["name_ts"].astimezone(UTC), r["is_new"]) for r in rows}
    assert found == expected
    kinds = {is_new for _, _, is_new in expected.values()}
    assert kinds == {True, False}
    assert len(expected) < ORGANIZATIONS
