"""The reads that `merge_on_read` compares: the base, the view by each strategy, with late changes, again; one key."""

from __future__ import annotations

import time
from dataclasses import replace

from pyspark.sql import DataFrame

from benchmarks.merge_on_read_ways import Stage
from engagement_platform.pipelines.profiles.point_read import point_read_seconds
from engagement_platform.pipelines.profiles.snapshot import snapshot
from engagement_platform.pipelines.profiles.view import STRATEGIES, view
from engagement_platform.settings import ViewStrategy

BASE, ONE_KEY = "base alone", "one key, no JVM"
STANDING: ViewStrategy = "left_join_union_inserts"
AGAIN = f"{STANDING}, again"
"""A second read of one view, as of a SQL view that is asked often: what waits is folded and where rows are."""
LATE = f"{STANDING}, some late"
"""As if a change were older than what the base has: versions of columns are read and compared. None of these is."""
WHOLE, COUNTED = "all", "one"


def base_rows(at: Stage) -> DataFrame:
    """What the base alone would show."""
    return at.lake.read(at.entity.base).where("present").select(*at.entity.view_columns)


def seconds_of_read(at: Stage, method: str, columns: str) -> float:
    """From asking for what is read to the end of reading it; of AGAIN, of the second read alone."""
    if method == ONE_KEY:
        seconds = point_read_seconds(at.settings.lake, at.entity)
        assert seconds is not None, "there is no key"
        return seconds
    if method == AGAIN:
        standing = view(at.lake, at.entity, strategy=STANDING).rows
        read(standing, columns)
        began = time.monotonic()
        read(standing, columns)
        return time.monotonic() - began
    began = time.monotonic()
    read(base_rows(at) if method == BASE else _view_rows(at, method), columns)
    return time.monotonic() - began


def _view_rows(at: Stage, method: str) -> DataFrame:
    if method != LATE:
        strategies: dict[str, ViewStrategy] = {name: name for name in STRATEGIES}
        return view(at.lake, at.entity, strategy=strategies[method]).rows
    taken = snapshot(at.settings.lake, at.entity)
    unknown = {number: replace(batch, oldest=None) for number, batch in taken.batches.items()}
    return view(at.lake, at.entity, strategy=STANDING, at=replace(taken, batches=unknown)).rows


def read(rows: DataFrame, columns: str) -> None:
    """All rows: every column, or one of them counted."""
    taken = rows.groupBy("city").count() if columns == COUNTED else rows
    taken.write.format("noop").mode("overwrite").save()
