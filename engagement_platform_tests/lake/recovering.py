"""A job of two tables on real Delta logs and a real database, without Spark: what may go wrong with its stores."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, write_deltalake
from deltalake import Transaction as TxnAction

from engagement_platform.engine.database import open_engine
from engagement_platform.engine.drain import DrainPolicy, drain
from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.job import BatchReport, Callbacks, MicroBatchJob, Step, Stores
from engagement_platform.engine.lease import LeaseStore
from engagement_platform.engine.model import Counts, Limits, Manifest, NoIdentity, Offsets, Transaction
from engagement_platform.engine.stores import BatchMetadataStore, CheckpointStore
from engagement_platform.lake.batch_logs import LakeLogs, refuse_other

JOB = "ingest-numbers"
FIRST, SECOND = "numbers/first", "numbers/second"
AT_ONCE = DrainPolicy(idle_timeout=timedelta(0), max_duration=timedelta(minutes=5))
NOW = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)


class Killed(BaseException):
    """Ends a batch as a kill does: the stores learn nothing."""


@dataclass
class Topic(NoIdentity):
    """Numbers that were sent so far; a batch takes all that wait."""

    numbers: list[int] = field(default_factory=list)
    ids: Mapping[str, str] = field(default_factory=lambda: {"topic_id": "one"})

    def plan(self, start: Offsets | None, limits: Limits, mean_bytes: float | None) -> tuple[Offsets, Offsets] | None:
        begin = 0 if start is None else start["0"]
        return None if begin == len(self.numbers) else ({"0": begin}, {"0": len(self.numbers)})

    def size(self, start: Offsets, end: Offsets) -> int:
        return end["0"] - start["0"]

    def identify(self, pinned: Mapping[str, str]) -> Mapping[str, str]:
        return self.ids


def append(root: str, table: str, numbers: list[int], txn: Transaction) -> None:
    """As Delta does it: nothing where the table has this transaction or a later one."""
    uri = f"{root}/{table}"
    found = DeltaTable(uri) if DeltaTable.is_deltatable(uri) else None
    held = None if found is None else found.transaction_version(txn.app_id)
    refuse_other(root, table, txn, held)
    if held is not None and held >= txn.version:
        return
    write_deltalake(
        uri,
        pa.table({"number": pa.array(numbers, pa.int64())}),
        mode="append",
        commit_properties=CommitProperties(
            custom_metadata={"userMetadata": txn.metadata}, app_transactions=[TxnAction(txn.app_id, txn.version)]
        ),
        post_commithook_properties=PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False),
    )


def appends(root: str, table: str, *, last: bool) -> Step[tuple[Manifest, list[int]]]:
    """The numbers of the batch, times a factor that is pinned as a setting, into one table."""

    def write(work: tuple[Manifest, list[int]], commit: Committer) -> Counts:
        manifest, numbers = work
        # Multiples of ten go to the second table only: a batch of them makes no commit in the first.
        mine = [number for number in numbers if last or number % 10]
        if mine:
            with commit("append") as txn:
                factor = manifest.settings["factor"]
                assert isinstance(factor, int)
                append(root, table, [number * factor for number in mine], txn)
        return {"rows_in": len(numbers), "landed": len(numbers)} if last else {}

    return Step(table.partition("/")[2], write, ("append",))


@dataclass
class World:
    """One lake, its stores and a topic."""

    home: Path
    topic: Topic = field(default_factory=Topic)
    factor: int = 1
    now: datetime = NOW
    name: str = JOB

    @property
    def root(self) -> str:
        return str(self.home / "lake")

    @property
    def database(self) -> Path:
        return self.home / "stores.db"

    @property
    def stores(self) -> Stores:
        engine = open_engine(f"sqlite:///{self.database}")
        return Stores(CheckpointStore(engine), BatchMetadataStore(engine), LeaseStore(engine), LakeLogs(self.root))

    def job(self, stop_at: str = "") -> MicroBatchJob[tuple[Manifest, list[int]]]:
        def observe(point: str) -> None:
            if point == stop_at:
                raise Killed

        return MicroBatchJob(
            name=self.name,
            source=self.topic,
            prepare=lambda manifest: (manifest, self.topic.numbers[manifest.start["0"] : manifest.end["0"]]),
            processes=(appends(self.root, FIRST, last=False), appends(self.root, SECOND, last=True)),
            stores=self.stores,
            limits=Limits(100, 1000),
            decides=lambda: {"factor": self.factor},
            pin=lambda: {name: 0 for name in (FIRST,) if DeltaTable.is_deltatable(f"{self.root}/{name}")},
            lease_wait=timedelta(0),
            clock=lambda: self.now,
            callbacks=Callbacks(observe=observe),
        )

    def run(self, *numbers: int, stop_at: str = "") -> list[BatchReport]:
        """Send some more and run until idle."""
        self.topic.numbers += numbers
        return list(drain(self.job(stop_at), AT_ONCE))

    def rows(self) -> tuple[list[int], list[int]]:
        """Of both tables, in order."""
        return self._rows(FIRST), self._rows(SECOND)

    def expected(self) -> tuple[list[int], list[int]]:
        """What stands when every number was taken once."""
        return sorted(number for number in self.topic.numbers if number % 10), sorted(self.topic.numbers)

    def versions(self) -> list[int]:
        """Of both tables; -1 where there is none."""
        uris = [f"{self.root}/{name}" for name in (FIRST, SECOND)]
        return [DeltaTable(uri).version() if DeltaTable.is_deltatable(uri) else -1 for uri in uris]

    def backup(self) -> Path:
        """A copy of the stores as they are."""
        copy = self.home / "backup.db"
        with closing(sqlite3.connect(self.database)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        return copy

    def restore_stores(self, backup: Path | None) -> None:
        """The stores as they were; None: they are lost."""
        for name in ("stores.db", "stores.db-wal", "stores.db-shm"):
            (self.home / name).unlink(missing_ok=True)
        if backup is not None:
            self.database.write_bytes(backup.read_bytes())

    def _rows(self, table: str) -> list[int]:
        uri = f"{self.root}/{table}"
        if not DeltaTable.is_deltatable(uri):
            return []
        return sorted(DeltaTable(uri).to_pyarrow_table().column("number").to_pylist())


def another(world: World, name: str) -> World:
    """Another job on the same stores and tables, with a topic of its own."""
    return replace(world, name=name, topic=Topic())
