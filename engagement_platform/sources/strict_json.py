"""Bytes to JSON objects, stricter than any parser's defaults. Which fields it must have is `decoding`.

Strict means: UTF-8 without a byte order mark, objects and nothing beside them, no duplicate keys, no NaN, no half
surrogate pairs, bounded size and depth.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from engagement_platform.sources.messages import Reason

JsonObject = dict[str, object]

# The four characters that JSON calls white space; str.strip() alone would also take U+00A0 and friends.
_BLANKS = " \t\n\r"
# Decoding UTF-8 already refuses encoded surrogates, so only an escape can bring one in.
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
# A whole string, or to the end of the text when it is not closed, or one bracket.
_STRING_OR_BRACKET = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}]', re.DOTALL)
# Digits of the largest double. The interpreter's own limit (4,300) can be switched off from outside, and then a
# message of a million digits would take seconds.
MAX_DIGITS = 308


class Refused(Exception):
    """Leaves the rules on the first broken one; caught where a message ends, never seen by callers of `decoding`."""

    def __init__(self, reason: Reason, field: str = "") -> None:
        super().__init__(reason)
        self.rejection = reason.rejection(field)


def object_parser(max_bytes: int, max_depth: int) -> Callable[[bytes | None], JsonObject]:
    """A function from a message's bytes to its object, which raises Refused and nothing else.

    max_depth: the outermost object is level 1; exactly max_bytes and max_depth are fine.
    """

    def parse(value: bytes | None) -> JsonObject:
        text = _text(value, max_bytes, max_depth)
        parsed, end = _scanned(text, 0)
        if end != len(text) and text[end:].strip(_BLANKS):
            raise Refused(Reason.TRAILING_CONTENT)
        return _object(parsed, text)

    return parse


def objects_parser(max_bytes: int, max_depth: int) -> Callable[[bytes], Iterator[JsonObject]]:
    """A function from bytes to the objects in them, one after the other: Firehose puts no line breaks between records.

    It raises Refused and nothing else, after the objects that come before the one that is refused.
    """

    def parse(value: bytes) -> Iterator[JsonObject]:
        text, end = _text(value, max_bytes, max_depth), 0
        while end < len(text):
            begin, (parsed, end) = end, _scanned(text, end)
            yield _object(parsed, text, begin, end)
            while end < len(text) and text[end] in _BLANKS:
                end += 1

    return parse


def _scanned(text: str, begin: int) -> tuple[object, int]:
    """The value that begins there, and where it ends."""
    try:
        return _scan(text, begin)
    except ValueError:
        raise Refused(Reason.NOT_JSON) from None
    except RecursionError:
        raise Refused(Reason.TOO_DEEP) from None


def _object(parsed: object, text: str, begin: int = 0, end: int | None = None) -> JsonObject:
    if type(parsed) is not dict:
        raise Refused(Reason.NOT_AN_OBJECT)
    end = len(text) if end is None else end
    if text.find("\\u", begin, end) >= 0 and _SURROGATE_ESCAPE.search(text, begin, end):
        _refuse_half_pairs(parsed)
    return parsed


def _text(value: bytes | None, max_bytes: int, max_depth: int) -> str:
    """The message as text that begins with its first character that is not white space."""
    if not value:
        raise Refused(Reason.EMPTY)
    if len(value) > max_bytes:
        raise Refused(Reason.TOO_LARGE)
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise Refused(Reason.NOT_UTF8) from None
    if text[0] != "{":
        text = text.lstrip(_BLANKS)
        if not text:
            raise Refused(Reason.EMPTY)
        if text[0] == "\ufeff":
            raise Refused(Reason.BYTE_ORDER_MARK)
    # Counting first: a typical message has two brackets, and only one with many can be deep.
    if text.count("{") + text.count("[") > max_depth and depth_exceeds(text, max_depth):
        raise Refused(Reason.TOO_DEEP)
    return text


def without_duplicates(pairs: list[tuple[str, object]]) -> JsonObject:
    """An object of these pairs, for a decoder of JSON. Raises Refused where a key stands twice."""
    parsed = dict(pairs)
    if len(parsed) != len(pairs):
        raise Refused(Reason.DUPLICATE_KEY)
    return parsed


@dataclass(frozen=True)
class Doubled:
    """All that stands under a key that an object has more than once; JSON cannot write it."""

    values: list[object]


def read_loosely(text: str | bytes) -> object:
    """Any JSON value, with Doubled where a key stands twice, and infinity for an integer that is too long: who refuses
    an object for these has to know what else is in it. Raises ValueError, RecursionError."""
    found: object = json.loads(text, object_pairs_hook=_with_doubled, parse_int=_int_or_infinity)
    return found


def _with_doubled(pairs: list[tuple[str, object]]) -> JsonObject:
    made = dict(pairs)
    if len(made) != len(pairs):
        every: dict[str, list[object]] = {key: [] for key in made}
        for key, value in pairs:
            every[key].append(value)
        made |= {key: Doubled(values) for key, values in every.items() if len(values) > 1}
    return made


def _int_or_infinity(digits: str) -> float:
    return int(digits) if len(digits) <= MAX_DIGITS else math.inf


def _bounded_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise Refused(Reason.BAD_NUMBER)
    return int(digits)


def _finite_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise Refused(Reason.BAD_NUMBER)
    return number


def _no_constant(_name: str) -> object:
    raise Refused(Reason.BAD_NUMBER)


# raw_decode: decode() would look for white space with a regular expression, twice per message.
_scan = json.JSONDecoder(
    object_pairs_hook=without_duplicates,
    parse_int=_bounded_int,
    parse_float=_finite_float,
    parse_constant=_no_constant,
).raw_decode


def depth_exceeds(text: str, max_depth: int) -> bool:
    """Whether brackets outside of strings nest deeper than max_depth.

    Read off the text, because the parser's own limit depends on how deep its caller is, and a replay must find
    the same reason.
    """
    depth = 0
    for token in _STRING_OR_BRACKET.finditer(text):
        first = text[token.start()]
        if first in "{[":
            depth += 1
            if depth > max_depth:
                return True
        elif first in "}]":
            depth -= 1
    return False


def _refuse_half_pairs(parsed: JsonObject) -> None:
    try:
        json.dumps(parsed, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Refused(Reason.UNPAIRED_SURROGATE) from None
