"""Small real tables in a fresh lake, with as many files as a test wants; and what their logs and rows say."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from engagement_platform.engine.job import Stores
from engagement_platform.engine.model import Transaction
from engagement_platform.lake import engagement, log, scan
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.contract import Table
from engagement_platform.maintenance.layout.optimize import Asked, Callbacks, Outcome, Run, planned
from engagement_platform.maintenance.layout.survey import Target
from engagement_platform.pipelines.jobs import open_stores
from engagement_platform.settings import ConsumerSettings, LayoutSettings, MaintenanceSettings, Settings
from engagement_platform_tests import plant

DATA = engagement.data_table("organization")
NOTIFICATION = replace(engagement.NOTIFICATION, liquid_by=(), partitioned_by=("organization_id", "ingestion_date"))
"""Partitioned, as lakes of before have it and delta-rs can write it."""
FIRST = date(2024, 1, 1)
NOW = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)


def no_spark() -> SparkSession:
    """For what must not need it."""
    raise AssertionError("Spark was asked for")


@dataclass
class SeededLake:
    """A lake of its own, with its stores."""

    home: Path
    maintenance: MaintenanceSettings = field(
        default_factory=lambda: MaintenanceSettings(backoff=timedelta(milliseconds=10))
    )
    layout: LayoutSettings = field(default_factory=LayoutSettings)
    batches: int = 0
    spark: SparkSession | None = None
    """Who rewrites; None: nothing may be rewritten."""

    @cached_property
    def settings(self) -> Settings:
        # Longer than tables keep files anyway, so that one sees who keeps them.
        consumers = ConsumerSettings(keep_for=timedelta(days=14))
        return Settings(home=self.home, maintenance=self.maintenance, layout=self.layout, consumers=consumers)

    @cached_property
    def stores(self) -> Stores:
        return open_stores(self.settings)

    def uri(self, table: Table = DATA) -> str:
        return table.uri(self.settings.lake)

    def target(self, table: Table = DATA) -> Target:
        return Target(table.name, self.uri(table))

    def engagements(self, organization: str, files: int, rows: int = 4) -> None:
        """So many small files in the Data Table, each with days from all over the first quarter."""
        plant.create(self.uri(), DATA)
        found = DeltaTable(self.uri())
        for _ in range(files):
            self.batches += 1
            plant.append(found, engagement_rows(organization, self.batches, rows), self._txn("data"))

    def notifications(self, organization: str, files: int, rows: int = 2) -> None:
        """So many small files in an append-only table."""
        plant.create(self.uri(NOTIFICATION), NOTIFICATION)
        found = DeltaTable(self.uri(NOTIFICATION))
        for _ in range(files):
            self.batches += 1
            some = [
                {
                    "notification_id": f"{organization}-{self.batches}-{i}",
                    "organization_id": organization,
                    "ingestion_date": FIRST,
                    "batch_id": self.batches,
                }
                for i in range(rows)
            ]
            plant.append(found, table_of(some, NOTIFICATION), self._txn("notification"))

    def _txn(self, process: str) -> Transaction:
        return Transaction(f"test/{process}", self.batches)

    def rows(self, table: Table = DATA, version: int | None = None) -> str:
        """A checksum over every row, in no order."""
        opened = DeltaTable(self.uri(table), version=version)
        found = scan.find(opened, table.column_names, {}).to_pylist()
        return hashlib.sha256("\n".join(sorted(map(repr, found))).encode()).hexdigest()

    def files(self, organization: str | None = None, table: Table = DATA) -> int:
        """Live files, of one organization or of all."""
        live = pa.table(DeltaTable(self.uri(table)).get_add_actions(flatten=True)).to_pylist()
        return sum(organization in (None, row["partition.organization_id"]) for row in live)

    def session(self) -> SparkSession:
        return self.spark or no_spark()

    def optimize(
        self,
        asked: Asked | None = None,
        callbacks: Callbacks | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> list[Outcome]:
        """One run, to its end."""
        run = Run(self.settings, self.stores, self.session, callbacks or Callbacks(), sleep)
        return list(run.do(planned(self.settings, asked or Asked())))

    def commits(self, table: Table = DATA, after: int = -1) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Version and actions of each commit after a version."""
        for version in range(after + 1, (log.version(self.uri(table)) or 0) + 1):
            yield version, log.entry(self.uri(table), version) or []


def engagement_rows(organization: str, batch: int, rows: int) -> pa.Table:
    """Rows of the Data Table; the same for the same arguments."""
    made = []
    for i in range(rows):
        day = FIRST + timedelta(days=(batch * 7 + i * 31) % 90)
        made.append(
            {
                "organization_id": organization,
                "engagement_date": day,
                "engagement_ts": datetime(day.year, day.month, day.day, i % 24, tzinfo=UTC),
                "engagement_id": f"e-{batch}-{i}",
                "person_id": f"p-{i}",
                "source_person_id": f"p-{i}",
                "version": 1,
                "batch_id": batch,
                "engagement": {"type": "mail", "channel": None, "subject": "it's", "attributes": {"a": "b"}},
            }
        )
    return table_of(made, DATA)


def append_foreign(uri: str, rows: pa.Table) -> None:
    """One more file, by a writer of another house."""
    write_deltalake(uri, rows, mode="append")


@contextmanager
def leased(stores: Stores, table: str, purpose: str) -> Iterator[None]:
    """The table's lease, for as long as it takes."""
    with stores.leases.acquire(f"table/{table}", purpose=purpose, wait=timedelta(seconds=120)):
        yield


def partitions(outcomes: Sequence[Outcome]) -> list[str]:
    """Of which partitions there are outcomes, in order."""
    return [outcome.slice.partition for outcome in outcomes]
