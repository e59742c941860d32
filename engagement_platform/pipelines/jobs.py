"""Builds, runs, redrives, rereads and resets jobs by their names, for the command line and for Dagster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from engagement_platform.engine.database import may_exist, open_engine
from engagement_platform.engine.drain import DrainPolicy, drain
from engagement_platform.engine.fencing import declared as declared_transactions
from engagement_platform.engine.fencing import targets_of
from engagement_platform.engine.forgotten_batches import forgotten
from engagement_platform.engine.job import BatchReport, Callbacks, MicroBatchJob, Stores
from engagement_platform.engine.lease import LeaseStore
from engagement_platform.engine.model import JobState, Manifest, lineage
from engagement_platform.engine.recovery import rewinds_of
from engagement_platform.engine.stores import BatchMetadataStore, CheckpointStore
from engagement_platform.engine.unfinished_batches import how_to_finish
from engagement_platform.errors import PlatformError
from engagement_platform.lake import log
from engagement_platform.lake.batch_logs import LakeLogs
from engagement_platform.lake.engagement import QUARANTINE
from engagement_platform.lake.erased import ERASE_SUBJECTS
from engagement_platform.lake.fencing import LakeFencing
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.session import spark_session
from engagement_platform.pipelines.declarations.declared import DeclaredEntity, declarations
from engagement_platform.pipelines.engagements.job import ingest_engagements
from engagement_platform.pipelines.games.feed import Feed, shipped
from engagement_platform.pipelines.games.job import INGEST_GAME_EVENTS, REPLAY_GAME_EVENTS, game_events
from engagement_platform.pipelines.games.objects import QueueSource
from engagement_platform.pipelines.games.replay import replay_source
from engagement_platform.pipelines.kafka_tables.job import ingest_stream
from engagement_platform.pipelines.kafka_tables.tables import Stream
from engagement_platform.pipelines.mutations.announce import apply_mutations
from engagement_platform.pipelines.mutations.ingest import ingest_mutation_requests
from engagement_platform.pipelines.mutations.move import REMATERIALIZE_ALIASES, rematerialize_aliases
from engagement_platform.pipelines.parts import APPLY_MUTATIONS, Parts, last_end
from engagement_platform.pipelines.profiles.entity import PROFILE, profile
from engagement_platform.pipelines.profiles.job import ingest_changes
from engagement_platform.pipelines.profiles.rematerialize import rematerialize
from engagement_platform.pipelines.redrive import RedriveSource, undone
from engagement_platform.pipelines.replay import RecordedRanges, recorded_ranges
from engagement_platform.settings import Settings
from engagement_platform.sources.kafka import KafkaSource
from engagement_platform.sources.lateness import microseconds

INGEST_ENGAGEMENTS = "ingest-engagements"
INGEST_MUTATION_REQUESTS = "ingest-mutation-requests"
INGEST_PROFILE_CHANGES, REMATERIALIZE_PROFILE = PROFILE.ingest_job, PROFILE.rematerialize_job
TOPIC_JOBS = (INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS, INGEST_PROFILE_CHANGES)
"""Jobs that read a topic and go on for ever."""
JOB_NAMES = (*TOPIC_JOBS, APPLY_MUTATIONS, REMATERIALIZE_ALIASES, REMATERIALIZE_PROFILE)
"""Jobs that go on for ever."""
GAME_JOBS = (INGEST_GAME_EVENTS,)
"""The same, of games: only where `games.queue_url` is set."""
Declared = Stream | DeclaredEntity | Feed
"""Declarations that make jobs."""
REDRIVE_QUARANTINE = "redrive-quarantine"
REREAD_ENGAGEMENTS = "reread-engagements"

_ONCE = DrainPolicy(idle_timeout=timedelta(0), max_duration=timedelta.max)
PATIENCE = timedelta(seconds=5)
"""How long the broker is asked for what can be done without, while others wait: for a table, or for a sensor's tick."""


class JobRefused(PlatformError):
    """A job that was named does not exist, or cannot be run or reset like this."""


