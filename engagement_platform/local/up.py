"""`up` and `services`: everything one machine needs in the foreground, until Ctrl-C or for a given time.

The parts are `services`, `orchestrator` and `figures`; here is the order they appear in, and what is printed.
"""

from __future__ import annotations

import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from engagement_platform.engine.durable_files import write_durably
from engagement_platform.errors import PlatformError
from engagement_platform.lake.lake import refuse_path
from engagement_platform.local import ingest
from engagement_platform.local.aws import NOT_INSTALLED, is_installed
from engagement_platform.local.figures import BALANCE, Figures, Watch, figures, latencies, progress, summary_table
from engagement_platform.local.home import locked_home
from engagement_platform.local.orchestrator import PORTS, dagster_children, ui_address
from engagement_platform.local.ports import LOCALHOST, check_ports
from engagement_platform.local.process import TICK_S, Child, Supervisor
from engagement_platform.local.producing import kinds_of
from engagement_platform.local.services import Services, all_services, missing_services
from engagement_platform.settings import Settings

TRAFFIC, GAME_TRAFFIC = "traffic", "game-traffic"
UP_WITHIN_S = 180.0
# Longest time in which no batch finishes: a sensor tick, a run's start, one batch. 30 s on 2 quiet cores; seen with six
# other JVMs on them: 200 s.
NEXT_BATCH_WITHIN_S = 300.0
# Without a terminal a line that repaints itself is noise in a log file.
LINE_EVERY_S = 10.0


class StoppedEarly(Exception):
    """Ctrl-C or SIGTERM came while something was awaited: a wish, not an error."""


class Foreground:
    """What a foreground command does ten times a second: look after the children, and notice a wish to stop."""

    def __init__(self, services: Services, supervisor: Supervisor, console: Console, stop: threading.Event) -> None:
        self.services, self.supervisor, self.console, self._stop = services, supervisor, console, stop

    def turn(self) -> None:
        """A tenth of a second. Raises StoppedEarly."""
        self.supervisor.poll()
        if self._stop.wait(TICK_S):
            raise StoppedEarly

    def start(self, *children: Child) -> None:
        """Start children and return when all are ready. Raises ChildFailed, StoppedEarly."""
        self.supervisor.start(*children)
        self.supervisor.wait_ready(UP_WITHIN_S, tick=self._check_stop)

    def start_late(self) -> None:
        """Start the ingest server, without waiting for it, and print what is left out here."""
        self.supervisor.start(*self.services.late_children())
        settings = self.services.settings
        if settings.pipelines.games and settings.games.queue_url is None and not is_installed():
            self.warn(NOT_INSTALLED)

    def warn(self, text: str) -> None:
        """Print a line that something went wrong."""
        self.console.print(text, style="yellow", highlight=False, markup=False, soft_wrap=True)

    def traffic(self, name: str, *command: str) -> None:
        """Start a producer of sample messages; stopped first of all, so that what it has produced is on the broker."""
        arguments = [sys.executable, "-m", "engagement_platform.cli", *command, "--follow"]
        env = self.services.variables
        self.supervisor.start(Child(name, arguments, ready=lambda: True, env=env, stage=2, stop_s=4.0))

    def game_traffic(self, rate: float) -> None:
        """Start simulated games that post events to the ingest server."""
        self.traffic(GAME_TRAFFIC, "produce-games", "--rate", str(rate), "--to", ingest.address(self.services.settings))

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise StoppedEarly


