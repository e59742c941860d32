"""What the name of a field says of its value: for phone numbers without separators, and for ids, nothing else does.

Pure functions of a name. How a value is looked at under each rule is `detection`.
"""

from __future__ import annotations

import re
from enum import Enum

from engagement_platform.pii.encodings import narrowed


class Rule(Enum):
    """How the value of a field is looked at, by the field's name and those of its parents."""

    PLAIN = "plain"
    ID = "id"
    """Long numbers are ids rather than cards."""
    PHONE = "phone"
    BELOW_PHONE = "below phone"
    """Below a name that says phone. What is in there may be something else, such as a date or a UUID."""


_SAYS_PHONE = re.compile(
    # The phone itself, unless it is the phone's number.
    r"(?P<other>(?:smart|micro|head|mega|(?<![^\W_])i)_?phone(?!s?_?n(?:um|r|o(?![a-z]))))|phone"
    r"|mobile_?(?:n|\d|home|work|private|contact|primary|personal|value)|(?:^|_)mobiles?$"
    r"|(?:contact|user|customer|player|member|client|guest|owner|parent|guardian|friend|home|work|office|private)"
    r"_?(?:mobiles?|tel|fax|sms)$|(?:cell|contact)_?num|telefon|msisdn|whats_?app|\bwa_id$|(?:^|_)(?:tel|sms|fax)(?:$|_|\d|no|nr|num)",
    re.IGNORECASE,
)
_SAYS_OTHERWISE = re.compile(
    r"(?:^|_)(?:at|ts|ms|hash|bytes|build|version|model|verified|count|uses)$|(?<!whatsapp)(?<!whats_app)(?<!\bwa)_ids?$",
    re.IGNORECASE,
)
"""Of a name that says phone elsewhere, such as phone_verified_at; the id of a WhatsApp account is its number."""
_SAYS_ID = re.compile(r"(?:^|_)(?:ids?|key|ref|uuid)$", re.IGNORECASE)
_BETWEEN_WORDS = re.compile(r"[.\s-]+|(?<=[a-z\d])(?=[A-Z])")


def rules(name: str) -> tuple[Rule, Rule]:
    """By which rule the value of a field is looked at, and by which below a name that says phone.

    >>> [rules(name)[0].value for name in ("contactMobile", "phone_numbers", "hotel", "iPhone", "guildId", "phone_id")]
    ['phone', 'phone', 'plain', 'plain', 'id', 'id']
    """
    # In snake_case, more or less: camelCase, blanks, dots and dashes, full-width letters.
    words = _BETWEEN_WORDS.sub("_", narrowed(name))
    otherwise = _SAYS_OTHERWISE.search(words) is not None
    if not otherwise and any(each["other"] is None for each in _SAYS_PHONE.finditer(words)):
        return Rule.PHONE, Rule.PHONE
    own = Rule.ID if _SAYS_ID.search(words) else Rule.PLAIN
    return own, own if otherwise else Rule.BELOW_PHONE
