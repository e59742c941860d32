"""A lake in which every table has something of somebody who is to be erased, and of others; without Spark and Kafka.

Rows stand as the jobs would have left them: `verify` has nothing to say against them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from engagement_platform.engine.job import Told
from engagement_platform.engine.model import Transaction
from engagement_platform.erasing.job import Eraser, tables
from engagement_platform.jobs import open_stores
from engagement_platform.lake import light
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import (
    ALIAS,
    AMENDMENT,
    MAPPING,
    MUTATION_REQUEST,
    NOTIFICATION,
    OPERATION,
    ORIGINAL,
    PENDING,
    QUARANTINE,
    SAID_NAME,
    SUPERSEDED,
    data_table,
)
from engagement_platform.merge_on_read.entity import PROFILE
from engagement_platform.settings import LayoutSettings, Settings

BOB, AMY, ANN = "bob-canary", "amy", "ann"
SECRET = "canary-secret"
DAY, AT = date(2026, 11, 20), datetime(2026, 11, 20, 12, tzinfo=UTC)
LATER = datetime(2026, 11, 21, 12, tzinfo=UTC)
DATA = data_table("organization")

Row = dict[str, Any]


def said(text: str) -> Row:
    return {"type": "mail", "channel": None, "subject": text, "attributes": [("note", text)]}


def engagement(organization: str, id_: str, source: str, now: str | None, text: str = "hello") -> Row:
    return {
        "organization_id": organization, "engagement_date": DAY, "engagement_ts": AT, "engagement_id": id_,
        "person_id": now, "source_person_id": source, "version": 1, "batch_id": 0, "engagement": said(text),
    }  # fmt: skip


def notification(number: int, organization: str, id_: str, kind: str, now: str | None, before: str | None) -> Row:
    return {
        "notification_id": f"n{number}", "organization_id": organization, "ingestion_date": DAY, "ingestion_ts": AT,
        "batch_id": 0, "job_name": "ingest-engagements", "change_type": kind, "engagement_id": id_,
        "engagement_date": DAY, "person_id": now, "previous_person_id": before,
    }  # fmt: skip


def edge(request: str, operation: str, from_id: str | None, to_id: str | None, at: datetime) -> Row:
    return {"organization_id": "org", "request_id": request, "operation": operation, "from_id": from_id,
            "to_id": to_id, "execution_ts": at, "batch_id": 0}  # fmt: skip


def refused(offset: int, value: Mapping[str, object] | bytes) -> Row:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return {"topic": "engagements", "partition": 0, "offset": offset, "key": b"org", "value": raw,
            "reason_code": "missing_field", "reason": "type is missing or null, and required.", "batch_id": 0,
            "job_name": "ingest-engagements", "ingestion_ts": AT, "ingestion_date": DAY}  # fmt: skip


def request(id_: str, **fields: object) -> Row:
    return {"organization_id": "org", "request_id": id_, "execution_ts": LATER, "topic": "requests", "partition": 0,
            "offset": 0, "ingestion_ts": LATER, "ingestion_date": DAY, "batch_id": 0, **fields}  # fmt: skip


# A lead that became Bob; Bob's own; Bob's as it stands deleted; one of Amy, who was Bob before; and two of others.
ROWS: Mapping[Table, list[Row]] = {
    DATA: [
        engagement("org", "own", BOB, BOB, SECRET), engagement("other", "elsewhere", BOB, BOB, SECRET),
        engagement("org", "led", "lead", BOB, SECRET), engagement("org", "hidden", "lost", None, SECRET),
        engagement("org", "became", BOB, AMY, SECRET), engagement("org", "amy's", AMY, AMY),
        engagement("org", "ann's", ANN, ANN), engagement("org", "through", "early", AMY),
    ],
    NOTIFICATION: [
        notification(0, "org", "own", "INSERT", BOB, None), notification(1, "other", "elsewhere", "INSERT", BOB, None),
        notification(2, "org", "led", "INSERT", "lead", None), notification(3, "org", "led", "UPDATE", BOB, "lead"),
        notification(4, "org", "hidden", "INSERT", "lost", None), notification(5, "org", "hidden", "DELETE", None, BOB),
        notification(6, "org", "became", "INSERT", BOB, None), notification(7, "org", "became", "UPDATE", AMY, BOB),
        notification(8, "org", "amy's", "INSERT", AMY, None), notification(9, "org", "ann's", "INSERT", ANN, None),
        notification(10, "org", "through", "INSERT", AMY, None),
    ],
    MAPPING: [
        {"organization_id": "org", "id": BOB, "name": SECRET, "name_ts": AT, "batch_id": 0},
        {"organization_id": "org", "id": AMY, "name": SECRET, "name_ts": AT, "batch_id": 0},
        {"organization_id": "org", "id": ANN, "name": "Ann", "name_ts": AT, "batch_id": 0},
    ],
    SAID_NAME: [
        {"organization_id": "org", "id": BOB, "name": SECRET, "name_ts": AT, "batch_id": 0},
        {"organization_id": "org", "id": AMY, "name": "Amy", "name_ts": AT.replace(hour=1), "batch_id": 0},
        {"organization_id": "org", "id": ANN, "name": "Ann", "name_ts": AT, "batch_id": 0},
    ],
    ORIGINAL: [
        {"organization_id": "org", "engagement_id": id_, "version": 1, "batch_id": 0, "engagement": said(text)}
        for id_, text in (("own", SECRET), ("ann's", "hello"))
    ],
    SUPERSEDED: [
        {"organization_id": "org", "engagement_id": id_, "version": 1, "source_person_id": person, "engagement_ts": AT,
         "batch_id": 0, "ingestion_ts": AT, "engagement": said(text)}
        for id_, person, text in (("led", "lead", SECRET), ("ann's", BOB, SECRET), ("ann's", ANN, "hello"))
    ],
    AMENDMENT: [
        {"organization_id": "org", "request_id": "u1", "operation": "UPDATE", "engagement_id": "own",
         "subject": SECRET, "execution_ts": LATER, "batch_id": 0},
        {"organization_id": "org", "request_id": "u2", "operation": "RENAME", "from_id": BOB, "name": SECRET,
         "execution_ts": AT.replace(hour=2), "batch_id": 0},
        {"organization_id": "org", "request_id": "u3", "operation": "UPDATE", "engagement_id": "ann's",
         "subject": "hello", "execution_ts": LATER, "batch_id": 0},
    ],
    ALIAS: [
        edge("c1", "CONVERT", "lead", BOB, AT.replace(hour=13)),
        edge("c2", "CONVERT", "lost", BOB, AT.replace(hour=14)),
        {**edge("d1", "DELETE", BOB, None, AT.replace(hour=15)), "engagement_id": "hidden"},
        {**edge("c3", "CONVERT", BOB, AMY, AT.replace(hour=16)), "engagement_id": "became"},
        {**edge("c4", "CONVERT", BOB, AMY, AT.replace(hour=17)), "engagement_id": "through"},
        edge("c5", "CONVERT", "early", BOB, AT.replace(hour=13)),
        edge("c6", "CONVERT", BOB, AMY, AT.replace(hour=0)),
    ],
    OPERATION: [
        {"organization_id": "org", "from_id": "lead", "to_id": BOB, "engaged_before": LATER, "request_id": "c1",
         "batch_id": 0, "ingestion_date": DAY},
        {"organization_id": "org", "from_id": "x", "to_id": ANN, "engaged_before": LATER, "request_id": "c9",
         "batch_id": 0, "ingestion_date": DAY},
    ],
    MUTATION_REQUEST: [
        request("c1", operation="CONVERT", from_id="lead", to_id=BOB),
        request("u1", operation="UPDATE", engagement_id="own", subject=SECRET),
        request("u2", operation="RENAME", from_id=BOB, name=SECRET),
        request("u3", operation="UPDATE", engagement_id="ann's", subject="hello"),
    ],
    QUARANTINE: [
        refused(0, {"organization_id": "org", "person_id": BOB, "note": SECRET}),
        refused(1, f'{{"person_id": "{BOB}", "note": "{SECRET}" broken'.encode()),
        refused(2, {"organization_id": "org", "person_id": ANN}),
    ],
    PENDING: [],
    PROFILE.changeset: [
        {"profile_id": id_, "version": 2, "op": "UPDATE", "email": email, "topic": "p", "partition": 0, "offset": at,
         "ingestion_ts": AT, "batch_id": 1}
        for at, (id_, email) in enumerate(((BOB, SECRET), (ANN, "ann@example.org")))
    ],
    PROFILE.base: [
        {"profile_id": id_, "version": 1, "present": True, "present_version": 1, "present_ts": AT, "email": email,
         "email_version": 1}
        for id_, email in ((BOB, SECRET), (ANN, "ann@example.com"))
    ],
}  # fmt: skip


class Planted:
    """The lake, and what stands in it."""

    def __init__(self, home: Path) -> None:
        self.settings = Settings(home=home, layout=LayoutSettings(auto_compact=False))
        self.stores, self.root = open_stores(self.settings), self.settings.lake
        for table, rows in ROWS.items():
            light.create(table.uri(self.root), table)
            self.append(table, rows)

    def append(self, table: Table, rows: Iterable[Mapping[str, Any]], number: int = 0) -> None:
        """Rows as a commit of their own."""
        if made := list(rows):
            light.append(DeltaTable(table.uri(self.root)), table_of(made, table), Transaction("planted", number))

    def eraser(self, told: Told | None = None) -> Eraser:
        return Eraser(self.settings, self.stores, told or Told())

    def rows(self, table: Table) -> list[Row]:
        found: list[Row] = DeltaTable(table.uri(self.root)).to_pyarrow_table().to_pylist()
        return found

    def values(self, table: Table, *columns: str) -> list[tuple[Any, ...]]:
        """Some columns of the rows, sorted."""
        return sorted((tuple(row[name] for name in columns) for row in self.rows(table)), key=repr)

    def contents(self) -> dict[str, list[str]]:
        """Every row of every table as text; equal when no row differs."""
        return {table.name: sorted(map(repr, self.rows(table))) for table in tables(self.settings)}
