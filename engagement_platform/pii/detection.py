"""What looks like personal data though nobody declared it: e-mail and IP addresses, phone and card numbers.

Pure functions of text. Which fields are looked at, and what becomes of a find, is `redaction`.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable
from enum import StrEnum
from itertools import accumulate

from engagement_platform.pii.encodings import decoded
from engagement_platform.pii.names import Rule


class Kind(StrEnum):
    """What a value was taken for."""

    EMAIL = "email"
    PHONE = "phone"
    IP = "ip"
    CARD = "card"
    COPY = "copy"
    """A declared value once more, in a field that nobody declared."""


# Most texts of an event have none of these and are done: 0.2 us instead of 3 us.
_HINT = re.compile(r"[\d@]|%|::|[A-Fa-f]:[A-Fa-f]|\\u|[\w+/-]{8}|[^\x00-\x7f]", re.ASCII)

_HINT_ONCE_DECODED = re.compile(r"[\d@%]|::|[A-Fa-f]:[A-Fa-f]")
_FILES = r"(?:png|jpe?g|gif|webp|svg|m?jsx?|tsx?|css|json|html|bundle)"
# Begins at the @ and looks back one character: a pattern that begins with the name takes quadratic time on a long text.
_EMAIL = re.compile(
    r"(?:(?<=[\w.+%!#$&'*/=?^`{|}~-])|(?<=\w\"))(?:@|%40)"
    # What ends a name of a file ends no domain, and behind @2x nothing does: hero@2x.dark.png. Two or three words stand
    # before such an end where others have a domain: render@index.android.bundle, value@app.min.js.
    rf"(?!\dx\.[\w.-]{{0,253}}\b{_FILES}(?![\w-]|\.\w))"
    rf"(?:[\w-]{{1,63}}\.){{1,10}}(?!{_FILES}(?![^\W\d_])|(?:android|ios|native|web|min)\.{_FILES}(?![^\W\d_]))"
    r"(?:[^\W\d_]{2,24}|xn--[\w-]{1,59})",
    re.IGNORECASE,
)
_IPV4 = re.compile(r"(?<![A-Za-z\d])(?<!\d\.)(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})(?![A-Za-z\d]|\.\d)")
_HEX_AND_COLONS = re.compile(r"[0-9A-Fa-f:]{3,}(?:(?<=\d)(?:\.\d{1,3}){3})?")
_DIGIT = re.compile(r"\d")
_LONGEST_IPV6 = 60
"""Characters, with the end of a word before it and a port behind."""
_CARD = re.compile(r"(?<!\d)(?<!\d\.)\d(?:[ -]?\d){12,18}(?!\d)")
_FIRST_GROUP = re.compile(r"(?<!\d)(?<!\d\.)[2-69](?:\d{3}|\d{5}|\d{7}|\d{12,18})(?!\d)")
_NEXT_GROUP = re.compile(r"(?:[\s._+\-\u2010-\u2015\u2212]{1,4}|\s?[/,|:;\u00b7\u2022]\s?|\)\s?\()(\d{1,15})(?!\d)")
_INTERNATIONAL = re.compile(
    # Not +52.520008, a coordinate; behind +1 there are always ten digits, the first of them 2 to 9.
    r"(?<![A-Za-z\d+])\+(?!\d{1,3}\.\d{4,8}(?!\d))"
    r"(?:1[ ().\-/]{0,3}[2-9](?:[ ().\-/]{0,3}\d){9}|[02-9](?:[ ().\-/]{0,3}\d){7,14})(?!\d)"
)
_BETWEEN = r"(?: ?[.\-\u2010-\u2015] ?| )"
_END = r"(?:(?![\w-]|\.\d)|(?=(?:x|ext)\.? ?\d))"
_NATIONAL = (
    # 555-123-4567, (555) 123-4567, 1 555 123 4567, 555 - 123 - 4567x12; (11) 91234-5678, 8 (912) 345-67-89
    re.compile(
        rf"(?<![\w.+-])(?=[\d(])(?:(?:1[ .-])?[2-9]\d\d{_BETWEEN}\d{{3}}{_BETWEEN}\d{{4}}"
        rf"|(?:[178][ .-]?)?\((?:[1-9]\d\){_BETWEEN}?9?\d{{4}}{_BETWEEN}\d{{4}}"
        rf"|[2-9]\d\d\){_BETWEEN}?\d{{3}}{_BETWEEN}(?:\d{{4}}|\d\d{_BETWEEN}\d\d))){_END}"
    ),
    # 0049 30 1234567, 00 49 30 1234567; 030 1234567, (030)1234567, 0171/1234567, 01 23 45 67 89; 06.12.34.56.78
    re.compile(
        r"(?<![\w.+/-])(?<!\d:)(?=\(?0)(?:00(?=\d{0,12}[ ().\-/]{1,2}\d) ?[1-9]"
        r"(?:[ ().\-/]{0,2}\d){7,12}(?!\.\d)"
        r"|(?:\(0\d{1,4}\)[ /-]?|0\d{1,4}[ /-])\d(?:[ /-]?\d){5,8}(?![.:]\d)"
        r"|0[1-9](?:\.\d\d){4}(?!\.\d))(?![\w/-])"
    ),
)
_DATE = re.compile(r"\d{1,2}[-/]\d{1,2}[-/]\d{4}")
_NUMBER = re.compile(
    # Of home_5551234567 the word, and no date. Not within a UUID or a hash: there letters and digits take turns.
    r"(?<![\w-])[A-Za-z_-]*(?!(?:19|20)\d\d-[01]\d-[0-3]\d(?!\d))"
    r"\d(?:[\s().,_/\u2010-\u2015\u2212-]{0,3}\d){6,14}(?:[A-Za-z_-]+\d{0,5})?(?![\w-])",
    re.ASCII,
)
_RUN = re.compile(r"\d{17,}", re.ASCII)
_LONGEST_ID = 20
"""Digits of the greatest number of 64 bits. One in five ids of 19 digits has a window that passes for a card."""
_BEGINS = re.compile("[2-69]")
_EXPIRY = re.compile(r"(?:(?:0[1-9]|1[0-2])(?:20)?[2-4]\d|(?:20)?[2-4]\d(?:0[1-9]|1[0-2]))(?:\d{3,4})?")
"""The CVV may be behind it."""
_ISSUERS = re.compile(
    r"4\d{12}(?:\d{3}){0,2}"  # 13, 16 or 19 digits
    r"|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}"
    r"|3[47]\d{13}|3(?:0[0-5]|[68]\d)\d{11}"
    r"|6(?:011|5\d\d|4[4-9]\d)\d{12,15}|35(?:2[89]|[3-8]\d)\d{12,15}|62\d{14,17}"
    r"|(?:5018|5020|5038|5893|6304|6759|676[1-3])\d{9,15}"
    r"|220[0-4]\d{12,15}|9792\d{12}|[56]0\d{14}|67\d{14,17}"
)


def looks_like(text: str, rule: Rule = Rule.PLAIN) -> Kind | None:
    """What the text, or a part of it, looks like; None when nothing.

    rule: that of the field. It decides for phone numbers without any separator, which are else just numbers.
    Numbers of versions such as 1.2.3.4 are IP addresses here, and one in ten numbers of 16 digits that begin as a card
    does passes for one: fields that hold such are declared safe.

    >>> [looks_like(text) for text in ("mail bob@example.org", "2026-11-22T10:00:00Z", "::1", "level 12")]
    [<Kind.EMAIL: 'email'>, None, <Kind.IP: 'ip'>, None]
    """
    if not _HINT.search(text):
        return None
    if 17 <= len(text) <= _LONGEST_ID and _RUN.fullmatch(text) and rule is Rule.ID:
        return Kind.CARD if _run_has_card(text) else None
    for form in (text, *filter(_HINT_ONCE_DECODED.search, decoded(text))):
        for kind, found in _LOOKS:
            if found(form):
                return kind
        if rule is Rule.PHONE and sum(map(str.isdigit, form)) >= 7:
            return Kind.PHONE
        if rule is Rule.BELOW_PHONE and _NUMBER.search(form):
            return Kind.PHONE
    return None


def number_looks_like(number: float, rule: Rule = Rule.PLAIN) -> Kind | None:
    """The same for a number of JSON: card numbers, and phone numbers where the field's rule says so."""
    if isinstance(number, float) and not math.isfinite(number):
        return None
    digits = str(abs(int(number)))
    # Of a greater float most digits are not the sender's.
    exact = isinstance(number, int) or abs(number) < 2**53
    is_id = 17 <= len(digits) <= _LONGEST_ID and rule is Rule.ID
    if (not is_id and _is_card(digits)) or (exact and len(digits) >= 17 and _run_has_card(digits)):
        return Kind.CARD
    is_phone = rule in {Rule.PHONE, Rule.BELOW_PHONE} and 7 <= len(digits) <= 15 and number == int(number)
    return Kind.PHONE if is_phone else None


