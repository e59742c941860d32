"""What `up` and `services` print: the welcome, a line of progress, the summary table. Nothing is computed here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from engagement_platform.embedded import ingest
from engagement_platform.embedded.orchestrator import ui_address
from engagement_platform.embedded.services import Services
from engagement_platform.embedded.summary import Opening, Watch
from engagement_platform.settings import Settings
from engagement_platform.status import StatusSummary

# Without a terminal a line that repaints itself is noise in a log file.
LINE_EVERY_S = 10.0
REASON_LENGTH = 160

Show = Callable[[str], None]


def welcome(console: Console, services: Services, rate: float, log_dir: Path) -> None:
    """The UI's address, what runs where, what to click."""
    settings = services.settings
    yours = "yours, not started here"
    running = Table.grid(padding=(0, 2))
    running.add_row("Dagster UI", Text(ui_address(settings), style="bold"))
    running.add_row("Kafka", f"{settings.kafka.bootstrap_servers}{'' if services.kafka else f' ({yours})'}")
    running.add_row("Spark", f"{settings.spark.remote}{'' if services.connect else f' ({yours})'}")
    if services.aws:
        running.add_row("Ingest server", ingest_server(settings))
    if settings.games.queue_url:
        running.add_row("Game events", f"{settings.games.queue_url}{'' if services.aws else f' ({yours})'}")
    running.add_row("Tables", settings.lake)
    running.add_row("Traffic", f"{rate:g} engagements a second" if rate else "off")
    running.add_row("Logs", str(log_dir))
    console.print(running)
    console.print(
        f"\nOpen {ui_address(settings)}/asset-groups, expand a group and click an asset: each batch is one "
        "materialization, with its counts and a plot.\nRuns shows the drain runs that the sensors start, Automation "
        "the sensors. Ctrl-C stops everything; the data stays.\n",
        soft_wrap=True,
    )


def ingest_server(settings: Settings) -> str:
    """Where games send their events, and with which keys."""
    return f"{ingest.address(settings)}/docs, sample API keys in {ingest.key_folder(settings)}"


def simulated_games(rate: float) -> str:
    """Whether simulated games send events there."""
    return f"Simulated games post {rate:g} events a second" if rate else "No simulated games: --game-rate starts them"


def progress(watch: Watch, opening: Opening, left_s: float | None) -> str:
    """One line: produced and landed since the start, batches, backlog, requests announced and waiting to be."""
    now, before = watch.latest, opening.snapshot
    if now is None:
        return watch.trouble or "waiting for the first figures"
    parts = [
        f"produced {(watch.on_broker or opening.on_broker) - opening.on_broker:,}",
        f"landed {now.landed - before.landed:,}",
        f"duplicates {now.duplicates - before.duplicates:,}",
        f"quarantined {now.quarantined - before.quarantined:,}",
        f"batches {now.batches - before.batches:,}",
        f"backlog {now.backlog:,}",
        f"mutations {now.requests_applied - before.requests_applied:,} (waiting {now.requests_waiting:,})",
        *([f"{max(left_s, 0):.0f} s left"] if left_s is not None else []),
        *([watch.trouble] if watch.trouble else []),
        *([_shortened(now.failing)] if now.failing else []),
    ]
    return "  ".join(parts)


def _shortened(reason: str) -> str:
    """The first line of a reason; all of it is in `engagement-platform status`."""
    first = reason.splitlines()[0]
    return first if len(first) <= REASON_LENGTH else f"{first[:REASON_LENGTH]} …"


@contextmanager
def line(console: Console) -> Iterator[Show]:
    """Something to hand the progress to: repainted in place on a terminal, a new line every ten seconds elsewhere."""
    if console.is_terminal:
        with Live(console=console, refresh_per_second=2, transient=True) as live:
            yield lambda text: live.update(Text(text))
        return
    last = time.monotonic()

    def show(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_EVERY_S:
            last = time.monotonic()
            console.print(text, highlight=False, soft_wrap=True)

    yield show


def summary_table(summary: StatusSummary, opening: Opening, on_broker: int, missing: int) -> Table:
    """The figures of a bounded run, and whether they balance."""

    def seconds(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f} s"

    # One line a figure: sixteen columns do not fit a terminal of 80.
    table = Table("Summary", "")
    table.columns[1].justify = "right"
    rows = {
        "produced": f"{on_broker - opening.on_broker:,}",
        **({"waiting before": f"{opening.snapshot.backlog:,}"} if opening.snapshot.backlog else {}),
        "landed": f"{summary.landed:,}",
        "quarantined": f"{summary.quarantined:,}",
        "duplicates": f"{summary.duplicates:,}",
        "batches": f"{summary.batches:,}",
        "freshness p50": seconds(summary.freshness_p50_s),
        "freshness p95": seconds(summary.freshness_p95_s),
        "p95 once running": seconds(summary.freshness_running_p95_s),
        "mutations applied": f"{summary.requests_applied:,}",
        "mutation batches": f"{summary.mutation_batches:,}",
        "rows mutated": f"{summary.rows_mutated:,}",
        "mutation p50": seconds(summary.mutated_p50_s),
        "mutation p95": seconds(summary.mutated_p95_s),
        "files": f"{summary.files:,}",
        "books": "balance" if missing == 0 else f"{abs(missing):,} {'missing' if missing > 0 else 'too many'}",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table
