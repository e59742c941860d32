"""Where the file of a deletion vector is. Which files have one is `files` and `commits`."""

from __future__ import annotations

from base64 import b85decode
from collections.abc import Mapping
from typing import Any
from uuid import UUID

_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_FROM_Z85 = str.maketrans(_Z85, _B85)
_UUID_CHARACTERS = 20


def vector_file(vector: Mapping[str, Any]) -> str | None:
    """The file of a deletion vector below the table's folder; None for those that stand in the log or elsewhere.

    Delta protocol: deletion vector descriptor schema; `u` is an optional prefix and a UUID in Z85.

    >>> vector_file({"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^"})
    'ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin'
    """
    if vector.get("storageType") != "u":
        return None
    told = str(vector["pathOrInlineDv"])
    prefix, name = told[:-_UUID_CHARACTERS], told[-_UUID_CHARACTERS:]
    file = f"deletion_vector_{UUID(bytes=b85decode(name.translate(_FROM_Z85)))}.bin"
    return f"{prefix}/{file}" if prefix else file
