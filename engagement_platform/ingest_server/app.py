"""The HTTP interface: who may send what, and the status of every answer. What becomes of events is `intake`."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from threading import Lock
from typing import Any

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Request, Response, Security
from fastapi.responses import JSONResponse
from fastapi.security import APIKeyHeader, HTTPBearer
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import ClientDisconnect

from engagement_platform.ingest_server.delivery import Delivered, Delivery
from engagement_platform.ingest_server.events import EventRefused, Sent, sent_as_json, sent_as_lines
from engagement_platform.ingest_server.figures import CONTENT_TYPE, Figures
from engagement_platform.ingest_server.intake import Intake, RefusedEvent, Taken
from engagement_platform.ingest_server.keys import KeyCache
from engagement_platform.ingest_server.limits import Allowance, Turned, whole_body
from engagement_platform.ingest_server.spool import RecordKind, Spool, SpoolFull
from engagement_platform.settings import Settings

JSON, LINES = "application/json", "application/x-ndjson"
_READERS = {JSON: sent_as_json, LINES: sent_as_lines, "application/jsonl": sent_as_lines}
_LATER = {"Retry-After": "30"}
_RECORD_BYTES = 512
"""What a refused event costs beside its own bytes: a row of the spool and one of the vault, each with its game, its
subject's reference and its places in indexes, and often a key of its own. A number can cost more than that."""
_REQUESTS_AT_ONCE = 750
"""Of one game: fewer than the server takes of all, and more than one address has connections by default."""
_THREADS = 8
"""Of one game: its requests wait for one another, and those of other games for none of them."""
_PROVE = {"WWW-Authenticate": "Bearer"}


class Event(BaseModel):
    """What an event must have; any other field is welcome."""

    model_config = ConfigDict(extra="allow")

    event_id: str = Field(min_length=1, max_length=256)
    event_type: str = Field(pattern="^[a-z][a-z0-9_]{0,63}$")
    event_ts: datetime
    player_id: str | None = None
    game_id: str | None = Field(default=None, description="May be left out; the API key says it.")


class Answer(BaseModel):
    """What became of a request's events. Every one is either accepted or listed as refused."""

    accepted: int = Field(description="Events that are on disk and will be delivered.")
    refused: list[RefusedEvent]


class Problem(BaseModel):
    """Why nothing of a request was accepted."""

    reason_code: str
    reason: str


@dataclass
class Parts:
    """What the interface calls."""

    settings: Settings
    intake: Intake
    spool: Spool
    keys: KeyCache
    delivery: Delivery
    figures: Figures = field(default_factory=Figures)
    stopping: bool = False
    """Whether the server was asked to stop."""
    _allowances: dict[tuple[str, str], Allowance] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)
    _under_way: Counter[str] = field(default_factory=Counter)
    threads: dict[str, CapacityLimiter] = field(default_factory=lambda: defaultdict(lambda: CapacityLimiter(_THREADS)))
    """By game; of the event loop."""

    def __post_init__(self) -> None:
        gauge = self.figures.gauge
        gauge("ingest_spool_bytes", "Bytes that wait for the sink.", lambda: self.spool.size_bytes)
        gauge("ingest_spool_commits", "Commits of the spool.", lambda: self.spool.commits)
        gauge("ingest_delivery_failures", "Deliveries that failed.", lambda: self.delivery.failures)
        gauge("ingest_ready", "1 when requests are taken.", lambda: not self.troubles())

    def troubles(self) -> list[str]:
        """Why the server should get no requests now; none when it is ready."""
        found = ["the server is stopping"] if self.stopping else []
        found += [self.spool.broken] if self.spool.broken else []
        if self.is_full():
            found.append(f"{self.spool.size_bytes} bytes wait for the sink")
        if self.delivery.failed is not None:
            found.append(self.delivery.failed)
        if self.keys.unanswered is not None:
            found.append(str(self.keys.unanswered))
        return found

    def is_full(self) -> bool:
        """Whether more waits for the sink than may."""
        return self.spool.size_bytes > self.settings.ingest_server.max_spool_bytes

    def count_delivered(self, delivered: Delivered) -> None:
        self.figures.objects.inc()
        for outcome, count in vars(delivered).items():
            self.figures.delivered.labels(outcome).inc(count)

    @contextmanager
    def under_way(self, game: str) -> Iterator[None]:
        """Count a request of a game while it lasts, in the event loop. Raises Turned."""
        if self._under_way[game] >= _REQUESTS_AT_ONCE:
            reason = f"At most {_REQUESTS_AT_ONCE} requests of a game at once."
            raise Turned(429, "too_many_at_once", reason, Connection="close", **{"Retry-After": "1"})
        self._under_way[game] += 1
        try:
            yield
        finally:
            self._under_way[game] -= 1

    def allow_bytes(self, game: str, owed: int = 0) -> None:
        """Raise Turned for a game that owes more bytes of its allowance than so many, until that has caught up."""
        limits = self.settings.ingest_server
        self._allow(game, "bytes", 0, limits.rate_bytes, limits.burst_bytes, owed)

    def charge_bytes(self, game: str, count: int) -> None:
        """Take bytes that were read off a game's allowance, which its work is bounded by. `allow_bytes` made it."""
        with self._lock:
            self._allowances[game, "bytes"].charge(count, time.monotonic())

    def allow_events(self, game: str, count: int) -> None:
        """Take events off a game's allowance. Raises Turned."""
        limits = self.settings.ingest_server
        self._allow(game, "events", count, limits.rate_events, limits.burst_events)

    def allow_refused(self, game: str, count: int) -> None:
        """Take bytes of refused events off a game's quota. Raises Turned."""
        limits = self.settings.ingest_server
        # Half at once and half over the time that they are kept: never more than the whole.
        half = limits.refused_bytes / 2
        self._allow(game, "bytes of refused events", count, half / limits.refused_for.total_seconds(), half)

    def _allow(self, game: str, what: str, count: int, rate: float, burst: float, owed: int = 0) -> None:
        now = time.monotonic()
        with self._lock:
            wait = self._allowances.setdefault((game, what), Allowance(rate, burst, now)).wait(count, now, owed)
        if wait:
            raise Turned(429, "too_fast", f"Too many {what} a second.", **{"Retry-After": str(int(wait) + 1)})


