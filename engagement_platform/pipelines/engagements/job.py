"""The job that ingests engagements: decode, load the pinned state, resolve, and append to the tables of the plan.

Quarantine, names and images are committed side by side; the Data Table's commit publishes the batch, and the
notification comes last. Nothing is decided after the plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.job import MicroBatchJob, Step
from engagement_platform.engine.model import Counts, Manifest, Source
from engagement_platform.lake import live_files
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import (
    ALIAS,
    CHANGESET,
    MAPPING,
    MUTATION_REQUEST,
    NOTIFICATION,
    QUARANTINE,
    data_table,
)
from engagement_platform.lake.erased import PSEUDONYM
from engagement_platform.lake.lake import Lake
from engagement_platform.pii.tombstones import PERSON, StoredTombstones, Tombstones
from engagement_platform.pipelines.engagements.pipe import load_state, resolve, summarize
from engagement_platform.pipelines.engagements.rules import Target, Verdict
from engagement_platform.pipelines.mutations.names import EVIDENCE_DDL
from engagement_platform.pipelines.parts import (
    Appends,
    Parts,
    Reader,
    TopicBatch,
    announced,
    compiled,
    kept,
    side_by_side,
    unweighed,
)
from engagement_platform.pipelines.pinned_settings import that_decide
from engagement_platform.pipelines.redrive import redriven
from engagement_platform.pipelines.snapshot import pending, snapshot_of
from engagement_platform.pipelines.tombstones import ENGAGEMENTS, with_tombstones, withheld
from engagement_platform.sources.decoded_batches import ENGAGEMENT_DECODED_DDL, decode_batches
from engagement_platform.sources.messages import DecodingLimits

_NAME = ("organization_id", "id", "name", "name_ts")
SMALL_TABLE_ROWS = 500_000
"""Up to this many rows of the Data Table all days are looked at together; of more, the days of the batch first. A
second look takes 2.5 s; reading so many rows takes less (2 cores, 100,000 rows)."""
ANNOUNCED = "announced"
"""Where the `source` of a manifest keeps up to which sequence requests were announced when the batch began."""


@dataclass(frozen=True)
class EngagementBatch(TopicBatch):
    """A batch with its finished plan: one row per accepted copy, with the columns of PLAN_DDL."""

    accepted: Row | None
    """`organizations` and `dates` of accepted copies; None: there are none."""
    data: Table
    outcome: tuple[Row, ...]
    """verdict, reason_code, target -> copies; names, copies that say one; changes, as far as requests are announced,
    that readers see."""

    def count(self, what: str, **of: str) -> int:
        """How many copies, names or changes the plan has of these values."""
        return sum(row[what] for row in self.outcome if all(row[name] == value for name, value in of.items()))

    def describe(self) -> dict[str, object]:
        """With its organizations and days."""
        found = self.accepted
        return {
            **super().describe(),
            "organizations": len(found["organizations"]) if found else 0,
            "first_date": min(found["dates"]).isoformat() if found else None,
            "last_date": max(found["dates"]).isoformat() if found else None,
        }


def write_tables(work: EngagementBatch, commit: Committer) -> Counts:
    """Write quarantine, names, and the rows of the Data Table and its changeset."""
    inserted, updated, known, superseded = (
        work.count("copies", verdict=verdict.value)
        for verdict in (Verdict.INSERT, Verdict.UPDATE, Verdict.DUPLICATE, Verdict.SUPERSEDED)
    )
    images, new = (work.count("copies", target=target.value) for target in (Target.CHANGESET, Target.DATA))
    names = work.count("names")
    appends = Appends(work.lake, work.manifest, commit)

    def rows() -> None:
        if new and work.accepted:
            work.lake.accept_folders("organization_id", work.accepted["organizations"], work.data)
        if images:
            appends.add("changeset", CHANGESET, work.plan.where(F.col("target") == Target.CHANGESET.value), images)
        if images or new:
            appends.add("data", work.data, work.plan.where(F.col("target") == Target.DATA.value), new)

    writes = [rows]
    if work.quarantined:
        writes.append(lambda: appends.add("quarantine", QUARANTINE, work.to_quarantine(), work.quarantined))
    if names:
        writes.append(lambda: appends.add("mapping", MAPPING, name_evidence(work), names))
    side_by_side(*writes)
    return {
        **work.received.counts(),
        "quarantined": work.quarantined,
        "landed": inserted + updated,
        "inserted": inserted,
        "updated": updated,
        "duplicates": known + superseded,
        "images": images,
        "names": names,
        **appends.counts(),
    }


def notify(work: EngagementBatch, commit: Committer) -> Counts:
    """Write a notification for each insert, update and delete, once the Data Table's commit has published the batch."""
    changes, appends = work.count("changes"), Appends(work.lake, work.manifest, commit)
    if changes:
        appends.add("append", NOTIFICATION, notifications(work.plan, work.manifest), changes)
    return {"notifications": changes, **appends.counts()}


def name_evidence(work: EngagementBatch) -> DataFrame:
    """Rows for the mapping: names as events spell them, not folded; those that it may have already are left out."""
    names = work.plan.where(F.col("name").isNotNull()).select(
        "organization_id", F.col("named_id").alias("id"), "name", "name_ts"
    )
    if work.manifest.is_replay:
        mapping = work.lake.read(MAPPING, work.manifest.table_versions[MAPPING.name])
        kept_ = mapping.select("organization_id", "id", F.explode("evidence").alias("of"))
        known = mapping.where("evidence IS NULL").select(*_NAME)
        known = known.unionByName(kept_.select("organization_id", "id", "of.name", "of.name_ts"))
        names = names.join(known, list(_NAME), "left_anti")
    return names.withColumn("evidence", F.lit(None).cast(EVIDENCE_DDL))


