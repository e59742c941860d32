"""What a decoded message is, and the stable reasons why one is refused. The rules themselves are `decoding`.

Standard library only at run time: these values travel into Spark's Python workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

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


class ReasonCode(StrEnum):
    """Why something was refused: a code, which is the value, and a sentence, which may have a place for a field."""

    sentence: str

    def __new__(cls, code: str, sentence: str = "") -> Self:
        made = str.__new__(cls, code)
        made._value_, made.sentence = code, sentence
        return made


class Reason(ReasonCode):
    """Why a message was refused. The codes are stored in the quarantine and named by redrives: never rename one."""

    def rejection(self, field: str = "") -> Rejection:
        """Of a message whose field breaks the rule."""
        return Rejection(self, self.sentence.format(field=field))

    EMPTY = ("empty", "The message has no content.")
    TOO_LARGE = ("too_large", "The message is larger than decoding.max_bytes.")
    NOT_UTF8 = ("not_utf8", "The message is not UTF-8.")
    BYTE_ORDER_MARK = ("byte_order_mark", "The message starts with a byte order mark; send UTF-8 without one.")
    TOO_DEEP = ("too_deep", "The message is nested deeper than decoding.max_depth.")
    NOT_JSON = ("not_json", "The message is not JSON.")
    TRAILING_CONTENT = ("trailing_content", "Something follows the JSON value; one message holds one object.")
    NOT_AN_OBJECT = ("not_an_object", "The message is JSON, but not an object.")
    DUPLICATE_KEY = ("duplicate_key", "A key stands twice in one object, so which value counts is anybody's guess.")
    BAD_NUMBER = ("bad_number", "A number is NaN, infinite or beyond what a double holds.")
    UNPAIRED_SURROGATE = ("unpaired_surrogate", "A string holds half of a surrogate pair, which is no character.")
    MISSING_FIELD = ("missing_field", "{field} is missing or null, and required.")
    WRONG_TYPE = ("wrong_type", "{field} has the wrong JSON type.")
    EMPTY_ID = ("empty_id", "{field} is empty.")
    ID_TOO_LONG = ("id_too_long", "{field} is longer than decoding.max_id_length.")
    CONTROL_CHARACTER = ("control_character", "{field} holds a control character.")
    BLANK_END = ("blank_end", "{field} begins or ends with a blank.")
    RESERVED_ID = ("reserved_id", "{field} is the value that partitioning reserves for null.")
    BAD_TIME = ("bad_time", "{field} is not an ISO 8601 time such as 2026-01-31T23:59:59.123456Z.")
    TIME_WITHOUT_OFFSET = ("time_without_offset", "{field} has no offset from UTC; append Z or one such as +01:00.")
    TIME_OUT_OF_RANGE = (
        "time_out_of_range",
        "{field} is before decoding.earliest or more than decoding.max_ahead after ingestion.",
    )
    BAD_VERSION = ("bad_version", "{field} is not between 1 and 9223372036854775807.")
    UNKNOWN_FIELDS = (
        "unknown_fields",
        "The message has fields that nobody declared, and decoding.unknown_fields is quarantine.",
    )
    UNKNOWN_OPERATION = ("unknown_operation", "{field} is not one of CONVERT, DELETE, RENAME, UPDATE.")
    MISSING_FROM_ID = ("missing_from_id", "{field} is missing or null; this operation needs it.")
    MISSING_TO_ID = ("missing_to_id", "{field} is missing or null; CONVERT needs it.")
    MISSING_NAME = ("missing_name", "{field} is missing or null; RENAME needs it.")
    MISSING_ENGAGEMENT_ID = ("missing_engagement_id", "{field} is missing or null; UPDATE needs it.")
    NO_TARGET = ("no_target", "A DELETE names neither from_id nor engagement_id.")
    SELF_CONVERSION = ("self_conversion", "A CONVERT has the same from_id and to_id.")
    BAD_DATE = ("bad_date", "{field} is not a date such as 2026-01-31.")
    REVERSED_RANGE = ("reversed_range", "engagement_date_from is after engagement_date_to.")
    UNKNOWN_OP = ("unknown_op", "{field} is not one of INSERT, UPDATE, DELETE.")
    NUMBER_OUT_OF_RANGE = ("number_out_of_range", "{field} is beyond the numbers that its column holds.")
    BAD_DECIMAL = ("bad_decimal", "{field} is no decimal number, or has more digits than its column.")
    TOO_LATE = (
        "too_late",
        "execution_ts is further back than mutation.max_lateness at the time the request was produced.",
    )
    ERASED = ("erased", "The message was about an erased person; nothing of it is kept.")


class Rejection(NamedTuple):
    """Why a message was refused: a code for programs, a sentence for people. Never holds any of the content."""

    code: Reason
    sentence: str


class Engagement(NamedTuple):
    """One decoded engagement. Ids verbatim, times in UTC to the microsecond.

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
    """One mutation request; fields that its operation does not use are None."""

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
"""Types that a column of a declared entity can have; one of a declared stream may also be nested or a decimal."""


@dataclass(frozen=True)
class ChangeShape:
    """What a change of a declared entity may say: names of its key and version, and its columns with their types."""

    key: str
    version: str
    columns: tuple[tuple[str, ValueType], ...]
    partitions: frozenset[str] = frozenset()
    """Columns in which the texts are refused that would come back as null from a partition: the empty one (Delta
    protocol) and that which Hive reserves."""


EVENT_DATE = "event_date"
"""Column of a declared stream: the UTC day of its event time."""


@dataclass(frozen=True)
class RecordShape:
    """What a record of a declared stream may say: its columns with their types, and the rules of some of them."""

    columns: tuple[tuple[str, str], ...]
    """Names and types, as `column_types` has them."""
    required: frozenset[str] = frozenset()
    """Columns that may not be null or missing."""
    ids: frozenset[str] = frozenset()
    """String columns that are ids: by the rules of ids, and never the value that partitioning reserves."""
    event_time: str | None = None
    """A timestamp; its UTC day becomes the column `event_date`."""
