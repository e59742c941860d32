"""What the logs tell of mutations, as pure functions: announcements, when rows are moved."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from engagement_platform.defs import mutation
from engagement_platform.defs.checks import announced_rows_result, pending_age_result
from engagement_platform.defs.mutation import PRESSING_ROWS, ToMove, to_move, why_move
from engagement_platform.defs.mutation_checks import Announced
from engagement_platform.pipelines.status import Waiting

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


FINE = Announced("apply-mutations batch 3", seen=4, notifications=4)


def test_a_batch_that_announced_what_it_changed_is_fine_and_so_is_no_batch() -> None:
    assert announced_rows_result([FINE]).passed
    assert announced_rows_result([]).passed


def test_a_batch_that_announced_something_else_is_named() -> None:
    result = announced_rows_result([FINE, replace(FINE, notifications=3)])
    says = "apply-mutations batch 3 changed 4 rows for readers and announced 3"
    assert (result.passed, result.description) == (False, says)


LONG = timedelta(minutes=10)
REST = ToMove(pending=0, age=None, purge_due=False, unfinished=False)


@pytest.mark.parametrize(
    ("found", "moves"),
    [
        (REST, False),
        (replace(REST, pending=1, age=timedelta(minutes=9)), False),
        (replace(REST, pending=1, age=LONG), True),
        (replace(REST, pending=1, age=None), True),
        (replace(REST, pending=PRESSING_ROWS, age=timedelta(0)), False),
        (replace(REST, pending=PRESSING_ROWS + 1, age=timedelta(0)), True),
        (replace(REST, unfinished=True), True),
        (replace(REST, purge_due=True), True),
    ],
    ids=["nothing", "young", "old", "of unknown age", "many", "too many", "unfinished", "purge due"],
)
def test_changes_are_moved_when_they_pend_too_long_or_are_too_many(found: ToMove, moves: bool) -> None:
    assert (why_move(found, LONG) is not None) is moves


@pytest.mark.parametrize(("rows", "purges"), [(0, True), (5, False)])
def test_a_purge_that_is_due_is_left_to_the_move_of_changes_that_pend(
    rows: int, purges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutation, "purge_due", lambda *_: True)
    monkeypatch.setattr(mutation, "pending_changes", lambda *_: Waiting(rows, NOON if rows else None))
    looked = SimpleNamespace(checkpoint=lambda _job: None, settings=None, stores=None)
    assert to_move(looked, NOON).purge_due is purges  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("age", "passed"),
    [(None, True), (2 * LONG, True), (2 * LONG + timedelta(seconds=1), False)],
    ids=["nothing pends", "exactly twice", "longer"],
)
def test_a_change_that_pends_for_more_than_twice_as_long_as_it_may_is_told_of(
    age: timedelta | None, passed: bool
) -> None:
    pending = Waiting(0 if age is None else 7, None if age is None else NOON - age)
    assert pending_age_result(pending, NOON, LONG).passed is passed
