"""Profiles as Dagster sees them: the entity that ships, under the policies of the settings."""

from __future__ import annotations

from engagement_platform.defs.entity import EntityParts
from engagement_platform.defs.specs import PROFILE_CHANGES_TOPIC
from engagement_platform.pipelines.profiles.entity import PROFILE, profile
from engagement_platform.settings import Settings


def _topic(settings: Settings) -> str:
    return settings.kafka.profile_changes_topic


PROFILES = EntityParts(PROFILE, PROFILE_CHANGES_TOPIC, _topic, profile)
