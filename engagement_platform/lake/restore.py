"""Takes tables back to an earlier version, and tells what two versions hold: rows, files, a sum over all values.

Which version, and what else has to follow, is `maintenance.rollback`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
from deltalake import CommitProperties, DeltaTable
from deltalake import Transaction as TxnAction
from deltalake.exceptions import DeltaError
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.engine.model import Transaction
from engagement_platform.errors import PlatformError, first_line
from engagement_platform.lake import log
from engagement_platform.lake.commit_lock import commit_lock
from engagement_platform.lake.contract import Column, Mode, Table
from engagement_platform.lake.lake import Lake, save_under

RESTORE = Table(
    key=("layout", "restore"),
    description="Every table that was taken back to an earlier version: who did it, why, and what readers saw of it.",
    mode=Mode.APPEND_ONLY,
    columns=(
        Column("batch_id", "long", "Batch of restore-tables."),
        Column("table_name", "string", "Table that was restored."),
        Column("from_version", "long", "Version before."),
        Column("to_version", "long", "Version whose rows it has again."),
        Column("restored_by", "string", "user@host."),
        Column("reason", "string", "Why; null: not given."),
        Column("mode", "string", "replay or drop."),
        Column("boundary", "string", "The batch whose end the tables are at again."),
        Column("table_rows", "long", "Rows of the table afterwards, equal to those of to_version."),
        Column("checksum", "string", "Sum over all values of the table afterwards, equal to that of to_version."),
        Column(
            "inserted",
            "long",
            "What readers see again: engagements, profiles; of the batch, the same for all its tables.",
        ),
        Column("updated", "long", "What readers see changed."),
        Column("deleted", "long", "What readers no longer see."),
        Column("ingestion_ts", "timestamp", "When the batch was planned, UTC."),
    ),
)


class VersionGone(PlatformError):
    """A version whose files or log entries are no longer there."""

    def __init__(self, table: str, version: int, cause: str) -> None:
        self.table, self.version, self.cause = table, version, cause
        super().__init__(
            f"{table} cannot go back to version {version}: {cause}. Nothing was changed. A table can be restored "
            "until VACUUM removes its files and its log expires; name a later version, or read the messages again with "
            "`engagement-platform reset`."
        )


@dataclass(frozen=True)
class Moved:
    """Files that differ between two versions: those that come back, and those that go."""

    files_back: int
    bytes_back: int
    files_gone: int
    bytes_gone: int


@dataclass(frozen=True)
class Checksum:
    """What a version of a table holds, whatever the order and the files of its rows."""

    rows: int
    total: str
    """Sum of a 64-bit hash of each row's values."""


def moved(uri: str, name: str, current: int, version: int) -> Moved:
    """What going back to a version does to the files. Reads the log, and looks whether each file is there that comes
    back. Raises VersionGone."""
    then, now = _files(uri, name, version), _files(uri, name, current)
    back = then.filter(pc.invert(pc.is_in(then.column("path"), now.column("path"))))
    gone = now.filter(pc.invert(pc.is_in(now.column("path"), then.column("path"))))
    missing = _missing(uri, back.column("path").to_pylist())
    if missing:
        raise VersionGone(name, version, f"{len(missing)} of its files are gone, the first is {missing[0]}")
    sizes = [pc.sum(files.column("size_bytes")).as_py() or 0 for files in (back, gone)]
    return Moved(back.num_rows, sizes[0], gone.num_rows, sizes[1])


def is_as_at(uri: str, name: str, current: int, version: int) -> bool:
    """Whether a table has the very files, columns and properties that it had at a version.

    Never where rows may be deleted without a new file. Raises VersionGone.
    """
    then, now = (set(_files(uri, name, each).column("path").to_pylist()) for each in (version, current))
    features = log.open_version(uri, current).protocol().reader_features or ()
    unmarked = "deletionVectors" not in features
    return unmarked and then == now and log.describe(uri, version) == log.describe(uri, current)


def _files(uri: str, name: str, version: int) -> pa.Table:
    try:
        found = log.open_version(uri, version)
        return pa.table(found.get_add_actions(flatten=True))
    except DeltaError as error:
        raise VersionGone(name, version, f"its log no longer tells ({first_line(error)})") from None


