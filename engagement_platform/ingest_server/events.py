"""Bodies of requests as events, and what an event must have. Nothing here knows personal data, files or HTTP."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from engagement_platform.settings import IngestServerSettings
from engagement_platform.sources import strict_json
from engagement_platform.sources.messages import ReasonCode
from engagement_platform.sources.strict_json import Doubled, read_loosely
from engagement_platform.sources.values import ISO_TIME, read_id, subject_in

EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)


class Refused(ReasonCode):
    """Why an event, or a whole body, was refused; the sentence is for the sender."""

    NOT_JSON = "not_json", "It is no JSON in UTF-8."
    NOT_EVENTS = "not_events", 'It is neither a list of events nor an object with one as "events".'
    NOT_AN_OBJECT = "not_an_object", "The event is no JSON object."
    DUPLICATE_KEY = "duplicate_key", "A key stands twice in one object."
    BAD_NUMBER = "bad_number", "A number is infinite or none."
    BAD_TEXT = "bad_text", "A text has half of a surrogate pair."
    TOO_DEEP = "too_deep", "It is nested too deep."
    TOO_LARGE = "too_large", "The event is too large."
    TOO_MANY_VALUES = "too_many_values", "The event has too many values."
    BAD_ID = "bad_event_id", "event_id is missing, empty, too long or no text, or has controls or blank ends."
    BAD_TYPE = "bad_event_type", "event_type is missing, or not small letters, digits and _ (up to 64, a letter first)."
    BAD_TIME = "bad_event_ts", "event_ts is missing, or no ISO 8601 time with an offset."
    TIME_OUT_OF_RANGE = "time_out_of_range", "event_ts is before the year 2000, or too far ahead."
    WRONG_GAME = "wrong_game", "game_id is not the game of the API key."
    BAD_SUBJECT = "bad_subject", "Whom the event is about is no text like event_id's, and no whole number as short."
    PII_FOUND = "pii_found", "A field that nobody declared looks like personal data."
    PII_IN_ID = "pii_in_id", "A field that an event cannot do without holds personal data."


_TYPE = re.compile(r"[a-z][a-z0-9_]{0,63}")


class EventRefused(Exception):
    """Leaves the rules at the first broken one; caught where an event ends. field: JSON pointer to personal data."""

    def __init__(self, reason: Refused, field: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.field = reason, field


@dataclass(frozen=True)
class Sent:
    """One event as it was sent. value: any JSON value; None with a reason when it could not be read at all."""

    value: object
    reason: Refused | None = None
    raw: bytes = b""


def sent_as_json(body: bytes) -> list[Sent]:
    """The events of a JSON body. Raises EventRefused when the body as a whole is none."""
    found = _parsed(body)
    if isinstance(found, dict):
        found = found.get("events")
    if isinstance(found, Doubled):
        # Nobody knows which of the lists is meant: no event of any is taken, and each is answered for.
        doubled = (each if isinstance(each, list) else [each] for each in found.values)
        return [Sent(value, Refused.DUPLICATE_KEY) for values in doubled for value in values]
    if not isinstance(found, list):
        raise EventRefused(Refused.NOT_EVENTS)
    return [Sent(value) for value in found]


def sent_as_lines(body: bytes) -> list[Sent]:
    """The events of a body with one JSON value a line; empty lines are none. A bad line refuses nothing but itself."""
    sent = []
    for line in filter(bytes.strip, body.split(b"\n")):
        try:
            sent.append(Sent(_parsed(line)))
        except EventRefused as refused:
            sent.append(Sent(None, refused.reason, line))
    return sent


def _parsed(body: bytes) -> object:
    """Any JSON value: what is wrong in one event, such as an infinite number, refuses no other."""
    try:
        return read_loosely(body.decode())
    except RecursionError:
        raise EventRefused(Refused.TOO_DEEP) from None
    except ValueError:
        raise EventRefused(Refused.NOT_JSON) from None


def check(sent: Sent, game: str, now: datetime, limits: IngestServerSettings, max_id_length: int) -> None:
    """Raise EventRefused with the first rule that is broken; now: the server's clock, UTC."""
    if sent.reason is not None:
        raise EventRefused(sent.reason)
    event = sent.value
    if not isinstance(event, dict):
        raise EventRefused(Refused.NOT_AN_OBJECT)
    text = line_of(event)
    if len(text) > limits.max_event_bytes:
        raise EventRefused(Refused.TOO_LARGE)
    deepest = limits.max_depth
    if text.count(b"{") + text.count(b"[") > deepest and strict_json.depth_exceeds(text.decode(), deepest):
        raise EventRefused(Refused.TOO_DEEP)
    # Every value but the first has a comma before it.
    if text.count(b",") >= limits.max_values and _values(event) > limits.max_values:
        raise EventRefused(Refused.TOO_MANY_VALUES)
    if not _is_id(event.get("event_id"), max_id_length):
        raise EventRefused(Refused.BAD_ID)
    event_type = event.get("event_type")
    if not isinstance(event_type, str) or not _TYPE.fullmatch(event_type):
        raise EventRefused(Refused.BAD_TYPE)
    if event.get("game_id") not in (None, game):
        raise EventRefused(Refused.WRONG_GAME)
    _check_time(event.get("event_ts"), now + limits.max_ahead)


def _values(value: object) -> int:
    """Values that have nothing inside: neither object nor list, or an empty one."""
    within = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(map(_values, within)) if within else 1


def line_of(event: object) -> bytes:
    """An event as one line of JSON, without the line feed. Raises EventRefused for what JSON cannot write."""
    try:
        return json.dumps(event, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except TypeError:
        raise EventRefused(Refused.DUPLICATE_KEY) from None
    except UnicodeEncodeError:
        raise EventRefused(Refused.BAD_TEXT) from None
    except RecursionError:
        raise EventRefused(Refused.TOO_DEEP) from None
    except ValueError:
        raise EventRefused(Refused.BAD_NUMBER) from None


def as_it_was(sent: Sent) -> bytes:
    """An event that is refused, in bytes again, whatever is wrong with it."""
    if sent.raw:
        return sent.raw
    try:
        return json.dumps(sent.value, default=vars).encode()
    except RecursionError:
        return b"nested too deep to be written again"


def subject_of(event: Mapping[str, Any], path: tuple[str, ...], max_id_length: int) -> str | None:
    """Whom an event is about; None when it does not say. A number is its digits. Raises EventRefused."""
    found = subject_in(event, path)
    if found is None:
        return None
    if not _is_id(found, max_id_length):
        raise EventRefused(Refused.DUPLICATE_KEY if isinstance(found, Doubled) else Refused.BAD_SUBJECT)
    return str(found)


def _is_id(value: object, max_length: int) -> bool:
    try:
        return bool(read_id(value, "", max_length))
    except strict_json.Refused:
        return False


def _check_time(text: object, latest: datetime) -> None:
    try:
        # Without the pattern something else could stand in a fraction, or behind the seconds of an offset.
        time = datetime.fromisoformat(text) if isinstance(text, str) and ISO_TIME.fullmatch(text) else None
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise EventRefused(Refused.BAD_TIME)
    if not EARLIEST <= time <= latest:
        raise EventRefused(Refused.TIME_OUT_OF_RANGE)
