"""What a program that was refused says, and which errors are refusals, in milliseconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from engagement_platform_tests.conformance import races
from engagement_platform_tests.conformance.races import OPERATIONS, TIMES_AGAIN, _Arena
from engagement_platform_tests.conformance.refusals import REFUSALS, Ended
from engagement_platform_tests.docs.pages import error_names
from engagement_platform_tests.ingestion.test_whole_path import Machine

OF_DAGSTER = """Traceback (most recent call last):
dagster._core.errors.DagsterExecutionStepExecutionError: Error occurred while executing op "ingest":

The above exception was caused by the following exception:
engagement_platform.engine.lease.LeaseUnavailable: LeaseUnavailable: somebody holds the lease; run again

Stack Trace:
  File "lease.py", line 1, in acquire
"""


@pytest.mark.parametrize(
    ("status", "errors", "refused"),
    [
        (0, "Waiting: somebody holds the lease\n", ""),
        (1, "Waiting: somebody holds the lease\nLeaseLost: nothing was changed.\n", "LeaseLost: nothing was changed."),
        (1, OF_DAGSTER, "LeaseUnavailable: somebody holds the lease; run again"),
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
        (1, OF_DAGSTER.replace("LeaseUnavailable", "BatchFailed")),
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
    ("again", "says"),
    [
        ([WORKED], []),
        ([REFUSED, WORKED], []),
        ([BROKE, WORKED], [f"ingest again: {BROKE.wrong}"]),
        ([REFUSED] * TIMES_AGAIN, [f"ingest refuses still: {REFUSED.refused}"]),
    ],
)
def test_an_operation_that_refused_works_when_it_is_run_again_and_breaks_in_none_of_these_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, again: list[Ended], says: list[str]
) -> None:
    ends = iter(again)
    monkeypatch.setattr(races, "_run", lambda *_: next(ends))
    own, both = Machine(tmp_path, {}), (REFUSED, WORKED)
    assert _Arena(own)._until_done(own, OPERATIONS[:2], both) == says


def test_every_refusal_is_an_error_of_the_product_and_a_batch_that_failed_is_none() -> None:
    assert error_names() >= REFUSALS
    assert "BatchFailed" not in REFUSALS
