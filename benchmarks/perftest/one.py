"""One permutation in a process of its own: opens Spark, stops the time of one read or write, checks the rows after it.

Gets its work through stdin, since everyone on the machine sees a command line. Which permutations there are, and
keeping the figures, is `run`.  python -m benchmarks.perftest.one
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from dataclasses import replace as changed
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.perftest.spec import Permutation, Spec, entity_of, parse, settings_of
from engagement_platform.engine.model import Transaction
from engagement_platform.lake.contract import Table
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.overwrite import replace_all
from engagement_platform.lake.session import spark_session
from engagement_platform.pipelines.profiles.entity import Entity
from engagement_platform.pipelines.profiles.snapshot import Snapshot, snapshot
from engagement_platform.pipelines.profiles.view import view
from engagement_platform.settings import Settings

MARK = "measured: "
"""Begins the line of figures; Spark may print others."""


@dataclass(frozen=True)
class Stopped:
    """What the stopwatch says, and what was found. All methods must find the same rows."""

    seconds: float
    """From asking for the view until its rows are shown, or committed."""
    start_s: float
    """Before that: until Spark was there."""
    rows: int
    checksum: str
    pending_rows: int
    broadcast: bool


@dataclass(frozen=True)
class Work:
    """All that the process gets."""

    spec_text: str
    root: str
    permutation: Permutation
    changeset_version: int
    base_version: int
    scratch: str
    """Name below `perftest/` of the table that a write makes."""

    def to_json(self) -> str:
        """For stdin; with secrets."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Work:
        """From stdin."""
        fields = json.loads(text)
        return cls(**{**fields, "permutation": Permutation(**fields["permutation"])})


def scratch_table(entity: Entity, name: str) -> Table:
    """Where a write goes: the base's columns in a table of its own."""
    return changed(entity.base, key=("perftest", name), description="Written by a performance test, and removed.")


def stopped(lake: Lake, entity: Entity, work: Work, at: Snapshot, show_rows: int, start_s: float = 0.0) -> Stopped:
    """Do it once and stop the time; then count and sum up the rows, which costs another pass."""
    asked = work.permutation
    began = time.monotonic()
    seen = view(lake, entity, strategy=asked.method, at=at)
    if asked.operation == "read":
        found = seen.rows.where(asked.query)
        # What is shown is somebody's data: it is made, as the source made it, and looked at by nobody.
        with redirect_stdout(io.StringIO()):
            found.show(show_rows)
        seconds = time.monotonic() - began
    else:
        table = scratch_table(entity, work.scratch)
        replace_all(lake, seen.state, table, Transaction(f"perftest/{work.scratch}", 0))
        seconds = time.monotonic() - began
        found = lake.read(table).where("present").select(*entity.view_columns)
    return Stopped(seconds, start_s, *summed_up(found), at.pending_rows, seen.broadcast)


def summed_up(rows: DataFrame) -> tuple[int, str]:
    """How many rows, and a sum over the hash of each: the same for the same rows in any order."""
    hashed = F.xxhash64(*rows.columns).cast("decimal(38,0)")
    [(count, total)] = rows.agg(F.count("*"), F.sum(hashed)).collect()
    return int(count), str(total or 0)


def measure(work: Work, spec: Spec) -> Stopped:
    """The permutation, in a Spark that is opened for it."""
    settings = settings_of(spec, Settings(), work.root)
    entity = entity_of(spec, settings)
    at = snapshot(work.root, entity, changeset_version=work.changeset_version, base_version=work.base_version)
    began = time.monotonic()
    with spark_session(settings, "perftest") as spark:
        started = time.monotonic() - began
        return stopped(Lake(spark, settings), entity, work, at, spec.show_rows, started)


def figures(line: str) -> Mapping[str, Any] | None:
    """The figures in a line of output; None for any other line."""
    found: Mapping[str, Any] = json.loads(line.removeprefix(MARK)) if line.startswith(MARK) else {}
    return found or None


def main() -> None:
    """Hear, measure, tell."""
    work = Work.from_json(sys.stdin.read())
    found = measure(work, parse(work.spec_text))
    print(f"\n{MARK}{json.dumps(asdict(found))}", flush=True)


if __name__ == "__main__":
    main()
