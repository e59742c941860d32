"""python -m engagement_platform_tests.conformance [--only NAME …]: plants bugs, prints a table; 1 if one survives."""

from __future__ import annotations

import argparse
import sys

from engagement_platform_tests.conformance.planted import bugs, plant


def main() -> int:
    """Run what was asked for; the exit status."""
    parser = argparse.ArgumentParser(prog="make conformance", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names of planted bugs; all without it")
    asked = parser.parse_args()
    chosen = [bug for bug in bugs() if not asked.only or bug.name in asked.only]
    survived = 0
    print("| planted bug | caught | seconds |\n|---|---|---|", flush=True)
    for outcome in plant(chosen):
        print(f"| {outcome.bug.name} | {'yes' if outcome.caught else 'NO'} | {outcome.seconds:.0f} |", flush=True)
        if not outcome.caught:
            survived += 1
            print(f"pytest {outcome.bug.test} ended with {outcome.status}:\n{outcome.output}", file=sys.stderr)
    return min(survived, 1)


if __name__ == "__main__":
    sys.exit(main())