def _missing(uri: str, paths: Sequence[str]) -> list[str]:
    by_place = {log.location(uri, path): path for path in paths}
    if not by_place:
        return []
    filesystem, _ = log.opened(uri)
    found = filesystem.get_file_info([log.opened(place)[1] for place in by_place])
    return [path for path, info in zip(by_place.values(), found, strict=True) if info.type != pafs.FileType.File]


def restore(lake: Lake, table: Table, version: int, txn: Transaction, mark: Transaction | None = None) -> None:
    """Give a table the rows and the properties of an earlier version; skipped when this transaction has done it.

    Done once more where a writer without a lease has written on top of that: what is asked for is the version.

    mark: the transaction that the earlier version had of an application, where it is to count again: RESTORE takes none
    back. Append-only tables too: what forbids a DELETE allows this. Raises VersionGone.
    """
    uri = lake.uri(table)
    with commit_lock(lake.root, table.name):
        done = log.find_commit(uri, txn.marker)
        if done is not None and done.version == lake.version(table):
            return
        moved(uri, table.name, lake.version(table), version)
        if mark is not None:
            # First, since a base that has more than its watermark says shows the same rows, and one that has less does
            # not.
            own = Transaction(f"{txn.app_id.rpartition('/')[0]}/mark", txn.version)
            if mark.version > (log.open_version(uri).transaction_version(mark.app_id) or -1):
                nothing = lake.read(table).limit(0).write.format("delta").mode("append")
                save_under(nothing, uri, replace(mark, guard=txn.guard, of=own.marker))
            else:
                # A version that is not greater than the last is none that Spark writes.
                txn.guard()
                _note(uri, own, mark)
        with lake.transaction(txn):
            lake.spark.sql(f"RESTORE TABLE {lake.sql_name(table)} TO VERSION AS OF {int(version)}").collect()


def _note(uri: str, txn: Transaction, mark: Transaction) -> None:
    """A commit that changes nothing but the transaction of an application, also to an earlier one."""
    found = DeltaTable(log.storage_uri(uri))
    properties = CommitProperties(
        custom_metadata={"userMetadata": txn.metadata},
        app_transactions=[TxnAction(mark.app_id, mark.version)],
        max_commit_retries=0,
    )
    partitions = list(found.metadata().partition_columns)
    found.create_write_transaction([], "append", found.schema(), partitions, commit_properties=properties)


def whole(lake: Lake, table: Table, version: int) -> bool:
    """Whether a version is still readable. Reads the log, and looks for the files that are not live any more."""
    try:
        moved(lake.uri(table), table.name, lake.version(table), version)
    except VersionGone:
        return False
    return True


def rolled_back(lake: Lake, table: Table, version: int, guard: Callable[[], None]) -> None:
    """Give a table the rows, the layout and the properties of an earlier version, whatever they are now.

    guard: raises when the caller may not write any more.
    """
    with commit_lock(lake.root, table.name):
        guard()
        lake.spark.sql(f"RESTORE TABLE {lake.sql_name(table)} TO VERSION AS OF {int(version)}").collect()


def checksums(lake: Lake, versions: Iterable[tuple[Table, int]]) -> list[Checksum]:
    """Of each of these versions, in their order; comparable with those of the same table and call only. One Spark job
    for all."""
    frames = [
        lake.read(table, version).agg(
            F.lit(number).alias("n"), F.count("*").alias("rows"), F.sum(row_hash(table.column_names)).alias("total")
        )
        for number, (table, version) in enumerate(versions)
    ]
    if not frames:
        return []
    found = reduce(DataFrame.unionAll, frames).collect()
    return [Checksum(row["rows"], str(row["total"] or 0)) for row in sorted(found, key=lambda row: row["n"])]


def row_hash(columns: Sequence[str]) -> SparkColumn:
    """A hash of these columns. As JSON, since maps have no hash of their own; all columns stand in it, so that a null
    cannot hide."""
    options = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "ignoreNullFields": "false"}
    return F.xxhash64(F.to_json(F.struct(*columns), options)).cast("decimal(38,0)")
