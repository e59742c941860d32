"""What the pending changes say last about each column of each key, as one frame from changes to one row a key.

Joining that with the base is `view`; the same rules for one key at a time are `rules`.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from engagement_platform.pipelines.profiles.entity import Entity, version_of


def latest_values(changes: DataFrame, entity: Entity) -> DataFrame:
    """The newest word about each column, and about whether there is such a key at all.

    In:  columns of the changeset.
    Out: the key; version (greatest of any change); present, present_version, present_ts (null: nothing said); each
         attribute with the version of its word (null: nothing said; a null with a version: set to null);
         inserted, whether an INSERT is among the changes: one that was updated since stays an insert.
    A word is newer by its version; of equal versions the first to land stays, column by column. A DELETE speaks of
    every column. Cost: one aggregation by key.
    """
    # Of two words of one version the one that landed first is greater.
    place = F.struct(entity.version, -F.col("batch_id"), -F.col("partition"), -F.col("offset"))
    presence = F.max_by(
        F.struct((F.col("op") != "DELETE").alias("present"), entity.version, "ingestion_ts"),
        F.when(_speaks_of_presence(entity), place),
    )
    newest = {
        name: F.max_by(F.struct(name, entity.version), F.when(_speaks_of(name), place)) for name in entity.columns
    }
    # No repartition before it, which would keep a predicate on the key from the files of the changeset.
    folded = changes.groupBy(entity.key).agg(
        F.max(entity.version).alias(entity.version),
        F.bool_or(F.col("op") == "INSERT").alias("inserted"),
        presence.alias("presence"),
        *(word.alias(f"word_{name}") for name, word in newest.items()),
    )
    return folded.select(
        entity.key,
        entity.version,
        "inserted",
        F.col("presence.present").alias("present"),
        F.col(f"presence.{entity.version}").alias("present_version"),
        F.col("presence.ingestion_ts").alias("present_ts"),
        *(F.col(f"word_{name}.{name}").alias(name) for name in entity.columns),
        *(F.col(f"word_{name}.{entity.version}").alias(version_of(name)) for name in entity.columns),
    )


def _speaks_of_presence(entity: Entity) -> Column:
    """Where updates make no rows, they do not keep any either: only an INSERT undoes a DELETE."""
    return F.col("op") != "UPDATE" if entity.unknown_update == "ignore" else F.lit(True)


def _speaks_of(column: str) -> Column:
    cleared = F.coalesce(F.array_contains("set_null", F.lit(column)), F.lit(False))
    return (F.col("op") == "DELETE") | F.col(column).isNotNull() | cleared
