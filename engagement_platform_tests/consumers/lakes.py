"""Lakes for consumer tests, without Spark and Kafka: engagements land by hand, requests go through the real job.

What stands is told by a loop over every row, so that it checks what looks rows up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from engagement_platform.consumers import Batch, Changes
from engagement_platform.engine.drain import DrainPolicy, drain
from engagement_platform.engine.job import Stores, Told
from engagement_platform.engine.model import Transaction
from engagement_platform.jobs import INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS, open_stores
from engagement_platform.lake import light
from engagement_platform.lake.arrow import schema_of, table_of
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import ALIAS, MUTATION_REQUEST, NOTIFICATION, PENDING, data_table
from engagement_platform.lake.lake import Lake
from engagement_platform.mutation.accepted import edges_of
from engagement_platform.mutation.job import apply_mutations
from engagement_platform.pipelines.mutations.identity import Identities
from engagement_platform.settings import ApplyStrategy, LayoutSettings, MutationSettings, Settings
from engagement_platform_tests.pipelines.mutations.histories import Message

NOW = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
AT_ONCE = DrainPolicy(linger=timedelta(0), max_duration=timedelta(hours=1))
Key = tuple[str, str]
Rows = dict[Key, dict[str, Any]]


@dataclass
class PlainLake:
    """A lake of its own. Time goes on by a second a batch."""

    home: Path
    layout: LayoutSettings = field(default_factory=lambda: LayoutSettings(auto_compact=False))
    landed: int = 0
    requests: int = 0

    def __post_init__(self) -> None:
        for table in (self.data, NOTIFICATION):
            light.create(self.uri(table), table)

    @cached_property
    def settings(self) -> Settings:
        return Settings(home=self.home, layout=self.layout)

    @cached_property
    def stores(self) -> Stores:
        return open_stores(self.settings)

    @cached_property
    def lake(self) -> Lake:
        """Whatever wants Spark of it fails."""
        return Lake(cast(SparkSession, None), self.settings)

    @cached_property
    def app_id(self) -> str:
        return self.stores.checkpoints.app_id(INGEST_ENGAGEMENTS)

    @property
    def data(self) -> Table:
        return data_table(self.layout.scheme)

    def uri(self, table: Table) -> str:
        return table.uri(self.settings.lake)

    def changes(self, name: str = "reader", **options: Any) -> Changes:
        return Changes(self.settings.lake, name=name, store_url=self.settings.store_url, **options)

    def land(self, messages: Sequence[Message]) -> None:
        """Engagements as one batch: the highest version of each, under the identity of now, and told."""
        newest: dict[Key, Message] = {}
        for message in messages:
            key = (message["organization_id"], message["engagement_id"])
            if key not in newest or message.get("version", 1) > newest[key].get("version", 1):
                newest[key] = message
        stored, seen, identities = self.stored(), self.standing(), self.identities()
        rows, told = [], []
        for key, message in newest.items():
            if key in stored and stored[key]["version"] >= message.get("version", 1):
                continue
            row = self._row(message, identities)
            rows.append(row)
            before = seen[key]["person_id"] if key in seen else None
            if row["person_id"] or before:
                told.append(self._told(row, before))
        txn = Transaction(f"{self.app_id}/data/merge", self.landed)
        if rows:
            columns = self.data.column_names
            found = DeltaTable(self.uri(self.data))
            light.merge(
                found, table_of(rows, self.data), self.data, txn,
                on=("organization_id", "engagement_id"), update=columns, newer_by="version", insert=True,
            )  # fmt: skip
        if told:
            self.notify(told)
        self.landed += 1

    def notify(self, rows: Iterable[dict[str, Any]]) -> None:
        """Notifications of the batch that lands."""
        txn = Transaction(f"{self.app_id}/notification/append", self.landed)
        light.append(DeltaTable(self.uri(NOTIFICATION)), table_of(rows, NOTIFICATION), txn)

    def ask(self, messages: Sequence[Message], apply: ApplyStrategy = "merge") -> None:
        """Requests as one batch, landed and applied. apply: `merge` also moves what waits of their organizations."""
        rows = [self._request(message) for message in messages]
        self.lake.ensure(MUTATION_REQUEST)
        app_id = self.stores.checkpoints.app_id(INGEST_MUTATION_REQUESTS)
        txn = Transaction(f"{app_id}/mutation_request/append", self.requests)
        self.requests += 1
        light.append(DeltaTable(self.uri(MUTATION_REQUEST)), table_of(rows, MUTATION_REQUEST), txn)
        settings = self.settings.model_copy(update={"mutation": MutationSettings(apply=apply)})
        list(drain(apply_mutations(self.lake, self.stores, settings, Told()), AT_ONCE))

    def identities(self) -> Identities:
        return Identities(edges_of(self.rows(ALIAS)) if DeltaTable.is_deltatable(self.uri(ALIAS)) else [])

    def rows(self, table: Table) -> pa.Table:
        """Every row of a table."""
        found = DeltaTable(self.uri(table)).to_pyarrow_table()
        return found.select(list(table.column_names)).cast(schema_of(table))

    def stored(self) -> Rows:
        """The Data Table by key."""
        return by_key(self.rows(self.data))

    def standing(self) -> Rows:
        """What readers see: rows that wait for aliases are walked one by one."""
        waiting, identities = set(), self.identities()
        if DeltaTable.is_deltatable(self.uri(PENDING)):
            pending = self.rows(PENDING).to_pylist()
            waiting = {row["organization_id"] for row in pending if row["pending_from"] is not None}
        found = self.stored()
        for (organization, engagement), row in found.items():
            if organization in waiting:
                row["person_id"] = identities.follow(
                    organization, row["source_person_id"], engagement, row["engagement_ts"], row["engagement_date"]
                )
        return {key: row for key, row in found.items() if row["person_id"] is not None}

    def _row(self, message: Message, identities: Identities) -> dict[str, Any]:
        at = datetime.fromisoformat(message["engagement_ts"]).astimezone(UTC)
        place = (message["organization_id"], message["person_id"], message["engagement_id"], at, at.date())
        attributes = message.get("attributes")
        said = {name: message.get(name) for name in ("type", "channel", "subject")}
        return {
            "organization_id": message["organization_id"],
            "engagement_date": at.date(),
            "engagement_ts": at,
            "engagement_id": message["engagement_id"],
            "person_id": identities.follow(*place),
            "source_person_id": message["person_id"],
            "version": message.get("version", 1),
            "batch_id": self.landed,
            "engagement": {**said, "attributes": None if attributes is None else list(attributes.items())},
        }

    def _told(self, row: dict[str, Any], before: str | None) -> dict[str, Any]:
        kind = "DELETE" if row["person_id"] is None else "UPDATE" if before else "INSERT"
        named = {name: row[name] for name in ("organization_id", "engagement_id", "engagement_date", "person_id")}
        moment = NOW + timedelta(seconds=self.landed)
        return {
            **named, "notification_id": f"{self.landed}/{row['organization_id']}/{row['engagement_id']}",
            "ingestion_date": moment.date(), "ingestion_ts": moment, "batch_id": self.landed,
            "job_name": INGEST_ENGAGEMENTS, "change_type": kind, "previous_person_id": before,
        }  # fmt: skip

    def _request(self, message: Message) -> dict[str, Any]:
        """A request as decoding leaves it."""
        row = {name: value for name, value in message.items() if name in MUTATION_REQUEST.column_names}
        for name in ("engagement_date_from", "engagement_date_to"):
            if row.get(name):
                row[name] = date.fromisoformat(row[name])
        if message["operation"] == "UPDATE":
            row["set_null"] = [name for name in ("channel", "subject") if message.get(name, "") is None]
            attributes = row.get("attributes")
            row["attributes"] = None if attributes is None else list(attributes.items())
        row["execution_ts"] = datetime.fromisoformat(message["execution_ts"]).astimezone(UTC)
        moment = NOW + timedelta(seconds=self.requests)
        return {
            **row, "topic": "mutation-requests", "partition": 0, "offset": self.requests, "ingestion_ts": moment,
            "ingestion_date": moment.date(), "batch_id": self.requests, "batch_sequence": self.requests,
        }  # fmt: skip


def by_key(rows: pa.Table) -> Rows:
    """Rows by (organization_id, engagement_id); each stands once."""
    found: Rows = {}
    for row in rows.to_pylist():
        key = (row["organization_id"], row["engagement_id"])
        assert key not in found, f"{key} stands twice"
        found[key] = row
    return found


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
