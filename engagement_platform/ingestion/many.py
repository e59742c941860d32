"""A batch of many engagements, decoded and settled in Spark; the frames that processes write.

Reads only: the pinned range of the source and the pinned versions of the tables. Spark jobs of a batch without known
ids: decode and summarize (1), look for known ids (2). With some: three more, over those ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.engine.model import Manifest
from engagement_platform.ingestion.batch import QUANTILES, EngagementBatch, NameChanges, Summary
from engagement_platform.ingestion.former import Former, told
from engagement_platform.ingestion.frames import kept, small
from engagement_platform.ingestion.lookup import Lookup
from engagement_platform.ingestion.rows import (
    as_data,
    as_notifications,
    as_replaced,
    as_superseded,
    not_quarantined,
    refuted,
    refuted_before,
)
from engagement_platform.ingestion.settle import COORDINATES, LANDING, Verdict, changed_names, newest_names
from engagement_platform.lake.arrow import schema_of
from engagement_platform.lake.audit_columns import stamped, stamped_here
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import MAPPING
from engagement_platform.lake.erased import PSEUDONYM
from engagement_platform.lake.lake import Lake, Rows, any_of
from engagement_platform.landing.withheld import ENGAGEMENTS, as_markers_in_spark, withheld_in_spark
from engagement_platform.mutation.accepted import name_ends, settled_names
from engagement_platform.mutation.names import Said, Saying
from engagement_platform.pii.tombstones import PERSON, Nobody, Tombstones


@dataclass
class ManyEngagements(EngagementBatch):
    """A batch whose rows are frames. `decoded` is kept in memory until the batch ends."""

    decoded: DataFrame
    verdicts: DataFrame | None
    """What `settle` says of the copies that needed a second look; None when every engagement is new and alone."""
    former: Former

    @cached_property
    def _judged(self) -> DataFrame:
        """Accepted copies with `verdict` and `previous_person_id`."""
        accepted = self.decoded.where(F.col("reason_code").isNull()).drop("reason_code", "reason", "key", "value")
        if self.verdicts is None:
            return accepted.withColumn("verdict", F.lit(Verdict.INSERT.value)).withColumn(
                "previous_person_id", F.lit(None).cast("string")
            )
        few = self.verdicts.select(*COORDINATES, "verdict", "previous_person_id")
        return accepted.join(small(few, sum(self.settled.values())), list(COORDINATES), "left").withColumn(
            "verdict", F.coalesce("verdict", F.lit(Verdict.INSERT.value))
        )

    @cached_property
    def _patched(self) -> pa.Table | None:
        """What former patches make of landing copies."""
        return self.former.patched(self._judged.where(F.col("verdict").isin(*LANDING)))

    @cached_property
    def rows(self) -> DataFrame:
        """Accepted copies with `verdict`, `previous_person_id`, `now` (identity) and `told` (content)."""
        rows = self.former.identified(self._judged, "person_id")
        if self._patched is None:
            rows = rows.withColumn("told", told())
        else:
            few = F.broadcast(self.lake.frame(self._patched).select(*COORDINATES, "patched"))
            rows = rows.join(few, list(COORDINATES), "left").withColumn("told", F.coalesce("patched", told()))
        return kept(rows) if self.former.has_edges or self._patched is not None else rows

    @cached_property
    def mapping(self) -> DataFrame:
        """The pinned mapping of the batch's organizations."""
        pinned = self.lake.read(MAPPING, self.manifest.table_versions[MAPPING.name])
        return pinned.where(any_of("organization_id", self.summary.organizations))

    def rejected_rows(self) -> Rows:
        """Rows for quarantine; those that it may hold from an earlier reading are left out."""
        columns = (*COORDINATES, "key", "value", "reason_code", "reason")
        rejected = self.decoded.where(F.col("reason_code").isNotNull()).select(*columns)
        if self.contradictions:
            assert self.verdicts is not None, "no verdicts, no contradictions"
            rejected = rejected.unionByName(refuted(self.raw, self.verdicts).select(*columns))
        return stamped(not_quarantined(rejected, self.lake, self.manifest), self.manifest)

    def name_changes(self) -> NameChanges:
        """Rows for the mapping, from all copies whose word about names counts: not the refuted ones, now or earlier."""
        newest = newest_names(self._heard)
        edges = self.former.accepted.edges if self.former.has_edges else []
        careful = self._careful(newest, name_ends(edges))
        changes = changed_names(newest, self.mapping)
        if careful:
            keys = pa.table({name: [key[i] for key in careful] for i, name in enumerate(("organization_id", "id"))})
            known = F.broadcast(self.lake.frame(keys))
            changes = changes.join(known, ["organization_id", "id"], "left_anti").select(*_NAME)
            heard = self._heard.withColumn("id", F.col("person_id")).join(known, ["organization_id", "id"], "left_semi")
            sayings = [
                Saying(row["organization_id"], row["id"], Said(row["engagement_ts"], False, "", row["person_name"]))
                for row in heard.select("organization_id", "id", "engagement_ts", "person_name").toArrow().to_pylist()
            ]
            rows = settled_names(self.former.accepted, careful, sayings, self.lake, self.manifest)
            made = pa.Table.from_pylist(rows, schema=_NAMES)
            changes = changes.unionByName(self.lake.frame(made))
        changes = kept(changes)
        count = {row["is_new"]: int(row["count"]) for row in changes.groupBy("is_new").count().collect()}
        return NameChanges(stamped(changes, self.manifest), count.get(True, 0), count.get(False, 0))

    def _careful(self, newest: DataFrame, moved: set[tuple[str, str]]) -> set[tuple[str, str]]:
        """Ids for which the newest name is not simply the one: requests moved names, or two were said at one time."""
        found: set[tuple[str, str]] = set()
        ids = newest.select("organization_id", "id")
        if moved:
            keys = pa.table({name: [key[i] for key in moved] for i, name in enumerate(("organization_id", "id"))})
            met = ids.join(F.broadcast(self.lake.frame(keys)), ["organization_id", "id"], "left_semi")
            found |= {(row["organization_id"], row["id"]) for row in met.collect()}
        if self.former.has_patches:
            stands = self.mapping.select(
                "organization_id", "id", F.col("name_ts").alias("known_ts"), F.col("name").alias("known")
            )
            tied = newest.join(stands, ["organization_id", "id"]).where("name_ts = known_ts AND name > known")
            found |= {(row["organization_id"], row["id"]) for row in tied.select("organization_id", "id").collect()}
        return found

    @cached_property
    def _heard(self) -> DataFrame:
        """Copies with a name whose word counts: not the refuted ones, now or earlier."""
        rows = self.rows.where(F.col("person_name").isNotNull())
        rows = rows.where(F.col("verdict") != Verdict.QUARANTINE.value)
        if self.manifest.goes_over_again:
            again = refuted_before(self.raw, self.lake, self.manifest)
            lands = F.col("verdict").isin(*LANDING)
            rows = rows.where(lands).unionByName(rows.where(~lands).join(again, list(COORDINATES), "left_anti"))
        return rows

    def said_names(self) -> Rows:
        """Rows for the log of names."""
        said = self._heard.select(
            "organization_id", F.col("person_id").alias("id"), F.col("person_name").alias("name"),
            F.col("engagement_ts").alias("name_ts"),
        )  # fmt: skip
        return stamped(said.distinct(), self.manifest)

    def original_rows(self) -> Rows:
        """What patched engagements said, before any patch."""
        assert self._patched is not None, "nothing was patched"
        rows = self._patched.rename_columns({"said": "engagement"})
        return stamped_here(rows, self.manifest)

    @property
    def originals(self) -> int:
        """How many rows that is."""
        return 0 if self._patched is None else int(self._patched.num_rows)

    def superseded_rows(self) -> Rows:
        """What versions said that landed and do not stand: the replaced ones, and lower ones that came."""
        assert self.verdicts is not None, "no verdicts, nothing is superseded"
        copies = self._judged.where(F.col("verdict") == Verdict.SUPERSEDED.value)
        if self.manifest.goes_over_again:
            # What was refuted then is not the first of its version, only the first that is known here.
            copies = copies.join(refuted_before(self.raw, self.lake, self.manifest), list(COORDINATES), "left_anti")
        rows = as_superseded(copies.withColumn("engagement", told())).unionByName(as_replaced(self.verdicts))
        return stamped(rows, self.manifest)

    @cached_property
    def unseen(self) -> int:
        """Copies that land and nobody sees: their person was deleted before they came."""
        if not self.former.has_edges:
            return 0
        landing = self.rows.where(F.col("verdict").isin(*LANDING))
        return landing.where("now IS NULL AND previous_person_id IS NULL").count()

    def data_rows(self, verdict: Verdict) -> Rows:
        """Rows for the Data Table of the copies with this verdict."""
        return as_data(self.rows.where(F.col("verdict") == verdict.value), self.manifest)

    def notification_rows(self) -> Rows:
        """One row for each copy that lands."""
        return as_notifications(self.rows.where(F.col("verdict").isin(*LANDING)), self.manifest)

    def touched(self) -> dict[str, Sequence[object]]:
        """Organizations and days of the updates; what literal pruning of a MERGE needs."""
        columns = ("organization_id", "engagement_date")
        updates = self.rows.where(F.col("verdict") == Verdict.UPDATE.value)
        touched = updates.agg(*(F.collect_set(name).alias(name) for name in columns)).collect()[0]
        return {column: sorted(touched[column]) for column in columns}


