"""What is known of one organization, read from the Arrow table of its state: rows, edges and patches.

Pure functions over the schema STATE. What follows from them is decided in the pipelines' `rules`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from hashlib import blake2b
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.lake.arrow import moments
from engagement_platform.pipelines.mutations.identity import Edge, Identities
from engagement_platform.pipelines.mutations.patches import Content, Patch, patched

_DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Row:
    """An engagement as its events have it, whatever requests make of it."""

    engagement_id: str
    engagement_date: date
    engagement_ts: datetime
    source_person_id: str | None
    """None: a tombstone. The row is deleted for good, and only what tells later copies apart is kept of it."""
    version: int
    original: Content | None
    """As its event has it; None for a tombstone."""
    earlier: Mapping[int, bytes]
    """Version -> digest of its content, for lower versions that landed; a tombstone has its own version's, too."""

    @property
    def digests(self) -> dict[int, bytes]:
        """Version -> digest, for every version that landed."""
        if self.source_person_id is None or self.original is None:
            return dict(self.earlier)
        own = digest(self.source_person_id, self.engagement_ts, self.original)
        return {**self.earlier, self.version: own}

    def tombstone(self) -> Row:
        """The same id without person and content."""
        return replace(self, source_person_id=None, original=None, earlier=self.digests)

    def columns(self, organization_id: str, patches: Iterable[Patch]) -> dict[str, Any]:
        """The columns of ROW but person_id, with the content after these patches."""
        columns: dict[str, Any] = {
            "organization_id": organization_id,
            "engagement_date": self.engagement_date,
            "engagement_ts": self.engagement_ts,
            "engagement_id": self.engagement_id,
            "source_person_id": self.source_person_id,
            "version": self.version,
            "earlier_versions": sorted(self.earlier.items()) or None,
        }
        if self.original is not None:
            content = patched(self.original, self.engagement_ts, patches)
            columns["engagement"] = struct_of(content)
            columns["original"] = None if content == self.original else struct_of(self.original)
        return columns


@dataclass(frozen=True)
class Requests:
    """The accepted requests of one organization."""

    identities: Identities
    patches: Mapping[str, Sequence[Patch]]
    """Engagement id -> UPDATEs of it."""

    @classmethod
    def of(cls, organization_id: str, state: pa.Table, *, before: int | None = None) -> Requests:
        """From the state's edges and patches. before: only those with a smaller sequence."""
        patches: dict[str, list[Patch]] = {}
        columns = _in_order(state, "patch", before)
        for values in zip(*columns.values(), strict=True):
            row = dict(zip(columns, values, strict=True))
            engagement_id = row.pop("engagement_id")
            attributes = None if row["attributes"] is None else dict(row["attributes"])
            fields = {**row, "attributes": attributes, "set_null": frozenset(row["set_null"] or ())}
            patches.setdefault(engagement_id, []).append(Patch(**fields))
        return cls(Identities(cls.edges_of(organization_id, state, before=before)), patches)

    @staticmethod
    def edges_of(organization_id: str, state: pa.Table, *, before: int | None = None) -> list[Edge]:
        """The state's CONVERTs and DELETEs in the order in which they were accepted."""
        columns = _in_order(state, "edge", before)
        return [Edge(organization_id, *fields) for fields in zip(*columns.values(), strict=True)]

    @classmethod
    def edges_since(cls, organization_id: str, state: pa.Table, since: int) -> tuple[list[Edge], int]:
        """All CONVERTs and DELETEs in their order, and how many have a sequence below `since`."""
        earlier = pc.sum(pc.less(pc.struct_field(one_chunk(state.column("edge")).drop_null(), "sequence"), since))
        return cls.edges_of(organization_id, state), earlier.as_py() or 0


def _in_order(state: pa.Table, column: str, before: int | None) -> dict[str, list[Any]]:
    """Name of a field -> its values, in the order in which the requests were accepted; without their sequence."""
    present = one_chunk(state.column(column)).drop_null()
    if before is not None:
        present = present.filter(pc.less(pc.struct_field(present, "sequence"), before))
    present = present.take(pc.sort_indices(pc.struct_field(present, "sequence")))
    columns = _columns(present)
    del columns["sequence"]
    return columns


def newest_rows(state: pa.Table) -> dict[str, Row]:
    """Engagement id -> its row: the highest version, of one version the image that was written last."""
    newest: dict[str, dict[str, Any]] = {}
    for row in struct_rows(state, "row"):
        held = newest.get(row["engagement_id"])
        if held is None or _age(held) < _age(row):
            newest[row["engagement_id"]] = row
    return {
        engagement_id: Row(
            engagement_id,
            row["engagement_date"],
            row["engagement_ts"],
            row["source_person_id"],
            row["version"],
            None if row["engagement"] is None else content_of(row["original"] or row["engagement"]),
            dict(row["earlier_versions"] or ()),
        )
        for engagement_id, row in newest.items()
    }


def _age(row: Mapping[str, Any]) -> tuple[int, int]:
    return row["version"], -1 if row["sequence"] is None else row["sequence"]


def digest(person_id: str, engagement_ts: datetime, content: Content) -> bytes:
    """What two copies of a version must share: person, time and content, without the name, as 16 bytes."""
    hashed = [person_id, engagement_ts.isoformat(), *struct_of(content).values()]
    return blake2b(json.dumps(hashed).encode(), digest_size=_DIGEST_BYTES).digest()


def content_of(row: Mapping[str, Any]) -> Content:
    """The content in a struct `engagement`, or in the columns of a decoded copy."""
    attributes = row["attributes"]
    return Content(row["type"], row["channel"], row["subject"], None if attributes is None else dict(attributes))


def struct_of(content: Content) -> dict[str, Any]:
    """Content as Arrow takes a struct `engagement`."""
    attributes = None if content.attributes is None else sorted(content.attributes.items())
    return {**content._asdict(), "attributes": attributes}


def struct_rows(state: pa.Table, column: str) -> Iterator[dict[str, Any]]:
    """The values of a struct column that are not null; times in UTC."""
    columns = _columns(one_chunk(state.column(column)).drop_null())
    return (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))


def _columns(structs: pa.StructArray) -> dict[str, list[Any]]:
    """The fields of structs that are not null, by name; times in UTC."""
    return {
        field.name: moments(pa.chunked_array([values]))
        if pa.types.is_timestamp(values.type) and not values.null_count
        else values.to_pylist()
        for field, values in zip(structs.type, structs.flatten(), strict=True)
    }


def one_chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column as one array."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
