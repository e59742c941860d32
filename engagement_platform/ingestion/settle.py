"""Decides what each copy of an engagement means: new, newer, known, or a contradiction.

Pure functions from frames to frames. Most engagements of a batch are the only copy of an unknown id; they never
come here (`batch` splits them off first), so the windows below run over few rows.
"""

from __future__ import annotations

from enum import StrEnum

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

ID = ("organization_id", "engagement_id")
COORDINATES = ("topic", "partition", "offset")


class Verdict(StrEnum):
    """What becomes of one copy."""

    INSERT = "INSERT"
    UPDATE = "UPDATE"
    SUPERSEDED = "SUPERSEDED"
    """The first copy of a version below the one that stands or lands: it changes no row, and what it said counts."""
    DUPLICATE = "DUPLICATE"
    QUARANTINE = "QUARANTINE"


LANDING = (Verdict.INSERT.value, Verdict.UPDATE.value)

REASONS = {
    "version_conflict": "The same version of this engagement landed before with different content; the first stays.",
    "moved_in_time": "This engagement stands on another day; all versions must carry the same engagement_ts.",
}


def content(person_id: str, prefix: str = "") -> Column:
    """What makes two copies of a version the same: person, time and content; not the name, which is kept apart.

    Maps cannot be compared, so attributes become a sorted array of entries.
    """
    fields = ("type", "channel", "subject")
    return F.struct(
        F.col(person_id).alias("person_id"),
        F.col("engagement_ts"),
        *(F.col(f"{prefix}{name}").alias(name) for name in fields),
        F.array_sort(F.map_entries(f"{prefix}attributes")).alias("attributes"),
    )


def settle(copies: DataFrame, known: DataFrame, superseded: DataFrame | None = None) -> DataFrame:
    """One verdict per copy of the ids that have several copies, or stand in the table already.

    In:  copies: topic, partition, offset, organization_id, engagement_id, engagement_date, version, content.
         known: organization_id, engagement_id, engagement_date, version, person_id, content; one row per id.
         superseded: organization_id, engagement_id, version, content; one row per version that landed and does not
         stand; needed for versions below the known one only, None when there is none of them.
    Out: topic, partition, offset, organization_id, engagement_id, verdict, reason_code (QUARANTINE only),
         previous_person_id, replaced_version and replaced (UPDATE only: of the known row); one row per copy.
    The day of an id is the day where it stands; for a new id, the day of its first copy by coordinates. Of one
    version, what landed before or else the first by coordinates counts; of several new versions the highest lands.
    Cost: one shuffle and two windows over `copies`.
    """
    stands = known.select(
        *ID,
        F.col("engagement_date").alias("known_date"),
        F.col("version").alias("known_version"),
        F.col("person_id").alias("known_person_id"),
        F.col("content").alias("known_content"),
    )
    arrival = [F.col(name) for name in COORDINATES]
    of_id = Window.partitionBy(*ID).orderBy(*arrival)
    of_version = Window.partitionBy(*ID, "on_its_day", "version").orderBy(*arrival)
    whole_id = Window.partitionBy(*ID)

    copies = copies.join(stands, list(ID), "left")
    below = F.lit(None)
    if superseded is not None:
        said = superseded.select(*ID, "version", F.col("content").alias("superseded_content"))
        copies = copies.join(said, [*ID, "version"], "left")
        # Not of versions above: those can only be from a batch that was let go before it finished.
        below = F.when(F.col("version") < F.col("known_version"), F.col("superseded_content"))
    rows = (
        copies.withColumn("day", F.coalesce("known_date", F.first("engagement_date").over(of_id)))
        .withColumn("on_its_day", F.col("engagement_date") == F.col("day"))
        .withColumn("nth", F.row_number().over(of_version))
        .withColumn("first_content", F.first("content").over(of_version))
    )
    in_table = F.coalesce(F.col("version") == F.col("known_version"), F.lit(False))
    is_held = in_table | below.isNotNull()
    counts_as = F.when(in_table, F.col("known_content")).otherwise(F.coalesce(below, F.col("first_content")))
    same = F.col("content").eqNullSafe(counts_as)
    is_first = F.col("on_its_day") & (F.col("nth") == 1) & ~is_held
    is_new = is_first & (F.col("known_version").isNull() | (F.col("version") > F.col("known_version")))
    rows = rows.withColumn("is_first", is_first).withColumn("is_new", is_new)
    highest = F.max(F.when(F.col("is_new"), F.col("version"))).over(whole_id)
    rows = rows.withColumn("lands", F.col("is_new") & (F.col("version") == highest))

    reason = F.when(~F.col("on_its_day"), "moved_in_time").when(~same, "version_conflict")
    verdict = (
        F.when(reason.isNotNull(), Verdict.QUARANTINE.value)
        .when(F.col("lands") & F.col("known_version").isNull(), Verdict.INSERT.value)
        .when(F.col("lands"), Verdict.UPDATE.value)
        .when(F.col("is_first"), Verdict.SUPERSEDED.value)
        .otherwise(Verdict.DUPLICATE.value)
    )
    replaces = F.col("lands") & F.col("known_version").isNotNull()
    return rows.select(
        *COORDINATES,
        *ID,
        verdict.alias("verdict"),
        reason.alias("reason_code"),
        F.when(replaces, F.col("known_person_id")).alias("previous_person_id"),
        F.when(replaces, F.col("known_version")).alias("replaced_version"),
        F.when(replaces, F.col("known_content")).alias("replaced"),
    )


def newest_names(named: DataFrame) -> DataFrame:
    """The newest name each person is called by in a batch.

    In:  organization_id, person_id, person_name, engagement_ts.
    Out: organization_id, id, name, name_ts; one row per person. Equal times: the larger name. Cost: one aggregation.
    """
    newest = F.max(F.struct(F.col("engagement_ts").alias("name_ts"), F.col("person_name").alias("name")))
    return (
        named.where(F.col("person_name").isNotNull())
        .groupBy("organization_id", F.col("person_id").alias("id"))
        .agg(newest.alias("newest"))
        .select("organization_id", "id", "newest.name", "newest.name_ts")
    )


def changed_names(said: DataFrame, known: DataFrame) -> DataFrame:
    """The names that change the mapping.

    In:  said: organization_id, id, name, name_ts. known: the mapping, as pinned.
    Out: organization_id, id, name, name_ts, is_new. A known name with the same time and a larger or equal value stays.
    """
    stands = known.select(
        "organization_id", "id", F.struct("name_ts", "name").alias("stands"), F.lit(True).alias("is_known")
    )
    joined = said.join(stands, ["organization_id", "id"], "left")
    newer = F.struct("name_ts", "name") > F.col("stands")
    return joined.where(F.col("is_known").isNull() | newer).select(
        "organization_id", "id", "name", "name_ts", F.col("is_known").isNull().alias("is_new")
    )
