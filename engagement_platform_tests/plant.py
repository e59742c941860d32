"""Plants tables and rows through delta-rs, so that tests of readers need no Spark. Pipelines never write this way."""

from __future__ import annotations

from dataclasses import replace as changed

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake import Transaction as TxnAction

from engagement_platform.engine.model import Transaction
from engagement_platform.lake import store_tables
from engagement_platform.lake.contract import Table


def create(uri: str, table: Table) -> None:
    """An empty table, without the clustering that only Spark declares. Nothing happens where one stands."""
    store_tables.create(uri, changed(table, liquid_by=()))


def append(found: DeltaTable, rows: pa.Table, txn: Transaction) -> None:
    """Add rows with the table's columns; one file for each partition."""
    store_tables.append(found, rows, txn)


def replace(found: DeltaTable, rows: pa.Table, txn: Transaction) -> None:
    """Make these rows, with the table's columns in their order, all that the table has."""
    named = CommitProperties(
        custom_metadata={"userMetadata": txn.metadata}, app_transactions=[TxnAction(txn.app_id, txn.version)]
    )
    write_deltalake(found, rows, mode="overwrite", commit_properties=named)
