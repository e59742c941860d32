"""Gives the Data Table another layout in one commit, and reads which layout it has, and since which version.

`maintenance.layout.migrate` decides whether and when.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from engagement_platform.engine.model import Transaction
from engagement_platform.errors import PlatformError, first_line
from engagement_platform.lake import log
from engagement_platform.lake.commit_lock import commit_lock
from engagement_platform.lake.contract import AUTO_COMPACT, Table
from engagement_platform.lake.engagement import data_table
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.optimize import CONFLICT, configured
from engagement_platform.settings import LayoutScheme

_MARK = "migrate-layout/"
_ORDER = data_table("liquid").liquid_by


class WrittenMeanwhile(PlatformError):
    """Another commit to the table landed while its rows were rewritten."""

    def __init__(self, table: str, cause: str) -> None:
        super().__init__(
            f"Another commit to {table} landed while its rows were rewritten ({cause}). This attempt changed nothing. "
            "Run the same command again: it goes on from what is there then."
        )


def is_relay(marker: str | None) -> bool:
    """Whether a commit, by its user metadata, laid a table out anew."""
    return (marker or "").startswith(_MARK)


def scheme_of(uri: str) -> LayoutScheme | None:
    """The layout of a table, by its partition columns; None where there is no table, or one laid out otherwise.

    `liquid` also for one that is not partitioned and not clustered (yet): `declare` mends that.
    """
    found = log.describe(uri)
    if found is None:
        return None
    return next((s for s in get_args(LayoutScheme) if data_table(s).partitioned_by == found.partitioned_by), None)


def last_relaid(uri: str) -> tuple[int, str] | None:
    """The version that the newest commit of `relay` made, and the layout it gave; None when the log has none."""
    for version, marker in log.markers(uri):
        if marker is not None and is_relay(marker):
            return version, marker.removeprefix(_MARK)
    return None


def organizations(lake: Lake, table: Table) -> list[str]:
    """Every organization that has rows. Cost: reads one column."""
    found = lake.read(table).select("organization_id").distinct().toArrow()
    ids: list[str] = found.column(0).to_pylist()
    return ids


def relay(lake: Lake, scheme: LayoutScheme, tasks: int, txn: Transaction) -> None:
    """Write all rows anew, in order of organization and day, `tasks` times about the same bytes.

    One commit, skipped when this transaction, or a later one of its application, is in the table. Properties, comments
    and transactions of the table stay. It says dataChange=true, since Delta refuses to change partition columns without
    (DELTA_DATA_CHANGE_FALSE, 4.4.0). Raises WrittenMeanwhile.
    """
    table = data_table(scheme)
    # Its commit after ours would merge what we have just put in order.
    with (
        commit_lock(lake.root, table.name),
        configured(lake.spark, {"spark.databricks.delta.autoCompact.enabled": "false"}),
    ):
        rows = lake.read(table, lake.version(table)).select(*table.column_names)
        # By ranges, so that a file holds a stretch of days of an organization that no other file has.
        rows = rows.repartitionByRange(tasks, *_ORDER).sortWithinPartitions(*_ORDER)
        writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        # Optimized writes would deal the rows out anew; a session may have dynamic overwrites switched on.
        writer = writer.option("optimizeWrite", "false").option("partitionOverwriteMode", "static")
        if table.partitioned_by:
            writer = writer.partitionBy(*table.partitioned_by)
        try:
            named = writer.option("txnAppId", txn.app_id).option("txnVersion", txn.version)
            named = named.option("userMetadata", f"{_MARK}{scheme}")
            txn.guard()
            named.save(lake.uri(table))
        except Exception as error:
            if CONFLICT.search(str(error)) is None:
                raise
            # A run that was killed may still be at work in Spark: nothing is lost, one of the two commits.
            raise WrittenMeanwhile(table.name, first_line(error)) from error


def declare(lake: Lake, table: Table, guard: Callable[[], None]) -> None:
    """Declare the clustering and the auto compaction of a layout where the table lacks them; only the log changes.

    guard: raises when the caller may not write any more.
    """
    compacts = table.properties.get(AUTO_COMPACT, "false")
    with commit_lock(lake.root, table.name):
        [found] = lake.spark.sql(f"DESCRIBE DETAIL {lake.sql_name(table)}").collect()
        changes = []
        if table.liquid_by and tuple(found["clusteringColumns"] or ()) != table.liquid_by:
            changes.append(f"CLUSTER BY ({', '.join(table.liquid_by)})")
        if found["properties"].get(AUTO_COMPACT, "false") != compacts:
            changes.append(f"SET TBLPROPERTIES ('{AUTO_COMPACT}' = '{compacts}')")
        for change in changes:
            guard()
            lake.spark.sql(f"ALTER TABLE {lake.sql_name(table)} {change}").collect()
