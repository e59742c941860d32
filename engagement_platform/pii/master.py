"""The master key, which wraps all other keys: in a file of this machine, or in AWS KMS.

Which keys there are, and wrapping them anew, is `keys`.
"""

from __future__ import annotations

import base64
import json
import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from engagement_platform.engine.durable_files import private_folder, write_durably
from engagement_platform.errors import PlatformError
from engagement_platform.pii.sealing import Sealer, new_key
from engagement_platform.settings import Settings
from engagement_platform.sources.s3_sqs_aws import impatient_client, reason_of

_LOCAL, _KMS = "local:", "kms:"


def same_master(one: str, other: str) -> bool:
    """Whether two versions are of one key of KMS, or both of a file."""
    return one == other or (one.startswith(_LOCAL) and other.startswith(_LOCAL))


class MasterKeyUnusable(PlatformError):
    """The master key is missing, readable by others, or refused by KMS."""


class LocalMaster:
    """Master keys in one file with the rights 0600, read for every use: another process may rotate it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def current(self) -> str:
        """The version that `wrap` uses now; the file is made when it is missing."""
        return f"{_LOCAL}{self._read()['current']}"

    def wrap(self, key: bytes, about: bytes) -> tuple[str, bytes]:
        """(version, wrapped key)."""
        content = self._read()
        number = content["current"]
        return f"{_LOCAL}{number}", Sealer(base64.b64decode(content["keys"][number])).seal(key, about)

    def unwrap(self, version: str, wrapped: bytes, about: bytes) -> bytes:
        """The key. Raises SealBroken, MasterKeyUnusable."""
        content = self._read() if self.path.exists() else {"keys": {}}
        encoded = content["keys"].get(version.removeprefix(_LOCAL))
        if encoded is None:
            raise MasterKeyUnusable(
                f"A key was wrapped by master key {version}, which is not in {self.path}. Nothing was changed. Put the "
                "file back that belongs to these stores, or name it with ENGAGEMENT_PLATFORM_PII__MASTER_KEY_FILE; "
                "without it what was encrypted cannot be read by anybody."
            )
        return Sealer(base64.b64decode(encoded)).open(wrapped, about, f"A key wrapped by {version}")

    def add(self) -> str:
        """Make a new master key, which is the current one from now on; its version."""
        content = self._read()
        number = str(int(content["current"]) + 1)
        self._write({"current": number, "keys": {**content["keys"], number: _new()}})
        return f"{_LOCAL}{number}"

    def forget_former(self) -> None:
        """Remove all but the current one; what they wrapped cannot be read by anybody afterwards.

        Also from what a process left that was killed while it wrote the file. For callers that let nobody else write.
        """
        content = self._read()
        number = content["current"]
        self._write({"current": number, "keys": {number: content["keys"][number]}})
        for left in self.path.parent.glob(f".{self.path.name}.*"):
            left.unlink(missing_ok=True)

    def _read(self) -> dict[str, Any]:
        if not self.path.exists():
            private_folder(self.path.parent)
            with suppress(FileExistsError):  # another process was first; its key counts
                self._write({"current": "1", "keys": {"1": _new()}}, replace=False)
        with self.path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise MasterKeyUnusable(
                    f"The master key in {self.path} has the rights {mode:04o}, so others than its owner can read it. "
                    f"Nothing was read or written. chmod 600 {self.path}; if others may have read it, then "
                    "`engagement-platform pii rotate`."
                )
            content: dict[str, Any] = json.loads(file.read())
        return content

    def _write(self, content: dict[str, Any], *, replace: bool = True) -> None:
        write_durably(self.path, json.dumps(content).encode(), replace=replace)


class KmsMaster:
    """A key of AWS KMS; what it wrapped or unwrapped is unwrapped again without a call for five minutes."""

    KEPT_S, KEPT_KEYS = 300.0, 10_000

    def __init__(self, key_id: str) -> None:
        self.key_id = key_id
        self._client = impatient_client("kms", read_timeout=10)
        self._known: dict[bytes, bytes] = {}
        self._known_since = time.monotonic()

    def current(self) -> str:
        """The version that `wrap` uses now."""
        return f"{_KMS}{self._call('describe_key', KeyId=self.key_id)['KeyMetadata']['Arn']}"

    def wrap(self, key: bytes, about: bytes) -> tuple[str, bytes]:
        """(version, wrapped key)."""
        answer = self._call("encrypt", KeyId=self.key_id, Plaintext=key, EncryptionContext={"about": about.decode()})
        if len(self._known) < self.KEPT_KEYS:
            self._known[answer["CiphertextBlob"] + about] = key
        return f"{_KMS}{answer['KeyId']}", answer["CiphertextBlob"]

    def unwrap(self, version: str, wrapped: bytes, about: bytes) -> bytes:
        """The key. Raises MasterKeyUnusable."""
        now = time.monotonic()
        if len(self._known) > self.KEPT_KEYS or now - self._known_since > self.KEPT_S:
            self._known, self._known_since = {}, now
        if (known := self._known.get(wrapped + about)) is None:
            named = {"KeyId": version.removeprefix(_KMS), "EncryptionContext": {"about": about.decode()}}
            known = self._known[wrapped + about] = self._call("decrypt", CiphertextBlob=wrapped, **named)["Plaintext"]
        return known

    def _call(self, operation: str, **arguments: object) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = getattr(self._client, operation)(**arguments)
        except (BotoCoreError, ClientError) as failed:
            raise MasterKeyUnusable(
                f"KMS did not wrap or unwrap with {self.key_id}: {reason_of(failed)}. Nothing was changed. Check "
                "pii.kms_key_id, region, AWS_ENDPOINT_URL, and the rights kms:Encrypt and kms:Decrypt; then the same "
                "again."
            ) from None
        return answer


class Masters:
    """The master that settings name, and those that wrapped earlier: from the file to KMS and back is a rotation."""

    def __init__(self, settings: Settings) -> None:
        home = settings.home.expanduser().absolute()
        self.local = LocalMaster(settings.pii.master_key_file or home / "pii" / "master.json")
        self._kms = KmsMaster(settings.pii.kms_key_id) if settings.pii.kms_key_id else None

    @property
    def now(self) -> LocalMaster | KmsMaster:
        """The one that wraps now."""
        return self._kms or self.local

    def still_wraps(self, version: str) -> bool:
        """Whether no rotation is about to forget this one; asks no KMS, which forgets none."""
        return not version.startswith(_LOCAL) or self.local.current() == version

    def unwrap(self, version: str, wrapped: bytes, about: bytes) -> bytes:
        """The key, whichever master wrapped it."""
        if version.startswith(_LOCAL):
            return self.local.unwrap(version, wrapped, about)
        master = self._kms or KmsMaster(version.removeprefix(_KMS))
        return master.unwrap(version, wrapped, about)


def _new() -> str:
    return base64.b64encode(new_key()).decode()
