"""What a program that was refused says, and which errors are refusals, in milliseconds."""

from __future__ import annotations

from pathlib import Path
from subprocess import CompletedProcess

import pytest

from engagement_platform_tests.conformance import races
from engagement_platform_tests.conformance.disturbed import points, times, without_points
from engagement_platform_tests.conformance.races import OPERATIONS, TIMES_AGAIN, _Arena, in_order, overlap, unlike
from engagement_platform_tests.conformance.refusals import REFUSALS, Ended
from engagement_platform_tests.docs.pages import error_names
from engagement_platform_tests.ingestion.test_whole_path import Machine

UNAVAILABLE = "engagement_platform.engine.lease.LeaseUnavailable: LeaseUnavailable: somebody holds the lease; run again"


def of_dagster(*errors: str) -> str:
    """What Dagster prints of a step that ends with the first of these errors, caused by the second, and so on."""
    stack, causes = 'Stack Trace:\n  File "a.py", line 1, in a\n\n', "The above exception was caused by the following"
    chain = f"{causes} exception:\n".join(f"{each}\n\n{stack}" for each in errors)
    step = 'dagster._core.errors.DagsterExecutionStepExecutionError: Error occurred while executing op "a":'
    return (
        "a.py:911: SupersessionWarning: Function `asset_materialize_command` is superseded.\n"
        f'2026-11-29 - dagster - ERROR - a - STEP_FAILURE - Execution of step "a" failed.\n\n{step}:\n\n{chain}'
        f"2026-11-29 - dagster - ERROR - RUN_FAILURE - Steps failed: ['a'].\n\n{step}\n\n{stack}{causes} exception:\n"
        f"{chain}Error: Materialization failed.\n"
    )


@pytest.mark.parametrize(
    ("status", "errors", "refused"),
    [
        (0, "Waiting: somebody holds the lease\n", ""),
        (1, "Waiting: somebody holds the lease\nLeaseLost: nothing was changed.\n", "LeaseLost: nothing was changed."),
        (1, "engagement/data: compact\nTableBusy: another writes\n", "TableBusy: another writes"),
        (1, of_dagster(UNAVAILABLE), "LeaseUnavailable: somebody holds the lease; run again"),
        (1, of_dagster(UNAVAILABLE, "KeyError: 'batch'"), "LeaseUnavailable: somebody holds the lease; run again"),
        (1, of_dagster(UNAVAILABLE) * 2, "LeaseUnavailable: somebody holds the lease; run again"),
    ],
)
def test_a_program_that_refuses_says_why_in_a_sentence(status: int, errors: str, refused: str) -> None:
    assert (Ended(status, errors).refused, Ended(status, errors).wrong) == (refused, "")


@pytest.mark.parametrize(
    ("status", "errors"),
    [
        (1, ""),
        (1, "Traceback (most recent call last):\n  …\nKeyError: 'a'\n"),
        (1, "BatchFailed: batch 1 stopped: SparkException: LeaseLost: a conflict. The next run finishes the batch.\n"),
        (0, "Traceback (most recent call last):\n  …\nKeyError: 'a'\n"),
        (0, of_dagster(UNAVAILABLE)),
        (1, "\tat org.apache.spark.sql.Dataset.<init>(Dataset.scala:1)\n" * 50 + "LeaseLost: nothing was changed.\n"),
        (1, "org.apache.spark.SparkException: Job aborted\nLeaseLost: nothing was changed.\n"),
        (1, of_dagster(UNAVAILABLE.replace("LeaseUnavailable", "BatchFailed"))),
        (1, of_dagster(UNAVAILABLE.replace("LeaseUnavailable", "BatchFailed"), UNAVAILABLE)),
        (1, of_dagster("KeyError: 'batch'", UNAVAILABLE)),
        (1, of_dagster("KeyError: 'batch'") + of_dagster(UNAVAILABLE)),
        (1, "dagster._core.errors.DagsterInvariantViolationError: no such asset\n" + of_dagster(UNAVAILABLE)),
        (1, "Error: Materialization failed.\n"),
        (1, "Nothing was changed; run again.\n"),
        (2, "No such option"),
        (2, "LeaseLost: nothing was changed.\n"),
        (-9, ""),
    ],
)
def test_anything_else_that_did_not_work_is_wrong(status: int, errors: str) -> None:
    assert Ended(status, errors).wrong.startswith(f"status {status}")


