"""What a program that was refused says, in milliseconds."""

from __future__ import annotations

import pytest

from engagement_platform_tests.conformance.races import Ended

OF_DAGSTER = """Traceback (most recent call last):
dagster._core.errors.DagsterExecutionStepExecutionError: Error occurred while executing op "ingest":

The above exception was caused by the following exception:
engagement_platform.engine.lease.LeaseUnavailable: somebody holds the lease; run again

Stack Trace:
  File "lease.py", line 1, in acquire
"""


@pytest.mark.parametrize(
    ("status", "errors", "refused"),
    [
        (0, "Waiting: somebody holds the lease\n", ""),
        (1, "Waiting: somebody holds the lease\nNothing was changed; run again.\n", "Nothing was changed; run again."),
        (1, OF_DAGSTER, "somebody holds the lease; run again"),
    ],
)
def test_a_program_that_refuses_says_why_in_a_sentence(status: int, errors: str, refused: str) -> None:
    assert (Ended(status, errors).refused, Ended(status, errors).wrong) == (refused, "")


@pytest.mark.parametrize(
    ("status", "errors"),
    [(1, ""), (1, "Traceback (most recent call last):\n  …\nKeyError: 'a'\n"), (2, "No such option"), (-9, "")],
)
def test_anything_else_that_did_not_work_is_wrong(status: int, errors: str) -> None:
    assert Ended(status, errors).wrong.startswith(f"status {status}")
