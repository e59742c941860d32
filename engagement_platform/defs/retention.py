"""What databases keep: the job that removes old runs and events, which open-source Dagster never does, and batches.

Ticks of sensors and schedules are not here: `dagster.yaml` says how long those are kept.
"""

# No `from __future__ import annotations` beside Dagster's decorators.

from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import sqlalchemy as sa

from engagement_platform.defs.code_server import REPOSITORY
from engagement_platform.defs.platform import Platform
from engagement_platform.defs.sensors import RETRIED, TRIED_AGAIN, schedule
from engagement_platform.engine.database import open_engine
from engagement_platform.engine.forgotten_batches import forget

ENDED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)

# The newest event of a kind stays for each asset, and the newest result for each check: pages and alerts read those.
_ASSETS: sa.BindParameter[Any] = sa.bindparam("assets", expanding=True)
_CHECK_RESULTS = sa.text("""
DELETE FROM asset_check_executions WHERE evaluation_event_timestamp < :before AND asset_key IN :assets
AND id NOT IN (SELECT MAX(id) FROM asset_check_executions GROUP BY asset_key, check_name)""").bindparams(_ASSETS)
_EVENTS_OF_NO_RUN = sa.text("""
DELETE FROM event_logs WHERE run_id = '' AND timestamp < :before AND asset_key IN :assets
AND id NOT IN (SELECT MAX(id) FROM event_logs GROUP BY asset_key, dagster_event_type)""").bindparams(_ASSETS)
_TAGS = sa.text("DELETE FROM asset_event_tags WHERE event_id NOT IN (SELECT id FROM event_logs)")


def remove_before(
    instance: dg.DagsterInstance, before: datetime, location: str | None, assets: Collection[dg.AssetKey]
) -> dict[str, int]:
    """Remove ended runs that were created before a time, with their events and logs, and older events of no run.

    location: the tag REPOSITORY of the runs; None: those without. assets: of which events and results of checks are
    removed. What others have in the instance stays, and so does a run with the newest materialization of an asset.
    Returns how many runs, events of sensors and check results.
    """
    storage: Any = instance.event_log_storage
    newest = instance.get_latest_materialization_events(list(instance.all_asset_keys()))
    kept = {event.run_id for event in newest.values() if event}
    of = {} if location is None else {REPOSITORY: location}
    old = instance.get_runs(dg.RunsFilter(statuses=list(ENDED), created_before=before, tags=of))
    removed = [run.run_id for run in old if run.tags.get(REPOSITORY) == location and run.run_id not in kept]
    for run_id in removed:
        instance.delete_run(run_id)
        instance.compute_log_manager.delete_logs(prefix=[run_id])
        # On SQLite each run has a file of its own, which deleting its events only empties.
        if hasattr(storage, "path_for_shard"):
            for suffix in ("", "-wal", "-shm"):
                Path(storage.path_for_shard(run_id) + suffix).unlink(missing_ok=True)
    of_assets = [key.to_string() for key in assets]
    values = {"before": before.astimezone(UTC).replace(tzinfo=None), "assets": of_assets}
    # On SQLite events of no run are in a file of their own, and once more in the one that all queries read. Elsewhere
    # the first of these removes them.
    with storage.run_connection("") as connection:
        events = connection.execute(_EVENTS_OF_NO_RUN, values).rowcount
    with storage.index_connection() as connection:
        results = connection.execute(_CHECK_RESULTS, values).rowcount
        events = max(events, connection.execute(_EVENTS_OF_NO_RUN, values).rowcount)
        connection.execute(_TAGS)
    return {"runs": len(removed), "events": events, "check_results": results}


def _now(instance: dg.DagsterInstance, now: datetime) -> datetime:
    """Now by this machine's clock; where that is ahead of the newest run that has ended, the end of that: a clock that
    has jumped must not cost what is kept."""
    newest = instance.get_run_records(dg.RunsFilter(statuses=list(ENDED)), limit=1, order_by="update_timestamp")
    return min([now, *(record.update_timestamp.replace(tzinfo=UTC) for record in newest)])


@dg.op(retry_policy=TRIED_AGAIN)
def remove_old(context: dg.OpExecutionContext, platform: Platform) -> None:
    """What is older than `dagster.retention`, and batches older than `stores.keep_batches`."""
    settings, now, instance = platform.settings(), datetime.now(UTC), context.instance
    location = context.run.tags.get(REPOSITORY)
    graph = None if location is None else context.repository_def.asset_graph
    assets = instance.all_asset_keys() if graph is None else graph.get_all_asset_keys()
    removed = remove_before(instance, _now(instance, now) - settings.dagster.retention, location, assets)
    keep = max(settings.stores.keep_batches, settings.maintenance.rollback_window)
    context.add_output_metadata({**removed, "batches": forget(open_engine(settings.store_url), keep, now)})


@dg.job(tags=RETRIED)
def remove_old_runs() -> None:
    """Remove runs, events and check results of Dagster's that are older than `dagster.retention`, and from the stores
    batches that are older than `stores.keep_batches`. No table changes."""
    remove_old()


def definitions() -> dg.Definitions:
    nightly = schedule(remove_old_runs.name, "0 4 * * *", "Removes every night what databases kept for long enough.")
    return dg.Definitions(jobs=[remove_old_runs], schedules=[nightly])
