"""Types of columns as people write them, in Spark's words: `long`, `decimal(10,2)`, `map<string,array<date>>`.

Standard library only: what reads values of a type travels into Spark's Python workers.
"""

from __future__ import annotations

import re

SCALARS = ("string", "long", "double", "boolean", "date", "timestamp")
_OUTER = re.compile(r"(decimal)\((.*)\)|(array|map|struct)<(.*)>", re.DOTALL | re.IGNORECASE)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,49}")
_MOST_DIGITS = 38
KINDS = f"{', '.join(SCALARS)}, decimal(p,s), array<type>, map<string,type> or struct<name:type,...>"


def split(kind: str) -> tuple[str, tuple[str, ...]]:
    """A type's word, and what it is made of.

    >>> split("map<string, array<struct<a:long,b:date>>>")
    ('map', ('string', 'array<struct<a:long,b:date>>'))
    >>> split("decimal(10,2)"), split("long")
    (('decimal', ('10', '2')), ('long', ()))
    """
    kind = "".join(kind.split())
    found = _OUTER.fullmatch(kind)
    if found is None:
        return kind, ()
    parts, depth = [""], 0
    for character in found[2] or found[4] or "":
        depth += (character in "<(") - (character in ">)")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return found[1] or found[3], tuple(parts)


def fields_of(parts: tuple[str, ...]) -> dict[str, str]:
    """Names and types of the fields of a struct, by its parts."""
    return dict(part.split(":", 1) for part in parts)


def checked(kind: str) -> str:
    """The type without blanks. Raises ValueError for what a declared column cannot be.

    >>> checked("struct<lat: double, lon: double>")
    'struct<lat:double,lon:double>'
    >>> checked("decimal(39,2)")
    Traceback (most recent call last):
    ...
    ValueError: 'decimal(39,2)' is no type of a column: string, long, double, boolean, date, timestamp, decimal(p,s), \
array<type>, map<string,type> or struct<name:type,...>
    """
    word, parts = split(kind)
    match word, parts:
        case (_, ()) if word in SCALARS:
            return word
        case "decimal", (digits, after) if digits.isdecimal() and after.isdecimal():
            if 1 <= int(digits) <= _MOST_DIGITS and int(after) <= int(digits):
                return f"decimal({int(digits)},{int(after)})"
        case "array", (element,):
            return f"array<{checked(element)}>"
        case "map", ("string", value):
            return f"map<string,{checked(value)}>"
        case "struct", _ if all(":" in part for part in parts):
            fields = fields_of(parts)
            if parts and len(fields) == len(parts) and all(map(_NAME.fullmatch, fields)):
                return f"struct<{','.join(f'{name}:{checked(of)}' for name, of in fields.items())}>"
    raise ValueError(f"{kind!r} is no type of a column: {KINDS}")
