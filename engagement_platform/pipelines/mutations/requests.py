"""Requests as they landed, and which of them are accepted. What accepted ones do is decided elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from typing import Any

from engagement_platform.pipelines.mutations.patches import Patch

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

PLACE = ("topic", "partition", "offset", "ingestion_ts", "batch_sequence")
"""Where and when it landed."""

LANDING_ORDER = ("batch_sequence", "topic", "partition", "offset")
"""Which of two requests landed first; the order of a file's rows says nothing, and ingestion_ts is a clock's word: set
back, or of another host, it puts the later batch first. Several jobs land requests (ingestion, redrives, either after
a reset), so their batch ids do not order them; the number that the stores draw for a batch does."""


class Verdict(StrEnum):
    """What becomes of a request. Those in REASONS go to quarantine, by their value."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    REQUEST_CONFLICT = "request_conflict"


REASONS = {
    "request_conflict": "A request with this request_id was accepted before with different content; the first stays.",
}

_MAPS_IDENTITY = frozenset({"CONVERT", "DELETE"})
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
    def moves_identity(self) -> bool:
        """A CONVERT or a DELETE."""
        return self.operation in _MAPS_IDENTITY

    @property
    def content(self) -> tuple[object, ...]:
        """What two copies of one request_id must share."""
        attributes = None if self.attributes is None else frozenset(self.attributes.items())
        return (attributes, self.set_null, *(getattr(self, name) for name in _CONTENT))

    def patch(self) -> Patch:
        """An UPDATE as a patch of content."""
        assert self.engagement_id is not None, "decoding lets no UPDATE through without"
        return Patch(
            self.organization_id,
            self.request_id,
            self.engagement_id,
            self.execution_ts,
            self.type,
            self.channel,
            self.subject,
            self.attributes,
            frozenset(self.set_null),
        )

    def message(self) -> bytes:
        """The request as its message would say it, for quarantine: all that was declared and is not null."""
        said = {name: getattr(self, name) for name in FIELDS if name != "set_null"}
        shown = {name: value for name, value in said.items() if value is not None} | dict.fromkeys(self.set_null)
        return json.dumps(shown, ensure_ascii=False, default=lambda moment: moment.isoformat()).encode()


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
