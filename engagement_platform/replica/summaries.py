"""What a replica is asked most: engagements per organization and day, top persons, conversions, and how fresh it is.

Figures in, figures out; the page that draws them is `page`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb

from engagement_platform.consumers.lag import Lag, lags
from engagement_platform.engine.database import open_engine
from engagement_platform.lake.engagement import NOTIFICATION
from engagement_platform.replica.file import NoReplica, State, opened, state
from engagement_platform.replica.refresh import Place
from engagement_platform.settings import Settings

DAYS = 60
ORGANIZATIONS = 10
PERSONS = 20
OTHERS = "all others"


@dataclass(frozen=True)
class Day:
    """Engagements of an organization on a day; `organization` is OTHERS for all but the largest together."""

    organization: str
    day: date
    engagements: int


@dataclass(frozen=True)
class Person:
    """How much is known of one person, under the identity of now."""

    organization: str
    person: str
    engagements: int
    last: date


@dataclass(frozen=True)
class Conversions:
    """Of one organization: ids whose engagements another id has now, and how many engagements these are."""

    organization: str
    ids: int
    engagements: int


@dataclass(frozen=True)
class Totals:
    """Of the whole replica."""

    engagements: int
    organizations: int
    persons: int
    converted: int
    """Engagements that another person has than the one whom the event named."""
    first: date | None
    last: date | None
    bytes: int
    """Of the file."""


@dataclass(frozen=True)
class Summary:
    """All of it at one moment of the replica."""

    state: State
    totals: Totals
    days: Sequence[Day]
    persons: Sequence[Person]
    conversions: Sequence[Conversions]


def per_day(
    connection: duckdb.DuckDBPyConnection, *, days: int = DAYS, organizations: int = ORGANIZATIONS
) -> list[Day]:
    """The last `days` days on which there is an engagement; the largest organizations each, the rest together."""
    rows = connection.execute(
        "WITH days AS (SELECT DISTINCT engagement_date AS d FROM engagement ORDER BY d DESC LIMIT ?), "
        "counted AS (SELECT organization_id AS o, engagement_date AS d, count(*) AS n FROM engagement "
        "WHERE engagement_date IN (SELECT d FROM days) GROUP BY ALL), "
        "large AS (SELECT o FROM counted GROUP BY o ORDER BY sum(n) DESC, o LIMIT ?) "
        "SELECT CASE WHEN o IN (SELECT o FROM large) THEN o END AS named, d, sum(n)::BIGINT FROM counted "
        "GROUP BY ALL ORDER BY named NULLS LAST, d",
        [days, organizations],
    ).fetchall()
    return [Day(OTHERS if name is None else name, day, count) for name, day, count in rows]


def top_persons(connection: duckdb.DuckDBPyConnection, *, most: int = PERSONS) -> list[Person]:
    """Those with most engagements; equal ones by name."""
    rows = connection.execute(
        "SELECT organization_id, person_id, count(*) AS n, max(engagement_date) FROM engagement GROUP BY ALL "
        "ORDER BY n DESC, organization_id, person_id LIMIT ?",
        [most],
    ).fetchall()
    return [Person(*row) for row in rows]


def conversions(connection: duckdb.DuckDBPyConnection, *, most: int = ORGANIZATIONS) -> list[Conversions]:
    """The organizations with most converted engagements; those without any are left out."""
    rows = connection.execute(
        "SELECT organization_id, count(DISTINCT source_person_id), count(*) AS n FROM engagement "
        "WHERE person_id <> source_person_id GROUP BY ALL ORDER BY n DESC, organization_id LIMIT ?",
        [most],
    ).fetchall()
    return [Conversions(*row) for row in rows]


def totals(connection: duckdb.DuckDBPyConnection, path: Path) -> Totals:
    """Of all rows."""
    row = connection.execute(
        "SELECT count(*), count(DISTINCT organization_id), "
        "(SELECT count(*) FROM (SELECT DISTINCT organization_id, person_id FROM engagement)), "
        "count(*) FILTER (person_id <> source_person_id), min(engagement_date), max(engagement_date) FROM engagement"
    ).fetchone()
    assert row is not None
    values: list[Any] = [*row, path.stat().st_size]
    return Totals(*values)


def summary(place: Place) -> Summary:
    """Everything, from one open of the file. Raises NoReplica, NotAReplica, ReplicaInUse."""
    with opened(place.path, read_only=True, wait_s=place.wait_s) as connection:
        said = state(connection, place.path)
        if said is None:
            raise NoReplica(place.path)
        return Summary(
            state=said,
            totals=totals(connection, place.path),
            days=per_day(connection),
            persons=top_persons(connection),
            conversions=conversions(connection),
        )


def lag_of(settings: Settings, place: Place) -> Lag | None:
    """What the replica has yet to read; None when the lake's stores do not know its consumer."""
    found = lags(settings, open_engine(settings.store_url))
    return next((lag for lag in found if (lag.name, lag.table) == (place.name, NOTIFICATION.name)), None)


def as_json(found: Summary, lag: Lag | None, now: datetime) -> dict[str, object]:
    """For machines: counts, position, freshness in seconds."""
    return {
        "lake": found.state.lake,
        "name": found.state.name,
        "engagements": found.totals.engagements,
        "organizations": found.totals.organizations,
        "persons": found.totals.persons,
        "converted": found.totals.converted,
        "bytes": found.totals.bytes,
        "version": found.state.version,
        "batch": found.state.batch,
        "announced_ts": None if found.state.announced_ts is None else found.state.announced_ts.isoformat(),
        "refreshed_ts": found.state.refreshed_ts.isoformat(),
        "refreshed_s_ago": round((now - found.state.refreshed_ts) / timedelta(seconds=1), 1),
        "snapshot_ts": found.state.snapshot_ts.isoformat(),
        "waiting": None if lag is None else lag.rows,
        "oldest_waiting_s": None if lag is None else round(lag.age(now).total_seconds(), 1),
        "lost": None if lag is None else lag.lost,
    }
