"""How large batches are, and how long a run goes on."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field

from engagement_platform.settings.section import Section


class BatchSettings(Section):
    max_records: int = Field(
        default=200_000,
        ge=1,
        description="Most messages in one batch. Above it the backlog becomes more batches; memory and time to redo "
        "after a crash grow with it, while the fixed cost of a batch (5 to 8 s on 2 cores) is paid less often.",
    )
    max_bytes: int = Field(
        default=256 * 1024 * 1024,
        ge=1,
        description="Most message bytes in one batch, estimated from the sizes of the messages before it.",
    )


class DrainSettings(Section):
    idle_timeout: timedelta = Field(
        default=timedelta(seconds=20),
        description="How long a run watches an idle source before it ends. A new run costs 8 to 11 s, so a timeout "
        "much shorter than the pause between bursts pays that again and again.",
    )
    poll: timedelta = Field(default=timedelta(seconds=1), description="How often an idle run asks for new messages.")
    min_batch_interval: timedelta = Field(
        default=timedelta(seconds=10),
        description="A batch of a run in Dagster begins at the earliest this long after the one before, unless that "
        "one was full, and rests at least as long as that one took. A batch of 200 rows costs nearly what one of "
        "20,000 does, so without it a quiet topic takes the machine from a busy one: seen were 23 batches of requests "
        "beside 5 of engagements (2 cores).",
    )
    max_duration: timedelta = Field(
        default=timedelta(minutes=10),
        description="A run ends after this long even when more is waiting, so that runs stay small enough to read "
        "in the UI; the sensor starts the next one. It ends after a batch, too, when a run that somebody launched "
        "waits in the queue for its pool, such as a backfill.",
    )
