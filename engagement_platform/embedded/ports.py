"""TCP ports on 127.0.0.1: which are free, which answer, and the sentence for one that is taken."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from engagement_platform.errors import PlatformError
from engagement_platform.settings import ENV_PREFIX

LOCALHOST = "127.0.0.1"


@dataclass(frozen=True)
class PortNeed:
    """A port that something started here will listen on, and the setting that chooses it."""

    port: int
    name: str
    """Field of EmbeddedSettings, such as `kafka_port`."""
    what: str

    @property
    def variable(self) -> str:
        return f"{ENV_PREFIX}EMBEDDED__{self.name.upper()}"


class PortInUse(PlatformError):
    """A port is taken. Nothing was started. `needs` are all that are taken, not only the first."""

    def __init__(self, needs: Sequence[PortNeed]) -> None:
        self.needs = tuple(needs)
        taken = "; ".join(f"port {n.port} ({n.what}) is in use: set {n.variable} to a free one" for n in needs)
        super().__init__(f"Nothing was started: {taken}, or stop what listens there.")


def check_ports(needs: Sequence[PortNeed]) -> None:
    """Raise PortInUse for every port that something else listens on, or that two of `needs` share."""
    taken = [need for need in needs if not is_free(need.port)]
    first: dict[int, PortNeed] = {}
    taken += [need for need in needs if first.setdefault(need.port, need) is not need and need not in taken]
    if taken:
        raise PortInUse(taken)


def is_free(port: int) -> bool:
    """True when a server could listen on 127.0.0.1:port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the servers do it: connections of a server just stopped linger for a minute and harm nobody.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOCALHOST, port))
        except OSError:
            return False
    return True


def answers(port: int, timeout_s: float = 0.5) -> bool:
    """True when something accepts connections on 127.0.0.1:port."""
    try:
        socket.create_connection((LOCALHOST, port), timeout=timeout_s).close()
    except OSError:
        return False
    return True


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different; for tests, where no setting names them."""
    probes = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((LOCALHOST, 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
