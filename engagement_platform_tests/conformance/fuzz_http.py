"""The ingest server as a process, and what it keeps to whatever is sent to it: no status that its description does not
have, answers as described, health answered within a second, and all that was acknowledged is delivered, once.
"""

from __future__ import annotations

import gzip
import json
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import requests
import schemathesis
from hypothesis import strategies as st
from schemathesis.checks import CheckFunction
from schemathesis.core.result import Err, Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from engagement_platform.ingest_server.keys import IngestKeys
from engagement_platform.settings import Settings
from engagement_platform_tests.conformance.fuzz_property import Property
from engagement_platform_tests.conformance.hostile import damaged, encoded, json_texts, nearly, object_text
from engagement_platform_tests.ingest_server.world import Server, ids, key_for, server, stored

_CHECKS: list[CheckFunction] = [
    status_code_conformance, content_type_conformance, response_headers_conformance, response_schema_conformance
]  # fmt: skip
_JSON = "application/json"
_EVENTS = [
    {"event_id": "e-1", "event_type": "level_up", "event_ts": "2026-11-22T10:00:00Z", "player_id": "p-1", "level": 7},
    {"event_id": "e-2", "event_type": "purchase", "event_ts": "2026-11-22T10:00:00+01:00", "player_id": 17,
     "payment": {"card_number": "4111111111111111"}, "note": "to bob@example.org", "phones": ["+49 30 1234567"]},
]  # fmt: skip


_RAW = st.sampled_from(
    (
        b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/events HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"\x16\x03\x01\x02\x00",
        b"POST /v1/events HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        b"POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /%ff%00 HTTP/1.1\r\nHost: \xff\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"A" * 100_000,
        b"GET /docs HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
        b"DELETE /v1/events HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    )
)  # fmt: skip


class Sent(NamedTuple):
    """A request: its body before it is packed, as it goes over the wire, and its headers."""

    plain: bytes
    body: bytes
    headers: Mapping[str, str]


def _bodies() -> st.SearchStrategy[bytes]:
    fine = st.integers(0).map(lambda number: json.dumps({**_EVENTS[number % 2], "event_id": f"e-{number}"}))
    some = st.lists(st.one_of(fine, nearly(_EVENTS)), max_size=5)
    texts = st.one_of(
        some.map(lambda each: f"[{','.join(each)}]"),
        # Once, or twice.
        st.lists(some, min_size=1, max_size=2).map(
            lambda lists: object_text([('"events"', f"[{','.join(each)}]") for each in lists])
        ),
        some.map("\n".join),
        json_texts(),
        st.sampled_from(("[" + "1," * 600 + "1]", "1\n" * 600, "[" * 100_000, '{"a":' * 5000, "9" * 100_000)),
    )
    return st.one_of(encoded(texts), damaged(encoded(texts)), st.binary(max_size=50))


_BOMB = gzip.compress(b"[" + b" " * 9 * 1024**2 + b"]")


def _packed(plain: bytes, how: str) -> bytes:
    zipped = gzip.compress(plain, 1)
    match how:
        case "gzip":
            return zipped
        case "two members":
            return zipped * 2
        case "cut":
            return zipped[:-3]
        case "flipped":
            return zipped[:12] + bytes((zipped[12] ^ 1,)) + zipped[13:]
        case "bomb":
            return _BOMB
        case _:
            return plain


def _requests(key: str, revoked: str) -> st.SearchStrategy[Sent]:
    # Most requests are to come as far as their events.
    auth = st.sampled_from(
        [{"Authorization": f"Bearer {key}"}] * 12 + [{"X-API-Key": key}] * 4
        + [{}, {"Authorization": "Bearer "}, {"Authorization": "Basic YTpi"}, {"X-API-Key": "ep_é_x"},
           {"Authorization": f"Bearer {revoked}"}, {"Authorization": f"bearer  {key} "}]
    )  # fmt: skip
    kinds = st.sampled_from(
        [_JSON] * 6 + ["application/x-ndjson"] * 4
        + ["application/jsonl; charset=utf-8", "text/plain", "", "application/json; charset=latin-1", ";", "a" * 500]
    )  # fmt: skip
    packing = st.sampled_from(
        ["none"] * 8 + ["gzip"] * 8 + ["two members", "cut", "plain as gzip", "flipped"] * 2 + ["bomb"]
    )

    def sent(plain: bytes, auth: Mapping[str, str], kind: str, how: str) -> Sent:
        coding = {} if how == "none" else {"Content-Encoding": "gzip"}
        return Sent(
            plain if how in ("none", "gzip") else b"", _packed(plain, how), {**auth, **coding, "Content-Type": kind}
        )

    return st.builds(sent, _bodies(), auth, kinds, packing)


class FuzzedServer:
    """A server that runs, and the properties of what is sent to it."""

    def __init__(self, home: Path, running: Server, key: str, revoked: str) -> None:
        self._home, self._running, self._key = home, running, key
        self._description = schemathesis.openapi.from_url(f"http://127.0.0.1:{running.port}/openapi.json")
        self._operation = self._description["/v1/events"]["POST"]
        operations = loaded(self._description.get_all_operations())
        self._session = requests.Session()
        self._session.trust_env = False
        self._statuses, self._accepted = Counter[int](), Counter[str]()
        self._slowest_s, self._unhealthy, self._done = 0.0, 0, threading.Event()
        self._looking = threading.Thread(target=self._look, name="health", daemon=True)
        self._looking.start()
        of = {
            f"HTTP: {one.method.upper()} {one.path}, {mode.value} by its description": Property(
                one.as_strategy(generation_mode=mode), self._described
            )
            for one in operations
            for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
        }
        self.properties: Mapping[str, Property] = {
            **of, "HTTP: hostile bodies": Property(_requests(key, revoked), self._hostile),
            "HTTP: bytes that are no request": Property(st.one_of(st.binary(max_size=200), _RAW), self._raw),
        }  # fmt: skip

    def _described(self, case: schemathesis.Case[Any]) -> None:
        response = case.call(headers={"Authorization": f"Bearer {self._key}"}, session=self._session)
        case.validate_response(response, checks=_CHECKS)
        sent = response.request.body
        body = sent.encode() if isinstance(sent, str) else sent if isinstance(sent, bytes) else b""
        self._account(response.status_code, body, response.content, lines=case.media_type != _JSON)

    def _hostile(self, sent: Sent) -> None:
        url = f"http://127.0.0.1:{self._running.port}/v1/events"
        response = self._session.post(url, data=sent.body, headers=dict(sent.headers), timeout=60)
        assert str(response.status_code) in self._operation.definition.raw["responses"], response.status_code
        self._operation.validate_response(response)
        lines = sent.headers["Content-Type"].partition(";")[0] != _JSON
        self._account(response.status_code, sent.plain, response.content, lines=lines)

    def _raw(self, content: bytes) -> None:
        with socket.create_connection(("127.0.0.1", self._running.port), timeout=60) as connection:
            connection.sendall(content)
            connection.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):
                answer = connection.recv(4096)
                assert not answer.startswith(b"HTTP/1.1 5"), answer

    def _account(self, status: int, body: bytes, answer: bytes, *, lines: bool) -> None:
        """Count what was acknowledged, by the ids of the events as Python's own parser reads them."""
        self._statuses[status] += 1
        said = json.loads(answer)
        if not said.get("accepted"):
            return
        refused, events = {one["index"] for one in said["refused"]}, _events_in(body, lines=lines)
        # Counted before anything else is looked at, so that what is found here is not found again at the end.
        self._accepted.update(event["event_id"] for index, event in enumerate(events) if index not in refused)
        assert len(events) == said["accepted"] + len(refused), "an event is neither accepted nor refused"

    def _look(self) -> None:
        while not self._done.wait(0.1):
            began = time.monotonic()
            healthy = False
            with suppress(OSError):
                healthy = self._running.call("GET", "/healthz").status == 200
            self._unhealthy += not healthy
            self._slowest_s = max(self._slowest_s, time.monotonic() - began)

    def finish(self) -> None:
        """Stop the server, and raise AssertionError unless it was well all the time and delivered what it has to."""
        self._done.set()
        self._looking.join()
        status, output = self._running.stop()
        delivered = Counter(ids(stored(self._home / "games")))
        found = wrong(status, output, self._accepted, delivered, self._unhealthy, self._slowest_s)
        assert not found, "; ".join(found)

    def seen(self) -> str:
        """What was answered, in words."""
        statuses = ", ".join(f"{count:,} of {status}" for status, count in sorted(self._statuses.items()))
        events, slowest = self._accepted.total(), self._slowest_s
        return f"answers: {statuses}; {events:,} events acknowledged; slowest /healthz {slowest:.2f} s"


