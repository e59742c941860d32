"""Commits that the guards take for somebody else's, for tests of jobs that write in ways of their own."""

from __future__ import annotations

from engagement_platform.engine.job import Stores
from engagement_platform.maintenance.guards.rules import Looked
from engagement_platform.settings import Settings


def strangers(settings: Settings, stores: Stores) -> set[tuple[str, int]]:
    """Table and version of each."""
    return {(found.table, found.version) for found in Looked(settings, stores).foreign}