WORKED, REFUSED, BROKE = Ended(0, ""), Ended(1, "TableBusy: another process writes\n"), Ended(1, "KeyError: 1\n")


@pytest.mark.parametrize(
    ("again", "says", "refusing"),
    [
        ([WORKED], [], {}),
        ([REFUSED, WORKED], [], {}),
        ([BROKE, WORKED], [f"ingest again: {BROKE.wrong}"], {}),
        ([REFUSED] * TIMES_AGAIN, [], {"ingest": REFUSED.refused}),
    ],
)
def test_an_operation_that_refused_works_when_it_is_run_again_and_breaks_in_none_of_these_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, again: list[Ended], says: list[str], refusing: dict[str, str]
) -> None:
    ends = iter(again)
    monkeypatch.setattr(races, "_run", lambda *_: next(ends))
    own, both = Machine(tmp_path, {}), (REFUSED, WORKED)
    assert _Arena(own)._until_done(own, OPERATIONS[:2], both) == (says, refusing)


@pytest.mark.parametrize(
    ("refusing", "order"),
    [
        ({}, "ingest, apply"),
        ({"ingest": "RestoreRefused: gone"}, "apply, ingest"),
        ({"apply": "RestoreRefused: gone"}, ""),
    ],
)
def test_what_refuses_to_the_end_refuses_also_in_the_order_that_leaves_the_same(
    tmp_path: Path, refusing: dict[str, str], order: str
) -> None:
    arena, (ingest, apply, *_) = _Arena(Machine(tmp_path, {})), OPERATIONS
    orders = [("ingest", "apply"), ("apply", "ingest"), ("ingest", "apply", "ingest"), ("apply", "ingest", "apply")]
    arena.orders = {names: {"a": ["1"] if len(names) == 2 else ["3"]} for names in orders}
    arena.refusing = {names: {"ingest"} if names == ("apply", "ingest") else set() for names in orders}
    found, differs = arena._equals((ingest, apply), {"a": ["1"]}, refusing)
    assert (found, "apply refuses still: RestoreRefused: gone" in differs) == (order, not order)
    assert arena._equals((ingest, apply), {"a": ["2"]}, refusing)[0] == ""
    # As when ingest had two batches, and apply came between them.
    assert arena._equals((ingest, apply), {"a": ["3"]}, {})[0] == "ingest, apply, ingest"


@pytest.mark.parametrize(
    ("out", "undone"),
    [
        ("[1/2] engagement/data (all of it): 4 → 1 files, 4 KB → 2 KB, 1.0 s\n", ""),
        (
            "[1/2] a/b (all of it): 4 → 1 files\n[2/2] a/c day=1 is left: ingest@1 batch 2 is unfinished\n",
            "[2/2] a/c day=1 is left: ingest@1 batch 2 is unfinished",
        ),
    ],
)
def test_an_operation_that_left_some_of_its_work_has_to_run_again(out: str, undone: str) -> None:
    assert (Ended(0, "", out).undone, Ended(0, "", out).wrong) == (undone, "")
    assert REFUSED.undone == REFUSED.refused


def test_programs_are_at_work_at_once_where_each_has_a_commit_before_the_last_one_of_the_other() -> None:
    printed = "point: 3.250 lake.lake.Lake.append a/b:before\nWaiting: a lease\npoint: 4.500 a.record #2:after\n"
    assert (points(printed), times(printed)) == (["lake.lake.Lake.append a/b:before", "a.record #2:after"], [3.25, 4.5])
    assert without_points(printed) == "Waiting: a lease\n"
    assert overlap([1.0, 3.0], [2.0, 4.0]) == overlap([1.0, 9.0], [2.0, 3.0]) == "at work at once"
    assert overlap([1.0, 2.0], [2.0, 3.0]) == "one after the other"
    assert overlap([], [2.0, 3.0]) == "one without a commit"


