"""The log folder, its commits and removed files, and what lies in the folder beside live files."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from engagement_platform.layout.delta_log import Tombstone, recent, segment, vector_file
from engagement_platform.layout.disk import DEFAULT_RETENTION, by_log, leftovers, retention
from engagement_platform_tests.layout import logs

KB = 1024
NOW = datetime(2026, 1, 15, tzinfo=UTC)


def many_commits(path: Path, count: int) -> Path:
    logs.table(path)
    for version in range(1, count + 1):
        values = {"organization_id": f"o{version}"}
        logs.commit(path, version, [logs.info(), logs.add(f"f{version}", 9 * KB, partition=values)])
    return path


def test_the_newest_whole_checkpoint_counts(tmp_path: Path) -> None:
    path = many_commits(tmp_path / "t", 6)
    log = path / "_delta_log"
    DeltaTable(str(path), version=2).create_checkpoint()
    (log / f"{4:020}.checkpoint.{1:010}.{2:010}.parquet").touch()
    (log / f"{9:020}.checkpoint.parquet").touch()
    found = segment(str(path), 6)
    assert (found.version, found.checkpoint, found.after_checkpoint) == (6, 2, (3, 4, 5, 6))
    (log / f"{4:020}.checkpoint.{2:010}.{2:010}.parquet").touch()
    assert (segment(str(path), 6).checkpoint, len(segment(str(path), 6).checkpoint_files)) == (4, 2)


def test_a_folder_without_a_log_has_no_version(tmp_path: Path) -> None:
    assert segment(str(tmp_path)).version == -1


def test_commits_tell_how_they_spread_their_files(tmp_path: Path) -> None:
    path = logs.table(tmp_path / "t")
    big = logs.add("big", 600 * KB, partition={"organization_id": "o9"})
    logs.commit(path, 1, [logs.info(), *logs.files(3, 9 * KB, "o1"), *logs.files(1, 9 * KB, "o2"), big])
    logs.commit(path, 2, [logs.info("OPTIMIZE", zOrderBy='["day","id"]'), *logs.files(9, 9 * KB, "o3")])
    logs.commit(path, 3, [logs.info("VACUUM END", at_ms=logs.SOME_MS + 5)])
    found = recent(segment(str(path)), most=3, small_file_bytes=500 * KB)
    assert [c.operation for c in found.commits] == ["VACUUM END", "OPTIMIZE", "WRITE"]
    ratio, worst = found.scattered
    assert (ratio, worst.version if worst else None) == (2.0, 1)
    assert (found.commits[2].files_added, len(found.commits[2].partitions)) == (5, 3)
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
    assert recent(segment(str(path)), most=4, small_file_bytes=1).versions_since_optimize is None


def test_tombstones_come_from_the_checkpoint_and_from_commits_and_end_with_a_restore(tmp_path: Path) -> None:
    path = logs.table(tmp_path / "t", logs.files(3, 9 * KB))
    first, second, third = logs.files(3, 9 * KB)
    recently = int(datetime.now(UTC).timestamp() * 1000)
    logs.commit(path, 1, [logs.info(), logs.remove(first, recently), logs.remove(third, recently)])
    DeltaTable(str(path)).create_checkpoint()
    logs.commit(path, 2, [logs.info(), logs.remove(second, recently + 1), third])
    found = recent(segment(str(path)), most=1, small_file_bytes=1)
    assert found.tombstones == {
        first["add"]["path"]: Tombstone(recently, 9 * KB),
        second["add"]["path"]: Tombstone(recently + 1, 9 * KB),
    }


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("add_first", [False, True])
def test_a_deletion_vector_that_was_replaced_is_a_removed_file(
    checkpointed: bool, add_first: bool, tmp_path: Path
) -> None:
    old, new = (
        {"storageType": "u", "pathOrInlineDv": name} for name in ("ab^-aqEH.-t@S}K{vb[*k^", "vBn[lx{q8@P<9BNH/isA")
    )
    more = {"offset": 1, "sizeInBytes": 36, "cardinality": 2}
    values = {"organization_id": "o"}
    before, after = (logs.add("f", 9, partition=values, vector={**vector, **more}) for vector in (old, new))
    path = logs.table(tmp_path / "t", [before], protocol=logs.VECTORS)
    at = int(datetime.now(UTC).timestamp() * 1000)
    gone = logs.remove(before, at)
    gone["remove"]["deletionVector"] = {**old, **more}
    logs.commit(path, 1, [logs.info("DELETE"), *((after, gone) if add_first else (gone, after))])
    if checkpointed:
        DeltaTable(str(path)).create_checkpoint()
    found = recent(segment(str(path)), most=1, small_file_bytes=1)
    assert found.tombstones == {str(vector_file(old)): Tombstone(at, 36)}


def test_clustering_columns_come_from_the_newest_domain_metadata(tmp_path: Path) -> None:
    path = logs.table(tmp_path / "t")
    for version, columns in ((1, [["id"]]), (2, [["day"], ["n", "at"]])):
        said = json.dumps({"clusteringColumns": columns})
        domain = {"domain": "delta.clustering", "configuration": said, "removed": False}
        logs.commit(path, version, [logs.info(), {"domainMetadata": domain}])
    assert recent(segment(str(path)), most=9, small_file_bytes=1).clustered_by == ("day", "n.at")


@given(st.uuids(), st.sampled_from(["", "ab", "x/y"]))
def test_the_file_of_a_deletion_vector_is_named_by_its_uuid(uuid: UUID, prefix: str) -> None:
    b85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    told = base64.b85encode(uuid.bytes).decode().translate(str.maketrans(b85, z85))
    folder = f"{prefix}/" if prefix else ""
    vector = {"storageType": "u", "pathOrInlineDv": f"{prefix}{told}"}
    assert vector_file(vector) == f"{folder}deletion_vector_{uuid}.bin"
    assert vector_file({**vector, "storageType": "i"}) is None


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("interval 1 week", timedelta(days=7)),
        ("interval 36 hours", timedelta(hours=36)),
        ("INTERVAL 0 DAYS", timedelta(0)),
        ("interval 1 month", DEFAULT_RETENTION),
        ("", DEFAULT_RETENTION),
    ],
)
def test_retention_is_read_as_spark_writes_it(said: str, kept: timedelta) -> None:
    assert retention({"delta.deletedFileRetentionDuration": said}) == kept


def test_the_folder_is_compared_with_live_and_removed_files(tmp_path: Path) -> None:
    for name in ("o=a%20b/live.parquet", "o=x/gone.parquet", "_delta_log/0.json", "_p=1/orphan.parquet", ".x.crc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"12345")
    vector = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^"}
    for file in (vector_file(vector), "ab/deletion_vector_old.bin"):
        (tmp_path / str(file)).parent.mkdir(exist_ok=True)
        (tmp_path / str(file)).write_bytes(b"1")
    later = datetime.now(UTC) + timedelta(hours=2)
    found = leftovers(
        str(tmp_path),
        {"o=a%20b/live.parquet", str(vector_file(vector))},
        {"o=x/gone.parquet": Tombstone(0, 5)},
        keep=timedelta(days=7),
        orphan_age=timedelta(hours=1),
        now=later,
    )
    assert (found.due.files, found.due.bytes, found.waiting.files) == (1, 5, 0)
    assert (found.orphans.files, found.orphans.bytes, found.young_orphans.files) == (2, 6, 0)


def test_from_the_log_alone_what_a_vacuum_came_after_is_gone() -> None:
    week, ms = timedelta(days=7), 1000
    at = {days: int((NOW - timedelta(days=days)).timestamp() * ms) for days in (1, 8, 30)}
    tombstones = {f"f{days}": Tombstone(removed, days) for days, removed in at.items()}
    found = by_log(["f0"], tombstones, keep=week, last_vacuum=None, now=NOW, why="a test")
    assert (found.waiting.bytes, found.due.bytes, found.listed) == (1, 38, False)
    found = by_log([], tombstones, keep=week, last_vacuum=NOW - timedelta(days=2), now=NOW, why="a test")
    assert (found.waiting.bytes, found.due.bytes) == (1, 8)
