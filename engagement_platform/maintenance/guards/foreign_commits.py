"""Commits in the logs of our tables that no job of ours made.

The stores keep up to which version each log was searched and what was found, so that a look reads only what came since.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, Column, MetaData, String, select
from sqlalchemy import Table as SqlTable

from engagement_platform.engine.database import ensure_tables, reading, upsert, utc_now, writing
from engagement_platform.engine.job import Stores
from engagement_platform.engine.model import app_of
from engagement_platform.engine.schema import JsonObject
from engagement_platform.lake import log
from engagement_platform.lake.contract import Table
from engagement_platform.lake.erased import is_erasure_of_players
from engagement_platform.lake.optimize import is_by_maintenance
from engagement_platform.lake.repartition import is_relay
from engagement_platform.maintenance.layout.delta_log import REWRITES
from engagement_platform.settings import Settings

REPORTED_FOR = timedelta(days=1)
"""So long a foreign commit is reported, however many commits follow it (a guess: an operator looks once a day)."""

METADATA = MetaData()

FOREIGN_COMMITS = SqlTable(
    "foreign_commits",
    METADATA,
    Column("place", String(1024), primary_key=True),
    # Of Delta: another table in the same place has another one, and is searched anew.
    Column("table_id", String(64), nullable=False),
    Column("version", BigInteger, nullable=False),
    # Version -> the fields of Foreign after it.
    Column("found", JsonObject, nullable=False),
)


@dataclass(frozen=True)
class Foreign:
    """One commit that changed files of a table and is not ours."""

    table: str
    version: int
    operation: str
    engine: str
    at: str
    """When, as its writer has it; empty: it has no time."""
    found_ts: str

    def __str__(self) -> str:
        return f"{self.table} version {self.version}: {self.operation} by {self.engine}{self.at and f' at {self.at}'}"


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
    opened = [(table, delta) for table in tables if (delta := log.open_log(table.uri(settings.lake))) is not None]
    # Later than the logs: a job draws its id before it commits.
    applications = stores.checkpoints.every_application().union(more)
    with reading(engine) as connection:
        before = {row.place: dict(row._mapping) for row in connection.execute(select(FOREIGN_COMMITS))}
    reported, changed = list[Foreign](), list[dict[str, Any]]()
    for table, delta in opened:
        place, table_id, version = table.uri(settings.lake), str(delta.metadata().id), int(delta.version())
        last: Mapping[str, Any] | None = before.get(place)
        if last is None or last["table_id"] != table_id:
            last = {"version": version - most, "found": {}}
        found: dict[str, list[str]] = dict(last["found"])
        for number, operation, by, at in _foreign(place, last["version"], version, applications):
            found[str(number)] = [operation, by, at, now.isoformat()]
        since = (now - REPORTED_FOR).isoformat()
        found = {n: one for n, one in found.items() if int(n) > version - most or one[-1] > since}
        row = {"place": place, "table_id": table_id, "version": version, "found": found}
        if row != before.get(place):
            changed.append(row)
        reported += [Foreign(table.name, n, *found[str(n)]) for n in sorted(map(int, found), reverse=True)]
    if changed:
        with writing(engine, "guards/foreign_commits") as connection:
            for row in changed:
                upsert(connection, FOREIGN_COMMITS, row, "place")
    return reported


def _foreign(
    place: str, after: int, version: int, applications: Collection[str]
) -> Iterator[tuple[int, str, str, str]]:
    """Version, operation, engine and time of what is foreign after a version, as far back as the log has entries."""
    for number in range(version, max(after, -1), -1):
        actions = log.entry(place, number)
        if actions is None:
            return
        info = log.commit_info(actions)
        if any("add" in a or "remove" in a for a in actions) and not _ours(info, applications):
            at = log.time_of(actions)
            yield (
                number, str(info.get("operation", "an unnamed operation")),
                str(info.get("engineInfo", "an unnamed engine")), f"{at:%Y-%m-%d %H:%M:%S} UTC" if at else "",
            )  # fmt: skip


def _ours(info: Mapping[str, Any], applications: Collection[str]) -> bool:
    marker = log.marker_of(info.get("userMetadata")) or ""
    if (app_id := app_of(marker)) is not None:
        return app_id in applications
    if marker.rpartition("#")[0] in applications or is_relay(marker) or is_erasure_of_players(marker):
        return True
    if info.get("operation") in REWRITES:
        # Spark's own auto compaction follows a write that is looked at by itself.
        automatic = str((info.get("operationParameters") or {}).get("auto", "")).lower() == "true"
        return automatic or is_by_maintenance(marker)
    return False
