"""The HTTP interface: who may send what, and the status of every answer. What becomes of events is `intake`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response, Security
from fastapi.responses import JSONResponse
from fastapi.security import APIKeyHeader, HTTPBearer
from pydantic import BaseModel, Field

from engagement_platform.ingest_server.events import (
    EventRefused,
    Sent,
    sent_as_json,
    sent_as_lines,
)
from engagement_platform.ingest_server.figures import CONTENT_TYPE, Figures
from engagement_platform.ingest_server.intake import Intake, Taken
from engagement_platform.ingest_server.keys import Doorkeeper
from engagement_platform.ingest_server.limits import Allowance, BodyBroken, BodyTooLarge, whole_body
from engagement_platform.ingest_server.spool import Spool, SpoolFull
from engagement_platform.settings import Settings

JSON, LINES = "application/json", "application/x-ndjson"


class RefusedEvent(BaseModel):
    """One event that was refused, and kept with its reason."""

    index: int = Field(description="Place of the event in the request, from 0.")
    event_id: str | None = Field(description="Its id, where it has one.")
    reason_code: str
    reason: str
    field: str | None = Field(default=None, description="JSON pointer to what looks like personal data.")


class Answer(BaseModel):
    """What became of a request's events. Every one is either accepted or listed as refused."""

    accepted: int = Field(description="Events that are on disk and will be delivered.")
    refused: list[RefusedEvent]


class Problem(BaseModel):
    """Why nothing of a request was accepted."""

    reason_code: str
    reason: str


class Turned(Exception):
    """A request that is turned away as a whole, and of which nothing is kept."""

    def __init__(self, status: int, code: str, reason: str, **headers: str) -> None:
        super().__init__(reason)
        self.status, self.code, self.reason, self.headers = status, code, reason, headers


@dataclass(frozen=True)
class Parts:
    """What the interface speaks to."""

    settings: Settings
    intake: Intake
    spool: Spool
    doorkeeper: Doorkeeper
    figures: Figures
    troubles: Callable[[], list[str]]
    """Sentences why the server had better get no requests now; none when it is ready."""


