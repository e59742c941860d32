"""Requests as they landed, and which of them are accepted: the rules of one organization. No Spark, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.pipelines.engagements.schema import COORDINATES_DDL, arrow_schema

FIELDS_DDL = (
    "organization_id string, request_id string, operation string, from_id string, to_id string, name string, "
    "engagement_id string, type string, channel string, subject string, attributes map<string,string>, "
    "set_null array<string>, engagement_date_from date, engagement_date_to date, execution_ts timestamp"
)
FIELDS = tuple(arrow_schema(FIELDS_DDL).names)
"""What a request says; columns of `engagement/mutation_request`."""
JUDGED_DDL = f"{COORDINATES_DDL}, {FIELDS_DDL}, verdict string"
"""Coordinates and FIELDS of a request, and what becomes of it."""
_COORDINATES = ("topic", "partition", "offset")


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


def judged(copies: pa.Table, known: pa.Table) -> pa.Table:
    """The requests of a batch with their `verdict`, in the order of their Kafka coordinates.

    copies: coordinates and FIELDS. known: FIELDS of requests accepted before, at least those with the same ids. All of
    one organization. Cost: some ms for 10,000 requests, and 15 µs for each whose id is known or stands twice.
    """
    copies = copies.select([*_COORDINATES, *FIELDS]).sort_by([(name, "ascending") for name in _COORDINATES])
    ids = copies.column("request_id").combine_chunks().cast(pa.string())
    counts = pc.value_counts(ids)
    repeated = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    known_ids = known.column("request_id").combine_chunks().cast(pa.string())
    doubtful = pc.or_(pc.is_in(ids, repeated), pc.is_in(ids, known_ids))
    verdicts = pa.repeat(pa.scalar(Verdict.ACCEPTED.value), copies.num_rows)
    if pc.any(doubtful).as_py():
        few = copies.filter(doubtful)
        same = known.filter(pc.is_in(known_ids, ids.filter(doubtful)))
        found = judge(map(Request.of, few.to_pylist()), map(Request.of, same.to_pylist()))
        verdicts = pc.replace_with_mask(verdicts, doubtful, pa.array([verdict.value for verdict in found], pa.string()))
    return copies.append_column("verdict", verdicts)
