"""Game events, live operations, the ingest server and personal data."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Literal

from pydantic import Field

from engagement_platform.settings.section import GIB, KIB, MIB, Duration, Section


class GamesSettings(Section):
    """Events of games: where they come from, and which are taken."""

    bucket: str | None = None
    """Bucket that the ingest server, or Firehose, writes events into; replays list it."""
    prefix: str = "events/"
    """Keys of events begin so, and go on with the hour of arrival, YYYY/MM/DD/HH/, in UTC."""
    queue_url: str | None = None
    """SQS queue in which S3 announces new objects. Not set: no game event is read. Credentials, region and
    AWS_ENDPOINT_URL are found where AWS's own tools look."""
    declarations: Path | None = None
    """Folder of declared types of events, one TOML file each, beside those that ship. Read when the code is loaded:
    restart the code server after a change."""
    max_objects: int = Field(1000, ge=1)
    """Most objects in one batch."""
    max_bytes: int = Field(16 * MIB, ge=1)
    """Most bytes of objects in one batch, as they lie in the bucket; a larger one makes a batch alone. JSON lines are
    about ten times as large unpacked."""
    max_lateness: Duration = timedelta(days=7)
    """Events further back than this when their object arrived are quarantined as `late`. With it the partitions that a
    batch writes, and so its files, are bounded."""
    max_ahead: Duration = timedelta(hours=1)
    """Events further ahead than this when their object arrived are quarantined as `future`: clocks of devices are
    wrong."""
    duplicate_window: Duration = timedelta(hours=1)
    """Two events of a type with one event_id are the same, and the second is dropped, when their times are at most so
    far apart. A sender that repeats an event repeats its time as well; the window is for those that stamp it anew."""
    visibility: Duration = timedelta(minutes=5)
    """How long a message stays with a run that has received it; prolonged while the run lives. After a crash it takes
    so long until SQS hands it out again, to no harm."""


class LiveOpsSettings(Section):
    """When the figures of a game are worth an alert. How they are compared is in docs/alerts.md."""

    watch: Duration = timedelta(hours=2)
    """After a change of live-ops, figures are judged more strictly for so long."""
    change_drop: float = Field(0.2, gt=0, lt=1)
    """After a change: a smaller drop below the expected figure raises no alert."""
    change_chance: float = Field(1e-6, gt=0, lt=1)
    """After a change: an alert is raised when a drop is less likely by chance. 2,400 looks in two hours make a false
    alarm in some hundred changes."""
    drop: float = Field(0.4, gt=0, lt=1)
    """Without a change: a smaller drop below the expected figure raises no alert."""
    chance: float = Field(1e-9, gt=0, lt=1)
    """Without a change: an alert is raised when a drop is less likely by chance; 800,000 looks a game in four weeks."""
    silence_events: float = Field(30.0, gt=0)
    """A game is silent when nothing came for so long that so many events were expected. With Poisson's chances that is
    one false alarm in 10^13 looks; games are not that regular."""
    shortest_silence: Duration = timedelta(minutes=3)
    """A shorter silence raises no alert: a delivery that is late by a minute or two is no outage."""
    delay: Duration = timedelta(minutes=2)
    """How long events take from a device to a table. A minute is judged when events were ingested so long after it;
    judged earlier, a minute whose events are still coming looks like a drop. (A guess: batches of some seconds after
    objects of a minute.)"""
    patience: Duration = timedelta(minutes=15)
    """When no game sends anything, time goes on by this machine's clock, so long behind it, so that silence of the only
    game raises an alert, too. A pause of ingestion that is longer looks like silence of all."""
    players_open: Duration = timedelta(days=1)
    """Who was there in a minute is kept for so long. What comes later than that adds to all figures of its minute but
    `players`. 100,000 players of a minute's figures take about 10 MB (a guess)."""
    poll: Duration = timedelta(seconds=5)
    """How often `live-ops run --follow` looks at the figures."""
    automatic: bool = False
    """Whether the runs that ingest events of games judge them, too, at most once a minute, and Dagster's sensor
    `games_counted` is on from the start where `dagster.automation` is `running`: it launches a run that judges while
    none ingests. `live-ops run --follow` does the same without Dagster. `up` sets it where it runs simulated games,
    unless it is set already."""


