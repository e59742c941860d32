"""A proxy before moto that fails: requests that are not let through, answers that are lost, broken off or late, whole
outages. Counted.

It is for S3 and SQS as boto3 speaks to them; what is put wrong into the bucket and the queue is the soak's.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import urlsplit

Service = Literal["s3", "sqs"]

_DROPPED = frozenset({"connection", "transfer-encoding", "content-length", "keep-alive", "server", "date"})
LATE_S = 3.0
_S3_ERROR = b"<?xml version='1.0'?><Error><Code>%s</Code><Message>injected</Message></Error>"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing of a client that was killed and has left its connections."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class FaultyProxy:
    """Passes requests on to `upstream`, and fails so many of them, at random but for the same seed.

    shares: of requests that fail, by what happens: `refused` (503, not passed on), `lost` (passed on, answered 500),
    `cut` (passed on, the answer breaks off), `slow` (answered after LATE_S).
    """

    def __init__(self, upstream: str, seed: int, shares: Mapping[str, float]) -> None:
        self.injected: Counter[str] = Counter()
        """Failures so far, by service and kind, such as `s3 refused`."""
        self.coming: deque[str] = deque()
        """What happens to the next requests, before chance decides."""
        self._upstream = urlsplit(upstream)
        self._rng, self._shares = random.Random(seed), dict(shares)
        self._lock = threading.Lock()
        self._down: Service | None = None
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                proxy.answer(self)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_one  # noqa: N815

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Nothing: there are thousands."""

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FaultyProxy:
        threading.Thread(target=self._server.serve_forever, name="faulty-proxy", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @contextmanager
    def outage(self, service: Service) -> Iterator[None]:
        """The service answers nothing but errors meanwhile."""
        self._down = service
        try:
            yield
        finally:
            self._down = None

    def answer(self, asked: BaseHTTPRequestHandler) -> None:
        """One request, passed on or not."""
        body = asked.rfile.read(int(asked.headers.get("Content-Length") or 0))
        service: Service = "sqs" if "AmazonSQS" in (asked.headers.get("X-Amz-Target") or "") else "s3"
        failure = self._failure(service)
        if failure == "refused":
            self._fail(asked, service, 503)
            return
        status, headers, content = self._passed_on(asked, body)
        if failure == "lost":
            self._fail(asked, service, 500)
            return
        if failure == "slow":
            time.sleep(LATE_S)
        asked.send_response_only(status)
        for name, value in headers:
            if name.lower() not in _DROPPED:
                asked.send_header(name, value)
        # SQS's clock, which the source goes by.
        asked.send_header("Date", asked.date_time_string())
        asked.send_header("Content-Length", str(len(content)))
        asked.end_headers()
        if failure == "cut":
            asked.wfile.write(content[: len(content) // 2])
            asked.close_connection = True
            return
        asked.wfile.write(content)

    def _failure(self, service: Service) -> str | None:
        with self._lock:
            if self._down == service:
                failure: str | None = "refused"
            elif self.coming:
                failure = self.coming.popleft()
            else:
                kinds = [*self._shares, None]
                weights = [*self._shares.values(), 1 - sum(self._shares.values())]
                (failure,) = self._rng.choices(kinds, weights)
            if failure:
                self.injected[f"{service} {failure}"] += 1
        return failure

    def _passed_on(self, asked: BaseHTTPRequestHandler, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = HTTPConnection(str(self._upstream.hostname), self._upstream.port, timeout=60)
        try:
            headers = {name: value for name, value in asked.headers.items() if name.lower() != "connection"}
            connection.request(asked.command, asked.path, body or None, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _fail(self, asked: BaseHTTPRequestHandler, service: Service, status: int) -> None:
        code = "SlowDown" if status == 503 else "InternalError"
        kind = "application/x-amz-json-1.0" if service == "sqs" else "application/xml"
        content = (
            b'{"__type":"%s","message":"injected"}' % code.encode() if service == "sqs" else _S3_ERROR % code.encode()
        )
        asked.send_response_only(status)
        asked.send_header("Content-Type", kind)
        asked.send_header("Content-Length", str(len(content)))
        asked.end_headers()
        asked.wfile.write(content)
