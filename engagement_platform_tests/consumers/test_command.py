"""The commands of consumers as people call them, without Spark."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner, Result

from engagement_platform.cli import app
from engagement_platform.consumers import ConsumerRefused, TooFarBehind
from engagement_platform.consumers.current_rows import CurrentRows
from engagement_platform.consumers.output import OutputFailed
from engagement_platform.engine.cursors import CursorStore
from engagement_platform.engine.model import Transaction
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.engagement import NOTIFICATION
from engagement_platform_tests import plant
from engagement_platform_tests.consumers.lakes import PlainLake
from engagement_platform_tests.consumers.test_changes import land, vacuum
from engagement_platform_tests.pipelines.kafka_tables.clicks import CLICK
from engagement_platform_tests.pipelines.mutations.histories import convert, delete


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlainLake:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path))
    made = PlainLake(tmp_path)
    land(made, "e1", "e2")
    return made


def called(*words: str) -> Result:
    return CliRunner().invoke(app, words)


def consumed(*words: str, name: str = "scoring") -> list[dict[str, Any]]:
    result = called("consume", "--name", name, *words)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_each_change_is_a_line_and_the_next_call_goes_on(lake: PlainLake) -> None:
    first = consumed()
    assert [(row["change_type"], row["engagement_id"], row["person_id"]) for row in first] == [
        ("INSERT", "e1", "p1"),
        ("INSERT", "e2", "p1"),
    ]
    assert first[0]["engagement"]["type"] == "email"
    assert consumed() == []
    lake.ask([convert("c1", "p1", "p2", 20, engagement_id="e1"), delete("d1", 20, engagement_id="e2")])
    second = {row["engagement_id"]: row for row in consumed("--column", "person_id")}
    told = {name: (row["change_type"], row["person_id"], row["previous_person_id"]) for name, row in second.items()}
    assert told == {"e1": ("UPDATE", "p2", "p1"), "e2": ("DELETE", None, "p1")}
    assert "engagement" not in second["e1"]


def test_lines_are_appended_to_a_file_and_a_snapshot_takes_their_place(lake: PlainLake, tmp_path: Path) -> None:
    out = tmp_path / "changes.jsonl"
    consumed("--out", str(out))
    land(lake, "e3")
    consumed("--out", str(out))
    assert [json.loads(line)["engagement_id"] for line in out.read_text().splitlines()] == ["e1", "e2", "e3"]
    lake.ask([delete("d1", 20, engagement_id="e1")])
    consumed("--out", str(out), "--resnapshot")
    assert sorted(json.loads(line)["engagement_id"] for line in out.read_text().splitlines()) == ["e2", "e3"]


def test_a_batch_is_a_file_that_replaces_itself_when_it_comes_again(
    lake: PlainLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, words = tmp_path / "changes", ("--format", "parquet", "--out", str(tmp_path / "changes"))

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(CursorStore, "move", dies)
        assert called("consume", "--name", "scoring", *words, "--max-rows", "1").exit_code != 0
    consumed(*words, "--max-rows", "1")
    files = sorted(folder.glob("*.parquet"))
    assert [path.name for path in files] == [
        "changes-000000000000-000000000.parquet",
        "changes-000000000001-000000001.parquet",
    ]
    rows = pa.concat_tables([pq.read_table(path) for path in files]).to_pylist()
    assert [(row["change_type"], row["engagement_id"]) for row in rows] == [("INSERT", "e1"), ("INSERT", "e2")]
    consumed(*words, "--resnapshot")
    assert sorted(path.name[:8] for path in folder.iterdir()) == ["_consume", "snapshot"]
    assert pq.read_table(folder).num_rows == 2


def test_a_snapshot_takes_the_place_of_what_the_reader_wrote_and_of_no_other_file(
    lake: PlainLake, tmp_path: Path
) -> None:
    folder = tmp_path / "changes"
    folder.mkdir()
    others = ["changes-2025.parquet", "sales.parquet", "snapshot-of-may.parquet"]
    for name in others:
        pq.write_table(pa.table({"id": [1]}), folder / name)
    words = ("--format", "parquet", "--out", str(folder))
    consumed(*words)
    for new in ("e3", "e4"):
        land(lake, new)
        consumed(*words, "--resnapshot")
    left = {path.name for path in folder.iterdir()}
    assert left.issuperset(others)
    assert {name[:21] for name in left.difference(others)} == {"_consumer", "snapshot-000000000003"}


@pytest.mark.parametrize("claimed", [True, False], ids=["whole", "killed while it claimed the folder"])
def test_a_folder_that_another_consumer_writes_to_is_refused_and_keeps_its_files(
    lake: PlainLake, tmp_path: Path, claimed: bool
) -> None:
    folder = tmp_path / "changes"
    words = ("--format", "parquet", "--out", str(folder))
    consumed(*words)
    if not claimed:
        (folder / "_consumer").write_text("")
    before = sorted(folder.iterdir())
    for more in ((), ("--resnapshot",)):
        result = called("consume", "--name", "backup", *words, *more)
        assert isinstance(result.exception, ConsumerRefused)
        whose = "scoring of engagements in" if claimed else "another consumer"
        assert whose in str(result.exception)
    assert sorted(folder.iterdir()) == before
    assert [one["name"] for one in json.loads(called("consumers", "--json").stdout)["consumers"]] == ["scoring"]


def test_lines_that_were_written_before_the_cursor_moved_come_again_and_none_is_missing(
    lake: PlainLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, words = tmp_path / "changes.jsonl", ("--out", str(tmp_path / "changes.jsonl"), "--max-rows", "1")

    def ids() -> list[str]:
        return [json.loads(line)["engagement_id"] for line in out.read_text().splitlines()]

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(CursorStore, "move", dies)
        assert called("consume", "--name", "scoring", *words).exit_code != 0
    assert ids() == ["e1"]
    consumed(*words)
    assert ids() == ["e1", "e1", "e2"]


def test_the_part_of_a_line_that_a_kill_left_goes_and_its_row_comes_whole(lake: PlainLake, tmp_path: Path) -> None:
    out = tmp_path / "changes.jsonl"
    consumed("--out", str(out))
    with out.open("a") as file:
        # More than is looked at once.
        file.write('{"change_type": "INSERT", "engagement": "' + "a" * 200_000)
    land(lake, "e3")
    consumed("--out", str(out))
    assert [json.loads(line)["engagement_id"] for line in out.read_text().splitlines()] == ["e1", "e2", "e3"]


def test_a_last_line_without_a_newline_stays_and_a_whole_value_that_is_no_object_goes(
    lake: PlainLake, tmp_path: Path
) -> None:
    out = tmp_path / "changes.jsonl"
    consumed()
    for new, last, left in (("e3", '{"engagement_id": "mine"}', ["mine"]), ("e4", "12", [])):
        out.write_text(last)
        land(lake, new)
        consumed("--out", str(out))
        assert [json.loads(line)["engagement_id"] for line in out.read_text().splitlines()] == [*left, new]


def test_a_file_has_what_it_had_until_the_snapshot_is_whole(
    lake: PlainLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, some = tmp_path / "changes.jsonl", CurrentRows.rows
    consumed("--out", str(out))

    def dies(*arguments: Any, **options: Any) -> Iterator[pa.Table]:
        yield next(some(*arguments, **options)).slice(1)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(CurrentRows, "rows", dies)
        assert called("consume", "--name", "scoring", "--out", str(out), "--resnapshot").exit_code != 0
    assert [json.loads(line)["engagement_id"] for line in out.read_text().splitlines()] == ["e1", "e2"]
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".changes")] == []


@pytest.mark.parametrize("words", [(), ("--format", "parquet")], ids=["lines", "parquet"])
@pytest.mark.parametrize("resnapshot", [(), ("--resnapshot",)], ids=["changes", "snapshot"])
def test_a_full_disk_ends_in_one_sentence_and_the_same_call_goes_on(
    lake: PlainLake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    resnapshot: tuple[str, ...],
) -> None:
    out = tmp_path / "changes"

    def is_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("engagement_platform.consumers.output.os.fsync", is_full)
        result = called("consume", "--name", "scoring", "--out", str(out), *words, *resnapshot)
    assert isinstance(result.exception, OutputFailed)
    assert "changes cannot be written: [Errno 28] No space left on device." in str(result.exception)
    consumed("--out", str(out), *words, *resnapshot)
    rows = pq.read_table(out).to_pylist() if words else [json.loads(line) for line in out.read_text().splitlines()]
    assert {row["engagement_id"] for row in rows} == {"e1", "e2"}


def whole(out: Path, *words: str) -> list[str]:
    """Ids of everything that a file or a folder has after a snapshot."""
    consumed("--out", str(out), "--resnapshot", *words)
    rows = pq.read_table(out).to_pylist() if words else [json.loads(line) for line in out.read_text().splitlines()]
    return sorted(row["engagement_id"] for row in rows)


@pytest.mark.parametrize("words", [(), ("--format", "parquet")], ids=["lines", "parquet"])
def test_a_snapshot_that_ends_in_the_middle_is_whole_after_the_same_call(
    lake: PlainLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    out, unlink = tmp_path / "changes", Path.unlink
    consumed("--out", str(out), "--max-rows", "1", *words)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    def dies_at_a_former_one(path: Path, missing_ok: bool = False) -> None:
        if path.name.startswith("changes-"):
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    with monkeypatch.context() as patched:
        if words:
            patched.setattr(Path, "unlink", dies_at_a_former_one)
        else:
            patched.setattr("engagement_platform.consumers.output.os.fsync", dies)
        assert called("consume", "--name", "scoring", "--out", str(out), "--resnapshot", *words).exit_code != 0
    land(lake, "e3")
    assert whole(out, *words) == ["e1", "e2", "e3"]


def test_places_that_cannot_be_written_move_no_cursor(lake: PlainLake, tmp_path: Path) -> None:
    for words in (["--format", "parquet"], ["--out", str(tmp_path)], ["--out", str(tmp_path / "no" / "file")]):
        result = called("consume", "--name", "scoring", *words)
        assert isinstance(result.exception, ConsumerRefused)
    assert called("consume", "--name", "scoring", "--format", "csv").exit_code == 2
    assert len(consumed()) == 2


def test_consumers_are_listed_with_what_waits_and_forgotten(lake: PlainLake, monkeypatch: pytest.MonkeyPatch) -> None:
    consumed()
    land(lake, "e3", "e4")
    (told,) = json.loads(called("consumers", "--json").stdout)["consumers"]
    assert (told["name"], told["waiting"], told["waiting_commits"], told["rows_read"]) == ("scoring", 2, 1, 2)
    assert not told["lost"]
    assert 0 <= told["oldest_waiting_s"] < 60
    assert called("consumers").exit_code == 0
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_CONSUMERS__MAX_LAG", "PT0S")
    late = called("consumers")
    assert late.exit_code == 1
    assert "scoring has 2 changes to read" in late.stderr
    assert "scoring is forgotten" in called("consumers", "--forget", "scoring").output
    again = called("consumers", "--forget", "scoring")
    assert (again.exit_code, again.stderr) == (1, "There is no scoring\n")
    assert json.loads(called("consumers", "--json").stdout)["consumers"] == []


def test_readers_of_rows_are_listed_with_their_table_and_what_waits(
    lake: PlainLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumed()
    uri = CLICK.table.uri(lake.settings.lake)
    plant.create(uri, CLICK.table)

    def click(*names: str) -> None:
        rows = table_of([{"click_id": name} for name in names], CLICK.table)
        plant.append(DeltaTable(uri), rows, Transaction("clicks", DeltaTable(uri).version()))

    click("c1")
    assert called("consume", "--table", CLICK.name, "--name", "report").exit_code == 0
    click("c2", "c3")
    ours, theirs = json.loads(called("consumers", "--json").stdout)["consumers"]
    assert (ours["name"], ours["table"]) == ("scoring", NOTIFICATION.name)
    assert (theirs["name"], theirs["table"], theirs["waiting"], theirs["rows_read"]) == ("report", CLICK.name, 2, 1)
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_CONSUMERS__MAX_LAG", "PT0S")
    assert "report of shop/click has 2 rows to read" in called("consumers").stderr
    for version in (1, 2):
        (Path(uri) / "_delta_log" / f"{version:020}.json").unlink()
    lost = called("consumers")
    assert lost.exit_code == 1
    assert "report of shop/click has been away longer" in lost.stderr
    assert "--forget report --table shop/click" in lost.stderr
    assert "report is forgotten" in called("consumers", "--forget", "report", "--table", CLICK.name).output
    assert len(json.loads(called("consumers", "--json").stdout)["consumers"]) == 1


def test_who_was_away_too_long_is_told_how_to_go_on(lake: PlainLake) -> None:
    consumed()
    land(lake, "e3")
    land(lake, "e4")
    vacuum(lake)
    result = called("consume", "--name", "scoring")
    assert isinstance(result.exception, TooFarBehind)
    assert "`engagement-platform consume --name scoring --resnapshot --out FILE`" in str(result.exception)
    assert len(consumed("--resnapshot")) == 4
    assert consumed() == []
