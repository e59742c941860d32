"""Lakes for consumer tests, without Spark and Kafka: the rules of the pipelines run in memory, and what they decide is
written to Delta tables in the order in which the jobs commit it.

What stands is told by the rules over every row of every table, so that it checks what looks rows up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from engagement_platform.consumers import Batch, Changes
from engagement_platform.engine.job import Stores
from engagement_platform.engine.model import Manifest, Transaction
from engagement_platform.lake.arrow import schema_of, table_of
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import ALIAS, CHANGESET, MUTATION_REQUEST, NOTIFICATION, data_table
from engagement_platform.pipelines.engagements.schema import CURRENT_ROW, STATE
from engagement_platform.pipelines.jobs import INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS, open_stores
from engagement_platform.pipelines.mutations.rules import current_rows
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.pipelines.snapshot import WATERMARK
from engagement_platform.settings import LayoutSettings, Settings
from engagement_platform_tests import plant
from engagement_platform_tests.pipelines.lakes import MemoryLake
from engagement_platform_tests.pipelines.mutations.histories import Message

NOW = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
Key = tuple[str, str]
Rows = dict[Key, dict[str, Any]]


@dataclass
class PlainLake:
    """A lake of its own. Time goes on by a second a batch."""

    home: Path
    layout: LayoutSettings = field(default_factory=lambda: LayoutSettings(auto_compact=False))
    sequence: int = 0
    batches: Counter[str] = field(default_factory=Counter)
    """Job -> how many batches it made."""
    memory: dict[str, MemoryLake] = field(init=False)
    """By organization."""

    def __post_init__(self) -> None:
        self.memory, self.offset, self.asked = {}, 0, set[Key]()
        for table in (self.data, NOTIFICATION):
            self.create(table)

    @cached_property
    def settings(self) -> Settings:
        return Settings(home=self.home, layout=self.layout)

    @cached_property
    def stores(self) -> Stores:
        return open_stores(self.settings)

    @property
    def data(self) -> Table:
        """Only Spark makes clustered tables; how files lie makes no difference to what is in them."""
        return replace(data_table(self.layout.scheme), liquid_by=())

    def uri(self, table: Table) -> str:
        return table.uri(self.settings.lake)

    def create(self, table: Table) -> None:
        """An empty table, unless one stands."""
        plant.create(self.uri(table), table)

    def changes(self, name: str = "reader", **options: Any) -> Changes:
        return Changes(self.settings.lake, name=name, store_url=self.settings.store_url, **options)

    def land(self, messages: Sequence[Message], *, dies_before: Table | None = None) -> Manifest:
        """Engagements as one batch: images, then new ids, which publishes it, then notifications; its manifest.

        dies_before: the table whose commit is not made any more.
        """
        manifest = self.begin(INGEST_ENGAGEMENTS)
        rows: list[dict[str, Any]] = []
        images: list[dict[str, Any]] = []
        told: list[dict[str, Any]] = []
        for organization, lake, some in self._by_organization(messages):
            known, of_images, of_told = set(lake.base), len(lake.changeset), len(lake.notifications)
            numbered = [(self.offset + n, message) for n, message in enumerate(some)]
            self.offset += len(some)
            lake.ingest(numbered)
            named = {"organization_id": organization, "batch_id": manifest.batch_id}
            rows += [{**row, **named} for one, row in lake.base.items() if one not in known]
            images += [{**row, **named, "batch_sequence": row["sequence"]} for row in lake.changeset[of_images:]]
            told += [{**row, "person_id": row["announced_person_id"]} for row in lake.notifications[of_told:]]
        writes = [(CHANGESET, images)] if images else []
        writes += [(self.data, rows), *([(NOTIFICATION, told)] if told else [])]
        for table, found in writes:
            if dies_before is not None and table.name == dies_before.name:
                break
            if table is NOTIFICATION:
                self.notify(found, manifest)
            else:
                self.append(table, found, manifest)
        return manifest

    def notify(self, rows: Iterable[Mapping[str, Any]], manifest: Manifest) -> None:
        """Notifications of a batch."""
        stamps = {
            "ingestion_date": manifest.ingestion_ts.date(), "ingestion_ts": manifest.ingestion_ts,
            "batch_id": manifest.batch_id, "batch_sequence": manifest.sequence, "job_name": manifest.job,
        }  # fmt: skip
        named = [
            {**row, **stamps, "notification_id": f"{manifest}/{row['organization_id']}/{row['engagement_id']}"}
            for row in rows
        ]
        self.append(NOTIFICATION, named, manifest, process="notification", commit="append")

    def ask(self, messages: Sequence[Message], *, dies_before: Table | None = None) -> Manifest:
        """Requests as one batch, published and announced; known ones are passed by. dies_before: as for `land`."""
        manifest = self.begin(INGEST_MUTATION_REQUESTS)
        edges: list[dict[str, Any]] = []
        patches: list[dict[str, Any]] = []
        for organization, lake, some in self._by_organization(messages):
            new = {m["request_id"]: m for m in some if (organization, m["request_id"]) not in self.asked}
            self.asked |= {(organization, one) for one in new}
            of_edges, of_patches = len(lake.edges), len(lake.patches)
            lake.accept(new.values())
            named = {"organization_id": organization, "batch_id": manifest.batch_id, "batch_sequence": self.sequence}
            edges += [{**row, **named} for row in lake.edges[of_edges:]]
            patches += [{**row, **named, "operation": "UPDATE"} for row in lake.patches[of_patches:]]
        renamed = [m for m in messages if m["operation"] == "RENAME"]
        renames = [
            {**{n: m.get(n) for n in ("organization_id", "request_id", "operation", "from_id", "name")},
             "execution_ts": datetime.fromisoformat(m["execution_ts"]).astimezone(UTC), "batch_sequence": self.sequence}
            for m in renamed
        ]  # fmt: skip
        if edges:
            self.append(ALIAS, edges, manifest)
        if dies_before is MUTATION_REQUEST:
            return manifest
        stamps = {"ingestion_ts": manifest.ingestion_ts, "ingestion_date": manifest.ingestion_ts.date()}
        self.append(MUTATION_REQUEST, [{**row, **stamps} for row in (*edges, *patches, *renames)], manifest)
        announcing, told = self.begin(APPLY_MUTATIONS), []
        for lake in self.memory.values():
            before = len(lake.notifications)
            lake.sequence = self.sequence
            lake.announce()
            told += lake.notifications[before:]
        self.notify(told, announcing)
        return manifest

    def move(self, *, dies_before: Table | None = None) -> None:
        """Everything pending into the Data Table. dies_before CHANGESET: the moved images stay there."""
        rows = []
        for organization, lake in self.memory.items():
            lake.move()
            rows += [{**row, "organization_id": organization} for row in lake.base.values()]
        found = DeltaTable(self.uri(self.data))
        plant.replace(found, table_of(rows, self.data), Transaction(WATERMARK, self.sequence))
        if dies_before is not CHANGESET and DeltaTable.is_deltatable(self.uri(CHANGESET)):
            txn = self.begin("rematerialize-aliases").transaction("changeset", "delete")
            plant.replace(DeltaTable(self.uri(CHANGESET)), table_of([], CHANGESET), txn)

    def append(
        self,
        table: Table,
        rows: Iterable[Mapping[str, Any]],
        manifest: Manifest,
        process: str = "tables",
        commit: str | None = None,
    ) -> None:
        """One commit of a batch."""
        self.create(table)
        txn = manifest.transaction(process, commit or table.key[-1])
        plant.append(DeltaTable(self.uri(table)), table_of(rows, table), txn)

    def rows(self, table: Table) -> pa.Table:
        """Every row of a table."""
        if not DeltaTable.is_deltatable(self.uri(table)):
            return table_of([], table)
        found = DeltaTable(self.uri(table)).to_pyarrow_table()
        return found.select(list(table.column_names)).cast(schema_of(table))

    def standing(self) -> Rows:
        """What readers see, from all rows of all tables; everything in them is published."""
        parts = [("row", {**row, "sequence": None}) for row in self.rows(self.data).to_pylist()]
        kinds = (("row", CHANGESET), ("edge", ALIAS), ("patch", MUTATION_REQUEST))
        for kind, table in kinds:
            for row in self.rows(table).to_pylist():
                if kind != "patch" or row["operation"] == "UPDATE":
                    parts.append((kind, {**row, "sequence": row["batch_sequence"]}))
        found: Rows = {}
        for organization in sorted({row["organization_id"] for _, row in parts}):
            of = [(kind, row) for kind, row in parts if row["organization_id"] == organization]
            state = [{"organization_id": organization, kind: row} for kind, row in of]
            shown = current_rows(organization, pa.Table.from_pylist(state, schema=STATE))
            found |= by_key(shown.select(CURRENT_ROW.names))
        return {key: row for key, row in found.items() if row["person_id"] is not None}

    def begin(self, job: str) -> Manifest:
        """The manifest of a job's next batch."""
        self.sequence += 1
        number = self.batches[job]
        self.batches[job] += 1
        moment = NOW + timedelta(seconds=self.sequence)
        app_id = self.stores.checkpoints.app_id(job)
        return Manifest(job, app_id, number, {}, {}, moment, sequence=self.sequence)

    def _by_organization(self, messages: Sequence[Message]) -> Iterable[tuple[str, MemoryLake, list[Message]]]:
        """Each organization with its rules, about to make the batch that has begun."""
        for organization in sorted({message["organization_id"] for message in messages}):
            lake = self.memory.setdefault(organization, MemoryLake(organization))
            lake.sequence = self.sequence - 1
            yield organization, lake, [m for m in messages if m["organization_id"] == organization]


def by_key(rows: pa.Table) -> Rows:
    """Rows by (organization_id, engagement_id); each stands once."""
    found: Rows = {}
    for row in rows.to_pylist():
        key = (row["organization_id"], row["engagement_id"])
        assert key not in found, f"{key} stands twice"
        found[key] = row
    return found


def rows_of_duckdb(file: Path) -> Rows:
    """Rows of a replica in DuckDB."""
    with duckdb.connect(str(file), read_only=True) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return by_key(connection.query("SELECT * FROM engagement").to_arrow_table().cast(CURRENT_ROW))


@dataclass
class Replica:
    """What a consumer keeps: rows by key."""

    rows: Rows = field(default_factory=dict)

    def apply(self, batch: Batch) -> None:
        for table in (batch.inserts, batch.updates):
            for key, row in by_key(table).items():
                self.rows[key] = {name: value for name, value in row.items() if name != "previous_person_id"}
        for key in by_key(batch.deletes):
            self.rows.pop(key, None)

    def follow(self, changes: Changes) -> None:
        """All that there is, committed."""
        for batch in changes:
            self.apply(batch)
            changes.commit()
