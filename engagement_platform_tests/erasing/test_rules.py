"""Whose an engagement is that somebody said, was given, or had when it was deleted; against a walk along requests."""

from __future__ import annotations

from datetime import UTC, date, datetime
from random import Random
from typing import Any

from engagement_platform.erasing.rules import Belonging, leading_back, leading_on
from engagement_platform.pipelines.mutations.identity import ORDER, Edge

IDS = ("a", "b", "c", "d")
DAY = date(2026, 11, 20)


def at(hour: int) -> datetime:
    return datetime(2026, 11, 20, hour, tzinfo=UTC)


def edge(number: int, random: Random) -> Edge:
    from_id = random.choice(IDS)
    one = random.choice(["e", None, None])
    if random.random() < 0.3:
        whoever = one is not None and random.random() < 0.5
        return Edge("o", f"r{number}", "DELETE", None if whoever else from_id, None, one, None, None, at(number % 20))
    return Edge("o", f"r{number}", "CONVERT", from_id, random.choice(IDS), one, None, None, at(number % 20))


def walked(row: dict[str, Any], edges: list[Edge]) -> str:
    """Who had the row last."""
    person: str = row["source_person_id"]
    for one in sorted(edges, key=ORDER):
        if one.execution_ts > row["engagement_ts"] and one.applies_to(person, row["engagement_id"], DAY):
            if one.to_id is None:
                return person
            person = one.to_id
    return person


def test_rows_belong_to_who_said_them_or_had_them_last() -> None:
    held = 0
    for seed in range(500):
        random = Random(seed)
        edges = [edge(number, random) for number in random.sample(range(40), 8)]
        belonging = Belonging(edges, {"a"})
        for source in IDS:
            for engagement in ("e", "f"):
                row = {"organization_id": "o", "engagement_id": engagement, "engagement_date": DAY,
                       "engagement_ts": at(3), "source_person_id": source}  # fmt: skip
                wanted = source == "a" or walked(row, edges) == "a"
                by_engagement = any(one.from_id is None and one.execution_ts > at(3) for one in edges)
                if not (engagement == "e" and by_engagement):
                    assert belonging.holds(row) == wanted, (seed, row)
                elif wanted:
                    assert belonging.holds(row), (seed, row)
                held += source != "a" and wanted
                if wanted:
                    assert source in leading_back(edges, {"a"})
    assert held > 100, "nobody was converted to the person"


def test_a_tombstone_is_nobody_s() -> None:
    row = {"organization_id": "o", "engagement_id": "e", "engagement_date": DAY, "engagement_ts": at(1)}
    assert not Belonging([], {"a"}).holds({**row, "source_person_id": None})


def test_ids_are_found_before_and_after_through_any_number_of_edges() -> None:
    steps = [("a", "b"), ("b", "c"), ("c", "a"), ("d", "b"), ("c", "e")]
    edges = [Edge("o", f"r{n}", "CONVERT", *step, None, None, None, at(n)) for n, step in enumerate(steps)]
    assert leading_back(edges, {"b"}) == {"a", "b", "c", "d"}
    assert leading_on(edges, {"d"}) == {"a", "b", "c", "d", "e"}
    assert leading_back([], {"x"}) == leading_on([], {"x"}) == {"x"}
