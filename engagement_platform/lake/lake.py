"""Creates, reads and writes the tables of one lake; the only place that writes.

Every write names the transaction it belongs to, so that Delta skips it when it is replayed (Delta protocol: txn
action). Deciding what to write is the domain packages' work.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from typing import Any, Self, TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from engagement_platform.engine.database import utc_now
from engagement_platform.engine.model import Transaction
from engagement_platform.errors import START_ANEW, PlatformError
from engagement_platform.lake import contract, driver_lease, live_files, log
from engagement_platform.lake.batch_logs import refuse_other
from engagement_platform.lake.commit_lock import commit_lock
from engagement_platform.lake.contract import ContractBroken, Mode, NotAStreamSource, Table, differences
from engagement_platform.lake.jars import APPEND_CONF
from engagement_platform.settings import Settings

Rows: TypeAlias = DataFrame | pa.Table
"""Rows to write: in Spark, or few enough to be in this process."""

MAX_LITERALS = 1000
"""More values than this are not listed in a predicate: the plan would cost more than the pruning saves (a guess)."""

FIRST_EDITION = ("engagement/data", "earlier_versions")
"""A table, and a column that it lacks in a lake of the first edition, where nobody may add it: its rows would say that
they had no earlier version."""

ROWS_PER_FILE = 500_000
"""Rows of one batch in one file of a table without partitions: some 50 MB of engagements (a guess)."""

UNSAFE_IN_ROOT = "%#?[],"
_GLOB = re.compile(r"[*{}\\]")
"""What Spark takes for a pattern in the path of a file to read."""

_ADDED = "engagement_platform.added."
"""Begins the property of a table that says when a column was added to it."""

_CREATED_AT_ONCE = 4
"""Tables that are created side by side: 0.31 s each, 0.73 s one after the other, 0.40 s by eight (2 cores, shared)."""

_PLAIN_FOLDER = re.compile(r"[A-Za-z0-9 _.@+,;!()-]{1,200}")
"""Values that are safe as names of folders everywhere: in ASCII, and so short that `column=value` stays below the 255
bytes that file systems allow."""

_APP_ID = "spark.databricks.delta.write.txnAppId"
_VERSION = "spark.databricks.delta.write.txnVersion"
_MARKER = "spark.databricks.delta.commitInfo.userMetadata"
TRANSACTION_CONF = (_APP_ID, _VERSION, _MARKER)
"""Configuration of a session that names the transaction of its next MERGE, UPDATE or DELETE."""


class LakePathRefused(PlatformError):
    """A folder name that Spark and the readers of a log read differently."""

    def __init__(self, root: str) -> None:
        super().__init__(
            f"The lake cannot be in {root}: one of the characters {UNSAFE_IN_ROOT} in a path means something else to "
            "one of the engines that read and write tables. Nothing was written. Set ENGAGEMENT_PLATFORM_LAKE_URI or "
            "ENGAGEMENT_PLATFORM_HOME to another folder."
        )


def refuse_path(root: str) -> None:
    """Raise LakePathRefused for a folder of this machine with a name that cannot be a lake's."""
    if "://" not in root and any(character in root for character in UNSAFE_IN_ROOT):
        raise LakePathRefused(root)


