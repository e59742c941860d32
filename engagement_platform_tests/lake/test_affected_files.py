"""What the log says a change would touch, and what a commit has replaced. Tables are written by delta-rs here."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from engagement_platform.engine.model import Transaction
from engagement_platform.lake.affected_files import replaced, touched
from engagement_platform.lake.log import Stored

FIRST, SECOND, THIRD = (date(2026, 11, day) for day in (1, 5, 9))
LAYOUTS: tuple[list[str], ...] = (["organization_id"], ["organization_id", "engagement_date"], [])
FILES = (
    [("a", FIRST), ("a", SECOND)],
    [("a", THIRD)],
    [("b", SECOND), ("b", SECOND), ("b", SECOND)],
)


def written(folder: Path, partitioned_by: Sequence[str]) -> str:
    """A table of one commit for each of FILES; one file each, or one for each day."""
    for rows in FILES:
        names, days = zip(*rows, strict=True)
        table = pa.table(
            {"organization_id": names, "engagement_date": pa.array(days, pa.date32()), "x": range(len(rows))}
        )
        write_deltalake(str(folder), table, mode="append", partition_by=list(partitioned_by) or None)
    return str(folder)


def rows_and_files(stored: Stored) -> tuple[int, int]:
    assert (stored.bytes > 0) == (stored.files > 0)
    return stored.rows, stored.files


@pytest.mark.parametrize("partitioned_by", LAYOUTS, ids=["organization", "organization and day", "none"])
def test_files_are_touched_whose_days_admit_a_day_that_changes(tmp_path: Path, partitioned_by: list[str]) -> None:
    uri = written(tmp_path, partitioned_by)
    days = {"a": {SECOND}, "b": {FIRST, THIRD}, "nobody": {FIRST}}
    found = touched(uri, 2, days)
    by_day = "engagement_date" in partitioned_by
    assert {name: rows_and_files(one.touched) for name, one in found.items()} == {
        "a": (1, 1) if by_day else (2, 1), "b": (0, 0), "nobody": (0, 0),
    }  # fmt: skip
    all_ = {name: rows_and_files(one.stored) for name, one in found.items()}
    if partitioned_by:
        assert all_ == {"a": (3, 3 if by_day else 2), "b": (3, 1), "nobody": (0, 0)}
    else:
        assert set(all_.values()) == {(6, 3)}
    assert rows_and_files(touched(uri, 0, {"a": {THIRD}})["a"].touched) == (0, 0), "a later file was counted"
    within = touched(uri, 2, {"a": {date(2026, 11, 3)}})["a"].touched
    assert rows_and_files(within) == ((0, 0) if by_day else (2, 1)), "between its bounds a file may have any day"


def test_a_file_without_bounds_is_touched_and_no_days_touch_nothing(tmp_path: Path) -> None:
    table = pa.table({"organization_id": ["a"], "engagement_date": pa.array([None], pa.date32())})
    write_deltalake(str(tmp_path), table, partition_by=["organization_id"])
    found = touched(str(tmp_path), 0, {"a": {FIRST}})
    assert rows_and_files(found["a"].touched) == (1, 1)
    assert rows_and_files(touched(str(tmp_path), 0, {"a": ()})["a"].touched) == (0, 0)
    assert touched(str(tmp_path), 0, {}) == {}


def test_what_a_transaction_replaced_is_told_by_organization(tmp_path: Path) -> None:
    uri = written(tmp_path, ["organization_id"])
    txn, other = Transaction("job/data/rows", 7), Transaction("job/data/move", 7)
    before = dict(sizes(uri))
    named = CommitProperties(custom_metadata={"userMetadata": txn.marker})
    DeltaTable(uri).update({"x": "9"}, predicate=f"engagement_date = '{SECOND}'", commit_properties=named)
    gone = [path for path in before if path not in sizes(uri)]
    assert len(gone) == 2
    assert replaced(uri, [other, txn]) == {
        path.partition("/")[0].removeprefix("organization_id="): before[path] for path in gone
    }
    assert replaced(uri, [other]) == {}


def test_what_no_partition_tells_apart_is_told_together(tmp_path: Path) -> None:
    uri = written(tmp_path, [])
    txn = Transaction("job/data/rows", 7)
    before = sum(sizes(uri).values())
    named = CommitProperties(custom_metadata={"userMetadata": txn.marker})
    DeltaTable(uri).update({"x": "9"}, commit_properties=named)
    assert replaced(uri, [txn]) == {None: before}


def sizes(uri: str) -> dict[str, int]:
    """Path -> bytes."""
    files = pa.table(DeltaTable(uri).get_add_actions(flatten=True))
    return dict(zip(files.column("path").to_pylist(), files.column("size_bytes").to_pylist(), strict=True))
