"""A table seeded with each fault, and what is found on it; healthy tables, and those at the edge."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, WriterProperties, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from engagement_platform.maintenance.layout.doctor import Examination, examine
from engagement_platform.maintenance.layout.finding import Finding, more_than_share
from engagement_platform.maintenance.layout.findings import CODES
from engagement_platform.maintenance.layout.survey import Target
from engagement_platform.settings import HealthSettings, Settings, SparkSettings
from engagement_platform_tests.maintenance.layout import logs

KB, MB = 1024, 1024**2
NOW = datetime(2026, 1, 15, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
Make = Callable[[Path], Path]


def examined(
    path: Path, clustering: str | None = None, shuffle_partitions: int = 64, now: datetime = NOW, **limits: Any
) -> Examination:
    settings = Settings(spark=SparkSettings(shuffle_partitions=shuffle_partitions), health=HealthSettings(**limits))
    return examine(settings, Target("seeded", str(path)), clustering=clustering, now=now)


def codes(examination: Examination) -> set[str]:
    return {finding.code for finding in examination.findings}


def only(examination: Examination, code: str) -> Finding:
    assert [f.code for f in examination.findings if f.code == code] == [code], codes(examination)
    return next(f for f in examination.findings if f.code == code)


def days(first: int, last: int) -> tuple[str, str]:
    start = datetime(2024, 1, 1, tzinfo=UTC)
    return tuple((start + timedelta(days=d)).date().isoformat() for d in (first, last))  # type: ignore[return-value]


def in_order(count: int, size: int, organization: str = "org-0") -> list[dict[str, Any]]:
    """Files of neighbouring ranges, as Z-order leaves them."""
    values = {"organization_id": organization}
    return [logs.add(f"z-{i}", size, partition=values, days=days(7 * i, 7 * i + 7)) for i in range(count)]


def test_a_healthy_table_has_no_finding(tmp_path: Path) -> None:
    files = [file for org in range(6) for file in in_order(4, 100 * MB, f"org-{org}")]
    assert examined(logs.table(tmp_path / "t", files), "day").findings == ()


def test_175_files_of_7_kb_in_one_partition_are_small_files(tmp_path: Path) -> None:
    others = [file for org in range(1, 60) for file in in_order(4, 100 * MB, f"org-{org}")]
    path = logs.table(tmp_path / "t", [*logs.files(175, 7 * KB), *others])
    found = only(examined(path, "day"), "small_files")
    assert (found.severity, found.partition) == ("warning", "organization_id=org-0")
    assert found.evidence["small_files"] == found.evidence["files"] == 175
    assert found.evidence["mean_bytes"] == 7 * KB
    gain = found.gain
    assert gain is not None
    assert (gain.files_before, gain.files_after, gain.bytes_to_rewrite) == (175, 1, 175 * 7 * KB)


def skewed(path: Path) -> Path:
    whales = in_order(100, 120 * MB, "whale")
    return logs.table(path, [*whales, *(f for o in range(5) for f in in_order(1, 5 * MB, f"o{o}"))])


def scattered(path: Path) -> Path:
    logs.table(path)
    for version in (1, 2):
        files = [
            logs.add(f"v{version}-{i}", 9 * KB, partition={"organization_id": f"o{o}"})
            for o in range(4)
            for i in range(5)
        ]
        logs.commit(path, version, [logs.info(), *files])
    return path


def overlapping(path: Path) -> Path:
    return logs.table(path, logs.files(11, 20 * MB, days=days(0, 300)))


def beyond_the_index(path: Path) -> Path:
    columns = [*((f"c{i}", "string") for i in range(32)), *logs.COLUMNS]
    return logs.table(path, in_order(3, 100 * MB), columns=columns)


def beyond_the_index_by_leaves(path: Path) -> Path:
    wide = {"type": "struct", "fields": [logs.field(f"f{i}", "long") for i in range(32)]}
    return logs.table(path, in_order(3, 100 * MB), columns=[("wide", wide), *logs.COLUMNS])


def without_bounds(path: Path) -> Path:
    return logs.table(path, [*in_order(8, 100 * MB), *logs.files(1, 100 * MB, days=None)])


def without_codec(path: Path) -> Path:
    rows = pa.table({"day": pa.array([1, 2, 3], pa.int32()), "id": ["a", "b", "c"]})
    write_deltalake(str(path), rows, writer_properties=WriterProperties(compression="UNCOMPRESSED"))
    return path


def without_checkpoint(path: Path) -> Path:
    logs.table(path, in_order(2, 100 * MB))
    for version in range(1, 101):
        logs.commit(path, version, [logs.info("SET TBLPROPERTIES")])
    return path


def after_removals(path: Path, age: timedelta = timedelta(days=8), properties: Mapping[str, str] | None = None) -> Path:
    old = logs.files(3, 100 * KB)
    logs.table(path, [*old, *in_order(1, 1000 * KB, "o")], properties=properties)
    removed_ms = int((NOW - age).timestamp() * 1000)
    logs.commit(path, 1, [logs.info(), *(logs.remove(file, removed_ms) for file in old)])
    return path


SEEDED: list[tuple[str, Make, Mapping[str, object]]] = [
    ("small_files", lambda p: logs.table(p, logs.files(50, 499 * KB)), {"small_files": 50}),
    ("too_many_files", lambda p: logs.table(p, logs.files(201, 90 * MB)), {"files": 201, "limit": 200}),
    ("skewed_partitions", skewed, {"bytes": 12_000 * MB, "median_bytes": 5 * MB}),
    ("scattered_writes", scattered, {"files_per_partition_and_commit": 5.0, "worst_partitions": 4}),
    ("clustering_overlap", overlapping, {"column": "day", "depth": 11}),
    ("unindexed_clustering", beyond_the_index, {"column": "day", "leaf_position": 34, "indexed": False}),
    ("unindexed_clustering", beyond_the_index_by_leaves, {"leaf_position": 34, "indexed": False}),
    ("unindexed_clustering", without_bounds, {"files_without_bounds": 1, "files": 9, "indexed": True}),
    ("uncompressed", without_codec, {"footers_uncompressed": 1}),
    ("stale_checkpoint", without_checkpoint, {"commits_since": 101, "checkpoint_version": None}),
    ("vacuum_due", after_removals, {"due_files": 3, "due_bytes": 300 * KB}),
]


@pytest.mark.parametrize(("code", "make", "evidence"), SEEDED, ids=[f"{c}-{i}" for i, (c, _, _) in enumerate(SEEDED)])
def test_a_seeded_fault_is_found(code: str, make: Make, evidence: Mapping[str, object], tmp_path: Path) -> None:
    found = only(examined(make(tmp_path / "t"), "day"), code)
    assert {name: found.evidence[name] for name in evidence} == evidence
    assert found.what
    assert found.remedy
    json.dumps(found.as_json())


def test_too_few_tasks_for_the_bytes_are_found_and_the_setting_named(tmp_path: Path) -> None:
    path = logs.table(tmp_path / "t", in_order(9, 120 * MB))
    found = only(examined(path, shuffle_partitions=2), "parallelism_limit")
    assert (found.evidence["setting"], found.evidence["value"]) == ("spark.shuffle_partitions", 2)
    assert found.evidence["bytes_per_task"] == 540 * MB
    assert found.evidence["suggested"] == 9
    assert "parallelism_limit" not in codes(examined(path, shuffle_partitions=3))


def test_every_code_has_a_seeded_table() -> None:
    assert {code for code, _, _ in SEEDED} | {"parallelism_limit"} == set(CODES)


def test_small_files_that_no_compaction_can_merge_ask_for_coarser_partitions(tmp_path: Path) -> None:
    columns = ("organization_id", "day")
    files = [
        logs.add("f", 9 * KB, partition={"organization_id": f"o{o}", "day": day}, days=None)
        for o in range(10)
        for day, _ in (days(d, d) for d in range(11))
    ]
    path = logs.table(tmp_path / "t", files, partitioned_by=columns)
    found = only(examined(path, max_lone_small_files=100), "small_files")
    assert found.partition is None
    assert "organization_id only and Z-order by day" in found.remedy
    assert "small_files" not in codes(examined(path))


@pytest.mark.parametrize(
    "actions",
    [[], logs.files(1, 7), logs.files(9, 7 * KB), logs.files(20, 500 * KB), logs.files(200, 90 * MB)],
    ids=["no file", "one tiny file", "nine small files", "20 of exactly 500 KB", "200 files"],
)
def test_what_is_at_a_limit_is_healthy(actions: list[dict[str, Any]], tmp_path: Path) -> None:
    assert examined(logs.table(tmp_path / "t", actions), scattered_files=1000).findings == ()


def test_60_percent_small_files_are_healthy_and_more_are_not(tmp_path: Path) -> None:
    at = logs.table(tmp_path / "at", [*logs.files(60, 7 * KB), *in_order(40, 200 * MB)])
    above = logs.table(tmp_path / "above", [*logs.files(61, 7 * KB), *in_order(39, 200 * MB)])
    assert "small_files" not in codes(examined(at))
    assert "small_files" in codes(examined(above))


def test_few_small_files_that_overlap_are_for_information_and_large_or_many_are_a_warning(tmp_path: Path) -> None:
    few = logs.table(tmp_path / "few", logs.files(11, 9 * KB, days=days(0, 300)))
    many = logs.table(tmp_path / "many", logs.files(50, 9 * KB, days=days(0, 300)))
    assert only(examined(few, "day"), "clustering_overlap").severity == "info"
    assert only(examined(many, "day"), "clustering_overlap").severity == "warning"
    assert only(examined(overlapping(tmp_path / "large"), "day"), "clustering_overlap").severity == "warning"


def test_files_of_one_same_day_are_not_told_to_be_clustered(tmp_path: Path) -> None:
    path = logs.table(tmp_path / "t", logs.files(12, 128 * MB, days=days(1, 1)))
    assert "clustering_overlap" not in codes(examined(path, "day"))


LONG = "0a9f5f0e-6a35-4b5e-9c6e-1f2f3a4b5c6d"
"""An id of more characters than bounds have."""


def liquid(path: Path, organizations: Sequence[tuple[str, str]], *, size: int, by: Sequence[str] = ("id",)) -> Path:
    """A file for each of these bounds of `id`, in a table that Delta clusters."""
    files = [logs.add(f"f{i}", size, ids=bounds) for i, bounds in enumerate(organizations)]
    columns = json.dumps({"clusteringColumns": [[column] for column in by]})
    clustering = {"domain": "delta.clustering", "configuration": columns, "removed": False}
    return logs.table(path, [{"domainMetadata": clustering}, *files], partitioned_by=())


@pytest.mark.parametrize("bounds", [("org-1", "org-1"), (LONG[:32], f"{LONG[:32]}\x7f")])
def test_a_liquid_table_whose_files_hold_one_organization_cannot_be_clustered_further(
    bounds: tuple[str, str], tmp_path: Path
) -> None:
    full = examined(liquid(tmp_path / "full", [bounds] * 40, size=128 * MB))
    assert full.facts.seen.clustering == "id"
    assert full.facts.seen.partitions.column("depth").to_pylist() == [40]
    assert "clustering_overlap" not in codes(full)
    # Beside others, too.
    whale = liquid(tmp_path / "whale", [*[bounds] * 40, ("b", "c"), ("d", "e")], size=128 * MB)
    assert "clustering_overlap" not in codes(examined(whale))
    small = examined(liquid(tmp_path / "small", [bounds] * 60, size=9 * KB))
    assert only(small, "clustering_overlap").severity == "warning", "these are merged"
    mixed = examined(liquid(tmp_path / "mixed", [("a", "z")] * 40, size=128 * MB))
    assert only(mixed, "clustering_overlap").severity == "warning"


def test_what_a_curve_through_two_columns_leaves_is_no_overlap_that_clustering_would_mend(tmp_path: Path) -> None:
    grid = [(f"{i:02}", f"{i + 1:02}") for i in range(20) for _ in range(20)]
    ordered = examined(liquid(tmp_path / "grid", grid, size=128 * MB, by=("id", "day")))
    assert ordered.facts.seen.partitions.column("depth").to_pylist() == [20]
    assert "clustering_overlap" not in codes(ordered)
    assert only(examined(liquid(tmp_path / "one", grid, size=128 * MB)), "clustering_overlap").severity == "warning"


def test_what_is_partitioned_by_the_clustering_column_needs_no_bounds(tmp_path: Path) -> None:
    files = [logs.add("f", 100 * MB, partition={"day": "2024-01-01"}, days=None)]
    assert examined(logs.table(tmp_path / "t", files, partitioned_by=["day"]), "day").findings == ()


def test_removed_files_within_the_retention_of_their_table_wait(tmp_path: Path) -> None:
    waiting = examined(after_removals(tmp_path / "t", timedelta(days=6)))
    assert ("vacuum_due" in codes(waiting), waiting.facts.due) == (False, [])
    five_days = {"delta.deletedFileRetentionDuration": "interval 5 days"}
    assert "vacuum_due" in codes(examined(after_removals(tmp_path / "short", timedelta(days=6), five_days)))


@pytest.mark.parametrize("text", ["interval 1 month", "interval 9999999999 days", "interval 3000000 days"])
def test_of_a_table_whose_retention_cannot_be_read_or_never_ends_nothing_is_due(tmp_path: Path, text: str) -> None:
    said = {"delta.deletedFileRetentionDuration": text}
    assert examined(after_removals(tmp_path / "t", timedelta(days=99), said)).facts.due == []


def test_tombstones_between_the_checkpoint_and_the_commits_looked_at_count(tmp_path: Path) -> None:
    path = after_removals(tmp_path / "t")
    for version in range(2, 5):
        logs.commit(path, version, [logs.info()])
    assert only(examined(path, history_commits=2), "vacuum_due").evidence["due_files"] == 3


def test_a_table_of_delta_rs_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for _ in range(12):
        rows = pa.table({"p": ["a b/ü%", None], "day": pa.array([1, 9], pa.date32())})
        write_deltalake(str(path), rows, mode="append", partition_by=["p"])
    examination = examined(path, "day", now=datetime.now(UTC))
    assert examination.facts.totals.files == 24
    assert examination.facts.seen.partitions.column("partition").to_pylist() == [
        "p=__HIVE_DEFAULT_PARTITION__",
        "p=a b/ü%",
    ]
    assert only(examination, "small_files").severity == "info"
    DeltaTable(str(path)).optimize.compact()
    DeltaTable(str(path)).create_checkpoint()
    after = examined(path, "day", now=datetime.now(UTC))
    assert after.findings == ()


def test_20_000_files_are_summed_up_in_this_process(tmp_path: Path) -> None:
    count = 20_000
    path = logs.table(
        tmp_path / "t", [file for org in range(50) for file in logs.files(count // 50, 9 * KB, f"o{org}")]
    )
    removed = [logs.remove(file, NOW_MS) for file in logs.files(count // 50, 9 * KB, "o7")]
    DeltaTable(str(path)).create_checkpoint()
    logs.commit(path, 1, [logs.info(), *removed])
    totals = examined(path, "day").facts.totals
    assert (totals.files, totals.partitions) == (count - count // 50, 49)


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 100))
def test_a_share_is_exceeded_by_more_than_it_and_by_nothing_else(part: int, whole: int, percent: int) -> None:
    assert more_than_share(part, whole, percent / 100) == (part * 100 > percent * whole)