def notifications(plan: DataFrame, manifest: Manifest) -> DataFrame:
    """Rows for the notification table. A change is named by its message's place, which compresses to almost nothing.

    And by its batch: a message is read twice under one application id by a redrive, and again after a restore.
    """
    begin = F.lit(f"{manifest.app_id}/{manifest.batch_id}")
    identity = F.concat_ws("/", begin, "topic", "partition", "offset")
    rows = plan.where(F.col("change_type").isNotNull())
    return rows.withColumns({"notification_id": identity, "person_id": F.col("announced_person_id")})


def ingest_engagements(name: str, source: Source, read: Reader, parts: Parts) -> MicroBatchJob[EngagementBatch]:
    """Engagements into quarantine, mapping, changeset, data and notification, exactly once in each.

    name: also the key of its checkpoint; going over old records again is the same job under its own name.
    """
    lake, settings, tombstones = parts.lake, parts.settings, StoredTombstones(parts.settings)
    data = data_table(settings.layout.scheme)
    pinned = (data, CHANGESET, ALIAS, MUTATION_REQUEST, MAPPING, QUARANTINE)
    lake.ensure(*pinned, NOTIFICATION)

    return parts.job(
        name,
        source,
        lambda manifest: open_batch(parts.lake_for(manifest, source), data, manifest, read(manifest), tombstones),
        (
            Step("tables", write_tables, ("quarantine", "mapping", "changeset", "data")),
            Step("notification", notify, ("append",)),
            *redriven(source),
        ),
        pin=lambda: {table.name: lake.version(table) for table in pinned},
        decides=lambda: that_decide(settings, "decoding", "mutation"),
        about=lambda: {ANNOUNCED: announced(parts.stores)},
        leased=(data.name,),
        describe=EngagementBatch.describe,
        writes={
            "tables/quarantine": QUARANTINE,
            "tables/mapping": MAPPING,
            "tables/changeset": CHANGESET,
            "tables/data": data,
            "notification/append": NOTIFICATION,
            "redriven/append": QUARANTINE,
        },
    )


def open_batch(lake: Lake, data: Table, manifest: Manifest, raw: DataFrame, tombstones: Tombstones) -> EngagementBatch:
    """Decode the pinned range, load what is known of it, resolve. tombstones: whose records become markers.

    Cost: two Spark jobs with results: over the decoded batch and over the plan; where the Data Table is large and
    versions are not found on their day, the plan once more.
    """
    step = decode_batches("engagement", DecodingLimits.of(lake.settings.decoding), manifest.ingestion_ts)
    decoded = kept(raw.mapInArrow(step, ENGAGEMENT_DECODED_DDL))
    decoded = withheld(decoded, ENGAGEMENTS, tombstones, lake)
    work = _resolved(lake, data, manifest, raw, decoded)
    if tombstones.organizations(PERSON) and work.count("names") + work.count("copies", target=Target.DATA.value):
        # Of persons who became a person that is erased.
        led = work.plan.where(F.col("person_id").startswith(PSEUDONYM))
        if not led.isEmpty():
            return _resolved(lake, data, manifest, raw, kept(with_tombstones(decoded, led)))
    return work


def _resolved(lake: Lake, data: Table, manifest: Manifest, raw: DataFrame, decoded: DataFrame) -> EngagementBatch:
    received, accepted = summarize(decoded)
    version = manifest.table_versions[data.name]
    all_days = live_files.rows_in(lake.uri(data), version) <= SMALL_TABLE_ROWS if version else True
    plan, outcome = _plan(lake, data, manifest, decoded, accepted, all_days=all_days)
    if not all_days and any(row["verdict"] == Verdict.UNFOUND.value for row in outcome):
        # A version above 1 says that the id was seen before: its row may stand on any day of its organization.
        plan, outcome = _plan(lake, data, manifest, decoded, accepted, all_days=True)
    refused = {row["reason_code"]: row["copies"] for row in outcome if row["verdict"] == Verdict.QUARANTINE.value}
    refused_rows = plan.where(F.col("verdict") == Verdict.QUARANTINE.value)
    of_topic = (lake, manifest, raw, decoded, received, plan, refused, refused_rows)
    return EngagementBatch(*of_topic, accepted, data, outcome)


def _plan(
    lake: Lake, data: Table, manifest: Manifest, decoded: DataFrame, accepted: Row | None, *, all_days: bool
) -> tuple[DataFrame, tuple[Row, ...]]:
    version = manifest.table_versions[data.name]
    known = lake.read(data, version) if version else None
    waits = pending(lake, snapshot_of(lake.root, manifest.table_versions))
    state = load_state(known, waits, decoded, accepted, all_days=all_days)
    with compiled(lake.spark):
        plan = kept(resolve(decoded, state, all_days=all_days, announced=int(str(manifest.source.get(ANNOUNCED, -1)))))
    counted = plan.groupBy("verdict", "reason_code", "target").agg(
        F.count("*").alias("copies"), F.count("name").alias("names"), F.count("change_type").alias("changes")
    )
    with unweighed(lake.spark):
        return plan, tuple(counted.collect())
