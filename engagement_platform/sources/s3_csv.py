"""Lines of CSV as Arrow columns: a row is a line, whatever the others are.

Types in, functions out; which bytes are a line is `s3_formats`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence

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
    text = line.removeprefix(b"\xef\xbb\xbf").decode(errors="replace")
    try:
        return next(csv.reader([text], delimiter=delimiter, strict=True))
    except csv.Error:
        raise NotCsv from None


def rows_reader(
    columns: Sequence[pa.Field], names: Sequence[str], delimiter: str
) -> Callable[[Lines], Sequence[pa.Array]]:
    """A function from lines to columns, of which those that the lines do not have are null.

    names: of the values of a line. It raises NotCsv when one of the lines is no row.
    """
    # An empty line is a row where there is one column. Only the last row, below, is such.
    parsing = pa_csv.ParseOptions(delimiter=delimiter, ignore_empty_lines=False)
    no_values = (delimiter * (len(names) - 1)).encode()

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
        _check(lines, content)
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


def _check(lines: Lines, content: bytes) -> None:
    """Raises NotCsv for a line with an odd number of quotes, which is a part of a value with a line break or cut off,
    and for one that a carriage return would divide. content: of all lines.
    """
    if b'"' in content and any(line.count(b'"') % 2 for _number, line in lines):
        raise NotCsv(_OPEN)
    if b"\r" in content and any(b"\r" in line.rstrip(b"\r") for _number, line in lines):
        raise NotCsv("a carriage return within the line")