_DOUBLED = str.maketrans("0123456789", "0246813579")
"""A digit -> the digits of its double, added up."""


def luhn(digits: str) -> bool:
    """Whether the last digit is the check digit of the others (ISO/IEC 7812-1, annex B).

    >>> luhn("4111111111111111"), luhn("4111111111111112")
    (True, False)
    """
    return sum(map(int, digits[::-2] + digits[-2::-2].translate(_DOUBLED))) % 10 == 0


def _email(text: str) -> bool:
    return ("@" in text or "%40" in text) and _EMAIL.search(text) is not None


def _ip(text: str) -> bool:
    if "." in text and any(
        # 131.0.0.0 is the version of a browser, or a network: nobody's address.
        all(int(part) <= 255 for part in found.groups()) and not found.group().endswith(".0.0")
        for found in _IPV4.finditer(text)
    ):
        return True
    return text.count(":") >= 2 and any(_has_ipv6(text, found) for found in _HEX_AND_COLONS.finditer(text))


def _has_ipv6(text: str, found: re.Match[str]) -> bool:
    token = found.group()
    if len(token) > _LONGEST_IPV6 or ("::" not in token and token.count(":") < 6):
        return False
    # What touches a letter belongs to a word, such as the 6 of [IPv6:…].
    if text[max(found.start() - 1, 0) : found.start()].isalnum():
        token = token.partition(":")[2]
    if text[found.end() : found.end() + 1].isalnum():
        token = token.rpartition(":")[0]
    groups = token.split(":")
    with_port = len(groups) == 9 and groups[8].isdecimal()
    forms = {token, token.removesuffix(":"), token.removeprefix(":"), ":".join(groups[:8]) if with_port else token}
    return any(map(_is_ipv6, forms))


