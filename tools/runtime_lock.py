"""The part of requirements.lock that some packages need, hashes included, for an image without what only tests need.

python tools/runtime_lock.py            # what the platform needs, with the extras of EXTRAS
python tools/runtime_lock.py hatchling  # what a package of the lock needs
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

EXTRAS = ("server", "liveops", "postgres")
"""Of the platform, in the image: it runs the ingest server, judges games, and has its stores in PostgreSQL."""

_PIN = re.compile(r"^([a-z0-9][a-z0-9._-]*)==")
# One parent follows the mark, several are below it.
_PARENT = re.compile(r"^    # (?:via|  )\s*([A-Za-z0-9][A-Za-z0-9._-]*)")


class NotLocked(Exception):
    """A package that the lock does not have."""


def part_of(lock: str, roots: Iterable[str]) -> str:
    """The pins of `roots` and of all that they need, as the lock has them.

    The lock names after each pin what needs it, whatever the extra or the version of Python; so a package may be in the
    part that is needed on another system only, and pip leaves it out by its marker. Raises NotLocked.
    """
    pins = _pins(lock)
    wanted = {_normal(root) for root in roots}
    if missing := sorted(wanted - {name for name, _, _ in pins}):
        raise NotLocked(f"requirements.lock has no {', '.join(missing)}.")
    while more := {name for name, parents, _ in pins if parents & wanted} - wanted:
        wanted |= more
    return "".join(text for name, _, text in pins if name in wanted)


def needed_by_the_platform(pyproject: str) -> list[str]:
    """The names among its dependencies, and among those of EXTRAS."""
    project = tomllib.loads(pyproject)["project"]
    extras = project["optional-dependencies"]
    listed = [*project["dependencies"], *(each for extra in EXTRAS for each in extras[extra])]
    return [re.split(r"[^A-Za-z0-9._-]", each, maxsplit=1)[0] for each in listed]


def _pins(lock: str) -> list[tuple[str, set[str], str]]:
    """(package, what needs it, its lines) of each pin; a package has one for each range of Pythons."""
    found: list[tuple[str, set[str], str]] = []
    for line in lock.splitlines(keepends=True):
        if pin := _PIN.match(line):
            found.append((_normal(pin.group(1)), set(), line))
        elif found:
            name, parents, text = found[-1]
            if parent := _PARENT.match(line):
                parents.add(_normal(parent.group(1)))
            found[-1] = (name, parents, text + line)
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    named = sys.argv[1:] or needed_by_the_platform((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    print(part_of((ROOT / "requirements.lock").read_text(encoding="utf-8"), named), end="")