class IngestServerSettings(Section):
    """The HTTP server that games send their events to."""

    host: str = "127.0.0.1"
    """Address to listen on. It speaks plain HTTP: for other machines put a proxy with TLS before it."""
    port: int = Field(8088, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    health_port: int = Field(8089, ge=0, le=65535)
    """Port of /healthz, /readyz and /metrics, which clients have no business with; 0 takes a free one."""
    sink: Literal["local", "s3", "firehose"] = "local"
    """Where clean events go: `local` gzip objects in `folder`, `s3` the same in `games.bucket`, `firehose` the delivery
    stream `stream`."""
    folder: Path | None = None
    """Root of the sink `local`. Not set: <home>/games."""
    stream: str | None = None
    """Delivery stream of Firehose for the sink `firehose`."""
    spool: Path | None = None
    """Folder in which acknowledged events wait for the sink; on a disk that survives the machine's crash. Not set:
    <home>/ingest/spool."""
    segment_bytes: int = Field(8 * MIB, ge=1)
    """A segment of the spool, which makes one object, is closed at this size before compression."""
    segment_age: Duration = timedelta(seconds=60)
    """A segment is closed at this age, and at the end of the hour. Shorter: events are queryable sooner, from more and
    smaller objects (Firehose's own default is 300 s)."""
    max_spool_bytes: int = Field(2 * GIB, ge=1)
    """More bytes waiting for the sink than this, and requests are answered with 503 until it catches up; 2 GiB are
    hours of a busy game."""
    address_connections: int = Field(500, ge=1)
    """Connections that one address may hold; one more closes the one that has been idle for longest, or is refused
    when none is. A proxy before the server is one address."""
    request_within: timedelta = Field(timedelta(seconds=20), gt=timedelta(0))
    """A connection is closed when the headers of a request take longer to arrive, and so is one without a request, or
    whose answer is not read. As long again for the body: 408."""
    max_body_bytes: int = Field(1 * MIB, ge=1)
    """Largest body of a request as it is sent: 413."""
    max_inflated_bytes: int = Field(8 * MIB, ge=1)
    """Largest body after decompression: 413. No more than that is inflated."""
    max_events: int = Field(500, ge=1)
    """Most events in a request: 413 (Firehose's own limit)."""
    max_event_bytes: int = Field(64 * KIB, ge=2, le=1000 * KIB)
    """A larger event is refused; Firehose takes 1,000 KiB."""
    max_depth: int = Field(16, ge=1, le=100)
    """An event that is nested deeper is refused."""
    max_values: int = Field(1000, ge=4)
    """An event with more values is refused: declared ones are looked for in all others. A body with more brackets and
    commas than `max_events` such events have is not read: 413."""
    max_ahead: Duration = timedelta(days=1)
    """An event from further ahead of the server's clock is refused."""
    rate_events: float = Field(5_000, gt=0)
    """Events a second that a game may send for long; beyond, 429 with Retry-After."""
    burst_events: int = Field(20_000, ge=1)
    """Events that a game may send at once after a pause."""
    rate_bytes: float = Field(4 * MIB, gt=0)
    """Bytes a second, after decompression, that a game may send for long; beyond, 429 until that has caught up.
    Counted while a body is read, also one that is turned away."""
    burst_bytes: int = Field(32 * MIB, ge=1)
    """Bytes that a game may send at once after a pause."""
    key_refresh: Duration = timedelta(seconds=5)
    """A new or revoked key is known to the server after so long."""
    refused_for: timedelta = Field(timedelta(days=30), gt=timedelta(0))
    """Refused events are kept, encrypted, for so long."""
    refused_bytes: int = Field(1 * GIB, ge=2)
    """Most bytes of refused events, compressed and with 512 for each event, that are kept of a game in that time,
    counted anew at each start. What comes beyond is refused and answered for, but not kept."""
    retry_after: timedelta = Field(timedelta(seconds=5), gt=timedelta(0))
    """Pause before a sink that failed is tried again; doubled up to 60 s."""
    stop_after: Duration = timedelta(0)
    """When it is asked to stop, /readyz says 503 at once, and connections are refused only so long after: what sends
    requests here has seen it by then. Three of its looks, such as PT15S; a second signal ends the wait."""
    stop_within: Duration = timedelta(seconds=10)
    """When it is asked to stop, the server delivers what is in the spool for at most so long; the rest is delivered by
    its next start."""


class PiiSettings(Section):
    """Which fields of events are personal data, and how it is kept."""

    fields: dict[str, str] = Field(default_factory=dict)
    """More fields that are personal data: event type, or `*` for all, to JSON pointers with blanks between them; `*` in
    a pointer stands for every element of a list and every key. Added to those that ship."""
    safe: dict[str, str] = Field(default_factory=dict)
    """Fields that are never looked at, in the same form, such as a version number like 1.2.3.4, which is taken for an
    IP address. What is declared in `fields` is taken out all the same."""
    subject: str = "/player_id"
    """JSON pointer to whom an event is about."""
    unknown: Literal["drop", "hash", "reject"] = "drop"
    """A field that nobody declared and that looks like an e-mail or IP address, phone or card number: `drop` leaves it
    out, `hash` puts a keyed hash in its place (for joins), `reject` refuses the event."""
    folding: list[Literal["case", "nfc", "trim"]] = Field(["case", "nfc", "trim"])
    """What `erase` overlooks when it lists ids that may be the same subject's: upper and lower case, Unicode forms
    (NFC), blank ends. Ids are compared exactly everywhere else, and a listed one is never erased for it: it may be
    another person's. An empty list looks for none."""
    master_key_file: Path | None = None
    """File with the master key, readable by its owner only; made when it is missing. Not set: <home>/pii/master.json.
    Keep a copy apart from the stores: without it nothing in the vault can be read."""
    kms_key_id: str | None = None
    """Key, alias or ARN of AWS KMS that wraps the keys instead of the file's."""
    raw_objects: Literal["rewrite", "leave"] = "rewrite"
    """What an erasure does with raw events in `games.bucket`, and in the buckets of declared feeds: `rewrite` lists and
    reads every object below the prefix and writes those with events of the subject anew, `leave` does not look, and the
    receipt says so."""
    purposes: str = "access-request, fraud, legal, support"
    """What the vault may be read for, comma separated. Every read names one and is written down."""
