"""Worlds for mutation tests: those of ingestion."""

from engagement_platform_tests.ingestion.conftest import make_world, world

__all__ = ["make_world", "world"]
