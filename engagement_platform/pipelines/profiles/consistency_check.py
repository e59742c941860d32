"""Holds the view against the rules for some keys, applied to their rows one change after the other."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import functions as F

from engagement_platform.lake.lake import Lake
from engagement_platform.pipelines.profiles.entity import Entity
from engagement_platform.pipelines.profiles.point_read import read_keys
from engagement_platform.pipelines.profiles.snapshot import Snapshot
from engagement_platform.pipelines.profiles.view import view

MOST_KEYS = 200


@dataclass(frozen=True)
class Checked:
    """What a look at some keys found."""

    keys: int
    differing: tuple[str, ...]
    """Keys whose rows the view shows otherwise than the rules say."""


def check_view(lake: Lake, entity: Entity, taken: Snapshot) -> Checked:
    """Compare up to MOST_KEYS keys of the newest batch that waits, others each time.

    Cost: a Spark job for the keys and one for the view, whose predicate on the keys reaches the scans.
    """
    if not taken.pending:
        return Checked(0, ())
    newest = lake.read(entity.changeset, taken.changeset_version).where(F.col("batch_id") == taken.latest)
    some = newest.select(entity.key).distinct().orderBy(F.xxhash64(entity.key, F.lit(taken.latest)), entity.key)
    keys = [row[0] for row in some.limit(MOST_KEYS).collect()]
    seen = view(lake, entity, keys=keys, at=taken).rows.toArrow().to_pylist()
    found, expected = {row[entity.key]: row for row in seen}, read_keys(lake.root, entity, keys, taken)
    return Checked(len(keys), tuple(key for key in keys if found.get(key) != expected.get(key)))
