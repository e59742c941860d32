"""The master key, which wraps all other keys: in a file of this machine, or in AWS KMS.

Wraps and unwraps. Which keys there are, and wrapping them anew, is `keys`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from engagement_platform.errors import PlatformError
from engagement_platform.pii.sealing import Sealer, new_key
from engagement_platform.settings import Settings

_LOCAL, _KMS = "local:", "kms:"


class MasterKeyExposed(PlatformError):
    """The file of the master key can be read by others than its owner."""

    def __init__(self, path: Path, mode: int) -> None:
        self.path = path
        super().__init__(
            f"The master key in {path} has the rights {mode:04o}, so others than its owner can read it. Nothing was "
            f"read or written. chmod 600 {path}; if others may have read it, then `engagement-platform pii rotate`."
        )


class MasterKeyMissing(PlatformError):
    """Something is wrapped by a master key that is not to be had."""

    def __init__(self, version: str, place: str) -> None:
        self.version = version
        super().__init__(
            f"A key was wrapped by master key {version}, which is not in {place}. Nothing was changed. Put the file "
            "back that belongs to these stores, or name it with ENGAGEMENT_PLATFORM_PII__MASTER_KEY_FILE; without it "
            "what was encrypted cannot be read by anybody."
        )


class KmsUnavailable(PlatformError):
    """KMS did not answer, or refused."""

    def __init__(self, key_id: str, said: str) -> None:
        super().__init__(
            f"KMS did not wrap or unwrap with {key_id}: {said}. Nothing was changed. Check pii.kms_key_id, region, "
            "AWS_ENDPOINT_URL, and the rights kms:Encrypt and kms:Decrypt; then the same again."
        )


class LocalMaster:
    """Master keys in one file with the rights 0600, looked at for every use: another process may rotate it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def current(self) -> str:
        """The version that `wrap` uses now; the file is made when it is missing."""
        return f"{_LOCAL}{self._read()['current']}"

    def wrap(self, key: bytes, about: bytes) -> tuple[str, bytes]:
        """(version, wrapped key)."""
        kept = self._read()
        number = str(kept["current"])
        return f"{_LOCAL}{number}", Sealer(_decoded(kept["keys"][number])).seal(key, about)

    def unwrap(self, version: str, wrapped: bytes, about: bytes) -> bytes:
        """The key. Raises SealBroken, MasterKeyMissing."""
        encoded = self._read(make=False)["keys"].get(version.removeprefix(_LOCAL))
        if encoded is None:
            raise MasterKeyMissing(version, str(self.path))
        return Sealer(_decoded(encoded)).open(wrapped, about, f"A key wrapped by {version}")

    def add(self) -> str:
        """Make a new master key, which is the current one from now on; its version."""
        kept = self._read()
        number = str(int(kept["current"]) + 1)
        self._replace({"current": number, "keys": {**kept["keys"], number: _encoded(new_key())}})
        return f"{_LOCAL}{number}"

    def forget_former(self) -> int:
        """Remove all but the current one, how many; what they wrapped cannot be read by anybody afterwards."""
        kept = self._read()
        number = str(kept["current"])
        self._replace({"current": number, "keys": {number: kept["keys"][number]}})
        return len(kept["keys"]) - 1

    def _read(self, *, make: bool = True) -> dict[str, Any]:
        try:
            descriptor = os.open(self.path, os.O_RDONLY)
        except FileNotFoundError:
            if not make:
                raise MasterKeyMissing("of these stores", str(self.path)) from None
            self._make()
            descriptor = os.open(self.path, os.O_RDONLY)
        with os.fdopen(descriptor, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise MasterKeyExposed(self.path, mode)
            kept: dict[str, Any] = json.loads(file.read())
        return kept

    def _make(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = self._written({"current": "1", "keys": {"1": _encoded(new_key())}})
        with contextlib.suppress(FileExistsError):  # another process was first; its key counts
            os.link(temporary, self.path)
        temporary.unlink()
        _sync_folder(self.path.parent)

    def _replace(self, kept: dict[str, Any]) -> None:
        self._written(kept).replace(self.path)
        _sync_folder(self.path.parent)

    def _written(self, kept: dict[str, Any]) -> Path:
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.{time.monotonic_ns()}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(json.dumps(kept).encode())
            file.flush()
            os.fsync(file.fileno())
        return temporary


class KmsMaster:
    """A key of AWS KMS; the same key unwrapped again within five minutes is no second call."""

    KEPT_S, KEPT_KEYS = 300.0, 10_000

    def __init__(self, key_id: str) -> None:
        self.key_id = key_id
        retries = {"mode": "standard", "total_max_attempts": 4}
        self._client: Any = boto3.client("kms", config=Config(connect_timeout=5, read_timeout=10, retries=retries))
        self._known: dict[bytes, tuple[float, bytes]] = {}
        self._arn: str | None = None

    def current(self) -> str:
        """The version that `wrap` uses now."""
        if self._arn is None:
            self._arn = str(self._call("describe_key", KeyId=self.key_id)["KeyMetadata"]["Arn"])
        return f"{_KMS}{self._arn}"

    def wrap(self, key: bytes, about: bytes) -> tuple[str, bytes]:
        """(version, wrapped key)."""
        said = self._call("encrypt", KeyId=self.key_id, Plaintext=key, EncryptionContext=_context(about))
        return f"{_KMS}{said['KeyId']}", said["CiphertextBlob"]

    def unwrap(self, version: str, wrapped: bytes, about: bytes) -> bytes:
        """The key. Raises KmsUnavailable."""
        now = time.monotonic()
        if len(self._known) > self.KEPT_KEYS or any(now - at > self.KEPT_S for at, _ in list(self._known.values())[:1]):
            self._known.clear()
        known = self._known.get(wrapped + about)
        if known is None:
            arn = version.removeprefix(_KMS)
            said = self._call("decrypt", KeyId=arn, CiphertextBlob=wrapped, EncryptionContext=_context(about))
            known = self._known[wrapped + about] = (now, said["Plaintext"])
        return known[1]

    def _call(self, operation: str, **arguments: object) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = getattr(self._client, operation)(**arguments)
        except ClientError as failed:
            error = failed.response.get("Error", {})
            raise KmsUnavailable(self.key_id, f"{error.get('Code', 'unknown')} {error.get('Message', '')}") from None
        except BotoCoreError as failed:
            raise KmsUnavailable(self.key_id, str(failed).rstrip(".")) from None
        return answer


class Masters:
    """The master that settings name, and those that wrapped earlier: from the file to KMS and back is a rotation."""

    def __init__(self, settings: Settings) -> None:
        home = settings.home.expanduser().absolute()
        self.local = LocalMaster(settings.pii.master_key_file or home / "pii" / "master.json")
        self._kms = KmsMaster(settings.pii.kms_key_id) if settings.pii.kms_key_id else None

    @property
    def in_kms(self) -> bool:
        """Whether KMS wraps now."""
        return self._kms is not None

    def current(self) -> str:
        """The version that `wrap` uses now."""
        return self._now.current()

    def wrap(self, key: bytes, about: bytes) -> tuple[str, bytes]:
        """(version, wrapped key)."""
        return self._now.wrap(key, about)

    def unwrap(self, version: str, wrapped: bytes, about: bytes) -> bytes:
        """The key, whichever master wrapped it."""
        if version.startswith(_LOCAL):
            return self.local.unwrap(version, wrapped, about)
        master = self._kms or KmsMaster(version.removeprefix(_KMS))
        return master.unwrap(version, wrapped, about)

    @property
    def _now(self) -> LocalMaster | KmsMaster:
        return self._kms or self.local


def _context(about: bytes) -> dict[str, str]:
    return {"about": about.decode()}


def _encoded(key: bytes) -> str:
    return base64.b64encode(key).decode()


def _decoded(text: str) -> bytes:
    return base64.b64decode(text)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
