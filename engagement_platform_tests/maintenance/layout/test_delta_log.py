"""The log folder, its commits and removed files."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from engagement_platform.maintenance.layout.delta_log import Removed, recent
from engagement_platform.maintenance.layout.files import DEFAULT_RETENTION, LONGEST_RETENTION, retention
from engagement_platform_tests.maintenance.layout import logs

KB = 1024
NOW = datetime(2026, 1, 15, tzinfo=UTC)


def test_the_newest_checkpoint_counts(tmp_path: Path) -> None:
    path = logs.table(tmp_path / "t")
    for version in range(1, 7):
        logs.commit(path, version, [logs.info()])
    for version in (2, 4):
        DeltaTable(str(path), version=version).create_checkpoint()
    found = recent(str(path), most=1, small_file_bytes=1)
    assert (found.version, found.checkpoint, found.checkpoint_lag) == (6, 4, 2)


def test_commits_tell_how_they_spread_their_files(tmp_path: Path) -> None:
    path = logs.table(tmp_path / "t")
    big = logs.add("big", 600 * KB, partition={"organization_id": "o9"})
    logs.commit(path, 1, [logs.info(), *logs.files(3, 9 * KB, "o1"), *logs.files(1, 9 * KB, "o2"), big])
    logs.commit(path, 2, [logs.info("OPTIMIZE", zOrderBy='["day","id"]'), *logs.files(9, 9 * KB, "o3")])
    logs.commit(path, 3, [logs.info("VACUUM END", at_ms=logs.SOME_MS + 5)])
    found = recent(str(path), most=3, small_file_bytes=500 * KB)
    assert [c.operation for c in found.commits] == ["VACUUM END", "OPTIMIZE", "WRITE"]
    ratio, worst = found.scattered
    assert (ratio, worst.version if worst else None) == (2.0, 1)
    assert (found.commits[2].files_added, found.commits[2].small_partitions_touched) == (5, 2)
    assert found.versions_since_optimize == 1
    assert found.z_ordered is not None
    assert found.z_ordered.z_order_by == ("day", "id")
    assert found.last_vacuum == datetime.fromtimestamp((logs.SOME_MS + 5) / 1000, UTC)
    assert (found.checkpoint, found.checkpoint_lag) == (None, 4)


def test_what_is_older_than_the_commits_looked_at_is_not_known(tmp_path: Path) -> None:
    path = logs.table(tmp_path / "t")
    logs.commit(path, 1, [logs.info("OPTIMIZE"), *logs.files(1, 9)])
    for version in range(2, 6):
        logs.commit(path, version, [logs.info()])
    assert recent(str(path), most=4, small_file_bytes=1).versions_since_optimize is None


def test_tombstones_come_from_the_checkpoint_and_from_commits_and_end_with_a_restore(tmp_path: Path) -> None:
    path = logs.table(tmp_path / "t", logs.files(3, 9 * KB))
    first, second, third = logs.files(3, 9 * KB)
    recently = int(datetime.now(UTC).timestamp() * 1000)
    logs.commit(path, 1, [logs.info(), logs.remove(first, recently), logs.remove(third, recently)])
    DeltaTable(str(path)).create_checkpoint()
    logs.commit(path, 2, [logs.info(), logs.remove(second, recently + 1), third])
    found = recent(str(path), most=1, small_file_bytes=1)
    assert found.removed == {
        first["add"]["path"]: Removed(recently, 9 * KB),
        second["add"]["path"]: Removed(recently + 1, 9 * KB),
    }


def test_clustering_columns_come_from_the_newest_domain_metadata(tmp_path: Path) -> None:
    path = logs.table(tmp_path / "t")
    for version, columns in ((1, [["id"]]), (2, [["day"], ["n", "at"]])):
        said = json.dumps({"clusteringColumns": columns})
        domain = {"domain": "delta.clustering", "configuration": said, "removed": False}
        logs.commit(path, version, [logs.info(), {"domainMetadata": domain}])
    assert recent(str(path), most=9, small_file_bytes=1).clustered_by == ("day", "n.at")


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_a_checkpoint_of_version_2_is_seen_with_the_removes_in_its_sidecars(kind: str, tmp_path: Path) -> None:
    path = logs.table(tmp_path / "t", logs.files(1, 9 * KB))
    for version in range(1, 4):
        logs.commit(path, version, [logs.info()])
    folder, sidecar = path / "_delta_log", "016ae953-37a9-438e-8683-9a9a4a79a395.parquet"
    said = json.dumps({"clusteringColumns": [["day"]]})
    actions: list[dict[str, object]] = [
        {"checkpointMetadata": {"version": 2}},
        {"domainMetadata": {"domain": "delta.clustering", "configuration": said, "removed": False}},
        {"sidecar": {"path": sidecar, "sizeInBytes": 9, "modificationTime": logs.SOME_MS}},
    ]
    checkpoint = folder / f"{2:020}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.{kind}"
    if kind == "json":
        checkpoint.write_text("\n".join(map(json.dumps, actions)), encoding="utf-8")
    else:
        columns = {name: None for one in actions for name in one}
        pq.write_table(pa.Table.from_pylist([{**columns, **one} for one in actions]), checkpoint)
    (folder / "_sidecars").mkdir()
    [file] = logs.files(1, 9 * KB)
    pq.write_table(pa.Table.from_pylist([logs.remove(file, 7)]), folder / "_sidecars" / sidecar)
    found = recent(str(path), most=1, small_file_bytes=1)
    assert (found.checkpoint, found.checkpoint_lag, found.clustered_by) == (2, 1, ("day",))
    assert found.removed == {file["add"]["path"]: Removed(7, 9 * KB)}


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("interval 1 week", timedelta(days=7)),
        ("interval 36 hours", timedelta(hours=36)),
        ("INTERVAL 0 DAYS", timedelta(0)),
        ("interval 1 day 12 hours", timedelta(hours=36)),
        ("2 weeks 1 day 3 hours 4 minutes 5 seconds", timedelta(days=15, hours=3, minutes=4, seconds=5)),
        ("interval 1 month", None),
        ("interval 1 day and a half", None),
        ("interval 12 hours 1 month", None),
        ("", None),
        ("interval 3000000 days", LONGEST_RETENTION),
        ("interval 9999999999 days", None),
        ("interval 999999999 days 1 week", None),
        (f"interval {'9' * 5000} days", None),
    ],
)
def test_retention_is_read_as_spark_reads_it_or_not_at_all(said: str, kept: timedelta | None) -> None:
    assert retention({"delta.deletedFileRetentionDuration": said}) == kept


def test_a_table_that_says_nothing_of_its_retention_has_the_default_of_delta() -> None:
    assert retention({}) == DEFAULT_RETENTION
