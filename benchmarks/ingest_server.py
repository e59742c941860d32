"""How many events a second does the ingest server take, how long do answers take?  python -m benchmarks.ingest_server

Data: made-up events of 2,000 players, one in five with an e-mail address to take out; batches of --batch events from
--clients connections to a server of its own on a fresh home, sink `local`. Two phases: as fast as the clients can, then
at --rate, or half of what was accepted (open loop: requests are sent when they are due, answered or not).
With vegeta (`go install github.com/tsenart/vegeta/v12@v12.12.0`) on the path that sends and times the requests; without
it, or with --own, threads of this program do, whose clock in the second phase starts when a request was due.
Prints events/s accepted, p50, p99 and the longest answer of each phase, requests per fsync, what came out. Fails if
an acknowledged event is not in the objects exactly once. Clients share the machine with the server: compare runs of one
machine only.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import vegeta
from engagement_platform.ingest_server.keys import IngestKeys
from engagement_platform.ingest_server.sinks import local_folder, objects
from engagement_platform.settings import Settings

PLAYERS = 2_000
# Bodies are made before vegeta sends them. Of more than this a second it runs out, and the phase ends sooner.
MOST_EVENTS_S = 8_000


@dataclass
class Phase:
    """What one phase saw. Latencies in seconds, from when a request was due to its whole answer."""

    name: str
    latencies: list[float] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    other: dict[int, int] = field(default_factory=dict)
    """Answers with another status than 200, by status."""
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Events accepted a second."""
        return len(self.acknowledged) / self.seconds

    def told(self) -> str:
        """One line."""
        at = statistics.quantiles(self.latencies, n=100, method="inclusive")
        millis = [f"{1000 * value:.1f}" for value in (at[49], at[98], max(self.latencies))]
        return (
            f"{self.name}: {self.rate:,.0f} events/s accepted, answers p50 {millis[0]} ms, p99 {millis[1]} ms, longest "
            f"{millis[2]} ms ({len(self.latencies):,} requests; other statuses: {self.other or 'none'})"
        )


