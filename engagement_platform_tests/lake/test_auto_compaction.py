"""What auto compaction is worth: files of a table that gets a small batch after the other, with and without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from engagement_platform.engine.model import Transaction
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.contract import Column, Mode, Table
from engagement_platform.lake.lake import Lake
from engagement_platform.settings import LayoutSettings, Settings

NAMES = Table(
    key=("test", "names"),
    description="Of a few organizations.",
    mode=Mode.MUTABLE,
    partitioned_by=("organization_id",),
    columns=(
        Column("organization_id", "string", "Tenant."),
        Column("id", "string", "Person id."),
        Column("batch_id", "long", "Batch that wrote the row."),
    ),
)
BATCHES = 120
LIMIT = 50
"""The default of layout.auto_compact_min_files."""

NO_SPARK: Any = object()


def batch(number: int) -> list[str]:
    """Organizations of a batch: one always, one of every third, one of the first only."""
    return ["busy", *(["calm"] if number % 3 == 0 else []), *(["quiet"] if number == 0 else [])]


def expected(auto_compact: bool) -> Iterator[Counter[str]]:
    """Files of each organization after each batch: a batch adds one, and one is left when there are enough."""
    files: Counter[str] = Counter()
    for number in range(BATCHES):
        files.update(batch(number))
        if auto_compact:
            files.update({name: 1 - count for name, count in files.items() if count >= LIMIT})
        yield files.copy()


def files(uri: str) -> Counter[str]:
    live = pa.table(DeltaTable(uri).get_add_actions(flatten=True))
    return Counter(live.column("partition.organization_id").to_pylist())


@pytest.mark.parametrize("auto_compact", [True, False])
def test_with_auto_compaction_a_busy_partition_stays_below_its_limit(tmp_path: Path, auto_compact: bool) -> None:
    """120 batches: 120 files without it, 22 with it, and never 50 after a batch. The same rows, by the same commits."""
    settings = Settings(home=tmp_path, layout=LayoutSettings(auto_compact=auto_compact))
    assert settings.layout.auto_compact_min_files == LIMIT
    lake = Lake(NO_SPARK, settings)
    lake.ensure(NAMES)
    uri = lake.uri(NAMES)
    for number, follows in enumerate(expected(auto_compact)):
        rows = [{"organization_id": name, "id": f"p{number}", "batch_id": number} for name in batch(number)]
        lake.append(table_of(rows, NAMES), NAMES, Transaction("job/insert", number))
        if number % 10 == 9 or follows["busy"] in (1, LIMIT - 1):
            assert files(uri) == follows, f"after batch {number}"
    assert files(uri)["busy"] == (22 if auto_compact else BATCHES)
    found = DeltaTable(uri)
    there = found.to_pyarrow_table(columns=["organization_id", "id"]).to_pylist()
    assert Counter(row["organization_id"] for row in there) == sum(
        (Counter(batch(n)) for n in range(BATCHES)), Counter()
    )
    operations = Counter(entry["operation"] for entry in found.history())
    assert operations["OPTIMIZE"] == (2 if auto_compact else 0)
    assert operations["WRITE"] == BATCHES
