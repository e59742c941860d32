"""Disturbs runs at every crash point and plants bugs: python -m engagement_platform_tests.conformance [--help].

Prints a table of each. Exit status: 1 where a disturbed run ends otherwise than an undisturbed one, or a bug survives.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from datetime import UTC, datetime

from engagement_platform_tests.conformance.matrix import FAULTS, disturb
from engagement_platform_tests.conformance.planted import bugs, plant
from engagement_platform_tests.conformance.scenarios import SCENARIOS
from engagement_platform_tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "reliability.md"
INTRODUCTION = """\
# Reliability

What `make conformance` found, as it wrote it. Each run below is one process that does a job, disturbed once:
immediately before or after one of its commits to a Delta table or to the stores it is ended with SIGKILL (`kill`),
ended by an exception (`raise`), or stopped with SIGSTOP until its leases are over and another process has done its
work, and then woken up (`stop`). Afterwards the same command is run once more. *Equal* are runs that leave every row
of every table and every checkpoint as an undisturbed run of the same command on a copy of the same lake does. Crash
points are the functions that commit; a test fails where one of them is not listed in
`engagement_platform_tests/conformance/points.py`. A planted bug is a patch that breaks one promise; it is *caught*
where the test that it names fails.
"""


def main() -> int:
    """Run what was asked for; the exit status."""
    parser = argparse.ArgumentParser(prog="make conformance", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("runs", "bugs"), help="only this; both without it")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names of scenarios or of planted bugs; default: all")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=FAULTS)
    parser.add_argument("--at", default="", metavar="TEXT", help="only crash points that contain this")
    parser.add_argument("--points", type=int, default=0, metavar="N", help="most of each scenario; default: all")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="lakes of N random histories")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/reliability.md, too")
    asked = parser.parse_args()
    lines, failures = [], list[str]()
    tables = {"runs": _runs(asked, failures), "bugs": _bugs(asked, failures)}
    for line in (line for what, table in tables.items() if asked.what in (None, what) for line in table):
        print(line, flush=True)
        lines.append(line)
    print("\n".join(failures), file=sys.stderr)
    if asked.write:
        called = f'`make conformance ARGS="{" ".join(sys.argv[1:])}"`, {datetime.now(UTC):%Y-%m-%d}'
        PAGE.write_text("\n".join([INTRODUCTION, f"{called}.", "", *lines, ""]), encoding="utf-8")
    return min(len(failures), 1)


def _runs(asked: argparse.Namespace, failures: list[str]) -> Iterator[str]:
    scenarios = [scenario for scenario in SCENARIOS if not asked.only or scenario.name in asked.only]
    yield from ("| job | seed | crash point | fault | equal | seconds |", "|---|---|---|---|---|---|")
    for run in disturb(scenarios, asked.faults, asked.seeds, asked.points, asked.at):
        equal = "NO" if run.differs else "yes"
        yield f"| {run.scenario} | {run.seed} | `{run.point}` | {run.fault} | {equal} | {run.seconds:.0f} |"
        if run.differs:
            failures.append(f"{run.scenario}, seed {run.seed}, {run.point}, {run.fault}: {run.differs}")
    yield ""


def _bugs(asked: argparse.Namespace, failures: list[str]) -> Iterator[str]:
    yield from ("| planted bug | caught | seconds |", "|---|---|---|")
    for outcome in plant([bug for bug in bugs() if not asked.only or bug.name in asked.only]):
        yield f"| {outcome.bug.says} | {'yes' if outcome.caught else 'NO'} | {outcome.seconds:.0f} |"
        if not outcome.caught:
            test, status = outcome.bug.test, outcome.status
            failures.append(f"{outcome.bug.name} is not caught: {test} ended with {status}: {outcome.output[-2000:]}")


if __name__ == "__main__":
    sys.exit(main())
