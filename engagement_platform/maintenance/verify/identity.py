"""Compares identities, contents and names with what follows from events and requests.

The whole lake, or organizations that change from day to day. How engagements are recomputed is `recomputed`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import reduce
from hashlib import sha256

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from engagement_platform.lake.engagement import ALIAS, MAPPING, MUTATION_REQUEST
from engagement_platform.lake.erased import PSEUDONYM
from engagement_platform.lake.lake import Lake, any_of
from engagement_platform.maintenance.verify.finding import Finding, Rule, found
from engagement_platform.maintenance.verify.recomputed import compare
from engagement_platform.maintenance.verify.snapshot import LakeSnapshot, lake_snapshot
from engagement_platform.pipelines import snapshot
from engagement_platform.pipelines.jobs import open_stores
from engagement_platform.pipelines.mutations import names, view
from engagement_platform.pipelines.parts import kept, unweighed
from engagement_platform.settings import Settings

_IDENTITY = "every identity follows from its event and the edges"
_CONTENTS = "every engagement says what its event and its patches make of it"
_NAMES = "every name is the newest of its evidence, as requests hand it on"
_ONCE = "every accepted CONVERT and DELETE stands among the aliases once"
_PERSON = ["organization_id", "id"]


def identity_findings(
    settings: Settings, spark: SparkSession, sample: int | None = None, day: date | None = None
) -> list[Finding]:
    """Findings `identity`, `contents`, `names` and `accepted_once`, of one consistent snapshot of the lake.

    What readers see is compared with what the rules make of the logs; so is what the tables hold, where nothing waits.
    sample: so many organizations, others every UTC day; None: all. day: whose sample; None: today's. Cost: reads the
    Data Table and the view with their contents, and recomputes every row. Before the first batch nothing is looked at.
    Raises what opening the stores raises.
    """
    at = lake_snapshot(settings, open_stores(settings))
    if not {table.name for table in (snapshot.DATA, ALIAS, MAPPING, MUTATION_REQUEST)} <= at.versions.keys():
        return [Finding("identity", _IDENTITY, 0, 0), Finding("accepted_once", _ONCE, 0, 0)]
    with unweighed(spark):
        within = _Within(Lake(spark, settings), at, sample, day or datetime.now(UTC).date())
        return [*_rows(within), *_names(within), *_accepted(within)]


def sampled(organizations: Iterable[str], size: int, day: date) -> list[str]:
    """So many of the organizations, in their order: the same ones all day, and others on another day.

    >>> sampled(["a", "b", "c"], 2, date(2026, 11, 21))
    ['a', 'c']
    """
    return sorted(sorted(organizations, key=lambda name: sha256(f"{day}/{name}".encode()).digest())[:size])


class _Within:
    """A snapshot of the lake, as far as it concerns a sample of the organizations; None: all."""

    def __init__(self, lake: Lake, at: LakeSnapshot, sample: int | None, day: date) -> None:
        self.lake, self.at = lake, at.view
        self._organizations: Sequence[str] | None = None
        if sample is not None:
            named = (at.read(lake, table).select("organization_id") for table in (snapshot.DATA, MAPPING, ALIAS))
            everyone = [row[0] for row in reduce(DataFrame.unionByName, named).distinct().collect()]
            self._organizations = sampled(everyone, sample, day)

    def of(self, rows: DataFrame) -> DataFrame:
        """Rows of the sample."""
        if self._organizations is None:
            return rows
        rows = rows.where(any_of("organization_id", self._organizations))
        wanted = pa.table({"organization_id": pa.array(self._organizations, pa.string())})
        return rows.join(F.broadcast(self.lake.frame(wanted)), "organization_id", "left_semi")

    def maybe(self, rows: DataFrame | None) -> DataFrame | None:
        """The same of a table that may be empty."""
        return None if rows is None else self.of(rows)


def _rows(within: _Within) -> list[Finding]:
    data, pending = within.of(snapshot.data(within.lake, within.at)), snapshot.pending(within.lake, within.at)
    pending = replace(
        pending,
        changeset=within.maybe(pending.changeset),
        alias=within.maybe(pending.alias),
        updates=within.maybe(pending.updates),
    )
    rows = kept(compare(data, pending, view.shown(data, pending)))
    return found(
        rows.withColumn("place", F.concat_ws("/", "organization_id", "engagement_id")),
        "place",
        Rule("identity", _IDENTITY, F.col("wrong_identity")),
        Rule("contents", _CONTENTS, F.col("wrong_content")),
    )


def _names(within: _Within) -> list[Finding]:
    """By every RENAME that was ever accepted; the mapping keeps evidence only as long as names can depend on it.

    What is moved is compared as well, in organizations of which nothing waits.
    """
    lake, at = within.lake, within.at
    mapping, alias = within.of(lake.read(MAPPING, at.versions[MAPPING.name])), snapshot.pending(lake, at).alias
    late, alias = within.maybe(snapshot.renames(lake, at)), within.maybe(alias)
    renames = within.maybe(snapshot.renames(lake, replace(at, names_watermark=-1)))
    name = F.struct("name", "name_ts")
    follows = names.current(mapping, renames, alias).select(*_PERSON, name.alias("follows"))
    seen = names.current(mapping, late, alias).select(*_PERSON, name.alias("seen"))
    moved = mapping.where("evidence IS NOT NULL").withColumn("moved", F.when(F.col("name").isNotNull(), name))
    moved = moved.groupBy(*_PERSON).agg(F.count("*").alias("times"), F.first("moved").alias("moved"))
    waits = mapping.where("evidence IS NULL").select("organization_id")
    for frame in (late, alias):
        if frame is not None:
            newer = frame.where(F.col("sequence") > at.names_watermark)
            waits = waits.unionByName(newer.select("organization_id"))
    waits = waits.distinct().withColumn("waits", F.lit(True))
    rows = follows.join(seen, _PERSON, "full").join(moved, _PERSON, "full").join(waits, "organization_id", "left")
    settled = F.col("waits").isNull()
    wrong = ~F.col("seen").eqNullSafe(F.col("follows")) | (F.coalesce("times", F.lit(0)) > 1)
    wrong |= settled & ~F.col("moved").eqNullSafe(F.col("follows"))
    rows = rows.where(~F.col("id").startswith(PSEUDONYM))
    shown = kept(rows.select(F.concat_ws("/", *_PERSON).alias("place"), wrong.alias("wrong")))
    return found(shown, "place", Rule("names", _NAMES, F.col("wrong")))


def _accepted(within: _Within) -> list[Finding]:
    """Where each edge stands once, chains end, since each of a chain is later than the one before it."""
    alias = within.maybe(snapshot.pending(within.lake, within.at).alias)
    if alias is None:
        return [Finding("accepted_once", _ONCE, 0, 0)]
    requests = alias.groupBy("organization_id", "request_id").agg(F.count("*").alias("times"))
    shown = requests.select(F.concat_ws("/", "organization_id", "request_id").alias("place"), "times")
    return found(shown, "place", Rule("accepted_once", _ONCE, F.col("times") > 1))
