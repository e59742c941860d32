"""One line of an object to one event of a declared type, cleaned and typed, or to the reason why it is none.

Pure functions; nothing here raises on any bytes. Bytes to a JSON object is `sources.strict_json`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from engagement_platform.pipelines.games.event_type import EventField, EventType
from engagement_platform.pipelines.games.reasons import SENTENCES, EventLimits, GameReason, Refusal
from engagement_platform.pipelines.games.registry import Registry
from engagement_platform.sources.decoding import read_date, read_id, time_reader, wrong_or_missing
from engagement_platform.sources.messages import DecodingLimits, Reason
from engagement_platform.sources.strict_json import JsonObject, Refused, object_parser

Decoder = Callable[[bytes | None, datetime], "Event | Refusal"]
"""From a line, and when its object arrived."""
_Read = Callable[[object, str], object]
"""From a field's value, not null, and its name."""

_GAME_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
_MIN_LONG, _MAX_LONG = -(2**63), 2**63 - 1
_CLEANING: Mapping[str, Callable[[str], str]] = {
    "trim": str.strip, "lower": str.lower, "upper": str.upper, "empty_is_null": str,
}  # fmt: skip


_ENVELOPE: Sequence[tuple[str, Sequence[str]]] = (
    ("session_id", ("trim", "empty_is_null")),
    ("platform", ("trim", "lower")),
    ("app_version", ("trim",)),
    ("country", ("trim", "upper", "empty_is_null")),
)
"""Optional fields of every event, and how they are cleaned; in the order of their columns."""


class Event(NamedTuple):
    """One event as its line says it."""

    event_type: str
    event_id: str
    event_ts: datetime
    unknown_fields: int
    values: tuple[object, ...]
    """In the order of `EventType.said`."""


class _Unfit(Exception):
    def __init__(self, reason: GameReason, field: str = "") -> None:
        super().__init__(reason)
        self.reason, self.field = reason, field


def event_decoder(types: Registry, limits: EventLimits) -> Decoder:
    """A function from lines to events; what depends on declarations and limits only is made once."""
    parse = object_parser(limits.decoding.max_bytes, limits.decoding.max_depth)
    readers = {name: _Reader(declared, limits) for name, declared in types.items()}
    refuse_unknown = limits.decoding.unknown_fields == "quarantine"

    def decode(line: bytes | None, arrived: datetime) -> Event | Refusal:
        event_type: str | None = None
        try:
            said = parse(line)
            kind = said.pop("event_type", None)
            if type(kind) is not str:
                raise wrong_or_missing(kind, "event_type")
            # What calls itself anything is kept in quarantine, but as long as an id at most.
            event_type = kind[: limits.decoding.max_id_length]
            if kind not in readers:
                raise _Unfit(GameReason.UNKNOWN_EVENT_TYPE)
            event = readers[kind].read(said, arrived)
            if refuse_unknown and event.unknown_fields:
                raise Refused(Reason.UNKNOWN_FIELDS)
        except Refused as refused:
            return Refusal(refused.rejection.code.value, refused.rejection.sentence, event_type)
        except _Unfit as unfit:
            return Refusal(unfit.reason.value, SENTENCES[unfit.reason].format(field=unfit.field), event_type)
        return event

    return decode


class _Reader:
    """Reads events of one type."""

    def __init__(self, declared: EventType, limits: EventLimits) -> None:
        self._type, self._limits = declared, limits
        self._id_length = limits.decoding.max_id_length
        # Any time with an offset: how far it may be from the object's arrival is checked apart, with a reason that
        # says which end it is.
        self._event_ts = time_reader(_anytime(limits.decoding), datetime(2000, 1, 1, tzinfo=UTC))
        self._fields = [(name, field.required, _reader(field, limits)) for name, field in declared.fields.items()]
        self._personal = [(pointer, tuple(_steps(pointer))) for pointer in declared.pii]
        self._envelope = [(name, _text(clean)) for name, clean in _ENVELOPE]

    def read(self, said: JsonObject, arrived: datetime) -> Event:
        """The event in an object without its event_type. Raises Refused, _Unfit."""
        for pointer, steps in self._personal:
            if _has(said, steps):
                raise _Unfit(GameReason.PERSONAL_DATA, pointer)
        # pop: what is left in the end are the fields that nobody declared.
        take = said.pop
        event_id = read_id(take("event_id", None), "event_id", self._id_length)
        game_id = read_id(take("game_id", None), "game_id", self._id_length)
        if _GAME_ID.fullmatch(game_id) is None:
            raise _Unfit(GameReason.BAD_GAME_ID)
        event_ts = self._event_ts(take("event_ts", None), "event_ts")
        if (refused := self._limits.refused_time(event_ts, arrived)) is not None:
            raise _Unfit(refused)
        values: list[object] = [event_ts.date(), event_ts, game_id, self._player(take("player_id", None)), event_id]
        for name, read in self._envelope:
            values.append(_optional(take(name, None), name, read))
        for name, required, read in self._fields:
            value = _optional(take(name, None), name, read)
            if required and value is None:
                raise Refused(Reason.MISSING_FIELD, name)
            values.append(value)
        return Event(self._type.name, event_id, event_ts, len(said), tuple(values))

    def _player(self, value: object) -> str | None:
        if value is None and self._type.player == "optional":
            return None
        return read_id(value, "player_id", self._id_length)


