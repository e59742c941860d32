"""Runs a performance test: makes its rows, starts a process for each permutation that has no figures yet, keeps them.

What is measured is `one`; the ranking at the end is `report`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from deltalake import DeltaTable
from rich.console import Console

from benchmarks.perftest.data import Records, fill
from benchmarks.perftest.one import Work, figures, scratch_table
from benchmarks.perftest.report import rankings, save_chart, table, words
from benchmarks.perftest.spec import (
    Permutation,
    Spec,
    digest,
    entity_of,
    parameters,
    permutations,
    read_spec,
    redacted,
    secrets,
    settings_of,
)
from benchmarks.perftest.timer import TIMER, Row, add, permutation_of, rows_of
from engagement_platform.errors import PlatformError
from engagement_platform.lake import log
from engagement_platform.pipelines.profiles.entity import Entity
from engagement_platform.pipelines.profiles.snapshot import Snapshot, snapshot
from engagement_platform.pipelines.profiles.view import choose
from engagement_platform.settings import Settings

FRESH = (sys.executable, "-m", "benchmarks.perftest.one")
"""Measures one permutation: work on stdin, figures on stdout."""

Say = Callable[[str], None]


class NothingToMeasure(PlatformError):
    """The lake of a performance test has no profiles."""

    def __init__(self, lake: str, table: str) -> None:
        super().__init__(
            f"There is no table {table} under {lake}, so there is nothing to measure. Nothing was started. Run "
            "`engagement-platform run ingest-profile-changes --until-idle` first, or leave `lake` out of the spec: "
            "then rows are made."
        )


class PermutationFailed(PlatformError):
    """The process of one permutation ended without figures."""

    def __init__(self, permutation: Permutation, why: str, log_file: Path) -> None:
        self.permutation = permutation
        super().__init__(
            f"{permutation} failed: {why}. Its output is in {log_file}. All figures before it are kept; the same "
            "command goes on with this one."
        )


class MethodsDiffer(PlatformError):
    """Two methods found other rows in the same tables."""

    def __init__(self, first: Permutation, other: Permutation, rows: Sequence[int]) -> None:
        counts = " and ".join(f"{count:,}" for count in rows)
        super().__init__(
            f"{first.method} and {other.method} did not find the same rows ({other.operation} {other.query!r}: "
            f"{counts} of them, or other values). Their times cannot be compared; nothing more was measured. With a "
            "query that says the same each time this is a defect: please report it."
        )


def measure_spec(file: Path, out: Path | None, say: Say) -> None:
    """The command: measure what a spec's file asks for and has no figures yet; print table and ranking, save the chart.

    out: folder of the chart and the log of a failure; None: one in the home folder.
    """
    settings = Settings()
    spec, text = read_spec(file)
    test = prepare(spec, text, settings)
    folder = out or settings.home.expanduser() / "perftest" / test.perftest_id
    say(f"{spec.name} ({test.perftest_id}): {test.at.pending_rows:,} changes wait in {test.root}")
    run(test, folder, say)
    found = rankings(test.rows)
    console = Console(width=110, highlight=False)
    for ranking in found:
        console.print(table(ranking), markup=False)
        for line in words(ranking):
            say(line)
    save_chart(found, folder / "perftest.png")
    say(f"Every run: engagement-platform read {TIMER.name}. Chart: {folder / 'perftest.png'}")


@dataclass(frozen=True)
class PerfTest:
    """A performance test as it stands: what to measure, where, and under which name figures are kept."""

    spec: Spec
    text: str
    """Of the spec, as a fresh process gets it. Holds secrets."""
    settings: Settings
    """The platform's; the timer table is in its lake."""
    root: str
    entity: Entity
    at: Snapshot
    perftest_id: str
    parameters: str
    """As JSON, without secrets."""

    @property
    def rows(self) -> list[Row]:
        """What was measured so far, of the permutations that the spec has now."""
        wanted = set(permutations(self.spec))
        return [row for row in rows_of(self.settings.lake, self.perftest_id) if permutation_of(row) in wanted]

    @property
    def missing(self) -> list[Permutation]:
        """What is not measured yet, in order."""
        done = set(map(permutation_of, self.rows))
        return [one for one in permutations(self.spec) if one not in done]


