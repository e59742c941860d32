"""Light commits and lookups beside Spark's: the same rows, the same transactions, the same skipping of a replay."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from engagement_platform.engine.model import Transaction
from engagement_platform.lake import light
from engagement_platform.lake.contract import Column, Mode, Table
from engagement_platform.lake.engagement import MUTATION_REQUEST, QUARANTINE, data_table
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.turns import TableBusy, turn
from engagement_platform.settings import LayoutSettings, Settings
from engagement_platform_tests.matrix import quick

THINGS = Table(
    key=("test", "things"),
    description="For tests.",
    mode=Mode.MUTABLE,
    partitioned_by=("organization_id",),
    columns=(
        Column("organization_id", "string", "Tenant."),
        Column("day", "date", "Of the thing."),
        Column("id", "string", "Which thing."),
        Column("version", "long", "Highest seen."),
        Column("more", "struct<word:string,words:map<string,string>>", "What it says."),
    ),
)
DAYS = (date(2026, 11, 19), date(2026, 11, 20), date(2026, 11, 21))
# All make good folder names, and each has something that a path, a URI or SQL might take for its own.
ORGANIZATIONS = ("org", "Org 2", "a@b.c", "x+y,z;", "(!)_-", "(" * 66, "o" * 200)
# The last ones differ only beyond what is kept of a string's bounds, or have no greater string of that length.
IDS = (
    *(
        "it's",
        'say "hi"',
        "back\\slash",
        "100%",
        "a/b?c=d&e",
        "日本",
        "😀",
        "'; DROP",
        "%27",
        "a%20b",
        "\u2028",
        "\x85",
    ),
    *("x" * 40 + "a", "x" * 40 + "b", "\U0010ffff" * 40),
)
Row = tuple[str, date, str, int, tuple[str | None, dict[str, str | None] | None] | None]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("light")


def lake_at(spark: SparkSession, home: Path, **layout: Any) -> Lake:
    return Lake(spark, Settings(home=home, layout=LayoutSettings(**{"auto_compact": False, **layout})))


def named(name: str) -> Table:
    return replace(THINGS, key=("test", name))


def frame(lake: Lake, rows: Sequence[Row]) -> DataFrame:
    return lake.spark.createDataFrame(rows, THINGS.ddl)


def rows_of(lake: Lake, table: Table) -> list[Any]:
    return sorted((row.asDict(recursive=True) for row in lake.read(table).collect()), key=repr)


def random_rows(rng: random.Random, count: int, version: int = 1) -> list[Row]:
    """One row per key at most."""
    keys = [(o, d, i) for o in ORGANIZATIONS for d in DAYS for i in IDS]
    says: list[Any] = [("word", {"k": "v", "empty": None}), (None, {}), ("", None), None]
    return [(*key, version, rng.choice(says)) for key in rng.sample(keys, count)]


@pytest.mark.parametrize("max_literals", quick([light.MAX_LITERALS, 2, 0]))
def test_a_lookup_finds_exactly_the_rows_that_a_loop_finds(
    spark: SparkSession, home: Path, max_literals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a pinned version, over many small files, for any mix of values that are there and values that are not."""
    monkeypatch.setattr(light, "MAX_LITERALS", max_literals)
    table = named(f"looked_up_{max_literals}")
    lake = lake_at(spark, home)
    lake.ensure(table)
    rng = random.Random(7)
    rows: list[Row] = []
    for nth in range(12):
        more = [row for row in random_rows(rng, 30) if row[:3] not in {known[:3] for known in rows}]
        rows += more
        lake.append(frame(lake, more), table, Transaction("job/insert", nth), rows=len(more))
    pinned = lake.version(table)
    lake.append(frame(lake, [("org", DAYS[0], "later", 1, None)]), table, Transaction("job/insert", 12), rows=1)
    for _ in range(60):
        where: dict[str, Sequence[Any]] = {
            "organization_id": rng.sample((*ORGANIZATIONS, "nobody"), rng.randint(1, 4)),
            "id": rng.sample((*IDS, "later", "nothing"), rng.randint(1, 8)),
        }
        if rng.random() < 0.7:
            where["day"] = rng.sample(DAYS, rng.randint(1, 2))
        found = lake.find(table, pinned, ("organization_id", "day", "id", "version"), where)
        expected = [
            row[:4]
            for row in rows
            if row[0] in where["organization_id"] and row[2] in where["id"] and row[1] in where.get("day", DAYS)
        ]
        assert sorted(tuple(row.values()) for row in found.to_pylist()) == sorted(expected)