def _unknown(name: str, known: Sequence[str]) -> JobRefused:
    return JobRefused(f"There is no job called {name!r}. Jobs: {', '.join((*known, REDRIVE_QUARANTINE))}.")


def open_stores(settings: Settings) -> Stores:
    """The three stores on the database of the settings."""
    engine = open_engine(settings.store_url)
    return Stores(
        CheckpointStore(engine),
        BatchMetadataStore(engine),
        LeaseStore(engine, ttl=settings.stores.lease_ttl),
        LakeLogs(settings.lake),
    )


def declared_jobs(settings: Settings) -> dict[str, Declared]:
    """The jobs of declared tables, and what each is of. Raises what `declarations` does."""
    declared = declarations(settings)
    jobs: dict[str, Declared] = {stream.job: stream for stream in declared.streams}
    jobs |= {feed.job: feed for feed in declared.feeds}
    for entity in declared.entities:
        jobs |= dict.fromkeys((entity.entity.ingest_job, entity.entity.rematerialize_job), entity)
    return jobs


def job_names(settings: Settings) -> tuple[str, ...]:
    """Jobs that go on for ever: the platform's own, and those of declared tables. Raises DeclarationRefused.

    Those of game events only where a queue is set.
    """
    games = GAME_JOBS if settings.games.queue_url else ()
    return (*JOB_NAMES, *games, *declared_jobs(settings))


def shipped_entity(settings: Settings) -> DeclaredEntity:
    """The entity that nobody has to declare."""
    return DeclaredEntity(settings.kafka.profile_changes_topic, profile(settings))


def topic_of(name: str, settings: Settings) -> str:
    """The topic a job reads. Raises JobRefused, DeclarationRefused."""
    if name == INGEST_ENGAGEMENTS:
        return settings.kafka.engagements_topic
    if name == INGEST_MUTATION_REQUESTS:
        return settings.kafka.mutation_requests_topic
    declared = declared_of(name, settings)
    if declared is None or isinstance(declared, Feed):
        raise _unknown(name, TOPIC_JOBS)
    return declared.topic


def declared_of(name: str, settings: Settings) -> Declared | None:
    """What a job is of; the profile and the feed that ship are declared by the platform itself.

    None: it is one of engagements and their requests. Raises JobRefused, DeclarationRefused.
    """
    if name in (INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS, APPLY_MUTATIONS, REMATERIALIZE_ALIASES):
        return None
    if name in (INGEST_PROFILE_CHANGES, REMATERIALIZE_PROFILE):
        return shipped_entity(settings)
    if name in GAME_JOBS:
        return shipped(settings)
    declared = declared_jobs(settings)
    if name not in declared:
        raise _unknown(name, (*JOB_NAMES, *declared))
    return declared[name]


def build_job(name: str, parts: Parts, declared: Declared | None = None) -> MicroBatchJob[Any]:
    """One of `job_names`; declared: what it is of, looked up by default.

    Raises JobRefused, NoGameQueue, DeclarationRefused.
    """
    settings, stores = parts.settings, parts.stores
    if name == APPLY_MUTATIONS:
        return apply_mutations(parts)
    if name == REMATERIALIZE_ALIASES:
        return rematerialize_aliases(parts, partial(unread_requests, settings, stores))
    if declared := declared or declared_of(name, settings):
        return _declared_job(name, declared, parts)
    source = KafkaSource(topic_of(name, settings), settings.kafka)
    read = partial(read_topic, source, parts.lake.spark, settings)
    if name == INGEST_ENGAGEMENTS:
        return ingest_engagements(name, source, read, parts)
    return ingest_mutation_requests(name, source, read, parts, judges_lateness=True)


