"""Runs batch after batch of one job, or of several by turns, until their sources are idle. One batch is `job`."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar

from engagement_platform.engine.job import BatchReport, MicroBatchJob
from engagement_platform.engine.lease import Lease, LeaseUnavailable
from engagement_platform.engine.unfinished_batches import OthersBatchUnfinished
from engagement_platform.errors import PlatformError

W = TypeVar("W")

BRIEFLY = timedelta(seconds=1)
"""How long a turn waits for another run's lease before the next job has its turn."""
LONGEST_PAUSE_S = 300.0
"""What fails again and again is tried less and less often: after 10, 20, 40, … seconds, at most these."""


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
    once: bool = False
    """Ends after the first batch that the run has planned itself: for a job each of whose batches takes all that waits,
    so that what comes meanwhile waits for the next run."""


def pause_s(min_interval_s: float, took_s: float) -> float:
    """Seconds between a batch that took so long and the next: what is left of the interval, or as long again.

    So a job whose batches are longer than the interval (one of thirty game tables takes 12 s) leaves the machine to
    others, too; and never for longer than the interval, or rows would be late by twice what a slow batch takes.
    """
    return max(min_interval_s - took_s, min(took_s, min_interval_s))


def pause_after(failures: int, longest_s: float) -> float:
    """Seconds until the next try after so many failures in a row; none after none."""
    return min(longest_s, 10.0 * 2 ** (failures - 1)) if failures > 0 else 0.0


def drain(job: MicroBatchJob[W], policy: DrainPolicy) -> Iterator[BatchReport]:
    """Runs batches until the source was idle for `idle_timeout`, `max_duration` is over, or the policy ends it.

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
                if (policy.once and not report.replayed) or policy.gives_way():
                    return
                if not job.limits.is_full(report.counts):
                    time.sleep(pause_s(policy.min_batch_interval.total_seconds(), time.monotonic() - began))
                continue
            idle_since = idle_since or time.monotonic()
            if time.monotonic() - idle_since >= policy.idle_timeout.total_seconds() or policy.gives_way():
                return
            time.sleep(policy.poll.total_seconds())


class DrainFailed(PlatformError):
    """Jobs of a shared drain failed until it ended."""

    def __init__(self, failed: Sequence[tuple[str, Exception]]) -> None:
        reasons = " ".join(f"{name}: {error}" for name, error in failed)
        super().__init__(f"The other jobs went on; {len(failed)} of them failed and could not be finished. {reasons}")


class _Turns:
    """One job in a shared drain: its lease while it has one, when it is looked at next, and what went wrong."""

    def __init__(
        self,
        job: MicroBatchJob[Any],
        interval: timedelta,
        policy: DrainPolicy,
        absent: tuple[type[Exception], ...],
    ) -> None:
        self.job, self._policy, self._absent = replace(job, lease_wait=BRIEFLY), policy, absent
        self._patience_s = job.lease_wait.total_seconds()
        self._interval_s = (
            max(interval, policy.min_batch_interval).total_seconds() if policy.min_batch_interval else 0.0
        )
        self._held = ExitStack()
        self._lease: Lease | None = None
        self._blocked_since: float | None = None
        self._idle_since: float | None = None
        self._failures = 0
        self.due = 0.0
        self.error: Exception | None = None
        """Of the last batch, when that failed."""

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def rests(self) -> bool:
        """Whether nothing keeps the drain going for this job: it failed, or was idle for long enough."""
        idle_s = self._policy.idle_timeout.total_seconds()
        return self.error is not None or (
            self._idle_since is not None and time.monotonic() - self._idle_since >= idle_s
        )

    def take(self) -> BatchReport | None:
        """One batch, if there is one, and when the next is due. Raises nothing: a failure is `error`."""
        began = time.monotonic()
        try:
            if self._lease is None:
                self._lease = self._held.enter_context(self.job.exclusive())
            report = self.job.run_batch(self._lease)
        except (LeaseUnavailable, OthersBatchUnfinished) as blocked:
            self._blocked_since = self._blocked_since or began
            if time.monotonic() - self._blocked_since >= self._patience_s:
                self._fail(blocked)
            else:
                self._after(BRIEFLY.total_seconds())
            return None
        except self._absent:
            report = None
        except Exception as error:
            self._fail(error)
            return None
        self._blocked_since, self._failures, self.error = None, 0, None
        if report is None:
            self._idle_since = self._idle_since or began
            self._after(self._policy.poll.total_seconds())
            return None
        self._idle_since = None
        self._after(0.0 if self.job.limits.is_full(report.counts) else self._interval_s - (time.monotonic() - began))
        return report

    def let_go(self) -> None:
        """Give the lease of the job back; the next turn takes it again."""
        self._lease = None
        self._held.close()

    def _after(self, seconds: float) -> None:
        self.due = time.monotonic() + max(0.0, seconds)

    def _fail(self, error: Exception) -> None:
        self.let_go()
        self._failures, self.error = self._failures + 1, error
        self._after(pause_after(self._failures, LONGEST_PAUSE_S))


def drain_in_turns(
    jobs: Sequence[tuple[MicroBatchJob[Any], timedelta]],
    policy: DrainPolicy,
    *,
    absent: tuple[type[Exception], ...] = (),
    wanted: Callable[[], Collection[str]] = tuple,
    on_failure: Callable[[str, Exception], None] = lambda _job, _error: None,
    on_recovery: Callable[[str], None] = lambda _job: None,
) -> Generator[tuple[str, BatchReport], None, None]:
    """Runs batches of several jobs in one process, always of the job that is due for the longest; with each its job.

    jobs: each with the least time between the beginnings of two of its batches, see `DrainPolicy.min_batch_interval`;
    zero there means at once, for every job. absent: errors of a source that is not there yet, so nothing waits in it.
    wanted: names of jobs that another run wants now; their leases are given back until it has ended. on_failure: called
    with each failure of a job, which is tried again less and less often; the others go on. on_recovery: called with a
    job that failed before and finds nothing to do. A job whose tables another
    run writes has its turn a second later. Ends as one job's `drain` does, when all jobs rest. Raises DrainFailed in
    the end when the last batch of a job failed.
    """
    ends = time.monotonic() + policy.max_duration.total_seconds()
    turns = [_Turns(job, interval, policy, absent) for job, interval in jobs]
    with ExitStack() as held:
        for one in turns:
            held.callback(one.let_go)
        while time.monotonic() < ends and not all(one.rests for one in turns) and not policy.gives_way():
            withheld = wanted()
            for one in turns:
                if one.name in withheld:
                    one.let_go()
            ready = [one for one in turns if one.name not in withheld]
            turn = min(ready, key=lambda one: one.due, default=None)
            if turn is None or turn.due > time.monotonic():
                # Not longer: another run may want a job meanwhile, or wait for the pool.
                left = policy.poll.total_seconds() if turn is None else turn.due - time.monotonic()
                time.sleep(max(0.0, min(left, policy.poll.total_seconds())))
                continue
            before, report = turn.error, turn.take()
            if turn.error is not None and turn.error is not before:
                on_failure(turn.name, turn.error)
            if report is not None:
                yield turn.name, report
            elif before is not None and turn.error is None:
                on_recovery(turn.name)
    if failed := [(one.name, one.error) for one in turns if one.error is not None]:
        raise DrainFailed(failed) from failed[0][1]
