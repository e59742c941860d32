"""Lines of CSV as Arrow columns: a row is a line, and nothing that is a part of a longer one passes for a row.

Types in, functions out; which bytes are a line is `s3_formats`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

Lines = Sequence[tuple[int, bytes]]
"""Numbers and contents, without ends, in order; none is blank."""

_OPEN = "a quote that is not closed"
_UNFIT = "a value that its column cannot hold"
_INFINITE = r"(?i)^\s*[+-]?inf(inity)?\s*$"


class NotCsv(Exception):
    """Says what is wrong with a line, without any of its content."""


def header_of(line: bytes, delimiter: str) -> list[str]:
    """The names in the first line. Raises NotCsv."""
    try:
        return _fields(line.removeprefix(b"\xef\xbb\xbf"), delimiter)
    except csv.Error:
        raise NotCsv from None


def rows_reader(
    columns: Sequence[pa.Field], names: Sequence[str], delimiter: str
) -> Callable[[Lines], Sequence[pa.Array]]:
    """A function from lines to columns, of which those that the lines do not have are null.

    names: of the values of a line. It raises NotCsv when one of the lines is no row: halves of what it refused may
    follow, but no other lines from before.
    """
    # An empty line is a row where there is one column. Only the last row, below, is such.
    parsing = pa_csv.ParseOptions(delimiter=delimiter, ignore_empty_lines=False)
    no_values = (delimiter * (len(names) - 1)).encode()
    check = _quotes_checker(delimiter)

    def parsed(content: bytes, types: dict[str, pa.DataType]) -> pa.Table:
        # One block, since a line that does not fit into one fails.
        whole = pa_csv.ReadOptions(column_names=names, block_size=len(content) + 1)
        converting = pa_csv.ConvertOptions(
            column_types=types,
            include_columns=list(types),
            include_missing_columns=True,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        return pa_csv.read_csv(io.BytesIO(content), whole, parse_options=parsing, convert_options=converting)

    def read(lines: Lines) -> Sequence[pa.Array]:
        # The row without values is one only where no quote before it is open.
        content = b"\n".join([*(line for _number, line in lines), no_values, b""])
        check(lines, content)
        try:
            table = parsed(content, {column.name: column.type for column in columns})
            if table.num_rows != len(lines) + 1:
                raise NotCsv(_OPEN)
            for name in (column.name for column in columns if pa.types.is_floating(column.type)):
                if pc.any(infinite := pc.is_inf(table.column(name))).as_py():
                    texts = parsed(content, {name: pa.string()}).column(0).filter(infinite)
                    if not pc.all(pc.match_substring_regex(texts, _INFINITE)).as_py():
                        raise NotCsv(_UNFIT)
        except pa.ArrowInvalid as wrong:
            raise NotCsv("another number of columns" if "Expected" in str(wrong) else _UNFIT) from None
        except UnicodeDecodeError:
            raise NotCsv("no UTF-8") from None
        return [column.combine_chunks() for column in table.slice(0, len(lines)).columns]

    return read


def _quotes_checker(delimiter: str) -> Callable[[Lines, bytes], None]:
    """A function that raises NotCsv when a line has an odd number of quotes, stands between two that are one quoted
    value, or has a carriage return in it, which would divide it. Its bytes: of all lines.
    """
    seen, within = 0, set[int]()

    def is_one_value(first: bytes, last: bytes) -> bool:
        return _wrong(first, delimiter) == "unexpected end of data" and not _wrong(b'"' + last, delimiter)

    def check(lines: Lines, content: bytes) -> None:
        nonlocal seen, within
        odd = [line for line in lines if line[1].count(b'"') % 2] if b'"' in content else []
        if lines[-1][0] > seen:
            # No half of lines that were seen together.
            seen = lines[-1][0]
            spans = ((one[0], two[0]) for one, two in pairwise(odd) if is_one_value(one[1], two[1]))
            within = {number for first, last in spans for number in range(first + 1, last)}
        if odd or (within and any(number in within for number, _line in lines)):
            raise NotCsv(_OPEN)
        if b"\r" in content and any(b"\r" in line.rstrip(b"\r") for _number, line in lines):
            raise NotCsv("a carriage return within the line")

    return check


def _wrong(line: bytes, delimiter: str) -> str:
    try:
        _fields(line, delimiter)
    except csv.Error as wrong:
        return str(wrong)
    return ""


def _fields(line: bytes, delimiter: str) -> list[str]:
    return next(csv.reader([line.decode(errors="replace")], delimiter=delimiter, strict=True))
