"""The live files of a Delta table as one Arrow table, read from its log without a JVM, from any writer.

Per-file figures only; summing them up is `statistics`. Of data files at most a few footers are read, to learn a codec
that the names do not tell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from engagement_platform.errors import PlatformError, first_line
from engagement_platform.lake import log

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""How a null partition value is spelled, as in folder names."""

CODEC_IN_NAME = r"\.(?P<codec>snappy|zstd|gz|gzip|br|brotli|lzo|lz4|lz4raw|lz4_raw)\.parquet$"
UNNAMED = "unnamed"
"""Codec of a file whose name does not tell one: nothing, or a writer that does not say."""
_DEFAULT_INDEXED = 32
"""Delta's default for delta.dataSkippingNumIndexedCols."""
RETENTION = "delta.deletedFileRetentionDuration"
DEFAULT_RETENTION = timedelta(days=7)
"""Delta's default of it."""
LONGEST_RETENTION = timedelta(days=365_000)
"""What is kept longer is so for good; any time of today with so much before or behind it is in the calendar."""
_LENGTH = r"(\d+)\s+(week|day|hour|minute|second|millisecond|microsecond)s?"
_INTERVAL = re.compile(rf"(?:interval\s+)?{_LENGTH}(?:\s+{_LENGTH})*", re.IGNORECASE)


class NotADeltaTable(PlatformError):
    """There is no Delta log where a table was expected."""

    def __init__(self, place: str) -> None:
        self.place = place
        super().__init__(
            f"{place} is no Delta table: it has no _delta_log with commits in it. Give the folder that holds "
            "_delta_log, or a table of the lake such as engagement/data."
        )


class LogNotReadable(PlatformError):
    """A Delta log that cannot be read without Spark, or not from here."""

    def __init__(self, place: str, reason: str) -> None:
        self.place = place
        super().__init__(
            f"The log of {place} cannot be read: {reason}. Nothing was changed. A feature that this reader lacks has "
            "to be dropped with Spark (ALTER TABLE … DROP FEATURE …); an object store needs its address and "
            "credentials in the environment (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, …)."
        )


@dataclass(frozen=True)
class Shape:
    """What a table is, apart from its files."""

    version: int
    partitioned_by: tuple[str, ...]
    properties: Mapping[str, str]
    leaves: Mapping[str, str]
    """Dotted name of every leaf column to its name in the log, in order; they differ with column mapping."""
    kinds: Mapping[str, str]
    """Dotted name of every leaf column to its type in the Delta protocol's words; `array` and `map` without inside."""
    deletion_vectors: bool

    @property
    def indexed(self) -> frozenset[str]:
        """Leaf columns for which writers keep bounds (delta.dataSkippingStatsColumns, …NumIndexedCols).

        Columns that the table is partitioned by count for nothing here: their values are known exactly.
        """
        stored = [name for name in self.leaves if name not in self.partitioned_by]
        named = self.properties.get("delta.dataSkippingStatsColumns")
        if named is not None:
            chosen = {name.strip().strip("`") for name in named.split(",")}
            return frozenset(n for n in stored if n in chosen or any(n.startswith(f"{c}.") for c in chosen))
        most = int(self.properties.get("delta.dataSkippingNumIndexedCols", _DEFAULT_INDEXED))
        return frozenset(stored if most < 0 else stored[:most])


def open_table(uri: str, place: str) -> DeltaTable:
    """The table at a path or URI as it is now. place: what to call it in an error.

    Raises NotADeltaTable, LogNotReadable.
    """
    try:
        return DeltaTable(log.storage_uri(uri))
    except TableNotFoundError as error:
        raise NotADeltaTable(place) from error
    except Exception as error:
        # delta-rs has no common base of what it raises here: DeltaError, OSError, ValueError and panics of its kernel.
        raise LogNotReadable(place, first_line(error)) from error


def shape(table: DeltaTable) -> Shape:
    """Version, partitioning, properties and leaf columns of an opened table."""
    metadata = table.metadata()
    leaves = list(_leaves(json.loads(table.schema().to_json())["fields"]))
    return Shape(
        version=int(table.version()),
        partitioned_by=tuple(metadata.partition_columns),
        properties=dict(metadata.configuration),
        leaves={name: stored for name, stored, _ in leaves},
        kinds={name: kind for name, _, kind in leaves},
        deletion_vectors="deletionVectors" in (table.protocol().reader_features or []),
    )


def retention(properties: Mapping[str, str]) -> timedelta | None:
    """How long removed files are kept, from the table's properties, at most LONGEST_RETENTION; None where these say it
    as no sum of lengths, or one that no number of Spark can hold.

    Spark refuses months and years, too, when it needs this.
    """
    text = properties.get(RETENTION)
    if text is None:
        return DEFAULT_RETENTION
    if not _INTERVAL.fullmatch(text.strip()):
        return None
    lengths = re.findall(_LENGTH, text, re.IGNORECASE)
    try:
        kept = sum((timedelta(**{f"{unit.lower()}s": int(count)}) for count, unit in lengths), timedelta(0))
    except (OverflowError, ValueError):
        return None
    return min(kept, LONGEST_RETENTION)


