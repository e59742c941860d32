"""Worlds for restores: those of ingestion, and copies of one that is filled already."""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from engagement_platform.pipelines.mutations.move import REMATERIALIZE_ALIASES
from engagement_platform_tests.conftest import Broker
from engagement_platform_tests.ingestion.conftest import make_world, world
from engagement_platform_tests.ingestion.oracle import as_bytes
from engagement_platform_tests.ingestion.world import World
from engagement_platform_tests.maintenance.rollback.filled import FIRST, LATER, REQUESTS, Filled, send, versions
from engagement_platform_tests.maintenance.rollback.moved_topics import forget_identities

__all__ = ["make_world", "world"]


@pytest.fixture(scope="session")
def filled(spark: SparkSession, broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """Made once, since that takes ten runs; tests work on copies of its folder."""
    world = World(spark, broker, tmp_path_factory.mktemp("filled"))
    world.ticks = True
    filled = Filled(world)
    for name, messages in {"first": FIRST, "requests": REQUESTS, "moved": [], "later": LATER}.items():
        if messages:
            send(world, messages)
        else:
            world.run(name=REMATERIALIZE_ALIASES)
        filled.ends[name] = versions(world)
    return filled


@pytest.fixture
def three(filled: Filled, tmp_path: Path) -> World:
    """A copy of its lake and stores that reads the same topics, for those who produce nothing."""
    shutil.copytree(filled.world.home, tmp_path / "copy")
    return filled.world.under(home=tmp_path / "copy", _ticked=[*filled.world._ticked])


@pytest.fixture
def own(three: World) -> World:
    """The same with topics of its own, on which the same messages have the same offsets."""
    topics = tuple(f"{topic}-{uuid4().hex[:8]}" for topic in three.topics)
    for topic, messages in zip(topics, ([*FIRST, *LATER], REQUESTS), strict=True):
        three.broker.create_topic(topic)
        three.broker.produce(topic, [(0, None, as_bytes(message)) for message in messages])
    moved = three.under(topics=topics)
    forget_identities(moved.stores.leases.engine)
    return moved
