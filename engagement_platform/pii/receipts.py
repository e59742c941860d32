"""Receipts of erasures: what was done, signed, and whether it still holds.

A receipt names its subject by reference only, so it may be kept. Erasing is `erasure`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from engagement_platform.errors import PlatformError
from engagement_platform.pii.erasure import Erasable, Erased, Subject, look, vault_rows
from engagement_platform.pii.keys import Keyring
from engagement_platform.pii.vault import Vault
from engagement_platform.sources.strict_json import Refused, object_parser

FORMAT = "engagement-platform erasure 1"
_LARGEST, _DEEPEST = 1 << 30, 8
"""Bytes of a receipt, which names each object that was written anew; levels of its objects and lists."""


class ReceiptRefused(PlatformError):
    """A file that is no receipt of this platform, or was changed."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"The receipt cannot be verified: {why}. Nothing was changed. It is proved with the keys of the stores "
            "that the erasure was made with; give the file as it was written."
        )


@dataclass(frozen=True)
class Check:
    """One statement of a receipt, looked at now."""

    what: str
    holds: bool
    seen: str
    looked: bool = True
    """False: not looked at, and `seen` says why; then `holds` says nothing."""

    @property
    def state(self) -> str:
        return ("ok" if self.holds else "LEFT") if self.looked else "not looked"


def receipt(
    keyring: Keyring,
    who: Subject,
    keys: int,
    done: Sequence[Erased],
    now: datetime,
    not_reached: Sequence[str] = (),
    tables: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What was done as a JSON object with its Ed25519 signature (RFC 8032) over the other fields, canonically.

    not_reached: where the subject may be and nobody has looked; a receipt that is silent about it would claim too much.
    tables: every table of the lake -> whether the erasure covers it.
    """
    private = _private_key(keyring)
    content = {
        "format": FORMAT,
        "subject_ref": who.ref,
        "game": who.game,
        "erased_ts": now.isoformat(),
        "keys_destroyed": keys,
        "places": [asdict(one) for one in done],
        "tables": dict(tables or {}),
        "not_reached": list(not_reached),
        "public_key": _public_key(private),
    }
    return {**content, "signature": _signature(private, content)}


def read(path: Path) -> dict[str, Any]:
    """A receipt from its file. Raises ReceiptRefused."""
    try:
        return object_parser(_LARGEST, _DEEPEST)(path.read_bytes())
    except OSError as error:
        raise ReceiptRefused(f"{path}: {error.strerror}") from None
    except Refused:
        raise ReceiptRefused("the file is no JSON object, or one that names a field twice") from None


def verify(vault: Vault, given: Mapping[str, Any], others: Sequence[Erasable], subject_id: str | None) -> list[Check]:
    """Look again at every place that a receipt names. Raises ReceiptRefused (not ours, or changed), IdRefused.

    subject_id: None looks at what the reference leads to, the tombstone, the keys and the vault; others are none then.
    """
    content = _proved(vault.keyring, given)
    if subject_id is not None and vault.ref(subject_id) != content["subject_ref"]:
        raise ReceiptRefused("it is about another subject")
    who = Subject(subject_id or "", str(content["subject_ref"]), content["game"])
    there, keys = bool(vault.keyring.erased({who.owner})), vault.keyring.count(who.owner)
    checks = [
        Check("tombstone", there, "there" if there else "missing: replays would bring it back"),
        Check("keys", keys == 0, f"{keys} keys"),
    ]
    looked_at = [*vault_rows(vault), *others]
    for place in looked_at:
        rows, stays = look(place, who)
        checks.append(Check(place.name, rows == 0, " ".join((f"{rows} rows", *stays))))
    names = {place.name for place in looked_at}
    without = "the receipt has no id to look for; give it with --subject"
    without = without if subject_id is None else "settings, declarations or --game of today do not lead there"
    missed = (place["name"] for place in content["places"] if place["name"] not in names)
    checks += [Check(name, True, without, looked=False) for name in missed]
    not_reached = content.get("not_reached", ())
    return [*checks, *(Check(name, True, "the erasure did not reach it", looked=False) for name in not_reached)]


def _proved(keyring: Keyring, given: Mapping[str, Any]) -> dict[str, Any]:
    private = _private_key(keyring)
    content = {name: value for name, value in given.items() if name != "signature"}
    if content.get("format") != FORMAT:
        raise ReceiptRefused("it is no receipt of an erasure")
    if content.get("public_key") != _public_key(private):
        raise ReceiptRefused("other stores signed it")
    # Ed25519 is deterministic: the same text, not another one that decodes to the same bytes.
    if given.get("signature") != _signature(private, content):
        raise ReceiptRefused("it was changed after it was signed")
    return content


def _private_key(keyring: Keyring) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(keyring.secret("receipt"))


def _public_key(private: Ed25519PrivateKey) -> str:
    return base64.b64encode(private.public_key().public_bytes_raw()).decode()


def _signature(private: Ed25519PrivateKey, content: Mapping[str, object]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return base64.b64encode(private.sign(canonical.encode())).decode()
