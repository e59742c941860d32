"""AES-256-GCM with associated data: what is sealed opens only under the same key and the same words about it.

Bytes in, bytes out. Where keys come from is `keys`.
"""

from __future__ import annotations

import json
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from engagement_platform.errors import Damaged

KEY_BYTES, NONCE_BYTES = 32, 12


class SealBroken(Damaged):
    """Something encrypted does not open: other bytes, another key, or moved to another place."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} does not open: it was changed, moved from another place, or sealed with another key. Nothing was "
            "changed. Restore it together with the stores and the master key of the same time."
        )


def new_key() -> bytes:
    return os.urandom(KEY_BYTES)


def words(*parts: str | int) -> bytes:
    """Associated data of several words; no two lists of words give the same bytes."""
    return json.dumps(parts, ensure_ascii=False).encode("utf-8", "surrogatepass")


class Sealer:
    """One key, made ready once.

    Nonces are random, so a key is good for 2**32 values (NIST SP 800-38D, 8.3): it is one subject's or segment's.
    """

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def seal(self, plain: bytes, about: bytes) -> bytes:
        """Nonce and ciphertext with its tag."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, plain, about)

    def open(self, sealed: bytes, about: bytes, what: str) -> bytes:
        """What was sealed. what: for the message of SealBroken, which is raised when it does not open."""
        try:
            return self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], about)
        except (InvalidTag, ValueError):
            raise SealBroken(what) from None


def derived(secret: bytes, purpose: str) -> bytes:
    """A key for one purpose, made from a secret (HKDF, RFC 5869)."""
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=purpose.encode()).derive(secret)
