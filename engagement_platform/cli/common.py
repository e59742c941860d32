"""What several commands share: sentences about what a job waits for, and the wish to stop."""

from __future__ import annotations

import signal
from threading import Event
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from engagement_platform.engine.job import Callbacks


def callbacks() -> Callbacks:
    """Print on stderr what a job waits for."""
    from engagement_platform.engine.job import Callbacks

    def say(why: object) -> None:
        typer.echo(f"Waiting: {why}", err=True)

    return Callbacks(on_wait=lambda _lease, holder: say(holder), on_blocked=say)


def stop_signals() -> Event:
    """An event that Ctrl-C, SIGTERM and a closed terminal set."""
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: stop.set())
    return stop
