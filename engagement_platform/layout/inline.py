"""OPTIMIZE from inside a job: after some of its batches, the worst partition of the table whose lease it holds.

For tables that are never free long enough. Runs of their own are `maintain`.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from pyspark.sql import SparkSession

from engagement_platform.engine.job import Observer, Stores
from engagement_platform.lake.contract import Table
from engagement_platform.lake.optimize import Engine
from engagement_platform.layout import history
from engagement_platform.layout.doctor import Target
from engagement_platform.layout.maintain import Asked, planned
from engagement_platform.layout.optimize import Done, Tools, optimize
from engagement_platform.layout.survey import survey
from engagement_platform.settings import Settings

_LOG = logging.getLogger(__name__)

FINALIZED = "finalized"
"""The point of a batch at which it has succeeded and its leases are still held."""


def inline(
    settings: Settings, stores: Stores, job: str, table: Table, observe: Observer, spark: SparkSession
) -> Observer:
    """An observer for a job that also optimizes the table after every `maintenance.inline_every`th batch.

    By batch id, so that runs of a few batches come to it as well. A failure is only told of: the batch is done.
    """
    every = settings.maintenance.inline_every
    if not every:
        return observe

    def hear(point: str) -> None:
        observe(point)
        last = stores.checkpoints.latest(job) if point == FINALIZED else None
        if last is not None and (last.manifest.batch_id + 1) % every == 0:
            optimize_worst(settings, table, spark)

    return hear


def optimize_worst(settings: Settings, table: Table, spark: SparkSession) -> Done | None:
    """Rewrite the slice of a table that gains most, by Spark; the caller holds the lease.

    None when there is nothing to do, or it did not work.
    """
    try:
        plan = planned(settings, Asked(table.name))
        slices = [*plan.chosen, *(left.slice for left in plan.left)]
        worst = next((replace(one, engine=Engine.SPARK) for one in slices if not one.too_large), None)
        if worst is None:
            return None
        tools = Tools(settings.maintenance, lambda: spark)
        done = optimize(worst, plan.surveys[table.name], tools)
        if not isinstance(done, Done):
            return None
        now = survey(settings, Target(table.name, worst.place.uri), worst.target_file_bytes)
        history.remember(settings, [done], now, tools.spark)
    except Exception as error:  # whatever it was, it must not fail a run whose batch is written
        _LOG.warning("%s could not be optimized between two batches: %s", table.name, error)
        return None
    _LOG.info("%s: %d -> %d files between two batches", worst, done.files_before, done.files_after)
    return done
