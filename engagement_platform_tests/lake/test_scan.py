"""Looking rows up without Spark: exactly those that a loop over all rows finds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from engagement_platform.engine.model import Transaction
from engagement_platform.lake import scan
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.contract import Column, Mode, Table
from engagement_platform_tests import plant

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
COLUMNS = ("organization_id", "day", "id", "version")
Row = dict[str, Any]


def random_rows(rng: random.Random, count: int) -> list[Row]:
    """One row per key at most."""
    keys = [(o, d, i) for o in ORGANIZATIONS for d in DAYS for i in IDS]
    says: list[Any] = [{"word": "word", "words": {"k": "v", "empty": None}}, {"word": "", "words": None}, None]
    return [dict(zip(COLUMNS, (*key, 1), strict=True), more=rng.choice(says)) for key in rng.sample(keys, count)]


def key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in COLUMNS)


@pytest.mark.parametrize("max_literals", [scan.MAX_LITERALS, 2, 0])
def test_a_lookup_finds_exactly_the_rows_that_a_loop_finds(
    tmp_path: Path, max_literals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a pinned version, over many small files, for any mix of values that are there and values that are not."""
    monkeypatch.setattr(scan, "MAX_LITERALS", max_literals)
    uri, rng, rows = str(tmp_path), random.Random(7), list[Row]()
    plant.create(uri, THINGS)
    for nth in range(12):
        known = {key(row) for row in rows}
        more = [row for row in random_rows(rng, 30) if key(row) not in known]
        rows += more
        plant.append(DeltaTable(uri), table_of(more, THINGS), Transaction("job/insert", nth))
    pinned = DeltaTable(uri)
    later = {"organization_id": "org", "day": DAYS[0], "id": "later", "version": 1}
    plant.append(DeltaTable(uri), table_of([later], THINGS), Transaction("job/insert", 12))
    for _ in range(60):
        where: dict[str, Sequence[Any]] = {
            "organization_id": rng.sample((*ORGANIZATIONS, "nobody"), rng.randint(1, 4)),
            "id": rng.sample((*IDS, "later", "nothing"), rng.randint(1, 8)),
        }
        if rng.random() < 0.7:
            where["day"] = rng.sample(DAYS, rng.randint(1, 2))
        expected = [row for row in rows if all(row[name] in values for name, values in where.items())]
        found = scan.find(pinned, COLUMNS, where)
        assert sorted(map(key, found.to_pylist())) == sorted(map(key, expected))


def test_a_hundred_thousand_values_are_looked_up_without_harm(tmp_path: Path) -> None:
    plant.create(str(tmp_path), THINGS)
    row = {"organization_id": "org", "day": DAYS[0], "id": "a", "version": 1}
    plant.append(DeltaTable(str(tmp_path)), table_of([row], THINGS), Transaction("job/insert", 0))
    ids = ["a", *(f"e-{number}" for number in range(100_000))]
    found = DeltaTable(str(tmp_path))
    assert scan.find(found, ("id",), {"organization_id": ["org"], "id": ids}).to_pylist() == [{"id": "a"}]
    assert scan.find(found, ("id",), {"organization_id": ["org"], "id": ids[1:]}).num_rows == 0
