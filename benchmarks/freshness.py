"""How long until a change can be read, at which rate of changes?  python -m benchmarks.freshness

Data: sample changes of profiles, produced to a broker of its own at each of --rates for --seconds. Meanwhile
ingest-profile-changes runs again and again on an open session, as on a warm Spark server, and a reader without a JVM
asks the view for probes: profiles with ids of their own, ten a second among the changes, each looked for until it is
there. rematerialize-profile moves what waits every --moves seconds, beside all that.
Measures, of each probe, seconds from handing it to the producer to the end of the read that shows it. The reader is
part of that, and takes its share of the machine. Where the second half of the probes waits longer than the first, a
backlog grows: the rate is beyond what the machine holds.
Prints p50, p95 and most for each rate; writes freshness.csv, freshness_probes.csv (every probe), freshness.png and .md;
--page puts the last one into a page. An interrupted run is resumed by the same command, a rate from its beginning.
Takes --seconds for each rate, --patience more for those that the machine does not hold. Compare within one run, never
seconds across machines.
--quick: two rates, a quarter of a minute each.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import SparkSession
from rich.table import Table as RichTable

from benchmarks.cells import Cells, Progress, Run, add_options, console, open_run, right_aligned
from benchmarks.mutation import spark_session
from benchmarks.mutation_ways import configure
from benchmarks.pages import add_page_option, markdown, publish
from engagement_platform.engine.drain import DrainPolicy, drain
from engagement_platform.engine.job import MicroBatchJob
from engagement_platform.lake import log
from engagement_platform.lake.jars import resolve_jars
from engagement_platform.lake.session import session_conf
from engagement_platform.local.content import ProfileChanges, compact
from engagement_platform.local.kafka import EmbeddedKafka
from engagement_platform.local.ports import free_ports
from engagement_platform.local.producing import produce
from engagement_platform.local.traffic import Message
from engagement_platform.pipelines.jobs import (
    INGEST_PROFILE_CHANGES,
    REMATERIALIZE_PROFILE,
    build_job,
    open_stores,
    parts_of,
)
from engagement_platform.pipelines.profiles.entity import profile
from engagement_platform.pipelines.profiles.point_read import read_keys
from engagement_platform.pipelines.profiles.snapshot import snapshot
from engagement_platform.settings import KafkaSettings, Settings, SparkSettings

TARGET_RATE, TARGET_S = 12_000, 60.0
"""Changes a minute, and p95 from produced to visible."""

PROBES_A_SECOND = 10
# A reader that asked without a pause would take a core of its own.
_PAUSE_S = 0.2
NAME, COMMAND = "freshness", "make bench-freshness ARGS=--page=docs/merge_on_read.md"


@dataclass
class Probes:
    """When each probe was handed over, and when it was seen; written by two threads, each its own part."""

    produced: dict[str, float] = field(default_factory=dict)
    seen: dict[str, float] = field(default_factory=dict)

    def outstanding(self) -> list[str]:
        """Ids of those that nobody has seen."""
        return [one for one in tuple(self.produced) if one not in self.seen]

    def waits(self) -> list[float]:
        """Seconds of each that was seen, in the order of production."""
        return [self.seen[one] - at for one, at in self.produced.items() if one in self.seen]


def changes(probes: Probes, rate: float, seconds: float, seed: int) -> Iterator[Message]:
    """Sample changes at a rate a second with probes among them, spread evenly, until so many seconds are full."""
    ordinary = ProfileChanges(seed, f"{rate:g}", profiles=5_000)
    every = max(1, round(rate / PROBES_A_SECOND))
    for n in range(max(1, round(rate * seconds))):
        if n % every == 0:
            yield _probe(probes, n)
        else:
            yield Message("profile-changes", *ordinary.next())


def _probe(probes: Probes, n: int) -> Message:
    name = f"probe-{n:09d}"
    said = {"profile_id": name, "version": 1, "op": "INSERT", "changes": {"name": "Probe", "score": 1}}
    probes.produced[name] = time.monotonic()
    return Message("profile-changes", name.encode(), compact(said).encode())


@dataclass(frozen=True)
class Bench:
    """One set of options: where tables are, and what is kept."""

    spark: SparkSession
    folder: Path
    kafka: EmbeddedKafka
    options: argparse.Namespace

    def at(self, rate: int, seconds: float) -> tuple[Probes, Mapping[str, float]]:
        """One rate, into empty tables; and what was produced, read and waited for."""
        topic = f"profile-changes-{rate}-{seconds:g}"
        self.kafka.create_topics({topic: 4})
        settings = Settings(
            home=self.folder / topic,
            lake_uri=None,
            kafka=KafkaSettings(bootstrap_servers=self.kafka.bootstrap_servers, profile_changes_topic=topic),
        )
        configure(self.spark, session_conf(settings))
        probes, produced, over = Probes(), threading.Event(), threading.Event()
        reads: list[float] = []
        reader = threading.Thread(target=_look, args=(settings, probes, produced, over, reads), daemon=True)
        sender = threading.Thread(target=self._send, args=(settings, probes, rate, seconds, produced), daemon=True)
        stores = open_stores(settings)
        parts = parts_of(self.spark, settings, stores)
        job, moving = build_job(INGEST_PROFILE_CHANGES, parts), build_job(REMATERIALIZE_PROFILE, parts)
        policy = DrainPolicy(idle_timeout=timedelta(0), min_batch_interval=timedelta(seconds=self.options.pace))
        rows = batches = 0
        sender.start()
        reader.start()
        ends = time.monotonic() + seconds + self.options.patience
        with ThreadPoolExecutor(1) as beside:
            moved = beside.submit(self._move, moving, over)
            try:
                while not (produced.is_set() and not probes.outstanding()) and time.monotonic() < ends:
                    for report in drain(job, policy):
                        rows, batches = rows + report.counts["rows_in"], batches + 1
                    time.sleep(_PAUSE_S)
            finally:
                over.set()
        sender.join()
        reader.join()
        shutil.rmtree(settings.home)
        read_s = statistics.median(reads) if reads else 0.0
        return probes, {"changes": rows, "batches": batches, "moves": moved.result(), "read_s": read_s}

    def _move(self, job: MicroBatchJob[Any], over: threading.Event) -> int:
        """Move what waits, again and again, until it is over; how many times something was moved."""
        moves = 0
        while not over.wait(self.options.moves or None):
            moves += sum(1 for _ in drain(job, DrainPolicy(idle_timeout=timedelta(0))))
        return moves

    def _send(self, settings: Settings, probes: Probes, rate: int, seconds: float, produced: threading.Event) -> None:
        try:
            messages = changes(probes, rate / 60, seconds, self.options.seed)
            produce(settings.kafka, messages, rate=rate / 60)
        finally:
            produced.set()


def _look(
    settings: Settings, probes: Probes, produced: threading.Event, over: threading.Event, reads: list[float]
) -> None:
    """Ask the view for the probes that were not seen yet, until all are, or nobody waits any more."""
    entity = profile(settings)
    while not over.is_set():
        wanted = probes.outstanding()
        if not wanted and produced.is_set():
            return
        if wanted and all(
            log.version(table.uri(settings.lake)) is not None for table in (entity.base, entity.changeset)
        ):
            began = time.monotonic()
            found = read_keys(settings.lake, entity, wanted, snapshot(settings.lake, entity))
            shown = time.monotonic()
            reads.append(shown - began)
            probes.seen.update(dict.fromkeys(found, shown))
        over.wait(_PAUSE_S)


def measure(options: argparse.Namespace, rates: Cells, probes: Cells) -> None:
    """The rates that are missing, after a short one that is not kept; nothing is started when there are none."""
    missing = [rate for rate in options.rates if (str(rate),) not in rates]
    if not missing:
        return
    scratch = Path(tempfile.mkdtemp(prefix="bench-freshness-"))
    progress = Progress(len(options.rates), len(options.rates) - len(missing))
    try:
        with broker(scratch) as kafka, spark_session(scratch) as spark:
            bench = Bench(spark, scratch, kafka, options)
            console.print("Warm-up, not counted", style="dim")
            bench.at(600, 3)
            for rate in missing:
                found, counted = bench.at(rate, options.seconds)
                kept = keep(rate, found, counted, rates, probes)
                progress.step(f"{rate:>7,} a minute  p50 {kept['p50_s']:.2f} s  p95 {kept['p95_s']:.2f} s")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def keep(rate: int, found: Probes, counted: Mapping[str, float], rates: Cells, probes: Cells) -> Mapping[str, float]:
    """The figures of a rate; `lost` counts probes that never showed. Raises AssertionError when none did."""
    waits = found.waits()
    lost = len(found.produced) - len(waits)
    assert waits, f"at {rate:,} a minute no probe showed"
    half = len(waits) // 2
    # Of a backlog that grows, the second half waits longer than the first.
    figures = {
        "p50_s": float(np.percentile(waits, 50)),
        "p95_s": float(np.percentile(waits, 95)),
        "most_s": max(waits),
        "first_half_s": statistics.median(waits[:half] or waits),
        "second_half_s": statistics.median(waits[half:]),
        "probes": len(waits),
        "lost": lost,
        **counted,
    }
    for n, seconds in enumerate(waits):
        probes.add((rate, n), seconds=seconds)
    rates.add((rate,), **figures)
    return figures


@contextmanager
def broker(folder: Path) -> Iterator[EmbeddedKafka]:
    """A broker of its own, on free ports of this machine."""
    port, controller = free_ports(2)
    with EmbeddedKafka(folder / "kafka", port, controller, resolve_jars("kafka", SparkSettings().jar_cache)) as kafka:
        yield kafka


FIGURES = (
    *("p50_s", "p95_s", "most_s", "first_half_s", "second_half_s"),
    *("probes", "lost", "changes", "batches", "moves", "read_s"),
)


def table(rates: Cells) -> RichTable:
    """A row for each rate."""
    found = right_aligned(
        "Seconds from produced to visible, by changes a minute",
        "changes a minute",
        *("p50", "p95", "most", "median, first half", "second half", "lost"),
        *("batches", "changes a batch", "moves", "read s"),
    )
    for cell in sorted(rates, key=lambda cell: int(cell.key[0])):
        of = {name: value or 0.0 for name, value in cell.figures.items()}
        seconds = (f"{of[name]:.2f}" for name in FIGURES[:5])
        a_batch = of["changes"] / of["batches"] if of["batches"] else 0.0
        counts = (
            f"{of['lost']:,.0f}",
            f"{of['batches']:,.0f}",
            f"{a_batch:,.0f}",
            f"{of['moves']:,.0f}",
            f"{of['read_s']:.3f}",
        )
        found.add_row(f"{int(cell.key[0]):,}", *seconds, *counts)
    return found


def target(rates: Cells) -> str | None:
    """Whether the rate that was aimed at is held; None when it is not measured."""
    found = rates.figures("p95_s", rate=TARGET_RATE)
    if not found:
        return None
    lost = sum(rates.figures("lost", rate=TARGET_RATE))
    met = "met" if found[0] < TARGET_S and not lost else "missed"
    return f"At {TARGET_RATE:,} changes a minute p95 is {found[0]:.1f} s; target below {TARGET_S:g}: {met}."


def draw(run: Run, rates: Cells) -> None:
    """p50 and p95 against the rate."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(8, 4.5), layout="constrained")
    axes = drawing.subplots()
    cells = sorted(rates, key=lambda cell: int(cell.key[0]))
    for name, said in (("p50_s", "p50"), ("p95_s", "p95")):
        axes.plot([int(cell.key[0]) for cell in cells], [cell.figures[name] or 0.0 for cell in cells], "o-", label=said)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("changes a minute")
    axes.set_ylabel("s")
    axes.set_title("From produced to visible in the view without a JVM", loc="left")
    axes.legend()
    drawing.savefig(run.folder / "freshness.png", dpi=120)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    rates = [3_000, 6_000, 12_000, 24_000]
    parser.add_argument("--rates", type=int, nargs="+", default=rates, help=f"changes a minute (default {rates})")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long each lasts (default 120)")
    parser.add_argument(
        "--pace", type=float, default=5.0, help="seconds between two batches (default 5: drain.min_batch_interval)"
    )
    moves = "seconds between two rematerializations; 0: none (default 30)"
    parser.add_argument("--moves", type=float, default=30.0, help=moves)
    parser.add_argument("--seed", type=int, default=20201120, help="seed of the changes (default 20201120)")
    patience = "seconds to wait after the last change; what does not show then is beyond the machine (default 120)"
    parser.add_argument("--patience", type=float, default=120.0, help=patience)
    parser.add_argument("--quick", action="store_true", help="two rates, 15 seconds each")
    add_options(parser, NAME)
    add_page_option(parser)
    options = parser.parse_args(arguments)
    if options.quick:
        options.rates, options.seconds = [3_000, TARGET_RATE], min(options.seconds, 15.0)
        options.patience = min(options.patience, 30.0)
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, measure what is not measured yet, print, draw."""
    options = parsed(arguments)
    page = vars(options).pop("page")
    run = open_run(NAME, options)
    rates, probes = cells(run)
    measure(options, rates, probes)
    console.print(table(rates))
    if said := target(rates):
        console.print(said, markup=False)
    draw(run, rates)
    publish(NAME, COMMAND, markdown(run, [table(rates)], [said] if said else []), run, page)
    console.print(f"Every probe: {run.folder}/freshness_probes.csv. Plot and page: freshness.png, .md beside it")


def cells(run: Run) -> tuple[Cells, Cells]:
    """Rates, and the probes of each."""
    return run.cells("freshness", ("rate",), FIGURES), run.cells("freshness_probes", ("rate", "n"), ("seconds",))


if __name__ == "__main__":
    main()
