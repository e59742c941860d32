"""The job that ingests mutation requests: decode, compare with accepted ones, append. From then on the view shows them.

Edges are committed to the alias table first; the commit of `engagement/mutation_request` publishes the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.job import MicroBatchJob
from engagement_platform.engine.model import Counts, Manifest, Source
from engagement_platform.lake.engagement import ALIAS, MUTATION_REQUEST, QUARANTINE
from engagement_platform.lake.lake import Lake
from engagement_platform.pii.tombstones import StoredTombstones, Tombstones
from engagement_platform.pinned_settings import as_pinned, that_decide
from engagement_platform.pipelines.engagements.pipe import within
from engagement_platform.pipelines.mutations.requests import FIELDS, JUDGED_DDL, REASONS, Verdict, judged
from engagement_platform.pipelines.parts import (
    COORDINATES,
    Appends,
    Parts,
    Reader,
    Received,
    TopicBatch,
    by_reason,
    compiled,
    kept,
    received,
    side_by_side,
    tune_for,
    with_reason,
)
from engagement_platform.pipelines.redrive import redriven, turn_of
from engagement_platform.pipelines.tombstones import REQUESTS, withheld
from engagement_platform.sources.decoded_batches import MUTATION_REQUEST_DECODED_DDL, decode_batches
from engagement_platform.sources.messages import DecodingLimits

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


@dataclass(frozen=True)
class TablesProcess:
    """Quarantine, edges, and the requests themselves."""

    name: str = "tables"
    commits: tuple[str, ...] = ("quarantine", "alias", "mutation_request")

    def run(self, work: RequestBatch, commit: Committer) -> Counts:
        """Counts: rows_in, bytes_in, unknown_fields, quarantined, landed, inserted, duplicates, edges, files, bytes,
        commits."""
        accepted = work.requests(Verdict.ACCEPTED)
        appends = Appends(work.lake, work.manifest, commit)
        rows = work.plan.where(F.col("verdict") == Verdict.ACCEPTED.value)
        writes: list[Callable[[], None]] = []
        if work.quarantined:
            writes.append(lambda: appends.add("quarantine", QUARANTINE, work.to_quarantine(), work.quarantined))
        if edges := work.requests(Verdict.ACCEPTED, *_EDGES):
            writes.append(lambda: appends.add("alias", ALIAS, rows.where(F.col("operation").isin(*_EDGES)), edges))
        side_by_side(*writes)
        if accepted:
            appends.add("mutation_request", MUTATION_REQUEST, rows, accepted)
        return {
            **work.received.counts(),
            "quarantined": work.quarantined,
            "landed": accepted,
            "inserted": accepted,
            "duplicates": work.requests(Verdict.DUPLICATE),
            "edges": work.requests(Verdict.ACCEPTED, *_EDGES),
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
        own = as_pinned(settings, manifest)
        tune_for(lake, source.size(manifest.start, manifest.end))
        return open_batch(lake.under(own), manifest, read(manifest), tombstones, judges_lateness=judges_lateness)

    return parts.job(
        name,
        source,
        prepare,
        (TablesProcess(), *redriven(source)),
        pin=lambda: {turn: 0, **{table.name: lake.version(table) for table in (MUTATION_REQUEST, QUARANTINE)}},
        decides=lambda: that_decide(settings, "decoding", mutation=("max_lateness",)),
        # One batch of requests at a time, whichever job brings it; a move begins between two. Not the table itself:
        # whoever only reads it at a version, as engagements and announcements do, keeps no requests from landing.
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
    groups = by_reason(decoded, F.collect_set("organization_id").alias("organizations"))
    organizations = next((sorted(row["organizations"]) for row in groups if row["reason_code"] is None), [])
    version = manifest.table_versions[MUTATION_REQUEST.name]
    known = None
    if version and organizations:
        known = lake.read(MUTATION_REQUEST, version).where(within("organization_id", organizations))
    with compiled(lake):
        plan = kept(accepted(decoded.where("reason_code IS NULL"), known))
    outcome = plan.groupBy("verdict", "operation").agg(F.count("*").alias("requests")).collect()
    code = Verdict.REQUEST_CONFLICT.value
    conflicts = sum(row["requests"] for row in outcome if row["verdict"] == code)
    refused = with_reason(plan.where(F.col("verdict") == code), code, REASONS[code])
    of = Received(**received(groups))
    return RequestBatch(
        lake, manifest, raw, decoded, of, plan, {code: conflicts} if conflicts else {}, refused, tuple(outcome)
    )


def accepted(decoded: DataFrame, known: DataFrame | None) -> DataFrame:
    """Requests with their verdict, by organization. known: accepted before; None: there are none."""
    copies = decoded.select(*COORDINATES, *FIELDS)
    if known is None:
        return copies.groupBy("organization_id").applyInArrow(_judge_alone, JUDGED_DDL)
    ids = F.broadcast(copies.select("organization_id", "request_id"))
    same = known.join(ids, ["organization_id", "request_id"], "left_semi").select(*FIELDS)
    left, right = copies.groupBy("organization_id"), same.groupBy("organization_id")
    return left.cogroup(right).applyInArrow(judged, JUDGED_DDL)


def _judge_alone(copies: pa.Table) -> pa.Table:
    return judged(copies, copies.select(FIELDS).slice(0, 0))
