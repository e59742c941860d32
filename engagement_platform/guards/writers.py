"""Commits in the logs of our tables that no job of ours made. Reads logs and stores; whether that is bad is `rules`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from engagement_platform.microbatch.job import Stores
from engagement_platform.microbatch.known import known_applications
from engagement_platform.settings import Settings
from engagement_platform.tables import light, log
from engagement_platform.tables.contract import Table
from engagement_platform.tables.erased import is_erasure_of_players
from engagement_platform.tables.relaid import is_relay

REWRITES = frozenset({"OPTIMIZE", "REORG"})

# As `Transaction.marker` writes it: job@generation.token/process/commit#batch.
_BY_A_JOB = re.compile(r"(?P<app>.+@\d+\.[^/@]+)/[^/]+/[^/]+#\d+", re.DOTALL)
_BY_MAINTENANCE = re.compile(r"optimize/.+#\d+", re.DOTALL)


@dataclass(frozen=True)
class Foreign:
    """One commit that changed files of a table and is not ours."""

    table: str
    version: int
    operation: str
    at: datetime | None
    engine: str
    marker: str | None
    """Its user metadata."""

    def __str__(self) -> str:
        when = "" if self.at is None else f" at {self.at:%Y-%m-%d %H:%M:%S} UTC"
        return f"{self.table} version {self.version}: {self.operation} by {self.engine}{when}"


def foreign_commits(
    settings: Settings, stores: Stores, tables: Sequence[Table], more: Collection[str] = ()
) -> list[Foreign]:
    """Among the newest `health.history_commits` commits of each table, newest first; those with files.

    more: application ids that are ours although no job drew them, as the watermarks of entities. Cost: one small file
    a commit.
    """
    applications = known_applications(stores.leases.engine).union(more)
    found = []
    for table in tables:
        uri = table.uri(settings.lake)
        for version, actions in _newest(uri, settings.health.history_commits):
            info: Mapping[str, Any] = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
            if any("add" in a or "remove" in a for a in actions) and not _ours(info, applications):
                found.append(
                    Foreign(
                        table.name,
                        version,
                        str(info.get("operation", "an unnamed operation")),
                        log.time_of(actions),
                        str(info.get("engineInfo", "an unnamed engine")),
                        info.get("userMetadata"),
                    )
                )
    return found


def _newest(uri: str, most: int) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    newest = log.version(uri)
    for version in range(-1 if newest is None else newest, -1, -1)[:most]:
        actions = log.entry(uri, version)
        if actions is None:
            return
        yield version, actions


def _ours(info: Mapping[str, Any], applications: frozenset[str]) -> bool:
    marker = str(info.get("userMetadata") or "")
    if said := _BY_A_JOB.fullmatch(marker):
        return said["app"] in applications
    if marker.rpartition("#")[0] in applications or is_relay(marker) or is_erasure_of_players(marker):
        return True
    if info.get("operation") in REWRITES:
        # Spark's own auto compaction follows a write that is looked at by itself.
        automatic = str((info.get("operationParameters") or {}).get("auto", "")).lower() == "true"
        return automatic or marker == light.AUTO_COMPACTION or _BY_MAINTENANCE.fullmatch(marker) is not None
    return False
