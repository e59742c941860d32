"""The server as a process: started, and stopped so that nothing acknowledged is left behind."""

from __future__ import annotations

import logging
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from threading import Event, Thread, Timer
from types import FrameType
from typing import Any

import uvicorn

from engagement_platform.errors import PlatformError
from engagement_platform.ingest_server.app import Parts, build_app, build_health
from engagement_platform.ingest_server.connections import Connection
from engagement_platform.ingest_server.delivery import Delivery
from engagement_platform.ingest_server.intake import Intake
from engagement_platform.ingest_server.keys import IngestKeys, KeyCache
from engagement_platform.ingest_server.sinks import open_sink
from engagement_platform.ingest_server.spool import Spool, spool_folder
from engagement_platform.lake.arrow import table_of
from engagement_platform.pii.erasure import expire_refused
from engagement_platform.pii.vault import VAULT, Vault, open_vault
from engagement_platform.settings import Settings

_LOG = logging.getLogger(__name__)

_HOUR_S = 3600.0
_MOST_CONNECTIONS = 1000
"""Each may hold a whole body; beyond, uvicorn answers 503 by itself."""
_MANY_CONNECTIONS = 900
"""From here on idle ones make room for others; those that end still count for uvicorn for a moment."""
_DESCRIPTORS = 65_536
# Access logs would have every client's address, and a line for each bad request would let anybody fill the disk, or
# block the server where nobody reads what it writes. Nothing here is a websocket.
_QUIET: dict[str, Any] = {
    "access_log": False, "log_level": "error", "lifespan": "off", "server_header": False, "date_header": False,
    "ws": "none",
}  # fmt: skip


class AddressInUse(PlatformError):
    """The server cannot listen where it should."""


def serve(settings: Settings, say: Callable[[str], None]) -> None:
    """Run the server until SIGINT or SIGTERM. say: prints where it listens, and how it ended.

    Raises AddressInUse, SpoolInUse, SinkNotConfigured, PiiDeclarationRefused, StoresUnavailable, MasterKeyUnusable
    before it takes any request.
    """
    server = settings.ingest_server
    _raise_descriptors()
    sink = open_sink(settings)
    with ExitStack() as opened:
        listening = opened.enter_context(_listen(server.host, server.port, "PORT"))
        health = opened.enter_context(_listen(server.host, server.health_port, "HEALTH_PORT"))
        vault, keys = open_vault(settings), IngestKeys(settings.store_url)
        spool = opened.enter_context(
            closing(Spool(spool_folder(settings), segment_bytes=server.segment_bytes, segment_age=server.segment_age))
        )
        delivery = Delivery(spool, vault, sink, retry_after=server.retry_after)
        parts = Parts(settings, Intake(settings, vault.keyring, spool.id), spool, KeyCache(keys), delivery)
        delivery.on_delivered = parts.count_delivered
        _run(parts, vault, listening, health, say)


def _run(
    parts: Parts, vault: Vault, listening: socket.socket, health: socket.socket, say: Callable[[str], None]
) -> None:
    host, port = listening.getsockname()[:2]
    server = parts.settings.ingest_server
    stop_s, within_s = server.stop_within.total_seconds(), server.request_within.total_seconds()
    most = {"most": server.address_connections, "most_of_all": _MANY_CONNECTIONS}
    limited = type("Limited", (Connection,), {"within_s": within_s, **most})
    limits: dict[str, Any] = {"http": limited, "limit_concurrency": _MOST_CONNECTIONS, **_QUIET}
    config = uvicorn.Config(
        build_app(parts), **limits,
        timeout_graceful_shutdown=max(int(stop_s / 2), 1), timeout_keep_alive=75,
    )  # fmt: skip
    watched = uvicorn.Server(uvicorn.Config(build_health(parts), **limits))
    stopping = Event()
    upkeep = Thread(target=_look_after, args=(parts, vault, stopping), name="upkeep", daemon=True)
    serving = _Leaving(config, parts)
    # uvicorn listens to signals only while it runs, and passes the one that ended it on when it is done: what comes
    # before ends it, too, and what comes after ends nothing, so that the end is in order and the status 0.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, serving.handle_exit)
    # Arrow imports pandas at its first row, which takes a second in which no other thread runs.
    table_of([{"received_ts": datetime.now(UTC)}], VAULT)
    # A delivery computes for a second now and then; a request wakes up several times and waits for it each time, 5 ms
    # by default (a guess: how much that saves was not measured on a quiet machine).
    sys.setswitchinterval(0.001)
    parts.delivery.start()
    upkeep.start()
    Thread(target=watched.run, args=([health],), name="health", daemon=True).start()
    say(f"Listening on http://{host}:{port}; description on /docs; health on port {health.getsockname()[1]}")
    serving.run(sockets=[listening])
    stopping.set()
    parts.spool.finish()
    parts.delivery.stop(stop_s)
    left = len(parts.spool.sealed())
    say("Stopped; everything is delivered" if not left else f"Stopped; {left} segments wait for the next start")


class _Leaving(uvicorn.Server):
    """A server that says for a while that it is not ready before it refuses connections."""

    def __init__(self, config: uvicorn.Config, parts: Parts) -> None:
        super().__init__(config)
        self._parts = parts

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop: after `stop_after` the first time, at once the second time."""
        wait_s = 0.0 if self._parts.stopping else self._parts.settings.ingest_server.stop_after.total_seconds()
        self._parts.stopping = True
        if not wait_s:
            super().handle_exit(sig, frame)
            return
        later = Timer(wait_s, super().handle_exit, (sig, None))
        later.daemon = True
        later.start()


def _look_after(parts: Parts, vault: Vault, stopping: Event) -> None:
    """Read the keys anew every `key_refresh`, at least every hour, and remove old refused events every hour."""
    server, expire_at = parts.settings.ingest_server, 0.0
    while not stopping.wait(min(max(server.key_refresh.total_seconds(), 0.05), _HOUR_S)):
        try:
            parts.keys.refresh()
            if time.monotonic() >= expire_at:
                expire_at = time.monotonic() + _HOUR_S
                expire_refused(vault, server.refused_for)
        except Exception as error:
            # The next round tries again: revoked keys must not count because something else is broken. Of errors that
            # are not ours the text may quote what was refused.
            _LOG.warning("upkeep failed: %s", error if isinstance(error, PlatformError) else type(error).__name__)


def _raise_descriptors() -> None:
    """Allow as many as the two ports may need, and files beside them: 1,024, which is usual, are too few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _listen(host: str, port: int, setting: str) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise AddressInUse(
            f"The ingest server cannot listen on {host}:{port}: {error.strerror or error}. Nothing was started. Set "
            f"ENGAGEMENT_PLATFORM_INGEST_SERVER__{setting} to a free port, or stop what listens there."
        ) from error
