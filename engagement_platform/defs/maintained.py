"""A table of the lake that somebody else writes, as Dagster sees it: an asset, and checks of how its files lie.

OPTIMIZE and VACUUM need nothing declared: maintenance takes every table of the lake.
"""

# No `from __future__ import annotations` beside Dagster's decorators: they read a Config class from the annotation.

import time

import dagster as dg

from engagement_platform.defs.layout import changed_tables, layout_check, too_soon
from engagement_platform.defs.platform import Platform, bound_platform
from engagement_platform.defs.sensors import recent_runs


def maintained_definitions(path: tuple[str, ...], description: str) -> dg.Definitions:
    """An asset that others fill, its layout checks, and the job and sensor that evaluate them after commits."""
    key, words = dg.AssetKey(list(path)), "_".join(path)
    asset = dg.AssetSpec(
        key, description=description or "A table that others write.", group_name=path[0], kinds={"deltalake"}
    )
    checks = layout_check(key)
    job = dg.define_asset_job(
        f"check_{words}",
        selection=dg.AssetSelection.checks(*checks.check_keys),
        description=f"Evaluate the layout checks of {key.to_user_string()}. Changes nothing.",
        executor_def=dg.in_process_executor,
    )
    return dg.Definitions(
        assets=[asset],
        asset_checks=[checks],
        jobs=[job],
        sensors=[commits_sensor(key, words)],
        resources={"platform": bound_platform()},
    )


def commits_sensor(key: dg.AssetKey, words: str) -> dg.SensorDefinition:
    """Launches the checks when the table has a newer version than they have seen."""

    @dg.sensor(
        name=f"{words}_commits",
        job_name=f"check_{words}",
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Examines {key.to_user_string()} after commits, at most once in `health.check_pause`.",
    )
    def commits(context: dg.SensorEvaluationContext, platform: Platform) -> dg.RunRequest | dg.SkipReason:
        settings = platform.settings()
        pause = settings.health.check_pause.total_seconds()
        if reason := too_soon(recent_runs(context.instance, f"check_{words}"), time.time(), pause):
            return dg.SkipReason(reason)
        if not changed_tables(context.instance, settings, [key]):
            return dg.SkipReason("The table has not changed since it was examined.")
        return dg.RunRequest()

    return commits
