"""`moto.server` with a door: programs of this machine are answered, pages in its browsers are not.

Moto's own server answers any Host and any page: one request of a page empties it. Run as a program, with the arguments
of `moto.server`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

# Clients put the bucket before a name, never before an address.
_HOST = re.compile(r"(127\.0\.0\.1|([a-z0-9.-]+\.)?localhost)(:\d+)?", re.IGNORECASE)


def refusal(environ: WSGIEnvironment) -> str | None:
    """Why a request is not answered, as one sentence; None where it is. environ: of WSGI."""
    # A name that leads to this machine without being one of these is how a foreign page gets the same origin.
    if not _HOST.fullmatch(environ.get("HTTP_HOST", "")):
        return "This server answers only as 127.0.0.1 or localhost."
    # A browser sends the first with each request that is no plain GET, the second with every one; clients neither.
    if "HTTP_ORIGIN" in environ or "HTTP_SEC_FETCH_SITE" in environ:
        return "This server answers programs, not browsers."
    return None


def guarded(app: WSGIApplication) -> WSGIApplication:
    """The same application behind the door: what is refused gets 403 and the reason."""

    def door(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if reason := refusal(environ):
            start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{reason}\n".encode()]
        return app(environ, start_response)

    return door


def main() -> None:
    from moto import server

    # The command makes its application by this name and offers no other place for a middleware.
    command: Any = server
    create = command.DomainDispatcherApplication
    command.DomainDispatcherApplication = lambda *given: guarded(create(*given))
    command.main()


if __name__ == "__main__":
    main()
