"""Who would own what of everything that is declared, and the refusal where two would own the same.

Values only; found before anything is started, since two jobs on one table or one checkpoint end in neither's rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from engagement_platform.errors import PlatformError
from engagement_platform.pipelines.games.feed import Feed
from engagement_platform.pipelines.kafka_tables.tables import Stream
from engagement_platform.pipelines.page_views.job import PAGE_VIEWS
from engagement_platform.pipelines.profiles.entity import Entity
from engagement_platform.pipelines.profiles.job import job_name as ingest_name
from engagement_platform.pipelines.profiles.rematerialize import job_name as rematerialize_name

PLATFORM_JOBS = frozenset(
    {
        *("ingest_engagements", "ingest_mutation_requests", "ingest_profile_changes", "ingest_game_events"),
        *("rematerialize_aliases", "rematerialize_profile", "replay_game_events"),
        *("ingest_mutation_request_table", "mutation_requests_backlog"),
    }
)
"""Names of the platform's own jobs and sensors that a declaration could come to, as Dagster writes them."""


class DeclarationsClash(PlatformError):
    """Two declarations, or one and the platform, would own the same table, job, checkpoint or queue."""

    def __init__(self, one: str, other: str, what: str) -> None:
        self.what = what
        super().__init__(f"{one} and {other} would both {what}. Nothing was started. Give one of them another name.")


@dataclass(frozen=True)
class Owner:
    """What one declaration would own."""

    kind: str
    path: Path
    tables: tuple[str, ...]
    """Their names, views among them."""
    jobs: tuple[str, ...] = ()
    """Their names are those of their checkpoints, leases and transactions too."""
    names: tuple[str, ...] = ()
    """Other names that must be one's own in Dagster: of sensors, steps, schedules."""
    queue_url: str | None = None

    def __str__(self) -> str:
        return f"{self.kind} in {self.path}"


def of_stream(path: Path, stream: Stream) -> Owner:
    """A topic's table and its quarantine."""
    names = (f"land_{stream.words}", f"watch_{stream.words}", f"{stream.words}_backlog")
    return Owner("KafkaTable", path, (stream.table.name, stream.quarantine.name), (stream.job,), names)


def of_entity(path: Path, entity: Entity) -> Owner:
    """Changeset, base and view."""
    name = entity.name
    names = (
        *(f"ingest_{name}_changeset", f"rematerialize_{name}_base", f"rematerialize_{name}_by_cadence"),
        *(f"{name}_changes_backlog", f"{name}_changes_pressing", f"watch_{name}_tables", f"watch_{name}s"),
        *(f"check_{name}_tables", f"{name}_tables_commits"),
    )
    tables = (entity.changeset.name, entity.base.name, entity.view)
    return Owner("MergeOnReadEntity", path, tables, (ingest_name(entity), rematerialize_name(entity)), names)


def of_feed(path: Path, feed: Feed) -> Owner:
    """A table for each type of event, quarantine, and the queue."""
    group = feed.group
    names = (
        *(f"ingest_{group}_tables", f"replay_{group}_objects", f"{group}_events_backlog"),
        *(f"check_{group}_tables", f"{group}_tables_commits"),
    )
    tables = tuple(table.name for table in feed.tables)
    return Owner("S3SqsTables", path, tables, (feed.job, feed.replay_job), names, feed.queue_url)


def of_maintained(path: Path, table: tuple[str, ...]) -> Owner:
    """A table that others write: nobody of us does."""
    words = "_".join(table)
    return Owner("MaintainedTable", path, ("/".join(table),), (), (f"check_{words}", f"{words}_commits"))


def of_page_views(path: Path) -> Owner:
    """The one pipeline of page views that there can be."""
    return Owner("ViewAnalytics", path, ("view/page_view", "view/session", "view/daily"), (PAGE_VIEWS,))


def refuse_clashes(owners: Sequence[Owner], our_queue: str | None = None) -> None:
    """Raise DeclarationsClash where two would own the same. our_queue: that of the platform's own game events."""
    taken = {name: ("The platform", f"run the job {name}") for name in PLATFORM_JOBS}
    if our_queue is not None:
        taken[our_queue] = ("The platform's own game events", _reads(our_queue))
    tables = dict[str, Owner]()
    for owner in owners:
        for table in owner.tables:
            if (other := _overlapping(table, tables)) is not None:
                raise DeclarationsClash(str(tables[other]), str(owner), _owns(other, table))
        tables |= dict.fromkeys(owner.tables, owner)
        for name, what in _claims(owner):
            if name in taken:
                raise DeclarationsClash(taken[name][0], str(owner), what)
        taken |= {name: (str(owner), what) for name, what in _claims(owner)}


def _claims(owner: Owner) -> Iterator[tuple[str, str]]:
    """(what can be had once, what having it means)."""
    for job in owner.jobs:
        # As Dagster writes it: there `shop/click_x` and `shop_click/x` come to one name.
        name = job.replace("-", "_")
        yield name, f"run the job {name}, under one checkpoint"
    for name in owner.names:
        yield name, f"be called {name} in Dagster"
    if owner.queue_url is not None:
        yield owner.queue_url, _reads(owner.queue_url)


def _reads(queue_url: str) -> str:
    return f"read the queue {queue_url}, of which each would get a part"


def _overlapping(table: str, tables: dict[str, Owner]) -> str | None:
    """A table in whose folder this one would lie, or that would lie in this one's: VACUUM would remove it there."""
    inside = (other for other in tables if table.startswith(f"{other}/") or other.startswith(f"{table}/"))
    return table if table in tables else next(inside, None)


def _owns(other: str, table: str) -> str:
    if other == table:
        return f"own the table {table}"
    return f"own files of one folder, with the tables {other} and {table}"
