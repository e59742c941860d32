"""Which pipelines run, and the page views pipeline."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field

from engagement_platform.settings.section import Section


class PipelinesSettings(Section):
    """Which pipelines run. One that is off has no assets, checks, sensors, services and sample traffic; its tables
    stay, and its jobs can be run by hand."""

    engagements: bool = Field(
        default=True, description="Engagements, mutation requests, names and their notifications."
    )
    profiles: bool = Field(default=True, description="Profiles by merge on read.")
    games: bool = Field(
        default=True, description="Events of games: queue and bucket, ingest server, tables and live operations."
    )
    page_views: bool = Field(
        default=True,
        description="Page views, sessions and days: three streams, run every five minutes while views wait. Without "
        "the topic they rest.",
    )

    def has(self, table: str) -> bool:
        """Whether the pipeline that fills a table of this name is on; always for tables of no pipeline here."""
        names = {"engagement": self.engagements, "profile": self.profiles, "game": self.games, "view": self.page_views}
        return names.get(table.partition("/")[0], True)


class PageViewsSettings(Section):
    """Page views, sessions of them, and days of those."""

    topic: str = Field(default="page-views", description="Topic of page views.")
    session_gap: timedelta = Field(
        default=timedelta(minutes=30),
        gt=timedelta(0),
        description="A longer pause between two views of a user begins a new session. Do not change it while the "
        "streams have a checkpoint: what is open is kept under the old one.",
    )
    max_late: timedelta = Field(
        default=timedelta(hours=1),
        description="Views that come so long after newer ones still count; later ones are counted as late and stand in "
        "view/page_view only. Every session is written that much later.",
    )
