"""How long does a health check take, as somebody at a prompt waits for it?  python -m benchmarks.doctor --files 10000

Data: a Data Table of 48 organizations whose log names so many files, a hundred to a commit, with bounds of every file,
checkpoints every hundred commits, and the files themselves, empty, in their folders; no rows are ever read.
Measures `engagement-platform doctor PATH --json` in a process of its own each round: seconds from start to end, seconds
of processor time, and by how much both exceed those of `engagement-platform --help`, which only starts. A round that is
not counted fills the byte-code cache. Prints medians and the range. Fails where the command names other files than
there are, or opens a JVM.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date, timedelta
from functools import partial
from pathlib import Path

from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction
from rich.console import Console
from rich.table import Table as Shown

from engagement_platform.lake import store_tables
from engagement_platform.lake.engagement import data_table

DATA = data_table("organization")
FIRST = date(2026, 1, 1)
ORGANIZATIONS, A_COMMIT = 48, 100


def seeded(uri: str, files: int) -> None:
    """A table whose log names so many files, of a few MB each."""
    store_tables.create(uri, DATA)
    found = DeltaTable(uri)
    schema, columns = found.schema(), list(found.metadata().partition_columns)
    for start in range(0, files, A_COMMIT):
        adds: list[AddAction | RemoveAction] = [_add(number) for number in range(start, min(files, start + A_COMMIT))]
        for add in adds:
            place = Path(uri, add.path)
            place.parent.mkdir(exist_ok=True)
            place.touch()
        found.create_write_transaction(adds, "append", schema, columns)


def _add(number: int) -> AddAction:
    name, day = f"org-{number % ORGANIZATIONS}", FIRST + timedelta(days=number // ORGANIZATIONS)
    bounds = {"engagement_date": day.isoformat(), "engagement_id": f"e-{number}"}
    nulls = dict.fromkeys(bounds, 0)
    stats = {"numRecords": 1000, "minValues": bounds, "maxValues": bounds, "nullCount": nulls}
    path = f"organization_id={name}/part-{number:06}.snappy.parquet"
    return AddAction(path, 3 * 1024 * 1024, {"organization_id": name}, 0, True, json.dumps(stats))


def called(home: Path, *words: str) -> tuple[float, float, str]:
    """Seconds and processor seconds of one call of the command line, and what it printed."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    environment = {**os.environ, "ENGAGEMENT_PLATFORM_HOME": str(home), "PYTHONPYCACHEPREFIX": str(home / "cache")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "engagement_platform.cli", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1) or done.stderr:
        raise SystemExit(done.stderr or f"{words} ended with {done.returncode}")
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def main() -> None:
    """Seed, call, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = partial(parser.add_argument, type=int)
    add("--files", default=10_000)
    add("--rounds", default=10)
    asked = parser.parse_args()
    shown = Shown("call", "median", "lowest", "highest", "processor", title=f"seconds; {asked.files:,} files")
    with tempfile.TemporaryDirectory(prefix="bench-doctor-") as home:
        uri = f"{home}/table"
        seeded(uri, asked.files)
        doctor = ("doctor", uri, "--json")
        told = json.loads(called(Path(home), *doctor)[2])
        if [table["files"] for table in told["tables"]] != [asked.files]:
            raise SystemExit("the command names other files than there are")
        for words in (("--help",), doctor):
            rounds = [called(Path(home), *words)[:2] for _ in range(asked.rounds)]
            wall, processor = zip(*rounds, strict=True)
            figures = (statistics.median(wall), min(wall), max(wall), statistics.median(processor))
            shown.add_row(" ".join(word for word in words if word != uri), *(f"{one:.2f}" for one in figures))
    Console(width=100).print(shown)


if __name__ == "__main__":
    main()
