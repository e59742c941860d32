"""When pending changes are moved into the base: at once where too much waits, else at the cadence of the settings."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from engagement_platform.settings import RematerializeSettings


@dataclass(frozen=True)
class Waits:
    """What waits, and since when nothing was moved."""

    pending_rows: int
    orphans: int
    point_read_s: float | None
    last: datetime | None
    """When the last rematerialization was planned; None before the first."""
    base_read_s: float = 0.0
    """The same read of the base alone, which a move makes no shorter."""


def pressing(waits: Waits, settings: RematerializeSettings) -> str | None:
    """Why changes are to be moved whatever the cadence; None when it decides. Exactly at a limit is not over it."""
    if waits.orphans:
        return f"{waits.orphans} batches are in base and changeset"
    if waits.pending_rows > settings.max_pending_rows:
        limit = f"rematerialize.max_pending_rows ({settings.max_pending_rows:,})"
        return f"{waits.pending_rows:,} changes wait, more than {limit}"
    longer_s = (waits.point_read_s or 0.0) - waits.base_read_s
    if waits.pending_rows and longer_s > settings.max_view_latency.total_seconds():
        limit = f"rematerialize.max_view_latency ({_readable(settings.max_view_latency)})"
        return (
            f"{waits.pending_rows:,} changes wait, and reading one key took {longer_s:.2f} s longer than in the base "
            f"alone, over {limit}"
        )
    return None


def due(waits: Waits, now: datetime, settings: RematerializeSettings) -> tuple[bool, str]:
    """Whether to move now, and why or why not."""
    if (why := pressing(waits, settings)) is not None:
        return True, why
    if not waits.pending_rows:
        return False, "no changes wait"
    rows = f"{waits.pending_rows:,} changes wait"
    if waits.last is None or now - waits.last >= settings.cadence:
        return True, f"{rows}; due every {_readable(settings.cadence)} (rematerialize.cadence)"
    return False, f"{rows}; next in {_readable(waits.last + settings.cadence - now)}"


def _readable(span: timedelta) -> str:
    """In whole seconds, minutes or hours, whatever reads best.

    >>> [_readable(timedelta(seconds=s)) for s in (0.4, 90, 600, 86400)]
    ['0 s', '90 s', '10 min', '24 h']
    """
    seconds = span.total_seconds()
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
