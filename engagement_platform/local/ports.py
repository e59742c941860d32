"""TCP ports on 127.0.0.1: which are free, which answer, and the sentence for one that is taken."""

from __future__ import annotations

import random
import socket
import urllib.request
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from engagement_platform.errors import PlatformError
from engagement_platform.settings import ENV_PREFIX, EmbeddedSettings

LOCALHOST = "127.0.0.1"
_EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""The first and the last port that Linux gives to connections that ask for none."""


class PortInUse(PlatformError):
    """A port is taken; nothing was started."""


def check_ports(embedded: EmbeddedSettings, needs: Mapping[str, str]) -> None:
    """Raise PortInUse with every port that something else listens on, or that two of `needs` share.

    needs: setting of `embedded`, such as kafka_port, to what will listen there.
    """
    taken, seen = [], set()
    for setting, what in needs.items():
        port = getattr(embedded, setting)
        if port in seen or not is_free(port):
            variable = f"{ENV_PREFIX}EMBEDDED__{setting.upper()}"
            taken.append(f"port {port} ({what}) is in use: set {variable} to a free one")
        seen.add(port)
    if taken:
        raise PortInUse(f"Nothing was started: {'; '.join(taken)}, or stop what listens there.")


def is_free(port: int) -> bool:
    """Whether a server could listen on 127.0.0.1:port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the servers do it: connections of a server just stopped linger for a minute and harm nobody.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOCALHOST, port))
        except OSError:
            return False
    return True


def answers(port: int) -> bool:
    """Whether something accepts connections on 127.0.0.1:port."""
    try:
        socket.create_connection((LOCALHOST, port), timeout=0.5).close()
    except OSError:
        return False
    return True


def answers_http(url: str) -> bool:
    """Whether a server on this machine answers with 200."""
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except OSError:
        return False


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different; for tests and benchmarks.

    Those that the kernel gives to outgoing connections come last: one of these may go to a connection before
    its server listens there, and the server could then not start for as long as that connection lives.
    """
    given = _EPHEMERAL_PORTS.read_text().split() if _EPHEMERAL_PORTS.exists() else ("32768", "65535")
    first, last = map(int, given)
    chance = random.SystemRandom()  # processes that seed the other alike would try the same ports
    candidates = sorted(range(10_240, 65_536), key=lambda port: (first <= port <= last, chance.random()))
    return list(islice(filter(is_free, candidates), count))
