"""Incremental readers."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field

from engagement_platform.settings.section import Section


class ConsumerSettings(Section):
    """How long a consumer of changes may be behind, and what is kept for it meanwhile."""

    max_lag: timedelta = Field(
        default=timedelta(hours=1),
        description="The check `consumers_keep_up` warns when the oldest change that a consumer has not read is older.",
    )
    keep_for: timedelta = Field(
        default=timedelta(days=14),
        description="What a consumer has yet to read is kept from VACUUM until it has committed nothing for so long; "
        "from then on its next read may be refused, with the advice to take a snapshot. One that nobody runs any more "
        "would otherwise keep files for ever.",
    )
    poll: timedelta = Field(
        default=timedelta(seconds=1),
        description="How often `consume --follow` looks for new changes; one small request.",
    )