def _leaves(fields: Sequence[Mapping[str, Any]], name: str = "", stored: str = "") -> Iterator[tuple[str, str, str]]:
    """Dotted name, name in the log and type of each leaf; an array or a map is one, as Delta counts them."""
    for field in fields:
        own = f"{name}{field['name']}"
        inside = f"{stored}{field.get('metadata', {}).get('delta.columnMapping.physicalName', field['name'])}"
        kind = field["type"]
        if isinstance(kind, dict) and kind["type"] == "struct":
            yield from _leaves(kind["fields"], f"{own}.", f"{inside}.")
        else:
            yield own, inside, kind["type"] if isinstance(kind, dict) else str(kind)


def live_files(table: DeltaTable, what: Shape, clustering: str | None = None) -> pa.Table:
    """One row for each live file, any order.

    Out: path (as the log spells it, URL-encoded), partition (`a=1/b=2`, empty when the table has no partitions),
         bytes, rows (null: unknown), codec, low and high (bounds of the clustering column, null when unknown), known
         (whether they are, or all values are null), and `value.NAME` for each partition column: its value as text.
    """
    actions = pa.table(table.get_add_actions(flatten=True))
    rows = actions.column("num_records") if "num_records" in actions.column_names else pa.nulls(len(actions))
    rows = rows.cast(pa.int64())
    low, high, known = _bounds(actions, rows, None if clustering is None else what.leaves.get(clustering))
    return pa.table(
        {
            "path": actions.column("path"),
            "partition": _partition(actions, what.partitioned_by),
            "bytes": actions.column("size_bytes"),
            "rows": rows,
            "codec": codec_by_name(actions.column("path")),
            "low": low,
            "high": high,
            "known": known,
            **{f"value.{n}": actions.column(f"partition.{n}").cast(pa.string()) for n in what.partitioned_by},
        }
    )


def _bounds(actions: pa.Table, rows: Any, stored: str | None) -> tuple[Any, Any, Any]:
    if stored is None or f"min.{stored}" not in actions.column_names:
        nothing = pa.nulls(actions.num_rows, pa.int64())
        return nothing, nothing, pa.repeat(False, actions.num_rows)
    low, high = (_sortable(actions.column(f"{end}.{stored}")) for end in ("min", "max"))
    known = pc.and_(low.is_valid(), high.is_valid())
    if f"null_count.{stored}" in actions.column_names:
        # Bounds of a file without any value are null; it is skipped all the same.
        known = pc.or_(known, pc.fill_null(pc.equal(actions.column(f"null_count.{stored}"), rows), False))
    return low, high, known


def _sortable(column: Any) -> Any:
    """A column that Arrow can sort: views and dictionaries unwrapped, truth as a number."""
    if pa.types.is_boolean(column.type):
        return column.cast(pa.int8())
    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    return column.cast(pa.string()) if "view" in str(column.type) or pa.types.is_large_string(column.type) else column


def _partition(actions: pa.Table, columns: Sequence[str]) -> Any:
    if not columns:
        return pa.repeat("", actions.num_rows)
    texts = []
    for column in columns:
        value = pc.fill_null(actions.column(f"partition.{column}").cast(pa.string()), NULL_PARTITION)
        texts.append(pc.binary_join_element_wise(pa.scalar(column), value, "="))
    return texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*texts, "/")


def codec_by_name(paths: Any) -> Any:
    """The codec that each path names, or UNNAMED."""
    named = pc.struct_field(pc.extract_regex(paths.cast(pa.string()), CODEC_IN_NAME), "codec")
    return pc.fill_null(named, UNNAMED)


def sample_footers(uri: str, paths: Sequence[str], most: int) -> list[bool]:
    """Whether files are compressed, by the footers of at most so many of them, evenly spread.

    What is not there, or no Parquet, is left out.
    """
    step = max(1, len(paths) // max(most, 1))
    return [known for path in paths[::step][:most] if (known := _compressed(uri, path)) is not None]


def _compressed(uri: str, path: str) -> bool | None:
    filesystem, inside = log.opened(log.location(uri, path))
    try:
        with filesystem.open_input_file(inside) as file:
            footer = pq.ParquetFile(file).metadata
    except (OSError, pa.ArrowInvalid):
        return None
    groups = [footer.row_group(i) for i in range(min(footer.num_row_groups, 1))]
    codecs = [group.column(i).compression for group in groups for i in range(group.num_columns)]
    return any(codec != "UNCOMPRESSED" for codec in codecs) if codecs else None
