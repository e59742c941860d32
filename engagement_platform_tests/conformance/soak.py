"""Does anything grow without bound?  python -m engagement_platform_tests.conformance.soak --hours 2

Runs `engagement-platform up` in a home of its own with all pipelines and the sample traffic on. Each minute it looks at
its processes, their memory and open files, and at what the home holds. Nights come every --night minutes: then the jobs
that schedules run at night are launched through the UI. What is kept for days is kept for as long as two nights take,
or for an hour, the least that VACUUM counts in; so whatever is bounded shows it within the run.

Writes soak.csv, a row a minute; prints what each figure did over time and whether that is bounded. Exit status: 1 where
something grows on, a run of a night failed, a process had to be restarted, or not every message is accounted for.
--page puts the tables into a page.
The ports of `up` must be free.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table as RichTable

from benchmarks.cells import add_options, console, open_run, right_aligned
from benchmarks.footprint import GIGABYTE, MEGABYTE, data_files, database, descendants, kind_of, pss_of, sizes
from benchmarks.pages import add_page_option, markdown, publish
from engagement_platform.engine.schema import BATCH
from engagement_platform.local.connect import GC_LOG
from engagement_platform.local.orchestrator import ui_address
from engagement_platform.settings import Settings

NAME, COMMAND = "soak", "make soak HOURS=2 ARGS=--page=docs/reliability.md"
NIGHT = ("optimize_tables", "vacuum_tables", "remove_old_runs")
"""Jobs that schedules run at night, in their order."""
HOUR_S, MINUTE_S, MINUTES_AN_HOUR = 3600.0, 60.0, 60.0
MINUTES_SEEN = 15
"""What the Spark server collects is looked at over so long: with a night in it."""
SPARK = """\
spark.databricks.delta.properties.defaults.deletedFileRetentionDuration interval 1 hours
spark.databricks.delta.properties.defaults.logRetentionDuration interval 1 hours
"""
SETTINGS = {
    "MUTATION__MAX_LATENESS": "PT1H", "MAINTENANCE__ROLLBACK_WINDOW": "PT1H", "CONSUMERS__KEEP_FOR": "PT1H",
    "STORES__KEEP_BATCHES": "PT1H",
}  # fmt: skip
LEVEL, NOISE, LINEAR = 1.15, 1.03, 1.15
LAUNCH = """mutation($job: String!) { launchRun(executionParams: {selector: {repositoryLocationName:
"engagement_platform", repositoryName: "__repository__", jobName: $job}}) { __typename
... on LaunchRunSuccess { run { runId } } } }"""
STATUS = "query($run: ID!) { runOrError(runId: $run) { __typename ... on Run { status } } }"
UNDER_WAY = frozenset({"QUEUED", "NOT_STARTED", "MANAGED", "STARTING", "STARTED", "CANCELING"})

OTHERS = {"dagster": "logs of runs, files", "ingest": "ingest server, files", "spark": "scratch of Spark, files"}
"""What of a home has no line of its own, by folder."""
ELSE = "all else in the home, files"

Sample = dict[str, float]
Night = tuple[str, int]
"""A job and the number of the night in which it was launched."""


def kept(home: Path) -> Sample:
    """What a home holds: files and sizes by part."""
    others = [(path.relative_to(home), size) for path, size in sizes(home) if _is_other(path.relative_to(home))]
    files = Counter(OTHERS.get(path.parts[0], ELSE) for path, _ in others)
    ticks = _size(home / "dagster" / "schedules")
    return {
        "data files": data_files(home),
        "files of table logs": sum(path.parent.name == "_delta_log" for path, _ in sizes(home / "lake")),
        "lake, MB": _size(home / "lake") / MEGABYTE,
        "stores, MB": sum(size for path, size in sizes(home) if path.name.startswith("stores.db")) / MEGABYTE,
        "Dagster's databases, MB": (database(home) - ticks) / MEGABYTE,
        "Dagster's ticks, MB": ticks / MEGABYTE,
        "logs, MB": _size(home / "logs") / MEGABYTE,
        "broker, MB": _size(home / "kafka") / MEGABYTE,
        **rows_of(home / "stores.db"),
        **{name: files[name] for name in (*OTHERS.values(), ELSE)},
        "all else in the home, MB": sum(size for _, size in others) / MEGABYTE,
    }


def rows_of(stores: Path) -> Sample:
    """Rows of the stores: of batches, and of all else; none before there are stores."""
    if not stores.exists():
        return dict.fromkeys((BATCHES, OTHER_ROWS), 0.0)
    with closing(sqlite3.connect(f"file:{stores}?mode=ro", uri=True, timeout=MINUTE_S)) as connection:
        tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        count = {name: connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for (name,) in tables}
    batches = count.pop(BATCH.name, 0)
    return {BATCHES: float(batches), OTHER_ROWS: float(sum(count.values()))}


PER_KIND = "PSS of {}, GB"
BATCHES, OTHER_ROWS = "rows of batches", "other rows of the stores"
ARRIVES = (
    "lake, MB", "files of table logs", "stores, MB", OTHER_ROWS, "broker, MB", "Dagster's ticks, MB", "logs, MB",
)  # fmt: skip
"""Grow with what arrives, and no faster: rows that are alive, entries of tables' logs, which Delta removes by whole
days only (`test_files_of_a_log_go_with_a_checkpoint_once_its_retention_is_over`), keys of subjects, figures of each
minute of a game for as many days as a player counts, messages for the 7 days for which the broker keeps them, ticks of
sensors for the day that `dagster.yaml` keeps them, logs up to 40 MB a process. All others level off."""
AN_HOUR_LATER = frozenset({"data files", BATCHES})
"""What VACUUM removes, an hour at the earliest after it was replaced, and what the stores forget after an hour: of two
hours the second quarter has not all of them yet."""
RESTARTED = "restarting it in"
"""What `up` says of a process of its own that has ended: one that leaks and is ended for it begins from nothing."""
_PAUSE = re.compile(r"^\[([\d.]+)s\] GC\(\d+\) Pause .* ([\d.]+)ms$", re.MULTILINE)


def collecting(log: Path, last_s: float = MINUTES_SEEN * MINUTE_S) -> float:
    """Share of the last so many seconds of its log, %, in which the Spark server did nothing but collect its heap.

    A heap that is full shows nowhere else: its size is what the server was given.
    """
    text = "".join(file.read_text() for file in log.parent.glob(f"{log.name}*"))
    pauses = [(float(at), float(ms) / 1000) for at, ms in _PAUSE.findall(text)]
    end = max((at for at, _ in pauses), default=0.0)
    seen = [(at, pause) for at, pause in pauses if at >= end - last_s]
    begin = min((at for at, _ in seen), default=end)
    return 100 * sum(pause for _, pause in seen) / (end - begin) if end > begin else 0.0


def _is_other(path: Path) -> bool:
    return path.parts[0] not in {"lake", "kafka", "logs"} and not path.suffix.startswith(".db")


def _size(folder: Path) -> int:
    return sum(size for _, size in sizes(folder))


def processes_of(root: int, home: Path) -> set[int]:
    """A process and all below it, and all others that have its home in their environment or on their command line:
    they stay where the one that started them has gone."""
    found = set(descendants(root))
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if any(str(home).encode() in (process / name).read_bytes() for name in ("environ", "cmdline")):
                found.add(int(process.name))
    return found


def open_files(processes: Collection[int]) -> int:
    """Descriptors that processes hold."""
    found = 0
    for pid in processes:
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            found += sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return found


@dataclass(frozen=True)
class Quarter:
    """What a figure was in a quarter of the run."""

    middle: float
    highest: float


def quarters(samples: Sequence[Sample], name: str) -> list[Quarter]:
    """The middle and the highest value of a figure in each quarter of the run."""
    bounds = [len(samples) * n // 4 for n in range(5)]
    parts = [[one.get(name, 0.0) for one in samples[low:high]] for low, high in pairwise(bounds)]
    return [Quarter(median(part), max(part)) for part in parts]


def verdict(name: str, found: Sequence[Quarter]) -> str:
    """What a figure's quarters say; empty: it grows on.

    Level: at its highest no higher than before by more than a night brings, and in the middle no higher than in the
    quarters before, or higher by half of what it grew between them at most: a leak adds as much in each quarter.
    """
    second, third, last = found[1:]
    settled = third.highest if name in AN_HOUR_LATER else min(second.highest, third.highest)
    grew, grows = third.middle - second.middle, last.middle - third.middle
    slows_down = last.middle <= max(second.middle, third.middle) * NOISE or grows <= grew / 2
    if last.highest <= settled * LEVEL and slows_down:
        return "level"
    no_faster = last.highest - third.highest <= (third.highest - second.highest) * LINEAR
    return "as what arrives" if name in ARRIVES and no_faster else ""


def soak(home: Path, rows: Path, rate: float, hours: float, night_minutes: float) -> tuple[list[Sample], int, str, str]:
    """Run `up`, look at it each minute: samples, its exit status, the last that it printed, and what nights came to.

    home: a folder that is not there yet. rows: the file of CSV that gets each sample at once.
    """
    spark = home.with_name("spark")
    spark.mkdir()
    (spark / "spark-defaults.conf").write_text(SPARK, encoding="utf-8")
    short = SETTINGS | {"HOME": str(home), "DAGSTER__RETENTION": f"PT{2 * night_minutes:.0f}M"}
    settings = {f"ENGAGEMENT_PLATFORM_{key}": value for key, value in short.items()}
    arguments = ["up", "--for", f"{hours * HOUR_S:.0f}", "--traffic", f"{rate:g}"]
    log = home.with_name("up.log")
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "engagement_platform.cli", *arguments], stdout=out, stderr=out,
            env={**os.environ, **settings, "SPARK_CONF_DIR": str(spark)}, start_new_session=True,
        )  # fmt: skip
    samples, under_way, ended = list[Sample](), dict[str, Night](), list[tuple[Night, str]]()
    began, nights = time.monotonic(), 0
    try:
        while process.poll() is None:
            time.sleep(MINUTE_S)
            minute = (time.monotonic() - began) / MINUTE_S
            if not (backlog := re.findall(r"backlog ([\d,]+)", log.read_text())):
                continue
            found = processes_of(process.pid, home)
            pss = defaultdict[str, float](float)
            for pid in found:
                pss[PER_KIND.format(kind_of(pid))] += pss_of(pid) / GIGABYTE
            living = {"PSS, GB": sum(pss.values()), **pss, "processes": len(found), "open files": open_files(found)}
            living["collecting, % of the time"] = collecting(home / "spark" / GC_LOG)
            sample = {"minute": minute, **living, "backlog": float(backlog[-1].replace(",", "")), **kept(home)}
            if process.poll() is not None or minute > hours * HOUR_S / MINUTE_S - 1:
                # It is ending.
                continue
            samples.append(sample)
            write(rows, samples)
            try:
                ended += over(under_way, status_of)
                if minute >= (nights + 1) * night_minutes:
                    nights += 1
                    under_way |= {launch(job): (job, nights) for job in NIGHT}
            except OSError as error:
                # The samples of hours are worth more than one answer.
                ended.append((("the UI", nights), f"no answer in minute {minute:.0f} ({error})"))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(MINUTE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    text = log.read_text()
    wrong = ", ".join(filter(None, (of_nights(ended, under_way.values(), nights), restarts(text))))
    return samples, process.returncode, text[-2000:], wrong


def restarts(printed: str) -> str:
    """How often `up` had to start one of its processes again; empty: never."""
    count = printed.count(RESTARTED)
    return f"processes of `up` were restarted: {count}" if count else ""


def of_nights(ended: Sequence[tuple[Night, str]], left: Collection[Night], nights: int) -> str:
    """Empty where each run of a night succeeded, those of the last one aside that are under way; else what is wrong."""
    wrong = [(night, status) for night, status in ended if status != "SUCCESS"]
    wrong += [(night, "has not ended") for night in left if night[1] < nights]
    if not ended:
        return "no run of a night has ended"
    return ", ".join(f"{job} of night {night}: {status}" for (job, night), status in wrong)


def write(rows: Path, samples: Sequence[Sample]) -> None:
    """All samples so far: whatever ends the run later, they are there."""
    with rows.open("w", newline="") as file:
        writer = csv.DictWriter(file, names(samples), restval=0, lineterminator="\n")
        writer.writeheader()
        writer.writerows(samples)


def names(samples: Sequence[Sample]) -> list[str]:
    """Of all figures; kinds of processes come and go."""
    return list(dict.fromkeys(name for sample in samples for name in sample))


def launch(job: str) -> str:
    """Launch a job through the UI, as a person does; the id of its run."""
    launched = asked(LAUNCH, job=job)["launchRun"]
    if launched["__typename"] != "LaunchRunSuccess":
        raise SystemExit(f"The UI did not launch {job}: {launched['__typename']}")
    return str(launched["run"]["runId"])


def status_of(run: str) -> str:
    """What Dagster says of a run."""
    found = asked(STATUS, run=run)["runOrError"]
    return str(found.get("status", found["__typename"]))


def asked(query: str, **variables: str) -> Any:
    """The UI's answer."""
    headers, body = {"Content-Type": "application/json"}, {"query": query, "variables": variables}
    request = urllib.request.Request(f"{ui_address(Settings())}/graphql", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=MINUTE_S) as answer:
        return json.load(answer)["data"]