_NAME = ("organization_id", "id", "name", "name_ts", "is_new")
_NAMES = pa.schema([*schema_of(MAPPING, *_NAME[:4]), pa.field("is_new", pa.bool_())])

Decoder = Callable[[DataFrame, Manifest], DataFrame]
"""Raw records to one decoded row each; the columns of the decoder's DDL."""


def open_batch(
    lake: Lake,
    data: Table,
    manifest: Manifest,
    raw: DataFrame,
    decode: Decoder,
    tombstones: Tombstones | None = None,
) -> ManyEngagements:
    """Decode the pinned range, look up what is known of it, settle. tombstones: whose records become markers."""
    decoded = kept(decode(raw, manifest))
    decoded = withheld_in_spark(decoded, ENGAGEMENTS, tombstones or Nobody(), lake)
    summary = summarize(decoded)
    former = Former(lake, manifest, summary.organizations)
    if tombstones is not None and tombstones.organizations(PERSON) and former.has_edges:
        # Of somebody who became a person that is erased.
        led = former.identified(decoded.where(F.col("reason_code").isNull()), "person_id")
        places = led.where(F.col("now").startswith(PSEUDONYM)).select(*COORDINATES).toArrow().to_pylist()
        if places:
            decoded = kept(as_markers_in_spark(decoded, places, lake))
            summary = summarize(decoded)
    accepted = decoded.where(F.col("reason_code").isNull())
    version = manifest.table_versions[data.name]
    lookup = Lookup(lake, data, version, accepted, summary.accepted, summary.organizations, summary.dates, former)
    verdicts = lookup.verdicts()
    settled: dict[str, int] = {}
    if verdicts is not None:
        label = F.coalesce("reason_code", "verdict").alias("label")
        settled = {row["label"]: int(row["count"]) for row in verdicts.groupBy(label).count().collect()}
    return ManyEngagements(lake, data, manifest, raw, summary, settled, decoded, verdicts, former)