class Client:
    """One connection, which sends batches until the time is over."""

    def __init__(self, port: int, key: str, batch: int, seed: int) -> None:
        self._port, self._batch, self._dice, self._sent = port, batch, random.Random(seed), 0
        self._name = f"c{seed}"
        self.headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    def run(self, phase: Phase, seconds: float, every_s: float | None) -> None:
        """every_s: pause between two requests being due; None sends the next when the last was answered."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        began = due = time.perf_counter()
        while due - began < seconds:
            ids, body = self.next()
            if every_s is not None:
                time.sleep(max(due - time.perf_counter(), 0))
            start = time.perf_counter() if every_s is None else due
            connection.request("POST", "/v1/events", body, self.headers)
            response = connection.getresponse()
            response.read()
            phase.latencies.append(time.perf_counter() - start)
            if response.status == 200:
                phase.acknowledged.extend(ids)
            else:
                phase.other[response.status] = phase.other.get(response.status, 0) + 1
            due = time.perf_counter() if every_s is None else due + every_s
        connection.close()

    def next(self) -> tuple[list[str], bytes]:
        """Ids of a batch, and its body."""
        now, dice = datetime.now(UTC).isoformat(), self._dice
        events = []
        for _ in range(self._batch):
            self._sent += 1
            event: dict[str, object] = {
                "event_id": f"{self._name}-{self._sent}", "event_type": "level_up", "event_ts": now,
                "player_id": f"p-{dice.randrange(PLAYERS)}", "session_id": f"{dice.getrandbits(64):016x}",
                "level": dice.randrange(100), "device": {"model": "phone-7", "os": "17.1"},
                "coins": dice.randrange(10**6),
            }  # fmt: skip
            if dice.random() < 0.2:
                event["email"] = f"player{dice.randrange(PLAYERS)}@example.org"
            events.append(event)
        return [str(event["event_id"]) for event in events], json.dumps(events).encode()


def run_phase(name: str, clients: list[Client], seconds: float, every_s: float | None) -> Phase:
    """All clients at once."""
    phase = Phase(name)
    threads = [threading.Thread(target=client.run, args=(phase, seconds, every_s)) for client in clients]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    phase.seconds = time.perf_counter() - began
    return phase


def vegeta_phase(
    name: str, client: Client, port: int, batch: int, seconds: float, every_s: float | None, workers: int
) -> Phase:
    """Batches of one client sent by vegeta. every_s: between any two requests; None: as fast as `workers` can."""
    a_second = MOST_EVENTS_S / batch if every_s is None else 1 / every_s
    batches = [client.next() for _ in range(round(seconds * a_second) + 1)]
    phase = Phase(name)
    with tempfile.TemporaryDirectory(prefix="vegeta-") as folder:
        url = f"http://127.0.0.1:{port}/v1/events"
        answers = vegeta.attack(
            Path(folder), url, client.headers, (body for _, body in batches), seconds=seconds, every_s=every_s,
            workers=workers,
        )  # fmt: skip
        phase.seconds = answers[-1].sent_s + answers[-1].latency_s - answers[0].sent_s
    for answer in answers:
        phase.latencies.append(answer.latency_s)
        if answer.status == 200:
            phase.acknowledged.extend(batches[answer.number][0])
        else:
            phase.other[answer.status] = phase.other.get(answer.status, 0) + 1
    return phase


@contextmanager
def running(home: Path) -> Iterator[int]:
    """A server with limits out of the way; its port. Stopped at the end, when all is delivered."""
    env = {
        "HOME": str(home), "INGEST_SERVER__PORT": "0", "INGEST_SERVER__HEALTH_PORT": "0",
        "INGEST_SERVER__RATE_EVENTS": "1000000",
        "INGEST_SERVER__BURST_EVENTS": "1000000", "INGEST_SERVER__SEGMENT_AGE": "PT5S",
        "INGEST_SERVER__STOP_WITHIN": "PT60S", "INGEST_SERVER__RATE_BYTES": "1e12",
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "engagement_platform.cli", "ingest-server"],
        env={**os.environ, **{f"ENGAGEMENT_PLATFORM_{name}": value for name, value in env.items()}},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line.startswith("Listening on"):
            raise SystemExit(f"the server did not start: {line}")
        yield int(line.split(";")[0].rpartition(":")[2])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=90)


def figure(port: int, name: str) -> float:
    """One figure of /metrics."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))


def main() -> None:
    """Parse, measure, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="of each phase")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--batch", type=int, default=20, help="events in a request")
    parser.add_argument("--rate", type=float, help="events a second of the second phase; default: half of the first")
    parser.add_argument("--own", action="store_true", help="send with this program's threads, also if there is vegeta")
    asked = parser.parse_args()
    ours = asked.own or not vegeta.installed()
    with tempfile.TemporaryDirectory(prefix="ingest-server-") as folder:
        home = Path(folder)
        _, key = IngestKeys(Settings(home=home).store_url).add("puzzle")
        with running(home) as port:
            clients = [Client(port, key, asked.batch, seed) for seed in range(asked.clients)]

            def measure(name: str, every_s: float | None) -> Phase:
                """every_s: between any two requests."""
                if ours:
                    own = None if every_s is None else every_s * asked.clients
                    return run_phase(name, clients, asked.seconds, own)
                return vegeta_phase(name, clients[0], port, asked.batch, asked.seconds, every_s, asked.clients)

            fast = measure("as fast as it goes", None)
            commits = figure(port, "ingest_spool_commits")
            rate = asked.rate or fast.rate / 2
            half = measure(f"at {rate:,.0f} events/s", asked.batch / rate)
        paths = list(objects(local_folder(Settings(home=home))))
        lines = [line for path in paths for line in gzip.decompress(path.read_bytes()).splitlines()]
        delivered = [json.loads(line)["event_id"] for line in lines]
        print(f"{os.cpu_count()} cores, requests by {'threads of this program' if ours else vegeta.version()}")
        for phase in (fast, half):
            print(phase.told())
        requests = len(fast.latencies)
        print(f"{requests / max(commits, 1):.1f} requests per fsync; {len(delivered):,} events in {len(paths)} objects")
        if sorted(delivered) != sorted(fast.acknowledged + half.acknowledged):
            raise SystemExit("the objects do not hold exactly the events that were acknowledged")


if __name__ == "__main__":
    main()
