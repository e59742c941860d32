"""Runs batch after batch of a job until its source is idle, and decides when a run ends. One batch is `job`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

from engagement_platform.engine.job import BatchReport, MicroBatchJob

W = TypeVar("W")


@dataclass(frozen=True)
class DrainPolicy:
    """When a run ends: after an idle time, after a total time; and how often it looks while idle."""

    idle_timeout: timedelta = field(default=timedelta(seconds=20))
    poll: timedelta = field(default=timedelta(seconds=1))
    max_duration: timedelta = field(default=timedelta(minutes=10))
    min_batch_interval: timedelta = field(default=timedelta(0))
    """A batch begins at the earliest this long after the one before, unless that one was full. Zero: at once."""
    gives_way: Callable[[], bool] = field(default=lambda: False)
    """Asked after each batch and look: True ends the run, since another run waits for what it holds."""


def pause_s(min_interval_s: float, took_s: float) -> float:
    """Seconds between a batch that took so long and the next: what is left of the interval, or as long again.

    So a job whose batches are longer than the interval (one of thirty game tables takes 12 s) leaves the machine to
    others, too; and never for longer than the interval, or rows would be late by twice what a slow batch takes.
    """
    return max(min_interval_s - took_s, min(took_s, min_interval_s))


def drain(job: MicroBatchJob[W], policy: DrainPolicy) -> Iterator[BatchReport]:
    """Runs batches until the source was idle for `idle_timeout`, `max_duration` is over, or the policy gives way.

    The job's lease is held meanwhile. A batch that was begun is always finished. Raises what a batch raises.
    """
    # timedelta.max has more seconds than a float counts exactly; it still is "never".
    ends = time.monotonic() + policy.max_duration.total_seconds()
    with job.exclusive() as lease:
        idle_since: float | None = None
        while time.monotonic() < ends:
            began = time.monotonic()
            report = job.run_batch(lease)
            if report is not None:
                idle_since = None
                yield report
                if policy.gives_way():
                    return
                if report.counts.get("rows_in", 0) < job.limits.max_records:
                    time.sleep(pause_s(policy.min_batch_interval.total_seconds(), time.monotonic() - began))
                continue
            idle_since = idle_since or time.monotonic()
            if time.monotonic() - idle_since >= policy.idle_timeout.total_seconds() or policy.gives_way():
                return
            time.sleep(policy.poll.total_seconds())
