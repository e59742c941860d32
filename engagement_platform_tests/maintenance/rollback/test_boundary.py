"""Batches in their order and the commits between them: which boundary a version belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from pathlib import Path

import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from engagement_platform.engine.model import REWOUND_BY, BatchRecord, JobState, Manifest
from engagement_platform.lake.contract import OPENED
from engagement_platform.lake.optimize import by_maintenance
from engagement_platform.maintenance.rollback.boundary import Boundary, Commit, Reached, Timeline
from engagement_platform.maintenance.rollback.groups import RestoreRefused
from engagement_platform.maintenance.rollback.plan import _refuse_other_shape
from engagement_platform_tests.pipelines.kafka_tables.clicks import CLICK
from engagement_platform_tests.plant import create

DATA = "engagement/data"
BEGAN = datetime(2026, 3, 1, tzinfo=UTC)


def record(number: int, *, job: str = "ingest", pinned: int = 0, done: bool = True, end: int = 0) -> BatchRecord:
    """A batch that began `number` minutes after the first one and took one."""
    began = BEGAN + timedelta(minutes=number)
    pins = {DATA: pinned}
    return BatchRecord(
        manifest=Manifest(job, f"{job}@1.t", number, {"0": end - 1}, {"0": end}, began, pins, sequence=number + 1),
        state=JobState.SUCCEEDED if done else JobState.FAILED,
        started_ts=began,
        finished_ts=began + timedelta(minutes=1),
        attempts=1,
    )


def commits(owners: Sequence[int | None]) -> list[Commit]:
    """Version 0 made the table; then one version for each owner (None: a compaction). Newest first."""
    made = [(v, None if o is None else f"ingest@1.t/data/insert#{o}") for v, o in enumerate(owners, 1)]
    return [*reversed(made), (0, None)]


def test_a_version_that_no_job_could_go_on_with_is_refused(tmp_path: Path) -> None:
    uri, now = str(tmp_path), CLICK.table
    before = replace(now, columns=now.columns[:-1])
    create(uri, before)
    _refuse_other_shape(uri, before, 0)
    with pytest.raises(RestoreRefused, match=f"from before the table got {now.column_names[-1]}. Restore to a later"):
        _refuse_other_shape(uri, now, 0)
    DeltaTable(uri).alter.set_table_properties({OPENED: "true"}, raise_if_not_exists=False)
    with pytest.raises(RestoreRefused, match="an erasure was in the midst of it"):
        _refuse_other_shape(uri, before, 1)


@given(
    sizes=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    tidied=st.lists(st.booleans(), min_size=6, max_size=6),
    asked=st.integers(0, 100),
)
def test_a_version_belongs_to_the_last_batch_by_whose_end_the_table_had_it(
    sizes: list[int], tidied: list[bool], asked: int
) -> None:
    """Each batch makes so many commits, some are followed by a compaction; the oracle counts versions."""
    owners: list[int | None] = []
    last_own, end = [], []
    for number, size in enumerate(sizes):
        owners += [number] * size
        last_own.append(len(owners))
        owners += [None] if tidied[number] else []
        end.append(len(owners))
    starts = [0, *end[:-1]]
    timeline = Timeline([record(n, pinned=starts[n]) for n in range(len(sizes))], DATA)
    version = asked % (len(owners) + 1)
    # A version is in the middle of a batch when that one has commits at or below and above it.
    middle = [n for n in range(len(sizes)) if sizes[n] and last_own[n] - sizes[n] < version < last_own[n]]
    found = timeline.at_version(version, commits(owners))
    if middle:
        assert found == Boundary(middle[0] - 1, None, middle[0])
    else:
        fits = [n for n in range(len(sizes)) if last_own[n] <= version or (not sizes[n] and starts[n] <= version)]
        expected = -1
        for n in range(len(sizes)):
            if n not in fits and sizes[n]:
                break
            expected = n
        assert found == Boundary(expected, version)
    for step in range(-1, len(sizes)):
        later = [v for v, owner in enumerate(owners, 1) if owner is not None and owner > step]
        assert timeline.version_at(step, commits(owners)) == (min(later) - 1 if later else None)


def test_a_batch_that_was_given_up_has_no_end_to_go_back_to() -> None:
    steps = [record(0), record(1, pinned=1, done=False), record(2, pinned=2)]
    timeline = Timeline(steps, DATA)
    owners = [0, 1, 2]
    assert timeline.at_version(2, commits(owners)) == Boundary(0, None, 1)
    assert timeline.at_version(1, commits(owners)) == Boundary(0, 1)
    assert timeline.at(BEGAN + timedelta(minutes=2)) == Boundary(0, None)


def test_an_optimize_in_the_middle_of_a_batch_is_undone_with_it_and_no_end_of_a_batch() -> None:
    """As of append-only tables, which are merged without a lease."""
    timeline = Timeline([record(0), record(1, pinned=1), record(2, pinned=4)], DATA)
    owners = [0, 1, None, 1, 2]
    for within in (2, 3):
        assert timeline.at_version(within, commits(owners)) == Boundary(0, None, 1)
    assert timeline.at_version(4, commits(owners)) == Boundary(1, 4)
    assert [timeline.version_at(step, commits(owners)) for step in range(3)] == [1, 4, None]


def test_batches_of_a_table_that_stood_there_before_are_left_out() -> None:
    timeline = Timeline([record(0, pinned=7), record(1, pinned=9), record(2, pinned=0), record(3, pinned=1)], DATA)
    assert [step.manifest.batch_id for step in timeline.steps] == [2, 3]
    assert timeline.owner("ingest@1.t/data/insert#1") == -1
    assert timeline.owner("ingest@1.t/data/insert#3") == 1
    assert timeline.owner("a note by hand") is None
    assert timeline.owner("lease/table/engagement/data#3") is None, "a fence, which closes what others might write"
    hostile = by_maintenance(datetime(2026, 11, 28, tzinfo=UTC), "organization_id=ingest@1.t/data/insert#3", 1)
    assert timeline.owner(hostile) is None
    assert timeline.owner(None) is None


@pytest.mark.parametrize(("step", "ingested", "applied"), [(-1, 0, 4), (0, 1, 4), (1, 1, 5), (2, 2, 5), (3, 1, 5)])
def test_offsets_are_those_that_the_last_batch_or_the_last_rewind_left(step: int, ingested: int, applied: int) -> None:
    """Ingestion, mutation, ingestion, a restore that put ingestion back to the first batch's end, and the replay."""
    steps = [
        record(0, end=1), record(1, job="apply", end=5), record(2, end=2), record(3, job="restore-tables"),
        record(5, end=2),
    ]  # fmt: skip
    source = {"rewound_by": "restore-tables@1.t#3"}
    manifest = Manifest("ingest", "ingest@2.t", 4, {"0": 0}, {"0": 1}, BEGAN, source=source)
    timeline = Timeline([*steps, replace(record(4, end=1), manifest=manifest)], DATA)
    assert timeline.reached("ingest", step) == Reached({"0": ingested}, {})
    assert timeline.reached("apply", step) == Reached({"0": applied}, {})
    assert timeline.reached("nobody", step) is None


