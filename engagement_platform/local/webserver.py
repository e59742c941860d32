"""`dagster-webserver` with a door: no page of another site can read or change anything through a visitor's browser.

Dagster's own server answers any Host, and takes GraphQL from links and forms, which every page can send. Run as a
program, with the arguments of `dagster-webserver`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from dagster_webserver import cli

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Any, Send], Awaitable[None]]

_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d+)?", re.IGNORECASE)


def refusal(scope: Scope) -> str | None:
    """Why a request is not answered, as one sentence; None where it is. scope: of ASGI, HTTP or a websocket."""
    headers: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    hosts, origins = headers.get("host", []), headers.get("origin", [])
    # A name that leads to this machine without being one of these is how a foreign page gets the same origin.
    if len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
        return "This server answers only as 127.0.0.1 or localhost."
    # Programs send no Origin; a browser does, with each websocket and each request that is no plain GET.
    if any(
        origin.lower() not in {f"{scheme}://{hosts[0].lower()}" for scheme in ("http", "https")} for origin in origins
    ):
        return "This server answers only pages of its own."
    if scope["type"] == "http" and scope["path"].rstrip("/") == "/graphql":
        kinds = [kind.partition(";")[0].strip().lower() for kind in headers.get("content-type", [])]
        if scope["method"] != "POST" or kinds != ["application/json"]:
            return "GraphQL is answered only to a POST of application/json."
    return None


def guarded(app: App) -> App:
    """The same application behind the door: what is refused gets 403 and the reason."""

    async def door(scope: Scope, receive: Any, send: Send) -> None:
        reason = refusal(scope) if scope["type"] in ("http", "websocket") else None
        if reason is None:
            await app(scope, receive, send)
        elif scope["type"] == "websocket":
            # Before it is accepted, this is a 403.
            await send({"type": "websocket.close", "code": 1008, "reason": reason})
        else:
            kind = (b"content-type", b"text/plain; charset=utf-8")
            await send({"type": "http.response.start", "status": 403, "headers": [kind]})
            await send({"type": "http.response.body", "body": f"{reason}\n".encode()})

    return door


def main() -> None:
    """Serve until a signal comes."""
    # The command makes its application by this name and offers no other place for a middleware.
    command: Any = cli
    create = command.create_app_from_workspace_process_context
    command.create_app_from_workspace_process_context = lambda *given, **named: guarded(create(*given, **named))
    command.main()


if __name__ == "__main__":
    main()