class Lake:
    """The tables under one root, through one Spark session. Raises LakePathRefused."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self.spark, self.settings, self.root = spark, settings, settings.lake
        refuse_path(self.root)

    def under(self, settings: Settings) -> Self:
        """The same tables and session under other settings, such as those that a manifest pins."""
        other = copy.copy(self)
        other.settings = settings
        return other

    @property
    def is_local(self) -> bool:
        """Whether the tables are on this machine's disk."""
        return "://" not in self.root

    def uri(self, table: Table) -> str:
        """Where a table is."""
        return table.uri(self.root)

    def version(self, table: Table) -> int:
        """Current version; the table must exist. Reads the log, starts no Spark job."""
        found = log.version(self.uri(table))
        assert found is not None, f"{table.name} does not exist under {self.root}"
        return found

    def ensure(self, *tables: Table) -> None:
        """Create what is missing and compare what is there with its contract.

        Raises ContractBroken with the differences; adds missing columns only with `layout.evolve`.
        """
        missing = []
        for table in tables:
            found = log.describe(self.uri(table))
            if found is None:
                missing.append(table)
            else:
                self._compare(table, found)
        with ThreadPoolExecutor(_CREATED_AT_ONCE) as pool:
            list(pool.map(self._create, missing))

    def _compare(self, table: Table, found: contract.Found) -> None:
        missing, problems = differences(table, found)
        if table.name == FIRST_EDITION[0] and any(column.name == FIRST_EDITION[1] for column in missing):
            raise PlatformError(
                f"The engagement tables in {self.root} were written by the first edition of the platform, which kept "
                f"what their rows depend on in other tables. Nothing was written. {START_ANEW}"
            )
        if problems or (missing and not self.settings.layout.evolve):
            lacking = [f"column {column.name} {column.type} is missing" for column in missing]
            raise ContractBroken(table.name, lacking + problems)
        for column in missing:
            # Where the contract has it: an attribute of an entity comes with a version, in another place.
            added = f"{contract.declared([column])} {table.place_of(column)}"
            with self._writing(table):
                now = log.describe(self.uri(table))
                if now is not None and column.name in now.columns:
                    # Of another process, which has set the time, too.
                    continue
                # When, first: who ends between the two adds the column with the next call, and sets the time anew.
                self._set(table, f"{_ADDED}{column.name}", utc_now().isoformat())
                self.spark.sql(f"ALTER TABLE {self.sql_name(table)} ADD COLUMNS ({added})").collect()

    def added(self, table: Table) -> dict[str, datetime]:
        """When columns came to a table that was there, by name; the table must exist. Rows from before lack them."""
        found = log.describe(self.uri(table))
        properties = {} if found is None else found.properties
        return {
            key.removeprefix(_ADDED): datetime.fromisoformat(at)
            for key, at in properties.items()
            if key.startswith(_ADDED)
        }

    def refuse_undeclared(self, *tables: Table) -> None:
        """Raise ContractBroken where a table has columns by now that this process does not know.

        It would leave them null in what it writes, and in a base that it writes anew.
        """
        for table in tables:
            found = log.describe(self.uri(table))
            if found is not None and (unknown := contract.undeclared(table, found.columns)):
                raise ContractBroken(table.name, unknown)

    def read(self, table: Table, version: int | None = None, *, skips: bool = False) -> DataFrame:
        """All rows, as of a version or now. skips: predicates may follow by which Delta skips files.

        Of few files on a disk Spark reads just these: a scan by Delta begins with a job over the table's log, which
        with its planning took 0.3 to 0.5 s more, for 20 files as for 1,000 (2 cores).
        """
        if version is None:
            return self.spark.read.format("delta").load(self.uri(table))
        by_files = self.is_local and not skips and not _GLOB.search(self.root)
        if by_files and (plain := live_files.plain(self.uri(table), version)) is not None:
            schema, files = StructType.fromJson(plain[0]), plain[1]
            # Folders of partitions are looked for below the table alone.
            reader = self.spark.read.schema(schema).option("basePath", self.uri(table))
            return reader.parquet(*files).select(*schema.names)
        return self.spark.read.format("delta").option("versionAsOf", version).load(self.uri(table))

    def frame(self, rows: Rows) -> DataFrame:
        """Rows as a frame, wherever they are; also when there is none of them."""
        if not isinstance(rows, pa.Table):
            return rows
        if rows.num_rows:
            return self.spark.createDataFrame(rows)
        return self.spark.createDataFrame([], from_arrow_schema(rows.schema))

    def stream(self, table: Table, *, files: int | None = None) -> DataFrame:
        """An append-only table as a streaming source, from its first row on; commits that change rows, which only
        erasures make, are skipped. files: most of one batch; Delta's default is 1,000. Raises NotAStreamSource."""
        if table.mode is not Mode.APPEND_ONLY:
            raise NotAStreamSource(table)
        reader = self.spark.readStream.format("delta").option("skipChangeCommits", "true")
        reader = reader if files is None else reader.option("maxFilesPerTrigger", files)
        return reader.load(self.uri(table))

    def append(self, frame: DataFrame, table: Table, txn: Transaction, *, rows: int) -> None:
        """Append rows by Spark, as few files as they fill; skipped when this transaction is in the table already.

        rows: how many there are. None is fine: then the transaction alone is committed.
        """
        selected = frame.select(*table.column_names)
        with self._writing(table):
            self._before_write(table, txn)
            if not rows:
                selected = selected.limit(0)
            elif table.partitioned_by:
                selected = selected.repartition(*(F.col(name) for name in table.partitioned_by))
            else:
                selected = selected.coalesce(files_of(rows))
            writer = selected.write.format(self._append_source).mode("append").option("optimizeWrite", "false")
            save_under(writer, self.uri(table), txn)

    @cached_property
    def _append_source(self) -> str:
        """Delta itself where Spark lacks the class that needs no job to find a transaction."""
        return str(self.spark.conf.get(APPEND_CONF, "delta"))

    def holds(self, table: Table, txn: Transaction) -> bool:
        """Whether a table has this transaction, or a later one of its application. Raises StoresBehind when that is
        the work of a batch with another manifest."""
        found = log.open_log(self.uri(table))
        held = None if found is None else found.transaction_version(txn.app_id)
        refuse_other(self.root, table.name, txn, held)
        return held is not None and held >= txn.version

    def set_property(self, table: Table, key: str, value: str) -> None:
        """Give a table a property that it does not have yet."""
        found = log.describe(self.uri(table))
        if found is not None and found.properties.get(key) != value:
            with self._writing(table):
                self._set(table, key, value)

    def _set(self, table: Table, key: str, value: str) -> None:
        self.spark.sql(f"ALTER TABLE {self.sql_name(table)} SET TBLPROPERTIES ('{key}' = '{value}')").collect()

    @contextmanager
    def _writing(self, table: Table) -> Iterator[None]:
        """Hold the lock of a table on this machine's disk; on an object store, make sure that this driver may write."""
        with commit_lock(self.root, table.name):
            driver_lease.check(self.root)
            yield

    def _before_write(self, table: Table, txn: Transaction) -> None:
        """Raise ContractBroken when a mutable table got another layout since this run looked at it, and StoresBehind
        when the write would be skipped for another batch's work."""
        found = log.open_log(self.uri(table)) if table.mode is Mode.MUTABLE or txn.note else None
        if found is None:
            return
        partitioned_by = tuple(found.metadata().partition_columns)
        if table.mode is Mode.MUTABLE and partitioned_by != table.partitioned_by:
            raise ContractBroken(table.name, [contract.partitioned_otherwise(partitioned_by, table)])
        refuse_other(self.root, table.name, txn, found.transaction_version(txn.app_id))

    @contextmanager
    def transaction(self, txn: Transaction) -> Iterator[None]:
        """MERGE, UPDATE and DELETE of this session commit under a transaction meanwhile. Raises what its guard does."""
        try:
            for key, value in zip(TRANSACTION_CONF, (txn.app_id, str(txn.version), txn.metadata), strict=True):
                self.spark.conf.set(key, value)
            txn.guard()
            driver_lease.check(self.root)
            yield
        finally:
            # Left behind, they would name every later write of this session, and Delta would skip those.
            for key in TRANSACTION_CONF:
                self.spark.conf.unset(key)

    def commit_of(self, table: Table, txn: Transaction) -> log.Commit | None:
        """What a transaction wrote, from the table's history; also when it was written before a crash."""
        return log.find_commit(self.uri(table), txn.marker)

    def written(self, table: Table, *transactions: Transaction) -> dict[str, int]:
        """Files, bytes and commits that transactions added to a table, from its history."""
        return log.added_by(self._commits(table, transactions))

    def rewritten(self, table: Table, *transactions: Transaction) -> dict[str, int]:
        """Files that transactions replaced, and the bytes written instead."""
        replacing = [commit for commit in self._commits(table, transactions) if commit.files_removed]
        return {
            "files_rewritten": sum(commit.files_removed for commit in replacing),
            "bytes_rewritten": sum(commit.bytes_added for commit in replacing),
        }

    def _commits(self, table: Table, transactions: Iterable[Transaction]) -> list[log.Commit]:
        return [commit for txn in transactions if (commit := self.commit_of(table, txn)) is not None]

    def accept_folders(self, column: str, values: Iterable[str], *tables: Table) -> None:
        """Make sure that texts can be partition values of these tables, however long or strange they are.

        Folders are called `column=<value>` while all values make good folder names. The first that does not (too long
        for the file system, or outside ASCII, which a JVM in the C locale cannot write) turns the table to random
        folder names (delta.randomizeFilePrefixes); values live in the log, readers see no difference.
        """
        if all(map(_PLAIN_FOLDER.fullmatch, values)):
            return
        for table in tables:
            if column in table.partitioned_by:
                self.set_property(table, "delta.randomizeFilePrefixes", "true")

    def _create(self, table: Table) -> None:
        properties = ", ".join(f"'{key}' = '{value}'" for key, value in table.properties.items())
        layout = f"PARTITIONED BY ({', '.join(table.partitioned_by)})" if table.partitioned_by else ""
        layout = f"CLUSTER BY ({', '.join(table.liquid_by)})" if table.liquid_by else layout
        columns = contract.declared(table.columns)
        with self._writing(table):
            self.spark.sql(
                f"CREATE TABLE IF NOT EXISTS {self.sql_name(table)} ({columns}) USING delta {layout} "
                f"TBLPROPERTIES ({properties})"
            ).collect()

    def sql_name(self, table: Table) -> str:
        """A table in SQL, by its path."""
        return f"delta.`{self.uri(table).replace('`', '``')}`"


def save_under(writer: DataFrameWriter, uri: str, txn: Transaction) -> None:
    """Write rows under a transaction; skipped when the table has it. Raises what its guard raises."""
    named = writer.option("txnAppId", txn.app_id).option("txnVersion", txn.version)
    named = named.option("userMetadata", txn.metadata)
    txn.guard()
    named.save(uri)


def files_of(rows: int) -> int:
    """Into how many files so many rows of a table without partitions go.

    >>> [files_of(rows) for rows in (0, 1, ROWS_PER_FILE, ROWS_PER_FILE + 1)]
    [1, 1, 1, 2]
    """
    return max(1, -(-rows // ROWS_PER_FILE))


def any_of(column: str, values: Sequence[Any]) -> Column:
    """`column IN values` as a predicate that prunes; true for everything when there are too many to list."""
    return F.col(column).isin(list(values)) if len(values) <= MAX_LITERALS else F.lit(True)