def loaded(operations: Iterable[Ok[Any] | Err[Any]]) -> list[Any]:
    """Operations of a description. Raises AssertionError where there is one that cannot be read, and so not tried."""
    found = list(operations)
    broken = [str(one.err()) for one in found if isinstance(one, Err)]
    assert not broken, f"operations that cannot be tried: {'; '.join(broken)}"
    return [one.ok() for one in found if isinstance(one, Ok)]


def wrong(
    status: int,
    output: str,
    accepted: Counter[str],
    delivered: Counter[str],
    unhealthy: int,
    slowest_s: float,
) -> list[str]:
    """All that is wrong with a server that has stopped, whatever else is."""
    lost, more = accepted - delivered, delivered - accepted
    looked = {
        f"ended with status {status}: {output[-2000:]}": status != 0,
        f"its log has a traceback: {output[-2000:]}": "Traceback" in output,
        "no event was acknowledged, so none could be lost": not accepted,
        f"{lost} lost, {more} too many": bool(lost or more),
        f"/healthz did not answer {unhealthy} times": unhealthy > 0,
        f"/healthz took {slowest_s:.1f} s": slowest_s >= 1,
    }
    return [what for what, is_so in looked.items() if is_so]


def _events_in(body: bytes, *, lines: bool) -> list[Any]:
    if lines:
        return [_parsed(line) for line in body.split(b"\n") if line.strip()]
    whole = _parsed(body)
    return list(whole["events"] if isinstance(whole, dict) else whole)


def _parsed(text: bytes) -> Any:
    try:
        # Python makes no integer of more than 4,300 digits.
        return json.loads(text.decode(), parse_int=float)
    except (ValueError, RecursionError):
        return None


@contextmanager
def fuzzed_server() -> Iterator[FuzzedServer]:
    """A server with its limits on, and segments of a second."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        home = Path(folder)
        key, revoked = key_for(home, "puzzle"), key_for(home, "puzzle")
        IngestKeys(Settings(home=home).store_url).revoke(revoked.split("_")[1])
        with server(home, INGEST_SERVER__SEGMENT_AGE="PT1S", INGEST_SERVER__STOP_WITHIN="PT200S") as running:
            yield FuzzedServer(home, running, key, revoked)
