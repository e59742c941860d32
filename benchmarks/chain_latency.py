"""How long is it from a commit to its rows in the next table of the chain?  python -m benchmarks.chain_latency

Data: page views of --users, in bursts, produced to a broker of its own at each of --rates for --seconds, in the order
of their times. The clock of events runs --speed times as fast as ours, so that sessions end and days go by meanwhile.
The hops run round after round on one open session, as `engagement-platform chain` does.
Measures, for each row of a hop's table, seconds from when the last of what it needs was there to when it was visible:
of page views, from the moment at which the broker was handed the message; of a session, from the commit of the page
view that ends the wait for late ones; of a day, from the commit of the session that does. A commit is there when its
entry of the log is.
Fails where the tables end in other rows than a loop over the views makes. Prints p50, p95 and most for each rate and
hop; writes chain_latency.csv and chain_latency_rows.csv. An interrupted run is resumed by the same command, a rate from
its beginning. Compare within one run, never seconds across machines.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from rich.table import Table as RichTable

from benchmarks.cells import Cells, Progress, Run, add_options, console, open_run, right_aligned
from benchmarks.freshness import broker
from benchmarks.mutation import spark_session
from benchmarks.mutation_ways import configure
from engagement_platform.lake import log
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.session import session_conf
from engagement_platform.local.content import compact
from engagement_platform.local.kafka import EmbeddedKafka
from engagement_platform.local.producing import produce
from engagement_platform.local.traffic import Message
from engagement_platform.pipelines.jobs import open_stores
from engagement_platform.pipelines.page_views.job import run_hops
from engagement_platform.pipelines.page_views.tables import DAILY, PAGE_VIEW, SESSION
from engagement_platform.settings import KafkaSettings, PageViewsSettings, Settings

TARGET_S = 10.0
"""p95 from a commit to its rows in the next table."""

GAP, LATE, DAY = timedelta(minutes=30), timedelta(hours=1), timedelta(days=1)
BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
_BURST = 5
"""Views of one user after each other."""


@dataclass
class Views:
    """What was produced: user and moment of each view, by its number, and when it was handed over."""

    said: list[tuple[str, datetime]] = field(default_factory=list)
    handed: list[float] = field(default_factory=list)

    def messages(self, rate: int, seconds: float, users: int, speed: float) -> Iterator[Message]:
        """Views at a rate a second."""
        for n in range(max(_BURST, round(rate * seconds))):
            # Whole milliseconds, since that is what a watermark counts in.
            at = BEGIN + timedelta(milliseconds=round(n * 1000 * speed / rate))
            user = f"u{n // _BURST % users}"
            self.said.append((user, at))
            self.handed.append(time.time())
            view = {"view_id": str(n), "user_id": user, "page": "/", "viewed_at": at.isoformat()}
            # A kind of message that has a topic; which one, the sender says.
            yield Message("profile-changes", user.encode(), compact(view).encode())


_UTC = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class Commit:
    """One version of a table that added rows."""

    at: float
    """When its entry of the log was there, Unix time."""
    rows: list[dict[str, object]]


def commits(uri: str, *columns: str) -> list[Commit]:
    """Every version of a table on this disk, oldest first, with the rows that it added."""
    found = list[Commit]()
    newest = log.newest_entry(uri)
    for version in range((newest if newest is not None else -1) + 1):
        added = [action["add"] for action in log.entry(uri, version) or () if "add" in action]
        rows = [row for add in added for row in _rows(uri, add, columns)]
        if rows:
            found.append(Commit(Path(uri, "_delta_log", f"{version:020}.json").stat().st_mtime, rows))
    return found


def _rows(uri: str, add: Mapping[str, object], columns: Sequence[str]) -> list[dict[str, object]]:
    # Partition values stand in the log only; no hop needs them here.
    found: pa.Table = pq.ParquetFile(Path(uri, unquote(str(add["path"])))).read(columns=list(columns))
    # Spark's own times (INT96) come as nanoseconds of no zone; they are UTC.
    fields = [pa.field(f.name, _UTC if pa.types.is_timestamp(f.type) else f.type) for f in found.schema]
    return [dict(row) for row in found.cast(pa.schema(fields)).to_pylist()]


def page_view_waits(views: Views, seen: Sequence[Commit]) -> list[float]:
    """Seconds of each page view, from the hand of the producer."""
    return [commit.at - views.handed[int(str(row["view_id"]))] for commit in seen for row in commit.rows]


def closing_waits(source: Sequence[Commit], moment: str, seen: Sequence[tuple[float, datetime]]) -> list[float]:
    """Seconds from the commit that closed a row to when it was visible.

    source: of the table before, whose newest `moment` less LATE is the watermark. seen: (when a row was visible, the
    watermark it waits for). A row that no commit closed raises AssertionError: it was written too early.
    """
    marks, mark = list[datetime](), datetime.min.replace(tzinfo=UTC)
    for commit in source:
        mark = max([mark, *(_moment(row[moment]) - LATE for row in commit.rows)])
        marks.append(mark)
    waits = []
    for at, needs in seen:
        place = int(np.searchsorted(np.array([m.timestamp() for m in marks]), needs.timestamp()))
        assert place < len(marks), f"a row that waits for {needs} was written before that"
        waits.append(at - source[place].at)
    return waits


def _moment(value: object) -> datetime:
    assert isinstance(value, datetime)
    return value.astimezone(UTC)


def sessions_of(views: Sequence[tuple[str, datetime]]) -> list[tuple[str, datetime, datetime, int]]:
    """Sessions that are over once all views have come: user, first view, last view, views. A loop."""
    mark = max(at for _, at in views) - LATE
    opened: dict[str, tuple[datetime, datetime, int]] = {}
    found = []
    for user, at in views:
        first, last, count = opened.get(user, (at, at, 0))
        if count and at - last >= GAP:
            found.append((user, first, last, count))
            first, count = at, 0
        opened[user] = (first, at, count + 1)
    found += [(user, *session) for user, session in opened.items()]
    return sorted(session for session in found if session[2] + GAP <= mark)


def days_of(sessions: Sequence[tuple[str, datetime, datetime, int]]) -> list[tuple[date, int, int]]:
    """Days that are over once all sessions have come: day, sessions, views."""
    if not sessions:
        return []
    mark = max(last for _, _, last, _ in sessions) - LATE
    found: dict[date, tuple[int, int]] = {}
    for _, _, last, count in sessions:
        many, viewed = found.get(last.date(), (0, 0))
        found[last.date()] = (many + 1, viewed + count)
    ends = {day: datetime(day.year, day.month, day.day, tzinfo=UTC) + DAY for day in found}
    return [(day, *sums) for day, sums in sorted(found.items()) if ends[day] <= mark]


@dataclass(frozen=True)
class Bench:
    """One set of options."""

    spark: SparkSession
    folder: Path
    kafka: EmbeddedKafka
    options: argparse.Namespace

    def at(self, rate: int, seconds: float) -> dict[str, list[float]]:
        """One rate, into empty tables: seconds of each row, by hop."""
        topic = f"views-{rate}-{seconds:g}"
        # One partition: what comes in another order than it happened would wait for something else than the hops.
        self.kafka.create_topics({topic: 1})
        settings = Settings(
            home=self.folder / topic,
            lake_uri=None,
            kafka=KafkaSettings(bootstrap_servers=self.kafka.bootstrap_servers),
            page_views=PageViewsSettings(topic=topic, session_gap=GAP, max_late=LATE),
        )
        configure(self.spark, session_conf(settings))
        lake, stores, views, produced = Lake(self.spark, settings), open_stores(settings), Views(), threading.Event()
        sender = threading.Thread(target=self._send, args=(settings, views, rate, seconds, produced), daemon=True)
        sender.start()
        for _ in run_hops(lake, stores, until_idle=False, pause=timedelta(milliseconds=100)):
            if produced.is_set():
                break
        sender.join()
        # What came since the last round, until nothing does.
        list(run_hops(lake, stores, until_idle=True, pause=timedelta(0)))
        found = waits_of(settings.lake, views)
        shutil.rmtree(settings.home)
        return found

    def _send(self, settings: Settings, views: Views, rate: int, seconds: float, produced: threading.Event) -> None:
        options, topic = self.options, settings.page_views.topic
        try:
            said = views.messages(rate, seconds, options.users, options.speed)
            produce(settings.kafka, said, topics={"profile-changes": topic}, rate=rate)
        finally:
            produced.set()


def waits_of(root: str, views: Views) -> dict[str, list[float]]:
    """Seconds of each row, by hop. Raises AssertionError where the tables have other rows than a loop makes."""
    page_views = commits(PAGE_VIEW.uri(root), "view_id", "viewed_at")
    sessions = commits(SESSION.uri(root), "user_id", "started_at", "ended_at", "views")
    days = commits(DAILY.uri(root), "session_date", "sessions", "views")
    landed = sorted(int(str(row["view_id"])) for commit in page_views for row in commit.rows)
    assert landed == list(range(len(views.said))), "the page views are not those that were produced"
    expected = sessions_of(views.said)
    ended = [(commit.at, row, _moment(row["ended_at"])) for commit in sessions for row in commit.rows]
    found = sorted((str(row["user_id"]), _moment(row["started_at"]), last, row["views"]) for _, row, last in ended)
    assert found == expected, "the sessions are not those of a loop over the page views"
    over = [(commit.at, row) for commit in days for row in commit.rows]
    told = sorted((row["session_date"], row["sessions"], row["views"]) for _, row in over)
    assert told == days_of(expected), "the days are not those of a loop over the sessions"
    midnights = [(at, datetime.fromisoformat(f"{row['session_date']}T00:00:00+00:00") + DAY) for at, row in over]
    return {
        "page_view": page_view_waits(views, page_views),
        "session": closing_waits(page_views, "viewed_at", [(at, last + GAP) for at, _, last in ended]),
        "daily": closing_waits(sessions, "ended_at", midnights),
    }


FIGURES = ("p50_s", "p95_s", "most_s", "rows")


def measure(options: argparse.Namespace, hops: Cells, rows: Cells) -> None:
    """The rates that are missing, after a short one that is not kept; nothing is started when there are none."""
    missing = [rate for rate in options.rates if (str(rate), "page_view") not in hops]
    if not missing:
        return
    scratch = Path(tempfile.mkdtemp(prefix="bench-chain-"))
    progress = Progress(len(options.rates), len(options.rates) - len(missing))
    try:
        with broker(scratch) as kafka, spark_session(scratch) as spark:
            bench = Bench(spark, scratch, kafka, options)
            console.print("Warm-up, not counted", style="dim")
            bench.at(50, 3)
            for rate in missing:
                waits = bench.at(rate, options.seconds)
                for hop, found in waits.items():
                    keep(rate, hop, found, hops, rows)
                shown = ", ".join(f"{hop} {np.percentile(found, 95):.2f} s" for hop, found in waits.items() if found)
                progress.step(f"{rate:>7,} views a second  p95 {shown}")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def keep(rate: int, hop: str, waits: Sequence[float], hops: Cells, rows: Cells) -> None:
    """The figures of a hop; without any where no row of it came, as of days in a short run."""
    for n, seconds in enumerate(waits):
        rows.add((rate, hop, n), seconds=seconds)
    percentiles = (float(np.percentile(waits, share)) if waits else None for share in (50, 95, 100))
    hops.add((rate, hop), **dict(zip(FIGURES[:3], percentiles, strict=True)), rows=len(waits))


def table(hops: Cells) -> RichTable:
    """A row for each rate and hop."""
    shown = right_aligned("Seconds from a commit to its rows in the next table", "views a second", "hop", *FIGURES)
    for cell in hops:
        figures = cell.figures
        seconds = ("" if figures[name] is None else f"{figures[name]:.2f}" for name in FIGURES[:3])
        shown.add_row(f"{int(cell.key[0]):,}", cell.key[1], *seconds, f"{figures['rows'] or 0:,.0f}")
    return shown


def target(hops: Cells) -> str:
    """Whether every hop is below what was aimed at, at every rate that was measured."""
    slow = [cell for cell in hops if (cell.figures["p95_s"] or 0.0) >= TARGET_S]
    said = ", ".join(f"{cell.key[1]} at {cell.key[0]}" for cell in slow)
    return f"p95 of every hop below {TARGET_S:g} s: {f'missed ({said})' if slow else 'met'}."


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    rates = [100, 1_000]
    parser.add_argument("--rates", type=int, nargs="+", default=rates, help=f"views a second (default {rates})")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long each lasts (default 120)")
    parser.add_argument("--users", type=int, default=1_000, help="who views (default 1000)")
    parser.add_argument("--speed", type=float, default=7_200.0, help="seconds of events in one of ours (default 7200)")
    add_options(parser, "chain_latency")
    return parser.parse_args(arguments)


def cells(run: Run) -> tuple[Cells, Cells]:
    """Hops, and every row of each."""
    rows = run.cells("chain_latency_rows", ("rate", "hop", "n"), ("seconds",))
    return run.cells("chain_latency", ("rate", "hop"), FIGURES), rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, measure what is not measured yet, print."""
    options = parsed(arguments)
    run = open_run("chain_latency", options)
    hops, rows = cells(run)
    measure(options, hops, rows)
    console.print(table(hops))
    console.print(target(hops), markup=False)
    console.print(f"Every row: {run.folder}/chain_latency_rows.csv")


if __name__ == "__main__":
    main()
