"""Card numbers: in the groups in which cards are printed, in one run of digits, and with what belongs to one beside it.

Pure functions of text. Which ids pass for a card by chance, and how often, is in docs/pii.md.
"""

from __future__ import annotations

import re
from itertools import accumulate

LONGEST_ID = 20
"""Digits of the greatest number of 64 bits. One in five ids of 19 digits has a window that passes for a card."""
_ENOUGH = re.compile(r"(?:\d\D{0,4}){12}\d")
"""Most texts have no thirteen digits so near to each other, and are done."""
_UUID = re.compile(r"(?<![^\W_])[\dA-F]{8}(?:-[\dA-F]{4}){3}-[\dA-F]{12}(?![^\W_])", re.ASCII | re.IGNORECASE)
_MONTH = r"(?:(?:0[1-9]|1[0-2])[2-4]\d|[2-4]\d(?:0[1-9]|1[0-2]))"
_DATED = rf"(?:{_MONTH}|20[2-4]\d)"
"""A group of four digits that may stand beside a card: its expiry, or the year of that."""
_ALL = re.compile(r"(?<!\d)(?<!\d[ .-])\d(?:[ -]?\d){12,18}(?![ -]?\d)")
_WHOLE = re.compile(r"(?<!\d)(?<!\d\.)(\d{13,19}?)(?:(?!\d)|(?:0[1-9]|1[0-2])[/-](?:20)?[2-4]\d(?!\d))")
"""A run, or what is before the expiry that is glued to it: 411111111111111112/29."""
_GAP = r"[\W_]{1,4}"
_GROUPS = re.compile(
    # 4-4-4-4, also of fewer digits or more, and 8-8; then 6-10, 4-6-5, 4-3-3-3 and 4-8-4. Between all of a card are the
    # same characters, and with one group more of the same length it is a list of numbers.
    rf"(?<!\d)(?=([2-69]\d{{3}}(?P<of4>{_GAP})(?:\d{{4}}(?P=of4)){{2}}"
    rf"(?:\d{{1,3}}(?!\d)|\d{{4}}(?!(?P=of4)(?!{_DATED})\d{{4}}(?!\d))(?:(?P=of4)\d{{1,3}}(?!\d))?)"
    rf"|(?<!\d\.)[2-69](?:\d{{7}}(?P<of8>{_GAP})\d{{8}}(?!(?P=of8)\d{{8}}(?!\d))|\d{{5}}{_GAP}\d{{10}}"
    rf"|\d{{3}}(?P<gap>{_GAP})(?:\d{{6}}(?P=gap)\d{{4,5}}|(?:\d{{3}}(?P=gap)){{2}}\d{{3}}|\d{{8}}(?P=gap)\d{{4}}))))"
)
_LAST_DIGITS = re.compile(r"\d+\Z")
_BESIDE = re.compile(_DATED)
_EVEN = re.compile(
    # At most one number before them, and expiry and CVV behind: 7 41 11 11 11 11 11 11 11, 411 111 111 111 1111 12/29.
    r"(?<!\d)(?<!\d[ -])(?:\d{1,4}[ -])?"
    r"([3-6]\d(?:[ -]\d\d){6}(?:[ -]\d{1,2})|[3-6]\d\d(?:[ -]\d{3}){3}[ -]\d{3,4})"
    r"(?:[ /,;|-]{1,3}\d{1,4}){0,3}(?!\d|[ -]\d)"
)
_RUN = re.compile(r"(\d\.)?(\d{14,})", re.ASCII)
_BEGINS = re.compile("[2-69]")
_EXPIRY = rf"(?:{_MONTH}|(?:0[1-9]|1[0-2])20[2-4]\d|20[2-4]\d(?:0[1-9]|1[0-2]))"
_ISSUERS = re.compile(
    r"4\d{12}(?:\d{3}){0,2}"  # 13, 16 or 19 digits
    r"|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}"
    r"|3[47]\d{13}|3(?:0[0-5]|[68]\d)\d{11}"
    r"|6(?:011|5\d\d|4[4-9]\d)\d{12,15}|35(?:2[89]|[3-8]\d)\d{12,15}|62\d{14,17}"
    r"|(?:5018|5020|5038|5893|6304|6759|676[1-3])\d{9,15}"
    r"|220[0-4]\d{12,15}|9792\d{12}|[56]0\d{14}|67\d{14,17}"
)
_USUAL = r"(?:4\d{15}|5[1-5]\d{14}|3[47]\d{13})"
_WITH_EXPIRY = re.compile(rf" (?:{_ISSUERS.pattern}) {_EXPIRY}(?:\d{{3,4}})?|{_MONTH} {_USUAL} ")
"""Of a run as long as ids: what is before the card, the card, what is behind it."""
_WITH_OTHERS = re.compile(
    rf"{_WITH_EXPIRY.pattern}|\d {_USUAL} | (?:4\d{{12}}(?:\d{{3}})?|5[1-5]\d{{14}}) \d{{3}}| 3[47]\d{{13}} \d{{4}}"
)
"""The same, and with a CVV behind it or one digit before it. The issuers whose digits begin no usual id: those of Steam
have 65 behind their first digit, snowflakes of 2027 to 2031 begin with 22 to 27.
"""
_DOUBLED = str.maketrans("0123456789", "0246813579")
"""A digit -> the digits of its double, added up."""


