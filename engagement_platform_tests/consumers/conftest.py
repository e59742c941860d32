"""Worlds for consumer tests that need Spark: those of ingestion."""

from engagement_platform_tests.ingestion.conftest import make_world, world

__all__ = ["make_world", "world"]
