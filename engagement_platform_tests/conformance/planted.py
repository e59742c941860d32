"""Bugs that are planted one at a time into a copy of the product; each has to fail the quick test that its patch names.

A patch in `planted/` begins with a sentence about the bug and the line `Caught by: <test>`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from engagement_platform_tests.docs.pages import ROOT, TESTS

FOLDER = Path(__file__).with_suffix("")
CAUGHT_BY = "Caught by: "
COPIED = ("engagement_platform", "engagement_platform_tests", "benchmarks", "examples", "pyproject.toml")
TESTS_FAILED = 1
"""pytest's exit status when tests ran and some failed; other errors are greater."""
ASSERTIONS = frozenset({"AssertionError", "Failed", "assert"})
"""How pytest begins to say that something is not as a test has it; `Failed` is of what did not raise."""
_RAISED = re.compile(r"^(FAILED|ERROR) [^\s\[]+(?:\[.*\])? - (?:\w+\.)*(\w+)", re.MULTILINE)
"""What a test failed with, or ended with before it began or after it was over, in pytest's summary."""
_WHERE = re.compile(r"^(\S+?):\d+: \w+$", re.MULTILINE)
"""Where that was raised, as the last line of a stack."""


@dataclass(frozen=True)
class Bug:
    """One patch. test: pytest's id of the test that has to fail with it, and passes without it."""

    name: str
    says: str
    test: str
    patch: Path


@dataclass(frozen=True)
class Outcome:
    """What the test of a bug said. status: pytest's exit status."""

    bug: Bug
    status: int
    output: str
    seconds: float

    @property
    def caught(self) -> bool:
        """By an assertion of the tests, and not because the code is broken, nor by an assertion of its own."""
        raised, where = _RAISED.findall(self.output), _WHERE.findall(self.output)
        by_assertion = bool(raised) and all(how == "FAILED" and what in ASSERTIONS for how, what in raised)
        return self.status == TESTS_FAILED and by_assertion and bool(where) and where[-1].startswith(f"{TESTS.name}/")


def bugs() -> list[Bug]:
    """All patches, by name."""
    found = []
    for patch in sorted(FOLDER.glob("*.patch")):
        says, by, *_ = patch.read_text(encoding="utf-8").splitlines()
        found.append(Bug(patch.stem, says, by.removeprefix(CAUGHT_BY), patch))
    return found


def plant(chosen: Sequence[Bug]) -> Iterator[Outcome]:
    """Plant each bug and run its test. Raises AssertionError where one of these tests fails without any bug."""
    with TemporaryDirectory(prefix="planted-") as folder:
        copy = Path(folder)
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, copy / name)
        status, output = _pytest(copy, sorted({bug.test for bug in chosen}))
        assert status == 0, f"without a planted bug: {output}"
        for bug in chosen:
            began = time.monotonic()
            _apply(copy, bug)
            status, output = _pytest(copy, [bug.test])
            _apply(copy, bug, "--reverse")
            yield Outcome(bug, status, output, time.monotonic() - began)


def _apply(copy: Path, bug: Bug, *options: str) -> None:
    # So that git does not look for a repository above, whose paths it would go by.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(copy.parent)}
    subprocess.run(["git", "apply", *options, str(bug.patch)], cwd=copy, env=environment, check=True)


def _pytest(copy: Path, tests: Sequence[str]) -> tuple[int, str]:
    # Without byte code: a file that is patched twice in a second would be taken for the same.
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    # A summary in lines that are not cut off.
    environment = {**os.environ, "PYTHONPATH": str(copy), "COLUMNS": "300"}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, f"{done.stdout}\n{done.stderr}"
