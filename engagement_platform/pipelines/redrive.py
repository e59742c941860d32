"""Puts records from quarantine through once more, and marks there those that landed, so that none is put through twice.

What a record has to be is the job's business: a redrive is that job under another name, with this source.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.job import Step
from engagement_platform.engine.model import Counts, Limits, Manifest, NoIdentity, Offsets, Source
from engagement_platform.lake.contract import Table
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.restore import whole
from engagement_platform.pipelines.parts import COORDINATES, Appends, TopicBatch, with_reason

REDRIVEN = "redriven"
"""Reason code of a mark: the record, whole, is in quarantine a second time under it."""

_RECORD = (*COORDINATES, "key", "value")


def turn_of(table: Table) -> str:
    """What all jobs that land records in a table lease and pin, so that their batches come one after the other.

    Not the table's own name, under which it is maintained, and moved into a base, while batches go on landing.
    """
    return f"{table.name}, landing"


@dataclass
class RedriveSource(NoIdentity):
    """Records that a job refused for a reason and that are not marked, some at a time.

    Offsets {"version": v, "row": n}: a version of quarantine, and a place among these records in it.
    """

    lake: Lake
    table: Table
    """Of quarantine."""
    job: str
    """Who refused them, as `ingest-…`, when it re-read (`reread-…`), or in a redrive (`…:<job>:<reason>`)."""
    reason: str
    _left: list[tuple[Offsets, Offsets]] | None = field(default=None, init=False)

    def plan(self, start: Offsets | None, limits: Limits, mean_bytes: float | None) -> tuple[Offsets, Offsets] | None:  # noqa: ARG002
        """The next of the records that are there at the first look, each once a run, whatever the checkpoint says.

        Looks once more where files of that version went, which an erasure or VACUUM may remove between two batches.
        """
        if self._left and not whole(self.lake, self.table, self._left[0][0]["version"]):
            self._left = None
        if self._left is None:
            version = self.lake.version(self.table)
            rows = self._waiting(version).count()
            size = limits.max_records
            places = [(at, min(at + size, rows)) for at in range(0, rows, size)]
            self._left = [({"version": version, "row": a}, {"version": version, "row": b}) for a, b in places]
        return self._left.pop(0) if self._left else None

    def size(self, start: Offsets, end: Offsets) -> int:
        """How many records a range has."""
        return end["row"] - start["row"]

    def read(self, manifest: Manifest) -> DataFrame:
        """The records of a batch as they came from Kafka.

        Out: topic, partition, offset, key, value, timestamp (when they were refused).
        """
        start, end = manifest.start["row"], manifest.end["row"]
        ordered = self._waiting(manifest.end["version"]).orderBy("batch_sequence", *COORDINATES, "value")
        ordered = ordered.select(*_RECORD, "timestamp")
        return ordered.offset(start).limit(end - start)

    def _waiting(self, version: int) -> DataFrame:
        """Of records with one place, which a topic that was made anew has, the newest: the others come after it.

        By the batch that refused them first, of any job: those of a job begin again at 0 after a reset.
        """
        by = F.col("job_name")
        its_own = by.isin(self.job, self.job.replace("ingest-", "reread-", 1)) | by.contains(f":{self.job}:")
        held = self.lake.read(self.table, version).where(its_own)
        marked = F.bool_or(F.col("reason_code") == REDRIVEN)
        asked = F.bool_or(F.col("reason_code") == self.reason)
        first = F.min("batch_sequence").alias("batch_sequence")
        since = F.min("ingestion_ts").alias("timestamp")
        each = held.groupBy(*_RECORD).agg(first, since, marked.alias("marked"), asked.alias("asked"))
        waiting = each.where("asked AND NOT marked")
        record = F.struct("key", "value", "timestamp", "batch_sequence")
        newest = waiting.groupBy(*COORDINATES).agg(F.max_by(record, F.struct("batch_sequence", "value")).alias("r"))
        return newest.select(*COORDINATES, "r.key", "r.value", "r.timestamp", "r.batch_sequence")


def mark_redriven(source: RedriveSource, work: TopicBatch, commit: Committer) -> Counts:
    """Mark those records of a redrive that landed, or were known: a second redrive passes them by."""
    done = work.received.rows_in - work.quarantined
    if not done:
        return {"redriven": 0}
    rejected = work.rejected_rows.select(*COORDINATES)
    rows = work.raw.select(*_RECORD).join(rejected, list(COORDINATES), "left_anti")
    marks = with_reason(rows, REDRIVEN, f"Refused as {source.reason}; landed, or known, since.")
    appends = Appends(work.lake, work.manifest, commit)
    appends.add("append", source.table, marks, done)
    return {"redriven": done, **appends.counts()}


def redriven(source: Source) -> tuple[Step[TopicBatch], ...]:
    """The last process of a job: marks what a redrive has landed; none for any other source."""
    if not isinstance(source, RedriveSource):
        return ()
    return (Step("redriven", partial(mark_redriven, source), ("append",)),)
