"""What the checks of an entity find: size of its changeset, watermark of its base."""

from __future__ import annotations

import dagster as dg

from engagement_platform.defs.backlog import Waiting
from engagement_platform.defs.checks import FRESH, freshness
from engagement_platform.defs.evaluations import WARN, check_result
from engagement_platform.defs.specs import key_of
from engagement_platform.engine.model import JobState
from engagement_platform.lake import log
from engagement_platform.pipelines.profiles.entity import Entity
from engagement_platform.pipelines.profiles.snapshot import Snapshot, snapshot
from engagement_platform.settings import Settings

SIZE, WATERMARK = "changeset_size", "watermark"


def checks_of(entity: Entity) -> dict[tuple[dg.AssetKey, str], str]:
    """(asset, check) -> what it says."""
    changeset, base = key_of(entity.changeset), key_of(entity.base)
    return {
        (changeset, FRESH): "No change waits longer than `quality.freshness`.",
        (changeset, SIZE): "At most `rematerialize.max_pending_rows` changes wait.",
        (base, WATERMARK): "The base's watermark is where it was left; no batch is in both tables.",
    }


def state_of(entity: Entity, settings: Settings) -> Snapshot | None:
    """Which versions of base and changeset readers see; None before they are made."""
    tables = (entity.changeset, entity.base)
    if any(log.version(table.uri(settings.lake)) is None for table in tables):
        return None
    return snapshot(settings.lake, entity)


def size_result(entity: Entity, found: Snapshot | None, most: int) -> dg.AssetCheckResult:
    """Passed when at most `most` changes wait."""
    rows = found.pending_rows if found else 0
    too_many = (
        f"{rows:,} changes wait, more than rematerialize.max_pending_rows ({most:,}). Look at the last runs of "
        f"{entity.rematerialize_job.replace('-', '_')}."
    )
    shown = {"pending_rows": rows, "pending_batches": len(found.pending) if found else 0}
    return check_result(key_of(entity.changeset), SIZE, too_many if rows > most else None, shown, severity=WARN)


def watermark_result(
    entity: Entity, found: Snapshot | None, *, under_way: bool, recorded: int | None
) -> dg.AssetCheckResult:
    """Passed when no batch is in both tables, but for a rematerialization under way, and the base's watermark is not
    behind the one that the stores have recorded. recorded: watermark of the last finished batch."""
    wrong = []
    orphans = found.orphans if found and not under_way else []
    if orphans:
        wrong.append(f"Batches {orphans[:5]} are in base and changeset; the next rematerialization removes them")
    if found is not None and recorded is not None and found.watermark < recorded:
        wrong.append(
            f"the base says it has all changes up to batch {found.watermark}, the stores say up to {recorded}: it was "
            "put back to an earlier version, and readers lose what was merged since; restore its newest version"
        )
    shown = {"watermark": found.watermark if found else -1, "orphan_batches": len(orphans)}
    return check_result(key_of(entity.base), WATERMARK, "; ".join(wrong), shown)


def entity_results(entity: Entity, looked: Waiting, topic: str) -> list[dg.AssetCheckResult]:
    """All checks of an entity that need no run, as they are now. entity: under the policies of the settings."""
    settings, last = looked.settings, looked.checkpoint(entity.rematerialize_job)
    found = state_of(entity, settings)
    done = last is None or last.state is JobState.SUCCEEDED
    recorded = last.manifest.end["batch"] if last is not None and done else None
    return [
        freshness(entity.ingest_job, key_of(entity.changeset), looked, topic),
        size_result(entity, found, settings.rematerialize.max_pending_rows),
        watermark_result(entity, found, under_way=not done, recorded=recorded),
    ]
