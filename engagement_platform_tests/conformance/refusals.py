"""How a program ended, and what counts as a refusal: a sentence about somebody else's work, by an error made for that.

Programs of conformance name the class of an error before what it says (`name_errors`), since sentences may change.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from engagement_platform.errors import PlatformError

REFUSALS = frozenset(
    {
        "CursorMoved",
        "FenceNotPlaced",
        "LakeHeld",
        "LeaseLost",
        "LeaseUnavailable",
        "MasterKeyBusy",
        "OptimizeConflict",
        "OthersBatchUnfinished",
        "RestoreRefused",
        "StaleBatch",
        "StillRead",
        "StoresBehind",
        "TableBusy",
        "WrittenMeanwhile",
    }
)
"""Errors that say that somebody else is at work, or has gone on. BatchFailed is none of them: it quotes whatever Spark
raised, a conflict of Delta's that nobody has thought of, too."""

_NAMED = re.compile(r"(\w+): \S")
_CAUSE = re.compile(r"^engagement_platform\.[\w.]+: (\S.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Ended:
    """How a program ended. errors: its standard error."""

    status: int
    errors: str

    @property
    def refused(self) -> str:
        """The sentence by which it refused; empty where it did its work, or says none."""
        said = sentence(self.errors) if self.status == 1 else ""
        named = _NAMED.match(said)
        return said if named and named.group(1) in REFUSALS else ""

    @property
    def wrong(self) -> str:
        """What nobody should have to read."""
        return "" if self.status == 0 or self.refused else f"status {self.status}: {self.errors[-3000:]}"


def sentence(errors: str) -> str:
    """What a program that refused says on its last line; of a run of Dagster, which prints where, too, its cause.

    Empty after an error that was not raised on purpose.
    """
    if causes := _CAUSE.findall(errors):
        return str(causes[-1])
    lines = [line for line in errors.splitlines() if line.strip() and not line.startswith("Waiting: ")]
    return "" if not lines or "Traceback" in errors else lines[-1]


def name_errors() -> None:
    """From now on the product's errors in this process say which they are before what they say."""

    def named(error: PlatformError) -> str:
        return f"{type(error).__name__}: {Exception.__str__(error)}"

    PlatformError.__str__ = named  # type: ignore[method-assign, assignment]
