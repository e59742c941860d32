"""Commands about alerts: alert test, alert list, alert close."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from engagement_platform.cli.common import Json, print_json, print_table
from engagement_platform.errors import PlatformError

if TYPE_CHECKING:
    from engagement_platform.alerting.alerts import Alerts, Standing


group = typer.Typer(help="What is wrong at the moment, and where messages about it go.", no_args_is_help=True)


@group.command("test")
def send_test() -> None:
    """Send a test message to each URL of alerting.urls, and say what each did. Changes nothing.

    Exit status: 0 when every URL took it, 1 when one did not, or when there is none.
    Example: engagement-platform alert test
    """
    from engagement_platform.alerting.alerts import NOTHING_SENT
    from engagement_platform.alerting.model import Message, Severity, State
    from engagement_platform.alerting.sender import targets_of
    from engagement_platform.settings import Settings

    alerting = Settings().alerting
    targets = targets_of(alerting.urls, alerting.timeout)
    if not targets:
        typer.echo(NOTHING_SENT, err=True)
        raise typer.Exit(1)
    words = "Alerts of the engagement platform will arrive here. Nothing is wrong."
    message = Message(State.RAISED, Severity.INFO, "[test] engagement-platform alert test", words)
    all_taken = True
    for target in targets:
        reason = target.send(message)
        all_taken = all_taken and reason is None
        typer.echo(f"{target}: {reason or 'taken'}")
    raise typer.Exit(0 if all_taken else 1)


@group.command("list")
def list_alerts(as_json: Json = False) -> None:
    """Show what is wrong now, since when, and what waits for each URL. Sends nothing; starts no Spark.

    Exit status: 0, also when something is wrong. Example: engagement-platform alert list
    """
    from engagement_platform.alerting.alerts import NOTHING_SENT

    alerts = _alerts()
    standing, queues = alerts.standing(), alerts.queues()
    if as_json:
        shown = [_as_json(one, alerts.muted(one.alert.key)) for one in standing]
        print_json({"alerts": shown, "urls": {str(target): vars(queue) for target, queue in queues.items()}})
        return
    if standing:
        rows = [
            (f"{one.alert.severity}{', muted' if alerts.muted(one.alert.key) else ''}",
             f"{one.alert.since:%Y-%m-%d %H:%M:%S}", one.times, one.alert.key, one.alert.title)
            for one in standing
        ]  # fmt: skip
        print_table(("severity", "since", "seen", "alert", "what"), rows)
    else:
        typer.echo("Nothing is wrong.")
    for target, queue in queues.items():
        why = f"; the last attempt: {queue.reason}" if queue.reason else ""
        typer.echo(f"{target}: {queue.waiting:,} messages wait{why}")
    if not queues:
        typer.echo(NOTHING_SENT)


@group.command()
def close(
    key: Annotated[str, typer.Argument(help="Of the alert, as alert list shows it.")],
) -> None:
    """Take an alert for over, such as one of a job that never runs again. When it is seen again it is a new one.

    Exit status: 0, or 1 when there is no such alert. Example: engagement-platform alert close run/verify_engagements
    """
    if (closed := _alerts().recovered(key, "Closed by hand.")) is None:
        raise PlatformError(f"{key} could not be closed: the stores did not take it. Try again.")
    typer.echo(f"{key} is closed" if closed else f"There is no alert {key}", err=not closed)
    raise typer.Exit(0 if closed else 1)


def _alerts() -> Alerts:
    from engagement_platform.alerting.alerts import Alerts
    from engagement_platform.engine.database import open_engine
    from engagement_platform.settings import Settings

    settings = Settings()
    return Alerts(open_engine(settings.store_url), settings.alerting)


def _as_json(one: Standing, muted: bool) -> dict[str, object]:
    return vars(one.alert) | {
        "since": one.alert.since.isoformat(),
        "state": one.state,
        "seen": one.seen_ts.isoformat(),
        "times": one.times,
        "sent": one.sent,
        "muted": muted,
    }