def test_times_count_what_had_finished_by_then() -> None:
    timeline = Timeline([record(n) for n in range(3)], DATA)
    ends = list(accumulate([timedelta(minutes=1)] * 3))
    assert [timeline.at(BEGAN + end) for end in ends] == [Boundary(n, None) for n in range(3)]
    assert timeline.at(BEGAN) is None
    assert timeline.name(-1) == "before ingest batch 0"
    assert timeline.name(1) == "the end of ingest batch 1"


def test_a_batch_that_ended_while_a_clock_was_ahead_is_not_later_than_those_after_it() -> None:
    """Only what began after it counts: others, at work beside it, may have ended earlier."""
    ahead = replace(record(1), finished_ts=BEGAN + timedelta(days=400))
    timeline = Timeline([record(0), ahead, record(2), record(3)], DATA)
    ends = [timeline.at(BEGAN + timedelta(minutes=minutes)) for minutes in range(1, 5)]
    assert ends == [Boundary(0, None), Boundary(0, None), Boundary(2, None), Boundary(3, None)]
    assert timeline.ends_after(BEGAN + timedelta(minutes=2), 1)
    assert not timeline.ends_after(BEGAN + timedelta(minutes=3), 1)
    last = Timeline([record(0), ahead], DATA)
    assert last.at(BEGAN + timedelta(days=399)) == Boundary(0, None), "nothing says when it ended"