@pytest.mark.parametrize("liquid_by", quick([(), ("organization_id",)]), ids=["light", "Spark"])
def test_a_hundred_thousand_values_are_looked_up_without_harm(
    spark: SparkSession, home: Path, liquid_by: tuple[str, ...]
) -> None:
    partitioned_by = () if liquid_by else THINGS.partitioned_by
    table = replace(named(f"many_values_{len(liquid_by)}"), partitioned_by=partitioned_by, liquid_by=liquid_by)
    lake = lake_at(spark, home)
    lake.ensure(table)
    lake.append(frame(lake, [("org", DAYS[0], "a", 1, None)]), table, Transaction("job/insert", 0), rows=1)
    ids = ["a", *(f"e-{number}" for number in range(100_000))]
    assert lake.find(table, 1, ("id",), {"organization_id": ["org"], "id": ids}).to_pylist() == [{"id": "a"}]
    assert lake.find(table, 1, ("id",), {"organization_id": ["org"], "id": ids[1:]}).num_rows == 0


@pytest.mark.parametrize("word", quick(["x\u2028y", "\u2029", "\x85", "long " * 100_000]))
def test_whatever_a_text_holds_its_commit_is_found_and_stays_small(spark: SparkSession, home: Path, word: str) -> None:
    table = named(f"texts_{len(word)}_{ord(word[0])}")
    lake = lake_at(spark, home)
    lake.ensure(table)
    txn = Transaction("job/insert", 0)
    lake.append(frame(lake, [("org", DAYS[0], "a", 1, (word, None))]), table, txn, rows=1)
    commit = lake.commit_of(table, txn)
    assert commit is not None
    assert (commit.rows_added, commit.bytes_added > 0) == (1, True)
    assert Path(lake.uri(table), "_delta_log", f"{commit.version:020}.json").stat().st_size < 5_000
    assert rows_of(lake, table)[0]["more"]["word"] == word


def test_writers_of_a_table_take_turns_and_do_not_wait_for_ever(tmp_path: Path) -> None:
    entered: list[str] = []
    with turn(str(tmp_path), "engagement/data"):
        with pytest.raises(TableBusy, match="engagement/data"), turn(str(tmp_path), "engagement/data", patience_s=0.05):
            entered.append("second")
        with turn(str(tmp_path), "engagement/mapping", patience_s=0.05):
            entered.append("other table")

        def wait() -> None:
            with turn(str(tmp_path), "engagement/data"):
                entered.append("third")

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.05)
        assert entered == ["other table"]
    waiting.join(timeout=10)
    assert entered == ["other table", "third"]


@pytest.mark.parametrize(
    "declared", [data_table("organization"), data_table("organization_date"), MUTATION_REQUEST, QUARANTINE]
)
def test_a_table_made_without_spark_is_the_one_that_spark_makes(
    spark: SparkSession, tmp_path: Path, declared: Table
) -> None:
    """Columns, types, comments, partitions, properties and protocol, as both engines read them."""
    lakes = [Lake(spark, Settings(home=tmp_path / name)) for name in ("without", "with")]
    for lake, in_spark in zip(lakes, (False, True), strict=True):
        lake.ensure(replace(declared, in_spark=in_spark))
    ours, theirs = (DeltaTable(lake.uri(declared)) for lake in lakes)
    assert json.loads(ours.schema().to_json()) == json.loads(theirs.schema().to_json())
    assert ours.metadata().partition_columns == theirs.metadata().partition_columns
    assert ours.metadata().configuration == theirs.metadata().configuration
    assert ours.protocol() == theirs.protocol()
    shown = [spark.sql(f"DESCRIBE TABLE delta.`{lake.uri(declared)}`").collect() for lake in lakes]
    assert shown[0] == shown[1]