def build_app(parts: Parts) -> FastAPI:
    """The application, with its description for OpenAPI at /openapi.json and /docs."""
    app = FastAPI(
        title="Ingest server",
        summary="Takes events of games: acknowledged ones are on disk, free of personal data, and delivered.",
        version="1",
    )
    post = _Post(parts)

    @app.post("/v1/events", response_model=Answer, responses=_PROBLEMS, openapi_extra=_BODY, dependencies=_KEYS)
    async def events(request: Request) -> Response:
        """Send a batch of events: a JSON list, an object with the list as "events", or one JSON object a line.

        An event has event_id (unique), event_type and event_ts (ISO 8601 with an offset), player_id where it is about
        a player, and any other fields. Send the same event_id again when an answer did not arrive.
        """
        return await post(request)

    @app.get("/healthz", response_model=dict[str, str])
    async def healthz() -> dict[str, str]:
        """Whether the process answers."""
        return {"status": "ok"}

    @app.get("/readyz", responses={503: {"description": "It had better get no requests; the reasons are listed."}})
    async def readyz() -> JSONResponse:
        """Whether events would be taken now."""
        troubles = parts.troubles()
        said = {"status": "not ready" if troubles else "ready", "reasons": troubles}
        return JSONResponse(said, status_code=503 if troubles else 200)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Figures for Prometheus."""
        return Response(parts.figures.text(), media_type=CONTENT_TYPE)

    return app


class _Post:
    """Answers one request after the other."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._limits = parts, parts.settings.ingest_server
        self._allowances: dict[str, Allowance] = {}

    async def __call__(self, request: Request) -> Response:
        began = time.perf_counter()
        try:
            response = await self._answer(request)
        except Turned as turned:
            said = {"reason_code": turned.code, "reason": turned.reason}
            response = JSONResponse(said, status_code=turned.status, headers=turned.headers)
        self._parts.figures.requests.labels(response.status_code).inc()
        self._parts.figures.seconds.observe(time.perf_counter() - began)
        return response

    async def _answer(self, request: Request) -> Response:
        game = self._game(request)
        read = _reader(request)
        if self._parts.spool.size_bytes > self._limits.max_spool_bytes:
            raise Turned(503, "spool_full", "Too many events wait to be delivered.", **{"Retry-After": "30"})
        body = await self._body(request)
        now = datetime.now(UTC)
        try:
            sent = read(body)
            if len(sent) > self._limits.max_events:
                raise Turned(413, "too_many_events", f"At most {self._limits.max_events} events in a request.")
            self._allow(game, len(sent))
            taken = self._parts.intake.take(game, sent, now)
        except EventRefused as refused:
            self._allow(game, 1 + len(body) // self._limits.max_event_bytes)
            taken = self._parts.intake.refuse_whole(game, body, refused.reason, now)
            await self._keep(taken)
            self._count(game, taken)
            raise Turned(422, refused.reason, refused.reason.sentence) from None
        await self._keep(taken)
        self._count(game, taken)
        return JSONResponse(_answer(taken), status_code=200 if taken.accepted or not taken.refused else 422)

    def _game(self, request: Request) -> str:
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            text = request.headers.get("x-api-key", "")
        if not text:
            raise Turned(401, "no_key", "Send the game's API key.", **{"WWW-Authenticate": "Bearer"})
        key = self._parts.doorkeeper.recognize(text.strip())
        if key is None:
            raise Turned(401, "unknown_key", "Nobody has this API key.", **{"WWW-Authenticate": "Bearer"})
        if key.revoked_ts is not None:
            raise Turned(403, "revoked_key", "This API key was revoked.")
        return key.game

    def _allow(self, game: str, events: int) -> None:
        now = time.monotonic()
        allowance = self._allowances.get(game)
        if allowance is None:
            allowance = self._allowances[game] = Allowance(self._limits.rate_events, self._limits.burst_events, now)
        wait = allowance.wait(events, now)
        if wait:
            raise Turned(429, "too_fast", "Too many events a second.", **{"Retry-After": str(int(wait) + 1)})

    async def _body(self, request: Request) -> bytes:
        coding = request.headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("identity", "gzip", "x-gzip"):
            raise Turned(415, "unknown_encoding", "Content-Encoding is gzip, or none.")
        largest, inflated = self._limits.max_body_bytes, self._limits.max_inflated_bytes
        gzipped = coding != "identity"
        told = request.headers.get("content-length", "")
        try:
            if told.isdigit() and int(told) > largest:
                raise BodyTooLarge
            return await whole_body(request.stream(), gzipped=gzipped, max_bytes=largest, max_inflated=inflated)
        except BodyTooLarge:
            sizes = f"At most {largest} bytes as sent and {inflated} after decompression."
            raise Turned(413, "body_too_large", sizes) from None
        except BodyBroken:
            raise Turned(422, "bad_gzip", "The body is no single, whole gzip stream.") from None

    async def _keep(self, taken: Taken) -> None:
        """Return when every record is on disk."""
        if not taken.records:
            return
        loop = asyncio.get_running_loop()
        kept: asyncio.Future[None] = loop.create_future()
        try:
            self._parts.spool.append(b"".join(taken.records), partial(_done, loop, kept))
            await kept
        except SpoolFull:
            raise Turned(503, "spool_full", "Events cannot be kept now.", **{"Retry-After": "30"}) from None

    def _count(self, game: str, taken: Taken) -> None:
        figures = self._parts.figures
        figures.events.labels(game, "accepted").inc(taken.accepted)
        figures.events.labels(game, "refused").inc(len(taken.refused))
        for refusal in taken.refused:
            figures.refused.labels(refusal.reason).inc()
        for counter, counts in ((figures.found, taken.found), (figures.values, taken.values)):
            for label, count in counts.items():
                counter.labels(label).inc(count)


def _done(loop: asyncio.AbstractEventLoop, kept: asyncio.Future[None], failed: BaseException | None) -> None:
    """From the spool's thread: wake the request up. A client that hung up has nobody to wake."""

    def tell() -> None:
        if kept.done():
            return
        if failed is None:
            kept.set_result(None)
        else:
            kept.set_exception(failed)

    loop.call_soon_threadsafe(tell)


def _reader(request: Request) -> Callable[[bytes], list[Sent]]:
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower().partition("charset=")[2].strip('"')
    readers: dict[str, Callable[[bytes], list[Sent]]] = {
        JSON: sent_as_json, LINES: sent_as_lines, "application/jsonl": sent_as_lines,
    }  # fmt: skip
    read = readers.get(kind.strip().lower())
    if read is None or charset not in ("", "utf-8", "utf8"):
        raise Turned(415, "unknown_content", f"Content-Type is {JSON} or {LINES}, in UTF-8.")
    return read


def _answer(taken: Taken) -> dict[str, Any]:
    refused = [
        {
            "index": one.index,
            "event_id": one.event_id,
            "reason_code": one.reason,
            "reason": one.reason.sentence,
            "field": one.field,
        }
        for one in taken.refused
    ]
    return {"accepted": taken.accepted, "refused": refused}


# For the description only: which key is whose, and the words of a refusal, are the door's.
_KEYS = [Security(HTTPBearer(auto_error=False)), Security(APIKeyHeader(name="X-API-Key", auto_error=False))]
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    401: {"model": Problem, "description": "No API key, or an unknown one."},
    403: {"model": Problem, "description": "The API key was revoked."},
    413: {"model": Problem, "description": "Too many bytes or events in one request; nothing of it was kept."},
    415: {"model": Problem, "description": "Another Content-Type or Content-Encoding; nothing of it was kept."},
    422: {
        "model": Answer | Problem,
        "description": "No event was accepted. They, or the body that holds none, are kept with the reason.",
    },
    429: {"model": Problem, "description": "Too many events a second; send it again after Retry-After seconds."},
    503: {"model": Problem, "description": "Events cannot be kept now; send it again after Retry-After seconds."},
}

_EVENT = {
    "type": "object",
    "required": ["event_id", "event_type", "event_ts"],
    "properties": {
        "event_id": {"type": "string", "minLength": 1, "maxLength": 256},
        "event_type": {"type": "string", "pattern": "^[a-z][a-z0-9_]{0,63}$"},
        "event_ts": {"type": "string", "format": "date-time"},
        "player_id": {"type": "string"},
        "game_id": {"type": "string", "description": "May be left out; the API key says it."},
    },
    "additionalProperties": True,
}
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            JSON: {
                "schema": {
                    "oneOf": [
                        {"type": "array", "items": _EVENT},
                        {"type": "object", "properties": {"events": {"type": "array", "items": _EVENT}}},
                    ]
                },
                "example": [
                    {"event_id": "6f1", "event_type": "level_up", "event_ts": "2026-11-22T10:00:00Z", "level": 7}
                ],
            },
            LINES: {"schema": {"type": "string"}},
        },
    },
    "parameters": [
        {
            "name": "Content-Encoding",
            "in": "header",
            "required": False,
            "schema": {"type": "string", "enum": ["gzip"]},
        },
    ],
}  # fmt: skip