def summarize(decoded: DataFrame) -> Summary:
    """One aggregation per reason code, over which the batch is decoded and kept."""
    produced_ms = F.unix_millis("produced_ts")
    groups = (
        decoded.groupBy("reason_code")
        .agg(
            F.count("*").alias("records"),
            F.sum("value_bytes").alias("bytes"),
            F.sum("unknown_fields").alias("unknown_fields"),
            F.count("person_name").alias("named"),
            F.collect_set("organization_id").alias("organizations"),
            F.collect_set("engagement_date").alias("dates"),
            F.percentile_approx(produced_ms, list(QUANTILES), 1000).alias("produced"),
        )
        .collect()
    )
    accepted = [row for row in groups if row["reason_code"] is None]
    timed = accepted or groups
    return Summary(
        rows_in=sum(row["records"] for row in groups),
        bytes_in=sum(row["bytes"] or 0 for row in groups),
        rejected={row["reason_code"]: row["records"] for row in groups if row["reason_code"] is not None},
        unknown_fields=sum(row["unknown_fields"] or 0 for row in groups),
        named=sum(row["named"] for row in accepted),
        organizations=sorted(accepted[0]["organizations"]) if accepted else (),
        dates=sorted(accepted[0]["dates"]) if accepted else (),
        produced_quantiles_ms=tuple(timed[0]["produced"] or ()) if timed else (),
    )
