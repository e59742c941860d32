"""A consumer without a JVM: what it is given, where it goes on after a crash, and what it is told when it was away."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engagement_platform.consumers import Batch
from engagement_platform.settings import LayoutScheme, LayoutSettings
from engagement_platform_tests.consumers.lakes import PlainLake, Replica, Rows, by_key
from engagement_platform_tests.mutation.histories import (
    Message,
    convert,
    delete,
    engagement,
    random_history,
    request,
)


@pytest.fixture
def lake(tmp_path: Path) -> PlainLake:
    return PlainLake(tmp_path)


def told(batch: Batch) -> dict[str, dict[str, Any]]:
    """Kind -> engagement -> (person, previous person)."""
    found: dict[str, dict[str, Any]] = {}
    for kind, table in (("INSERT", batch.inserts), ("UPDATE", batch.updates), ("DELETE", batch.deletes)):
        for (_, name), row in by_key(table).items():
            found.setdefault(kind, {})[name] = (row.get("person_id"), row.get("previous_person_id"))
    return found


def test_a_batch_has_rows_as_they_are_now_under_the_identity_of_now(lake: PlainLake) -> None:
    lake.land([engagement("e1", "p1", 10, subject="hello"), engagement("e2", "p2", 10), engagement("e3", "p3", 10)])
    changes = lake.changes()
    (batch,) = list(changes)
    assert told(batch) == {"INSERT": {"e1": ("p1", None), "e2": ("p2", None), "e3": ("p3", None)}}
    assert by_key(batch.inserts) == lake.standing()
    changes.commit()
    lake.ask([convert("c1", "p1", "p2", 20), delete("d1", 21, from_id="p3")])
    lake.ask([request("u1", "UPDATE", 22, engagement_id="e2", subject="corrected")])
    (batch,) = list(changes)
    assert told(batch) == {"UPDATE": {"e1": ("p2", "p1"), "e2": ("p2", "p2")}, "DELETE": {"e3": (None, "p3")}}
    assert by_key(batch.updates)["org", "e2"]["engagement"]["subject"] == "corrected"


def messages_of(seeds: Sequence[int], rng: random.Random) -> list[list[Message]]:
    """Histories of some organizations in one order, cut into parts."""
    left = [random_history(seed, size=16) for seed in seeds]
    mixed: list[Message] = []
    while any(left):
        mixed.append(rng.choice([history for history in left if history]).pop(0))
    cuts = sorted(rng.randrange(len(mixed)) for _ in range(5))
    return [mixed[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(mixed)], strict=True)]


@pytest.mark.parametrize("scheme", ["organization", "organization_date"])
@pytest.mark.parametrize("seed", range(2))
def test_a_replica_equals_the_table_whatever_happened_and_whenever_it_crashed(
    tmp_path: Path, scheme: LayoutScheme, seed: int
) -> None:
    assert_a_replica_follows(tmp_path, scheme, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 130))
def test_many_replicas_equal_their_tables(tmp_path: Path, seed: int) -> None:
    assert_a_replica_follows(tmp_path, "organization", seed)


def assert_a_replica_follows(home: Path, scheme: LayoutScheme, seed: int) -> None:
    lake = PlainLake(home, LayoutSettings(auto_compact=False, scheme=scheme))
    rng, replica = random.Random(seed), Replica()
    for part in messages_of(range(seed * 10, seed * 10 + 5), rng):
        for asked in rng.sample((True, False), 2):
            some = [message for message in part if ("request_id" in message) is asked]
            # Decoding refuses conversions of an id to itself.
            some = [message for message in some if not asked or message.get("from_id") != message.get("to_id", "")]
            if some and asked:
                lake.ask(some, rng.choice(("alias", "alias", "merge")))
            elif some:
                lake.land(some)
        changes = lake.changes(max_rows=rng.choice((1, 3, 7, 1000)))
        for batch in changes:
            replica.apply(batch)
            if rng.random() < 0.3:
                break  # it dies before it commits
            changes.commit()
    replica.follow(lake.changes(max_rows=5))
    assert without_batch(replica.rows) == without_batch(lake.standing())
    assert by_key(lake.changes("another").resnapshot().table()) == lake.standing()


def without_batch(rows: Rows) -> Rows:
    """Moving rows to the identity that readers see already stamps them anew and is not announced."""
    return {key: {name: value for name, value in row.items() if name != "batch_id"} for key, row in rows.items()}
