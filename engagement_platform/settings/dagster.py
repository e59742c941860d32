"""What Dagster does by itself, and how often it records what was done."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field

from engagement_platform.settings.section import Section


class DagsterSettings(Section):
    automation: Literal["running", "stopped"] = Field(
        default="stopped",
        description="State in which sensors and schedules are loaded, until somebody switches them in the UI. "
        "`engagement-platform up` sets `running`.",
    )
    report_interval: timedelta = Field(
        default=timedelta(minutes=5),
        description="How often a run that drains for long materializes its assets, with the sums of its batches. "
        "Open-source Dagster removes no event, so a materialization for each batch would fill its database.",
    )
