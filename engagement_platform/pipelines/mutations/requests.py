"""Requests as they landed, and which of them are accepted. What accepted ones do is decided elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from typing import Any

FIELDS = (
    "organization_id",
    "request_id",
    "operation",
    "from_id",
    "to_id",
    "name",
    "engagement_id",
    "type",
    "channel",
    "subject",
    "attributes",
    "set_null",
    "engagement_date_from",
    "engagement_date_to",
    "execution_ts",
)
"""What a request says; columns of `engagement/mutation_request`."""


class Verdict(StrEnum):
    """What becomes of a request. Those in REASONS go to quarantine, by their value."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    REQUEST_CONFLICT = "request_conflict"


REASONS = {
    "request_conflict": "A request with this request_id was accepted before with different content; the first stays.",
}

_CONTENT = tuple(name for name in FIELDS if name not in {"organization_id", "request_id", "attributes", "set_null"})


@dataclass(frozen=True, slots=True)
class Request:
    """One request; fields that its operation does not use are None. Times UTC."""

    organization_id: str
    request_id: str
    operation: str
    from_id: str | None
    to_id: str | None
    name: str | None
    engagement_id: str | None
    type: str | None
    channel: str | None
    subject: str | None
    attributes: Mapping[str, str | None] | None
    set_null: tuple[str, ...]
    engagement_date_from: date | None
    engagement_date_to: date | None
    execution_ts: datetime

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Request:
        """From a row of a table; columns that the table does not have are None."""
        said: dict[str, Any] = {name: row.get(name) for name in FIELDS}
        said["attributes"] = None if said["attributes"] is None else dict(said["attributes"])
        said["set_null"] = tuple(sorted(said["set_null"] or ()))
        return cls(**said)

    @property
    def content(self) -> tuple[object, ...]:
        """What two copies of one request_id must share."""
        attributes = None if self.attributes is None else frozenset(self.attributes.items())
        return (attributes, self.set_null, *(getattr(self, name) for name in _CONTENT))


def judge(requests: Iterable[Request], known: Iterable[Request]) -> list[Verdict]:
    """What becomes of each request: the first of each request_id counts.

    requests: in the order of landing. known: accepted before, at least those of the same organizations and request ids.
    """
    claimed = {(request.organization_id, request.request_id): request.content for request in known}
    verdicts = []
    for request in requests:
        key, content = (request.organization_id, request.request_id), request.content
        if key in claimed:
            verdicts.append(Verdict.DUPLICATE if claimed[key] == content else Verdict.REQUEST_CONFLICT)
        else:
            claimed[key] = content
            verdicts.append(Verdict.ACCEPTED)
    return verdicts
