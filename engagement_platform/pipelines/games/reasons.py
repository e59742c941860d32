"""Why an event is refused, beside what makes any message unreadable (`sources.messages`)."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from engagement_platform.settings import Settings
from engagement_platform.sources.messages import DecodingLimits


class GameReason(StrEnum):
    """Codes that stand in `game/quarantine`: never rename one."""

    UNKNOWN_EVENT_TYPE = "unknown_event_type"
    BAD_GAME_ID = "bad_game_id"
    LATE = "late"
    FUTURE = "future"
    NOT_ALLOWED = "not_allowed"
    OUT_OF_RANGE = "out_of_range"
    PERSONAL_DATA = "personal_data"


SENTENCES: dict[GameReason, str] = {
    GameReason.UNKNOWN_EVENT_TYPE: "No declaration has this event_type.",
    GameReason.BAD_GAME_ID: "game_id has other characters than letters, digits, - . and _, or more than 64.",
    GameReason.LATE: "event_ts is more than games.max_lateness before the object arrived.",
    GameReason.FUTURE: "event_ts is more than games.max_ahead after the object arrived.",
    GameReason.NOT_ALLOWED: "{field} has a value that the declaration does not allow.",
    GameReason.OUT_OF_RANGE: "{field} is below or above what the declaration allows.",
    GameReason.PERSONAL_DATA: "{field} is personal data, which should have been taken out before.",
}


class Refusal(NamedTuple):
    """Why an event was refused: a code for programs, a sentence without any of its content."""

    code: str
    sentence: str
    event_type: str | None
    """What it calls itself, where that could be read."""

    @property
    def is_kept(self) -> bool:
        """Whether the line itself may stand in quarantine."""
        return self.code != GameReason.PERSONAL_DATA


class EventLimits(NamedTuple):
    """How an event may be: what holds for any message, and how far its time may be from the arrival of its object."""

    decoding: DecodingLimits
    max_lateness: timedelta
    max_ahead: timedelta

    @classmethod
    def of(cls, settings: Settings) -> EventLimits:
        """The limits that the settings name."""
        return cls(DecodingLimits.of(settings.decoding), settings.games.max_lateness, settings.games.max_ahead)

    def refused_time(self, event_ts: datetime, arrived: datetime) -> GameReason | None:
        """Why a time cannot be taken; both ends are fine.

        Against the arrival of the object and not of the batch: when the platform was down for a week, nothing that
        came in time is late, and a replay decides as the first reading did.
        """
        if arrived - event_ts > self.max_lateness:
            return GameReason.LATE
        return GameReason.FUTURE if event_ts - arrived > self.max_ahead else None
