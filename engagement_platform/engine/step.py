"""A process of a batch that is one function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.model import Counts

W = TypeVar("W")


@dataclass(frozen=True)
class Step(Generic[W]):
    """Calls the function with the work and the committer; it makes the named commits and returns counts."""

    name: str
    does: Callable[[W, Committer], Counts]
    commits: tuple[str, ...] = ()

    def run(self, work: W, commit: Committer) -> Counts:
        """Do it."""
        return self.does(work, commit)
