"""Each planted bug still fits the product and names a test that there is. That it is caught is `make conformance`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from engagement_platform_tests.conformance.planted import Bug, Outcome, bugs
from engagement_platform_tests.docs.pages import ROOT, test_names


def test_there_are_bugs_to_plant() -> None:
    assert len(bugs()) >= 15
    assert len({bug.test for bug in bugs()}) == len(bugs()), "each is caught by a test of its own"


@pytest.mark.parametrize("bug", bugs(), ids=lambda bug: bug.name)
def test_a_planted_bug_applies_and_names_its_test(bug: Bug) -> None:
    done = subprocess.run(
        ["git", "apply", "--check", str(bug.patch)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"the product has changed; make the patch anew: {done.stderr}"
    file, _, test = bug.test.partition("::")
    assert (ROOT / file).is_file()
    assert test in test_names()
    assert bug.says.endswith(".")


IN_TESTS, IN_THE_PRODUCT = "engagement_platform_tests/a/test_b.py", "engagement_platform/a.py"


@pytest.mark.parametrize(
    ("status", "summary", "where", "caught"),
    [
        (1, "FAILED a/test_b.py::test_c - AssertionError: assert 1 == 2", IN_TESTS, True),
        (1, "FAILED a/test_b.py::test_c[d - e] - assert 1 == 2", IN_TESTS, True),
        (1, "FAILED a/test_b.py::test_c - Failed: DID NOT RAISE <class 'a.B'>", IN_TESTS, True),
        (1, "FAILED a/test_b.py::test_c - AssertionError: it has a day", IN_THE_PRODUCT, False),
        (1, "FAILED a/test_b.py::test_c - engagement_platform.engine.stores.StaleBatch: out of date", IN_TESTS, False),
        (1, "FAILED a/test_b.py::test_c - NameError: name 'txn' is not defined", IN_TESTS, False),
        (1, "ERROR a/test_b.py::test_c - ImportError: cannot import name", IN_TESTS, False),
        (1, "ERROR a/test_b.py::test_c - AssertionError: a fixture", IN_TESTS, False),
        (2, "ERROR a/test_b.py - SyntaxError: invalid syntax", IN_TESTS, False),
        (1, "", IN_TESTS, False),
        (0, "1 passed", IN_TESTS, False),
    ],
)
def test_a_bug_is_caught_by_an_assertion_of_the_tests_and_by_no_broken_code(
    status: int, summary: str, where: str, caught: bool
) -> None:
    bug = Bug("a", "A bug.", "a/test_b.py::test_c", Path("a.patch"))
    output = f"E   NameError: within\n\n{IN_TESTS}:1: \n_ _ _\n{where}:7: AssertionError\n{summary}\n1 failed"
    assert Outcome(bug, status, output, 0.0).caught == caught
