"""The job that ingests mutation requests: decode, compare with accepted ones, append. From then on the view shows them.

Edges are committed to the alias table first; the commit of `engagement/mutation_request` publishes the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.job import MicroBatchJob, Step
from engagement_platform.engine.model import Counts, Manifest, Source
from engagement_platform.lake.engagement import ALIAS, MUTATION_REQUEST, QUARANTINE
from engagement_platform.lake.lake import Lake
from engagement_platform.pii.tombstones import StoredTombstones, Tombstones
from engagement_platform.pipelines.duplicates import bounds, with_verdict
from engagement_platform.pipelines.parts import (
    COORDINATES,
    Appends,
    Parts,
    Reader,
    TopicBatch,
    compiled,
    counted,
    kept,
    side_by_side,
    unweighed,
    with_reason,
)
from engagement_platform.pipelines.pinned_settings import that_decide
from engagement_platform.pipelines.redrive import redriven, turn_of
from engagement_platform.pipelines.rules import Verdict
from engagement_platform.pipelines.tombstones import REQUESTS, withheld
from engagement_platform.sources.decoded_batches import MUTATION_REQUEST_DECODED_DDL, decode_batches
from engagement_platform.sources.messages import DecodingLimits

REASONS = {
    "request_conflict": "A request with this request_id was accepted before with different content; the first stays.",
}
NAMED_BY = ("organization_id", "request_id")
FIELDS = (
    *(*NAMED_BY, "operation", "from_id", "to_id", "name", "engagement_id", "type", "channel", "subject"),
    *("attributes", "set_null", "engagement_date_from", "engagement_date_to", "execution_ts"),
)
"""What a request says; columns of `engagement/mutation_request`."""
_EDGES = ("CONVERT", "DELETE")


@dataclass(frozen=True)
class RequestBatch(TopicBatch):
    """A batch with its finished plan: requests with `verdict`."""

    outcome: tuple[Row, ...]
    """verdict, operation -> requests."""

    def requests(self, verdict: Verdict, *operations: str) -> int:
        """Requests with this verdict, of these operations or of all."""
        rows = (row for row in self.outcome if row["verdict"] == verdict.value)
        return sum(row["requests"] for row in rows if not operations or row["operation"] in operations)


def write_tables(work: RequestBatch, commit: Committer) -> Counts:
    """Write quarantine, edges, and the requests themselves."""
    accepted, edges = work.requests(Verdict.NEW), work.requests(Verdict.NEW, *_EDGES)
    appends = Appends(work.lake, work.manifest, commit)
    rows = work.plan.where(F.col("verdict") == Verdict.NEW.value)
    writes: list[Callable[[], None]] = []
    if work.quarantined:
        writes.append(lambda: appends.add("quarantine", QUARANTINE, work.to_quarantine(), work.quarantined))
    if edges:
        writes.append(lambda: appends.add("alias", ALIAS, rows.where(F.col("operation").isin(*_EDGES)), edges))
    side_by_side(*writes)
    if accepted:
        appends.add("mutation_request", MUTATION_REQUEST, rows, accepted)
    return {
        **work.received.counts(),
        "quarantined": work.quarantined,
        "landed": accepted,
        "inserted": accepted,
        "duplicates": work.requests(Verdict.KNOWN),
        "edges": edges,
        **appends.counts(),
    }


def ingest_mutation_requests(
    name: str, source: Source, read: Reader, parts: Parts, *, judges_lateness: bool
) -> MicroBatchJob[RequestBatch]:
    """Mutation requests into their table and the alias table, and the rejected ones into quarantine.

    judges_lateness: those further back than `mutation.max_lateness` when they were produced are rejected; False for a
    source that does not know when that was.
    """
    lake, settings, tombstones = parts.lake, parts.settings, StoredTombstones(parts.settings)
    turn = turn_of(MUTATION_REQUEST)
    lake.ensure(ALIAS, MUTATION_REQUEST, QUARANTINE)

    def prepare(manifest: Manifest) -> RequestBatch:
        own = parts.lake_for(manifest, source)
        return open_batch(own, manifest, read(manifest), tombstones, judges_lateness=judges_lateness)

    return parts.job(
        name,
        source,
        prepare,
        (Step("tables", write_tables, ("quarantine", "alias", "mutation_request")), *redriven(source)),
        pin=lambda: {turn: 0, **{table.name: lake.version(table) for table in (MUTATION_REQUEST, QUARANTINE)}},
        decides=lambda: that_decide(settings, "decoding", mutation=("max_lateness",)),
        # One batch of requests at a time, whichever job brings it; a move begins between two. Not the table itself:
        # engagements and announcements, which only read it at a version, keep no requests from landing.
        leased=(turn,),
        enters=(QUARANTINE.name,),
        describe=RequestBatch.describe,
        writes={
            "tables/quarantine": QUARANTINE,
            "tables/alias": ALIAS,
            "tables/mutation_request": MUTATION_REQUEST,
            "redriven/append": QUARANTINE,
        },
    )


def open_batch(
    lake: Lake, manifest: Manifest, raw: DataFrame, tombstones: Tombstones, *, judges_lateness: bool
) -> RequestBatch:
    """Decode the pinned range and compare it with accepted requests. Cost: a Spark job for each of the two."""
    settings = lake.settings
    lateness = settings.mutation.max_lateness if judges_lateness else None
    step = decode_batches(
        "mutation_request", DecodingLimits.of(settings.decoding), manifest.ingestion_ts, max_lateness=lateness
    )
    decoded = kept(raw.mapInArrow(step, MUTATION_REQUEST_DECODED_DDL))
    decoded = withheld(decoded, REQUESTS, tombstones, lake)
    received, accepted = counted(decoded, *bounds(NAMED_BY))
    plan = decoded.where("reason_code IS NULL").select(*COORDINATES, *FIELDS)
    outcome: list[Row] = []
    if accepted is None:
        plan = plan.withColumn("verdict", F.lit(Verdict.NEW.value))
    else:
        version, edges_at = manifest.table_versions[MUTATION_REQUEST.name], lake.version(ALIAS)
        known = lake.read(MUTATION_REQUEST, version) if version or edges_at else None
        if known is not None and edges_at:
            # Edges stand without their requests after an erasure, and where a batch was abandoned that had written no
            # more: of two with one id the first would count.
            edges = lake.read(ALIAS, edges_at).where(F.col("batch_sequence") < manifest.sequence)
            known = known.unionByName(edges, allowMissingColumns=True)
        with compiled(lake.spark):
            plan = kept(with_verdict(plan, known, accepted, NAMED_BY, unique=NAMED_BY))
        with unweighed(lake.spark):
            outcome = plan.groupBy("verdict", "operation").agg(F.count("*").alias("requests")).collect()
    [(code, sentence)] = REASONS.items()
    conflicts = sum(row["requests"] for row in outcome if row["verdict"] == Verdict.CONFLICT.value)
    refused = with_reason(plan.where(F.col("verdict") == Verdict.CONFLICT.value), code, sentence)
    by_code = {code: conflicts} if conflicts else {}
    return RequestBatch(lake, manifest, raw, decoded, received, plan, by_code, refused, tuple(outcome))
