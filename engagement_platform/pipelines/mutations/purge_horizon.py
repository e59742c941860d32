"""The time before which deletions are final: no request that is on time and still to be read can be from before it.

The rule alone, a pure function. What is purged by it is `move`; what is on time is `sources.lateness`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from engagement_platform.settings import MutationSettings
from engagement_platform.sources.lateness import from_microseconds, microseconds


def purge_horizon(now: datetime, unread: Iterable[int | None], settings: MutationSettings) -> datetime | None:
    """No request that is read from now on and accepted has an execution_ts before this time. None: nobody can tell.

    now: taken before the topic was asked. unread: of each partition that has records which are not read yet, the Kafka
    timestamp of the first of them, in milliseconds since 1970 UTC; None where it has none. A partition that is read to
    its end counts up to `now`, one that is not up to its first unread record. So while nothing is read the horizon
    stands still, however long that takes.
    The records behind it are at most `max_disorder` older; a first one that is further ahead of `now` than that says
    nothing about them, and neither does one without a timestamp. A request is on time up to `max_lateness` before its
    production.
    """
    read, latest = microseconds(now), microseconds(now + settings.max_disorder)
    for timestamp in unread:
        if timestamp is None or not 0 <= timestamp * 1000 <= latest:
            return None
        read = min(read, timestamp * 1000)
    return from_microseconds(read) - settings.max_disorder - settings.max_lateness
