"""Each planted bug still fits the product and names a test that there is. That it is caught is `make conformance`."""

from __future__ import annotations

import subprocess

import pytest

from engagement_platform_tests.conformance.planted import Bug, bugs
from engagement_platform_tests.docs.pages import ROOT, test_names


def test_there_are_bugs_to_plant() -> None:
    assert len(bugs()) >= 15


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
