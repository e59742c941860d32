"""Keeps a run within a time: what is not begun by then is left to the next call of the same command."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field


def add_budget_option(parser: argparse.ArgumentParser, minutes: float) -> None:
    """How long a call may take; not part of what names a run, so that another call may take longer."""
    parser.add_argument(
        "--minutes", type=float, default=minutes,
        help=f"begin nothing more after so long; the same command goes on (default {minutes:g}; 0: no end)",
    )  # fmt: skip


@dataclass(frozen=True)
class Budget:
    """A time that began when this was made."""

    minutes: float
    """0: no end."""
    began: float = field(default_factory=time.monotonic)

    def left(self, share: float = 1.0) -> bool:
        """Whether something may begin that has to begin within this share of the time.

        >>> Budget(10, time.monotonic() - 301).left(0.5), Budget(10).left(0.5), Budget(0).left(0.0)
        (False, True, True)
        """
        return not self.minutes or time.monotonic() - self.began < share * self.minutes * 60
