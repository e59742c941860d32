"""Game events and live operations."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from pydantic import Field

from engagement_platform.settings.section import Section

_MIB = 1024**2


class GamesSettings(Section):
    """Events of games: where they come from, and which are taken."""

    bucket: str | None = Field(
        default=None, description="Bucket that the ingest server, or Firehose, writes events into; replays list it."
    )
    prefix: str = Field(
        default="events/",
        description="Keys of events begin so, and go on with the hour of arrival, YYYY/MM/DD/HH/, in UTC.",
    )
    queue_url: str | None = Field(
        default=None,
        description="SQS queue in which S3 announces new objects. Not set: no game event is read. Credentials, region "
        "and AWS_ENDPOINT_URL are found where AWS's own tools look.",
    )
    declarations: Path | None = Field(
        default=None,
        description="Folder of declared types of events, one TOML file each, beside those that ship. Read when the "
        "code is loaded: restart the code server after a change.",
    )
    max_objects: int = Field(default=1000, ge=1, description="Most objects in one batch.")
    max_bytes: int = Field(
        default=16 * _MIB,
        ge=1,
        description="Most bytes of objects in one batch, as they lie in the bucket; a larger one makes a batch alone. "
        "JSON lines are about ten times as large unpacked.",
    )
    max_lateness: timedelta = Field(
        default=timedelta(days=7),
        description="Events further back than this when their object arrived are quarantined as `late`. With it the "
        "partitions that a batch writes, and so its files, are bounded.",
    )
    max_ahead: timedelta = Field(
        default=timedelta(hours=1),
        description="Events further ahead than this when their object arrived are quarantined as `future`: clocks of "
        "devices are wrong.",
    )
    duplicate_window: timedelta = Field(
        default=timedelta(hours=1),
        description="Two events of a type with one event_id are the same, and the second is dropped, when their times "
        "are at most so far apart. A sender that repeats an event repeats its time as well; the window is for those "
        "that stamp it anew.",
    )
    visibility: timedelta = Field(
        default=timedelta(minutes=5),
        description="How long a message stays with a run that has received it; prolonged while the run lives. After "
        "a crash it takes so long until SQS hands it out again, to no harm.",
    )


class LiveOpsSettings(Section):
    """When the figures of a game are worth an alert. How they are compared is in docs/alerts.md."""

    watch: timedelta = Field(
        default=timedelta(hours=2),
        description="After a change of live-ops, figures are judged more strictly for so long.",
    )
    change_drop: float = Field(
        default=0.2, gt=0, lt=1, description="After a change: a smaller drop below the expected figure is never told."
    )
    change_chance: float = Field(
        default=1e-6,
        gt=0,
        lt=1,
        description="After a change: told when a drop is less likely by chance. 2,400 looks in two hours make a false "
        "alarm in some hundred changes.",
    )
    drop: float = Field(
        default=0.4, gt=0, lt=1, description="Without a change: a smaller drop below the expected figure is never told."
    )
    chance: float = Field(
        default=1e-9,
        gt=0,
        lt=1,
        description="Without a change: told when a drop is less likely by chance; 800,000 looks a game in four weeks.",
    )
    silence_events: float = Field(
        default=30.0,
        gt=0,
        description="A game is silent when nothing came for so long that so many events were expected. With Poisson's "
        "chances that is one false alarm in 10^13 looks; games are not that regular.",
    )
    shortest_silence: timedelta = Field(
        default=timedelta(minutes=3),
        description="A shorter silence is never told: a delivery that is late by a minute or two is no outage.",
    )
    delay: timedelta = Field(
        default=timedelta(minutes=2),
        description="How long events take from a device to a table. A minute is judged when events were ingested so "
        "long after it; judged earlier, a minute whose events are still coming looks like a drop. (A guess: batches "
        "of some seconds after objects of a minute.)",
    )
    patience: timedelta = Field(
        default=timedelta(minutes=15),
        description="When no game sends anything, time goes on by this machine's clock, so long behind it, so that "
        "silence of the only game is told, too. A pause of ingestion that is longer looks like silence of all.",
    )
    players_open: timedelta = Field(
        default=timedelta(days=1),
        description="Who was there in a minute is kept for so long. What comes later than that adds to all figures of "
        "its minute but `players`. 100,000 players of a minute's figures take about 10 MB (a guess).",
    )
    poll: timedelta = Field(
        default=timedelta(seconds=5),
        description="How often `live-ops run --follow` looks at the figures.",
    )
    automatic: bool = Field(
        default=False,
        description="Whether Dagster's sensor `live_ops_automation` is on from the start: a run after new events, at "
        "most once a minute. Not beside `live-ops run --follow`, which does the same without runs: of two, one would "
        "stop with CursorMoved. `up` sets it where it runs simulated games, unless it is set already.",
    )
