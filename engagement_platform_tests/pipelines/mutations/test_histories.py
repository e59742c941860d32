"""Random histories of engagements and requests through real topics and tables: the rows of a loop over the messages.

Many histories share one lake, each as an organization of its own, so that a dozen cost little more than one. The rules
alone meet thousands in `pipelines.test_histories`; here are the jobs, with batches and moves in any order.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from engagement_platform.lake.engagement import NOTIFICATION, QUARANTINE
from engagement_platform.pipelines.jobs import INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS
from engagement_platform.pipelines.mutations.move import REMATERIALIZE_ALIASES
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.pipelines.snapshot import snapshot
from engagement_platform.settings import LayoutSettings, MutationSettings
from engagement_platform_tests.ingestion.conftest import MakeWorld
from engagement_platform_tests.ingestion.test_crashes import Crash, crash_at
from engagement_platform_tests.ingestion.world import World
from engagement_platform_tests.matrix import quick
from engagement_platform_tests.pipelines.mutations.histories import Message, engagement, random_history, request
from engagement_platform_tests.pipelines.mutations.oracle import Row, is_request, replay

pytestmark = [pytest.mark.broker]

JOBS = (INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS, APPLY_MUTATIONS, REMATERIALIZE_ALIASES)
SCHEMES = ("liquid", "organization", "organization_date")


def interleaved(histories: list[list[Message]], rng: random.Random) -> list[Message]:
    """All messages, each history in its own order."""
    left = [list(history) for history in histories if history]
    mixed = []
    while left:
        history = rng.choice(left)
        mixed.append(history.pop(0))
        left = [history for history in left if history]
    return mixed


def produce(world: World, messages: Sequence[Message]) -> None:
    """Put messages on their topics."""
    world.produce([message for message in messages if not is_request(message)])
    world.produce_requests([message for message in messages if is_request(message)])


def send(world: World, messages: list[Message], rng: random.Random, batches: int, *, interrupted: bool = False) -> None:
    """Messages in their order, cut into so many batches of each job, which run in random order; at last all is told.

    interrupted: every other batch ends at some point first.
    """
    cuts = sorted(rng.randrange(len(messages)) for _ in range(batches - 1))
    for begin, end in zip([0, *cuts], [*cuts, len(messages)], strict=True):
        produce(world, messages[begin:end])
        for job in rng.sample(JOBS, len(JOBS)):
            if interrupted and rng.random() < 0.5:
                with suppress(Crash):
                    world.run(crash_at(rng.choice(world.job(name=job).crash_points)), name=job)
            world.run(name=job)
    for job in JOBS[:3]:
        world.run(name=job)


def standing_rows(world: World) -> dict[tuple[str, str], Row]:
    """The rows that readers see, through their view."""
    return as_rows(world.current())


def as_rows(rows: Iterable[dict[str, Any]]) -> dict[tuple[str, str], Row]:
    """Rows of the Data Table as the oracle has them."""
    found = {}
    for row in rows:
        key = (row["organization_id"], row["engagement_id"])
        assert key not in found, f"{key} stands twice"
        said = row["engagement"]
        found[key] = Row(
            person_id=row["person_id"],
            source_person_id=row["source_person_id"],
            engagement_ts=row["engagement_ts"],
            version=row["version"],
            type=said["type"],
            channel=said["channel"],
            subject=said["subject"],
            attributes=said["attributes"],
        )
    return found


def standing_names(world: World) -> dict[tuple[str, str], Any]:
    """The names that readers see, through their view."""
    rows = world.names()
    assert len({row[:2] for row in rows}) == len(rows), "a person stands twice"
    return {(organization, person): (name, name_ts) for organization, person, name, name_ts in rows}


def assert_announced(world: World, rows: dict[tuple[str, str], Row]) -> None:
    """Followed in their order, the notifications lead to the rows: nothing is announced that cannot be seen."""
    seen: dict[tuple[str, str], str] = {}
    ids = set()
    for row in sorted(world.rows(NOTIFICATION), key=lambda row: row["batch_sequence"]):
        assert row["notification_id"] not in ids, "a notification stands twice"
        ids.add(row["notification_id"])
        key = (row["organization_id"], row["engagement_id"])
        assert seen.get(key) == row["previous_person_id"], f"{key}: {row}"
        expected = "DELETE" if row["person_id"] is None else "UPDATE" if row["previous_person_id"] else "INSERT"
        assert row["change_type"] == expected
        seen[key] = row["person_id"]
    assert {key: person for key, person in seen.items() if person} == {k: row.person_id for k, row in rows.items()}


def assert_as_a_loop_over(histories: list[list[Message]], world: World) -> None:
    """The rows, names, notifications and refusals of a loop over each history; and no others once all is moved."""
    tables = [replay(history) for history in histories]
    expected = {key: row for table in tables for key, row in table.data.items()}
    names = {key: name for table in tables for key, name in table.names.items()}
    assert standing_rows(world) == expected
    assert standing_names(world) == names
    assert_announced(world, expected)
    reasons = [reason for table in tables for reason in table.refused.values()]
    selfs = sum(m.get("operation") == "CONVERT" and m["from_id"] == m["to_id"] for h in histories for m in h)
    quarantined = [row["reason_code"] for row in world.rows(QUARANTINE)]
    assert sorted(quarantined) == sorted([*reasons, *["self_conversion"] * selfs])
    world.run(name=REMATERIALIZE_ALIASES)
    assert not snapshot(world.lake.root).pends
    assert as_rows(row for row in world.rows(world.data) if row["person_id"] is not None) == expected
    assert standing_names(world) == names


PATCHED = "as patched"
SUPERSEDED_AND_PATCHED: list[Message] = [
    engagement("e1", "p1", 10, subject="as sent"),
    request("r1", "UPDATE", 20, engagement_id="e1", subject=PATCHED),
    engagement("e1", "p2", 10, version=3, subject="newer"),
    # What readers saw said so, but no event did.
    engagement("e1", "p1", 10, subject=PATCHED, person_name="Zz"),
    engagement("e1", "p1", 10, subject="as sent"),
]


def assert_random_histories(world: World, seeds: Iterable[int], batches: int, *, interrupted: bool = False) -> None:
    """All histories through one lake."""
    rng = random.Random(20261121)
    histories = [SUPERSEDED_AND_PATCHED, *(random_history(seed, conflicts=seed % 4 == 0) for seed in seeds)]
    send(world, interleaved(histories, rng), rng, batches, interrupted=interrupted)
    assert_as_a_loop_over(histories, world)


def test_random_histories_end_in_the_rows_of_a_loop_over_their_messages(world: World) -> None:
    assert_random_histories(world, range(12), 3)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", quick(SCHEMES, 0))
def test_hundreds_of_histories_end_in_the_rows_of_a_loop_over_their_messages(
    make_world: MakeWorld, scheme: Any
) -> None:
    """Whatever was interrupted on the way, and under every layout."""
    apply: Any = dict(zip(SCHEMES, ("merge", "overwrite", "deletion_vectors"), strict=True))[scheme]
    world = make_world(layout=LayoutSettings(auto_compact=False, scheme=scheme), mutation=MutationSettings(apply=apply))
    assert_random_histories(world, range(1000, 1120), 6, interrupted=True)