def over(under_way: dict[str, Night], status: Callable[[str], str]) -> list[tuple[Night, str]]:
    """Take out the runs that have ended; what each was and its status. under_way: what each run is, by its id."""
    return [(under_way.pop(run), found) for run in list(under_way) if (found := status(run)) not in UNDER_WAY]


def table(found: Mapping[str, Sequence[Quarter]], minutes: float) -> RichTable:
    """The middle and the highest value of each figure in each quarter, by how much the middle grew in an hour from the
    third to the last, and what that says."""
    title = f"Soak of {minutes:.0f} minutes, the middle of each quarter (the highest)"
    shown = right_aligned(title, "", "1st", "2nd", "3rd", "4th", "last, an hour", "")
    for name, values in found.items():
        cells = (f"{value.middle:,.4g} ({value.highest:,.4g})" for value in values)
        grows = (values[3].middle - values[2].middle) * 4 * MINUTES_AN_HOUR / minutes
        shown.add_row(name, *cells, f"{grows:+,.3g}", verdict(name, values) or "GROWS")
    return shown


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, run, print; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=2, help="from the start on (default 2)")
    parser.add_argument("--rate", type=float, default=10, help="engagements a second (default 10)")
    parser.add_argument("--night", type=float, default=15, help="minutes from one night to the next (default 15)")
    add_options(parser, NAME)
    add_page_option(parser)
    options = parser.parse_args(arguments)
    page = vars(options).pop("page")
    run = open_run(NAME, options)
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        rows = run.folder / f"{NAME}.csv"
        samples, status, last_words, wrong = soak(folder / "home", rows, options.rate, options.hours, options.night)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if len(samples) < 4:
        raise SystemExit(f"`up` ended with {status} before there was anything to see: {last_words}")
    found = {name: quarters(samples, name) for name in names(samples) if name != "minute"}
    shown = table(found, samples[-1]["minute"])
    console.print(shown, last_words, sep="\n")
    books = "Every message is accounted for." if status == 0 else f"`up` ended with status {status}."
    nights = f"Failed: {wrong}." if wrong else "Every run of a night succeeded."
    console.print(nights)
    publish(NAME, COMMAND, markdown(run, [shown], [books, nights]), run, page)
    return int(status != 0 or bool(wrong) or not all(verdict(name, values) for name, values in found.items()))


if __name__ == "__main__":
    # Ended by a signal, it ends what it started, as after an error.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    sys.exit(main())
