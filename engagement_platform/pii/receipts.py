"""Receipts of erasures: what was done, signed, and whether it still holds.

A receipt names its subject by reference only, so it may be kept. Erasing is `erasure`.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from engagement_platform.engine.database import utc_now
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
    looked: bool = True
    """False: nobody looked, and `seen` says why; then `holds` says nothing."""

    @property
    def state(self) -> str:
        """In a word or two."""
        return ("ok" if self.holds else "LEFT") if self.looked else "not looked"


def receipt(
    keyring: Keyring, who: Subject, keys: int, done: Sequence[Erased], now: datetime, not_reached: Sequence[str] = ()
) -> dict[str, Any]:
    """What was done as a JSON object with its Ed25519 signature (RFC 8032) over the other fields, canonically.

    not_reached: where the subject may be and nobody has looked; a receipt that is silent about it would claim too much.
    """
    private = Ed25519PrivateKey.from_private_bytes(keyring.secret("receipt"))
    said = {
        "format": FORMAT,
        "subject_ref": who.ref,
        "game": who.game,
        "erased_ts": now.isoformat(),
        "keys_destroyed": keys,
        "places": [asdict(one) for one in done],
        "not_reached": list(not_reached),
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
    vault: Vault,
    given: Mapping[str, Any],
    others: Sequence[Erasable],
    subject_id: str | None,
    home: Path,
    outside: Sequence[Path] = (),
    names: Sequence[str] = (),
) -> list[Check]:
    """Look again at everything that a receipt promises. Raises ReceiptRefused when it is not ours, or was changed.

    subject_id: with it also what only the id leads to is looked at: other tables, refused events that name it, and
    every byte of every file under `home` and in a lake on this machine's disk, compressed ones and Parquet included.
    names: more ids of the subject, which no byte may say either.
    outside: folders there that no erasure reaches, such as those of the embedded broker; they are named, not read.
    """
    said = _proved(vault.keyring, given)
    ref, game = str(said["subject_ref"]), said["game"]
    owner = Owner(EVERY_GAME if game is None else game, ref)
    who = Subject(subject_id if subject_id is not None else "\x00", ref, game)
    if subject_id is not None and vault.keyring.ref(subject_id) != ref:
        raise ReceiptRefused("it is about another subject")
    checks = list(_checks(vault, who, owner))
    if subject_id is not None:
        until = {place["name"]: place.get("until", {}) for place in said["places"]}
        lake = [] if "://" in vault.root or Path(vault.root).is_relative_to(home) else [Path(vault.root)]
        for other in others:
            rows = other.left(who)
            checks.append(Check(other.name, rows == 0, f"{rows} rows"))
        checks += _scanned([home, *lake], outside, [subject_id, *names], others, until)
        if "://" in vault.root:
            checks.append(_not_looked("bytes of the lake", "it is on an object store; rows were looked at"))
    else:
        without = "the receipt has no id to look for; give it with --subject"
        ours = (VAULT.name, REFUSED.name)
        checks += [_not_looked(str(place["name"]), without) for place in said["places"] if place["name"] not in ours]
        checks.append(_not_looked("bytes", without))
    checks += [_not_looked(str(each), "the erasure did not reach it") for each in said.get("not_reached", ())]
    return checks


def _not_looked(what: str, why: str) -> Check:
    return Check(what, holds=True, seen=why, looked=False)


def _checks(vault: Vault, who: Subject, owner: Owner) -> Iterator[Check]:
    there = bool(vault.keyring.erased({owner}))
    yield Check("tombstone", there, "there" if there else "missing: replays would bring it back")
    keys = vault.keyring.count(owner)
    yield Check("keys", keys == 0, f"{keys} keys")
    for table in (VAULT, REFUSED):
        rows = left(vault, table, who)
        yield Check(table.name, rows == 0, f"{rows} rows")


def _scanned(
    folders: Sequence[Path],
    outside: Sequence[Path],
    ids: Sequence[str],
    others: Sequence[Erasable],
    until: Mapping[str, Mapping[str, str]],
) -> Iterator[Check]:
    """until: of each place, what its former versions keep -> by when that is gone."""
    needles = [id_.encode("utf-8", "surrogatepass") for id_ in ids if len(id_) >= LEAST_SCANNED]
    if len(needles) < len(ids):
        yield _not_looked("bytes of short ids", f"fewer than {LEAST_SCANNED} characters are found everywhere")
    if not needles:
        return
    stays: list[Path] = []
    waits = Counter[tuple[str, str, str]]()
    for path in places_with(folders, needles, outside):
        planned = _planned(path, others, until)
        if planned is not None and utc_now() <= datetime.fromisoformat(planned[2]):
            waits[planned] += 1
        else:
            stays.append(path)
    yield Check("bytes", not stays, ", ".join(map(str, stays[:5])) or "in no file that is in use")
    for folder in outside:
        if folder.exists():
            yield _not_looked("outside", str(folder))
    for (name, kind, when), count in sorted(waits.items()):
        yield Check("waits", True, f"{count} files of former versions of {name} ({kind}), gone by {when}")


def _planned(
    path: Path, others: Sequence[Erasable], until: Mapping[str, Mapping[str, str]]
) -> tuple[str, str, str] | None:
    """(place, what it is, by when it is gone) of a file that a receipt said would go later."""
    for other in others:
        kind = other.former(path)
        if kind is not None and (when := until.get(other.name, {}).get(kind)) is not None:
            return other.name, kind.value, when
    return None


def _proved(keyring: Keyring, given: Mapping[str, Any]) -> dict[str, Any]:
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
    return said


def _canonical(said: Mapping[str, object]) -> bytes:
    return json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _encoded(key: Ed25519PublicKey) -> str:
    return base64.b64encode(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()
