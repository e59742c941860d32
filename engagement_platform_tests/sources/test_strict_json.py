"""Which bytes are one strict JSON object, and which are not. What the fields of a message may be is `test_decoding`."""

from __future__ import annotations

import json

import pytest

from engagement_platform.sources.messages import Reason
from engagement_platform.sources.strict_json import Refused, object_parser

MAX_BYTES, MAX_DEPTH = 1024 * 1024, 32
parse = object_parser(MAX_BYTES, MAX_DEPTH)

MESSAGE = {"id": "p-1", "name": "Ada", "subject": "Hello", "type": "email_open"}
GOOD = json.dumps(MESSAGE).encode()


def nested(levels: int) -> object:
    value: object = "x"
    for _ in range(levels):
        value = [value]
    return value


def raw(name: str, text: str) -> bytes:
    """The message with one more field whose value is written as it stands."""
    return GOOD[:-1] + f', "{name}": {text}}}'.encode()


BAD_BYTES: list[tuple[str, bytes | None, Reason]] = [
    ("no value at all", None, Reason.EMPTY),
    ("no bytes", b"", Reason.EMPTY),
    ("only blanks", b" \t\r\n", Reason.EMPTY),
    ("one byte too many", GOOD + b" " * MAX_BYTES, Reason.TOO_LARGE),
    ("Latin-1", GOOD.replace(b"Ada", b"Zo\xeb"), Reason.NOT_UTF8),
    ("UTF-16 with its mark", GOOD.decode().encode("utf-16"), Reason.NOT_UTF8),
    ("UTF-16 without one", GOOD.decode().encode("utf-16-le"), Reason.NOT_JSON),
    ("an encoded surrogate", GOOD.replace(b"Ada", b"\xed\xa0\x80"), Reason.NOT_UTF8),
    ("an overlong encoding", GOOD.replace(b"Ada", b"\xc0\x80"), Reason.NOT_UTF8),
    ("a cut character", GOOD.replace(b"Ada", b"\xf0\x9f\x98"), Reason.NOT_UTF8),
    ("a byte order mark", b"\xef\xbb\xbf" + GOOD, Reason.BYTE_ORDER_MARK),
    ("a byte order mark after a blank", b" \xef\xbb\xbf" + GOOD, Reason.BYTE_ORDER_MARK),
    ("a no-break space in front", b"\xc2\xa0" + GOOD, Reason.NOT_JSON),
    ("plain words", b"hello", Reason.NOT_JSON),
    ("a cut object", GOOD[:-1], Reason.NOT_JSON),
    ("single quotes", str(MESSAGE).encode(), Reason.NOT_JSON),
    ("a comma too many", GOOD[:-1] + b",}", Reason.NOT_JSON),
    ("a comment", b"/* hello */" + GOOD, Reason.NOT_JSON),
    ("a name without quotes", b"{type: 1}", Reason.NOT_JSON),
    ("a bare line break in a string", GOOD.replace(b"Hello", b"Hel\nlo"), Reason.NOT_JSON),
    ("an unknown escape", GOOD.replace(b"Hello", rb"Hel\xlo"), Reason.NOT_JSON),
    ("a leading zero", raw("more", "01"), Reason.NOT_JSON),
    ("a hexadecimal number", raw("more", "0x1"), Reason.NOT_JSON),
    ("Python's True", raw("more", "True"), Reason.NOT_JSON),
    ("a NUL byte at the end", GOOD + b"\0", Reason.TRAILING_CONTENT),
    ("junk after the object", GOOD + b" junk", Reason.TRAILING_CONTENT),
    ("two objects", GOOD + GOOD, Reason.TRAILING_CONTENT),
    ("two objects on two lines", GOOD + b"\n" + GOOD, Reason.TRAILING_CONTENT),
    ("a bracket too many", GOOD + b"}", Reason.TRAILING_CONTENT),
    ("an array of objects", b"[" + GOOD + b"]", Reason.NOT_AN_OBJECT),
    ("a string", json.dumps(GOOD.decode()).encode(), Reason.NOT_AN_OBJECT),
    ("null", b"null", Reason.NOT_AN_OBJECT),
    ("a number", b"1", Reason.NOT_AN_OBJECT),
    ("a key twice", raw("type", '"call"'), Reason.DUPLICATE_KEY),
    ("a key twice, equal values", raw("type", '"email_open"'), Reason.DUPLICATE_KEY),
    ("a key twice, once escaped", raw(r"\u0074ype", '"call"'), Reason.DUPLICATE_KEY),
    ("an attribute twice", raw("more", '{"a": "1", "a": "2"}'), Reason.DUPLICATE_KEY),
    ("a key twice in an unknown field", raw("more", '[{"a": 1, "a": 2}]'), Reason.DUPLICATE_KEY),
    ("one level too deep", raw("more", json.dumps(nested(MAX_DEPTH))), Reason.TOO_DEEP),
    ("very deep arrays", b"[" * 200_000, Reason.TOO_DEEP),
    ("very deep objects", b'{"a":' * 100_000, Reason.TOO_DEEP),
    ("NaN", raw("more", "NaN"), Reason.BAD_NUMBER),
    ("Infinity", raw("more", "Infinity"), Reason.BAD_NUMBER),
    ("minus Infinity", raw("more", "[-Infinity]"), Reason.BAD_NUMBER),
    ("a float beyond a double", raw("more", "1e999"), Reason.BAD_NUMBER),
    ("an integer of 5,000 digits", raw("more", "9" * 5000), Reason.BAD_NUMBER),
    ("an integer of half a million digits", raw("more", "9" * 500_000), Reason.BAD_NUMBER),
    ("half a pair in a value", raw("more", r'"\ud83d"'), Reason.UNPAIRED_SURROGATE),
    ("the wrong half first", raw("more", r'"\ude00\ud83d"'), Reason.UNPAIRED_SURROGATE),
    ("half a pair in an id", GOOD.replace(b"p-1", rb"\uD800"), Reason.UNPAIRED_SURROGATE),
    ("half a pair in an attribute's key", raw("more", r'{"\udfff": ""}'), Reason.UNPAIRED_SURROGATE),
    ("half a pair in an unknown field", raw("more", r'{"a": ["\udc00"]}'), Reason.UNPAIRED_SURROGATE),
]


@pytest.mark.parametrize(("value", "reason"), [bad[1:] for bad in BAD_BYTES], ids=[bad[0] for bad in BAD_BYTES])
def test_bytes_that_are_not_one_strict_object_are_refused(value: bytes | None, reason: Reason) -> None:
    with pytest.raises(Refused) as refused:
        parse(value)
    assert refused.value.rejection.code == reason


def test_white_space_around_the_object_is_fine() -> None:
    assert parse(b"\r\n\t " + GOOD + b" \n\n") == MESSAGE


def test_an_escaped_pair_is_one_character() -> None:
    assert parse(raw("more", r'"\ud83d\ude00"'))["more"] == "😀"
    assert parse(raw("more", r'"\\ud83d"'))["more"] == r"\ud83d"


def test_exactly_the_limits_are_fine() -> None:
    assert parse(GOOD.ljust(MAX_BYTES)) == MESSAGE
    deep = nested(MAX_DEPTH - 1)
    assert parse(raw("more", json.dumps(deep)))["more"] == deep


def test_brackets_inside_strings_are_not_depth() -> None:
    brackets = '[{"' * 1000 + "\\"
    assert parse(raw("more", json.dumps(brackets)))["more"] == brackets
    wide = {f"k{n}": [n] for n in range(100)}
    assert parse(json.dumps(wide).encode()) == wide
