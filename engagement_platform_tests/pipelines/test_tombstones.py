"""Decoded records about somebody who is erased become tombstones, and no others do; against a loop over each record."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from engagement_platform.lake.lake import Lake
from engagement_platform.pii.tombstones import ANYWHERE, PERSON, Id
from engagement_platform.pipelines.parts import kept
from engagement_platform.pipelines.tombstones import ENGAGEMENTS, erased_among, mentions, of_entity, withheld
from engagement_platform.settings import Settings

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


def named_erased(table: pa.Table, tombstones: Graves, **aliases: str) -> list[int]:
    """Offsets of records that name somebody who is erased, without Spark."""
    [batch] = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], SCHEMA)]
    found = pa.Table.from_batches(mentions(ENGAGEMENTS, aliases)(iter([batch])))
    gone = erased_among(found.select(["kind", "within", "id"]), tombstones).to_pylist()
    rows = found.to_pylist()
    return sorted({row["offset"] for row in rows if {name: row[name] for name in ("kind", "within", "id")} in gone})


Said = tuple[str, str, str, bool]


def expected(tombstones: Graves, said: Sequence[Said]) -> list[int]:
    """The same by a loop."""
    found = []
    for offset, (organization, person, engagement, is_refused) in enumerate(said):
        unreadable = is_refused and organization == NOWHERE
        within = ("o", "p", ANYWHERE) if unreadable else (organization, ANYWHERE)
        if any((o, person) in tombstones.persons or (o, engagement) in tombstones.engagements for o in within):
            found.append(offset)
    return found


@given(graves, records)
@settings(deadline=None)
def test_records_that_name_somebody_who_is_erased_are_found_and_no_others(tombstones: Graves, said: list[Said]) -> None:
    table = pa.Table.from_pylist([record(n, *each) for n, each in enumerate(said)], schema=SCHEMA)
    assert named_erased(table, tombstones) == expected(tombstones, said)


def test_a_refused_record_that_spells_fields_otherwise_is_looked_into_as_well() -> None:
    row = {**record(0, "o", "a", "e", True), "value": json.dumps({"OrgId": "o", "Who": "a"}).encode()}
    table = pa.Table.from_pylist([row], schema=SCHEMA)
    somebody, elsewhere = (Graves(frozenset({(of, "a")}), frozenset()) for of in ("o", "p"))
    spelled = {"OrgId": "organization_id", "Who": "person_id"}
    assert named_erased(table, somebody, **spelled) == [0]
    assert named_erased(table, elsewhere, **spelled) == []


@pytest.mark.parametrize(
    ("value", "is_about"),
    [
        (b'{"organization_id":"o","person_id":"\\ud800"}', False),
        (b'{"organization_id":"o","person_id":"\xed\xa0\x80"}', False),
        (b'{"organization_id":"\\ud800","person_id":"a"}', True),
        (b'{"organization_id":"o","person_id":"a","person_id":"x"}', True),
        (b'{"organization_id":"p","organization_id":"o","person_id":"a"}', True),
        (b'{"organization_id":"p","organization_id":"q","person_id":"a"}', True),
        (b'{"organization_id":"o","Who":"a","person_id":"x"}', True),
        (b'{"organization_id":"o","person_id":"a","n":' + b"9" * 5_000 + b"}", True),
        (b'{"organization_id":"p","person_id":"a"}', False),
        (b"[" * 100_000, False),
        (b"", False),
    ],
)
def test_whatever_a_refused_record_is_it_stops_no_batch_and_its_person_is_found_where_json_can_say_one(
    value: bytes, is_about: bool
) -> None:
    table = pa.Table.from_pylist([{**record(0, "o", "a", "e", True), "value": value}], schema=SCHEMA)
    somebody = Graves(frozenset({("o", "a")}), frozenset())
    assert named_erased(table, somebody, Who="person_id") == [0] * is_about


def test_who_is_erased_leaves_a_place_and_a_reason_and_others_are_as_they_were(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake, dice = Lake(spark, Settings(home=tmp_path)), Random(5)
    tombstones = Graves(frozenset({("o", "a"), (ANYWHERE, "b")}), frozenset({("p", "c")}))
    said = [
        (dice.choice(("o", "p", NOWHERE)), dice.choice("abc"), dice.choice("abc"), dice.random() < 0.5)
        for _ in range(60)
    ]
    before = pa.Table.from_pylist([record(n, *each) for n, each in enumerate(said)], schema=SCHEMA)
    decoded = kept(spark.createDataFrame(before))
    after = withheld(decoded, ENGAGEMENTS, tombstones, lake).orderBy("offset").toArrow().to_pylist()
    gone = expected(tombstones, said)
    assert 10 < len(gone) < 50, "the records are too tame"
    for was, now in zip(before.to_pylist(), after, strict=True):
        if was["offset"] not in gone:
            assert now == was
            continue
        left = {name: value for name, value in now.items() if value is not None}
        assert left.pop("reason").startswith("The message was about an erased person")
        assert left == {"topic": "t", "partition": 0, "offset": was["offset"], "value_bytes": 9,
                        "reason_code": "erased"}  # fmt: skip
    nobody = Graves(frozenset(), frozenset())
    assert withheld(decoded, ENGAGEMENTS, nobody, lake) is decoded, "records are not looked at"


def test_an_entity_is_withheld_by_its_key_also_where_an_attribute_called_organization_id_is_no_text(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake, somebody = Lake(spark, Settings(home=tmp_path)), Graves(frozenset(), frozenset({(ANYWHERE, "a")}))
    schema = SCHEMA.set(SCHEMA.get_field_index("organization_id"), pa.field("organization_id", pa.int64()))
    texts = [{**record(n, "o", "a", key, is_refused=n == 2), "organization_id": 7} for n, key in enumerate("aba")]
    decoded = kept(spark.createDataFrame(pa.Table.from_pylist(texts, schema)))
    after = withheld(decoded, of_entity("account", "engagement_id"), somebody, lake).orderBy("offset").toArrow()
    assert after.column("reason_code").to_pylist() == ["erased", None, "erased"]
