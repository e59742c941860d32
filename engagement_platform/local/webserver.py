"""`dagster-webserver` with a door: no page of another site can read or change anything through a visitor's browser.

Dagster's own server answers any Host, lets any page frame it, and takes GraphQL from links and forms, which every page
can send. Run as a program, with the arguments of `dagster-webserver`.
"""

from __future__ import annotations

import re
from typing import Any

from dagster_webserver import cli
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d+)?", re.IGNORECASE)
# Clicks that a foreign page gets by a frame come from pages of this server. Beside a policy of Dagster's both hold.
_NO_FRAMES = [(b"x-frame-options", b"DENY"), (b"content-security-policy", b"frame-ancestors 'none'")]


def refusal(scope: Scope) -> str | None:
    """Why a request is not answered, as one sentence; None where it is. scope: of ASGI, HTTP or a websocket."""
    headers = Headers(scope=scope)
    hosts, origins = headers.getlist("host"), headers.getlist("origin")
    # A name that leads to this machine without being one of these is how a foreign page gets the same origin.
    if len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
        return "This server answers only as 127.0.0.1 or localhost."
    # Programs send no Origin; a browser does, with each websocket and each request that is no plain GET.
    own = {f"{scheme}://{hosts[0].lower()}" for scheme in ("http", "https")}
    if any(origin.lower() not in own for origin in origins):
        return "This server answers only pages of its own."
    # Dagster's routes end where a line does, so `/graphql%0A` leads to GraphQL, too.
    if not scope["path"].isprintable():
        return "A path has no control characters."
    # Wherever `--path-prefix` puts it.
    if scope["type"] == "http" and scope["path"].rstrip("/").endswith("/graphql"):
        kinds = [kind.partition(";")[0].strip().lower() for kind in headers.getlist("content-type")]
        if scope["method"] != "POST" or kinds != ["application/json"]:
            return "GraphQL is answered only to a POST of application/json."
    return None


def guarded(app: ASGIApp) -> ASGIApp:
    """The same application behind the door: what is refused gets 403 and the reason, and no answer can be framed."""

    async def door(scope: Scope, receive: Receive, send: Send) -> None:
        async def unframed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *_NO_FRAMES]}
            await send(message)

        answer = app
        if scope["type"] in ("http", "websocket") and (reason := refusal(scope)):
            # Closed before it is accepted, a websocket is answered with 403.
            closed, refused = WebSocketClose(1008, reason), PlainTextResponse(f"{reason}\n", 403)
            answer = closed if scope["type"] == "websocket" else refused
        await answer(scope, receive, unframed)

    return door


def main() -> None:
    # The command makes its application by this name and offers no other place for a middleware.
    command: Any = cli
    create = command.create_app_from_workspace_process_context
    command.create_app_from_workspace_process_context = lambda *given, **named: guarded(create(*given, **named))
    command.main()


if __name__ == "__main__":
    main()
