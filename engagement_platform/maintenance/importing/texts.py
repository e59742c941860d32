"""Whether a text says just what the value says that Spark makes of it: casts cut, round and guess in silence.

Reading texts from files is `rows`.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    TimestampNTZType,
    TimestampType,
)

# Leading zeros are part of a text: a postal code, or a number of a device.
_WHOLE_NUMBER = r"^\s*(?:0|-?[1-9]\d*)\s*$"
_NUMBER = r"^\s*[+-]?(?:0|[1-9]\d*)?(?:\.\d*)?(?:[eE][+-]?\d{1,4})?\s*$"
_NO_NUMBER = r"(?i)^\s*[+-]?(?:nan|inf|infinity)\s*$"
# Not a time alone, to which Spark adds the day of today.
_BEGINS_WITH_YEAR = r"^\s*[+-]?\d{4,6}"
_BELOW_MICROSECONDS = r"\.\d{6}\d*[1-9]"
_FLOATS = {FloatType: (9, 2**24), DoubleType: (17, 2**53)}
"""Type -> as many digits tell all its values apart, and up to here it has every whole number."""


def says_the_same(text: Column, value: Column, kind: DataType) -> Column:
    """Whether a text has nothing that its value lacks; of value null anything. value: what Spark cast the text to.

    Fractions are as exact as their type: a double has 17 digits. What is no number, day or time is for the cast.
    """
    match kind:
        case IntegralType():
            return text.rlike(_WHOLE_NUMBER)
        case DecimalType():
            return text.rlike(_NUMBER) & (_places(text) <= F.lit(kind.scale))
        case FloatType() | DoubleType():
            return text.rlike(_NO_NUMBER) | (text.rlike(_NUMBER) & _is_near(text, value, *_FLOATS[type(kind)]))
        case DateType() | TimestampNTZType():
            # A time of day, or another zone, would be cut off.
            same_time = value.try_cast("timestamp").eqNullSafe(text.try_cast("timestamp"))
            return text.rlike(_BEGINS_WITH_YEAR) & ~text.rlike(_BELOW_MICROSECONDS) & same_time
        case TimestampType():
            return text.rlike(_BEGINS_WITH_YEAR) & ~text.rlike(_BELOW_MICROSECONDS)
    return F.lit(True)


def _places(number: Column) -> Column:
    """Decimal places that the text of a number needs."""
    after = F.regexp_extract(number, r"\.(\d*?)0*(?:[eE]|\s*$)", 1)
    exponent = F.regexp_extract(number, r"[eE]([+-]?\d+)", 1).try_cast("int")
    return F.length(after) - F.coalesce(exponent, F.lit(0))


def _is_near(number: Column, value: Column, most_digits: int, whole_up_to: int) -> Column:
    """Whether a floating-point value is as near to its text as that can be asked; whole numbers exactly."""
    mantissa = F.regexp_replace(F.regexp_replace(number, r"[eE].*", ""), r"\D", "")
    digits = F.length(F.regexp_replace(mantissa, "^0+|0+$", ""))
    exactly = F.coalesce(value.try_cast("decimal(38,5)") == number.try_cast("decimal(38,5)"), F.lit(True))
    in_range = (F.abs(value) < F.lit(float("inf"))) & ((value != 0) | (digits == 0))
    return (digits <= most_digits) & in_range & ((F.abs(value) < F.lit(float(whole_up_to))) | exactly)
