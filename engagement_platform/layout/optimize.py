"""Does one slice: rewrites its files, and tries again when somebody else was faster.

What to do is `plan`; whose turn it is, is `maintain`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from engagement_platform.lake.optimize import OptimizeConflict, Rewrite, Rewritten, SparkGetter, rewrite
from engagement_platform.layout.plan import Left, Slice
from engagement_platform.layout.survey import Survey, fingerprint
from engagement_platform.settings import MaintenanceSettings


@dataclass(frozen=True)
class Done:
    """A slice that was rewritten, and what came of it."""

    slice: Slice
    rewritten: Rewritten
    files_before: int
    files_after: int
    fingerprint: str
    """Of the files that the partition has now, if nobody else has written to it since it was planned."""
    seconds: float
    attempts: int
    started_ts: datetime

    def as_json(self) -> dict[str, object]:
        """Prediction and outcome side by side."""
        return {
            **self.slice.as_json(),
            "version": self.rewritten.version,
            "files_before": self.files_before,
            "files_after": self.files_after,
            "files_removed": len(self.rewritten.removed),
            "files_added": len(self.rewritten.added),
            "bytes_removed": sum(self.rewritten.removed.values()),
            "bytes_added": sum(self.rewritten.added.values()),
            "took_seconds": round(self.seconds, 3),
            "attempts": self.attempts,
        }


@dataclass(frozen=True)
class Tools:
    """What doing a slice takes beside the slice."""

    settings: MaintenanceSettings
    spark: SparkGetter
    """Opens Spark when it is first needed."""
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    sleep: Callable[[float], None] = time.sleep


def optimize(one: Slice, planned_on: Survey, tools: Tools, guard: Callable[[], None] = lambda: None) -> Done | Left:
    """Rewrite a slice in one commit. Left, when other commits took its files away at every attempt.

    guard: raises when the table's lease is lost. Raises TableBusy, and what Spark raises for all but a conflict.
    """
    started = tools.clock()
    began = time.monotonic()
    pause = tools.settings.backoff.total_seconds()
    for attempt in range(1, tools.settings.attempts + 1):
        work = Rewrite(
            place=one.place,
            where=one.where,
            order_by=one.order_by,
            target_file_bytes=one.target_file_bytes,
            marker=f"optimize/{started.isoformat()}/{one.partition}#{attempt}",
            only_below_bytes=one.only_below_bytes,
        )
        try:
            rewritten = rewrite(work, tools.spark(), guard)
        except OptimizeConflict as conflict:
            said = str(conflict)
            if attempt < tools.settings.attempts:
                tools.sleep(pause)
                pause *= 2
            continue
        before = set(planned_on.paths.get(one.partition, ()))
        after = sorted((before - set(rewritten.removed)) | set(rewritten.added))
        took = time.monotonic() - began
        return Done(one, rewritten, len(before), len(after), fingerprint(after), took, attempt, started)
    return Left(one, f"tried {tools.settings.attempts} times: {said}")
