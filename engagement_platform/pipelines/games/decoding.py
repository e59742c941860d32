"""One line of an object to one event of a declared type, cleaned and typed, or to the reason why it is none.

Pure functions; nothing here raises on any bytes. Bytes to a JSON object is `sources.strict_json`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from engagement_platform.pii.declared import parts
from engagement_platform.pipelines.games.event_type import OPTIONAL, EventField, EventType
from engagement_platform.pipelines.games.registry import Registry
from engagement_platform.settings import Settings
from engagement_platform.settings.section import MIB
from engagement_platform.sources.messages import DecodingLimits, Reason, ReasonCode
from engagement_platform.sources.strict_json import Doubled, JsonObject, Refused, object_parser, read_loosely
from engagement_platform.sources.values import (
    Reader,
    read_id,
    read_partition_id,
    time_reader,
    value_reader,
    wrong_or_missing,
)

Decoder = Callable[[bytes | None, datetime], "Event | Refusal"]
"""From a line, and when its object arrived."""

GAME_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
_MOST_BYTES = 8 * MIB
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
_CLEANING: Mapping[str, Callable[[str], str]] = {
    "trim": str.strip, "lower": str.lower, "upper": str.upper,
}  # fmt: skip


class GameReason(ReasonCode):
    """Why a line is no event, beside what holds for any message. The codes stand in `game/quarantine`: rename none."""

    UNKNOWN_EVENT_TYPE = ("unknown_event_type", "No declaration has this event_type.")
    BAD_GAME_ID = ("bad_game_id", "game_id has other characters than letters, digits, - . and _, or more than 64.")
    LATE = ("late", "event_ts is more than games.max_lateness before the object arrived.")
    FUTURE = ("future", "event_ts is more than games.max_ahead after the object arrived.")
    NOT_ALLOWED = ("not_allowed", "{field} has a value that the declaration does not allow.")
    OUT_OF_RANGE = ("out_of_range", "{field} is below or above what the declaration allows.")
    PERSONAL_DATA = ("personal_data", "{field} is personal data, which should have been taken out before.")


class Refusal(NamedTuple):
    """Why an event was refused: a code for programs, a sentence without any of its content."""

    code: str
    sentence: str
    event_type: str | None
    """What it calls itself, where that could be read."""
    is_kept: bool = True
    """Whether the line itself may stand in quarantine: none in which personal data of its type is found."""


class EventLimits(NamedTuple):
    """How an event may be: what holds for any message, and how far its time may be from the arrival of its object."""

    decoding: DecodingLimits
    max_lateness: timedelta
    max_ahead: timedelta

    @classmethod
    def of(cls, settings: Settings) -> EventLimits:
        return cls(DecodingLimits.of(settings.decoding), settings.games.max_lateness, settings.games.max_ahead)

    def refused_time(self, event_ts: datetime, arrived: datetime) -> GameReason | None:
        """Why a time cannot be taken; both ends are fine.

        Against the arrival of the object and not of the batch: when the platform was down for a week, nothing that
        came in time is late, and a replay decides as the first reading did.
        """
        if arrived - event_ts > self.max_lateness:
            return GameReason.LATE
        return GameReason.FUTURE if event_ts - arrived > self.max_ahead else None


class Event(NamedTuple):
    """One event as its line says it."""

    event_type: str
    event_id: str
    event_ts: datetime
    unknown_fields: int
    values: tuple[object, ...]
    """Of the columns of ENVELOPE, then of the fields of its type, in their order."""


class _Unfit(Exception):
    def __init__(self, reason: GameReason, field: str = "") -> None:
        super().__init__(reason)
        self.reason, self.field = reason, field


def event_decoder(types: Registry, limits: EventLimits) -> Decoder:
    """A function from lines to events; what depends on declarations and limits only is made once."""
    parse = object_parser(limits.decoding.max_bytes, limits.decoding.max_depth)
    readers = {name: _Reader(declared, limits) for name, declared in types.items()}
    of_any = {steps for reader in readers.values() for steps in reader.personal}
    refuse_unknown = limits.decoding.unknown_fields == "quarantine"

    def decode(line: bytes | None, arrived: datetime) -> Event | Refusal:
        event_type: str | None = None
        try:
            fields = parse(line)
            kind = fields.pop("event_type", None)
            if type(kind) is not str:
                raise wrong_or_missing(kind, "event_type")
            # What calls itself anything is kept in quarantine, but as long as an id at most.
            event_type = kind[: limits.decoding.max_id_length]
            if kind not in readers:
                raise _Unfit(GameReason.UNKNOWN_EVENT_TYPE)
            event = readers[kind].read(fields, arrived)
            if refuse_unknown and event.unknown_fields:
                raise Refused(Reason.UNKNOWN_FIELDS)
        except Refused as refused:
            code, sentence = refused.rejection.code.value, refused.rejection.sentence
        except _Unfit as unfit:
            code, sentence = unfit.reason.value, unfit.reason.sentence.format(field=unfit.field)
        else:
            return event
        # Also of a line that was refused before anybody looked for it.
        personal = readers[event_type].personal if event_type in readers else of_any
        return Refusal(code, sentence, event_type, _may_stand(line, code, personal))

    return decode


class _Reader:
    """Reads events of one type."""

    def __init__(self, declared: EventType, limits: EventLimits) -> None:
        self._type, self._limits = declared, limits
        self._id_length = limits.decoding.max_id_length
        # Any time with an offset: how far it may be from the object's arrival is checked apart, with a reason that
        # says which end it is.
        anytime = replace(limits.decoding, earliest=datetime(1, 1, 1, tzinfo=UTC), max_ahead=timedelta.max)
        self._event_ts = time_reader(anytime, _LONG_AGO)
        fields = {**OPTIONAL, **declared.fields}
        self._fields = [(name, field.required, _reader(field, limits)) for name, field in fields.items()]
        self.personal = {parts(pointer, declared.name): pointer for pointer in declared.pii}

    def read(self, fields: JsonObject, arrived: datetime) -> Event:
        """The event in an object without its event_type. Raises Refused, _Unfit."""
        for steps, pointer in self.personal.items():
            if _has(fields, steps):
                raise _Unfit(GameReason.PERSONAL_DATA, pointer)
        # pop: what is left in the end are the fields that nobody declared.
        take = fields.pop
        event_id = read_id(take("event_id", None), "event_id", self._id_length)
        game_id = read_partition_id(take("game_id", None), "game_id", self._id_length)
        if GAME_ID.fullmatch(game_id) is None:
            raise _Unfit(GameReason.BAD_GAME_ID)
        event_ts = self._event_ts(take("event_ts", None), "event_ts")
        if (refused := self._limits.refused_time(event_ts, arrived)) is not None:
            raise _Unfit(refused)
        values: list[object] = [event_ts.date(), event_ts, game_id, self._player(take("player_id", None)), event_id]
        for name, required, read in self._fields:
            value = take(name, None)
            value = None if value is None else read(value, name)
            if required and value is None:
                raise Refused(Reason.MISSING_FIELD, name)
            values.append(value)
        return Event(self._type.name, event_id, event_ts, len(fields), tuple(values))

    def _player(self, value: object) -> str | None:
        if value is None and self._type.player == "optional":
            return None
        return read_id(player_of(value), "player_id", self._id_length)


def _reader(field: EventField, limits: EventLimits) -> Reader:
    """What reads a value of a field's type, cleans and checks it."""
    if field.type == "string":
        return _text(field)
    if field.type == "array<string>":
        return _texts(_text(field))
    # Such as the end of a subscription, which may be years ahead.
    later = replace(limits.decoding, max_ahead=timedelta.max)
    read, least, most = value_reader(field.type, later, _LONG_AGO), field.at_least, field.at_most
    if least is None and most is None:
        return read

    def read_in_range(value: object, name: str) -> object:
        number = read(value, name)
        assert isinstance(number, int | float), "only numbers have a range"
        if (least is not None and number < least) or (most is not None and number > most):
            raise _Unfit(GameReason.OUT_OF_RANGE, name)
        return number

    return read_in_range


