"""What a message may hold."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal, get_args

from pydantic import Field, field_validator

from engagement_platform.settings.section import Section

MessageField = Literal[
    "attributes", "channel", "engagement_date_from", "engagement_date_to", "engagement_id", "engagement_ts",
    "execution_ts", "from_id", "name", "operation", "organization_id", "person_id", "person_name", "request_id",
    "subject", "to_id", "type", "version",
]  # fmt: skip
"""Fields of engagements and of mutation requests."""


class DecodingSettings(Section):
    max_bytes: int = Field(default=1024 * 1024, ge=2, description="Larger messages are quarantined as too_large.")
    max_depth: int = Field(default=32, ge=1, le=200, description="Deeper nested messages are quarantined as too_deep.")
    max_id_length: int = Field(default=256, ge=1, description="Longest id, in Unicode code points.")
    earliest: datetime = Field(
        default=datetime(2000, 1, 1, tzinfo=UTC), description="Times before it are quarantined as time_out_of_range."
    )
    max_ahead: timedelta = Field(
        default=timedelta(days=1), description="Times further ahead of ingestion are quarantined as time_out_of_range."
    )
    unknown_fields: Literal["ignore", "quarantine"] = Field(
        default="ignore", description="What happens to a message with fields nobody declared: `ignore` counts them."
    )
    aliases: dict[str, MessageField] = Field(
        default={},
        description='How producers spell fields of engagements and mutation requests otherwise, such as {"OrgId": '
        '"organization_id"}. A message that has both goes to quarantine as duplicate_key.',
    )

    @field_validator("aliases")
    @classmethod
    def _no_field_is_an_alias(cls, aliases: dict[str, MessageField]) -> dict[str, MessageField]:
        if fields := sorted(aliases.keys() & set(get_args(MessageField))):
            raise ValueError(f"{', '.join(fields)}: a field of engagements or requests cannot be another spelling")
        return aliases
