"""Mutation requests from their topic into their table, as they came. Applying them is not done here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.model import Counts, Manifest
from engagement_platform.ingestion.batch import QUANTILES
from engagement_platform.ingestion.frames import kept
from engagement_platform.ingestion.rows import not_quarantined
from engagement_platform.ingestion.settle import COORDINATES
from engagement_platform.lake.audit_columns import stamped
from engagement_platform.lake.engagement import MUTATION_REQUEST, QUARANTINE
from engagement_platform.lake.lake import Lake
from engagement_platform.landing.withheld import REQUESTS, withheld_in_spark
from engagement_platform.pii.tombstones import Nobody, Tombstones


@dataclass(frozen=True)
class RequestBatch:
    """Decoded requests and what one pass over them told."""

    lake: Lake
    manifest: Manifest
    decoded: DataFrame
    rows_in: int
    bytes_in: int
    rejected: Mapping[str, int]
    unknown_fields: int
    produced_quantiles_ms: Sequence[int]

    @property
    def quarantined(self) -> int:
        """Records that decoding refused."""
        return sum(self.rejected.values())


def open_requests(
    lake: Lake, manifest: Manifest, decoded: DataFrame, tombstones: Tombstones | None = None
) -> RequestBatch:
    """Decode once, keep until the batch ends. Cost: one Spark job. tombstones: whose requests become markers."""
    decoded = withheld_in_spark(kept(decoded), REQUESTS, tombstones or Nobody(), lake)
    groups = (
        decoded.groupBy("reason_code")
        .agg(
            F.count("*").alias("records"),
            F.sum("value_bytes").alias("bytes"),
            F.sum("unknown_fields").alias("unknown_fields"),
            F.percentile_approx(F.unix_millis("produced_ts"), list(QUANTILES), 1000).alias("produced"),
        )
        .collect()
    )
    timed = sorted(groups, key=lambda row: row["reason_code"] is not None)
    return RequestBatch(
        lake=lake,
        manifest=manifest,
        decoded=decoded,
        rows_in=sum(row["records"] for row in groups),
        bytes_in=sum(row["bytes"] or 0 for row in groups),
        rejected={row["reason_code"]: row["records"] for row in groups if row["reason_code"] is not None},
        unknown_fields=sum(row["unknown_fields"] or 0 for row in groups),
        produced_quantiles_ms=tuple(timed[0]["produced"] or ()) if timed else (),
    )


@dataclass(frozen=True)
class RequestQuarantineProcess:
    """Rejected requests, whole."""

    name: str = "quarantine"
    commits: tuple[str, ...] = ("append",)

    def run(self, work: RequestBatch, commit: Committer) -> Counts:
        """Counts: rows_in, bytes_in, quarantined, unknown_fields, files, bytes."""
        counts = {
            "rows_in": work.rows_in,
            "bytes_in": work.bytes_in,
            "quarantined": work.quarantined,
            "unknown_fields": work.unknown_fields,
        }
        if not work.quarantined:
            return counts
        rejected = work.decoded.where(F.col("reason_code").isNotNull())
        rejected = rejected.select(*COORDINATES, "key", "value", "reason_code", "reason")
        rejected = not_quarantined(rejected, work.lake, work.manifest)
        with commit("append") as txn:
            work.lake.append(stamped(rejected, work.manifest), QUARANTINE, txn, rows=work.quarantined)
        return {**counts, **work.lake.written(QUARANTINE, txn)}


@dataclass(frozen=True)
class RequestProcess:
    """Accepted requests, appended."""

    name: str = "mutation_request"
    commits: tuple[str, ...] = ("append",)

    def run(self, work: RequestBatch, commit: Committer) -> Counts:
        """Counts: landed, inserted, duplicates, files, bytes."""
        accepted = work.rows_in - work.quarantined
        if not accepted:
            return {"landed": 0}
        rows = work.decoded.where(F.col("reason_code").isNull())
        landed = accepted
        if work.manifest.goes_over_again:
            rows = kept(_not_landed(rows, work))
            landed = rows.count()
        counts = {"landed": landed, "inserted": landed, "duplicates": accepted - landed}
        if not landed:
            return counts
        with commit("append") as txn:
            work.lake.append(stamped(rows, work.manifest), MUTATION_REQUEST, txn, rows=landed)
        return {**counts, **work.lake.written(MUTATION_REQUEST, txn)}


def _not_landed(rows: DataFrame, work: RequestBatch) -> DataFrame:
    """Requests that have not landed from the same coordinates, by the pinned table."""
    keys = ("organization_id", "request_id", *COORDINATES)
    landed = work.lake.read(MUTATION_REQUEST, work.manifest.table_versions[MUTATION_REQUEST.name]).select(*keys)
    return rows.join(landed, list(keys), "left_anti")
