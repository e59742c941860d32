"""Compares identities in the Data Table with what follows from the events and the edges; names and contents too.

The whole lake, or organizations that change from day to day. What names and contents follow from is `logs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from hashlib import sha256

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from engagement_platform.jobs import open_stores
from engagement_platform.mutation.identify import ROW, identified
from engagement_platform.settings import Settings
from engagement_platform.tables.engagement import (
    ALIAS,
    AMENDMENT,
    MAPPING,
    MUTATION_LOGS,
    PENDING,
    SAID_NAME,
    data_table,
)
from engagement_platform.tables.lake import MAX_LITERALS, Lake
from engagement_platform.verify.finding import Finding, counted
from engagement_platform.verify.logs import contents_and_names
from engagement_platform.verify.moment import Moment, moment

_MEANING = "every identity in the Data Table follows from its event and the edges"


def identity_findings(settings: Settings, spark: SparkSession, sample: int | None = None) -> list[Finding]:
    """Findings `identity`, `names` and `contents`, of one consistent moment of the lake.

    sample: so many organizations, others every UTC day; None: all. Cost: reads the Data Table without its contents,
    resolves all edges in Spark, and takes the logs of names and patches through this process in portions.
    Before the first batch nothing is looked at. Raises what opening the stores raises.
    """
    then = moment(settings, open_stores(settings).checkpoints)
    lake, data = Lake(spark, settings), data_table(settings.layout.scheme)
    if not then.has(data, MAPPING, PENDING, *MUTATION_LOGS):
        return [Finding("identity", _MEANING, 0, 0)]
    organizations = _organizations(lake, then)
    chosen = organizations if sample is None else sampled(organizations, sample, datetime.now(UTC).date())
    within = _Within(lake, then, None if sample is None else chosen)
    return [_identity(within), *contents_and_names(lake, then, chosen)]


def sampled(organizations: Iterable[str], size: int, day: date) -> list[str]:
    """So many of the organizations, in their order: the same ones all day, and others on another day.

    >>> sampled(["a", "b", "c"], 2, date(2026, 11, 21))
    ['a', 'c']
    """
    return sorted(sorted(organizations, key=lambda name: sha256(f"{day}/{name}".encode()).digest())[:size])


def _organizations(lake: Lake, then: Moment) -> list[str]:
    """All organizations that have anything to compare."""
    data = data_table(lake.settings.layout.scheme)
    columns = [then.read(lake, table).select("organization_id") for table in (data, MAPPING, SAID_NAME, AMENDMENT)]
    first, *rest = (column.distinct() for column in columns)
    for column in rest:
        first = first.union(column)
    return sorted(row["organization_id"] for row in first.distinct().collect())


class _Within:
    """Tables of a moment, of some organizations (None: all)."""

    def __init__(self, lake: Lake, then: Moment, organizations: Sequence[str] | None) -> None:
        self.lake, self._then, self._organizations = lake, then, organizations

    def data(self) -> DataFrame:
        """Identities that are stored: ROW and person_id."""
        return self._only(self._then.read(self.lake, data_table(self.lake.settings.layout.scheme))).select(
            *ROW, "person_id"
        )

    def edges(self) -> DataFrame:
        """All edges."""
        return self._only(self._then.read(self.lake, ALIAS))

    def pending(self) -> DataFrame:
        """organization_id and pending_from of those whose newest edges the Data Table does not show."""
        waiting = self._then.read(self.lake, PENDING).where("pending_from IS NOT NULL")
        return self._only(waiting).select("organization_id", "pending_from")

    def _only(self, rows: DataFrame) -> DataFrame:
        if self._organizations is None:
            return rows
        if len(self._organizations) <= MAX_LITERALS:
            return rows.where(F.col("organization_id").isin(list(self._organizations)))
        wanted = self.lake.spark.createDataFrame([(name,) for name in self._organizations], "organization_id string")
        return rows.join(F.broadcast(wanted), "organization_id", "left_semi")


def _identity(within: _Within) -> Finding:
    """Where edges wait, the Data Table shows those from before; rows that came in since show more of them."""
    rows, edges, pending = within.data(), within.edges(), within.pending()
    engine = within.lake.settings.mutation.resolver
    since = edges.join(F.broadcast(pending), "organization_id", "left")
    shown = since.where("pending_from IS NULL OR batch_id < pending_from").select(*edges.columns)
    found = identified(rows, shown, engine=engine)
    wrong = found.where(~F.col("person_id").eqNullSafe(F.col("now"))).localCheckpoint()
    waiting = since.where("batch_id >= pending_from").join(wrong.select("organization_id"), "organization_id", "semi")
    cuts = waiting.select("organization_id", (F.col("batch_id") + 1).alias("cut")).distinct().localCheckpoint()
    if not cuts.isEmpty():
        later = identified(_as_of(wrong.drop("now"), cuts), _as_of(edges, cuts).where("batch_id < cut"), engine=engine)
        right = later.where(F.col("person_id").eqNullSafe(F.col("now")))
        right = right.select(F.col("of_organization").alias("organization_id"), "engagement_id").distinct()
        wrong = wrong.join(right, ["organization_id", "engagement_id"], "left_anti").localCheckpoint()
    shown_as = F.concat_ws("/", "organization_id", "engagement_id").alias("place")
    return counted("identity", _MEANING, rows, wrong.select(shown_as), "place")


def _as_of(rows: DataFrame, cuts: DataFrame) -> DataFrame:
    """Rows once for each cut of their organization, as if each were an organization of its own.

    So that all states which a row may have come in to are resolved in one go, whatever their number.
    """
    each = rows.join(cuts, "organization_id").withColumn("of_organization", F.col("organization_id"))
    return each.withColumn("organization_id", F.concat_ws("/", F.col("cut").cast("string"), "organization_id"))
