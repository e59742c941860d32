"""How much a game may send, and how much of a body is taken in."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Callable


class Turned(Exception):
    """A request that is turned away as a whole, and of which nothing is kept: status and body of the answer."""

    def __init__(self, status: int, code: str, reason: str, **headers: str) -> None:
        super().__init__(reason)
        self.status, self.code, self.reason, self.headers = status, code, reason, headers


class Allowance:
    """Events that one game may send: `rate` a second for long, `burst` at once after a pause (a token bucket)."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate, self._burst = rate, burst
        self._left, self._at = burst, now

    def wait(self, events: int, now: float, debt: float = 0.0) -> float:
        """Seconds until so many events would be allowed; 0 takes them. now: seconds from any fixed moment.

        More than a whole burst at once waits for a full one, and then takes on a debt. debt: what may be owed.
        """
        self.charge(0, now)
        needed = min(float(events), self._burst)
        if self._left >= needed - debt:
            self._left -= events
            return 0.0
        return (needed - self._left) / self._rate

    def charge(self, bytes_read: int, now: float) -> None:
        """Take what was read already, beyond what is left as a debt, which `wait` waits for."""
        self._left = min(self._burst, self._left + (now - self._at) * self._rate) - bytes_read
        self._at = now


async def whole_body(
    chunks: AsyncIterator[bytes],
    *,
    gzipped: bool,
    max_bytes: int,
    max_inflated: int,
    charge: Callable[[int], None],
) -> bytes:
    """A body of at most max_bytes as sent and max_inflated after decompression; exactly so many are fine.

    Never holds more than that: reading stops at the first byte beyond. charge: called with the bytes of each part,
    as sent or after decompression, whichever are more, also of a body that is turned away. Raises Turned.
    """
    too_large = Turned(
        413, "body_too_large", f"At most {max_bytes} bytes as sent and {max_inflated} after decompression."
    )
    broken = Turned(422, "bad_gzip", "The body is no single, whole gzip stream.")
    inflater = zlib.decompressobj(wbits=31) if gzipped else None
    sent, size, parts = 0, 0, []
    async for chunk in chunks:
        sent, part = sent + len(chunk), chunk
        try:
            if sent > max_bytes:
                raise too_large
            if inflater is not None:
                part = inflater.decompress(chunk, max_inflated - size + 1)
                if inflater.unused_data:
                    raise broken  # a second member, or something else after the end
        except zlib.error:
            raise broken from None
        finally:
            charge(max(len(chunk), len(part)))
        size += len(part)
        if size > max_inflated:
            raise too_large
        parts.append(part)
    if inflater is not None and not inflater.eof:
        raise broken
    return b"".join(parts)
