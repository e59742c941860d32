"""When a record was produced, and which requests came too late by that. Standard library only: runs in Spark's workers.

How far back a request may be is `mutation.max_lateness`; what is purged because no request may come any more is
`mutation.purge_horizon`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from engagement_platform.sources.messages import Reason, Rejection

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

Check = Callable[[Any, int | None], Any]
"""From a decoded record, or its Rejection, and its Kafka timestamp (microseconds since 1970 UTC) to either."""


def production_time(kafka_us: int | None, read_us: int) -> int:
    """When a record was produced. All times in microseconds since 1970 UTC; as integers, since a timestamp in the wrong
    unit lies in a year that datetime does not have.

    kafka_us: its Kafka timestamp. read_us: when the batch that reads it was planned. A record without a timestamp
    (null, or below 0 as Kafka's -1) counts as produced when it was read, which is the only time known. So does one from
    the future: it existed when it was read, and a producer's clock that runs ahead must not make its requests late.
    """
    if kafka_us is None or kafka_us < 0:
        return read_us
    return min(kafka_us, read_us)


def refuse_late(read_ts: datetime, max_lateness: timedelta) -> Check:
    """A check that refuses decoded requests as `too_late`. read_ts: as for `production_time`, with a zone.

    Exactly `max_lateness` before its production a request still is on time. Refused records stay what they are.
    """
    read_us, most = microseconds(read_ts), max_lateness // _MICROSECOND
    refusal = Reason.TOO_LATE.rejection()

    def check(decoded: Any, kafka_us: int | None) -> Any:
        if type(decoded) is Rejection:
            return decoded
        executed = microseconds(decoded.execution_ts)
        return refusal if executed < production_time(kafka_us, read_us) - most else decoded

    return check


def microseconds(moment: datetime) -> int:
    """Since 1970 UTC; exact, where a float of seconds is not."""
    return (moment - _EPOCH) // _MICROSECOND


def from_microseconds(since_1970: int) -> datetime:
    """The same back."""
    return _EPOCH + timedelta(microseconds=since_1970)