def _optional(value: object, name: str, read: _Read) -> object:
    return None if value is None else read(value, name)


def _anytime(limits: DecodingLimits) -> DecodingLimits:
    return DecodingLimits(
        limits.max_bytes, limits.max_depth, limits.max_id_length, datetime(1, 1, 1, tzinfo=UTC), timedelta.max
    )


def _reader(field: EventField, limits: EventLimits) -> _Read:
    """What reads a value of a field's type, cleans and checks it."""
    match field.type:
        case "string":
            return _text(field.clean, frozenset(field.one_of))
        case "array<string>":
            return _texts(_text(field.clean, frozenset(field.one_of)))
        case "long" | "double":
            return _number(field)
        case "boolean":
            return _boolean
        case "date":
            return read_date
        case _:
            # Such as the end of a subscription, which may be years ahead.
            later = DecodingLimits(earliest=limits.decoding.earliest, max_ahead=timedelta.max)
            return time_reader(later, datetime(2000, 1, 1, tzinfo=UTC))


def _text(clean: Sequence[str], one_of: frozenset[str] = frozenset()) -> _Read:
    cleaning = [_CLEANING[name] for name in clean if name != "empty_is_null"]
    empty_is_null = "empty_is_null" in clean

    def read(value: object, name: str) -> object:
        if type(value) is not str:
            raise Refused(Reason.WRONG_TYPE, name)
        for step in cleaning:
            value = step(value)
        if empty_is_null and not value:
            return None
        if one_of and value not in one_of:
            raise _Unfit(GameReason.NOT_ALLOWED, name)
        return value

    return read


def _texts(read_one: _Read) -> _Read:
    def read(value: object, name: str) -> object:
        if type(value) is not list:
            raise Refused(Reason.WRONG_TYPE, name)
        return [read_one(each, name) for each in value]

    return read


def _number(field: EventField) -> _Read:
    whole, least, most = field.type == "long", field.at_least, field.at_most

    def read(value: object, name: str) -> object:
        # type() and not isinstance(): true is an int to Python.
        if type(value) is not int and (whole or type(value) is not float):
            raise Refused(Reason.WRONG_TYPE, name)
        number: int | float = value
        if whole and not _MIN_LONG <= number <= _MAX_LONG:
            raise Refused(Reason.NUMBER_OUT_OF_RANGE, name)
        if (least is not None and number < least) or (most is not None and number > most):
            raise _Unfit(GameReason.OUT_OF_RANGE, name)
        if whole:
            return number
        try:
            return float(number)
        except OverflowError:
            raise Refused(Reason.BAD_NUMBER, name) from None

    return read


def _boolean(value: object, name: str) -> object:
    if type(value) is not bool:
        raise Refused(Reason.WRONG_TYPE, name)
    return value


def _steps(pointer: str) -> Iterator[str]:
    """The parts of a JSON pointer (RFC 6901).

    >>> list(_steps("/recipients/*/e~1mail"))
    ['recipients', '*', 'e/mail']
    """
    return (part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])


def _has(value: object, steps: Sequence[str]) -> bool:
    """Whether anything but null stands where the steps lead."""
    if not steps:
        return value is not None
    first, rest = steps[0], steps[1:]
    if type(value) is dict:
        below = value.values() if first == "*" else [value[first]] if first in value else []
    elif type(value) is list:
        below = value if first == "*" else [value[int(first)]] if first in map(str, range(len(value))) else []
    else:
        return False
    return any(_has(each, rest) for each in below)
