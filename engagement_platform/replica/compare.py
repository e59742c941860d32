"""Whether the replica has what readers of the lake see: rows and a checksum for each organization. Without a JVM."""

from __future__ import annotations

import time
from dataclasses import dataclass

import duckdb

from engagement_platform.consumers.changes import lake_root
from engagement_platform.consumers.standing import standing_now
from engagement_platform.lake.checksums import Checksum, by, grouped, in_memory
from engagement_platform.pipelines.engagements.schema import CURRENT_ROW
from engagement_platform.replica.file import opened
from engagement_platform.replica.refresh import Place, refresh
from engagement_platform.settings import Settings

_ORGANIZATION = ("organization_id",)
_ATTEMPTS = 5
_PAUSE_S = 1.0

Sums = dict[str, Checksum]
"""By organization."""


@dataclass(frozen=True)
class Difference:
    """An organization of which the replica has something else than the lake."""

    organization: str
    replica: Checksum
    lake: Checksum

    def __str__(self) -> str:
        if self.replica.rows != self.lake.rows:
            return f"{self.organization}: {self.replica.rows:,} rows, readers of the lake see {self.lake.rows:,}"
        return f"{self.organization}: as many rows as readers of the lake see ({self.lake.rows:,}), but not the same"


@dataclass(frozen=True)
class Compared:
    """What a comparison came to."""

    differences: tuple[Difference, ...]
    organizations: int
    rows: int
    """Of the lake."""
    attempts: int


def of_lake(root: str) -> Sums:
    """Of `engagement/current`. Reads the whole Data Table, some rows at a time, and everything pending."""
    standing = standing_now(root)
    total: Sums = {}
    if standing is None:
        return total
    with in_memory() as connection:
        for rows in standing.every(CURRENT_ROW.names, None):
            for (organization,), found in by(connection, rows.cast(CURRENT_ROW), _ORGANIZATION).items():
                total[str(organization)] = total.get(str(organization), Checksum()) + found
    return total


def of_replica(connection: duckdb.DuckDBPyConnection) -> Sums:
    """Of the rows of an open replica."""
    found = grouped(connection, "engagement", CURRENT_ROW, _ORGANIZATION)
    return {str(organization): checksum for (organization,), checksum in found.items()}


def differences(replica: Sums, lake: Sums) -> tuple[Difference, ...]:
    """Organizations that are not the same in both, by name; one without rows is like one that is not there."""
    return tuple(
        Difference(name, replica.get(name, Checksum()), lake.get(name, Checksum()))
        for name in sorted(replica.keys() | lake.keys())
        if replica.get(name, Checksum()) != lake.get(name, Checksum())
    )


def compare(settings: Settings, place: Place, *, attempts: int = _ATTEMPTS, pause_s: float = _PAUSE_S) -> Compared:
    """Refresh the replica and hold it against the lake, which is written to meanwhile.

    What lands between the two looks is a difference that the next attempt does not see. So only what differs each time,
    and for the same organization with the same rows of the replica though all changes were read, is reported.
    Raises what `refresh` raises.
    """
    root, before = lake_root(settings.lake), tuple[Difference, ...]()
    for attempt in range(1, attempts + 1):
        refreshed = refresh(settings, place)
        with opened(place.path, read_only=True, wait_s=place.wait_s) as connection:
            replica = of_replica(connection)
        lake = of_lake(root)
        found = differences(replica, lake)
        settled = attempt > 1 and refreshed.batches == 0 and found == before
        if not found or settled or attempt == attempts:
            rows = sum(checksum.rows for checksum in lake.values())
            return Compared(found, len(lake), rows, attempt)
        before = found
        time.sleep(pause_s)
    raise AssertionError("attempts is at least 1")
