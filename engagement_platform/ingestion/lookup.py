"""Finds what is known of the engagements of a large batch, in Spark, and has it settled.

Reads only pinned versions, and as little of the Data Table as possible. The rules are `settle`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.ingestion.former import Former
from engagement_platform.ingestion.frames import kept, small
from engagement_platform.ingestion.settle import COORDINATES, ID, content, settle
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import SUPERSEDED
from engagement_platform.lake.lake import Lake, any_of


@dataclass
class Lookup:
    """Finds the ids of a batch that need a second look, reading as little of the Data Table as possible."""

    lake: Lake
    data: Table
    version: int
    accepted: DataFrame
    """Decoded copies; kept."""
    copies: int
    """How many that is, and below what prunes reading."""
    organizations: Sequence[str]
    dates: Sequence[date]
    former: Former

    def verdicts(self) -> DataFrame | None:
        """Verdicts of all copies of ids that are known, repeated, or above version 1; None when there is none."""
        if not self.copies:
            return None
        ids = self.accepted.groupBy(*ID).agg(
            F.count("*").alias("copies"),
            F.max("version").alias("top_version"),
            F.min("version").alias("bottom_version"),
        )
        keys = self._pruned(self.organizations, self.dates).select(*ID, "engagement_date", "version")
        known = keys.join(small(ids.select(*ID, "bottom_version"), self.copies), list(ID)).select(
            *ID,
            "engagement_date",
            F.col("version").alias("known_version"),
            F.lit(0).alias("top_version"),
            "bottom_version",
        )
        again = ids.where((F.col("copies") > 1) | (F.col("top_version") > 1)).select(
            *ID, F.lit(None).cast("date").alias("engagement_date"), F.lit(None).cast("long").alias("known_version"),
            "top_version", "bottom_version",
        )  # fmt: skip
        versions = ("known_version", "top_version", "bottom_version")
        doubtful = known.unionByName(again).groupBy(*ID).agg(*(F.max(name).alias(name) for name in versions))
        return self._settled(kept(doubtful))

    def _settled(self, doubtful: DataFrame) -> DataFrame | None:
        is_lower = F.col("bottom_version") < F.col("known_version")
        found = doubtful.agg(
            F.count("*").alias("ids"),
            F.count("known_version").alias("known"),
            F.sum(F.when(F.col("known_version").isNull() & (F.col("top_version") > 1), 1)).alias("unfound"),
            F.count_if(is_lower).alias("lower"),
            F.collect_set("organization_id").alias("organizations"),
        ).collect()[0]
        if not found["ids"]:
            return None
        organizations = sorted(found["organizations"])
        copies = self.accepted.join(small(doubtful.select(*ID), found["ids"]), list(ID)).select(
            *COORDINATES, *ID, "engagement_date", "version", content("person_id").alias("content")
        )
        known = self._none_known()
        if found["known"]:
            here = doubtful.where(F.col("known_version").isNotNull()).select(*ID)
            known = self._standing(self._pruned(organizations, self.dates), small(here, found["known"]))
        if found["unfound"]:
            # A version above 1 says that the id was seen before: look for it on all days of its organization.
            unfound = doubtful.where(F.col("known_version").isNull() & (F.col("top_version") > 1)).select(*ID)
            unfound = small(unfound, found["unfound"])
            known = known.unionByName(self._standing(self._pruned(organizations, None), unfound))
        superseded = None
        if found["lower"] and self.former.has(SUPERSEDED):
            superseded = self._superseded(small(doubtful.where(is_lower).select(*ID), found["lower"]))
        return kept(settle(copies, known, superseded))

    def _superseded(self, ids: DataFrame) -> DataFrame:
        """What versions of these ids said first that landed and do not stand."""
        # Not by ingestion_ts: a clock that was set back would put a later batch first.
        first = F.min_by(content("source_person_id", "engagement."), "batch_sequence")
        rows = self.former.read(SUPERSEDED).join(ids, list(ID))
        return rows.groupBy(*ID, "version").agg(first.alias("content"))

    def _standing(self, data: DataFrame, ids: DataFrame) -> DataFrame:
        rows = self.former.unpatched(data.join(ids, list(ID)))
        if self.former.is_pending:
            rows = self.former.identified(rows, "source_person_id").drop("person_id")
            rows = rows.withColumnRenamed("now", "person_id")
        rows = rows.select(
            *ID,
            "engagement_date",
            "version",
            "person_id",
            content("source_person_id", "engagement.").alias("content"),
        )
        # One row per id is an invariant; should it be broken, the newest decides and the uniqueness check tells.
        newest = F.max_by(F.struct("engagement_date", "version", "person_id", "content"), "version")
        return rows.groupBy(*ID).agg(newest.alias("newest")).select(*ID, "newest.*")

    def _pruned(self, organizations: Sequence[str], dates: Sequence[date] | None) -> DataFrame:
        rows = self.lake.read(self.data, self.version).where(any_of("organization_id", organizations))
        return rows if dates is None else rows.where(any_of("engagement_date", dates))

    def _none_known(self) -> DataFrame:
        columns = self.lake.read(self.data, self.version).limit(0)
        return columns.select(
            *ID, "engagement_date", "version", "person_id", content("source_person_id", "engagement.").alias("content")
        )