def _declared_job(name: str, declared: Declared, parts: Parts) -> MicroBatchJob[Any]:
    spark, settings = parts.lake.spark, parts.settings
    if isinstance(declared, Feed):
        own = declared.settings(settings)
        source = QueueSource(name, own)
        return game_events(name, source, Lake(spark, own), parts.stores, own, declared, parts.callbacks)
    if isinstance(declared, DeclaredEntity) and name == declared.entity.rematerialize_job:
        return rematerialize(declared.entity, parts)
    topic = KafkaSource(declared.topic, settings.kafka)
    read = partial(read_topic, topic, spark, settings)
    if isinstance(declared, DeclaredEntity):
        return ingest_changes(declared.entity, topic, read, parts)
    return ingest_stream(declared, topic, read, parts)


def parts_of(spark: SparkSession, settings: Settings, stores: Stores, callbacks: Callbacks | None = None) -> Parts:
    """What jobs are built with, on an open session."""
    return Parts(Lake(spark, settings), stores, settings, callbacks or Callbacks())


def read_topic(source: KafkaSource, spark: SparkSession, settings: Settings, manifest: Manifest) -> DataFrame:
    """The records of a batch, as they are on the topic."""
    return source.read(spark, manifest.start, manifest.end, tasks=settings.spark.default_parallelism)


def unread_requests(settings: Settings, stores: Stores) -> Iterator[int | None]:
    """When the last batch of another job ended, since the clock that asks may be ahead where nobody has seen a later
    time; then, asked only for these, Kafka timestamps of each partition's first mutation request that waits unread.

    In milliseconds since 1970 UTC; None: unknown, also where the broker cannot say: a purge waits, and why the topic is
    not read is reported by the job that reads it. Asks no longer than PATIENCE.
    """
    patient = settings.kafka.model_copy(update={"timeout": min(settings.kafka.timeout, PATIENCE)})
    last = stores.checkpoints.latest(INGEST_MUTATION_REQUESTS)
    if (ended := last_end(stores, REMATERIALIZE_ALIASES)) is not None:
        yield microseconds(ended) // 1000
    try:
        source = KafkaSource(settings.kafka.mutation_requests_topic, patient)
        # One that was made anew is not read to its end where the old one was.
        source.identify({} if last is None else last.manifest.identity)
        unread = source.first_unread(None if last is None else last.unread_from)
    except PlatformError:
        unread = {"": None}
    yield from unread.values()


def redrive_jobs(reason: str, parts: Parts) -> list[MicroBatchJob[Any]]:
    """Records in quarantine for a reason, redriven: engagements, then requests.

    The reason is part of the job's name, so that a batch that was interrupted is finished with the same one.
    Requests are not judged by their lateness again: quarantine does not have when a record was produced, and one that
    was on time must not be refused because it lay there.
    """
    parts.lake.ensure(QUARANTINE)
    jobs: list[MicroBatchJob[Any]] = []
    for job, build in (
        (INGEST_ENGAGEMENTS, ingest_engagements),
        (INGEST_MUTATION_REQUESTS, partial(ingest_mutation_requests, judges_lateness=False)),
    ):
        source = RedriveSource(parts.lake, QUARANTINE, job, reason, undone(parts.stores))
        jobs.append(build(f"{REDRIVE_QUARANTINE}:{job}:{reason}", source, source.read, parts))
    return jobs


def redrive_declared(declared: Stream | DeclaredEntity, reason: str, parts: Parts) -> MicroBatchJob[Any] | None:
    """Records in the quarantine of a stream or an entity, redriven; None where there is no quarantine.

    Each lands once and is marked there. The reason is part of the job's name, as in `redrive_jobs`.
    """
    job = declared.entity.ingest_job if isinstance(declared, DeclaredEntity) else declared.job
    quarantine = QUARANTINE if isinstance(declared, DeclaredEntity) else declared.quarantine
    if log.version(quarantine.uri(parts.settings.lake)) is None:
        return None
    source = RedriveSource(parts.lake, quarantine, job, reason, undone(parts.stores))
    name = f"{REDRIVE_QUARANTINE}:{job}:{reason}"
    if isinstance(declared, DeclaredEntity):
        return ingest_changes(declared.entity, source, source.read, parts, name)
    return ingest_stream(declared, source, source.read, parts, name)


