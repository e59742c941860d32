"""What is read from a Delta log without a JVM. Tables are written by delta-rs here; Spark's own are in `test_lake`."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from pyarrow.fs import FileInfo, FileSystem

from engagement_platform.lake import live_files, log


@pytest.mark.parametrize(
    ("delta_type", "spelled"),
    [
        ("string", "string"),
        ("long", "long"),
        ("integer", "int"),
        ("short", "smallint"),
        ("byte", "tinyint"),
        ("decimal(10,2)", "decimal(10,2)"),
        ("timestamp", "timestamp"),
        ({"type": "array", "elementType": "integer", "containsNull": True}, "array<int>"),
        (
            {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True},
            "map<string,long>",
        ),
        (
            {
                "type": "struct",
                "fields": [
                    {"name": "a", "type": "integer", "nullable": True, "metadata": {}},
                    {
                        "name": "b",
                        "type": {
                            "type": "array",
                            "containsNull": True,
                            "elementType": {
                                "type": "struct",
                                "fields": [
                                    {
                                        "name": "c",
                                        "type": {"type": "map", "keyType": "string", "valueType": "byte"},
                                        "nullable": True,
                                        "metadata": {},
                                    }
                                ],
                            },
                        },
                        "nullable": True,
                        "metadata": {},
                    },
                ],
            },
            "struct<a:int,b:array<struct<c:map<string,tinyint>>>>",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_types_are_spelled_as_spark_does(delta_type: Any, spelled: str) -> None:
    assert log.spark_type(delta_type) == spelled


def test_there_is_no_table_where_nothing_was_written(tmp_path: Path) -> None:
    uri = str(tmp_path / "nothing")
    assert log.open_log(uri) is None
    assert log.version(uri) is None
    assert log.describe(uri) is None
    assert log.find_commit(uri, "any") is None


def test_a_table_says_its_columns_partitioning_and_properties(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    schema = pa.schema(
        [
            ("org", pa.string()),
            ("count", pa.int32()),
            ("content", pa.struct([("kind", pa.string()), ("more", pa.map_(pa.string(), pa.string()))])),
        ]
    )
    write_deltalake(
        uri, pa.Table.from_pylist([], schema), partition_by=["org"], configuration={"delta.appendOnly": "true"}
    )
    found = log.describe(uri)
    assert found is not None
    assert list(found.columns.items()) == [
        ("org", "string"), ("count", "int"), ("content", "struct<kind:string,more:map<string,string>>"),
    ]  # fmt: skip
    assert found.partitioned_by == ("org",)
    assert found.properties["delta.appendOnly"] == "true"
    assert log.version(uri) == 0


def append(uri: str, number: int, marker: str | None) -> None:
    properties = CommitProperties(custom_metadata={"userMetadata": marker} if marker else {})
    write_deltalake(uri, pa.table({"n": pa.array([number], pa.int64())}), mode="append", commit_properties=properties)


def test_the_rows_of_a_table_are_counted_where_its_log_counts_all_of_them(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    assert live_files.row_count(uri) is None
    append(uri, 0, None)
    append(uri, 1, None)
    assert live_files.row_count(uri) == 2
    entry = Path(uri, "_delta_log", f"{1:020}.json")
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        action.get("add", {}).pop("stats", None)
    entry.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    assert live_files.row_count(uri) is None


def test_a_commit_is_found_by_its_marker_as_long_as_it_is_among_the_last_ones(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    append(uri, 0, "job@1/data/insert#7")
    append(uri, 1, None)
    append(uri, 2, "job@1/data/insert#8")
    commit = log.find_commit(uri, "job@1/data/insert#7")
    assert commit is not None
    assert (commit.version, commit.operation) == (0, "WRITE")
    assert log.find_commit(uri, "job@1/data/insert#") is None, "a marker is compared whole"
    for number in range(log.HISTORY_LOOKBACK - 3):
        append(uri, number, None)
    assert log.find_commit(uri, "job@1/data/insert#7") is not None
    append(uri, 99, None)
    assert log.find_commit(uri, "job@1/data/insert#7") is None
    assert log.find_commit(uri, "job@1/data/insert#8") is not None
    assert DeltaTable(uri).version() == log.version(uri) == log.HISTORY_LOOKBACK


def test_the_compaction_that_follows_a_commit_under_its_marker_is_not_taken_for_it(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    for number in range(3):
        append(uri, number, f"job@1/data/insert#{number}")
    marker = "job@1/data/insert#2"
    DeltaTable(uri).optimize.compact(commit_properties=CommitProperties(custom_metadata={"userMetadata": marker}))
    commit = log.find_commit(uri, marker)
    assert commit is not None
    assert (commit.version, commit.operation, commit.files_removed) == (2, "WRITE", 0)


def test_hadoop_s_scheme_is_spelled_as_delta_rs_does() -> None:
    assert log.storage_uri("s3a://bucket/a s3a://b") == "s3://bucket/a s3a://b"
    assert log.storage_uri("/lake/s3a://") == "/lake/s3a://"


def test_a_table_that_is_made_while_it_is_looked_for_is_there_or_not_and_nothing_else(tmp_path: Path) -> None:
    folder, ended = tmp_path / "_delta_log", threading.Event()

    def make_and_remove() -> None:
        while not ended.is_set():
            folder.mkdir()
            (folder / f"{7:020}.json").touch()
            (folder / f"{7:020}.json").unlink()
            folder.rmdir()

    maker = threading.Thread(target=make_and_remove)
    maker.start()
    try:
        # Without a care for it, about one listing in fifty failed.
        seen = {log.newest_entry(str(tmp_path)) for _ in range(5_000)}
    finally:
        ended.set()
        maker.join()
    assert seen <= {None, 7}


@pytest.mark.parametrize("on_s3", [False, True])
def test_tables_are_found_however_deep_also_in_the_root_and_in_folders_of_others_but_not_among_their_partitions(
    on_s3: bool, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = str(tmp_path / "lake")
    if on_s3:
        moto = request.getfixturevalue("moto")
        monkeypatch.setenv("AWS_ENDPOINT_URL", moto.endpoint)
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        where = {"LocationConstraint": os.environ["AWS_DEFAULT_REGION"]}
        moto.client("s3").create_bucket(Bucket="deep-lake", CreateBucketConfiguration=where)
        root = "s3a://deep-lake/lake"
    rows = pa.table({"id": [1], "day": ["a"]})
    usual = ["alone", "deep/er/than/that", "group", "group/eu/order", "group/table", "other/table", "other/x/table"]
    within = ["other/table/in_it", "other/x/table/a/b/in_it", "other/x/table/a/b/in_it/too"]
    for name in (*usual, *within, "_hidden/o/ne", "other/x/table/day=a/in_it", "other/x/table/_in_it"):
        write_deltalake(log.storage_uri(f"{root}/{name}"), rows, partition_by=["day"])
    assert log.tables(root) == ["group/table", "other/table"]
    assert log.tables_anywhere(root, hidden=False) == usual
    assert log.tables_anywhere(root) == sorted(["_hidden/o/ne", *usual, *within])
    write_deltalake(log.storage_uri(root), rows, partition_by=["day"])
    assert log.tables_anywhere(root) == sorted([".", *usual, *within])
    assert log.tables_anywhere(root, hidden=False) == usual
    assert log.tables_anywhere(f"{root}/nothing") == []


def test_the_look_for_tables_lists_no_folder_of_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.table({"id": range(50), "day": [f"d{number}" for number in range(50)]})
    for name in (".", "group/table"):
        write_deltalake(str(tmp_path / name), rows, partition_by=["day"])
    (tmp_path / "group" / "table" / "aZ").mkdir()
    looked, list_it = list[str](), log.listed

    def listed(filesystem: FileSystem, path: str) -> list[FileInfo]:
        looked.append(path.removeprefix(f"{tmp_path}"))
        return list_it(filesystem, path)

    monkeypatch.setattr(log, "listed", listed)
    assert log.tables_anywhere(str(tmp_path)) == [".", "group/table"]
    assert looked == ["", "/group", "/group/table", "/group/table/aZ"]
    looked.clear()
    assert log.tables_anywhere(str(tmp_path), hidden=False) == ["group/table"]
    assert looked == ["", "/group", "/group/table"]


def test_a_log_that_is_kept_is_read_again_whatever_happens_to_the_table(tmp_path: Path) -> None:
    """Beside what delta-rs reads anew each time: commits, a checkpoint whose entries go, a table that is made anew."""
    uri = str(tmp_path / "table")
    rows = pa.table({"id": ["a"]})

    def compared() -> int:
        kept, anew = log.open_log(uri), DeltaTable(uri)
        assert kept is not None
        assert (kept.version(), kept.metadata().id, sorted(kept.file_uris())) == (
            anew.version(),
            anew.metadata().id,
            sorted(anew.file_uris()),
        )
        return int(kept.version())

    assert log.open_log(uri) is None
    for expected in range(3):
        write_deltalake(uri, rows, mode="append")
        assert [compared(), compared()] == [expected, expected]
    assert log.open_log(uri) is log.open_log(uri)
    assert log.open_version(uri, 2) is log.open_log(uri)
    assert log.open_version(uri) is log.open_log(uri)
    assert log.open_version(uri, 1).version() == 1
    assert compared() == 2
    DeltaTable(uri).create_checkpoint()
    for entry in (tmp_path / "table" / "_delta_log").glob("*.json"):
        entry.unlink()
    assert compared() == 2
    shutil.rmtree(uri)
    assert log.open_log(uri) is None
    for expected in range(3):
        write_deltalake(uri, rows, mode="append")
        assert compared() == expected
    shutil.rmtree(uri)
    for _ in range(3):
        write_deltalake(uri, rows, mode="append")
    assert compared() == 2


def test_logs_are_kept_of_so_many_tables_and_no_more(tmp_path: Path) -> None:
    uris = [str(tmp_path / str(number)) for number in range(log.KEPT + 1)]
    for uri in uris:
        write_deltalake(uri, pa.table({"id": ["a"]}))
    first = log.open_log(uris[0])
    assert log.open_log(uris[0]) is first
    for uri in uris[1:]:
        log.open_log(uri)
    assert log.open_log(uris[0]) is not first
