"""What looks like personal data though nobody declared it: e-mail and IP addresses, phone and card numbers.

Pure functions of text. Which fields are looked at, and what becomes of a find, is `redaction`.
"""

from __future__ import annotations

import ipaddress
import math
import re
from enum import StrEnum

from engagement_platform.pii.cards import LONGEST_ID, is_card, run_has_card, text_has_card
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
_FILES = (
    r"(?:png|jpe?g|gif|webp|svg|[cm]?jsx?|tsx?|css|json|html|(?:js)?bundle|map|wasm|gz|unityweb|plist|atlas|pvr|ccz|ktx2?"
    r"|astc|dds|tga|fnt|ttf|otf|woff2?|mp[34]|ogg|wav|prefab)"
)
_ENDS_AS_FILES = rf"[\w.-]{{0,253}}(?<=\.){_FILES}(?![\w-]|\.\w)"
_TLDS = (
    # Those of countries, and usual ones that are no words of games: no word before a file's ending is an address else.
    r"(?:a[c-gilmoq-uwxz]|b[abd-jmnorstvwyz]|c[acdf-ik-oru-z]|d[ejkmoz]|e[cegrstu]|f[ijkmor]|g[abd-ilmnp-uwy]|h[kmnrtu]"
    r"|i[del-oq-t]|j[emop]|k[eghimnprwyz]|l[abcikr-vy]|m[acdeghk-z]|n[acefgilopruz]|om|p[ae-hk-nr-twy]|qa|r[eosuw]"
    r"|s[a-eg-or-vx-z]|t[cdfghj-ortvwz]|u[agksyz]|v[aceginu]|w[fs]|y[et]|z[amw]|com|org|net|edu|gov|mil|info|biz|mobi"
    r"|xyz|online|club|email|asia|coop|museum|gmbh|berlin)"
)
# Begins at the @ and looks back one character: a pattern that begins with the name takes quadratic time on a long text.
_EMAIL = re.compile(
    r"(?:(?<=[\w.+%!#$&'*/=?^`{|}~-])|(?<=\w\"))(?:@|%40)"
    # What ends a name of a file ends no domain, and behind @2x nothing does: hero@2x.dark.png. Before such an end only
    # the end of a domain does: bob@example.org.json, but not value@vendor.chunk.js.
    rf"(?!\dx\.{_ENDS_AS_FILES})(?>((?={_ENDS_AS_FILES}))?)"
    rf"(?:[\w-]{{1,63}}\.){{1,10}}(?!{_FILES}(?![^\W\d_]))"
    rf"(?:{_TLDS}(?![^\W_])|xn--[\w-]{{1,59}}|(?(1)(?![a-z]))[^\W\d_]{{2,24}})",
    re.IGNORECASE,
)
_IPV4 = re.compile(r"(?<![A-Za-z\d])(?<!\d\.)(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})(?![A-Za-z\d]|\.\d)")
_HEX_AND_COLONS = re.compile(r"[0-9A-Fa-f:]{3,}(?:(?<=\d)(?:\.\d{1,3}){3})?")
_DIGIT = re.compile(r"\d")
_LONGEST_IPV6 = 60
"""Characters, with the end of a word before it and a port behind."""
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
_LONG_ID = re.compile(rf"\d{{17,{LONGEST_ID}}}", re.ASCII)


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
    if rule is Rule.ID and _LONG_ID.fullmatch(text):
        return Kind.CARD if run_has_card(text, ids=True) else None
    for form in (text, *filter(_HINT_ONCE_DECODED.search, decoded(text))):
        if (kind := _kind_of(form, rule)) is not None:
            return kind
    return None


def _kind_of(form: str, rule: Rule) -> Kind | None:
    if _email(form):
        return Kind.EMAIL
    if _ip(form):
        return Kind.IP
    if text_has_card(form, ids=rule is Rule.ID):
        return Kind.CARD
    is_phone = (
        _phone(form)
        or (rule is Rule.PHONE and sum(map(str.isdigit, form)) >= 7)
        or (rule is Rule.BELOW_PHONE and _NUMBER.search(form) is not None)
    )
    return Kind.PHONE if is_phone else None


def number_looks_like(number: float, rule: Rule = Rule.PLAIN) -> Kind | None:
    """The same for a number of JSON: card numbers, and phone numbers where the field's rule says so."""
    if isinstance(number, float) and not math.isfinite(number):
        return None
    digits = str(abs(int(number)))
    # Of a greater float most digits are not the sender's.
    exact = isinstance(number, int) or abs(number) < 2**53
    is_id = rule is Rule.ID
    is_long_id = is_id and _LONG_ID.fullmatch(digits) is not None
    if (not is_long_id and is_card(digits)) or (exact and len(digits) >= 14 and run_has_card(digits, ids=is_id)):
        return Kind.CARD
    is_phone = rule in {Rule.PHONE, Rule.BELOW_PHONE} and 7 <= len(digits) <= 15 and number == int(number)
    return Kind.PHONE if is_phone else None


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


def _phone(text: str) -> bool:
    if "+" in text and _INTERNATIONAL.search(text):
        return True
    return any(not _DATE.match(found.group()) for pattern in _NATIONAL for found in pattern.finditer(text))
