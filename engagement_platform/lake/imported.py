"""Tables that old stores are imported into: making them, committing slices once, compacting; and the import's books.

Everything goes through delta-rs and carries a transaction id, so that a slice that is written again is skipped. What is
in a slice is for others to say.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Schema,
    WriterProperties,
    convert_to_deltalake,
    write_deltalake,
)
from deltalake import Transaction as TxnAction

from engagement_platform.engine.model import Transaction
from engagement_platform.lake import light, log
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.checksums import Checksum, checksum
from engagement_platform.lake.contract import Column, Mode, Table

_WHERE = (
    Column("source", "string", "Where the old store is."),
    Column("table_name", "string", "The table that it is imported into."),
    Column("slice", "long", "Part of the import that is committed at once; counted from 0."),
)

PLAN = Table(
    key=("import", "plan"),
    description="Which file of an old store belongs to which slice, written before any work.",
    mode=Mode.APPEND_ONLY,
    columns=(
        *_WHERE,
        Column("path", "string", "Relative to the source."),
        Column("bytes", "long", "Size as it was planned."),
        Column("modified_ns", "long", "When the file was last changed, nanoseconds since 1970."),
        Column("format", "string", "parquet, orc, csv, jsonl or text."),
        Column("codec", "string", "How the whole file is compressed; null: it is not, or inside the format."),
    ),
)

OUTCOME = Table(
    key=("import", "outcome"),
    description="What came of each slice, once its rows and its quarantine were committed.",
    mode=Mode.APPEND_ONLY,
    columns=(
        *_WHERE,
        Column("rows", "long", "Imported."),
        Column("rejected", "long", "In import/quarantine."),
        Column("checksum", "string", "Hashes of the imported rows added up, hexadecimal."),
        Column("algorithm", "string", "What hashed; sums of others cannot be compared."),
        Column("files", "long", "Read."),
        Column("bytes", "long", "Of these files."),
        Column("seconds", "double", "Reading and parsing them took."),
    ),
)

REJECTED = Table(
    key=("import", "quarantine"),
    description="Every line of an old store that did not parse, whole, and every file that cannot be read.",
    mode=Mode.APPEND_ONLY,
    columns=(
        *_WHERE,
        Column("path", "string", "File, relative to the source."),
        Column("line", "long", "Line or row in the file, counted from 1; null: the file as such."),
        Column("value", "binary", "The line as it stands; a row of Parquet or ORC as JSON."),
        Column("reason", "string", "Why it was refused."),
    ),
)

_HOOKS = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)


def make(uri: str, schema: pa.Schema, partitioned_by: Sequence[str], description: str) -> DeltaTable:
    """The table at `uri`; made empty, with these columns, where there is none."""
    found = log.open_log(uri)
    if found is None:
        DeltaTable.create(
            log.storage_uri(uri), schema, mode="ignore", partition_by=list(partitioned_by), description=description
        )
    return found or DeltaTable(log.storage_uri(uri))


def columns_of(found: DeltaTable) -> pa.Schema:
    """The table's columns as Arrow has them."""
    return pa.schema(found.schema().to_arrow())


def append(found: DeltaTable, batches: Iterable[pa.RecordBatch], schema: pa.Schema, txn: Transaction) -> bool:
    """Add rows as one commit, as they come; False when this transaction is there already, and nothing was asked for."""
    if light.written(found, txn):
        return False
    failed: list[BaseException] = []

    def told() -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except BaseException as error:
            # delta-rs would tell of it in words of its own.
            failed.append(error)
            raise

    try:
        write_deltalake(
            found, pa.RecordBatchReader.from_batches(schema, told()), mode="append", writer_properties=_writer(),
            commit_properties=_named(txn), post_commithook_properties=_HOOKS,
        )  # fmt: skip
    except Exception:
        if failed:
            raise failed[0] from None
        raise
    return True


def note(lake: str, table: Table, rows: Iterable[dict[str, Any]], txn: Transaction) -> None:
    """Add rows to one of the import's books, unless this transaction is there already."""
    uri = log.storage_uri(table.uri(lake))
    light.create(uri, table)
    found = DeltaTable(uri)
    if not light.written(found, txn):
        light.append(found, table_of(rows, table), txn)


def noted(lake: str, table: Table, **where: str) -> list[dict[str, Any]]:
    """Rows of one of the import's books that have these values; none where there is no such table."""
    found = log.open_log(table.uri(lake))
    if found is None:
        return []
    rows: list[dict[str, Any]] = light.find(found, table.column_names, {n: [v] for n, v in where.items()}).to_pylist()
    return rows


def compact(found: DeltaTable, name: str) -> int:
    """Merge small files up to light.COMPACTED_BYTES; how many there are fewer."""
    found.update_incremental()
    done = found.optimize.compact(
        target_size=light.COMPACTED_BYTES, writer_properties=_writer(),
        commit_properties=CommitProperties(custom_metadata={"userMetadata": f"optimize/import/{name}#0"}),
        post_commithook_properties=_HOOKS,
    )  # fmt: skip
    return int(done["numFilesRemoved"]) - int(done["numFilesAdded"])


def convert(uri: str, partitions: pa.Schema | None) -> DeltaTable:
    """Make a folder of Parquet files a Delta table where it is; no file is moved or written anew."""
    by = None if partitions is None else Schema.from_arrow(partitions)
    convert_to_deltalake(log.storage_uri(uri), partition_by=by, partition_strategy=None if by is None else "hive")
    return DeltaTable(log.storage_uri(uri))


def size_of(found: DeltaTable) -> tuple[int, int]:
    """(files, bytes) of a table now."""
    files = pa.table(found.get_add_actions(flatten=True))
    return files.num_rows, int(pc.sum(files.column("size_bytes")).as_py() or 0)


def read(found: DeltaTable, schema: pa.Schema) -> tuple[Checksum, float]:
    """All rows of a table, summed up, and the seconds that reading them took."""
    began = time.monotonic()
    parts = (rows.cast(schema) for rows in light.batches(found, schema.names, {}))
    return checksum(parts, schema), time.monotonic() - began


def committed(uri: str, schema: pa.Schema, txn: Transaction) -> Checksum:
    """What the commit of a transaction added, read back from its files. Raises LookupError without such a commit."""
    for version, marker in log.markers(uri):
        if marker == txn.marker:
            adds = [action["add"] for action in log.entry(uri, version) or [] if "add" in action]
            return checksum((_rows(uri, add, schema) for add in adds), schema)
    raise LookupError(f"{uri} has no commit {txn.marker}")


def _rows(uri: str, add: dict[str, Any], schema: pa.Schema) -> pa.Table:
    filesystem, path = log.opened(f"{uri}/{unquote(add['path'])}")
    with filesystem.open_input_file(path) as opened:
        stored = pq.ParquetFile(opened).read()
    values = add.get("partitionValues") or {}
    arrays = [
        stored.column(field.name).cast(field.type)
        if field.name in stored.column_names
        else pa.repeat(pa.scalar(values.get(field.name), pa.string()).cast(field.type), stored.num_rows)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


def _writer() -> WriterProperties:
    return WriterProperties(compression="ZSTD", statistics_truncate_length=light.STATISTICS_LENGTH)


def _named(txn: Transaction) -> CommitProperties:
    return CommitProperties(
        custom_metadata={"userMetadata": txn.marker},
        app_transactions=[TxnAction(txn.app_id, txn.version)],
        # Two imports of one source at once: the later one must hear of it.
        max_commit_retries=0,
    )
