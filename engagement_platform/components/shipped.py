"""The platform's own profiles and game events, made by the components that people declare theirs with.

What differs is what only the platform can know: topics, queues and policies are those of its settings when a run
begins, and the layout of its tables is examined by one job for all of them (`defs.layout`). Engagements stand apart: a
change of one moves rows of many tables, and what lands and cascades there no declaration can say.
"""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from engagement_platform.components.merge_on_read_entity import MergeOnReadEntity
from engagement_platform.components.s3_sqs_tables import S3SqsTables
from engagement_platform.defs.entity import EntityParts
from engagement_platform.defs.games import GAMES_GROUP, feed_definitions
from engagement_platform.defs.profile import PROFILES
from engagement_platform.pipelines.declarations.kinds import DeclaredColumn
from engagement_platform.pipelines.games.event_type import GROUP
from engagement_platform.pipelines.games.feed import Feed, shipped
from engagement_platform.pipelines.games.registry import SHIPPED
from engagement_platform.pipelines.profiles.entity import PROFILE
from engagement_platform.settings import Settings


class Profiles(MergeOnReadEntity):
    """Profiles of persons; their topic and policies are settings."""

    ours = True

    @property
    def parts(self) -> EntityParts:
        """Of the entity that is declared here, under the settings."""
        return PROFILES

    @property
    def examined(self) -> dg.Definitions:
        """Nothing: its tables are among those that `layout_after_writes` examines."""
        return dg.Definitions()


class GameEvents(S3SqsTables):
    """Events of games, of the types that ship and those of `games.declarations`; queue and bucket are settings."""

    ours = True
    name: str = GROUP
    queue_url: str = "games.queue_url"
    bucket: str = "games.bucket"
    types_folder: str | None = str(SHIPPED)

    def feed(self, beside: Path) -> Feed:  # noqa: ARG002
        """The types as they are declared now. Raises EventTypeRefused."""
        return shipped(Settings())

    def made(self, feed: Feed) -> dg.Definitions:
        """Assets, checks, jobs and sensor, in a group and pool of their own."""
        return feed_definitions(feed, GAMES_GROUP)


def profiles() -> Profiles:
    """The entity that ships, as it would stand in a `defs.yaml` file."""
    columns = {said.name: DeclaredColumn(type=said.type, description=said.comment) for said in PROFILE.attributes}
    return Profiles(
        topic=Settings().kafka.profile_changes_topic,
        name=PROFILE.name,
        key=PROFILE.key,
        version=PROFILE.version,
        columns=dict(columns),
        partitioned_by=list(PROFILE.partitioned_by),
    )


def definitions() -> dg.Definitions:
    """Profiles and game events, where these pipelines are on."""
    on, games = Settings().pipelines, GameEvents()
    made = [profiles().build_defs()] if on.profiles else []
    return dg.Definitions.merge(*made, *([games.made(games.feed(SHIPPED))] if on.games else []))