def prepare(spec: Spec, text: str, settings: Settings) -> PerfTest:
    """Make the rows, where they are made, and pin the versions that every permutation reads. Starts no Spark.

    A lake that changes between two calls is another test, since other versions are read. Raises NothingToMeasure,
    and PlatformError for a method that is not valid.
    """
    root = _root(spec, settings)
    set_up = settings_of(spec, settings, root)
    entity = entity_of(spec, set_up)
    if spec.rows is not None:
        fill(root, Records(spec.rows), entity)
    for needed in (entity.changeset, entity.base):
        if log.version(needed.uri(root)) is None:
            raise NothingToMeasure(root, needed.name)
    at = snapshot(root, entity)
    for method in spec.methods:
        choose(entity, method, broadcast=True, taken=at)
    versions = {entity.changeset.name: at.changeset_version, entity.base.name: at.base_version}
    asked = parameters(spec, set_up, versions)
    hidden = secrets(spec, settings)
    return PerfTest(spec, text, settings, root, entity, at, digest(asked), redacted(json.dumps(asked), hidden))


def _root(spec: Spec, settings: Settings) -> str:
    if spec.rows is None:
        assert spec.lake is not None
        return settings.model_copy(update={"lake_uri": spec.lake}).lake
    made = digest(spec.rows.model_dump(mode="json"))
    return str(settings.home.expanduser().absolute() / "perftest" / f"rows-{made}")


def run(test: PerfTest, folder: Path, say: Say, command: Sequence[str] = FRESH) -> None:
    """Measure what is missing, each in a fresh process; a row is in the table before the next one begins.

    folder: gets the output of a failed process. command: starts the process. Raises PermutationFailed, MethodsDiffer.
    """
    total, missing, began = sum(1 for _ in permutations(test.spec)), test.missing, time.monotonic()
    if len(missing) < total:
        say(f"{total - len(missing)} of {total} permutations are measured already")
    for n, permutation in enumerate(missing, start=1):
        row = _measured(test, permutation, folder, command)
        _compare(test.rows, row)
        add(test.settings.lake, row)
        left = (time.monotonic() - began) / n * (len(missing) - n)
        done = total - len(missing) + n
        say(f"[{done:>3}/{total}] {permutation}  {row['seconds']:.2f} s  (about {left / 60:.1f} min left)")


def _measured(test: PerfTest, permutation: Permutation, folder: Path, command: Sequence[str]) -> Row:
    """The row of one permutation."""
    scratch = f"written-{uuid4().hex}"
    versions = (test.at.changeset_version, test.at.base_version)
    work = Work(test.text, test.root, permutation, *versions, scratch)
    started = datetime.now(UTC)
    hidden = secrets(test.spec, test.settings)
    seconds = test.spec.timeout.total_seconds()
    # With it pyspark would take a server that is warm.
    env = {key: value for key, value in os.environ.items() if key not in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")}
    try:
        done = subprocess.run(
            command, input=work.to_json(), env=env, timeout=seconds, check=False, capture_output=True, text=True,
            errors="replace",
        )  # fmt: skip
        output, why = done.stdout + done.stderr, f"exit status {done.returncode}"
    except subprocess.TimeoutExpired as error:
        parts = (error.stdout, error.stderr)
        output = "".join(part.decode(errors="replace") if isinstance(part, bytes) else part or "" for part in parts)
        done, why = None, f"not ready after {seconds:.0f} s"
    finally:
        _remove(test, scratch)
    measured = next((found for line in reversed(output.splitlines()) if (found := figures(line))), None)
    if done is None or done.returncode or measured is None:
        shown = redacted(output, hidden)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "failed.log"
        file.write_text(shown, encoding="utf-8")
        last = next((line.strip() for line in reversed(shown.splitlines()) if line.strip()), "it printed nothing")
        raise PermutationFailed(permutation, f"{why}, {last[:300]}", file)
    return {
        "perftest_id": test.perftest_id,
        "name": test.spec.name,
        **vars(permutation),
        **measured,
        "started_ts": started,
        "parameters": test.parameters,
    }


def _remove(test: PerfTest, scratch: str) -> None:
    """Take away what a write has written."""
    uri = scratch_table(test.entity, scratch).uri(test.root)
    if "://" not in uri:
        shutil.rmtree(uri, ignore_errors=True)
    elif log.version(uri) is not None:
        # A store has no folders to remove; the log of an empty table stays behind.
        table = DeltaTable(log.storage_uri(uri))
        table.delete()
        table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


def _compare(rows: Sequence[Row], row: Row) -> None:
    for other in rows:
        same = (other["operation"], other["query"]) == (row["operation"], row["query"])
        if same and (other["rows"], other["checksum"]) != (row["rows"], row["checksum"]):
            raise MethodsDiffer(permutation_of(other), permutation_of(row), (other["rows"], row["rows"]))
