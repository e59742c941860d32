"""Runs one batch at a time, each exactly once, whatever dies in between.

The order of things is here; what a batch reads is its source's business, what it writes its processes'.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from engagement_platform.engine.database import utc_now
from engagement_platform.engine.fencing import (
    OUTSIDE_BATCHES,
    TARGETS,
    Committer,
    Fencing,
    declared,
    targets_of,
    transaction_before,
)
from engagement_platform.engine.lease import POLL, Fence, Holder, Lease, LeaseStore
from engagement_platform.engine.model import BatchRecord, Counts, JobState, Limits, Manifest, Offsets, Source, accounted
from engagement_platform.engine.stores import BatchMetadataStore, CheckpointStore
from engagement_platform.engine.table_logs import TableLogs, refuse_changed, refuse_stores_behind
from engagement_platform.engine.unfinished_batches import OthersBatchUnfinished, blocking_batches, kept_by
from engagement_platform.errors import PlatformError, first_line

W = TypeVar("W")
W_contra = TypeVar("W_contra", contravariant=True)

Observer = Callable[[str], None]
"""Called at every point that a batch passes; tests raise or stop the process there."""


@dataclass(frozen=True)
class Callbacks:
    """What a job calls while it runs."""

    observe: Observer = lambda _point: None
    on_wait: Callable[[str, Holder], None] = lambda _lease, _holder: None
    on_blocked: Callable[[str], None] = lambda _batch: None
    """With the unfinished batch of another job that blocks this one: its state and reason."""


class BooksDoNotBalance(PlatformError):
    """A batch would lose or invent records; it is not finalized."""

    def __init__(self, manifest: Manifest, counts: Counts) -> None:
        self.counts = counts
        received, landed = counts.get("rows_in", 0), counts.get("landed", 0)
        duplicates, quarantined = counts.get("duplicates", 0), counts.get("quarantined", 0)
        super().__init__(
            f"{manifest} received {received} records but accounts for {accounted(counts)} ({landed} landed, "
            f"{duplicates} known duplicates, {quarantined} quarantined, {counts.get('erased', 0)} erased). The batch "
            "stays unfinished and is tried again by the next run; nothing after it is read. Where objects of it are "
            "gone since the first attempt, give it up by `engagement-platform reset` with --abandon. Anything else is "
            "a defect: please report it with the output of `engagement-platform verify`."
        )


class BatchFailed(PlatformError):
    """Spark gave up in the middle of a batch."""

    def __init__(self, manifest: Manifest, error: Exception) -> None:
        super().__init__(
            f"{manifest} stopped: {type(error).__name__}: {first_line(error)}. What its finished processes wrote stays "
            "and is not written again; the next run finishes the batch. The whole text is with the batch in the stores "
            "and in the log of Spark."
        )


@dataclass(frozen=True)
class Step(Generic[W_contra]):
    """One process of a batch: a function that makes its declared commits and returns its counts."""

    name: str
    """Key in the Batch Metadata Store."""
    does: Callable[[W_contra, Committer], Counts]
    """Reads nothing but the work, which is pinned by the manifest."""
    commits: tuple[str, ...] = ()
    """Names of the commits that it can make, in order."""
    in_order: bool = True
    """False: they are made side by side, so none of them is known to be the last."""


@dataclass(frozen=True)
class Stores:
    """The three stores of the engine, on one database."""

    checkpoints: CheckpointStore
    metadata: BatchMetadataStore
    leases: LeaseStore
    tables: TableLogs = field(default_factory=TableLogs)
    """What the tables that go with these stores say of batches."""


@dataclass(frozen=True)
class BatchReport:
    """One finished batch."""

    manifest: Manifest
    counts: Counts
    details: Mapping[str, object]
    process_seconds: Mapping[str, float]
    seconds: float
    replayed: bool
    """The batch had been started by an earlier attempt."""

    def as_json(self) -> dict[str, object]:
        """Everything that JSON can say, flat, for machines that watch a run."""
        manifest = self.manifest
        return {
            "job": manifest.job,
            "batch_id": manifest.batch_id,
            "application_id": manifest.app_id,
            "start_offsets": dict(manifest.start),
            "end_offsets": dict(manifest.end),
            "table_versions": dict(manifest.table_versions),
            "ingestion_ts": manifest.ingestion_ts.isoformat(),
            "replayed": self.replayed,
            "seconds": round(self.seconds, 3),
            "process_seconds": {name: round(seconds, 3) for name, seconds in self.process_seconds.items()},
            **self.counts,
            **self.details,
        }


@dataclass(frozen=True)
class MicroBatchJob(Generic[W]):
    """A source, a work that is prepared from a pinned range, and processes that write it in a fixed order."""

    name: str
    source: Source
    prepare: Callable[[Manifest], W]
    """Makes what all processes share (frames over the pinned range); called only when a process has to run."""
    processes: tuple[Step[W], ...]
    stores: Stores
    limits: Limits
    pin: Callable[[], Mapping[str, int]] = dict
    """Versions of the tables the processes read, called under the leases."""
    decides: Callable[[], Mapping[str, object]] = dict
    """Settings that decide what becomes of a record, pinned for a new batch; work goes by the manifest's. JSON-able."""
    about: Callable[[], Mapping[str, object]] = dict
    """What else is kept of a new batch's source: what offsets cannot say. JSON-able."""
    leased: tuple[str, ...] = ()
    """Mutable tables this job writes; one writer at a time, and no new batch while another job's is half done."""
    enters: tuple[str, ...] = ()
    """Tables whose leases are held while a batch begins, and not longer: while another holds one, none begins."""
    lease_wait: timedelta = timedelta(seconds=90)
    """How long to wait for a lease, and how long for another job to finish its batch."""
    describe: Callable[[W], Mapping[str, object]] = lambda _: {}
    """More of a batch than counts, for people: offsets, freshness, samples. Must be JSON-able."""
    clock: Callable[[], datetime] = utc_now
    fencing: Fencing = field(default_factory=Fencing)
    """Keeps writers of this job's earlier attempts out of the tables."""
    callbacks: Callbacks = field(default_factory=Callbacks)

    def __post_init__(self) -> None:
        """Raise ValueError for a commit that `fencing` does not know, when it knows any."""
        known = self.fencing.targets
        unknown = [f"{p.name}/{commit}" for p in self.processes for commit in p.commits] if known else []
        if unknown := [commit for commit in unknown if commit not in known]:
            raise ValueError(f"{self.name} does not say which table {', '.join(unknown)} writes")

    @property
    def crash_points(self) -> tuple[str, ...]:
        """Every point of a batch that does all it can, in order; what a crash test has to cover."""
        points = ["manifest:before", "manifest:after"]
        for process in self.processes:
            for commit in process.commits:
                points += [f"{process.name}.{commit}:before", f"{process.name}.{commit}:after"]
            points.append(f"{process.name}:recorded")
        return (*points, "finalized")

    @contextmanager
    def exclusive(self) -> Iterator[Lease]:
        """Keep a second run of this job out. Held for a whole drain.

        Raises StoresBehind when tables hold batches that the stores do not know.
        """
        with self.lease_of(f"job/{self.name}", "drain") as lease:
            refuse_stores_behind(self.name, self.stores.checkpoints, self.stores.tables)
            yield lease

    def run_batch(self, lease: Lease) -> BatchReport | None:
        """Finish the batch that was begun, or begin and finish the next; None when nothing is waiting.

        lease: of the job, from `exclusive`. The tables' leases are taken batch by batch, so that another writer of
        the same table gets its turn in between. A new batch is not begun while another job's is unfinished on one of
        these tables: that job replays against the versions it pinned. Raises OthersBatchUnfinished when it still is
        `lease_wait` after it was first met.
        """
        planned: tuple[Offsets, Offsets] | None = None
        gives_up: float | None = None
        reported = ""
        while True:
            with ExitStack() as held:
                # One order for everybody: two jobs that each hold what the other wants would wait for nothing.
                tables = [held.enter_context(self.lease_of(f"table/{name}", self.name)) for name in sorted(self.leased)]
                self._close_predecessors(tables)
                attempt = _Attempt(self, lease, tables, planned)
                try:
                    return attempt.run()
                except OthersBatchUnfinished as refused:
                    refusal, planned = refused, attempt.planned
            gives_up = gives_up or time.monotonic() + self.lease_wait.total_seconds()
            if refusal.waits_for != reported and time.monotonic() < gives_up:
                self.callbacks.on_blocked(refusal.waits_for)
                reported = refusal.waits_for
            self._let_finish(refusal, gives_up)

    def others_unfinished(self) -> tuple[BatchRecord, ...]:
        """Batches of other jobs that have to be finished before this one may begin a new one."""
        return blocking_batches(self.name, kept_by(self.leased, self.enters), self.stores.checkpoints.unfinished())

    def _let_finish(self, refusal: OthersBatchUnfinished, gives_up: float) -> None:
        """Return when something happened to the batches in the way; raise the refusal once it is `gives_up`.

        Looks without the leases, which those batches need. A batch that is taken up again changes its row, and from
        then on the place in the line for its leases is the better wait.
        """
        while (left := gives_up - time.monotonic()) > 0:
            time.sleep(min(POLL.total_seconds(), left))
            if self.others_unfinished() != refusal.batches:
                return
        raise refusal

    def _close_predecessors(self, tables: Sequence[Lease]) -> None:
        """Close what a holder that never released its lease may still write to a table, outside of batches.

        What it may write in a batch is closed by finishing or abandoning that batch.
        """
        silent = [one for one in tables if one.replaced and not OUTSIDE_BATCHES.isdisjoint(one.replaced.purposes)]
        try:
            self.fencing.close([transaction_before(lease.fence) for lease in silent])
        except BaseException:
            # The next holder has to see that nobody released it, and to close it then.
            for lease in silent:
                lease.leave()
            raise

    @contextmanager
    def lease_of(self, name: str, purpose: str) -> Iterator[Lease]:
        """Hold a lease, and report whom it waits for."""
        with self.stores.leases.acquire(
            name, purpose=purpose, wait=self.lease_wait, on_wait=lambda holder: self.callbacks.on_wait(name, holder)
        ) as lease:
            yield lease


