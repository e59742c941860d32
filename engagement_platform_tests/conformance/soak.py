"""Does anything grow without bound?  python -m engagement_platform_tests.conformance.soak --hours 2

Runs `engagement-platform up` in a home of its own with all pipelines and the sample traffic on. Each minute it looks at
its processes, their memory and open files, and at what the home holds. Nights come every --night minutes: then the jobs
that schedules run at night are launched through the UI. What is kept for days is kept for as long as two nights take,
or for an hour, the least that VACUUM counts in; so whatever is bounded shows it within the run.

Writes soak.csv, a row a minute; prints what each figure did over time and whether that is bounded. Exit status: 1 where
something grows on, a run of a night failed, or not every message is accounted for. --page puts the tables into a page.
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
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.table import Table as RichTable

from benchmarks.cells import add_options, console, open_run, right_aligned
from benchmarks.footprint import GIGABYTE, MEGABYTE, data_files, database, descendants, pss_of, sizes
from benchmarks.pages import add_page_option, markdown, publish
from engagement_platform.local.connect import GC_LOG
from engagement_platform.local.orchestrator import ui_address
from engagement_platform.settings import Settings

NAME, COMMAND = "soak", "make soak HOURS=2 ARGS=--page=docs/reliability.md"
NIGHT = ("optimize_tables", "vacuum_tables", "remove_old_runs")
"""Jobs that schedules run at night, in their order."""
HOUR_S, MINUTE_S = 3600.0, 60.0
SPARK = """\
spark.databricks.delta.properties.defaults.deletedFileRetentionDuration interval 1 hours
spark.databricks.delta.properties.defaults.logRetentionDuration interval 1 hours
"""
SETTINGS = {
    "MUTATION__MAX_LATENESS": "PT1H", "MAINTENANCE__ROLLBACK_WINDOW": "PT1H", "CONSUMERS__KEEP_FOR": "PT1H",
}  # fmt: skip
LEVEL, LINEAR = 1.15, 1.5
LAUNCH = """mutation($job: String!) { launchRun(executionParams: {selector: {repositoryLocationName:
"engagement_platform", repositoryName: "__repository__", jobName: $job}}) { __typename
... on LaunchRunSuccess { run { runId } } } }"""
STATUS = "query($run: ID!) { runOrError(runId: $run) { __typename ... on Run { status } } }"
UNDER_WAY = frozenset({"QUEUED", "NOT_STARTED", "MANAGED", "STARTING", "STARTED", "CANCELING"})

OTHERS = {"dagster": "logs of runs, files", "ingest": "ingest server, files", "spark": "scratch of Spark, files"}
"""What of a home has no line of its own, by folder."""
ELSE = "all else in the home, files"

Sample = dict[str, float]


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
        **{name: files[name] for name in (*OTHERS.values(), ELSE)},
        "all else in the home, MB": sum(size for _, size in others) / MEGABYTE,
    }


BOUNDED = (
    "PSS, GB", "collecting, % of the time", "processes", "open files", "data files", "Dagster's databases, MB",
    "backlog",
    *OTHERS.values(), ELSE, "all else in the home, MB",
)  # fmt: skip
"""Level off: in the last quarter of the run no higher than in the second and in the third, give or take what comes with
a night.
Data files go an hour after they were replaced, so of two hours the second quarter has not all of them yet: the third.

The others grow with what arrives, and no faster: rows that are alive, what happened to each batch, messages for the 7
days for which the broker keeps them, ticks of sensors for the day that `dagster.yaml` keeps them, entries of tables'
logs, which Delta removes by whole days only
(`test_files_of_a_log_go_with_a_checkpoint_once_its_retention_is_over`), logs up to 40 MB a process.
"""


AN_HOUR_LATER = "data files"
"""What VACUUM removes, an hour at the earliest after it was replaced."""
_PAUSE = re.compile(r"^\[([\d.]+)s\] GC\(\d+\) Pause .* ([\d.]+)ms$", re.MULTILINE)


def collecting(log: Path) -> float:
    """Share of the time, %, in which the Spark server did nothing but collect its heap, in all that its log has.

    A heap that is full shows nowhere else: its size is what the server was given.
    """
    text = "".join(file.read_text() for file in log.parent.glob(f"{log.name}*"))
    pauses = [(float(at), float(ms) / 1000) for at, ms in _PAUSE.findall(text)]
    times = [at for at, _ in pauses]
    return 100 * sum(pause for _, pause in pauses) / (max(times) - min(times)) if len(set(times)) > 1 else 0.0


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


def quarters(samples: Sequence[Sample], name: str) -> list[float]:
    """The highest value of a figure in each quarter of the run."""
    bounds = [len(samples) * n // 4 for n in range(5)]
    return [max(one[name] for one in samples[low:high]) for low, high in pairwise(bounds)]


def verdict(name: str, found: Sequence[float]) -> str:
    """What a figure's quarters say; empty: it grows on."""
    second, third, last = found[1:]
    settled = third if name == AN_HOUR_LATER else min(second, third)
    # Also what grows by a little less from each quarter to the next.
    if last <= settled * LEVEL:
        return "level"
    return "as what arrives" if name not in BOUNDED and last - third <= (third - second) * LINEAR else ""


