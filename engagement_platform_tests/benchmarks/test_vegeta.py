"""What vegeta sends, and what is made of its answers, against a real HTTP server. Only where it is installed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from benchmarks import vegeta

pytestmark = pytest.mark.skipif(
    not vegeta.installed(), reason="vegeta is missing: go install github.com/tsenart/vegeta/v12@v12.12.0"
)
BODIES = [f"body {number}".encode() for number in range(30)]


@contextmanager
def server(refused: int) -> Iterator[tuple[str, dict[int, bytes]]]:
    """(its URL, number -> what came); one request is answered with 503."""
    came: dict[int, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            number = int(parse_qs(urlsplit(self.path).query)["n"][0])
            assert number not in came
            assert self.headers["X-Key"] == "k"
            came[number] = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(503 if number == refused else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_port}/v1/events", came
        finally:
            listening.shutdown()
            thread.join()


@pytest.mark.parametrize("every_s", [None, 0.01])
def test_each_body_is_sent_once_and_its_answer_found(tmp_path: Path, every_s: float | None) -> None:
    with server(refused=7) as (url, came):
        answers = vegeta.attack(tmp_path, url, {"X-Key": "k"}, BODIES, seconds=30, every_s=every_s, workers=3)
    assert came == dict(enumerate(BODIES))
    assert sorted(answer.number for answer in answers) == list(range(len(BODIES)))
    assert [answer.number for answer in answers if answer.status == 503] == [7]
    assert {answer.status for answer in answers} == {200, 503}
    assert all(answer.latency_s > 0 for answer in answers)


def test_a_pace_is_kept_until_the_time_is_over(tmp_path: Path) -> None:
    with server(refused=-1) as (url, came):
        answers = vegeta.attack(tmp_path, url, {"X-Key": "k"}, BODIES, seconds=1, every_s=1 / 12.5, workers=1)
    # One is due at the beginning, and one every 80 ms from there on.
    assert len(came) == len(answers) == 13
