"""The server as a process: its parts put together, started, and stopped so that nothing acknowledged is left behind."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from threading import Event, Thread

import uvicorn

from engagement_platform.errors import PlatformError
from engagement_platform.ingest_server.app import Parts, build_app
from engagement_platform.ingest_server.delivery import Delivered, Delivery
from engagement_platform.ingest_server.figures import Figures
from engagement_platform.ingest_server.intake import Intake
from engagement_platform.ingest_server.keys import Doorkeeper, IngestKeys
from engagement_platform.ingest_server.sinks import open_sink
from engagement_platform.ingest_server.spool import Segment, Spool
from engagement_platform.ingest_server.spooled import spool_folder
from engagement_platform.lake.arrow import table_of
from engagement_platform.pii.contracts import VAULT
from engagement_platform.pii.erasure import expire_refused
from engagement_platform.pii.vault import Vault, open_vault
from engagement_platform.settings import Settings

_HOUR_S = 3600.0


class AddressInUse(PlatformError):
    """The server cannot listen where it should."""

    def __init__(self, host: str, port: int, why: str) -> None:
        super().__init__(
            f"The ingest server cannot listen on {host}:{port}: {why}. Nothing was started. Set "
            "ENGAGEMENT_PLATFORM_INGEST_SERVER__PORT to a free port, or stop what listens there."
        )


def serve(settings: Settings, say: Callable[[str], None]) -> None:
    """Run the server until SIGINT or SIGTERM. say: told in a sentence where it listens, and how it ended.

    Raises AddressInUse, SpoolInUse, SinkNotConfigured, PiiDeclarationRefused, StoresUnavailable, MasterKeyExposed,
    MasterKeyMissing, KmsUnavailable before it takes any request.
    """
    server = settings.ingest_server
    sink = open_sink(settings)
    listening = _listen(server.host, server.port)
    spool = None
    try:
        vault = open_vault(settings)
        keys = IngestKeys(settings.store_url)
        spool = Spool(spool_folder(settings), segment_bytes=server.segment_bytes, segment_age=server.segment_age)
        delivery = Delivery(spool, vault, sink, retry_after=server.retry_after, told=lambda *_: None)
        parts = _parts(settings, spool, vault, Doorkeeper(keys, server.key_refresh.total_seconds()), delivery)
        _run(settings, parts, delivery, vault, listening, say)
    finally:
        listening.close()
        if spool is not None:
            spool.close()


def _parts(settings: Settings, spool: Spool, vault: Vault, doorkeeper: Doorkeeper, delivery: Delivery) -> Parts:
    intake = Intake(settings, vault.keyring, spool.id)
    figures = Figures(
        {
            "ingest_spool_bytes": ("Bytes that wait for the sink.", lambda: float(spool.size_bytes)),
            "ingest_spool_commits": ("Times the disk was asked to keep.", lambda: float(spool.commits)),
            "ingest_delivery_failures": ("Deliveries that did not work.", lambda: float(delivery.failures)),
            "ingest_ready": ("1 when requests are taken.", lambda: float(not troubles())),
        }
    )

    def told(_segment: Segment, delivered: Delivered) -> None:
        figures.objects.inc()
        for outcome, count in vars(delivered).items():
            figures.delivered.labels(outcome).inc(count)

    def troubles() -> list[str]:
        found = [spool.broken] if spool.broken else []
        if spool.size_bytes > settings.ingest_server.max_spool_bytes:
            found.append(f"{spool.size_bytes} bytes wait for the sink")
        if delivery.failed is not None:
            found.append(delivery.failed)
        if doorkeeper.unanswered is not None:
            found.append(str(doorkeeper.unanswered))
        return found

    delivery.told = told
    return Parts(settings, intake, spool, doorkeeper, figures, troubles)


def _run(
    settings: Settings,
    parts: Parts,
    delivery: Delivery,
    vault: Vault,
    listening: socket.socket,
    say: Callable[[str], None],
) -> None:
    host, port = listening.getsockname()[:2]
    stop_s = settings.ingest_server.stop_within.total_seconds()
    config = uvicorn.Config(
        build_app(parts),
        # Access logs would have every client's address.
        access_log=False, log_level="warning", lifespan="off", server_header=False, date_header=False,
        # Each may hold a whole body; beyond, uvicorn answers 503 by itself.
        limit_concurrency=1000,
        timeout_graceful_shutdown=max(int(stop_s / 2), 1), timeout_keep_alive=75,
    )  # fmt: skip
    stopping = Event()
    upkeep = Thread(target=_look_after, args=(parts, vault, settings, stopping), name="upkeep", daemon=True)
    # uvicorn passes the signal that ended it on when it is done; here the end is in order, and the status 0.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    _warm_up()
    # A delivery computes for a second now and then; a request wakes up several times and waits for it each time, 5 ms
    # by default (a guess: how much that saves was not measured on a quiet machine).
    sys.setswitchinterval(0.001)
    delivery.start()
    upkeep.start()
    say(f"Listening on http://{host}:{port}; description on /docs")
    uvicorn.Server(config).run(sockets=[listening])
    stopping.set()
    parts.spool.finish()
    delivery.stop(stop_s)
    left = len(parts.spool.sealed())
    say("Stopped; everything is delivered" if not left else f"Stopped; {left} segments wait for the next start")


def _warm_up() -> None:
    """Import now what Arrow imports at its first row.

    Pandas takes a second, in which no other thread runs: answers during the first delivery took 3.6 s.
    """
    table_of([{"received_ts": datetime.now(UTC)}], VAULT)


def _look_after(parts: Parts, vault: Vault, settings: Settings, stopping: Event) -> None:
    """Keys known anew every few seconds, old refused events removed every hour."""
    until = 0.0
    pause = min(settings.ingest_server.key_refresh.total_seconds() / 2, 1.0)
    while not stopping.wait(max(pause, 0.05)):
        parts.doorkeeper.refresh()
        until -= pause
        if until <= 0:
            until = _HOUR_S
            with suppress(PlatformError):  # the next hour tries again; nothing else depends on it
                expire_refused(vault, settings.ingest_server.refused_for)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise AddressInUse(host, port, error.strerror or str(error)) from error
