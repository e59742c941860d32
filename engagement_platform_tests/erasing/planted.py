"""A lake in which every table has something of somebody who is to be erased, and of others; written without Spark.

Rows stand as the jobs would have left them, some moved and some pending: `verify` has nothing to say against them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from engagement_platform.engine.job import Callbacks
from engagement_platform.engine.model import Manifest, Transaction
from engagement_platform.erasing.job import Eraser, tables
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import (
    ALIAS,
    CHANGESET,
    MAPPING,
    MUTATION_REQUEST,
    NOTIFICATION,
    QUARANTINE,
    data_table,
)
from engagement_platform.pipelines.jobs import open_stores
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.pipelines.profiles.entity import PROFILE
from engagement_platform.pipelines.snapshot import WATERMARK
from engagement_platform.settings import LayoutSettings, Settings
from engagement_platform_tests import plant

BOB, AMY, ANN = "bob-canary", "amy", "ann"
SECRET = "canary-secret"
DAY, AT = date(2026, 11, 20), datetime(2026, 11, 20, 12, tzinfo=UTC)
EARLIER, LATER = datetime(2026, 11, 19, 12, tzinfo=UTC), datetime(2026, 11, 21, 12, tzinfo=UTC)
DATA = data_table("liquid")
MOVED, PENDING = 5, 9
"""Sequences: of what the base has, and of what waits to be moved. All requests are announced."""

Row = dict[str, Any]


def said(text: str) -> Row:
    return {"type": "mail", "channel": None, "subject": text, "attributes": [("note", text)]}


def engagement(organization: str, id_: str, source: str, now: str | None, text: str = "hello", **more: object) -> Row:
    return {
        "organization_id": organization, "engagement_date": DAY, "engagement_ts": AT, "engagement_id": id_,
        "person_id": now, "source_person_id": source, "version": 1, "batch_id": 0, "engagement": said(text), **more,
    }  # fmt: skip


def image(id_: str, source: str, now: str | None, text: str = "hello") -> Row:
    digests = [(1, b"0123456789abcdef")]
    return engagement("org", id_, source, now, text, version=2, batch_sequence=PENDING, earlier_versions=digests)


def name(id_: str, name: str, at: datetime, evidence: list[Row] | None = None) -> Row:
    return {"organization_id": "org", "id": id_, "name": name, "name_ts": at, "batch_id": 0, "evidence": evidence,
            "batch_sequence": MOVED if evidence is not None else PENDING}  # fmt: skip


def evidence(name: str, at: datetime, request: str | None = None) -> Row:
    return {"name": name, "name_ts": at, "request_id": request}


def notification(number: int, organization: str, id_: str, kind: str, now: str | None, before: str | None) -> Row:
    return {
        "notification_id": f"n{number}", "organization_id": organization, "ingestion_date": DAY, "ingestion_ts": AT,
        "batch_id": 0, "job_name": "ingest-engagements", "change_type": kind, "engagement_id": id_,
        "engagement_date": DAY, "person_id": now, "previous_person_id": before, "batch_sequence": MOVED,
    }  # fmt: skip


def edge(request: str, operation: str, from_id: str | None, to_id: str | None, at: datetime) -> Row:
    return {"organization_id": "org", "request_id": request, "operation": operation, "from_id": from_id,
            "to_id": to_id, "execution_ts": at, "batch_id": 0, "batch_sequence": MOVED}  # fmt: skip


def refused(offset: int, value: Mapping[str, object] | bytes) -> Row:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return {"topic": "engagements", "partition": 0, "offset": offset, "key": b"org", "value": raw,
            "reason_code": "missing_field", "reason": "type is missing or null, and required.", "batch_id": 0,
            "job_name": "ingest-engagements", "ingestion_ts": AT, "ingestion_date": DAY,
            "batch_sequence": MOVED}  # fmt: skip


def request(id_: str, **fields: object) -> Row:
    return {"organization_id": "org", "request_id": id_, "execution_ts": LATER, "topic": "requests", "partition": 0,
            "offset": 0, "ingestion_ts": LATER, "ingestion_date": DAY, "batch_id": 0,
            "batch_sequence": MOVED, **fields}  # fmt: skip


# A lead that became Bob; Bob's own; Bob's as it stands deleted; one of Amy, who was Bob before; others of Amy and Ann.
# Pending: Bob's with a newer version; Ann's, of which Bob said the version before; of which the Data Table still says
# that it is Bob's though it is Amy's; and a lead of whom it does not say yet that it is Bob.
ROWS: Mapping[Table, list[Row]] = {
    DATA: [
        engagement("org", "own", BOB, BOB, f"patched {SECRET}", original=said(SECRET)),
        engagement("other", "elsewhere", BOB, BOB, SECRET),
        engagement("org", "led", "lead", BOB, SECRET), engagement("org", "hidden", "lost", None, SECRET),
        engagement("org", "became", BOB, AMY, SECRET), engagement("org", "amy's", AMY, AMY),
        engagement("org", "ann's", ANN, ANN, "patched", original=said("hello")),
        engagement("org", "through", "early", AMY), engagement("org", "again", BOB, BOB, SECRET),
        engagement("org", "corrected", BOB, BOB, SECRET), engagement("org", "passed", "early", BOB),
        engagement("org", "waiting", "new lead", "new lead", SECRET),
    ],
    CHANGESET: [
        image("again", BOB, BOB, f"again {SECRET}"), image("corrected", ANN, ANN), image("amy's", AMY, AMY, "again"),
    ],
    NOTIFICATION: [
        notification(0, "org", "own", "INSERT", BOB, None), notification(1, "other", "elsewhere", "INSERT", BOB, None),
        notification(2, "org", "led", "INSERT", "lead", None), notification(3, "org", "led", "UPDATE", BOB, "lead"),
        notification(4, "org", "hidden", "INSERT", "lost", None), notification(5, "org", "hidden", "DELETE", None, BOB),
        notification(6, "org", "became", "INSERT", BOB, None), notification(7, "org", "became", "UPDATE", AMY, BOB),
        notification(8, "org", "amy's", "INSERT", AMY, None), notification(9, "org", "ann's", "INSERT", ANN, None),
        notification(10, "org", "through", "INSERT", AMY, None), notification(11, "org", "again", "INSERT", BOB, None),
        notification(12, "org", "corrected", "INSERT", BOB, None),
        notification(13, "org", "passed", "INSERT", BOB, None), notification(14, "org", "passed", "UPDATE", AMY, BOB),
        notification(15, "org", "corrected", "UPDATE", ANN, BOB),
        notification(16, "org", "waiting", "INSERT", BOB, None),
    ],
    MAPPING: [
        name(BOB, f"renamed {SECRET}", AT.replace(hour=2),
             [evidence(SECRET, EARLIER), evidence(f"renamed {SECRET}", AT.replace(hour=2), "u2")]),
        name(BOB, f"newer {SECRET}", AT.replace(hour=13)),
        name(AMY, SECRET, EARLIER, [evidence("Amy", EARLIER.replace(hour=1))]),
        name(ANN, "Ann", AT, [evidence("Ann", AT)]), name("lead", "A lead", AT),
    ],
    ALIAS: [
        edge("c1", "CONVERT", "lead", BOB, AT.replace(hour=13)),
        edge("c2", "CONVERT", "lost", BOB, AT.replace(hour=14)),
        {**edge("d1", "DELETE", BOB, None, AT.replace(hour=15)), "engagement_id": "hidden"},
        {**edge("c3", "CONVERT", BOB, AMY, AT.replace(hour=16)), "engagement_id": "became"},
        {**edge("c4", "CONVERT", BOB, AMY, AT.replace(hour=17)), "engagement_id": "through"},
        edge("c5", "CONVERT", "early", BOB, AT.replace(hour=13)),
        edge("c6", "CONVERT", BOB, AMY, AT.replace(hour=0)),
        {**edge("c7", "CONVERT", BOB, AMY, AT.replace(hour=18)), "engagement_id": "passed", "batch_sequence": PENDING},
        {**edge("c8", "CONVERT", "new lead", BOB, AT.replace(hour=18)), "batch_sequence": PENDING},
        edge("c9", "CONVERT", "x", ANN, LATER),
    ],
    MUTATION_REQUEST: [
        request("c1", operation="CONVERT", from_id="lead", to_id=BOB),
        request("c8", operation="CONVERT", from_id="new lead", to_id=BOB, batch_sequence=PENDING),
        request("c9", operation="CONVERT", from_id="x", to_id=ANN),
        request("u1", operation="UPDATE", engagement_id="own", subject=f"patched {SECRET}"),
        request("u2", operation="RENAME", from_id=BOB, name=f"renamed {SECRET}", execution_ts=AT.replace(hour=2)),
        request("u3", operation="UPDATE", engagement_id="ann's", subject="patched"),
        request("u4", operation="RENAME", from_id=BOB, name=f"last {SECRET}", batch_sequence=PENDING),
        request("u5", operation="UPDATE", engagement_id="corrected", subject="patched", batch_sequence=PENDING),
    ],
    QUARANTINE: [
        refused(0, {"organization_id": "org", "person_id": BOB, "note": SECRET}),
        refused(1, f'{{"person_id": "{BOB}", "note": "{SECRET}" broken'.encode()),
        refused(2, {"organization_id": "org", "person_id": ANN}),
    ],
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
            # Where rows lie is all the same to an erasure, and only Spark declares a table that is clustered.
            plant.create(table.uri(self.root), table)
            of = Transaction(WATERMARK, MOVED) if table in (DATA, MAPPING) else Transaction("planted", 0)
            plant.append(DeltaTable(table.uri(self.root)), table_of(rows, table), of)
        of_job = self.stores.checkpoints.app_id(APPLY_MUTATIONS)
        announced = Manifest(APPLY_MUTATIONS, of_job, 0, {"sequence": -1}, {"sequence": PENDING}, LATER)
        self.stores.checkpoints.begin(announced)
        self.stores.checkpoints.succeed(announced, {})

    def append(self, table: Table, rows: Iterable[Mapping[str, Any]], number: int = 0) -> None:
        """Rows as a commit of their own."""
        if made := list(rows):
            plant.append(DeltaTable(table.uri(self.root)), table_of(made, table), Transaction("appended", number))

    def eraser(self, callbacks: Callbacks | None = None) -> Eraser:
        return Eraser(self.settings, self.stores, callbacks or Callbacks())

    def rows(self, table: Table) -> list[Row]:
        found: list[Row] = DeltaTable(table.uri(self.root)).to_pyarrow_table().to_pylist()
        return found

    def values(self, table: Table, *columns: str) -> list[tuple[Any, ...]]:
        """Some columns of the rows, sorted."""
        return sorted((tuple(row[name] for name in columns) for row in self.rows(table)), key=repr)

    def contents(self) -> dict[str, list[str]]:
        """Every row of every table as text; equal when no row differs."""
        return {table.name: sorted(map(repr, self.rows(table))) for table in tables(self.settings)}
