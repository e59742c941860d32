"""A lake in memory that runs the rules of both pipelines batch by batch, as the jobs do it, without Spark.

Only append-only logs and a base; every decision is taken by the rules under test. Messages are dicts as on the topics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from typing import Any

import pyarrow as pa

from engagement_platform.pipelines.engagements.rules import Target, Verdict, resolve
from engagement_platform.pipelines.engagements.schema import COPY, STATE
from engagement_platform.pipelines.mutations.concerned import of_rows
from engagement_platform.pipelines.mutations.identity import Edge
from engagement_platform.pipelines.mutations.rules import (
    Evidence,
    base_rows,
    changes,
    current_names,
    current_rows,
    needed_evidence,
)
from engagement_platform.pipelines.state import one_chunk

Message = Mapping[str, Any]
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_IMAGE = (
    "engagement_date", "engagement_ts", "engagement_id", "person_id", "source_person_id", "version", "engagement",
    "original", "earlier_versions",
)  # fmt: skip


@dataclass
class MemoryLake:
    """The tables of one organization."""

    organization_id: str
    base: dict[str, dict[str, Any]] = field(default_factory=dict)
    changeset: list[dict[str, Any]] = field(default_factory=list)
    edges: list[dict[str, Any]] = field(default_factory=list)
    patches: list[dict[str, Any]] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    notifications: list[dict[str, Any]] = field(default_factory=list)
    quarantined: dict[int, str] = field(default_factory=dict)
    """Offset -> reason code."""
    sequence: int = 0
    watermark: int = 0
    """The base has everything up to this sequence."""
    announced: int = 0
    """Requests before this sequence are announced."""

    def ingest(self, messages: Sequence[tuple[int, Message]]) -> Counter[str]:
        """One batch of engagements with their offsets. Returns how many copies got each verdict."""
        if not messages:
            return Counter()
        self.sequence += 1
        copies = pa.Table.from_pylist([copy_of(offset, message) for offset, message in messages], schema=COPY)
        days = set(copies.column("engagement_date").to_pylist())
        ids = set(copies.column("engagement_id").to_pylist())
        persons, midnight = one_chunk(copies.column("person_id")), datetime.combine(min(days), time(), UTC)

        def planned(days: set[date] | None) -> pa.Table:
            state, all_days = of_rows(self.state(ids, days, midnight), persons), days is None
            return resolve(self.organization_id, copies, state, all_days=all_days, announced=self.sequence)

        plan = planned(days)
        if Verdict.UNFOUND.value in plan.column("verdict").to_pylist():
            plan = planned(None)
        rows = plan.to_pylist()
        for row in rows:
            image = {name: row[name] for name in _IMAGE}
            if row["target"] == Target.DATA.value:
                assert row["engagement_id"] not in self.base, "an id is inserted twice"
                self.base[row["engagement_id"]] = {**image, "sequence": None}
            elif row["target"] == Target.CHANGESET.value:
                self.changeset.append({**image, "sequence": self.sequence})
            if row["name"] is not None:
                ts = next(m["engagement_ts"] for offset, m in messages if offset == row["offset"])
                self.evidence.append(Evidence(row["named_id"], row["name"], time_of(ts), None))
            if row["change_type"] is not None:
                self.notifications.append(row)
            if row["verdict"] == Verdict.QUARANTINE.value:
                self.quarantined[row["offset"]] = row["reason_code"]
        return Counter(row["verdict"] for row in rows)

    def accept(self, requests: Iterable[Message]) -> None:
        """One batch of requests that count; from here on the view shows them."""
        self.sequence += 1
        for request in requests:
            operation = request["operation"]
            common = {
                "request_id": request["request_id"],
                "engagement_id": request.get("engagement_id"),
                "execution_ts": time_of(request["execution_ts"]),
                "sequence": self.sequence,
            }
            if operation == "UPDATE":
                attributes = request.get("attributes")
                self.patches.append(
                    {
                        **common,
                        **{name: request.get(name) for name in ("type", "channel", "subject")},
                        "attributes": None if attributes is None else sorted(attributes.items()),
                        "set_null": [n for n in ("channel", "subject") if n in request and request[n] is None],
                    }
                )
            elif operation == "RENAME":
                ts = time_of(request["execution_ts"])
                self.evidence.append(Evidence(request["from_id"], request["name"], ts, request["request_id"]))
            else:
                days = {n: request.get(n) for n in ("engagement_date_from", "engagement_date_to")}
                self.edges.append(
                    {
                        **common,
                        "operation": operation,
                        "from_id": request.get("from_id"),
                        "to_id": request["to_id"] if operation == "CONVERT" else None,
                        **{name: None if day is None else date.fromisoformat(day) for name, day in days.items()},
                    }
                )

    def announce(self) -> None:
        """Notifications for what has been accepted since the last time."""
        found = changes(self.organization_id, of_rows(self.state(None, None)), self.announced)
        self.notifications += found.to_pylist()
        self.announced = self.sequence + 1

    def move(self, horizon: datetime = EPOCH) -> None:
        """Everything pending into the base; what nothing can bring back becomes a tombstone, names are folded."""
        rows = base_rows(self.organization_id, self.state(None, None), horizon).to_pylist()
        images = ({name: row[name] for name in _IMAGE} for row in rows)
        self.base = {row["engagement_id"]: {**row, "sequence": None} for row in images}
        self.changeset = []
        self.watermark = self.sequence
        self.evidence = needed_evidence(self.evidence, self.accepted_edges, horizon)

    @property
    def accepted_edges(self) -> list[Edge]:
        """CONVERTs and DELETEs in the order in which they were accepted."""
        return [
            Edge(organization_id=self.organization_id, **{n: v for n, v in edge.items() if n != "sequence"})
            for edge in self.edges
        ]

    def current(self) -> dict[str, dict[str, Any]]:
        """What readers see, by engagement id."""
        rows = current_rows(self.organization_id, of_rows(self.state(None, None))).to_pylist()
        return {row["engagement_id"]: row for row in rows if row["person_id"] is not None}

    def names(self) -> dict[str, tuple[str, datetime]]:
        """What readers see, by id."""
        return current_names(self.organization_id, self.evidence, self.accepted_edges)

    def state(self, ids: set[str] | None, days: set[date] | None, edges_after: datetime = EPOCH) -> pa.Table:
        """The organization's state; of these ids and days, and of edges after a time, as the jobs load it."""
        held = [*self.base.values(), *self.changeset]
        rows = [
            row
            for row in held
            if (ids is None or row["engagement_id"] in ids) and (days is None or row["engagement_date"] in days)
        ]
        parts = [{"row": row} for row in rows]
        parts += [{"edge": edge} for edge in self.edges if edge["execution_ts"] > edges_after]
        parts += [{"patch": patch} for patch in self.patches if ids is None or patch["engagement_id"] in ids]
        return pa.Table.from_pylist([{"organization_id": self.organization_id, **part} for part in parts], schema=STATE)


def copy_of(offset: int, message: Message) -> dict[str, Any]:
    """An engagement as decoding gives it."""
    ts, attributes = time_of(message["engagement_ts"]), message.get("attributes")
    return {
        "topic": "engagements",
        "partition": 0,
        "offset": offset,
        "organization_id": message["organization_id"],
        "engagement_date": ts.date(),
        "engagement_ts": ts,
        "engagement_id": message["engagement_id"],
        "person_id": message["person_id"],
        "person_name": message.get("person_name"),
        "version": 1 if message.get("version") is None else message["version"],
        **{name: message.get(name) for name in ("type", "channel", "subject")},
        "attributes": None if attributes is None else sorted(attributes.items()),
    }


def time_of(text: str) -> datetime:
    """An ISO 8601 time with an offset, in UTC."""
    return datetime.fromisoformat(text).astimezone(UTC)
