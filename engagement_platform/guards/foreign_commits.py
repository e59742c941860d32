"""Commits in the logs of our tables that no job of ours made. Whether that is bad is decided in `rules`.

The stores keep up to which version each log was searched, so that a look reads only what came since the last one, and
the commits that were found.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, Column, MetaData, String, Text, select
from sqlalchemy import Table as SqlTable

from engagement_platform.engine.database import ensure_tables, reading, utc_now, writing
from engagement_platform.engine.job import Stores
from engagement_platform.engine.schema import UtcTimestamp
from engagement_platform.lake import log
from engagement_platform.lake.contract import Table
from engagement_platform.lake.erased import is_erasure_of_players
from engagement_platform.lake.repartition import is_relay
from engagement_platform.settings import Settings

REWRITES = frozenset({"OPTIMIZE", "REORG"})

REPORTED_FOR = timedelta(days=1)
"""So long a foreign commit is reported, however many commits follow it (a guess: somebody looks once a day)."""

METADATA = MetaData()

LOG_LOOK = SqlTable(
    "log_look",
    METADATA,
    Column("place", String(1024), primary_key=True),
    Column("table_id", String(64), nullable=False),
    Column("version", BigInteger, nullable=False),
)

FOREIGN_COMMIT = SqlTable(
    "foreign_commit",
    METADATA,
    Column("place", String(1024), primary_key=True),
    Column("table_id", String(64), primary_key=True),
    Column("version", BigInteger, primary_key=True),
    Column("operation", Text, nullable=False),
    Column("engine", Text, nullable=False),
    Column("at", UtcTimestamp),
    Column("found_ts", UtcTimestamp, nullable=False),
)

# As `Transaction.marker` writes it: job@generation.token/process/commit#batch.
_BY_A_JOB = re.compile(r"(?P<app>.+@\d+\.[^/@]+)/[^/]+/[^/]+#\d+", re.DOTALL)
_BY_MAINTENANCE = re.compile(r"optimize/.+#\d+", re.DOTALL)


@dataclass(frozen=True)
class Look:
    """One table, and the newest version that was looked at."""

    place: str
    table_id: str
    """Of Delta: another table in the same place has another one, and is looked at anew."""
    version: int


@dataclass(frozen=True)
class Foreign:
    """One commit that changed files of a table and is not ours, by the columns of FOREIGN_COMMIT."""

    place: str
    table_id: str
    version: int
    operation: str
    engine: str
    at: datetime | None
    found_ts: datetime
    table: str = ""

    def __str__(self) -> str:
        when = "" if self.at is None else f" at {self.at:%Y-%m-%d %H:%M:%S} UTC"
        return f"{self.table} version {self.version}: {self.operation} by {self.engine}{when}"


def foreign_commits(
    settings: Settings,
    stores: Stores,
    tables: Sequence[Table],
    more: Collection[str] = (),
    *,
    now: datetime | None = None,
) -> list[Foreign]:
    """Commits with files that are not ours, newest first in each table.

    Each is reported for REPORTED_FOR from the look that found it, and longer while it is among the newest
    `health.history_commits` of its table. more: application ids that are ours although no job drew them, as the
    watermarks of entities. now: for tests. Cost: one small file for each commit since the last look; the first look at
    a table takes its newest `history_commits`. Raises StoresUnavailable.
    """
    now, most, engine = now or utc_now(), settings.health.history_commits, stores.leases.engine
    ensure_tables(engine, METADATA)
    newest = {table: look for table in tables if (look := _newest(table.uri(settings.lake))) is not None}
    # Later than the logs: a job draws its id before it commits.
    applications = stores.checkpoints.every_application().union(more)
    with reading(engine) as connection:
        before = {row.place: Look(*row) for row in connection.execute(select(LOG_LOOK))}
        kept = [Foreign(*row) for row in connection.execute(select(FOREIGN_COMMIT))]
    changed = [look for look in newest.values() if before.get(look.place) != look]
    found = [one for look in changed for one in _found(look, _searched(look, before, most), applications, now)]
    everything = {(one.place, one.table_id, one.version): one for one in (*found, *kept)}
    reported, settled = list[Foreign](), list[Foreign]()
    for table, look in newest.items():
        own = [one for one in everything.values() if (one.place, one.table_id) == (look.place, look.table_id)]
        for one in sorted(own, key=lambda one: -one.version):
            recent = one.version > look.version - most or one.found_ts > now - REPORTED_FOR
            (reported if recent else settled).append(replace(one, table=table.name))
    if changed or settled:
        _keep(stores, changed, found, settled)
    return reported


def _keep(stores: Stores, changed: Collection[Look], found: Collection[Foreign], settled: Collection[Foreign]) -> None:
    """Write what was looked at and found, in one transaction; two that look at once find the same.

    settled: reported no more. Of a table that takes another one's place, what was found in that one goes.
    """
    commit = FOREIGN_COMMIT.c
    with writing(stores.leases.engine, "guards/log_look") as connection:
        for look in changed:
            connection.execute(LOG_LOOK.delete().where(LOG_LOOK.c.place == look.place))
            connection.execute(LOG_LOOK.insert().values(**vars(look)))
            other = (commit.place == look.place) & (commit.table_id != look.table_id)
            connection.execute(FOREIGN_COMMIT.delete().where(other))
        for one in (*found, *settled):
            same = (commit.place == one.place) & (commit.table_id == one.table_id) & (commit.version == one.version)
            connection.execute(FOREIGN_COMMIT.delete().where(same))
        for one in found:
            connection.execute(
                FOREIGN_COMMIT.insert().values({column.name: getattr(one, column.name) for column in commit})
            )


def _newest(uri: str) -> Look | None:
    """The table as its log has it now; None where there is none."""
    table = log.open_log(uri)
    return None if table is None else Look(uri, str(table.metadata().id), int(table.version()))


def _searched(look: Look, before: Mapping[str, Look], most: int) -> int:
    """The version after which nothing of a table has been looked at."""
    last = before.get(look.place)
    return look.version - most if last is None or last.table_id != look.table_id else last.version


def _found(look: Look, after: int, applications: frozenset[str], now: datetime) -> Iterator[Foreign]:
    """What is foreign after a version, as far back as the log has entries."""
    for version in range(look.version, max(after, -1), -1):
        actions = log.entry(look.place, version)
        if actions is None:
            return
        info: Mapping[str, Any] = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
        if any("add" in a or "remove" in a for a in actions) and not _ours(info, applications):
            operation = str(info.get("operation", "an unnamed operation"))
            engine = str(info.get("engineInfo", "an unnamed engine"))
            yield Foreign(look.place, look.table_id, version, operation, engine, log.time_of(actions), now)


def _ours(info: Mapping[str, Any], applications: frozenset[str]) -> bool:
    marker = log.marker_of(info.get("userMetadata")) or ""
    if named := _BY_A_JOB.fullmatch(marker):
        return named["app"] in applications
    if marker.rpartition("#")[0] in applications or is_relay(marker) or is_erasure_of_players(marker):
        return True
    if info.get("operation") in REWRITES:
        # Spark's own auto compaction follows a write that is looked at by itself.
        automatic = str((info.get("operationParameters") or {}).get("auto", "")).lower() == "true"
        return automatic or _BY_MAINTENANCE.fullmatch(marker) is not None
    return False