def _is_ipv6(token: str) -> bool:
    # a::b is a name of C++.
    if "::" in token and not _DIGIT.search(token):
        return False
    try:
        ipaddress.IPv6Address(token)
    except ValueError:
        return False
    return True


def _card(text: str) -> bool:
    return (
        any(_is_card(found.replace(" ", "").replace("-", "")) for found in _CARD.findall(text))
        or any(map(_run_has_card, _RUN.findall(text)))
        or any(_begins_card(text, found) for found in _FIRST_GROUP.finditer(text))
    )


_LAST_GROUP = {
    (4, 4): 0, (4, 8): 0, (4, 12): 4, (4, 16): 3, (6, 10): 5, (3, 7): 0, (3, 10): 3, (6, 6): 10, (8, 8): 8, (8, 12): 4,
}  # fmt: skip
"""(digits of a group, digits up to its end) -> digits of the one that ends a card behind it; 0: none does.

Cards are printed as 4-4-4-4, 4-6-5, 4-3-3-3, 6-10, 8-8 and 4-8-4.
"""


def _run_has_card(run: str) -> bool:
    """Whether a card number is somewhere in a run of digits; in one as long as ids are, only with its expiry behind it.

    Linear: by running sums each window costs the same.
    """
    sums = []
    for parity in (0, 1):
        digits = list(map(int, run))
        digits[parity::2] = map(int, run[parity::2].translate(_DOUBLED))
        sums.append(list(accumulate(digits, initial=0)))
    is_id = len(run) <= _LONGEST_ID
    for first in _BEGINS.finditer(run, 0, 1 if is_id else len(run) - 12):
        start = first.start()
        for end in range(start + 13, min(start + 19, len(run)) + 1):
            # The digit before the last is doubled, and every second one before it.
            of = sums[end % 2]
            if (of[end] - of[start]) % 10 or not _ISSUERS.fullmatch(run, start, end):
                continue
            if not is_id or _EXPIRY.fullmatch(run, end):
                return True
    return False


def _begins_card(text: str, first: re.Match[str]) -> bool:
    """Whether a group of digits and those behind it are a card's; others may follow, such as expiry and CVV."""
    digits = group = first.group()
    end = first.end()
    while not _is_card(digits):
        following = _NEXT_GROUP.match(text, end)
        last = _LAST_GROUP.get((len(group), len(digits)))
        if following is None or last is None:
            return False
        group, end = following[1], following.end()
        if 0 < last < len(group) and _is_card(digits + group[:last]):
            return True
        digits += group
    return True


def _is_card(digits: str) -> bool:
    return _ISSUERS.fullmatch(digits) is not None and luhn(digits)


def _phone(text: str) -> bool:
    if "+" in text and _INTERNATIONAL.search(text):
        return True
    return any(not _DATE.match(found.group()) for pattern in _NATIONAL for found in pattern.finditer(text))


_LOOKS: tuple[tuple[Kind, Callable[[str], bool]], ...] = (
    (Kind.EMAIL, _email),
    (Kind.IP, _ip),
    (Kind.CARD, _card),
    (Kind.PHONE, _phone),
)