def soak(
    home: Path, rows: Path, rate: float, hours: float, night_minutes: float
) -> tuple[list[Sample], int, str, list[str]]:
    """Run `up`, look at it each minute: samples, its exit status, the last that it printed, and runs that failed.

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
    samples, under_way, failed = list[Sample](), dict[str, str](), list[str]()
    began, nights = time.monotonic(), 0
    try:
        while process.poll() is None:
            time.sleep(MINUTE_S)
            minute = (time.monotonic() - began) / MINUTE_S
            if not (backlog := re.findall(r"backlog ([\d,]+)", log.read_text())):
                continue
            found = processes_of(process.pid, home)
            pss = sum(map(pss_of, found)) / GIGABYTE
            living = {"PSS, GB": pss, "processes": len(found), "open files": open_files(found)}
            living["collecting, % of the time"] = collecting(home / "spark" / GC_LOG)
            sample = {"minute": minute, **living, "backlog": float(backlog[-1].replace(",", "")), **kept(home)}
            if process.poll() is not None or minute > hours * HOUR_S / MINUTE_S - 1:
                # It is ending.
                continue
            samples.append(sample)
            write(rows, samples)
            try:
                failed += over(under_way, status_of)
                if minute >= (nights + 1) * night_minutes:
                    nights += 1
                    under_way |= {launch(job): f"{job} of night {nights}" for job in NIGHT}
            except OSError as error:
                # The samples of hours are worth more than one answer.
                failed.append(f"the UI's answer in minute {minute:.0f} ({error})")
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(MINUTE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return samples, process.returncode, log.read_text()[-2000:], failed


def write(rows: Path, samples: Sequence[Sample]) -> None:
    """All samples so far: whatever ends the run later, they are there."""
    with rows.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(samples[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(samples)


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


def over(under_way: dict[str, str], status: Callable[[str], str]) -> list[str]:
    """Take out the runs that have ended, and say which did not succeed. under_way: what each run is, by its id."""
    ended = [(under_way.pop(run), said) for run in list(under_way) if (said := status(run)) not in UNDER_WAY]
    return [f"{what} ended with {said}" for what, said in ended if said != "SUCCESS"]


def table(found: Mapping[str, Sequence[float]], minutes: float) -> RichTable:
    """The highest value of each figure in each quarter, and what that says."""
    shown = right_aligned(
        f"Soak of {minutes:.0f} minutes, the highest of each quarter", "", "1st", "2nd", "3rd", "4th", ""
    )
    for name, values in found.items():
        shown.add_row(name, *(f"{value:,.4g}" for value in values), verdict(name, values) or "GROWS")
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
        samples, status, said, failed = soak(folder / "home", rows, options.rate, options.hours, options.night)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if len(samples) < 4:
        raise SystemExit(f"`up` ended with {status} before there was anything to see: {said}")
    found = {name: quarters(samples, name) for name in samples[0] if name != "minute"}
    shown = table(found, samples[-1]["minute"])
    console.print(shown, said, sep="\n")
    books = "Every message is accounted for." if status == 0 else f"`up` ended with status {status}."
    nights = f"Failed: {', '.join(failed)}." if failed else "Every run of a night that ended succeeded."
    console.print(nights)
    publish(NAME, COMMAND, markdown(run, [shown], [books, nights]), run, page)
    return int(status != 0 or bool(failed) or not all(verdict(name, values) for name, values in found.items()))


if __name__ == "__main__":
    # Ended by a signal, it ends what it started, as after an error.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    sys.exit(main())
