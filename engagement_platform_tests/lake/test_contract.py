"""What counts as a difference between a contract and a table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engagement_platform.lake.contract import OPENED, Column, Found, Mode, Table, differences
from engagement_platform.lake.engagement import MAPPING, MUTATION_REQUEST, NOTIFICATION, QUARANTINE, data_table
from engagement_platform.settings import ConsumerSettings

CONTRACT = Table(
    key=("test", "table"),
    description="For tests.",
    mode=Mode.MUTABLE,
    partitioned_by=("a",),
    columns=(
        Column("a", "string", "First."),
        Column("b", "long", "Second."),
        Column("c", "struct<x:int,y:map<string,string>>", "Third."),
    ),
)
AGREES = Found(
    columns={"a": "string", "b": "long", "c": "struct<x:int,y:map<string,string>>"},
    partitioned_by=("a",),
    properties={},
)


def found(**changed: Any) -> Found:
    return replace(AGREES, **changed)


def with_columns(**columns: str) -> Found:
    return found(columns=columns)


def test_a_table_that_agrees_has_no_difference() -> None:
    assert differences(CONTRACT, AGREES) == ([], [])


def test_other_spellings_of_a_type_are_the_same_type() -> None:
    spelled = with_columns(a="STRING", b="bigint", c="struct<x: integer, y: map<string, string>>")
    assert differences(CONTRACT, spelled) == ([], [])


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (with_columns(a="string", b="int", c=AGREES.columns["c"]), "column b is int, declared long"),
        (
            with_columns(a="string", b="long", c="struct<x:int>"),
            "column c is struct<x:int>, declared struct<x:int,y:map<string,string>>",
        ),
        (found(columns={**AGREES.columns, "d": "date"}), "column d is not declared"),
        (
            with_columns(b="long", a="string", c=AGREES.columns["c"]),
            "the order of columns is b, a, c",
        ),
        (found(partitioned_by=()), "partitioned by (), declared (a)"),
        (found(partitioned_by=("a", "b")), "partitioned by (a, b), declared (a)"),
        (found(properties={"delta.appendOnly": "true"}), "delta.appendOnly is true, declared mutable"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_difference_that_cannot_be_healed_is_named(table: Found, problem: str) -> None:
    assert differences(CONTRACT, table) == ([], [problem])


def test_a_missing_column_can_be_added() -> None:
    table = with_columns(a="string", c=AGREES.columns["c"])
    assert differences(CONTRACT, table) == ([CONTRACT.columns[1]], [])


def test_an_append_only_contract_wants_the_property() -> None:
    contract = replace(CONTRACT, mode=Mode.APPEND_ONLY)
    assert differences(contract, AGREES) == ([], ["delta.appendOnly is false, declared append-only"])
    assert differences(contract, found(properties=contract.properties)) == ([], [])


def test_a_table_that_an_erasure_has_opened_is_as_declared_and_one_that_it_has_closed_is_not_open() -> None:
    contract = replace(CONTRACT, mode=Mode.APPEND_ONLY)
    properties = {**contract.properties, "delta.appendOnly": "false"}
    assert differences(contract, found(properties={**properties, OPENED: "true"})) == ([], [])
    assert differences(contract, found(properties={**properties, OPENED: "false"})) == (
        [],
        ["delta.appendOnly is false, declared append-only"],
    )


def test_every_difference_is_told_at_once() -> None:
    table = Found(columns={"a": "int", "d": "date"}, partitioned_by=(), properties={"delta.appendOnly": "true"})
    missing, problems = differences(CONTRACT, table)
    assert [column.name for column in missing] == ["b", "c"]
    assert len(problems) == 4


def test_what_keeps_for_consumers_says_how_far_the_log_of_a_table_goes_back() -> None:
    text = ConsumerSettings.model_fields["keep_for"].description or ""
    kept = MAPPING.properties["delta.logRetentionDuration"].removeprefix("interval ")
    assert f"entries of {kept}" in text.replace("\n", " ")


def test_only_tables_that_never_change_a_row_are_append_only() -> None:
    append_only = {table.name for table in (NOTIFICATION, QUARANTINE, MUTATION_REQUEST, MAPPING, data_table("liquid"))
                   if table.mode is Mode.APPEND_ONLY}  # fmt: skip
    assert append_only == {"engagement/notification", "engagement/quarantine", "engagement/mutation_request"}


def test_the_layouts_of_the_data_table_differ_in_nothing_but_partitioning() -> None:
    organization, by_date, liquid = (data_table(s) for s in ("organization", "organization_date", "liquid"))
    assert organization.columns == by_date.columns == liquid.columns
    assert organization.partitioned_by == ("organization_id",)
    assert by_date.partitioned_by == ("organization_id", "engagement_date")
    assert (liquid.partitioned_by, liquid.liquid_by) == ((), ("organization_id", "engagement_date"))
    names = "organization_id engagement_date engagement_ts engagement_id person_id source_person_id version batch_id"
    assert organization.column_names == (*names.split(), "engagement", "original", "earlier_versions")