def _text(field: EventField) -> Reader:
    cleaning = [_CLEANING[name] for name in field.clean if name != "empty_is_null"]
    empty_is_null, one_of = "empty_is_null" in field.clean, frozenset(field.one_of)

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


def _texts(read_one: Reader) -> Reader:
    def read(value: object, name: str) -> object:
        if type(value) is not list:
            raise Refused(Reason.WRONG_TYPE, name)
        return [read_one(each, name) for each in value]

    return read


def player_of(value: object) -> object:
    """A player as an id: of a whole number its digits, as the ingest server and erasures take it; of several that a
    line names the last."""
    value = value.values[-1] if isinstance(value, Doubled) else value
    return str(value) if type(value) is int else value


def _may_stand(line: bytes | None, code: str, personal: Collection[tuple[str, ...]]) -> bool:
    """Whether a refused line may stand in quarantine. personal: where personal data of its type would be.

    Not one that is too long to be read, nor one that may be of several players: erasures find lines by their player.
    """
    if code == GameReason.PERSONAL_DATA or (line is not None and len(line) > _MOST_BYTES):
        return False
    found = loosely_read(line)
    each = found if type(found) is list else [found]
    if any(
        isinstance(one.get(name), Doubled) for one in each if isinstance(one, dict) for name in ("player_id", "game_id")
    ):
        return False
    return not any(_has(one, steps) for one in each for steps in personal)


def loosely_read(line: bytes | None) -> object:
    """The JSON of a line that is refused, for what is personal in it; None where it is none, or too long to be read:
    as objects it takes many times its bytes."""
    if line is None or len(line) > _MOST_BYTES:
        return None
    try:
        return read_loosely(line)
    except (ValueError, RecursionError):
        return None


def _has(value: object, steps: Sequence[str]) -> bool:
    """Whether anything but null stands where the steps lead."""
    if isinstance(value, Doubled):
        return any(_has(each, steps) for each in value.values)
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
