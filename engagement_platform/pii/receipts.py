"""Receipts of erasures: what was done, signed, and whether it still holds.

A receipt names its subject by reference only, so it may be kept. Erasing is `erasure`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from engagement_platform.errors import PlatformError
from engagement_platform.pii.contracts import REFUSED, VAULT
from engagement_platform.pii.erasure import Erasable, Erased, Subject, left
from engagement_platform.pii.keys import EVERY_GAME, Keyring, Owner
from engagement_platform.pii.scan import places_with
from engagement_platform.pii.vault import Vault

FORMAT = "engagement-platform erasure 1"
LEAST_SCANNED = 6
"""Shorter ids are not looked for byte by byte: they would be found everywhere."""


class ReceiptRefused(PlatformError):
    """A file that is no receipt of this platform, or was changed."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"The receipt cannot be verified: {why}. Nothing was changed. It is proved with the keys of the stores "
            "that the erasure was made with; give the file as it was written."
        )


@dataclass(frozen=True)
class Check:
    """One thing that a receipt promises, looked at now."""

    what: str
    holds: bool
    seen: str


def receipt(keyring: Keyring, who: Subject, keys: int, done: Sequence[Erased], now: datetime) -> dict[str, Any]:
    """What was done as a JSON object with its Ed25519 signature (RFC 8032) over the other fields, canonically."""
    private = Ed25519PrivateKey.from_private_bytes(keyring.secret("receipt"))
    said = {
        "format": FORMAT,
        "subject_ref": who.ref,
        "game": who.game,
        "erased_ts": now.isoformat(),
        "keys_destroyed": keys,
        "places": [asdict(one) for one in done],
        "public_key": _encoded(private.public_key()),
    }
    return {**said, "signature": base64.b64encode(private.sign(_canonical(said))).decode()}


def read(path: Path) -> dict[str, Any]:
    """A receipt from its file. Raises ReceiptRefused."""
    try:
        given = json.loads(path.read_bytes())
    except OSError as error:
        raise ReceiptRefused(f"{path}: {error.strerror}") from None
    except ValueError:
        raise ReceiptRefused("the file is no JSON") from None
    if not isinstance(given, dict):
        raise ReceiptRefused("it is no receipt of an erasure")
    return given


def verify(
    vault: Vault, given: Mapping[str, Any], others: Sequence[Erasable], subject_id: str | None, home: Path
) -> list[Check]:
    """Look again at everything that a receipt promises. Raises ReceiptRefused when it is not ours, or was changed.

    subject_id: with it also what only the id leads to is looked at: other tables, refused events that name it, and
    every byte of every file under `home`, compressed ones and Parquet included.
    """
    ref, game = _proved(vault.keyring, given)
    owner = Owner(EVERY_GAME if game is None else game, ref)
    who = Subject(subject_id if subject_id is not None else "\x00", ref, game)
    if subject_id is not None and vault.keyring.ref(subject_id) != ref:
        raise ReceiptRefused("it is about another subject")
    return list(_checks(vault, who, owner, others, home, named=subject_id is not None))


def _checks(
    vault: Vault, who: Subject, owner: Owner, others: Sequence[Erasable], home: Path, *, named: bool
) -> Iterator[Check]:
    there = vault.keyring.has_tombstone(owner)
    yield Check("tombstone", there, "there" if there else "missing: replays would bring it back")
    keys = vault.keyring.count(owner)
    yield Check("keys", keys == 0, f"{keys} keys")
    for table in (VAULT, REFUSED):
        rows = left(vault, table, who)
        yield Check(table.name, rows == 0, f"{rows} rows")
    if not named:
        return
    for other in others:
        rows = other.left(who)
        yield Check(other.name, rows == 0, f"{rows} rows")
    if len(who.id) >= LEAST_SCANNED:
        found = places_with([home], [who.id.encode()])
        yield Check("bytes", not found, ", ".join(str(path) for path in found[:5]) or "in no file")


def _proved(keyring: Keyring, given: Mapping[str, Any]) -> tuple[str, str | None]:
    public = Ed25519PrivateKey.from_private_bytes(keyring.secret("receipt")).public_key()
    said = {name: value for name, value in given.items() if name != "signature"}
    if said.get("format") != FORMAT:
        raise ReceiptRefused("it is no receipt of an erasure")
    if said.get("public_key") != _encoded(public):
        raise ReceiptRefused("other stores signed it")
    try:
        public.verify(base64.b64decode(str(given.get("signature"))), _canonical(said))
    except (InvalidSignature, ValueError):
        raise ReceiptRefused("it was changed after it was signed") from None
    return str(said["subject_ref"]), said["game"]


def _canonical(said: Mapping[str, object]) -> bytes:
    return json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _encoded(key: Ed25519PublicKey) -> str:
    return base64.b64encode(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()
