"""`up` and `services`: everything one machine needs in the foreground, until Ctrl-C or for a given time.

The parts are `services`, `orchestrator` and `summary`; here is the order they appear in.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from engagement_platform.embedded import display, ingest
from engagement_platform.embedded.aws import NOT_INSTALLED, is_installed
from engagement_platform.embedded.home import locked_home
from engagement_platform.embedded.orchestrator import (
    CODE_SERVER,
    WEBSERVER,
    cancel_abandoned_runs,
    dagster_children,
    dagster_needs,
)
from engagement_platform.embedded.ports import PortNeed, check_ports
from engagement_platform.embedded.process import TICK_S, Child, Supervisor
from engagement_platform.embedded.services import Services, all_services, missing_services, write_env_file
from engagement_platform.embedded.summary import Opening, Watch, balance, messages_on_broker
from engagement_platform.errors import PlatformError
from engagement_platform.settings import Settings
from engagement_platform.status import StatusSnapshot, snapshot, summary

TRAFFIC, GAME_TRAFFIC = "traffic", "game-traffic"
UP_WITHIN_S = 180.0
# Longest time in which no batch finishes: a sensor tick, a run's start, one batch. 30 s on 2 quiet cores; seen with six
# other JVMs on them: 200 s.
NEXT_BATCH_WITHIN_S = 300.0


class StoppedEarly(Exception):
    """Ctrl-C or SIGTERM came while something was awaited: a wish, not an error."""


class NotIngested(PlatformError):
    """A bounded run gave up waiting for the backlog."""

    def __init__(self, backlog: int, requests: int, within_s: float) -> None:
        self.backlog, self.requests = backlog, requests
        super().__init__(
            f"{backlog:,} messages wait to be ingested, {requests:,} requests to be announced, and no batch "
            f"finished within {within_s:.0f} s. They stay where they are; the next start goes on with them. "
            "`engagement-platform status` tells why a batch failed."
        )


class Foreground:
    """What a foreground command waits with: it looks after the children and hears a wish to stop."""

    def __init__(self, supervisor: Supervisor, stop: threading.Event) -> None:
        self.supervisor, self._stop = supervisor, stop

    def turn(self) -> None:
        """A tenth of a second of looking after the children. Raises StoppedEarly."""
        self.supervisor.poll()
        if self._stop.wait(TICK_S):
            raise StoppedEarly

    def wait_ready(self) -> None:
        """Return when all children are ready. Raises ChildFailed, StoppedEarly."""
        self.supervisor.wait_ready(UP_WITHIN_S, tick=self._hear)

    def _hear(self) -> None:
        if self._stop.is_set():
            raise StoppedEarly


class CodeServerWatch:
    """Notices that the code server was restarted. Its runs died with it, and nobody else writes that down."""

    def __init__(self, supervisor: Supervisor, settings: Settings, console: Console) -> None:
        self._supervisor, self._settings, self._console = supervisor, settings, console
        self._pid = supervisor.pid(CODE_SERVER)
        self._since: float | None = None

    def look(self) -> None:
        """Call it every turn; cancels the abandoned runs once code server and webserver answer again."""
        pid = self._supervisor.pid(CODE_SERVER)
        if pid not in (None, self._pid):
            self._pid, self._since = pid, time.time()
        if self._since and self._supervisor.is_ready(CODE_SERVER) and self._supervisor.is_ready(WEBSERVER):
            count, self._since = cancel_abandoned_runs(self._settings, self._since), None
            if count:
                self._console.print(f"Runs that ended with the code server: {count}. The sensors start new ones.")


def simulated_rate(settings: Settings, asked: float | None, env_file: Path | None) -> float:
    """Events a second that simulated games of `services` post. asked: what the command line says, None for nothing.

    Whoever takes the settings from a file brings events of their own, and counts them: then none, unless asked for.
    """
    if asked is not None:
        return asked
    return settings.traffic.game_rate if env_file is None else 0.0


def run_services(
    settings: Settings, env_file: Path | None, console: Console, stop: threading.Event, *, game_rate: float
) -> None:
    """Broker, Spark Connect, S3 and SQS with the ingest server and simulated games before them, until `stop`.

    Once all answer, their settings are printed and written to `env_file`. game_rate: events a second, 0 for no games.
    Raises PortInUse, HomeInUse, ChildFailed and what resolving jars raises; nothing is left running then.
    """
    services = all_services(settings)
    with _supervised(services, services.needs, console) as supervisor:
        foreground = Foreground(supervisor, stop)
        try:
            supervisor.start(*services.children())
            foreground.wait_ready()
            supervisor.start(*services.late_children())
            foreground.wait_ready()
            _say_what_is_off(services, console)
            if env_file is not None:
                write_env_file(env_file, services.variables)
            for key, value in services.variables.items():
                console.print(f"{key}={value}", highlight=False, soft_wrap=True)
            if services.aws:
                console.print(f"# {display.ingest_server(settings)}", highlight=False, soft_wrap=True)
                console.print(f"# {display.simulated_games(game_rate)}", highlight=False, soft_wrap=True)
            if services.aws and game_rate:
                supervisor.start(_game_traffic(services, game_rate))
            while True:
                foreground.turn()
        except StoppedEarly:
            console.print("Stopping …")


def run_up(settings: Settings, rate: float, seconds: float | None, console: Console, stop: threading.Event) -> int:
    """Run everything until `stop`, or for so many seconds and until all is ingested and announced; the exit status.

    rate: sample engagements a second, 0 for none. The status is 0 when stopped as asked; of a bounded run 0 only when
    the figures balance, and 1 also when it was stopped before. Raises as run_services, and NotIngested.
    """
    services = missing_services(settings)
    with _supervised(services, [*services.needs, *dagster_needs(settings)], console) as supervisor:
        foreground = Foreground(supervisor, stop)
        try:
            console.print("Starting. The first time takes a minute, later about fifteen seconds.")
            opening = _start(foreground, services, lambda: _open(services.settings, seconds is not None, console))
            _say_what_is_off(services, console)
            display.welcome(console, services, rate, services.settings.home / "logs")
            return _work(foreground, services, rate, seconds, opening, console)
        except StoppedEarly:
            return 0 if seconds is None else 1
        finally:
            console.print("Stopping …")


@contextmanager
def _supervised(services: Services, needs: Sequence[PortNeed], console: Console) -> Iterator[Supervisor]:
    """A supervisor for this home alone, after a look at the ports; whatever happens inside, it stops all at the end."""
    home = services.settings.home

    def say(text: str) -> None:
        console.print(
            f"{datetime.now(UTC):%H:%M:%S} {text}", style="yellow", highlight=False, markup=False, soft_wrap=True
        )

    with locked_home(home) as lock:
        check_ports(needs)
        with Supervisor(home / "logs", say, keep_open=(lock,)) as supervisor:
            yield supervisor


def _start(foreground: Foreground, services: Services, open_: Callable[[], Opening]) -> Opening:
    """Start everything but the traffic; return once all is ready, with the figures from before."""
    settings, supervisor, began = services.settings, foreground.supervisor, time.time()
    children = services.children()
    names = tuple(child.name for child in children)
    *servers, daemon = dagster_children(settings, services.dagster_variables, names)
    # The code server first: the UI waits for it.
    supervisor.start(*servers, *children)
    foreground.wait_ready()
    # This process counts what waits in the queue, and boto3 looks for its address and keys in the environment only.
    os.environ.update({name: value for name, value in services.variables.items() if name.startswith("AWS_")})
    # The figures are from before anything is ingested or produced, so the daemon waits for them.
    opening = open_()
    cancel_abandoned_runs(settings, began)
    supervisor.start(daemon)
    foreground.wait_ready()
    return opening


def _open(settings: Settings, bounded: bool, console: Console) -> Opening:
    """The figures before any work. Without them a bounded run cannot end well; any other says why and goes on."""
    on_broker = messages_on_broker(settings.kafka)
    try:
        return Opening(datetime.now(UTC), on_broker, snapshot(settings))
    except PlatformError as error:
        if bounded:
            raise
        console.print(f"No figures yet: {error}", style="yellow", highlight=False, markup=False, soft_wrap=True)
        return Opening(datetime.now(UTC), on_broker, StatusSnapshot())


def _work(
    foreground: Foreground, services: Services, rate: float, seconds: float | None, opening: Opening, console: Console
) -> int:
    settings, supervisor = services.settings, foreground.supervisor
    supervisor.start(*services.late_children())
    if rate:
        supervisor.start(_traffic(services, rate))
    games = bool(rate and services.aws and settings.traffic.game_rate)
    if games:
        supervisor.start(_game_traffic(services, settings.traffic.game_rate))
    watch = Watch(settings)
    watch.start()
    code_server = CodeServerWatch(supervisor, settings, console)
    until = None if seconds is None else time.monotonic() + seconds
    try:
        with display.line(console) as show:
            while until is None or time.monotonic() < until:
                foreground.turn()
                code_server.look()
                left = None if until is None else until - time.monotonic()
                show(display.progress(watch, opening, left))
            if rate:
                supervisor.end(TRAFFIC)
            if games:
                supervisor.end(GAME_TRAFFIC)
            _wait_until_announced(foreground, code_server, watch, lambda: show(display.progress(watch, opening, None)))
    finally:
        watch.stop()
    on_broker = messages_on_broker(settings.kafka)
    figures = summary(settings, opening.at)
    missing = balance(opening, on_broker, figures)
    console.print(display.summary_table(figures, opening, on_broker, missing))
    return 0 if missing == 0 else 1


def _wait_until_announced(
    foreground: Foreground, code_server: CodeServerWatch, watch: Watch, show: Callable[[], None]
) -> None:
    """Until nothing waits on the topics and no accepted request waits to be announced. Raises NotIngested."""
    # The answer under way may be from before the last message.
    enough = watch.asked + 2
    batches, since = -1, time.monotonic()
    while watch.asked < enough or watch.latest is None or watch.latest.backlog + watch.latest.requests_waiting > 0:
        foreground.turn()
        code_server.look()
        show()
        finished = -1 if watch.latest is None else watch.latest.batches + watch.latest.mutation_batches
        if finished != batches:
            batches, since = finished, time.monotonic()
        if time.monotonic() - since > NEXT_BATCH_WITHIN_S:
            waiting = (watch.latest.backlog, watch.latest.requests_waiting) if watch.latest else (0, 0)
            raise NotIngested(*waiting, NEXT_BATCH_WITHIN_S)


def _say_what_is_off(services: Services, console: Console) -> None:
    if services.settings.games.queue_url is None and not is_installed():
        console.print(NOT_INSTALLED, style="yellow", highlight=False, markup=False, soft_wrap=True)


def _game_traffic(services: Services, rate: float) -> Child:
    to = ingest.address(services.settings)
    command = ["produce-games", "--follow", "--rate", str(rate), "--to", to]
    return Child(
        name=GAME_TRAFFIC,
        command=[sys.executable, "-m", "engagement_platform.cli", *command],
        ready=lambda: True,
        env=services.variables,
        after=(ingest.NAME,),
        stage=2,
        stop_s=4.0,
    )


def _traffic(services: Services, rate: float) -> Child:
    return Child(
        name=TRAFFIC,
        command=[sys.executable, "-m", "engagement_platform.cli", "produce", "--follow", "--rate", str(rate)],
        ready=lambda: True,
        env=services.variables,
        # Stopped first of all, so that what it has produced is on the broker.
        stage=2,
        stop_s=4.0,
    )
