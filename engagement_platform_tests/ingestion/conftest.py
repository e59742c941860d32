"""Worlds for ingestion tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from engagement_platform_tests.conftest import Broker
from engagement_platform_tests.ingestion.world import World

MakeWorld = Callable[..., World]


@pytest.fixture
def make_world(spark: SparkSession, broker: Broker, tmp_path: Path) -> MakeWorld:
    """Worlds with other settings than the usual ones; each has its own folder."""
    made: list[World] = []

    def make(**options: object) -> World:
        made.append(World(spark, broker, tmp_path / f"world-{len(made)}", **options))  # type: ignore[arg-type]
        return made[-1]

    return make


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """A fresh world with the usual settings."""
    return make_world()
