"""Connections of clients: how long a request may take to arrive, and how many one address may hold."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEADER_BYTES = 64 * 1024
_PIPELINED = 8


class Connection(HttpToolsProtocol):
    """A connection that is closed when headers do not arrive in time, or are endless, or nobody reads answers in time.

    Limits are set by a subclass, from settings.

    One more of an address than it may hold closes the one that has been idle for longest, or itself when none is. One
    more of all than leave room for others closes the one that has been idle for longest, where one is.
    """

    within_s: float
    most: int
    most_of_all: int
    _deadline: asyncio.TimerHandle | None = None
    _read_by: asyncio.TimerHandle | None = None
    _idle_since = 0.0
    _header_bytes = 0
    """Bytes since headers, or a part of a body, ended; a body's trailers are headers, too."""

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection; where there are too many in place of an idle one, or of an address not at all."""
        super().connection_made(transport)
        self._expect_headers()
        if self.client is None:
            return
        held = [each for each in self.connections if isinstance(each, Connection) and not each.transport.is_closing()]
        mine = [each for each in held if each.client is not None and each.client[0] == self.client[0]]
        if len(mine) > self.most:
            (self._longest_idle(mine) or self).transport.abort()
        elif len(held) > self.most_of_all and (idle := self._longest_idle(held)):
            idle.transport.abort()

    def _longest_idle(self, of: Sequence[Connection]) -> Connection | None:
        idle = [each for each in of if each.is_idle and each is not self]
        return min(idle, key=lambda each: each._idle_since, default=None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_deadline()
        self._forget_reader()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Begin a deadline with the first byte of another request; also with one that belongs to none."""
        if self._deadline is None and self.is_idle:
            self._expect_headers()
        self._header_bytes += len(data)
        super().data_received(data)
        # The parser keeps what it has of them, and copies it with every part that comes.
        if self._header_bytes > _HEADER_BYTES:
            self.transport.abort()

    def on_headers_complete(self) -> None:
        """End the deadline; that of the body is the application's."""
        self._forget_deadline()
        self._header_bytes = 0
        if len(self.pipeline) >= _PIPELINED:
            raise ValueError("too many requests wait for the first one's answer")  # uvicorn answers 400
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of a body, whose size the application limits."""
        self._header_bytes = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        """Count as idle from now on."""
        self._idle_since = self.loop.time()
        super().on_response_complete()
        if self.transport.is_closing():
            self._expect_reader()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no request, and end."""
        super().send_400_response(msg)
        self._expect_reader()

    def pause_writing(self) -> None:
        """Begin a deadline by which the client has to read: until then its request counts as under way."""
        super().pause_writing()
        self._expect_reader()

    def resume_writing(self) -> None:
        """End that deadline; a connection that is closed keeps it until all is read."""
        if not self.transport.is_closing():
            self._forget_reader()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """End at once: what was not read in all that time would keep it open for ever."""
        self.transport.abort()

    def _expect_headers(self) -> None:
        self._idle_since = self.loop.time()
        self._deadline = self.loop.call_later(self.within_s, self.transport.abort)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expect_reader(self) -> None:
        if self._read_by is None:
            self._read_by = self.loop.call_later(self.within_s, self.transport.abort)

    def _forget_reader(self) -> None:
        if self._read_by is not None:
            self._read_by.cancel()
            self._read_by = None
