"""Decoded records about somebody who is erased become markers, and no others do; against a loop over each record."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from engagement_platform.landing.withheld import ENGAGEMENTS, withheld
from engagement_platform.pii.tombstones import ANYWHERE, PERSON, Id

SCHEMA = pa.schema(
    [
        ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("value_bytes", pa.int32()),
        ("key", pa.binary()), ("value", pa.binary()), ("reason_code", pa.string()), ("reason", pa.string()),
        ("organization_id", pa.string()), ("person_id", pa.string()), ("engagement_id", pa.string()),
        ("attributes", pa.map_(pa.string(), pa.string())),
    ]
)  # fmt: skip


@dataclass(frozen=True)
class Graves:
    """Tombstones of a test."""

    persons: frozenset[Id]
    engagements: frozenset[Id]

    def organizations(self, kind: str) -> set[str]:
        return {organization for organization, _ in (self.persons if kind == PERSON else self.engagements)}

    def erased(self, kind: str, ids: Collection[Id]) -> set[Id]:
        graves = self.persons if kind == PERSON else self.engagements
        return {(o, id_) for o, id_ in ids if (o, id_) in graves or (ANYWHERE, id_) in graves}

    def erased_players(self, players: Collection[tuple[str, str]], before: int | None) -> set[tuple[str, str]]:
        return set()


def record(offset: int, organization: str, person: str, engagement: str, is_refused: bool) -> dict[str, Any]:
    place = {"topic": "t", "partition": 0, "offset": offset, "value_bytes": 9}
    said = {"organization_id": organization, "person_id": person, "engagement_id": engagement}
    if is_refused and organization == NOWHERE:
        said.pop("organization_id")
    if is_refused:
        return {**place, "key": b"k", "value": json.dumps({**said, "type": 1}).encode(), "reason_code": "wrong_type",
                "reason": "type has the wrong JSON type."}  # fmt: skip
    return {**place, **said, "attributes": [("note", "kept")]}


NOWHERE = "nowhere"
"""Of refused records: the organization is missing."""
ids = st.sampled_from(["a", "b", "c"])
graves = st.builds(
    Graves,
    st.frozensets(st.tuples(st.sampled_from(["o", "p", ANYWHERE]), ids), max_size=2),
    st.frozensets(st.tuples(st.sampled_from(["o", "p"]), ids), max_size=2),
)
records = st.lists(st.tuples(st.sampled_from(["o", "p", NOWHERE]), ids, ids, st.booleans()), max_size=6)


@given(graves, records)
@settings(deadline=None)
def test_who_is_erased_leaves_a_place_and_a_reason_and_others_are_as_they_were(
    tombstones: Graves, said: list[tuple[str, str, str, bool]]
) -> None:
    before = [record(n, *each) for n, each in enumerate(said)]
    table = pa.Table.from_pylist(before, schema=SCHEMA)
    after = withheld(table, ENGAGEMENTS, tombstones).to_pylist()
    for was, now, (organization, person, engagement, is_refused) in zip(table.to_pylist(), after, said, strict=True):
        unreadable = is_refused and organization == NOWHERE
        is_erased = any(
            (within, person) in tombstones.persons or (within, engagement) in tombstones.engagements
            for within in (("o", "p", ANYWHERE) if unreadable else (organization, ANYWHERE))
        )
        if is_erased:
            kept = {name: value for name, value in now.items() if value is not None}
            assert kept.pop("reason").startswith("The message was about somebody")
            assert kept == {"topic": "t", "partition": 0, "offset": was["offset"], "value_bytes": 9,
                            "reason_code": "erased"}  # fmt: skip
        else:
            assert now == was


def test_a_refused_record_that_spells_fields_otherwise_is_looked_into_as_well() -> None:
    table = pa.Table.from_pylist([record(0, "o", "a", "e", True)], schema=SCHEMA)
    value = json.dumps({"OrgId": "o", "Who": "a"}).encode()
    at = table.column_names.index("value")
    table = table.set_column(at, "value", pa.array([value], table.schema.field("value").type))
    aliases = {"OrgId": "organization_id", "Who": "person_id"}
    somebody, elsewhere = (Graves(frozenset({(of, "a")}), frozenset()) for of in ("o", "p"))
    assert withheld(table, ENGAGEMENTS, somebody, aliases).column("value").to_pylist() == [None]
    assert withheld(table, ENGAGEMENTS, elsewhere, aliases).column("value").to_pylist() == [value]


def test_while_nobody_is_erased_records_are_not_looked_at() -> None:
    table = pa.Table.from_pylist([record(0, "o", "a", "e", False)], schema=SCHEMA)
    assert withheld(table, ENGAGEMENTS, Graves(frozenset(), frozenset())) is table
