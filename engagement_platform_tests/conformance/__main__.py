"""Disturbs the product and looks whether it stays right: python -m engagement_platform_tests.conformance [--help].

Prints a table of each section. Exit status: 1 where anything ended otherwise than it has to, a section had nothing
to do, or where one that was not asked to be short did not come to its end. After a section that fails as a whole come
the others.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import groupby

from benchmarks.pages import figures_in, filled
from engagement_platform_tests.conformance.faults import storm, table
from engagement_platform_tests.conformance.fuzz import PROPERTIES, fuzz
from engagement_platform_tests.conformance.matrix import FAULTS, disturb
from engagement_platform_tests.conformance.planted import bugs, plant
from engagement_platform_tests.conformance.races import OPERATIONS, PAIRED, pairs, race
from engagement_platform_tests.conformance.scenarios import SCENARIOS
from engagement_platform_tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "reliability.md"
COMMAND = "make conformance ARGS='{} --write'"
"""What writes a section of the page; its options are told in the section."""

HEADER = 2
"""Lines of a table before its first row."""
MINUTES = 60
WITHIN_MINUTES = 240
"""Enough for all that the section faults does by default, several times."""

Section = Callable[[argparse.Namespace, list[str]], Iterator[str]]
"""Yields lines of Markdown as they are found, and adds what failed to the list."""


def main() -> int:
    """Run what was asked for; the exit status."""
    parser = argparse.ArgumentParser(prog="make conformance", description=__doc__)
    parser.add_argument("what", nargs="*", help=f"of {', '.join(SECTIONS)}; all without it")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="scenarios, planted bugs, operations or pairs (a+b), what is fuzzed"
    )
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=FAULTS, help="of the section runs")
    parser.add_argument(
        "--at", default="", metavar="TEXT", help="of runs and races: only crash points that contain this"
    )
    parser.add_argument(
        "--points", type=int, default=0, metavar="N", help="most of each scenario; default: all, of races one"
    )
    parser.add_argument(
        "--each", action="store_true", help="of runs: one point of each function and table, others with other seeds"
    )
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="lakes of N random histories")
    parser.add_argument(
        "--minutes",
        type=float,
        metavar="N",
        help="of fuzz (default: 60), and of races (default: until every pair)",
    )
    parser.add_argument("--messages", type=int, default=100_000, metavar="N", help="of the section faults")
    parser.add_argument("--objects", type=int, default=2_000, metavar="N", help="of the section faults")
    parser.add_argument("--storm", type=int, default=210, metavar="N", help="faults of the section faults")
    parser.add_argument(
        "--within", type=float, metavar="MINUTES", help="end the section faults earlier; by default less than all fails"
    )
    parser.add_argument("--write", action="store_true", help="write each table into docs/reliability.md, too")
    parser.add_argument(
        "--add", action="store_true", help="with --write: below the table that is there, and not in its place"
    )
    asked = parser.parse_args()
    if unknown := set(asked.what) - set(SECTIONS):
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    names = [NAMES[what] for what in asked.what or SECTIONS]
    if strangers := [name for name in asked.only or () if not any(knows(name) for knows in names)]:
        parser.error(f"nothing is called {', '.join(strangers)}")
    failures = list[str]()
    for what in asked.what or SECTIONS:
        lines, interrupted = list[str](), False
        try:
            for line in SECTIONS[what](asked, failures):
                print(line, flush=True)
                lines.append(line)
        except KeyboardInterrupt:
            # Of hours of work what is there; the page says that it is not all.
            interrupted = True
            failures.append(f"{what} was interrupted")
            lines += ["", "Interrupted before the end."]
        except Exception as error:
            # The sections after it have hours of work of their own.
            traceback.print_exc()
            failures.append(f"{what} failed: {type(error).__name__}: {error}")
            lines += ["", "Failed before the end."]
        if found := sum(line.startswith("|") for line in lines) > HEADER:
            # The same section by other options takes the place of this one, unless it is added to it.
            called = f'`make conformance ARGS="{" ".join(sys.argv[1:])}"`, {datetime.now(UTC):%Y-%m-%d}:'
            text = "\n".join((called, "", *lines))
            if asked.write:
                page, command = PAGE.read_text(encoding="utf-8"), COMMAND.format(what)
                text = f"{figures_in(page, what, command)}\n\n{text}" if asked.add else text
                PAGE.write_text(filled(page, what, command, text), "utf-8")
        if interrupted:
            break
        if not found:
            failures.append(f"{what}: there was nothing to do")
    print("\n".join(failures), file=sys.stderr)
    return min(len(failures), 1)


def _runs(asked: argparse.Namespace, failures: list[str]) -> Iterator[str]:
    scenarios = [scenario for scenario in SCENARIOS if not asked.only or scenario.name in asked.only]
    yield f"| job | seed | crash point | {' | '.join(asked.faults)} |"
    yield "|---" * (3 + len(asked.faults)) + "|"
    done, of = 0, dict[tuple[str, int], int]()
    disturbed = disturb(scenarios, asked.faults, asked.seeds, asked.points, asked.at, each=asked.each)
    for (job, seed, point), runs in groupby(disturbed, key=lambda run: (run.scenario, run.seed, run.point)):
        cells = dict[str, str]()
        for run in runs:
            cells[run.fault] = f"{'NO, ' if run.differs else ''}{run.seconds:.0f} s"
            if run.differs:
                failures.append(f"{job}, seed {seed}, {point}, {run.fault}: {run.differs}")
            if point:
                of[job, seed] = run.of
        done += bool(point)
        # Of a job that could not be disturbed at all there is one run, of no fault.
        shown = " | ".join(cells.get(fault, cells.get("none", "")) for fault in asked.faults)
        yield f"| {job} | {seed} | `{point}` | {shown} |"
    jobs = len({scenario for scenario, _ in of})
    yield from ("", f"{done:,} of {sum(of.values()):,} points, of {jobs} of {len(SCENARIOS)} jobs.")


def _bugs(asked: argparse.Namespace, failures: list[str]) -> Iterator[str]:
    yield from ("| planted bug | caught | seconds |", "|---|---|---|")
    chosen = [bug for bug in bugs() if not asked.only or bug.name in asked.only]
    for outcome in plant(chosen) if chosen else ():
        yield f"| {outcome.bug.says} | {'yes' if outcome.caught else 'NO'} | {outcome.seconds:.0f} |"
        if not outcome.caught:
            test, status = outcome.bug.test, outcome.status
            failures.append(f"{outcome.bug.name} is not caught: {test} ended with {status}: {outcome.output[-2000:]}")


def _fuzz(asked: argparse.Namespace, failures: list[str]) -> Iterator[str]:
    yield from ("| what | examples | seconds | found |", "|---|---|---|---|")
    for part in fuzz(MINUTES if asked.minutes is None else asked.minutes, asked.only):
        found = "; ".join(filter(None, (str(len(part.failures)), part.seen)))
        yield f"| {part.what} | {part.examples:,} | {part.seconds:,.0f} | {found} |"
        failures += [f"{part.what}: {each}" for each in part.failures]


def _faults(asked: argparse.Namespace, failures: list[str]) -> Iterator[str]:
    within = WITHIN_MINUTES if asked.within is None else asked.within
    ended = storm(asked.messages, asked.objects, asked.storm, minutes=within)
    yield (
        f"{ended.messages:,} messages and {ended.objects:,} objects in {ended.seconds / 60:.0f} minutes, with "
        f"{len(ended.faults)} faults; jobs failed {ended.failed} times, and {sum(ended.requests.values()):,} requests "
        f"to S3 and SQS; {ended.late:,} more were answered late. Lost: {len(ended.lost)}; doubled: "
        f"{len(ended.doubled)}; torn, twice, gone or an error for the reader, which looked {ended.polls:,} times: "
        f"{len(ended.seen)}; stores that went back unnoticed: "
        f"{len(ended.unnoticed)}; errors that no fault may cause: {len(ended.wrong)}."
    )
    yield ""
    yield from table(ended.faults)
    parts = (
        (len(ended.faults), asked.storm, "faults"),
        (ended.messages, asked.messages, "messages"),
        (ended.objects, asked.objects, "objects"),
    )
    of = ", ".join(f"{done:,} of {wanted:,} {what}" for done, wanted, what in parts)
    short = any(done < wanted for done, wanted, _ in parts)
    yield from ("", f"{of}{', since the time was over' if short else ''}.")
    if short and asked.within is None:
        failures.append(f"the storm ended before its end: {of}")
    failures += [*ended.unnoticed, *ended.wrong, *(f"the reader saw: {one}" for one in ended.seen)]
    failures += [*(f"lost: {one}" for one in ended.lost), *(f"doubled: {one}" for one in ended.doubled)]


def _races(asked: argparse.Namespace, failures: list[str]) -> Iterator[str]:
    yield from (
        "| operations | timing | as one after the other | had to run again | seconds |",
        "|---|---|---|---|---|",
    )
    racing, raced = pairs(asked.only or ()), set[tuple[str, str]]()
    within_s = math.inf if asked.minutes is None else asked.minutes * 60
    for run in race(racing, asked.points or 1, within_s, asked.at) if racing else ():
        raced.add((run.first, run.second))
        again = "; ".join(f"{name}: {said}" for name, said in run.refused).replace("|", r"\|")
        yield f"| {run.first}, {run.second} | {run.timing} | {run.order or 'NO'} | {again} | {run.seconds:.0f} |"
        if run.differs:
            failures.append(f"{run.first} and {run.second}, {run.timing}: {run.differs}")
    over = ", since the time was over" if len(raced) < len(racing) else ""
    yield from ("", f"{len(raced)} of {len(pairs(()))} pairs{over}.")
    if len(raced) < len(racing) and asked.minutes is None:
        failures.append(f"only {len(raced)} of {len(racing)} pairs were raced")


NAMES: Mapping[str, Callable[[str], bool]] = {
    "runs": lambda name: name in {scenario.name for scenario in SCENARIOS},
    "bugs": lambda name: name in {bug.name for bug in bugs()},
    "fuzz": lambda part: part == "HTTP" or any(part in name for name in PROPERTIES),
    "faults": lambda _: False,
    "races": lambda name: set(name.split(PAIRED)) <= {operation.name for operation in OPERATIONS},
}
"""Whether a section has something that `--only` may name."""
SECTIONS: Mapping[str, Section] = {"runs": _runs, "bugs": _bugs, "fuzz": _fuzz, "faults": _faults, "races": _races}


if __name__ == "__main__":
    # Ended by a signal, it ends what it started, as after an error.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    sys.exit(main())
