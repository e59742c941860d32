"""Tables that somebody has declared, examined after commits: their layout checks, and the job and sensor for them.

Each declaration brings its own: in a Dagster project of somebody's own there is no `layout_after_writes`.
What is examined is `layout`.
"""

# No `from __future__ import annotations` beside Dagster's decorators: they read a Config class from the annotation.

import time
from collections.abc import Sequence

import dagster as dg

from engagement_platform.defs.layout import changed_tables, keep_in_sight, layout_check, too_soon
from engagement_platform.defs.platform import Platform, bound_platform
from engagement_platform.defs.sensors import recent_runs


def examining(name: str, tables: Sequence[dg.AssetKey]) -> dg.Definitions:
    """Layout checks of some tables, and what evaluates them after commits. name: of the tables in job and sensor."""
    checks = [layout_check(table) for table in tables]
    told = " and ".join(table.to_user_string() for table in tables) if len(tables) < 3 else f"{len(tables)} tables"
    job = dg.define_asset_job(
        f"check_{name}",
        selection=dg.AssetSelection.checks(*(key for check in checks for key in check.check_keys)),
        description=f"Evaluate the layout checks of {told}. Changes nothing.",
        executor_def=dg.in_process_executor,
    )
    return dg.Definitions(
        asset_checks=checks,
        jobs=[job],
        sensors=[commits_sensor(name, tables, told)],
        resources={"platform": bound_platform()},
    )


def commits_sensor(name: str, tables: Sequence[dg.AssetKey], told: str) -> dg.SensorDefinition:
    """Launches the checks when one of the tables has a newer version than they have seen, and keeps results in sight.

    told: the tables in words.
    """

    @dg.sensor(
        name=f"{name}_commits",
        job_name=f"check_{name}",
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Examines {told} after commits, at most once in `health.check_pause`.",
    )
    def commits(context: dg.SensorEvaluationContext, platform: Platform) -> dg.RunRequest | dg.SkipReason:
        settings, now = platform.settings(), time.time()
        keep_in_sight(context.instance, now, tables)
        pause = settings.health.check_pause.total_seconds()
        if reason := too_soon(recent_runs(context.instance, f"check_{name}"), now, pause):
            return dg.SkipReason(reason)
        if not changed_tables(context.instance, settings, tables):
            return dg.SkipReason("No table has changed since it was examined.")
        return dg.RunRequest()

    return commits