class Crossing:
    """A program that comes to its point, at once or when the other one goes on, or never; it ends once it is awake."""

    def __init__(self, *stopped: bool) -> None:
        self.answers, self.awake = list(stopped), stopped == (False, False)

    def stopped(self, _within_s: float | None = None) -> bool:
        return self.answers.pop(0)

    def wake(self) -> None:
        self.awake = True

    def kill(self) -> None:
        pass

    def ended(self) -> CompletedProcess[str]:
        assert self.awake, "it stands for ever"
        return CompletedProcess("", 0, "", "")


@pytest.mark.parametrize(
    ("crossing", "how"),
    [
        (Crossing(True), "both in their middle"),
        (Crossing(False, True), "apply waited or refused"),
        (Crossing(False, False), "apply waited or refused"),
    ],
)
def test_of_two_that_cross_it_is_told_whether_both_were_in_their_middle_and_none_stands_for_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, crossing: Crossing, how: str
) -> None:
    begun = iter([Crossing(True), crossing])
    monkeypatch.setattr(races, "_begin", lambda *_: next(begun))
    ingest, apply, *_ = OPERATIONS
    timing, both = _Arena(Machine(tmp_path, {}))._crossed(
        Machine(tmp_path, {}), (apply, ingest), ("a:before", "b:before")
    )
    assert timing == f"ingest stopped before `b:before`, apply before `a:before`: {how}"
    assert both == (Ended(0, ""), Ended(0, ""))


def test_every_refusal_is_an_error_of_the_product_and_a_batch_that_failed_is_none() -> None:
    assert error_names() >= REFUSALS
    assert "BatchFailed" not in REFUSALS


def test_of_sequences_their_order_counts() -> None:
    def found(row: int, other: int, end: int) -> dict[str, list[str]]:
        return {
            "engagement/alias": [
                f"{{'id': 'a', 'batch_sequence': {row}}}",
                f"{{'id': 'b', 'batch_sequence': {other}}}",
            ],
            "batches": [f"apply-mutations@1 batch 2 SUCCEEDED {{'sequence': {end}}}"],
        }

    assert in_order(found(14, 9, 14)) == in_order(found(18, 12, 18)) == found(1, 0, 1)
    assert in_order(found(9, 14, 14)) != in_order(found(14, 9, 14))
    assert in_order(found(14, 9, 15)) != in_order(found(14, 9, 14))


def test_of_a_notification_the_order_among_notifications_counts() -> None:
    """A batch of requests drew 6 and waited, and a batch of notifications with 7 came before it, or after it with 8."""

    def found(requests: int, *notifications: int) -> dict[str, list[str]]:
        rows = [f"{{'id': {place}, 'batch_sequence': {number}}}" for place, number in enumerate(notifications)]
        return {
            "engagement/alias": [f"{{'id': 'a', 'batch_sequence': {requests}}}"],
            "engagement/notification": rows,
        }

    assert in_order(found(6, 5, 7)) == in_order(found(7, 5, 6))
    assert in_order(found(6, 7, 5)) != in_order(found(7, 5, 6))


def test_a_table_without_rows_counts_as_none() -> None:
    made = {"layout/restore": [], "properties of layout/restore": ["('delta.appendOnly', 'true')"]}
    others = {"engagement/alias": ["{}"], "properties of engagement/alias": ["()"], "batches": ["one"]}
    assert unlike({**made, **others}, others) == unlike(others, {**made, **others}) == ""
    # One that both have counts, also where it has lost its rows or is left open.
    opened = {**made, "properties of layout/restore": ["('delta.appendOnly', 'false')"]}
    assert "properties of layout/restore" in unlike({**made, **others}, {**opened, **others})
    assert "engagement/alias: 0 instead of 1" in unlike(others, {**others, "engagement/alias": []})
