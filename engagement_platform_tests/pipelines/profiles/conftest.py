"""Worlds for tests of merge on read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from engagement_platform_tests.conftest import Broker
from engagement_platform_tests.pipelines.profiles.histories import PROFILE
from engagement_platform_tests.pipelines.profiles.world import World

MakeWorld = Callable[..., World]


@pytest.fixture
def make_world(spark: SparkSession, broker: Broker, tmp_path: Path) -> MakeWorld:
    """Worlds, each with its own folder; `entity` is profile unless told otherwise."""
    made: list[World] = []

    def make(**options: object) -> World:
        told = {"entity": PROFILE, **options}
        made.append(World(spark, broker, tmp_path / f"world-{len(made)}", **told))  # type: ignore[arg-type]
        return made[-1]

    return make
