"""Sending a message to one URL through Apprise, within a time limit, and without a word of the URL in any log.

What is sent when is `outbox`.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from pydantic import SecretStr

from engagement_platform.alerting.model import Message, Severity, State

if TYPE_CHECKING:
    from apprise import Apprise

# They write paths of URLs into their logs, at DEBUG or when a request fails; some services have their token there.
_TALKATIVE = ("apprise", "requests", "urllib3", "urllib3.connection", "urllib3.connectionpool", "urllib3.util.retry")
_APPRISE = "apprise"

_KINDS = {Severity.ERROR: "failure", Severity.WARNING: "warning", Severity.INFO: "info"}

# Those whose URL begins with a host; with other services that place has a token.
_WITH_HOST = {"json", "jsons", "form", "forms", "xml", "xmls", "mailto", "mailtos"}

# Parts of a URL that are shorter say nothing by themselves: a port, `to`.
_TELLING_CHARS = 5


@dataclass(frozen=True)
class Target:
    """One URL of the settings, by its place and kind; nothing secret."""

    name: str
    """Such as `1-slack`; messages in the outbox are under it."""
    host: str = ""
    """Where it goes, for those services whose URL says so openly."""

    def __str__(self) -> str:
        return f"{self.name} ({self.host})" if self.host else self.name


@dataclass(frozen=True)
class Sent:
    """What happened to one message."""

    taken: bool
    reason: str
    seconds: float


def target_of(place: int, url: SecretStr) -> Target:
    """What a URL is called. place: its number in the settings, from 1. Opens nothing and never fails.

    >>> [str(target_of(1, SecretStr(u))) for u in ("slack://tokenA/tokenB", "json://user:pw@host:8080/path", "what?")]
    ['1-slack', '1-json (host)', '1-unreadable']
    """
    found = re.match(r"([A-Za-z][A-Za-z0-9+]{0,15})://(?:[^@/]*@)?([\w.-]*)", url.get_secret_value())
    if found is None:
        return Target(f"{place}-unreadable")
    scheme = found[1].lower()
    return Target(f"{place}-{scheme}", found[2] if scheme in _WITH_HOST else "")


class Sender:
    """The URLs of one set of settings. A URL that is still busy with a message is not given another one."""

    def __init__(self, urls: Sequence[SecretStr], timeout: timedelta) -> None:
        self._urls = {target_of(place, url): url for place, url in enumerate(urls, start=1)}
        self._timeout_s = timeout.total_seconds()
        self._services: dict[Target, Apprise | None] = {}
        self._busy: dict[Target, threading.Thread] = {}

    @property
    def targets(self) -> tuple[Target, ...]:
        """In the order of the settings."""
        return tuple(self._urls)

    def send(self, target: Target, message: Message) -> Sent:
        """Send a message, waiting for `timeout` at most. Never raises; what happened is in what it returns.

        In a thread of its own that nobody waits for any longer: neither a name that does not resolve nor a receiver
        that trickles can be ended from outside, and Apprise's own threads hold up the end of the process.
        """
        busy = self._busy.get(target)
        if busy is not None and busy.is_alive():
            return Sent(False, "still busy with the message before", 0.0)
        service = self._service(target)
        if service is None:
            return Sent(False, "not a URL that Apprise understands", 0.0)
        began = time.monotonic()
        ended: list[Sent] = []

        def work() -> None:
            ended.append(self._notify(service, target, message, began))

        thread = self._busy[target] = threading.Thread(target=work, name=f"alert-{target.name}", daemon=True)
        thread.start()
        thread.join(self._timeout_s)
        return ended[0] if ended else Sent(False, f"no answer within {self._timeout_s:g} s", time.monotonic() - began)

    def _notify(self, service: Apprise, target: Target, message: Message, began: float) -> Sent:
        kind = "success" if message.state is State.RECOVERED else _KINDS[message.severity]
        with hushed() as heard:
            try:
                taken = bool(service.notify(message.text, message.title, kind, body_format="text"))
                reason = "taken" if taken else "refused"
            except Exception as error:
                # A plug-in of Apprise that breaks, whatever it raises, is a message that was not sent.
                taken, reason = False, f"broke with {type(error).__name__}"
        if not taken and heard:
            reason = f"{reason}: {scrubbed(heard[-1], self._urls[target])}"
        return Sent(taken, reason, time.monotonic() - began)

    def _service(self, target: Target) -> Apprise | None:
        """The service of a URL, None when it is none. Opens nothing; loading Apprise takes half a second, once."""
        if target not in self._services:
            from apprise import Apprise, AppriseAsset

            # One service, in its caller's thread and without a limit of its own: with one it goes to Apprise's threads.
            asset = AppriseAsset(
                app_id="engagement-platform", app_desc="Engagement platform", async_mode=False, service_timeout=0
            )
            service = Apprise(asset=asset)
            # What it says of a URL that it cannot read quotes it.
            with hushed():
                added = service.add(self._urls[target].get_secret_value())
            self._services[target] = service if added else None
        return self._services[target]


def scrubbed(text: str, url: SecretStr) -> str:
    """Text without anything that stands in the URL after its scheme, on one line.

    >>> scrubbed("no such channel: T0KEN1 at example.org", SecretStr("slack://T0KEN1/example.org"))
    'no such channel: *** at ***'
    """
    scheme, _, rest = url.get_secret_value().partition("://")
    for part in sorted(re.split(r"[\s/:@?&=,]+", rest or scheme), key=len, reverse=True):
        if len(part) >= _TELLING_CHARS:
            text = text.replace(part, "***")
    return " ".join(text.split())


_silent = threading.local()


class _Hush(logging.Filter):
    """Drops what a thread that is sending logs; Apprise's warnings are kept for whoever asked it to send."""

    def filter(self, record: logging.LogRecord) -> bool:
        heard: list[str] | None = getattr(_silent, "heard", None)
        if heard is None:
            return True
        if record.name == _APPRISE and record.levelno >= logging.WARNING:
            heard.append(record.getMessage())
        return False


_HUSH = _Hush()


@contextmanager
def hushed() -> Iterator[list[str]]:
    """Keep the libraries below Apprise out of every log, in this thread; gives Apprise's warnings."""
    for name in _TALKATIVE:
        # Adding a filter that is there already does nothing.
        logging.getLogger(name).addFilter(_HUSH)
    heard: list[str] = []
    _silent.heard = heard
    try:
        yield heard
    finally:
        _silent.heard = None