def run_services(
    settings: Settings, env_file: Path | None, console: Console, stop: threading.Event, *, game_rate: float
) -> None:
    """Broker, Spark Connect, S3 and SQS with the ingest server and simulated games before them, until `stop`.

    Once all answer, their settings are printed and written to `env_file`. game_rate: events a second, 0 for no games.
    Raises PortInUse, HomeInUse, ChildFailed, what resolving jars raises, and PlatformError where the file cannot be
    written; nothing is left running then.
    """
    services = all_services(settings)
    variables = services.variables
    if services.aws:
        variables |= {"INGEST_URL": ingest.address(settings), "INGEST_KEYS": str(ingest.key_folder(settings))}
    with _foreground(services, services.needs, console, stop) as foreground:
        try:
            if env_file is not None:
                _make_room(env_file)
            foreground.start(*services.children())
            foreground.start_late()
            foreground.start()
            if env_file is not None:
                # A program that watches for the file sees it whole or not at all.
                write_durably(env_file, for_a_shell(variables).encode())
            for key, value in variables.items():
                console.print(f"{key}={value}", highlight=False, soft_wrap=True)
            if services.aws:
                console.print(f"# {_ingest_server(settings)}", highlight=False, soft_wrap=True)
                games = f"Simulated games post {game_rate:g} events a second" if game_rate else "No simulated games"
                console.print(f"# {games}; --game-rate sets how many", highlight=False, soft_wrap=True)
            if services.aws and game_rate:
                foreground.game_traffic(game_rate)
            while True:
                foreground.turn()
        except StoppedEarly:
            console.print("Stopping …")


def for_a_shell(variables: Mapping[str, str]) -> str:
    """Lines that a shell reads as they are meant, whatever characters a path has."""
    return "".join(f"{key}={shlex.quote(value)}\n" for key, value in variables.items())


