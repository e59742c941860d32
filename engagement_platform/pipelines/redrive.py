"""Puts records from quarantine through once more, and marks there those that landed, so that none is put through twice.

What a record has to be is the job's business: a redrive is that job under another name, with this source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.job import Step, Stores
from engagement_platform.engine.model import Counts, JobState, Limits, Manifest, NoIdentity, Offsets, Source
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


def undone(stores: Stores) -> list[tuple[int, str]]:
    """Batches that restores have undone, each with the sequence of its restore; not those of one that was given up.

    What they have landed is gone, and their marks, which a restore leaves in quarantine, say nothing any more.
    """
    restores = stores.checkpoints.history("restore-tables")
    done = [r.manifest for r in restores if r.state is JobState.SUCCEEDED and "abandoned_by" not in r.details]
    named = [(one.sequence, one.source.get("undone")) for one in done]
    return [(sequence, batch) for sequence, batches in named if isinstance(batches, list) for batch in batches]


@dataclass
class RedriveSource(NoIdentity):
    """Records that a job refused for a reason and that are not marked, some at a time.

    Offsets {"version": v, "row": n, "restored": s}: a version of quarantine, a place among these records in it, and the
    sequence up to which restores count that have undone a mark.
    """

    lake: Lake
    table: Table
    """Of quarantine."""
    job: str
    """Who refused them, as `ingest-…`, when it re-read (`reread-…`), or in a redrive (`…:<job>:<reason>`)."""
    reason: str
    undone: Sequence[tuple[int, str]] = ()
    """As of the function."""
    _left: list[tuple[Offsets, Offsets]] | None = field(default=None, init=False)

    def plan(self, start: Offsets | None, limits: Limits, mean_bytes: float | None) -> tuple[Offsets, Offsets] | None:  # noqa: ARG002
        """The next of the records that are there at the first look, each once a run, whatever the checkpoint says.

        Looks once more where files of that version went, which an erasure or VACUUM may remove between two batches.
        """
        if self._left and not whole(self.lake, self.table, self._left[0][0]["version"]):
            self._left = None
        if self._left is None:
            version = self.lake.version(self.table)
            restored = max((sequence for sequence, _ in self.undone), default=0)
            rows, size = self._waiting(version, restored).count(), limits.max_records
            of = {"version": version, "restored": restored}
            self._left = [({**of, "row": at}, {**of, "row": min(at + size, rows)}) for at in range(0, rows, size)]
        return self._left.pop(0) if self._left else None

    def size(self, start: Offsets, end: Offsets) -> int:
        """How many records a range has."""
        return end["row"] - start["row"]

    def read(self, manifest: Manifest) -> DataFrame:
        """The records of a batch as they came from Kafka.

        Out: topic, partition, offset, key, value, timestamp (when they were refused).
        """
        start, end = manifest.start["row"], manifest.end["row"]
        waiting = self._waiting(manifest.end["version"], manifest.end.get("restored", 0))
        ordered = waiting.orderBy("batch_sequence", *COORDINATES, "value")
        ordered = ordered.select(*_RECORD, "timestamp")
        return ordered.offset(start).limit(end - start)

    def _waiting(self, version: int, restored: int) -> DataFrame:
        """Of records with one place, which a topic that was made anew has, the newest: the others come after it.

        By the batch that refused them first, of any job: those of a job begin again at 0 after a reset.
        """
        by = F.col("job_name")
        its_own = by.isin(self.job, self.job.replace("ingest-", "reread-", 1)) | by.contains(f":{self.job}:")
        held = self.lake.read(self.table, version).where(its_own)
        is_mark = F.col("reason_code") == REDRIVEN
        batch = F.concat_ws(" batch ", "job_name", F.col("batch_id").cast("string"))
        for sequence, name in self.undone:
            # Batches begin again at 0 after a reset: of an earlier one of this name the restore has undone nothing.
            if sequence <= restored and name.startswith("redrive-"):
                is_mark &= ~((batch == name) & (F.col("batch_sequence") < sequence))
        marked = F.bool_or(is_mark)
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
