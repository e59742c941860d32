"""What a decoded message is, and the stable reasons why one is refused. The rules themselves are `decoding`.

Standard library only at run time: these values travel into Spark's Python workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from engagement_platform.settings import DecodingSettings


@dataclass(frozen=True)
class DecodingLimits:
    """How large, deep and old a message may be. Bytes, levels of nesting, code points; the boundaries are fine."""

    max_bytes: int = 1024 * 1024
    max_depth: int = 32
    max_id_length: int = 256
    earliest: datetime = datetime(2000, 1, 1, tzinfo=UTC)
    """Without an offset it is taken as UTC."""
    max_ahead: timedelta = timedelta(days=1)
    unknown_fields: Literal["ignore", "quarantine"] = "ignore"
    aliases: tuple[tuple[str, str], ...] = ()
    """Other spellings of fields of engagements and requests, and which field each means."""

    @classmethod
    def of(cls, settings: DecodingSettings) -> DecodingLimits:
        """The limits that the settings name."""
        return cls(**{**settings.model_dump(), "aliases": tuple(settings.aliases.items())})


class Reason(StrEnum):
    """Why a message was refused. The codes are stored in the quarantine and named by redrives: never rename one."""

    EMPTY = "empty"
    TOO_LARGE = "too_large"
    NOT_UTF8 = "not_utf8"
    BYTE_ORDER_MARK = "byte_order_mark"
    TOO_DEEP = "too_deep"
    NOT_JSON = "not_json"
    TRAILING_CONTENT = "trailing_content"
    NOT_AN_OBJECT = "not_an_object"
    DUPLICATE_KEY = "duplicate_key"
    BAD_NUMBER = "bad_number"
    UNPAIRED_SURROGATE = "unpaired_surrogate"
    MISSING_FIELD = "missing_field"
    WRONG_TYPE = "wrong_type"
    EMPTY_ID = "empty_id"
    ID_TOO_LONG = "id_too_long"
    CONTROL_CHARACTER = "control_character"
    BLANK_END = "blank_end"
    RESERVED_ID = "reserved_id"
    BAD_TIME = "bad_time"
    TIME_WITHOUT_OFFSET = "time_without_offset"
    TIME_OUT_OF_RANGE = "time_out_of_range"
    BAD_VERSION = "bad_version"
    UNKNOWN_FIELDS = "unknown_fields"
    UNKNOWN_OPERATION = "unknown_operation"
    MISSING_FROM_ID = "missing_from_id"
    MISSING_TO_ID = "missing_to_id"
    MISSING_NAME = "missing_name"
    MISSING_ENGAGEMENT_ID = "missing_engagement_id"
    NO_TARGET = "no_target"
    SELF_CONVERSION = "self_conversion"
    BAD_DATE = "bad_date"
    REVERSED_RANGE = "reversed_range"
    UNKNOWN_OP = "unknown_op"
    NUMBER_OUT_OF_RANGE = "number_out_of_range"
    TOO_LATE = "too_late"
    ERASED = "erased"


SENTENCES: dict[Reason, str] = {
    Reason.EMPTY: "The message has no content.",
    Reason.TOO_LARGE: "The message is larger than decoding.max_bytes.",
    Reason.NOT_UTF8: "The message is not UTF-8.",
    Reason.BYTE_ORDER_MARK: "The message starts with a byte order mark; send UTF-8 without one.",
    Reason.TOO_DEEP: "The message is nested deeper than decoding.max_depth.",
    Reason.NOT_JSON: "The message is not JSON.",
    Reason.TRAILING_CONTENT: "Something follows the JSON value; one message holds one object.",
    Reason.NOT_AN_OBJECT: "The message is JSON, but not an object.",
    Reason.DUPLICATE_KEY: "A key stands twice in one object, so which value counts is anybody's guess.",
    Reason.BAD_NUMBER: "A number is NaN, infinite or beyond what a double holds.",
    Reason.UNPAIRED_SURROGATE: "A string holds half of a surrogate pair, which is no character.",
    Reason.MISSING_FIELD: "{field} is missing or null, and required.",
    Reason.WRONG_TYPE: "{field} has the wrong JSON type.",
    Reason.EMPTY_ID: "{field} is empty.",
    Reason.ID_TOO_LONG: "{field} is longer than decoding.max_id_length.",
    Reason.CONTROL_CHARACTER: "{field} holds a control character.",
    Reason.BLANK_END: "{field} begins or ends with a blank.",
    Reason.RESERVED_ID: "{field} is the value that partitioning reserves for null.",
    Reason.BAD_TIME: "{field} is not an ISO 8601 time such as 2026-01-31T23:59:59.123456Z.",
    Reason.TIME_WITHOUT_OFFSET: "{field} has no offset from UTC; append Z or one such as +01:00.",
    Reason.TIME_OUT_OF_RANGE: "{field} is before decoding.earliest or more than decoding.max_ahead after ingestion.",
    Reason.BAD_VERSION: "{field} is not between 1 and 9223372036854775807.",
    Reason.UNKNOWN_FIELDS: "The message has fields that nobody declared, and decoding.unknown_fields is quarantine.",
    Reason.UNKNOWN_OPERATION: "{field} is not one of CONVERT, DELETE, RENAME, UPDATE.",
    Reason.MISSING_FROM_ID: "{field} is missing or null; this operation needs it.",
    Reason.MISSING_TO_ID: "{field} is missing or null; CONVERT needs it.",
    Reason.MISSING_NAME: "{field} is missing or null; RENAME needs it.",
    Reason.MISSING_ENGAGEMENT_ID: "{field} is missing or null; UPDATE needs it.",
    Reason.NO_TARGET: "A DELETE names neither from_id nor engagement_id.",
    Reason.SELF_CONVERSION: "A CONVERT has the same from_id and to_id.",
    Reason.BAD_DATE: "{field} is not a date such as 2026-01-31.",
    Reason.REVERSED_RANGE: "engagement_date_from is after engagement_date_to.",
    Reason.UNKNOWN_OP: "{field} is not one of INSERT, UPDATE, DELETE.",
    Reason.NUMBER_OUT_OF_RANGE: "{field} is not a whole number of 64 bits.",
    Reason.TOO_LATE: "execution_ts is further back than mutation.max_lateness at the time the request was produced.",
    Reason.ERASED: "The message was about somebody who is erased; nothing of it is kept.",
}


class Rejection(NamedTuple):
    """Why a message was refused: a code for programs, a sentence for people. Never holds any of the content."""

    code: Reason
    sentence: str


class Engagement(NamedTuple):
    """One engagement as its message says it. Ids verbatim, times in UTC to the microsecond.

    In the order of the decoded columns, so that a batch becomes columns without touching each row again.
    """

    unknown_fields: int
    organization_id: str
    engagement_date: date
    """UTC date of engagement_ts."""
    engagement_ts: datetime
    engagement_id: str
    person_id: str
    person_name: str | None
    version: int
    type: str
    channel: str | None
    subject: str | None
    attributes: dict[str, str] | None


class MutationRequest(NamedTuple):
    """One mutation request; fields that its operation does not use are None whatever the message said."""

    unknown_fields: int
    request_id: str
    organization_id: str
    operation: str
    """CONVERT, DELETE, RENAME or UPDATE."""
    from_id: str | None
    to_id: str | None
    name: str | None
    engagement_id: str | None
    type: str | None
    channel: str | None
    subject: str | None
    attributes: dict[str, str | None] | None
    """UPDATE: keys to set, and with None to remove."""
    set_null: list[str] | None
    """UPDATE: which of channel and subject the message clears by an explicit null; None for other operations."""
    engagement_date_from: date | None
    engagement_date_to: date | None
    execution_ts: datetime


ValueType = Literal["string", "long", "double", "boolean", "date", "timestamp"]
"""Types that a column of a declared entity can have."""


@dataclass(frozen=True)
class ChangeShape:
    """What a change of a declared entity may say: names of its key and version, and its columns with their types."""

    key: str
    version: str
    columns: tuple[tuple[str, ValueType], ...]
    never_empty: frozenset[str] = frozenset()
    """Columns in which an empty string is refused: as a partition value it would come back as null (Delta protocol)."""


class Change(NamedTuple):
    """One partial update of an entity. A DELETE says nothing but that."""

    unknown_fields: int
    key: str
    version: int
    op: str
    """INSERT, UPDATE or DELETE."""
    values: tuple[object, ...]
    """In the order of the declared columns; None: nothing was said, or it is among set_null."""
    set_null: list[str] | None
    """Columns that the change sets to null; None where there are none."""


EVENT_DATE = "event_date"
"""Column of a declared stream: the UTC day of its event time."""


@dataclass(frozen=True)
class RecordShape:
    """What a record of a declared stream may say: its columns with their types, and the rules of some of them."""

    columns: tuple[tuple[str, ValueType], ...]
    required: frozenset[str] = frozenset()
    """Columns that may not be null or missing."""
    ids: frozenset[str] = frozenset()
    """String columns that are ids: by the rules of ids, and never the value that partitioning reserves."""
    event_time: str | None = None
    """A timestamp; its UTC day becomes the column `event_date`."""


class Record(NamedTuple):
    """One record of a declared stream."""

    unknown_fields: int
    event_date: date | None
    """UTC day of the event time; None where the stream has none."""
    values: tuple[object, ...]
    """In the order of the declared columns; None: nothing was said."""
