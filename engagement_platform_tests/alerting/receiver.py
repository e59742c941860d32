"""A webhook that takes what Apprise sends, refuses it, or never answers. No assertions here."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """Listens on 127.0.0.1 from `with` on; `arrived` has the bodies of what it took, in their order."""

    def __init__(self) -> None:
        self.arrived: list[dict[str, Any]] = []
        self.asked = 0
        self.status = 200
        self.refuses: Callable[[dict[str, Any]], bool] = lambda _body: False
        self._go_on = threading.Event()
        self._go_on.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.asked += 1
                receiver._go_on.wait()
                status = 400 if receiver.refuses(json.loads(body)) else receiver.status
                if status == 200:
                    receiver.arrived.append(json.loads(body))
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_arguments: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        """For Apprise, with a token in its path and a password, and patience beyond any test's."""
        return f"json://somebody:pa55word@127.0.0.1:{self._server.server_port}/hook/t0ken-1234567?rto=30&cto=30"

    def hang(self) -> None:
        """Take connections and do not answer."""
        self._go_on.clear()

    def answer(self) -> None:
        """Answer again, those who wait included."""
        self._go_on.set()

    @property
    def titles(self) -> list[str]:
        """Of what arrived."""
        return [body["title"] for body in self.arrived]

    def __enter__(self) -> Receiver:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._go_on.set()
        self._server.shutdown()
        self._server.server_close()
