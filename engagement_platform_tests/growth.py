"""How the work of a function grows with what it is given: a ratio of one process, so that it holds on any machine."""

from __future__ import annotations

import time
from collections.abc import Callable


def cpu_seconds(call: Callable[[], object], times: int = 3) -> float:
    """The least seconds of this process that a call takes, however busy the machine is."""
    least = float("inf")
    for _ in range(times):
        began = time.process_time()
        call()
        least = min(least, time.process_time() - began)
    return least
