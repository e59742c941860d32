"""When pending changes are moved into the base: at once where too much waits, else at a cadence that costs least.

Figures in, a decision and its reason out. The figures are in the records of the batches of `rematerialize`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from math import sqrt
from statistics import median
from typing import NamedTuple

from engagement_platform.engine.model import BatchRecord
from engagement_platform.settings import RematerializeSettings

ROUNDS = 10
"""Newest rematerializations that the median is taken of: some hours of them, and one slow one does not count."""


class Round(NamedTuple):
    """What one rematerialization cost, and what it was good for."""

    write_s: float
    """Seconds that the base's commit took."""
    slower_s: float
    """By how much reading one key was slower before than after; not below 0."""
    waited_s: float
    """Since the one before it."""


class Cadence(NamedTuple):
    """The time from one rematerialization to the next, and why."""

    interval: timedelta
    why: str


def rounds(history: Sequence[BatchRecord]) -> list[Round]:
    """The finished batches of a job as figures, newest first as `history` is; without those that did not measure."""
    found = []
    for record, before in pairwise(history):
        details = record.details
        names = ("process_seconds", "point_read_before_s", "point_read_after_s")
        seconds, slow, fast = (details.get(name) for name in names)
        waited = (record.manifest.ingestion_ts - before.manifest.ingestion_ts).total_seconds()
        measured = isinstance(seconds, Mapping) and isinstance(slow, float) and isinstance(fast, float)
        if measured and "base" in seconds and waited > 0:
            found.append(Round(float(seconds["base"]), max(0.0, slow - fast), waited))
    return found[:ROUNDS]


def cadence(known: Sequence[Round], settings: RematerializeSettings) -> Cadence:
    """The setting's, or for `auto` the interval at which writing and slower reading together cost least.

    A write costs C seconds. Reads grow slower by k seconds for each second that changes gather, so that r reads a
    second lose r * k * T / 2 on average over an interval T. (C / T) + (r * k * T / 2) is least at T = sqrt(2C / rk):
    there the reads of an interval lose as much as its write costs.
    """
    if settings.cadence != "auto":
        return Cadence(settings.cadence, f"every {_readable(settings.cadence)}, as rematerialize.cadence says")
    if not known:
        unknown = "nothing is known yet of what writing and reading cost"
        return Cadence(settings.shortest, f"after {_readable(settings.shortest)}: {unknown}")
    write_s = median(one.write_s for one in known)
    slower = median(one.slower_s / one.waited_s for one in known)
    lost = slower * settings.reads_per_hour / 3600
    measured = (
        f"a write takes {write_s:.2f} s, and reading one key grows slower by {slower * 3.6e6:.1f} ms an hour "
        f"(medians of {len(known)}), at {settings.reads_per_hour:g} reads an hour"
    )
    if lost == 0:
        return Cadence(settings.longest, f"after {_readable(settings.longest)}, the longest: {measured}")
    best = timedelta(seconds=min(sqrt(2 * write_s / lost), 1e9))
    chosen = min(max(best, settings.shortest), settings.longest)
    between = f"{_readable(settings.shortest)} and {_readable(settings.longest)}"
    bound = "" if chosen == best else f", held between {between}"
    return Cadence(chosen, f"after {_readable(best)}{bound}: {measured}")


@dataclass(frozen=True)
class Waits:
    """What waits, and since when nothing was moved."""

    pending_rows: int
    orphans: int
    point_read_s: float | None
    last: datetime | None
    """When the last rematerialization was planned; None before the first."""


def pressing(waits: Waits, settings: RematerializeSettings) -> str | None:
    """Why changes are to be moved whatever the cadence; None when it decides. Exactly at a limit is not over it."""
    if waits.orphans:
        return f"{waits.orphans} batches are in base and changeset"
    if waits.pending_rows > settings.max_pending_rows:
        limit = f"rematerialize.max_pending_rows ({settings.max_pending_rows:,})"
        return f"{waits.pending_rows:,} changes wait, more than {limit}"
    slow = waits.point_read_s is not None and waits.point_read_s > settings.max_view_latency.total_seconds()
    if waits.pending_rows and slow:
        limit = f"rematerialize.max_view_latency ({_readable(settings.max_view_latency)})"
        return f"{waits.pending_rows:,} changes wait, and reading one key took {waits.point_read_s:.2f} s, over {limit}"
    return None


def due(waits: Waits, known: Sequence[Round], now: datetime, settings: RematerializeSettings) -> tuple[bool, str]:
    """Whether to move now, and why or why not."""
    if (why := pressing(waits, settings)) is not None:
        return True, why
    if not waits.pending_rows:
        return False, "no changes wait"
    rows, chosen = f"{waits.pending_rows:,} changes wait", cadence(known, settings)
    if waits.last is None or now - waits.last >= chosen.interval:
        return True, f"{rows}; due {chosen.why}"
    return False, f"{rows}; next in {_readable(waits.last + chosen.interval - now)}, {chosen.why}"


def _readable(span: timedelta) -> str:
    """In whole seconds, minutes or hours, whatever reads best.

    >>> [_readable(timedelta(seconds=s)) for s in (0.4, 90, 600, 86400)]
    ['0 s', '90 s', '10 min', '24 h']
    """
    seconds = span.total_seconds()
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