def build_app(parts: Parts) -> FastAPI:
    """The application, with its description for OpenAPI at /openapi.json and /docs."""
    app = FastAPI(
        title="Ingest server",
        summary="Takes events of games: acknowledged ones are on disk, free of personal data, and delivered.",
        version="1",
    )

    @app.post("/v1/events", response_model=Answer, responses=_PROBLEMS, openapi_extra=_BODY, dependencies=_KEYS)
    async def events(request: Request) -> Response:
        """Send a batch of events: a JSON list, an object with the list as "events", or one JSON object a line.

        An event has event_id (unique), event_type and event_ts (ISO 8601 with an offset), player_id where it is about
        a player, and any other fields. Send the same event_id again when an answer did not arrive.
        """
        began, headers = time.perf_counter(), dict[str, str]()
        status: int
        answer: Answer | Problem
        try:
            game, read = _game(parts.keys, request), _reader(request)
            if parts.is_full():
                raise Turned(503, "spool_full", "Too many events wait to be delivered.", **_LATER)
            with parts.under_way(game):
                body = await _body(parts, game, request)
                # In a thread: parsing, looking for personal data and waiting for the disk hold up no other request.
                taken = await to_thread.run_sync(_take, parts, game, read, body, limiter=parts.threads[game])
            answer = Answer(accepted=taken.accepted, refused=taken.refused)
            status = 200 if taken.accepted or not taken.refused else 422
        except Turned as turned:
            answer = Problem(reason_code=turned.code, reason=turned.reason)
            status, headers = turned.status, turned.headers
        parts.figures.requests.labels(status).inc()
        parts.figures.seconds.observe(time.perf_counter() - began)
        return JSONResponse(answer.model_dump(), status_code=status, headers=headers)

    return app


def build_health(parts: Parts) -> FastAPI:
    """How the server is, for those who run it. Has a port and a thread of its own, so clients cannot keep it busy."""
    app = FastAPI(openapi_url=None)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Whether the process answers."""
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        """Whether events would be taken now; 503 with the reasons otherwise."""
        troubles = parts.troubles()
        state = {"status": "not ready" if troubles else "ready", "reasons": troubles}
        return JSONResponse(state, status_code=503 if troubles else 200)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Figures for Prometheus."""
        return Response(parts.figures.text(), media_type=CONTENT_TYPE)

    return app


def _game(keys: KeyCache, request: Request) -> str:
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        text = request.headers.get("x-api-key", "")
    if not text:
        raise Turned(401, "no_key", "Send the game's API key.", **_PROVE)
    key = keys.recognize(text.strip())
    if key is None:
        raise Turned(401, "unknown_key", "Nobody has this API key.", **_PROVE)
    if key.revoked_ts is not None:
        raise Turned(403, "revoked_key", "This API key was revoked.")
    return key.game


def _reader(request: Request) -> Callable[[bytes], list[Sent]]:
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    given = (parameter.partition("=") for parameter in parameters.lower().split(";"))
    charsets = {value.strip().strip('"') for name, _, value in given if name.strip() == "charset"}
    read = _READERS.get(kind.strip().lower())
    if read is None or charsets - {"", "utf-8", "utf8"}:
        raise Turned(415, "unknown_content", f"Content-Type is {JSON} or {LINES}, in UTF-8.")
    return read


