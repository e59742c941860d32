"""What restores of entities are tried on: batches that land and are moved, also while the other is at work."""

from __future__ import annotations

import shutil
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engagement_platform.engine.job import Callbacks, MicroBatchJob, Observer
from engagement_platform.maintenance.rollback.groups import Group, of_entity
from engagement_platform.maintenance.rollback.job import Restoring
from engagement_platform.pipelines.profiles.snapshot import snapshot
from engagement_platform_tests.maintenance.rollback.moved_topics import forget_identities
from engagement_platform_tests.pipelines.profiles.histories import seen_by_rules, side_by_side
from engagement_platform_tests.pipelines.profiles.oracle import Row, replay
from engagement_platform_tests.pipelines.profiles.world import World, ignore

SEED, HISTORIES, BATCHES = 7, 12, 8


class Ticking(World):
    """With clocks that go, since a restore may be to a time."""

    def ingestion(self, observe: Observer = ignore) -> MicroBatchJob[Any]:
        return replace(super().ingestion(observe), clock=lambda: datetime.now(UTC))

    def rematerialization(self, observe: Observer = ignore, later: Any = None) -> MicroBatchJob[Any]:
        return replace(super().rematerialization(observe), clock=lambda: datetime.now(UTC))

    @property
    def group(self) -> Group:
        return of_entity(self.settings, self.entity, self.topic)

    @property
    def versions(self) -> dict[str, int]:
        return {table.name: self.lake.version(table) for table in self.group.tables}

    def restoring(self, observe: Observer = ignore) -> Restoring:
        return Restoring(self.lake, self.stores, Callbacks(observe=observe))

    def rows_at(self, versions: dict[str, int]) -> list[Row]:
        """What readers see at versions of changeset and base."""
        changeset, base = (versions[table.name] for table in (self.entity.changeset, self.entity.base))
        at = snapshot(self.lake.root, self.entity, changeset_version=changeset, base_version=base)
        return seen_by_rules(self.lake.root, self.entity, at)

    def under(self, home: Path, topic: str | None = None) -> Ticking:
        """The same with a copy of lake and stores. topic: another one, with the same messages."""
        shutil.copytree(self.home, home)
        other = copy(self)
        for made in ("settings", "stores", "lake"):
            other.__dict__.pop(made, None)
        other.home, other.landed = home, [*self.landed]
        if topic is not None:
            other.topic, other.landed = topic, []
            self.broker.create_topic(topic)
            other.send(self.landed)
            forget_identities(other.stores.leases.engine)
        return other


@dataclass
class Landed:
    """A world in which batches landed and were moved, and how many changes each batch brought."""

    world: Ticking
    sizes: list[int] = field(default_factory=list)
    ends: list[datetime] = field(default_factory=list)
    """When each had landed, of those that did so while nothing else was at work."""

    def seen(self, batches: int) -> list[Row]:
        """What readers see after so many batches, by a plain replay."""
        return replay(self.world.landed[: sum(self.sizes[:batches])], self.world.entity)


def filled(world: Ticking) -> Landed:
    """Eight batches and six moves: 0, move of 0, 1, 2, [3 begins, move of 1 and 2, 3 lands], [the base has 3, 4 lands,
    3 leaves the changeset], move of 4, 5, [move of 5 begins, 6 lands, it ends], move of 6, 7."""
    made = Landed(world)
    batches = side_by_side(SEED, world.entity, HISTORIES, BATCHES)
    made.sizes = [len(batch) for batch in batches]
    assert all(made.sizes), "a batch is empty"
    waiting = iter(batches)

    def land(observe: Observer = ignore) -> None:
        world.send(next(waiting))
        world.ingest(observe)

    def once(point: str, work: Any) -> Observer:
        left = [work]

        def observe(passed: str) -> None:
            if passed == point and left:
                left.pop()()

        return observe

    land()
    world.move()
    land()
    land()
    made.ends.append(datetime.now(UTC))
    land(once("manifest:after", world.move))
    world.move(once("base.write:after", land))
    land()
    world.move(once("manifest:after", land))
    land()
    assert next(waiting, None) is None
    assert world.seen_by_rules() == world.expected()
    return made
