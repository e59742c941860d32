"""Which batches a run of an ingestion asset makes: new messages, or days that are read once more. No Dagster here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from engagement_platform.engine.drain import DrainPolicy
from engagement_platform.engine.job import BatchReport, MicroBatchJob
from engagement_platform.errors import PlatformError
from engagement_platform.settings import DrainSettings

if TYPE_CHECKING:
    from engagement_platform.defs.platform import Opened
    from engagement_platform.engine.job import Callbacks

Mode = Literal["auto", "drain", "reread"]
Build = Callable[["Opened", "Callbacks"], MicroBatchJob[Any]]
Again = Callable[[date, "Opened", "Callbacks"], Iterator[BatchReport]]


class NoReread(PlatformError):
    """Days of a job were asked for that only reads on."""

    def __init__(self, job: str, days: Sequence[date]) -> None:
        self.job, self.days = job, tuple(days)
        super().__init__(
            f"{job} cannot read {', '.join(map(str, days))} again: requests stand as they came. Nothing was changed. "
            "For requests that were rejected and would pass now, run the job redrive_quarantine; for new ones "
            "materialize today's partition."
        )


@dataclass(frozen=True)
class Work:
    """What a run does: first the days to read again, then what is new."""

    reread: Sequence[date]
    drain: bool


def work_of(mode: Mode, days: Sequence[date], today: date) -> Work:
    """What the partitions of a run ask for.

    days: the run's partitions, none for a run without. auto: days before today are read again, today (or no
    partition) drains. drain: always just that; a run that was launched before midnight starts after it with
    yesterday's partition. reread: all days, today when there is none.
    """
    if mode == "drain":
        return Work((), drain=True)
    if mode == "reread":
        return Work(sorted(days) or [today], drain=False)
    return Work(sorted(day for day in days if day < today), drain=not days or any(day >= today for day in days))


def _engagements_again(day: date, opened: Opened, callbacks: Callbacks) -> Iterator[BatchReport]:
    from engagement_platform.jobs import reread

    return reread([day], opened.spark, opened.settings, opened.stores, callbacks)


def drain_policy(settings: DrainSettings, gives_way: Callable[[], bool]) -> DrainPolicy:
    """The settings as the engine wants them."""
    return DrainPolicy(
        settings.idle_timeout, settings.poll, settings.max_duration, settings.min_batch_interval, gives_way
    )


def batches(
    job: str,
    work: Work,
    opened: Opened,
    callbacks: Callbacks,
    *,
    gives_way: Callable[[], bool],
    build: Build | None = None,
    again: Again | None = None,
) -> Iterator[tuple[date, BatchReport | None]]:
    """Finished batches, each with the day it belongs to: the one that is read again, else that of its ingestion.

    gives_way: ends the drain after a batch. build: makes the job, again: reads a day once more; None: found by the
    job's name. A day on which nothing was recorded comes with None. Raises NoReread before anything is done, and what
    batches raise.
    """
    from engagement_platform import jobs

    if again is None and job == jobs.INGEST_ENGAGEMENTS:
        again = _engagements_again
    if work.reread and again is None:
        raise NoReread(job, work.reread)
    for day in work.reread:
        nothing = True
        for report in again(day, opened, callbacks) if again else ():
            nothing = False
            yield day, report
        if nothing:
            yield day, None
    if work.drain:
        from engagement_platform.engine.drain import drain

        named = partial(jobs.build_job, job, opened.spark, opened.settings, opened.stores)
        made = named(callbacks) if build is None else build(opened, callbacks)
        try:
            for report in drain(made, drain_policy(opened.settings.drain, gives_way)):
                yield report.manifest.ingestion_ts.date(), report
        finally:
            jobs.close_source(made)
