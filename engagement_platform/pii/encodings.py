"""Texts decoded once, in each way in which something of them may be encoded, and characters made plain."""

from __future__ import annotations

import re
import unicodedata
from binascii import a2b_base64
from collections.abc import Iterator
from functools import lru_cache
from urllib.parse import unquote, unquote_plus

_ESCAPE = re.compile(r"\\u([0-9A-Fa-f]{4})")
_SHORTEST = 8
"""Digits of base64 of six bytes, such as a@b.co."""
_JOINT = re.compile("[_-]")
_BASE64 = re.compile(r"(?<![\w+/-])[A-Za-z\d+/_-]{8,}(?![\w+/-])", re.ASCII)
_LINES = re.compile(r"(?<![\w+/-])(?:[A-Za-z\d+/_-]{20,}\r?\n[ \t]*)+[A-Za-z\d+/_-]+", re.ASCII)
"""Base64 in lines, of 76 digits in MIME."""
_CHARACTER = r"[^\x00-\x08\x0e-\x1f\x7f-\x9f\ufffd]"
_SEEN = re.compile(rf"\A{_CHARACTER}+\Z|{_CHARACTER}{{6,}}")
"""What is text of bytes that have other things in them, such as the lengths of protobuf. Shorter pieces are chance."""
_LATIN_1 = re.compile(rb"[\t-\r -~\xa0-\xff]+")
_URL_SAFE = str.maketrans("-_", "+/")


def decoded(text: str) -> Iterator[str]:
    """The text decoded once, in each way in which something of it is encoded."""
    plain = [text]
    if "%" in text:
        plain.append(unquote(text))
    if "+" in text and ("%" in text or "=" in text):
        plain.append(unquote_plus(text))
    if "\\u" in text:
        plain.append(joined(_ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)))
    for each in plain:
        if each != text:
            yield each
        if (narrow := narrowed(each)) != each:
            yield narrow
    lines = ("".join(each.split()) for each in _LINES.findall(text)) if "\n" in text else ()
    for run in (*_BASE64.findall(text), *lines):
        for token in (run,) if run.isalnum() else _tokens(run):
            # One digit too many is no byte: of a text that was cut, or of a word behind lines.
            whole = token[:-1] if len(token) % 4 == 1 else token
            for each in _texts(a2b_base64(whole.translate(_URL_SAFE) + "=" * (-len(whole) % 4))):
                yield each
                if (narrow := narrowed(each)) != each:
                    yield narrow


def joined(text: str) -> str:
    """The text with each pair of surrogates, as escapes write a character beyond 16 bits, as that character."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _texts(content: bytes) -> Iterator[str]:
    """What bytes have of texts."""
    # What is no UTF-8 is replaced: an error for each word would cost too much.
    text = content.decode("utf-8", "replace")
    yield from _SEEN.findall(text)
    if "\0" in text:
        yield from _SEEN.findall(text.replace("\0", ""))  # UTF-16
    if "\ufffd" in text and _LATIN_1.fullmatch(content):
        yield content.decode("latin-1")


def _tokens(run: str) -> Iterator[str]:
    """What of a run of digits of base64 may be one text: `/`, `_` and `-` are such digits, and join words, too."""
    yield run
    parts = run.split("/")
    if len(parts) > 1:
        yield from (part for part in parts if len(part) >= _SHORTEST)
    # What has small letters only is a name or a UUID.
    for part in () if run.islower() else parts:
        first, *words = _JOINT.split(part)
        # All behind a first word such as user_, since base64 may have these digits, too.
        yield from (word for word in {part[len(first) + 1 :], *words} if len(word) >= _SHORTEST)


_INVISIBLE = frozenset({"Mn", "Mc", "Me", "Cf"})
_IDEOGRAPHIC_STOP = "\u3002"
"""Between labels of a domain it is a dot (RFC 3490, section 3.1)."""


def narrowed(text: str) -> str:
    """The text with each character made plain.

    One by one, since ordering combining marks takes quadratic time on a text made for it (CPython 3.11).
    """
    return text if text.isascii() else "".join(map(_narrow, text))


@lru_cache(maxsize=10_000)
def _narrow(character: str) -> str:
    """The character in NFKC where that is one, such as of full-width letters; a digit of any script as an ASCII one.
    Nothing of a mark or a vowel sign, which are no letters to a pattern, and of what only formats.
    """
    if unicodedata.category(character) in _INVISIBLE:
        return ""
    plain = unicodedata.normalize("NFKC", character)
    if len(plain) != 1:
        return character
    digit = unicodedata.decimal(plain, None)
    return plain.replace(_IDEOGRAPHIC_STOP, ".") if digit is None else str(digit)


def bare(text: str) -> str:
    """The text in NFKD without marks and what only formats: of all forms of a text the same, and of ü that of u."""
    return text if text.isascii() else "".join(map(_base, text))


@lru_cache(maxsize=10_000)
def _base(character: str) -> str:
    apart = unicodedata.normalize("NFKD", character)
    return "".join(each for each in apart if unicodedata.category(each) not in _INVISIBLE)
