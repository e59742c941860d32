"""Python values of every type that a column may be declared with, as literals of the two engines that look rows up."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column


def in_spark(value: object) -> Column:
    """A value as a literal of its own type.

    A date goes as text: pyspark hands it over by strftime, which writes the year 1 as `1` (pyspark 4.2.0), and Java
    refuses that.
    """
    # Here, since readers without a JVM import this module and wait a second for pyspark.
    from pyspark.sql import functions as F

    if isinstance(value, date) and not isinstance(value, datetime):
        return F.lit(value.isoformat()).cast("date")
    return F.lit(value)


def in_datafusion(value: object) -> str:
    """As delta-rs's SQL reads it; in its strings only the quote is special. Raises TypeError for other types."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        # Cast from text, since the parser takes the least 64-bit number for the negative of one that is too great.
        return f"CAST('{value}' AS BIGINT)"
    if isinstance(value, float):
        return f"CAST('{value!r}' AS DOUBLE)"
    if isinstance(value, datetime):
        return f"TIMESTAMP '{value.astimezone(UTC).strftime('%Y-%m-%dT%H:%M:%S.%fZ')}'"
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    raise TypeError(f"{type(value).__name__} is no type of a column that rows are looked up by")
