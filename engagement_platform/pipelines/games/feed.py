"""What comes through one queue: types of events, the group that their tables are of, and where their objects are.

Declarations only. The feed that ships is `game`, at the place that the settings name; others are declared in files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from engagement_platform.lake.contract import Table
from engagement_platform.pipelines.games.event_type import GROUP, quarantine_of
from engagement_platform.pipelines.games.registry import Registry, registry
from engagement_platform.settings import Settings


@dataclass(frozen=True)
class Feed:
    """Events of some types, one table each, and a table of refused ones."""

    group: str
    """First part of the tables' names."""
    types: Registry
    own: Mapping[str, str] = field(default_factory=dict)
    """Settings of `games` that are its own: queue_url, bucket and prefix of a declared feed; the others are those of
    everybody."""

    @property
    def job(self) -> str:
        """Name of the job that fills the tables, such as `ingest-arcade-events`."""
        return f"ingest-{self.group}-events"

    @property
    def replay_job(self) -> str:
        """Name of the job that reads objects once more."""
        return f"replay-{self.group}-events"

    @property
    def quarantine(self) -> Table:
        return quarantine_of(self.group)

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        """The tables that a batch writes, in its order: of refused events, then of each type."""
        return (self.quarantine, *(declared.table for declared in self.types.values()))

    def settings(self, settings: Settings) -> Settings:
        """The settings as its jobs go by them."""
        return settings.model_copy(update={"games": settings.games.model_copy(update=dict(self.own))})


def shipped(settings: Settings) -> Feed:
    """Game events: the types that ship, and those of `games.declarations`. Raises EventTypeRefused."""
    return Feed(GROUP, registry(settings.games.declarations))
