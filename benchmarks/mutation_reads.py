"""What a full read of the view costs while requests are pending, beside one of the Data Table, and where it goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.mutation_ways import Stage, opened_view


def _counted(rows: DataFrame) -> DataFrame:
    """Engagements of each person, and a sum over a column."""
    return rows.groupBy("organization_id", "person_id").agg(F.count("*"), F.sum("version"))


READS: Mapping[str, Callable[[DataFrame], DataFrame]] = {"all columns": lambda rows: rows, "three columns": _counted}
"""What a full read takes of each row: everything, as an export does, or what a count for each person needs."""


def seconds_of_reads(stage: Stage, what: str, times: int) -> list[tuple[float, float]]:
    """Seconds to read the view and to read the Data Table, in turns; each opened anew. After one read of each."""

    def read(rows: DataFrame) -> None:
        READS[what](rows).write.format("noop").mode("overwrite").save()

    measured = []
    for _ in range(times + 1):
        began = time.monotonic()
        read(opened_view(stage))
        between = time.monotonic()
        read(stage.lake.read(stage.data))
        measured.append((between - began, time.monotonic() - between))
    return measured[1:]


@dataclass(frozen=True)
class Profile:
    """Where one full read of `which` goes: the view or the table, of some `what` of its rows."""

    which: str
    what: str
    rows: int
    opened_s: float
    """Until there is a frame: versions, and of the view what is pending."""
    planned_s: float
    read_s: float
    jobs: int
    """Spark jobs, from opening on."""
    tasks: int
    files: int


def profiles_of_reads(stage: Stage, what: str) -> list[Profile]:
    """Where a full read of the view and one of the Data Table go."""
    frames: Mapping[str, Callable[[], DataFrame]] = {
        "the view": lambda: opened_view(stage),
        "the table": lambda: stage.lake.read(stage.data),
    }
    context = stage.spark.sparkContext
    tracker = context.statusTracker()
    found = []
    for which, opened in frames.items():
        group = f"{which}, {what}"
        context.setJobGroup(group, group)
        began = time.monotonic()
        rows = READS[what](opened())
        opened_s = time.monotonic() - began
        rows._jdf.queryExecution().executedPlan()
        planned_s = time.monotonic() - began - opened_s
        rows.write.format("noop").mode("overwrite").save()
        read_s = time.monotonic() - began - opened_s - planned_s
        jobs = tracker.getJobIdsForGroup(group)
        stages = {stage_id for job in jobs for stage_id in getattr(tracker.getJobInfo(job), "stageIds", ())}
        tasks = sum(getattr(tracker.getStageInfo(one), "numTasks", 0) for one in stages)
        times = (opened_s, planned_s, read_s)
        count = stage.data_set.scale.rows
        found.append(Profile(which, what, count, *times, len(jobs), tasks, len(rows.inputFiles())))
    context.setJobGroup("bench-mutation", "everything else")
    return found
