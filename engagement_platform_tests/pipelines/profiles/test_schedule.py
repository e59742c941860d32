"""When the base is written: at once where something presses, else where writing and reading cost least together."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engagement_platform.engine.model import BatchRecord, JobState, Manifest
from engagement_platform.pipelines.profiles.schedule import Round, Waits, cadence, due, pressing, rounds
from engagement_platform.settings import RematerializeSettings

NOW = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
SETTINGS = RematerializeSettings()
WIDE = RematerializeSettings(shortest=timedelta(seconds=1), longest=timedelta(days=1000))


def record(number: int, details: dict[str, object]) -> BatchRecord:
    manifest = Manifest("rematerialize-x", "app", number, {}, {}, NOW + timedelta(minutes=10 * number))
    return BatchRecord(
        manifest=manifest,
        state=JobState.SUCCEEDED,
        started_ts=NOW,
        finished_ts=NOW,
        attempts=1,
        details=details,
    )


def told(write_s: float, before: float | None, after: float | None) -> dict[str, object]:
    return {"process_seconds": {"base": write_s}, "point_read_before_s": before, "point_read_after_s": after}


def test_rounds_are_told_by_batches_that_measured() -> None:
    history = [
        record(3, told(2.0, 0.5, 0.2)),
        record(2, told(1.0, None, 0.1)),
        record(1, told(1.0, 0.1, 0.3)),
        record(0, {}),
    ]
    assert rounds(history) == [Round(2.0, 0.5 - 0.2, 600.0), Round(1.0, 0.0, 600.0)]


@settings(deadline=None)
@given(st.floats(0.01, 1e4), st.floats(1e-4, 1e3), st.floats(1, 1e5), st.floats(0.01, 1e5), st.floats(0.1, 10))
def test_no_other_interval_costs_less(write: float, slower: float, waited: float, reads: float, factor: float) -> None:
    settings = WIDE.model_copy(update={"reads_per_hour": reads})
    chosen = cadence([Round(write, slower, waited)], settings).interval
    assume(settings.shortest < chosen < settings.longest)

    def cost(seconds: float) -> float:
        # Of a second: a share of the write, and what the reads of that second lose, on average over the interval.
        return write / seconds + reads / 3600 * (slower / waited) * seconds / 2

    assert cost(chosen.total_seconds()) <= cost(chosen.total_seconds() * factor) * (1 + 1e-6)


def test_the_reasoning_names_its_figures() -> None:
    known = [Round(10.0, 0.1, 600.0)]
    assert cadence(known, SETTINGS).interval.total_seconds() == pytest.approx(2683.28, abs=0.01)
    assert "a write takes 10.00 s" in cadence(known, SETTINGS).why
    assert "600.0 ms an hour" in cadence(known, SETTINGS).why


@pytest.mark.parametrize(
    ("waits", "presses"),
    [
        (Waits(500_000, 0, 10.0, None), None),
        (Waits(500_001, 0, 0.1, None), "max_pending_rows"),
        (Waits(1, 0, 10.001, None), "max_view_latency"),
        (Waits(0, 0, 99.0, None), None),
        (Waits(0, 2, None, None), "base and changeset"),
    ],
    ids=["at both limits", "too many", "too slow", "nothing would gain", "half finished"],
)
def test_what_presses_is_beyond_a_limit(waits: Waits, presses: str | None) -> None:
    why = pressing(waits, SETTINGS)
    assert why is None if presses is None else presses in (why or "")


@pytest.mark.parametrize(
    ("rows", "minutes", "is_due"), [(1, 2, True), (1, 1, False), (0, 99, False), (500_001, 0, True)]
)
def test_changes_are_due_when_their_time_has_come_or_something_presses(rows: int, minutes: int, is_due: bool) -> None:
    found, why = due(Waits(rows, 0, 0.1, NOW), [], NOW + timedelta(minutes=minutes), SETTINGS)
    assert found is is_due
    assert f"{rows:,} changes" in why or "no changes" in why
