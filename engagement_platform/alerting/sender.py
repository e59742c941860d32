"""Sends a message to one URL through Apprise, without a word of the URL in any log."""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from pydantic import SecretStr

from engagement_platform.alerting.model import Message, Severity, State

if TYPE_CHECKING:
    from apprise import Apprise

# They write paths of URLs into their logs, at DEBUG or when a request fails; some services have their token there.
_TALKATIVE = ("apprise", "requests", "urllib3", "urllib3.connection", "urllib3.connectionpool", "urllib3.util.retry")

_KINDS = {Severity.ERROR: "failure", Severity.WARNING: "warning", Severity.INFO: "info"}

# Those whose URL begins with a host; with other services that place has a token.
_WITH_HOST = {"json", "jsons", "form", "forms", "xml", "xmls", "mailto", "mailtos"}

# A receiver that sends a byte now and then is within every timeout of a socket. With `alerting.timeout` for the last
# wait this ends before another process takes the message over.
LONGEST_S = 50.0

# Parts of a URL that are shorter say nothing by themselves: a port, `to`.
_TELLING_CHARS = 5


@dataclass(frozen=True)
class Target:
    """One URL of the settings."""

    name: str
    """By its place and kind, such as `1-slack`; nothing secret."""
    host: str
    """Where it goes, for those services whose URL says so openly."""
    url: SecretStr = field(repr=False)
    timeout: timedelta

    def __str__(self) -> str:
        return f"{self.name} ({self.host})" if self.host else self.name

    def send(self, message: Message) -> str | None:
        """Send a message; why the service did not take it, None when it did. Never raises."""
        kind = "success" if message.state is State.RECOVERED else _KINDS[message.severity]
        with hushed() as warnings:
            try:
                if self._service is None:
                    return "not a URL that Apprise understands"
                with _ended_after(LONGEST_S):
                    if self._service.notify(message.text, message.title, kind, body_format="text"):
                        return None
                reason = "refused"
            except _TookTooLong:
                reason = f"took longer than {LONGEST_S:g} s"
            except Exception as error:
                # A plug-in of Apprise that breaks, whatever it raises, is a message that was not sent.
                reason = f"broke with {type(error).__name__}"
        return f"{reason}: {scrubbed(warnings[-1], self.url)}" if warnings else reason

    @cached_property
    def _service(self) -> Apprise | None:
        """None where the URL is none. Opens nothing; loading Apprise takes half a second, once."""
        from apprise import Apprise, AppriseAsset, OverflowMode

        # In its caller's thread: with a limit of its own a service goes to threads of Apprise that nobody can end.
        asset = AppriseAsset(
            app_id="engagement-platform", app_desc="Engagement platform", async_mode=False, service_timeout=0
        )
        service = Apprise(asset=asset)
        if not service.add(self.url.get_secret_value()):
            return None
        for plugin in service:
            # What is too long for a service would be refused, again and again.
            plugin.overflow_mode = OverflowMode.TRUNCATE
            plugin.socket_read_timeout = plugin.socket_connect_timeout = self.timeout.total_seconds()
        return service


def targets_of(urls: Sequence[SecretStr], timeout: timedelta) -> tuple[Target, ...]:
    """The URLs of the settings, in their order. Opens nothing and never fails.

    >>> urls = [SecretStr(url) for url in ("slack://tokenA/tokenB", "json://user:pw@host:8080/path", "what?")]
    >>> [str(target) for target in targets_of(urls, timedelta(seconds=1))]
    ['1-slack', '2-json (host)', '3-unreadable']
    """
    targets = []
    for place, url in enumerate(urls, start=1):
        found = re.match(r"([A-Za-z][A-Za-z0-9+]{0,15})://(?:[^@/]*@)?([\w.-]*)", url.get_secret_value())
        scheme, host = (found[1].lower(), found[2]) if found else ("unreadable", "")
        targets.append(Target(f"{place}-{scheme}", host if scheme in _WITH_HOST else "", url, timeout))
    return tuple(targets)


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


class _TookTooLong(BaseException):
    """No Exception: the plug-ins of Apprise catch those and would go on."""


@contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """Raise _TookTooLong in this thread at the first call of a function after so many seconds.

    A wait within one call of the system is not cut short; sockets have timeouts for that.
    """
    deadline = time.monotonic() + seconds

    def look(*_event: object) -> None:
        if time.monotonic() > deadline:
            raise _TookTooLong

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(before)


_sending = threading.local()


class _Hush(logging.Filter):
    """Drops what a thread that is sending logs, and keeps Apprise's warnings for it."""

    def filter(self, record: logging.LogRecord) -> bool:
        warnings: list[str] | None = getattr(_sending, "warnings", None)
        if warnings is not None and record.name == "apprise" and record.levelno >= logging.WARNING:
            warnings.append(record.getMessage())
        return warnings is None


_HUSH = _Hush()


@contextmanager
def hushed() -> Iterator[list[str]]:
    """Keep the libraries below Apprise out of every log, in this thread; gives Apprise's warnings."""
    for name in _TALKATIVE:
        # Adding a filter that is there already does nothing.
        logging.getLogger(name).addFilter(_HUSH)
    _sending.warnings = list[str]()
    try:
        yield _sending.warnings
    finally:
        _sending.warnings = None