def redriven_tables(settings: Settings) -> list[Stream | DeclaredEntity]:
    """What `redrive_declared` is asked for: profiles, and all that is declared. Raises DeclarationRefused."""
    declared = declarations(settings)
    return [shipped_entity(settings), *declared.entities, *declared.streams]


def reread_job(day: date, parts: Parts, declared: DeclaredEntity | None = None) -> MicroBatchJob[Any]:
    """What was ingested on a UTC day, read once more by what the checkpoints of that day recorded.

    declared: changes of it, of whose versions the highest counts; None: engagements, applied as a keyed upsert. Changes
    nothing where nothing was wrong; after a decoding fix the repaired rows land and are announced. Raises JobRefused
    where the batches of the day are forgotten, unless there is one to be finished.
    """
    kafka, checkpoints = parts.settings.kafka, parts.stores.checkpoints
    job = INGEST_ENGAGEMENTS if declared is None else declared.entity.ingest_job
    topic = kafka.engagements_topic if declared is None else declared.topic
    name = REREAD_ENGAGEMENTS if declared is None else declared.entity.reread_job
    last, app_ids = checkpoints.latest(job), lineage(checkpoints.history(job), checkpoints.app_id(job))
    ranges = recorded_ranges(checkpoints.history(job, ingestion_date=day), app_ids)
    # After the ranges: what is forgotten in between is missing in them.
    gone = forgotten(parts.stores.leases.engine, job).through
    if gone is not None and day <= gone.date():
        ranges = []
        if (begun := checkpoints.latest(name)) is None or begun.state is JobState.SUCCEEDED:
            raise JobRefused(
                f"What {job} read on {day} is not recorded any more: batches that ended up to "
                f"{gone:%Y-%m-%d %H:%M:%S} UTC are forgotten (stores.keep_batches). Nothing was read. To read all that "
                f"the topic has: engagement-platform reset {job}"
            )
    source = RecordedRanges(topic, kafka, ranges, last.manifest.identity if last else {})
    read = partial(read_topic, source, parts.lake.spark, parts.settings)
    if declared is None:
        return ingest_engagements(name, source, read, parts)
    return ingest_changes(declared.entity, source, read, parts, name)


def reread(day: date, parts: Parts, declared: DeclaredEntity | None = None) -> Iterator[BatchReport]:
    """Batches of `reread_job`."""
    yield from drain(reread_job(day, parts, declared), _ONCE)


@contextmanager
def open_job(name: str, settings: Settings, callbacks: Callbacks | None = None) -> Iterator[MicroBatchJob[Any]]:
    """A job with its own Spark session. Raises JobRefused and what opening Spark, stores and tables raises."""
    if name not in (*GAME_JOBS, *(names := job_names(settings))):
        raise _unknown(name, names)
    stores = open_stores(settings)
    with spark_session(settings, name) as spark:
        job = build_job(name, parts_of(spark, settings, stores, callbacks))
        try:
            yield job
        finally:
            close_source(job)


def close_source(job: MicroBatchJob[Any]) -> None:
    """Close what a job's source holds: messages of a queue, that is."""
    if isinstance(job.source, QueueSource):
        job.source.close()


def replay_game_events(
    prefixes: Sequence[str], parts: Parts, *, feed: Feed | None = None, may_be_empty: bool = False
) -> Iterator[BatchReport]:
    """Objects of the bucket whose keys begin so, read once more. A replay that was interrupted is finished first.

    No prefix: only that. feed: a declared one; None: that which ships. may_be_empty: no object is fine. Raises
    NoGameQueue, NoGameBucket, NothingToReplay, BucketNotListed and what batches raise.
    """
    feed = feed or shipped(parts.settings)
    name, own = feed.replay_job, feed.settings(parts.settings)
    source = replay_source(own, prefixes, name=name, may_be_empty=may_be_empty or not prefixes)
    job = game_events(name, source, Lake(parts.lake.spark, own), parts.stores, own, feed, parts.callbacks)
    yield from drain(job, _ONCE)


