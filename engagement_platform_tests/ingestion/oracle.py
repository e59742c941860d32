"""What engagement ingestion should leave in the tables, as a loop over messages that anyone believes.

Plain Python, no Spark, nothing imported from the code under test.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

Key = tuple[str, str]
CONTENT = ("type", "channel", "subject", "attributes")


@dataclass
class Oracle:
    """The tables of one lake. Messages of one batch come as (offset, message or None when decoding must refuse it)."""

    data: dict[Key, dict[str, Any]] = field(default_factory=dict)
    names: dict[Key, tuple[datetime, str, int]] = field(default_factory=dict)
    notifications: list[tuple[int, str, Key, str | None]] = field(default_factory=list)
    """(batch, change type, key, previous person)."""
    quarantined: dict[int, str] = field(default_factory=dict)
    """offset -> reason code, or "" where decoding decides."""
    first_of_version: dict[tuple[Key, int], dict[str, Any]] = field(default_factory=dict)
    """The first copy of each version that was not refuted, whether or not it ever stood."""
    images: list[tuple[int, Key, int]] = field(default_factory=list)
    """(batch, key, version) of each row that the changeset takes: one for an id that a batch says something new of."""
    said: list[tuple[int, Key, str, datetime]] = field(default_factory=list)
    """(batch, organization and person, name, when) for each accepted copy with a name, as the mapping takes them."""

    def batch(self, batch_id: int, messages: Sequence[tuple[int, dict[str, Any] | None]]) -> None:
        """Take one batch, as a whole: of several new versions of an id only the highest is seen outside."""
        before = {key: dict(row) for key, row in self.data.items()}
        day_of: dict[Key, Any] = {key: row["ts"].date() for key, row in before.items()}
        landed: dict[Key, dict[str, Any]] = {}
        renewed = set[Key]()
        for offset, message in messages:
            if message is None:
                self.quarantined[offset] = ""
                continue
            row = as_row(message)
            key = (row["organization"], row["id"])
            if day_of.setdefault(key, row["ts"].date()) != row["ts"].date():
                self.quarantined[offset] = "moved_in_time"
                continue
            known = before.get(key)
            if known is not None and (key, row["version"]) not in self.first_of_version:
                renewed.add(key)
            first = self.first_of_version.setdefault((key, row["version"]), row)
            if content(first) != content(row):
                self.quarantined[offset] = "version_conflict"
                continue
            self._name(row, batch_id)
            stands = landed.get(key) or known
            if stands is None or stands["version"] < row["version"]:
                landed[key] = row
        for key, row in landed.items():
            known = before.get(key)
            change = "UPDATE" if known else "INSERT"
            self.notifications.append((batch_id, change, key, known["person"] if known else None))
            self.data[key] = {**row, "batch_id": batch_id}
        self.images += [(batch_id, key, self.data[key]["version"]) for key in renewed]

    def _name(self, row: dict[str, Any], batch_id: int) -> None:
        if row["name"] is None:
            return
        key = (row["organization"], row["person"])
        self.said.append((batch_id, key, row["name"], row["ts"]))
        said = (row["ts"], row["name"])
        if key not in self.names or said > self.names[key][:2]:
            self.names[key] = (*said, batch_id)


def as_row(message: dict[str, Any]) -> dict[str, Any]:
    """A message as the columns that matter."""
    return {
        "organization": message["organization_id"],
        "id": message["engagement_id"],
        "person": message["person_id"],
        "name": message.get("person_name"),
        "ts": datetime.fromisoformat(message["engagement_ts"]).astimezone(UTC),
        "version": message.get("version", 1),
        **{name: message.get(name) for name in CONTENT},
    }


def content(row: dict[str, Any]) -> tuple[Any, ...]:
    """What two copies of one version must share."""
    return row["person"], row["ts"], *(row[name] for name in CONTENT)


def engagement(organization: str, engagement_id: str, **more: Any) -> dict[str, Any]:
    """A message with everything that is required."""
    return {
        "engagement_id": engagement_id,
        "organization_id": organization,
        "person_id": "lead-1",
        "engagement_ts": "2026-11-20T10:00:00+00:00",
        "type": "email",
        **more,
    }


def as_bytes(message: dict[str, Any] | None) -> bytes:
    """As it is produced; None is something that decoding refuses."""
    return b'{"engagement_id": ' if message is None else json.dumps(message, ensure_ascii=False).encode()
