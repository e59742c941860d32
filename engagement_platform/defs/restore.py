"""The job that takes tables back to the end of an earlier batch, launched by hand with its configuration.

What it does is `maintenance.rollback`. A sensor finishes a restore that was interrupted: until then no other job begins
a batch.
"""

from typing import Literal

import dagster as dg

from engagement_platform.defs.ingestion import UNBOUNDED
from engagement_platform.defs.materialization_events import callbacks_of
from engagement_platform.defs.platform import Opened, Platform
from engagement_platform.defs.sensors import unfinished_sensor
from engagement_platform.maintenance.rollback.plan import RESTORE_TABLES

RESTORE_POOL = "restore"


class RestoreConfig(dg.Config):
    """What to restore. Without a table: finish the restore that was interrupted."""

    table: str = ""
    """engagement/data, profile/materialized or another table; all of its group go back."""
    to: str = ""
    """A version of the table, or a time (UTC): the last batch that had finished by then."""
    reason: str = ""
    """Why; kept in layout/restore. Needed unless it is a dry run."""
    mode: Literal["replay", "drop"] = "replay"
    """replay reads again what came since, drop gives it up."""
    dry_run: bool = True
    """Only say what would change."""


@dg.op(pool=RESTORE_POOL)
def restore(context: dg.OpExecutionContext, config: RestoreConfig, platform: Platform) -> None:
    """The plan as metadata of the run, and, unless it is a dry run, the restore itself."""
    with platform.open(RESTORE_TABLES) as opened:
        context.add_output_metadata({"plan": dg.MetadataValue.json(_restored(context, config, opened))})


def _restored(context: dg.OpExecutionContext, config: RestoreConfig, opened: Opened) -> dict[str, object]:
    from engagement_platform.engine.owner import this_user
    from engagement_platform.lake.lake import Lake
    from engagement_platform.maintenance.rollback.job import Restoring
    from engagement_platform.maintenance.rollback.plan import Asked, parsed, plan

    lake = Lake(opened.spark, opened.settings)
    restoring = Restoring(lake, opened.stores, callbacks_of(context))
    if not config.table:
        report = restoring.run(None)
        return {} if report is None else report.as_json()
    if not (config.reason or config.dry_run):
        raise dg.Failure("Say why in `reason`: it is kept with the restore. Nothing was changed.", allow_retries=False)
    asked = Asked(config.table, parsed(config.to), config.mode, config.reason or None, this_user())
    planned = plan(opened.settings, opened.stores, asked)
    differing = planned.differing(lake) if planned.changes else None
    for line in planned.lines(differing):
        context.log.info(line)
    if config.dry_run:
        return planned.as_json(differing)
    report = restoring.run(asked)
    shown = planned.as_json(differing)
    return shown if report is None else {**shown, **report.as_json()}


@dg.job(tags=UNBOUNDED)
def restore_tables() -> None:
    """Take tables back to the end of an earlier batch. A dry run by default."""
    restore()


def definitions() -> dg.Definitions:
    unfinished = unfinished_sensor(
        "restore_unfinished",
        restore_tables.name,
        RESTORE_TABLES,
        "Launches a run that finishes a restore that was interrupted: until then other jobs wait.",
    )
    return dg.Definitions(jobs=[restore_tables], sensors=[unfinished])