def run_job(
    name: str, settings: Settings, *, until_idle: bool, reason: str | None = None, callbacks: Callbacks | None = None
) -> Iterator[BatchReport]:
    """Batch after batch until nothing is waiting, or, not until_idle, for ever.

    reason: for redrive-quarantine only. Raises JobRefused and what batches raise.
    """
    if name == REDRIVE_QUARANTINE:
        yield from _redrive(settings, reason, callbacks)
        return
    policy = DrainPolicy(
        idle_timeout=timedelta(0) if until_idle else timedelta.max, poll=settings.drain.poll, max_duration=timedelta.max
    )
    with open_job(name, settings, callbacks) as job:
        yield from drain(job, policy)


def _redrive(settings: Settings, reason: str | None, callbacks: Callbacks | None) -> Iterator[BatchReport]:
    if not reason:
        raise JobRefused(
            "redrive-quarantine needs --reason CODE, a reason_code of engagement/quarantine; only records with that "
            "code are read again. Nothing was changed."
        )
    stores = open_stores(settings)
    with spark_session(settings, REDRIVE_QUARANTINE) as spark:
        parts = parts_of(spark, settings, stores, callbacks)
        declared = (redrive_declared(one, reason, parts) for one in redriven_tables(settings))
        for job in (*redrive_jobs(reason, parts), *declared):
            if job is not None:
                yield from drain(job, _ONCE)


def _is_begun(name: str, settings: Settings) -> bool:
    """Whether the stores know a job, also one that is declared no longer: its unfinished batch may keep others waiting.

    Makes no stores where there are none. A restore is given up by a command of its own.
    """
    if name == "restore-tables" or not may_exist(settings.store_url):
        return False
    return name in open_stores(settings).checkpoints.jobs()


def reset_job(name: str, settings: Settings, *, abandon: bool = False) -> str:
    """Forget the job's checkpoint; its new application id.

    abandon: also when the last batch is unfinished; opens Spark to close the batch's transactions, so that nothing that
    still writes under them can land later. Raises JobRefused otherwise, and while a restore that puts the job back is
    unfinished; LeaseUnavailable while it runs.
    """
    names = (*job_names(settings), *GAME_JOBS)
    declared = declarations(settings)
    replays = (REPLAY_GAME_EVENTS, *(feed.replay_job for feed in declared.feeds))
    entities = (shipped_entity(settings), *declared.entities)
    rereads = (REREAD_ENGAGEMENTS, *(one.entity.reread_job for one in entities))
    known = name in (*names, *rereads, *replays, ERASE_SUBJECTS) or name.startswith(f"{REDRIVE_QUARANTINE}:")
    if not known and not _is_begun(name, settings):
        raise _unknown(name, names)
    stores = open_stores(settings)
    with stores.leases.acquire(f"job/{name}", purpose="reset") as lease:
        for one in stores.checkpoints.unfinished():
            if name in rewinds_of(one.manifest):
                raise JobRefused(
                    f"{one.manifest} is unfinished, and puts {name} back. Nothing was changed. First end that: "
                    f"{how_to_finish(one.manifest.job)}."
                )
        last = stores.checkpoints.latest(name)
        if last is not None and last.state is not JobState.SUCCEEDED:
            if not abandon:
                finish = how_to_finish(name)
                finish += "" if "--abandon" in finish else f", or `engagement-platform reset {name} --abandon`"
                raise JobRefused(
                    f"{last.manifest} is unfinished, and after a reset rows that have landed may never be announced. "
                    f"Nothing was changed. First finish it: {finish}."
                )
            closed = targets_of(last.manifest.source)
            if left_open := declared_transactions(last.manifest, closed, abandoned=True):
                # Also ends what a killed run has left going on in the job's session on a Connect server.
                with spark_session(settings, name) as spark:
                    LakeFencing(Lake(spark, settings)).close(left_open)
        foreign = {held.app_id for held in stores.tables.held(name)}
        sequence = stores.tables.last_sequence()
        return stores.checkpoints.reset(name, fences=[lease.fence], foreign=foreign, sequence=sequence)
