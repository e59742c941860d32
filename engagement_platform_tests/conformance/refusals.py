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
_OF_DAGSTER = re.compile(r"^dagster\.\S+: ", re.MULTILINE)
_WITHIN = re.compile(r"(?:::\n\n|exception:\n)(.*)")
"""What an error of Dagster's stands around: below its own line, or below its own stack, as its cause."""
_LEFT = re.compile(r"^\[\d+/\d+\] .* is left: .*$", re.MULTILINE)
"""What OPTIMIZE says of a part of its work that waits for its next run."""
_STACK = re.compile(r'^(?:Traceback |\s+at \S+\(|\s+File "|(?:[\w$]+\.)*\w+(?:Error|Exception)\b)', re.MULTILINE)
"""A line of a stack of Python's or of a JVM's, or of an error that was not raised on purpose."""


@dataclass(frozen=True)
class Ended:
    """How a program ended. errors: its standard error; out: its standard output."""

    status: int
    errors: str
    out: str = ""

    @property
    def undone(self) -> str:
        """Why it has to run again: the sentence by which it refused, or by which it left some of its work."""
        left = _LEFT.search(self.out)
        return self.refused or (left[0] if left else "")

    @property
    def refused(self) -> str:
        """The sentence by which it refused; empty where it did its work, or says none."""
        said = sentence(self.errors) if self.status == 1 else ""
        return said if _is_refusal(said) else ""

    @property
    def wrong(self) -> str:
        """What nobody should have to read."""
        worked = self.status == 0 and not _STACK.search(self.errors)
        return "" if worked or self.refused else f"status {self.status}: {self.errors[-3000:]}"


def sentence(errors: str) -> str:
    """What a program that refused says on its last line; of a run of Dagster the error that its steps ended with, and
    not what that was caused by, of several the first that is no refusal.

    Empty after an error that was not raised on purpose.
    """
    if of_dagster := _OF_DAGSTER.split(errors)[1:]:
        said = [found[1] if (found := _WITHIN.search(each)) else each for each in of_dagster]
        # Dagster's own errors stand around each other, too; those have a place of their own in the list.
        own = [re.sub(r"^engagement_platform\.[\w.]+: ", "", each) for each in said if each]
        return next((each for each in own if not _is_refusal(each)), (own or [""])[-1])
    lines = [line for line in errors.splitlines() if line.strip() and not line.startswith("Waiting: ")]
    return "" if not lines or _STACK.search(errors) else lines[-1]


def _is_refusal(said: str) -> bool:
    named = _NAMED.match(said)
    return named is not None and named[1] in REFUSALS


def name_errors() -> None:
    """From now on the product's errors in this process say which they are before what they say."""

    def named(error: PlatformError) -> str:
        return f"{type(error).__name__}: {Exception.__str__(error)}"

    PlatformError.__str__ = named  # type: ignore[method-assign, assignment]
