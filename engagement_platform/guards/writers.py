"""Commits in the logs of our tables that no job of ours made. Reads logs and stores; whether that is bad is `rules`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from engagement_platform.engine.database import utc_now
from engagement_platform.engine.job import Stores
from engagement_platform.guards.looked import Kept, Look, LookStore
from engagement_platform.lake import log
from engagement_platform.lake.contract import Table
from engagement_platform.lake.erased import is_erasure_of_players
from engagement_platform.lake.repartition import is_relay
from engagement_platform.settings import Settings

REWRITES = frozenset({"OPTIMIZE", "REORG"})

# As `Transaction.marker` writes it: job@generation.token/process/commit#batch.
_BY_A_JOB = re.compile(r"(?P<app>.+@\d+\.[^/@]+)/[^/]+/[^/]+#\d+", re.DOTALL)
_BY_MAINTENANCE = re.compile(r"optimize/.+#\d+", re.DOTALL)


TOLD_FOR = timedelta(days=1)
"""So long a foreign commit is told of, however many commits follow it (a guess: somebody looks once a day)."""


@dataclass(frozen=True)
class Foreign:
    """One commit that changed files of a table and is not ours."""

    table: str
    version: int
    operation: str
    at: datetime | None
    engine: str

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

    Each is told of for TOLD_FOR from the look that found it, and longer while it is among the newest
    `health.history_commits` of its table. more: application ids that are ours although no job drew them, as the
    watermarks of entities. now: for tests. Cost: one small file for each commit since the last look, which the stores
    remember; the first look at a table takes its newest `history_commits`.
    """
    now, most, store = now or utc_now(), settings.health.history_commits, LookStore(stores.leases.engine)
    seen = {table: look for table in tables if (look := _newest(table.uri(settings.lake))) is not None}
    # Later than the logs: a job draws its id before it commits.
    applications, before = stores.checkpoints.every_application().union(more), store.looks()
    changed = [look for look in seen.values() if before.get(look.place) != look]
    found = [one for look in changed for one in _found(look, _after(look, before, most), applications, now)]
    kept = {(one.place, one.table_id, one.version): one for one in (*found, *store.found())}
    told, settled = list[Foreign](), list[Kept]()
    for table, look in seen.items():
        here = [one for one in kept.values() if (one.place, one.table_id) == (look.place, look.table_id)]
        for one in sorted(here, key=lambda one: -one.version):
            if one.version > look.version - most or one.found_ts > now - TOLD_FOR:
                told.append(Foreign(table.name, one.version, one.operation, one.at, one.engine))
            else:
                settled.append(one)
    if changed or settled:
        store.keep(changed, [kept[one.place, one.table_id, one.version] for one in found], settled)
    return told


def _newest(uri: str) -> Look | None:
    """The table as its log has it now; None where there is none."""
    table = log.open_log(uri)
    return None if table is None else Look(uri, str(table.metadata().id), int(table.version()))


def _after(look: Look, before: Mapping[str, Look], most: int) -> int:
    """The version after which nothing of a table has been looked at."""
    last = before.get(look.place)
    return look.version - most if last is None or last.table_id != look.table_id else last.version


def _found(look: Look, after: int, applications: frozenset[str], now: datetime) -> Iterator[Kept]:
    """What is foreign after a version, as far back as the log has entries."""
    for version in range(look.version, max(after, -1), -1):
        actions = log.entry(look.place, version)
        if actions is None:
            return
        info: Mapping[str, Any] = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
        if any("add" in a or "remove" in a for a in actions) and not _ours(info, applications):
            operation = str(info.get("operation", "an unnamed operation"))
            engine = str(info.get("engineInfo", "an unnamed engine"))
            yield Kept(look.place, look.table_id, version, operation, engine, log.time_of(actions), now)


def _ours(info: Mapping[str, Any], applications: frozenset[str]) -> bool:
    marker = log.marker_of(info.get("userMetadata")) or ""
    if said := _BY_A_JOB.fullmatch(marker):
        return said["app"] in applications
    if marker.rpartition("#")[0] in applications or is_relay(marker) or is_erasure_of_players(marker):
        return True
    if info.get("operation") in REWRITES:
        # Spark's own auto compaction follows a write that is looked at by itself.
        automatic = str((info.get("operationParameters") or {}).get("auto", "")).lower() == "true"
        return automatic or _BY_MAINTENANCE.fullmatch(marker) is not None
    return False
