"""Column types that mean the same on SQLite and PostgreSQL: times and JSON objects. The tables are `database`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime

from sqlalchemy import Dialect, String, Text
from sqlalchemy.types import TypeDecorator


class UtcTimestamp(TypeDecorator[datetime]):
    """A time with microseconds as ISO 8601 text of fixed width in UTC: sorts as it reads, the same on both databases.

    Naive times are refused, because their zone would be a guess.
    """

    impl = String(32)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"a time without a zone cannot be stored: {value}")
        return value.astimezone(UTC).isoformat(timespec="microseconds")

    def process_result_value(self, value: str | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        return None if value is None else datetime.fromisoformat(value)


class JsonObject(TypeDecorator[Mapping[str, object]]):
    """A JSON object as text with sorted keys. NaN is refused; PostgreSQL's own json type would refuse it later."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Mapping[str, object] | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else json.dumps(dict(value), sort_keys=True, allow_nan=False)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Mapping[str, object] | None:  # noqa: ARG002
        return None if value is None else json.loads(value)
