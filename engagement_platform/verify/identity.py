"""Compares identities in the Data Table with what follows from the events and the edges; names and contents too.

The whole lake, or organizations that change from day to day. What names and contents follow from is `logs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from hashlib import sha256

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from engagement_platform.jobs import open_stores
from engagement_platform.lake import log
from engagement_platform.lake.engagement import (
    ALIAS,
    AMENDMENT,
    MAPPING,
    MUTATION_LOGS,
    PENDING,
    SAID_NAME,
    data_table,
)
from engagement_platform.lake.lake import MAX_LITERALS, Lake
from engagement_platform.mutation.accepted import edges_of
from engagement_platform.mutation.identify import ROW, identified
from engagement_platform.pipelines.mutations.identity import Identities, identities_of
from engagement_platform.settings import Settings
from engagement_platform.verify.finding import EXAMPLES, Finding, Rule, found
from engagement_platform.verify.logs import MOST_ROWS, contents_and_names, portions, rows_of
from engagement_platform.verify.moment import Moment, moment

MOST_ROWS_HERE = 5_000_000
"""Rows and edges of one organization above which a sample is looked at in Spark; 200 bytes each, about 1 GB."""

_MEANING = "every identity in the Data Table follows from its event and the edges"


def identity_findings(settings: Settings, spark: SparkSession, sample: int | None = None) -> list[Finding]:
    """Findings `identity`, `names` and `contents`, of one consistent moment of the lake.

    sample: so many organizations, others every UTC day; None: all. Cost: reads the Data Table without its contents.
    All edges of the lake are resolved in Spark, those of a sample in this process, in portions, as are the logs of
    names and patches; MOST_ROWS_HERE says when a sample is too large for that.
    Before the first batch nothing is looked at. Raises what opening the stores raises.
    """
    then = moment(settings, open_stores(settings).checkpoints)
    lake, data = Lake(spark, settings), data_table(settings.layout.scheme)
    if not then.has(data, MAPPING, PENDING, *MUTATION_LOGS):
        return [Finding("identity", _MEANING, 0, 0)]
    organizations = _organizations(lake, then)
    chosen = organizations if sample is None else sampled(organizations, sample, datetime.now(UTC).date())
    within = _Within(lake, then, None if sample is None else chosen)
    held = rows_of(lake, then, (data, ALIAS), chosen) if sample is not None else {}
    few = sample is not None and max(held.values(), default=0) <= MOST_ROWS_HERE
    return [_identity_here(lake, then, held) if few else _identity(within), *contents_and_names(lake, then, chosen)]


def sampled(organizations: Iterable[str], size: int, day: date) -> list[str]:
    """So many of the organizations, in their order: the same ones all day, and others on another day.

    >>> sampled(["a", "b", "c"], 2, date(2026, 11, 21))
    ['a', 'c']
    """
    return sorted(sorted(organizations, key=lambda name: sha256(f"{day}/{name}".encode()).digest())[:size])


def _organizations(lake: Lake, then: Moment) -> list[str]:
    """All organizations that have anything to compare; from the logs alone where tables are partitioned by them."""
    data = data_table(lake.settings.layout.scheme)
    found: set[str] = set()
    for table in (data, MAPPING, SAID_NAME, AMENDMENT):
        names = log.partition_values(lake.uri(table), then.versions[table.name], "organization_id")
        if names is None:
            rows = then.read(lake, table).select("organization_id").distinct().collect()
            names = {row["organization_id"] for row in rows}
        found |= names
    return sorted(found)


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


def _identity_here(lake: Lake, then: Moment, rows: Mapping[str, int]) -> Finding:
    """The same as `_identity`, in this process. rows: organization -> what it has in the Data Table and its edges."""
    data = data_table(lake.settings.layout.scheme)
    looked_at, wrong = 0, list[str]()
    for portion in portions(rows, MOST_ROWS, MAX_LITERALS):
        where = {"organization_id": portion}
        found = lake.find(data, then.versions[data.name], (*ROW, "person_id", "batch_id"), where)
        looked_at += found.num_rows
        edges = then.edges(lake, portion)
        waits = lake.find(PENDING, then.versions[PENDING.name], ("organization_id", "pending_from"), where).to_pylist()
        pending = {row["organization_id"]: row["pending_from"] for row in waits if row["pending_from"] is not None}
        since = [pending.get(name) for name in edges.column("organization_id").to_pylist()]
        batches = edges.column("batch_id").to_pylist()
        shown = [first is None or batch < first for first, batch in zip(since, batches, strict=True)]
        bad = _others(found, edges.filter(pa.array(shown, pa.bool_())))
        # Rows that came in since show more of the edges that wait: all up to some batch.
        waits_for = (batch for batch, at_once in zip(batches, shown, strict=True) if not at_once)
        for cut in sorted(set(waits_for)):
            if not bad.num_rows:
                break
            due = pa.array([name for name, first in pending.items() if cut >= first], pa.string())
            waiting = pc.is_in(bad.column("organization_id"), due)
            later = _others(bad.filter(waiting), edges.filter(pc.less_equal(edges.column("batch_id"), cut)))
            bad = pa.concat_tables([bad.filter(pc.invert(waiting)), later])
        ids = (bad.column(name).to_pylist() for name in ("organization_id", "engagement_id"))
        wrong += sorted("/".join(of) for of in zip(*ids, strict=True))
    return Finding("identity", _MEANING, looked_at, len(wrong), wrong[:EXAMPLES])


def _others(rows: pa.Table, edges: pa.Table) -> pa.Table:
    """Rows whose person_id is not the one that follows from these edges."""
    now = identities_of(rows, Identities(edges_of(edges)))
    stored = rows.column("person_id").combine_chunks().cast(pa.string())
    same = pc.fill_null(pc.equal(stored, now), False)
    neither = pc.and_(pc.is_null(stored), pc.is_null(now))
    return rows.filter(pc.invert(pc.or_(same, neither)))


def _identity(within: _Within) -> Finding:
    """Where edges wait, the Data Table shows those from before; rows that came in since show more of them."""
    rows, edges, pending = within.data(), within.edges(), within.pending()
    engine = within.lake.settings.mutation.resolver
    since = edges.join(F.broadcast(pending), "organization_id", "left")
    shown = since.where("pending_from IS NULL OR batch_id < pending_from").select(*edges.columns)
    resolved = identified(rows, shown, engine=engine)
    wrong = resolved.where(~F.col("person_id").eqNullSafe(F.col("now"))).localCheckpoint()
    waiting = since.where("batch_id >= pending_from").join(wrong.select("organization_id"), "organization_id", "semi")
    cuts = waiting.select("organization_id", (F.col("batch_id") + 1).alias("cut")).distinct().localCheckpoint()
    if not cuts.isEmpty():
        later = identified(_as_of(wrong.drop("now"), cuts), _as_of(edges, cuts).where("batch_id < cut"), engine=engine)
        right = later.where(F.col("person_id").eqNullSafe(F.col("now")))
        right = right.select(F.col("of_organization").alias("organization_id"), "engagement_id").distinct()
        wrong = wrong.join(right, ["organization_id", "engagement_id"], "left_anti").localCheckpoint()
    shown_as = F.concat_ws("/", "organization_id", "engagement_id").alias("place")
    (bad,) = found(wrong.select(shown_as), "place", Rule("identity", _MEANING, F.lit(True)))
    return replace(bad, looked_at=rows.count())


def _as_of(rows: DataFrame, cuts: DataFrame) -> DataFrame:
    """Rows once for each cut of their organization, as if each were an organization of its own.

    So that all states which a row may have come in to are resolved in one go, whatever their number.
    """
    each = rows.join(cuts, "organization_id").withColumn("of_organization", F.col("organization_id"))
    return each.withColumn("organization_id", F.concat_ws("/", F.col("cut").cast("string"), "organization_id"))