def _make_room(file: Path) -> None:
    """Remove the file of an earlier run, with whose ports nobody must go on; raise where no new one can be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=file.parent).close()
        file.unlink(missing_ok=True)
    except OSError as error:
        reason = f"Nothing was started: {file} cannot be written: {error.strerror}. Name a file in a folder of yours."
        raise PlatformError(reason) from None


def run_up(settings: Settings, rate: float, seconds: float | None, console: Console, stop: threading.Event) -> int:
    """Run everything until `stop`, or for so many seconds and until all is ingested and announced; the exit status.

    rate: sample engagements a second, 0 for none. The status is 0 when stopped as asked; of a bounded run 0 only when
    the figures balance and its traffic produced something, and 1 also when it was stopped before. Raises as
    run_services, and when a bounded run's backlog does not shrink any more.
    """
    services = missing_services(settings)
    with _foreground(services, {**services.needs, **PORTS}, console, stop) as foreground:
        try:
            console.print("Starting. The first time takes a minute, later about fifteen seconds.")
            opening = _start(foreground, bounded=seconds is not None)
            _welcome(console, services, rate)
            return _work(foreground, rate, seconds, opening)
        except StoppedEarly:
            return 0 if seconds is None else 1
        finally:
            console.print("Stopping …")


@contextmanager
def _foreground(
    services: Services, ports: Mapping[str, str], console: Console, stop: threading.Event
) -> Iterator[Foreground]:
    """Hold this home alone, after a look at the ports; whatever happens inside, all children are stopped at the end.

    Raises LakePathRefused, which each run would otherwise.
    """
    home = services.settings.home
    for folder in (services.settings.lake, str(home.absolute())):
        refuse_path(folder)
    for name in ("no_proxy", "NO_PROXY"):
        # What runs here is asked directly, by all children, too, whatever proxy leads elsewhere.
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), LOCALHOST, "localhost")))

    def warn(text: str) -> None:
        foreground.warn(f"{datetime.now(UTC):%H:%M:%S} {text}")

    with locked_home(home) as lock:
        check_ports(services.settings.embedded, ports)
        with Supervisor(home / "logs", warn, keep_open=(lock,)) as supervisor:
            foreground = Foreground(services, supervisor, console, stop)
            yield foreground


def _start(foreground: Foreground, *, bounded: bool) -> Figures:
    """Start everything but the traffic; return the figures from before anything is produced or ingested."""
    services, settings = foreground.services, foreground.services.settings
    children = services.children()
    names = [child.name for child in children]
    *servers, daemon = dagster_children(settings, services.dagster_variables, names)
    # The code server first: the UI waits for it.
    foreground.start(*servers, *children)
    # This process counts what waits in the queue, and boto3 looks for its address and keys in the environment only.
    os.environ.update(services.aws_variables)
    try:
        opening = figures(settings)
    except PlatformError as error:
        # Such as a topic that is not there yet on a broker of one's own. A bounded run cannot end well without.
        if bounded:
            raise
        foreground.warn(f"No figures yet: {error}")
        opening = Figures()
    foreground.start(daemon)
    return opening


def _work(foreground: Foreground, rate: float, seconds: float | None, opening: Figures) -> int:
    services, supervisor, console = foreground.services, foreground.supervisor, foreground.console
    settings = services.settings
    foreground.start_late()
    if rate and kinds_of(settings.pipelines):
        foreground.traffic(TRAFFIC, "produce", "--rate", str(rate))
    games = bool(rate and services.aws and settings.traffic.game_rate)
    if games:
        foreground.game_traffic(settings.traffic.game_rate)
    watch = Watch(settings)
    watch.start()
    until = None if seconds is None else time.monotonic() + seconds
    with closing(watch), _line(console) as show:

        def turn(left_s: float | None = None) -> None:
            foreground.turn()
            show(progress(watch, opening, left_s))

        while until is None or time.monotonic() < until:
            turn(None if until is None else until - time.monotonic())
        for name in ([TRAFFIC] if rate else []) + ([GAME_TRAFFIC] if games else []):
            supervisor.end(name)
        _wait_until_announced(watch, turn)
    final = figures(settings)
    counted = settings.pipelines.engagements or settings.pipelines.profiles
    books = final.books(opening, traffic=bool(rate) and counted)
    console.print(summary_table(final, opening, latencies(settings, opening.at), books))
    return 0 if books == BALANCE else 1


def _wait_until_announced(watch: Watch, turn: Callable[[], None]) -> None:
    """Until nothing waits on the topics and no accepted request waits to be announced.

    Raises PlatformError when no batch finishes for NEXT_BATCH_WITHIN_S.
    """
    # The answer under way may be from before the last message.
    enough = watch.asked + 2
    batches, since = -1, time.monotonic()
    while watch.asked < enough or watch.latest is None or watch.latest.waiting > 0:
        turn()
        counts = (watch.latest or Figures()).counts
        if batches != (batches := counts["batches"] + counts["mutation_batches"]):
            since = time.monotonic()
        if time.monotonic() - since > NEXT_BATCH_WITHIN_S:
            raise PlatformError(
                f"{counts['backlog']:,} messages wait to be ingested, {counts['requests_waiting']:,} requests to be "
                f"announced, and no batch finished within {NEXT_BATCH_WITHIN_S:.0f} s. They stay where they are; the "
                "next start goes on with them. `engagement-platform status` shows why a batch failed."
            )


def _welcome(console: Console, services: Services, rate: float) -> None:
    """Print the UI's address, what runs where, what to click."""
    settings = services.settings
    rows = {
        "Dagster UI": ui_address(settings),
        "Kafka": f"{settings.kafka.bootstrap_servers}{'' if services.kafka else ' (yours, not started here)'}",
        "Spark": f"{settings.spark.endpoint}{'' if services.connect else ' (yours, not started here)'}",
        "Ingest server": _ingest_server(settings) if services.aws else None,
        "Game events": settings.games.queue_url,
        "Tables": settings.lake,
        "Traffic": f"{rate:g} engagements a second" if rate else "off",
        "Logs": str(settings.home / "logs"),
    }
    grid = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        if value is not None:
            grid.add_row(name, Text(value))
    console.print(grid)
    console.print(
        f"\nOpen {ui_address(settings)}/asset-groups, expand a group and click an asset: each run is one "
        "materialization, with its counts and a plot.\nRuns shows the drain runs that the sensors start, Automation "
        "the sensors. Ctrl-C stops everything; the data stays.\n",
        soft_wrap=True,
    )


def _ingest_server(settings: Settings) -> str:
    return f"{ingest.address(settings)}/docs, sample API keys in {ingest.key_folder(settings)}"


@contextmanager
def _line(console: Console) -> Iterator[Callable[[str], None]]:
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