async def _body(parts: Parts, game: str, request: Request) -> bytes:
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("identity", "gzip", "x-gzip"):
        raise Turned(415, "unknown_encoding", "Content-Encoding is gzip, or none.")
    limits = parts.settings.ingest_server
    parts.allow_bytes(game)
    try:
        async with asyncio.timeout(limits.request_within.total_seconds()):
            return await whole_body(
                _within_allowance(parts, game, request.stream()),
                gzipped=coding != "identity",
                max_bytes=limits.max_body_bytes,
                max_inflated=limits.max_inflated_bytes,
                charge=partial(parts.charge_bytes, game),
            )
    except TimeoutError:
        raise Turned(408, "too_slow", "The body did not arrive in time.", Connection="close") from None
    except ClientDisconnect:
        # Nobody reads this; it is counted.
        raise Turned(408, "gone", "The connection ended before the body did.") from None


async def _within_allowance(parts: Parts, game: str, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A body's parts, the last one empty, each before it is inflated. Raises Turned.

    A body that was let in may end, whatever it inflates to. More than that is owed by bodies that came at the same
    time: so a game has at most a burst and one body in memory, and what its rate allows while they arrive.
    """
    async for chunk in chunks:
        parts.allow_bytes(game, parts.settings.ingest_server.max_inflated_bytes)
        yield chunk


def _take(parts: Parts, game: str, read: Callable[[bytes], list[Sent]], body: bytes) -> Taken:
    """Return when every record is on disk. Raises Turned."""
    now, limits = datetime.now(UTC), parts.settings.ingest_server
    too_many = Turned(413, "too_many_events", f"At most {limits.max_events} events in a request.")
    if read is sent_as_lines and body.count(b"\n") > 2 * limits.max_events:
        raise too_many
    if body.count(b",") + body.count(b"[") + body.count(b"{") > limits.max_events * limits.max_values:
        raise Turned(413, "too_many_values", "More values than as many events as are allowed may have.")
    try:
        sent = read(body)
    except EventRefused as refused:
        parts.allow_events(game, 1 + len(body) // limits.max_event_bytes)
        _keep(parts, game, parts.intake.refuse_whole(game, body, refused.reason, now))
        raise Turned(422, refused.reason, refused.reason.sentence) from None
    if len(sent) > limits.max_events:
        raise too_many
    parts.allow_events(game, len(sent))
    taken = parts.intake.take(game, sent, now)
    # Personal data is sealed value by value, so a body may become many times its bytes in the spool.
    parts.charge_bytes(game, max(0, sum(record.size for record in taken.records) - len(body)))
    _keep(parts, game, taken)
    return taken


def _keep(parts: Parts, game: str, taken: Taken) -> None:
    records = taken.records
    try:
        parts.allow_refused(game, sum(_RECORD_BYTES + each.size for each in records if each.kind is RecordKind.REFUSED))
    except Turned:
        records = [each for each in records if each.kind is RecordKind.ACCEPTED]
        parts.figures.not_kept.labels(game).inc(len(taken.refused))
    try:
        if records:
            parts.spool.append(records)
    except SpoolFull:
        raise Turned(503, "spool_full", "The disk is full or too slow; nothing was kept.", **_LATER) from None
    figures = parts.figures
    figures.events.labels(game, "accepted").inc(taken.accepted)
    figures.events.labels(game, "refused").inc(len(taken.refused))
    for refused in taken.refused:
        figures.refused.labels(refused.reason_code).inc()
    for counter, counts in ((figures.found, taken.found), (figures.values, taken.values)):
        for label, count in counts.items():
            counter.labels(label).inc(count)


# For the description only: `_game` decides which key is whose, and how a request without one is answered.
_KEYS = [Security(HTTPBearer(auto_error=False)), Security(APIKeyHeader(name="X-API-Key", auto_error=False))]
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    401: {"model": Problem, "description": "No API key, or an unknown one."},
    403: {"model": Problem, "description": "The API key was revoked."},
    408: {"model": Problem, "description": "The body did not arrive in time; send it again."},
    413: {"model": Problem, "description": "Too many bytes, events or values in one request; nothing of it was kept."},
    415: {"model": Problem, "description": "Another Content-Type or Content-Encoding; nothing of it was kept."},
    422: {
        "model": Answer | Problem,
        "description": "No event was accepted. They, or the body that holds none, are kept with the reason.",
    },
    429: {
        "model": Problem,
        "description": "Too many events or bytes a second, or requests at once; send again after Retry-After seconds.",
    },
    503: {"model": Problem, "description": "Events cannot be kept now; send it again after Retry-After seconds."},
}
_EVENTS = {"type": "array", "items": Event.model_json_schema()}
_EXAMPLE = [{"event_id": "6f1", "event_type": "level_up", "event_ts": "2026-11-22T10:00:00Z", "level": 7}]
_EITHER = {"oneOf": [_EVENTS, {"type": "object", "properties": {"events": _EVENTS}}]}
_GZIP = {"name": "Content-Encoding", "in": "header", "schema": {"type": "string", "enum": ["gzip"]}}
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {JSON: {"schema": _EITHER, "example": _EXAMPLE}, LINES: {"schema": {"type": "string"}}},
    },
    "parameters": [_GZIP],
}
