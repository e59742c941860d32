"""What restores are tried on: two batches of engagements, and between them one of requests that are moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engagement_platform.maintenance.rollback.groups import engagements
from engagement_platform.pipelines.jobs import INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform_tests.ingestion.world import World
from engagement_platform_tests.pipelines.mutations import histories
from engagement_platform_tests.pipelines.mutations.histories import Message

FIRST: list[Message] = [
    histories.engagement("e1", "p1", 10, person_name="Ann", subject="as it was"),
    histories.engagement("e2", "p2", 11, person_name="Bo"),
    histories.engagement("e3", "p3", 12),
]
REQUESTS: list[Message] = [
    histories.convert("c1", "p1", "p2", 20),
    histories.delete("d1", 21, from_id="p3"),
    histories.request("u1", "UPDATE", 22, engagement_id="e2", subject="patched"),
    histories.request("r1", "RENAME", 23, from_id="p2", name="Dee"),
]
LATER: list[Message] = [
    histories.engagement("e1", "p1", 10, version=2, person_name="Zoe", subject="newer"),
    histories.engagement("e4", "p3", 13),
    histories.engagement("e5", "p5", 30, person_name="Eve"),
]
EVERYTHING = [*FIRST, *REQUESTS, *LATER]
JOBS = (INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS, APPLY_MUTATIONS)


def send(world: World, messages: Sequence[Message]) -> None:
    """Messages, and a batch of each job that finds any."""
    if said := [message for message in messages if "request_id" not in message]:
        world.produce(said)
    if asked := [message for message in messages if "request_id" in message]:
        world.produce_requests(asked)
    for job in JOBS:
        world.run(name=job)


def versions(world: World) -> dict[str, int]:
    return {table.name: world.lake.version(table) for table in engagements(world.settings).tables}


@dataclass(frozen=True)
class Filled:
    """A world with a batch of engagements, one of requests, a move, and another batch of engagements."""

    world: World
    ends: dict[str, dict[str, int]] = field(default_factory=dict)
    """Versions after each of them: first, requests, moved, later."""

    @property
    def between(self) -> dict[str, int]:
        """Versions after the first batch."""
        return self.ends["first"]