def test_batches_of_requests_that_overlap_others_are_in_the_order_in_which_they_began() -> None:
    """Each job's versions grow; between two jobs they say nothing, since what is pinned is not the same table."""
    requests = "engagement/mutation_request"

    def of_requests(number: int, pinned: int) -> BatchRecord:
        found = record(number, job="requests")
        return replace(found, manifest=replace(found.manifest, table_versions={requests: pinned}))

    long = replace(record(0, pinned=7), finished_ts=BEGAN + timedelta(minutes=3))
    steps = [long, of_requests(1, 2), record(4, pinned=8), of_requests(5, 3)]
    timeline = Timeline(steps, DATA, requests)
    assert [step.manifest.batch_id for step in timeline.steps] == [0, 1, 4, 5]
    recovered = [replace(step, started_ts=BEGAN) for step in reversed(steps)]
    assert Timeline(recovered, DATA, requests).steps == recovered[::-1], "the stores' sequence counts, and no clock"
    assert timeline.at(BEGAN + timedelta(minutes=2)) is None, "the first one was still at work"
    assert timeline.at(BEGAN + timedelta(minutes=3)) == Boundary(1, None)
    anew = Timeline([*steps, record(6, pinned=1), of_requests(7, 0)], DATA, requests)
    assert [step.manifest.batch_id for step in anew.steps] == [6, 7], "tables that were made anew"


@given(steps=st.lists(st.sampled_from(["batch", "batch", "back"]), max_size=16), kept_minutes=st.integers(0, 17))
def test_where_batches_are_forgotten_a_version_has_the_boundary_and_offsets_it_had_before_or_is_refused(
    steps: list[str], kept_minutes: int
) -> None:
    """Batches read one record each; a restore puts the job back to an offset below and gives it another application."""
    records, owners, generation, offset = list[BatchRecord](), list[str](), 1, 0
    for minute, step in enumerate(steps):
        if step == "batch" or offset == 0:
            made = record(minute, pinned=len(owners), end=offset + 1)
            app_id, offset = f"ingest@{generation}.t", offset + 1
            records.append(replace(made, manifest=replace(made.manifest, app_id=app_id, batch_id=minute)))
        else:
            made = record(minute, job="restore-tables", pinned=len(owners))
            records.append(made)
            generation, offset, app_id = generation + 1, offset // 2, made.manifest.app_id
            back = record(minute, end=offset).manifest
            source = {REWOUND_BY: made.manifest.name}
            back = replace(back, app_id=f"ingest@{generation}.t", table_versions={}, source=source)
            records.append(replace(made, manifest=replace(back, sequence=made.manifest.sequence)))
        owners.append(f"{app_id}/data/x#{minute}")
    log = [*reversed([*enumerate(owners, 1)]), (0, None)]
    limit = BEGAN + timedelta(minutes=len(steps) - kept_minutes)
    old = [r for r in records if r.manifest.job == "ingest" and r.finished_ts is not None and r.finished_ts < limit]
    last = {r.manifest.app_id: r.manifest.batch_id for r in old}
    removed = [r for r in old if r.manifest.batch_id < last[r.manifest.app_id]]
    gone = max((r.finished_ts for r in removed if r.finished_ts), default=None)
    whole, shorter = Timeline(records, DATA), Timeline([r for r in records if r not in removed], DATA)
    for version in range(len(owners) + 1):
        was, now = whole.at_version(version, log), shorter.at_version(version, log)
        if gone is None or shorter.ends_after(gone, now.step):
            assert shorter.name(now.step) == whole.name(was.step)
            assert shorter.reached("ingest", now.step) == whole.reached("ingest", was.step)
    assert gone is None or not shorter.ends_after(gone, -1)
