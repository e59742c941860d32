"""Every round begins with the same files, told apart from any others."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks.lakes import laid, mark_ready, ready, restore


def written(base: Path) -> str:
    """A lake with one table of two partitions."""
    uri = base / "lake" / "t"
    uri.mkdir(parents=True)
    rows = pa.table({"organization_id": ["a", "b", "b"], "n": [1, 2, 3]})
    write_deltalake(str(uri), rows, partition_by=["organization_id"])
    return str(uri)


def test_a_restored_lake_has_the_same_files_and_its_changes_stay_its_own(tmp_path: Path) -> None:
    uri = written(tmp_path / "base")
    before = laid(uri)
    restore(tmp_path / "base", tmp_path / "copy")
    copy = str(tmp_path / "copy" / "lake" / "t")
    assert laid(copy) == before
    assert (before.rows, set(before.partitions)) == (3, {"organization_id=a", "organization_id=b"})
    assert set(before.by_partition()) == set(before.partitions)
    table = DeltaTable(copy)
    table.update({"n": "9"}, predicate="organization_id = 'b'")
    table.create_checkpoint()
    assert laid(copy).digest != before.digest
    assert laid(uri) == before
    assert sorted(pa.table(DeltaTable(uri).to_pyarrow_table()).column("n").to_pylist()) == [1, 2, 3]
    assert not (Path(uri) / "_delta_log" / "_last_checkpoint").exists()


def test_half_a_lake_is_removed_and_a_whole_one_is_kept(tmp_path: Path) -> None:
    written(tmp_path / "half")
    written(tmp_path / "whole")
    mark_ready(tmp_path / "whole")
    assert not ready(tmp_path / "half")
    assert ready(tmp_path / "whole")
    assert not (tmp_path / "half").exists()
    assert (tmp_path / "whole" / "lake").exists()
