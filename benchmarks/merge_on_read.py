"""What does merge on read save in writing, cost in reading, and when is it moved?  python -m benchmarks.merge_on_read

Data: seeded records of some 364 bytes, 2,000,000 by default, in the order of 2,000 days; batches of 50,000 changes
that meet every day, so that a MERGE finds something in every file. 5 % of the changes are inserts, 1 % deletions.
Writes: seconds of each batch until it can be read, batch after batch in one lake a way: the append to the changeset,
copy-on-write MERGE, MERGE with deletion vectors, full overwrite, delta-rs's merge; the ways by hand have a plain table
without versions of columns. Merge on read also moves its changes into the base once, which is spread over --every
batches (the default is what rematerialize.max_pending_rows lets wait).
Reads: the view with 0 to 800,000 changes waiting by each strategy, made and read, against the base alone, in turns; all
columns, and one counted; the same view read again; one key without a JVM. Moves: the three methods on bases of four
sizes, in sixteen partitions; changes meet all of them, or one; and where their curves cross.
The first batch of each way, and the first round of all else, pay for first use and are in no median.
Prints tables and targets. Writes merge_on_read_{writes,reads,moves}.csv (every round), merge_on_read.png, .html, .md;
--page puts the last one into a page. Fails if two ways leave other rows, or two strategies show others (with most
changes waiting). Nothing begins after --minutes, which begin after the warm-up; rounds come in turn, so that curves
are whole early. An interrupted run, or one whose time was over, is resumed by the same command, a way of writing from
its first batch. Other options are another folder. Compare within one run, never seconds across machines.
--peers: Hudi, Iceberg and Paimon too, on the same changes, each in an environment and a process of its own; a finished
run is added to. One that cannot be had here has a row that says why. Writes merge_on_read_peers.csv and .json.
--quick: a hundredth of the rows, two rounds, fewer sizes, some three minutes with the warm-up.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from benchmarks.budget import Budget, add_budget_option
from benchmarks.cells import Cells, Progress, Run, add_options, console, open_run
from benchmarks.lakes import mark_ready, ready, restore
from benchmarks.merge_on_read_reads import WHOLE, base_rows, read, seconds_of_read
from benchmarks.merge_on_read_report import MOVE, SPREADS, Asked, figures, save, show
from benchmarks.merge_on_read_ways import (
    MERGE_ON_READ,
    WAYS,
    Stage,
    build,
    is_product,
    land,
    make_staged,
    moved,
    seen,
    set_up,
    stage,
    table_of,
)
from benchmarks.mutation import spark_session
from benchmarks.mutation_ways import rewritten
from benchmarks.pages import add_page_option, publish
from benchmarks.peers.environment import KINDS
from benchmarks.peers.measure import Notes, Peers
from benchmarks.peers.report import keys as peer_keys
from benchmarks.peers.report import table as peer_table
from benchmarks.perftest.data import ENTITY, PARTITIONED, Generated, Records
from benchmarks.perftest.one import summed_up
from engagement_platform.lake import log
from engagement_platform.pipelines.profiles.entity import Entity
from engagement_platform.pipelines.profiles.rematerialize import METHODS
from engagement_platform.pipelines.profiles.view import STRATEGIES, view
from engagement_platform.settings import RematerializeMethod

Kept = tuple[Cells, Cells, Cells]
"""Writes, reads, moves."""

ENVIRONMENTS = Path("artifacts") / "peers"
NAME, COMMAND = "merge_on_read", "make bench-merge-on-read ARGS=--page=docs/merge_on_read.md"

# With one to two minutes for Spark and the warm-up a quarter of an hour, and three minutes.
MINUTES, QUICK_MINUTES = 13.0, 1.75
# Of the time: a first round of reads and moves is more worth than the last ways of writing.
WRITES_SHARE, READS_SHARE = 0.4, 0.75


@dataclass(frozen=True)
class Bench:
    """One set of options: where its lakes are, and what is kept."""

    spark: SparkSession
    folder: Path
    asked: Asked
    kept: Kept
    progress: Progress
    budget: Budget

    def everything(self) -> None:
        """As much as the time allows: ways of writing, then round by round; what was put off comes last."""
        self.writes(WRITES_SHARE)
        for round_ in map(str, range(1, self.asked.rounds + 1)):
            self.reads(round_, READS_SHARE)
            self.moves(round_)
            self.reads(round_, 1.0)
        self.writes(1.0)

    def writes(self, share: float) -> None:
        """Every way, from its first batch; one that is measured to its end is not run again."""
        for way in WAYS:
            missing = [key for key in self.asked.writes if key[0] == way and key not in self.kept[0]]
            if missing and self.budget.left(share):
                self._write(way, len(missing))

    def _write(self, way: str, cells: int) -> None:
        """All batches of a way; its figures are kept when its rows are found to be right."""
        records = self._records(self.asked.rows, 0)
        at = self._copy(f"way-{way.replace(' ', '-')}", self._base(self.asked.rows, flat=True))
        figures: dict[str, dict[str, float]] = {}
        uri = table_of(at, way)
        set_up(at, way)
        for batch in range(self.asked.batches if is_product(way) else self.asked.rounds):
            rows = records.changes(batch)
            make_staged(at, rows, batch)
            before, began = _version(uri), time.monotonic()
            WAYS[way](at, rows, batch)
            seconds = time.monotonic() - began
            files, size = rewritten(uri, before)
            figures[str(batch)] = {"seconds": seconds, "bytes": size, "files_replaced": files}
            if batch + 1 == self.asked.rounds:
                self._agree("after the rounds", seen(at, way))
        if is_product(way):
            self._agree("at the end", seen(at, way))
            figures[MOVE] = _move(at)
            self._agree("at the end", seen(at, way))
        for batch_, of in figures.items():
            self.kept[0].add((way, batch_), **of)
        shutil.rmtree(at.settings.home)
        every = "  ".join(f"{of['seconds']:.2f}" for of in figures.values())
        self.progress.step(f"write  {way:27}  {every} s", cells)

    def reads(self, round_: str, share: float) -> None:
        """One round of the view against the base, in turns, for each number of changes that wait."""
        for pending in self.asked.pending:
            here = (str(pending), round_)
            missing = [key for key in self.asked.reads if key[2:] == here and key not in self.kept[1]]
            if not missing or not self.budget.left(share):
                continue
            at = self._copy(f"pending-{pending}", self._base(self.asked.rows, flat=True))
            batch = min(self.asked.changes, pending)
            records = self._records(self.asked.rows, 0, changes=max(1, batch))
            for n in range(pending // batch if batch else 0):
                land(at, records, n)
            read(base_rows(at), WHOLE)
            when = f"read with {pending} waiting"
            if pending == max(self.asked.pending) and when not in self._agreed():
                self._agree(when, *(view(at.lake, ENTITY, strategy=strategy).rows for strategy in STRATEGIES))
            for method, columns, _, _ in missing:
                seconds = seconds_of_read(at, method, columns)
                self.kept[1].add((method, columns, pending, round_), seconds=seconds)
                told = f"read   {pending:>9,} waiting, round {round_}  {method:23}  {columns:8}  {seconds:.3f} s"
                self.progress.step(told)
            shutil.rmtree(at.settings.home)

    def moves(self, round_: str) -> None:
        """One round of every method on every size of base, each from the same tables."""
        methods: dict[str, RematerializeMethod] = {name: name for name in METHODS if name != "deletion_vectors"}
        for key in self.asked.moves:
            if key[3] != round_ or key in self.kept[2] or not self.budget.left():
                continue
            method, spread, size, _ = key
            regions = SPREADS[spread]
            # A folder of its own: Delta remembers tables by their paths.
            at = self._copy(
                "-".join(key).replace(" ", "-"), self._base(int(size), flat=False), PARTITIONED, methods[method]
            )
            land(at, self._records(int(size), 0, changes=self.asked.moved, regions=regions), 0)
            uri = at.entity.base.uri(at.settings.lake)
            files = DeltaTable(uri, version=_version(uri)).get_add_actions(flatten=True)
            held = sum(pa.table(files).column("size_bytes").to_pylist())
            figures = _move(at)
            self._agree(f"{spread}, {size} rows moved", seen(at, MERGE_ON_READ))
            self.kept[2].add(key, **figures, base_bytes=held)
            shutil.rmtree(at.settings.home)
            told = f"move   {int(size):>9,} rows, {spread:11}, round {round_}  {method:13}  {figures['seconds']:.2f} s"
            self.progress.step(told)

    def _records(self, rows: int, batches: int, *, changes: int | None = None, regions: int = 16) -> Records:
        return Records(
            Generated(
                base_rows=rows, changes=changes or self.asked.changes, batches=batches, dates=self.asked.dates,
                regions=regions, seed=self.asked.seed,
            )
        )  # fmt: skip

    def _base(self, rows: int, *, flat: bool) -> Path:
        """Tables that rounds start from, built once."""
        home = self.folder / f"{'whole' if flat else 'partitioned'}-{rows}"
        if not ready(home):
            build(home, self._records(rows, 0), flat=flat)
            mark_ready(home)
        return home

    def _copy(
        self,
        name: str,
        base: Path,
        entity: Entity = ENTITY,
        method: RematerializeMethod = "overwrite",
    ) -> Stage:
        """A lake of its own with the same files; what an interruption left of it is removed."""
        home = self.folder / name
        shutil.rmtree(home, ignore_errors=True)
        restore(base, home)
        return stage(self.spark, home, entity, method)

    def peers(self, cells: Cells, notes: Notes) -> Peers:
        """Formats that are not Delta, ready to be measured."""

        def agree(when: str, folder: Path) -> None:
            self._agree(when, self.spark.read.parquet(str(folder)).select(*ENTITY.view_columns))

        def known(when: str) -> bool:
            return when in self._agreed()

        at = self.folder / "peers"
        return Peers(at, self.asked, cells, self.progress, ENVIRONMENTS, agree, known, notes)

    def _agree(self, when: str, *frames: DataFrame) -> None:
        """The same rows in each, and as whoever was here first, also before an interruption."""
        known = self._agreed()
        for rows in frames:
            found = list(summed_up(rows))
            assert known.setdefault(when, found) == found, f"other rows {when}: {found}, and {known[when]} before"
        (self.folder / "agreed.json").write_text(json.dumps(known))

    def _agreed(self) -> dict[str, list[object]]:
        """When -> count and sum."""
        file = self.folder / "agreed.json"
        return json.loads(file.read_text()) if file.exists() else {}


def _move(at: Stage) -> dict[str, float]:
    uri = at.entity.base.uri(at.settings.lake)
    before, took = _version(uri), moved(at)
    files, size = rewritten(uri, before)
    return {"seconds": sum(took.values()), "bytes": size, "files_replaced": files}


def _version(uri: str) -> int:
    found = log.version(uri)
    assert found is not None, f"there is no table at {uri}"
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, measure what is not measured yet, print, save."""
    options = parsed(arguments)
    # Not part of what names the run: peers can be added to one, another call may take longer.
    with_peers, page, minutes = (vars(options).pop(name) for name in ("peers", "page", "minutes"))
    run = open_run(NAME, options)
    asked = Asked.of(options)
    kept, peers = cells(run), peer_cells(run)
    whole = measure(run, asked, kept, minutes, peers if with_peers else None)
    notes = Notes(run).read()
    beside = [peer_table(asked, *kept[:2], peers, notes)] if notes else []
    show(console, asked, *kept, beside)
    save(run, asked, *kept, beside)
    publish(NAME, COMMAND, figures(run, asked, *kept, beside), run, page, picture="merge_on_read.png")
    console.print(
        f"Every round: {run.folder}/merge_on_read_*.csv. Plot, page: merge_on_read.png, .html, .md beside them"
    )
    if whole:
        run.close()
    else:
        there = sum(map(len, kept))
        console.print(f"The time is over: {there} of {asked.total} figures. The same command goes on.", style="bold")


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Options, with what --quick makes of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of the base (default 2000000)")
    parser.add_argument("--changes", type=int, default=50_000, help="changes in a batch (default 50000)")
    parser.add_argument("--dates", type=int, default=2_000, help="days that rows and batches span (default 2000)")
    parser.add_argument("--rounds", type=int, default=3, help="batches of each way, and of all else (default 3)")
    parser.add_argument("--batches", type=int, default=10, help="batches of merge on read (default 10)")
    parser.add_argument("--every", type=int, default=10, help="batches between two moves (default 10)")
    pending = [0, 100_000, 200_000, 400_000, 800_000]
    parser.add_argument(
        "--pending", type=int, nargs="+", default=pending, help=f"changes that wait (default {pending})"
    )
    sizes = "rows of the bases that are moved into (default: --rows / 8, 4, 2, 1)"
    parser.add_argument("--sizes", type=int, nargs="+", help=sizes)
    parser.add_argument("--moved", type=int, default=10_000, help="changes that are moved into them (default 10000)")
    parser.add_argument("--seed", type=int, default=20201120, help="seed of the data (default 20201120)")
    parser.add_argument("--quick", action="store_true", help="a hundredth of the rows, two rounds, 3 minutes")
    parser.add_argument("--peers", action="store_true", help="Hudi, Iceberg and Paimon too")
    add_options(parser, NAME)
    add_budget_option(parser, MINUTES)
    add_page_option(parser)
    options = parser.parse_args(arguments)
    options.sizes = options.sizes or [options.rows // part for part in (8, 4, 2, 1)]
    if options.quick:
        for name in ("rows", "changes", "moved"):
            setattr(options, name, max(1, getattr(options, name) // 100))
        options.pending = [one // 100 for one in options.pending[::2]]
        options.sizes = [max(1, one // 100) for one in options.sizes[1::2]]
        options.minutes = min(options.minutes or QUICK_MINUTES, QUICK_MINUTES)
        options.rounds, options.batches = min(options.rounds, 2), min(options.batches, 3)
    if options.batches < options.rounds:
        parser.error("--batches must be at least --rounds")
    if any(one % min(options.changes, one) for one in options.pending if one):
        parser.error("--pending must be whole batches of --changes, or less than one")
    return options


def cells(run: Run) -> Kept:
    """What is measured so far."""
    written = ("seconds", "bytes", "files_replaced")
    return (
        run.cells("merge_on_read_writes", ("way", "batch"), written),
        run.cells("merge_on_read_reads", ("method", "columns", "pending", "round"), ("seconds",)),
        run.cells("merge_on_read_moves", ("method", "spread", "rows", "round"), (*written, "base_bytes")),
    )


def peer_cells(run: Run) -> Cells:
    """What is measured of the peers so far."""
    return run.cells("merge_on_read_peers", ("peer", "step", "n"), ("seconds", "bytes"))


def measure(run: Run, asked: Asked, kept: Kept, minutes: float, peers: Cells | None = None) -> bool:
    """The cells that are missing, and whether all are there now; no Spark is started when none is missing."""
    wanted = (asked.writes, asked.reads, asked.moves)
    done = [sum(key in found for key in keys) for keys, found in zip(wanted, kept, strict=True)]
    others = [] if peers is None else peer_keys(asked, [kind.name for kind in KINDS])
    there = 0 if peers is None else sum(key in peers for key in others)
    if sum(done) == sum(map(len, wanted)) and there == len(others):
        return True
    scratch = Path(tempfile.mkdtemp(prefix="bench-merge-on-read-"))
    try:
        with spark_session(scratch) as spark:
            if sum(done) < asked.total:
                _warm_up(spark, scratch).everything()
            progress = Progress(asked.total + len(others), sum(done) + there)
            full = _full(run, spark, asked, kept, progress, Budget(minutes))
            full.everything()
            if peers is not None:
                full.peers(peers, Notes(run)).measure()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return all(key in found for keys, found in zip(wanted, kept, strict=True) for key in keys)


def _full(run: Run, spark: SparkSession, asked: Asked, kept: Kept, progress: Progress, budget: Budget) -> Bench:
    run.tables.mkdir(parents=True, exist_ok=True)
    return Bench(spark, run.tables, asked, kept, progress, budget)


def _warm_up(spark: SparkSession, scratch: Path) -> Bench:
    """All of it on few rows, told of but not kept: the first of each kind takes seconds to compile."""
    console.print("Warm-up, not counted", style="dim")
    folder = scratch / "warm-up"
    small = Asked(rows=3_000, changes=200, dates=50, rounds=1, batches=2, every=10, pending=(200,), sizes=(2_000,),
                  moved=100, seed=0)  # fmt: skip
    found = cells(Run(folder, {}))
    return Bench(spark, folder, small, found, Progress(small.total), Budget(0))


if __name__ == "__main__":
    main()
