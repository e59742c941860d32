"""A run as a process of its own: a job whose process writes lines to a file and stops itself (SIGSTOP) on its way.

`python -m engagement_platform_tests.engine.sleeping_run DATABASE OUT POINT`
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from engagement_platform.engine.database import open_engine
from engagement_platform.engine.drain import DrainPolicy, drain
from engagement_platform.engine.fencing import Committer, Fencing, TableTransaction
from engagement_platform.engine.job import Callbacks, MicroBatchJob, Step, Stores
from engagement_platform.engine.lease import LeaseStore
from engagement_platform.engine.model import Counts, Limits, Manifest, NoIdentity, Offsets
from engagement_platform.engine.stores import BatchMetadataStore, CheckpointStore

JOB, TABLE = "ingest", "engagement/data"
COMMITS = ("first", "second")


class OneBatch(NoIdentity):
    """A source of one batch."""

    def plan(self, start: Offsets | None, limits: Limits, mean_bytes: float | None) -> tuple[Offsets, Offsets] | None:
        return None if start else ({"0": 0}, {"0": 1})

    def check(self, start: Offsets, end: Offsets) -> None:
        """Nothing expires."""

    def size(self, start: Offsets, end: Offsets) -> int:
        return 1


def writes(out: Path, *commits: str) -> Step[Manifest]:
    """Writes one line a commit, with the number of the process that wrote it."""

    def write(_work: Manifest, commit: Committer) -> Counts:
        for name in commits:
            with commit(name) as txn:
                txn.guard()
                with out.open("a") as file:
                    file.write(f"{txn.marker.partition('/')[2]} by {os.getpid()}\n")
        return {"rows_in": 1, "landed": 1}

    return Step("data", write, commits)


@dataclass
class Closing(Fencing):
    """Remembers what it was asked to close."""

    closed: list[TableTransaction] = field(default_factory=list)
    targets: dict[str, str | None] = field(default_factory=lambda: {f"data/{name}": TABLE for name in COMMITS})

    def check(self) -> None:
        """Any driver may write."""

    def close(self, transactions: Sequence[TableTransaction]) -> None:
        self.closed += transactions


def job(url: str, out: Path) -> MicroBatchJob[Manifest]:
    engine = open_engine(url)
    return MicroBatchJob(
        name=JOB,
        source=OneBatch(),
        prepare=lambda manifest: manifest,
        processes=(writes(out, *COMMITS),),
        stores=Stores(CheckpointStore(engine), BatchMetadataStore(engine), LeaseStore(engine)),
        limits=Limits(1, 1_000),
        leased=(TABLE,),
        lease_wait=timedelta(0),
        fencing=Closing(),
    )


AT_ONCE = DrainPolicy(idle_timeout=timedelta(0), max_duration=timedelta(minutes=5))


def main(url: str, out: str, point: str) -> None:
    """One drain that stops at a point."""

    def stop(passed: str) -> None:
        if passed == point:
            os.kill(os.getpid(), signal.SIGSTOP)

    run = job(url, Path(out))
    object.__setattr__(run, "callbacks", Callbacks(observe=stop))
    list(drain(run, AT_ONCE))


if __name__ == "__main__":
    main(*sys.argv[1:])