def luhn(digits: str) -> bool:
    """Whether the last digit is the check digit of the others (ISO/IEC 7812-1, annex B).

    >>> luhn("4111111111111111"), luhn("4111111111111112")
    (True, False)
    """
    return sum(map(int, digits[::-2] + digits[-2::-2].translate(_DOUBLED))) % 10 == 0


def is_card(digits: str) -> bool:
    """Whether all the digits are a card's."""
    return _ISSUERS.fullmatch(digits) is not None and luhn(digits)


def text_has_card(text: str, *, ids: bool) -> bool:
    """Whether a card number is somewhere in a text.

    ids: of others beside it in a run as long as ids are only an expiry counts, as in a fraction.
    """
    if not _ENOUGH.search(text):
        return False
    # Of UUIDs one in 38,000 has groups of digits as a card has.
    outside = _UUID.sub("x", text) if "-" in text else text
    return (
        any(is_card(found.replace(" ", "").replace("-", "")) for found in _ALL.findall(outside))
        or any(map(is_card, _WHOLE.findall(text)))
        or any(run_has_card(run, ids=ids or point != "") for point, run in _RUN.findall(text))
        or any(_is_of_card(outside, found) for found in _GROUPS.finditer(outside))
        or any(is_card(found.replace(" ", "").replace("-", "")) for found in _EVEN.findall(outside))
    )


def run_has_card(run: str, *, ids: bool) -> bool:
    """Whether a card number is in a run of digits with others beside it, in one as long as ids with such as belong to
    a card. ids: of those only an expiry.

    Linear: by running sums each window costs the same.
    """
    sums = []
    for parity in (0, 1):
        digits = list(map(int, run))
        digits[parity::2] = map(int, run[parity::2].translate(_DOUBLED))
        sums.append(list(accumulate(digits, initial=0)))
    as_long_as_ids = len(run) <= LONGEST_ID
    beside = _WITH_EXPIRY if ids else _WITH_OTHERS
    for first in _BEGINS.finditer(run, 0, 5 if as_long_as_ids else len(run) - 12):
        start = first.start()
        for end in range(start + 13, min(start + 19, len(run)) + 1):
            # The digit before the last is doubled, and every second one before it.
            of = sums[end % 2]
            if (of[end] - of[start]) % 10:
                continue
            if as_long_as_ids:
                if beside.fullmatch(f"{run[:start]} {run[start:end]} {run[end:]}"):
                    return True
            elif _ISSUERS.fullmatch(run, start, end):
                return True
    return False


def _is_of_card(text: str, groups: re.Match[str]) -> bool:
    """Whether groups of digits, or all but a fifth one, are a card's, and no others of a list."""
    digits = "".join(filter(str.isdecimal, groups[1]))
    if not (is_card(digits) or is_card(digits[:16])):
        return False
    gap, size = groups["of4"] or groups["of8"], 4 if groups["of4"] else 8
    if gap is None or not text.endswith(gap, 0, groups.start()):
        return True
    end = groups.start() - len(gap)
    before = _LAST_DIGITS.search(text, max(0, end - size - 1), end)
    return before is None or len(before[0]) != size or _BESIDE.fullmatch(before[0]) is not None