class _Attempt(Generic[W]):
    """One attempt at one batch, under the leases it needs.

    planned: the range an attempt before this one would have begun; a source may give each range only once.
    """

    def __init__(
        self, job: MicroBatchJob[W], lease: Lease, tables: Sequence[Lease], planned: tuple[Offsets, Offsets] | None
    ) -> None:
        self.planned = planned
        self.job, self.leases = job, (lease, *tables)
        self.fences = [held.fence for held in self.leases]
        self.checkpoints, self.metadata = job.stores.checkpoints, job.stores.metadata
        self.began = time.monotonic()
        self.seconds: dict[str, float] = {}

    def run(self) -> BatchReport | None:
        begun = self._begin_or_resume()
        return begun and self._finish(*begun)

    def _finish(self, manifest: Manifest, replayed: bool) -> BatchReport:
        try:
            report = self._work(manifest, replayed)
        except Exception as error:
            self._note_failure(manifest, error)
            if isinstance(error, PlatformError) or not type(error).__module__.startswith(("pyspark", "py4j", "grpc")):
                raise
            # Where another run has taken the place of this one, Spark says that a session, or a file, is gone.
            for lease in self.leases:
                lease.check()
            # When the broker went away in the middle, Spark raises a long error; the source's is one sentence.
            self.job.source.check(manifest.start, manifest.end)
            if not self.job.source.read_otherwise(manifest.start, manifest.end):
                raise BatchFailed(manifest, error) from error
        else:
            self.job.callbacks.observe("finalized")
            return report
        return self._finish(self.checkpoints.begin(manifest, fences=self.fences), replayed=True)

    def _note_failure(self, manifest: Manifest, error: Exception) -> None:
        """Leave the reason in the store; a store that cannot take it must not hide the error itself."""
        reason = str(error) if isinstance(error, PlatformError) else f"{type(error).__name__}: {error}"
        try:
            self.checkpoints.fail(manifest, reason, fences=self.fences)
        except PlatformError as untold:
            error.add_note(f"The failure was not recorded in the stores: {untold}")

    def _begin_or_resume(self) -> tuple[Manifest, bool] | None:
        job = self.job
        last = self.checkpoints.latest(job.name)
        identity = job.source.identify(last.manifest.identity if last else {})
        if last is not None and last.state is not JobState.SUCCEEDED:
            refuse_changed(last.manifest, job.stores.tables)
            job.source.check(last.manifest.start, last.manifest.end)
            return self.checkpoints.begin(last.manifest, fences=self.fences), True
        records = last.counts.get("rows_in", 0) if last else 0
        mean_bytes = last.counts.get("bytes_in", 0) / records if last and records else None
        planned = self.planned or job.source.plan(last.manifest.end if last else None, job.limits, mean_bytes)
        if planned is None:
            return None
        self.planned = planned
        with ExitStack() as entered:
            leases = [entered.enter_context(job.lease_of(f"table/{name}", job.name)) for name in sorted(job.enters)]
            return self._begin(last, planned, identity, [lease.fence for lease in leases]), False

    def _begin(
        self,
        last: BatchRecord | None,
        planned: tuple[Offsets, Offsets],
        identity: Mapping[str, str],
        entered: Sequence[Fence],
    ) -> Manifest:
        job = self.job
        if others := job.others_unfinished():
            raise OthersBatchUnfinished(job.name, kept_by(job.leased, job.enters), others)
        versions = job.pin()
        manifest = Manifest(
            job=job.name,
            app_id=last.manifest.app_id if last else self.checkpoints.app_id(job.name),
            batch_id=last.manifest.batch_id + 1 if last else 0,
            start=planned[0],
            end=planned[1],
            ingestion_ts=job.clock(),
            table_versions=versions,
            table_ids=job.stores.tables.ids(versions),
            # Again: the range that was planned is this source's only if it is still the same.
            identity=job.source.identify(identity),
            settings=job.decides(),
            source={**job.about(), TARGETS: dict(job.fencing.targets)},
        )
        job.callbacks.observe("manifest:before")
        manifest = self.checkpoints.begin(manifest, fences=[*self.fences, *entered])
        job.callbacks.observe("manifest:after")
        return manifest

    def _work(self, manifest: Manifest, replayed: bool) -> BatchReport:
        job = self.job
        states = self.metadata.get(job.name).values()
        done = {state.process: state.counts for state in states if state.batch_id == manifest.batch_id}
        totals: Counter[str] = Counter()
        details: Mapping[str, object] = {}
        work: W | None = None
        for process in job.processes:
            if process.name not in done:
                if work is None:
                    since = time.monotonic()
                    work = job.prepare(manifest)
                    self.seconds["prepare"] = time.monotonic() - since
                done[process.name] = self._run_process(process, work, manifest)
            totals.update(done[process.name])
        if work is not None:
            details = job.describe(work)
        if totals["rows_in"] != accounted(totals):
            raise BooksDoNotBalance(manifest, totals)
        if replayed:
            self._close(manifest)
        took = time.monotonic() - self.began
        report = BatchReport(manifest, dict(totals), details, self.seconds, took, replayed)
        kept = {**details, "process_seconds": self.seconds, "seconds": took, "replayed": replayed}
        self.checkpoints.succeed(manifest, report.counts, kept, job.clock(), fences=self.fences)
        return report

    def _close(self, manifest: Manifest) -> None:
        """Close what an earlier attempt at the batch may still write: commits that this attempt had no rows for."""
        self._check()
        begun_with = targets_of(manifest.source)
        self.job.fencing.close(declared(manifest, {**begun_with, **self.job.fencing.targets}))

    def _check(self) -> None:
        """Raise LeaseLost, or the lake's error, when this run may not write any more."""
        for lease in self.leases:
            lease.check()
        self.job.fencing.check()

    def _run_process(self, process: Step[W], work: W, manifest: Manifest) -> Counts:
        since = time.monotonic()
        self._check()
        is_last = process is self.job.processes[-1] and process.commits and process.in_order
        last = process.commits[-1] if is_last else None
        counts = process.does(work, Committer(manifest, process.name, self.job.callbacks.observe, self._check, last))
        self.metadata.record(manifest, process.name, counts, self.job.clock(), fences=self.fences)
        self.job.callbacks.observe(f"{process.name}:recorded")
        self.seconds[process.name] = time.monotonic() - since
        return counts
