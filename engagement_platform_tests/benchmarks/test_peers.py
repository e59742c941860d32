"""Peers answer what they are asked and end in the rows of a plain loop; one that fails is told of, and others go on."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from benchmarks.budget import Budget
from benchmarks.cells import Cells, Progress, Run
from benchmarks.merge_on_read import Bench, cells, parsed, peer_cells
from benchmarks.merge_on_read_reads import BASE, WHOLE
from benchmarks.merge_on_read_report import Asked
from benchmarks.merge_on_read_ways import MERGE_ON_READ
from benchmarks.peers import client as asking
from benchmarks.peers.client import running
from benchmarks.peers.environment import KINDS, REFERENCE, Environment, Kind, PeerFailedError, made
from benchmarks.peers.measure import AFTER_ROUNDS, AT_END, Data, Notes, Peers
from benchmarks.peers.protocol import files_in, written
from benchmarks.peers.report import APPLY, COMPACT, LOAD, keys, table, waiting
from benchmarks.perftest.data import ENTITY, Generated, Records
from engagement_platform.pipelines.profiles.view import STRATEGIES

SMALL = Asked(
    rows=300, changes=80, dates=20, rounds=1, batches=3, every=10, pending=(0, 80, 160), sizes=(), moved=1, seed=3
)
PLAIN = Kind("plain loop", "reference", jvm=False)

Row = Mapping[str, Any]


def rows_in(folder: Path) -> list[Row]:
    """What a peer handed out, by key."""
    rows: list[Row] = pq.read_table(folder).select(list(ENTITY.view_columns)).to_pylist()
    return sorted(rows, key=lambda row: str(row[ENTITY.key]))


def replayed(records: Records, batches: int) -> list[Row]:
    """What the rows must be: a dictionary, and every change in turn."""
    state = {row[ENTITY.key]: row for part in records.base() for row in part.to_pylist()}
    for number in range(batches):
        for change in records.changes(number).to_pylist():
            if change["op"] == "DELETE":
                state.pop(change[ENTITY.key], None)
                continue
            row = state.setdefault(change[ENTITY.key], dict.fromkeys(ENTITY.view_columns))
            state[change[ENTITY.key]] = {name: row[name] if change[name] is None else change[name] for name in row}
    return sorted(state.values(), key=lambda row: str(row[ENTITY.key]))


def with_many_deletions(folder: Path) -> Data:
    """Batches that meet what an earlier one deleted."""
    return Data(folder, Records(Generated(base_rows=300, changes=120, batches=0, dates=20, delete_percent=30, seed=3)))


def assert_ends_in_the_rows_of_a_plain_loop(environment: Environment, folder: Path, *, compacts: bool = False) -> None:
    """A peer ends in the rows of a plain loop after each of three batches, and after a compaction."""
    data = with_many_deletions(folder / "data")
    with running(environment, folder / "peer", memory="1g", parallelism=2) as (client, versions):
        assert all(versions.values())
        client.ask("table", name="tried", rows=300)
        assert client.step("load", path=str(data.base)).seconds > 0
        for number in range(3):
            client.step("apply", path=str(data.batch(number)))
            expected = replayed(data.records, number + 1)
            assert client.step("read").rows == len(expected)
            client.ask("dump", path=str(folder / f"rows-{number}"))
            assert rows_in(folder / f"rows-{number}") == expected
        if compacts:
            assert client.step("compact").bytes > 0
            client.ask("dump", path=str(folder / "compacted"))
            assert rows_in(folder / "compacted") == expected


def test_a_peer_in_its_own_process_ends_in_the_rows_of_a_plain_loop(tmp_path: Path) -> None:
    assert_ends_in_the_rows_of_a_plain_loop(REFERENCE, tmp_path)


def test_the_last_deletion_is_met_by_a_later_batch(tmp_path: Path) -> None:
    """Otherwise the test above would say nothing of a row that comes back with only some of its words."""
    records = with_many_deletions(tmp_path).records
    deleted = {row[ENTITY.key] for row in records.changes(0).to_pylist() if row["op"] == "DELETE"}
    assert any(row[ENTITY.key] in deleted and row["email"] is None for row in replayed(records, 2))


def test_what_goes_wrong_is_answered_and_the_peer_answers_on(tmp_path: Path) -> None:
    data = with_many_deletions(tmp_path / "data")
    with running(REFERENCE, tmp_path / "peer", memory="1g", parallelism=2) as (client, _):
        with pytest.raises(PeerFailedError, match="load: AssertionError: `table` comes first"):
            client.step("load", path=str(data.base))
        client.ask("table", name="tried", rows=300)
        with pytest.raises(PeerFailedError, match="load: FileNotFoundError"):
            client.step("load", path=str(tmp_path / "nothing"))
        assert client.step("load", path=str(data.base)).bytes == 0


@pytest.mark.parametrize(
    ("does", "within_s", "said"),
    [
        ("import sys; sys.exit('no such module')", 60.0, "ended or took over 60 s; it said: no such module"),
        ("import time; time.sleep(600)", 1.0, "ended or took over 1 s; it said: nothing"),
    ],
    ids=["ended", "late"],
)
def test_a_peer_that_does_not_answer_is_ended(tmp_path: Path, does: str, within_s: float, said: str) -> None:
    module = tmp_path / "benchmarks" / "peers" / "mute.py"
    module.parent.mkdir(parents=True)
    for folder in (module.parent, module.parent.parent):
        (folder / "__init__.py").touch()
    module.write_text(does)
    environment = Environment("mute", Path(sys.executable), ())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asking, "ROOT", tmp_path)
        peer = running(environment, tmp_path / "peer", memory="1g", parallelism=2, within_s=within_s)
        with pytest.raises(PeerFailedError, match=said):
            peer.__enter__()


def test_bytes_are_those_of_files_that_are_new_or_written_anew(tmp_path: Path) -> None:
    (tmp_path / "stays").write_bytes(b"12345")
    (tmp_path / "grows").write_bytes(b"1")
    before = files_in(tmp_path)
    (tmp_path / "grows").write_bytes(b"123")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "new").write_bytes(b"12")
    assert written(before, files_in(tmp_path)) == 5


@dataclass
class Seen:
    """What peers were found to end in."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    times: int = 0

    def agree(self, when: str, folder: Path) -> None:
        self.times += 1
        found = rows_in(folder)
        assert self.rows.setdefault(when, found) == found, f"other rows {when}"


def peers(folder: Path, seen: Seen, kinds: Sequence[Kind], environment: Environment = REFERENCE) -> Peers:
    """A run over the plain loop, in its process, under the names of kinds; the one called broken cannot be had."""

    def make(kind: Kind, _folder: Path) -> Environment:
        if kind.name == "broken":
            raise PeerFailedError("no such package")
        return environment

    run = Run(folder, {})
    found = peer_cells(run)
    total = Progress(len(keys(SMALL, [kind.name for kind in kinds])))
    return Peers(folder / "tables", SMALL, found, total, folder / "environments", seen.agree,
                 seen.rows.__contains__, Notes(run), tuple(kinds), make)  # fmt: skip


def test_a_run_measures_each_peer_once_and_goes_on_after_one_that_fails(tmp_path: Path) -> None:
    seen = Seen()
    broken = replace(PLAIN, name="broken")
    first = peers(tmp_path, seen, (broken, PLAIN))
    first.measure()
    assert list(seen.rows) == [AFTER_ROUNDS, AT_END]
    data = Data(tmp_path / "expected", Records(Generated(base_rows=300, changes=80, batches=0, dates=20, seed=3)))
    assert seen.rows[AT_END] == replayed(data.records, 3)
    # The loop that nobody named, and the peer: each at both times, and once more after what would be a compaction.
    assert seen.times == 6
    assert {cell.key for cell in first.cells} == set(keys(SMALL, [PLAIN.name]))
    assert first.notes.read()["broken"] == "failed: no such package"
    assert first.notes.read()[PLAIN.name].startswith("pyarrow ")
    peers(tmp_path, seen, (PLAIN,)).measure()
    assert seen.times == 6


def test_a_peer_that_ends_in_other_rows_is_told_of_and_not_kept(tmp_path: Path) -> None:
    seen = Seen({AFTER_ROUNDS: [], AT_END: []})
    run = peers(tmp_path, seen, (PLAIN,))
    run.measure()
    assert run.notes.read() == {PLAIN.name: "failed: other rows after the rounds"}
    assert len(run.cells) == 0


def made_up(folder: Path) -> tuple[Cells, Cells, Cells]:
    """Figures of a machine on which the peer costs twice as much as merge on read."""
    run = Run(folder, {})
    writes, reads, _ = cells(run)
    for n in range(3):
        writes.add((MERGE_ON_READ, n), seconds=1.0, bytes=1e6, files_replaced=0)
    for pending in (0, 160):
        reads.add((BASE, WHOLE, pending, 1), seconds=2.0)
        for strategy in STRATEGIES:
            reads.add((strategy, WHOLE, pending, 1), seconds=2.5)
    found = peer_cells(run)
    for key in keys(SMALL, ["Some"]):
        seconds = {LOAD: 50.0, APPLY: 1.5, COMPACT: 5.0}.get(key[1], 3.0 if key[1].endswith(" 0") else 6.0)
        found.add(key, seconds=seconds, bytes=1e6)
    return writes, reads, found


def test_the_table_sets_peers_beside_merge_on_read_and_says_why_one_is_missing(tmp_path: Path) -> None:
    writes, reads, found = made_up(tmp_path)
    shown = table(SMALL, writes, reads, found, {"Some": "some 1.2", "Other": "failed: no such package"})
    rows = list(zip(*(list(column.cells) for column in shown.columns), strict=True))
    assert rows[0] == (MERGE_ON_READ, "1.000", "–", "1.000", "1.00", "1.0", "2.000", "2.500", "1.25")
    assert rows[1] == ("Some (some 1.2)", "1.500", "0.500", "2.000", "1.10", "2.0", "3.000", "6.000", "2.00")
    assert rows[2] == ("Other: failed: no such package", *[""] * 8)


def test_peers_are_read_with_as_many_changes_waiting_as_the_target_speaks_of() -> None:
    options = parsed([])
    assert vars(options).pop("peers") is False
    assert waiting(Asked.of(options)) == 2
    assert waiting(replace(SMALL, pending=(0, 80, 100))) == 1
    assert waiting(replace(SMALL, pending=(0,))) == 0


def test_every_peer_is_pinned_to_exact_versions() -> None:
    for kind in KINDS:
        pins = [line for line in kind.pins.read_text().splitlines() if line and not line.startswith("#")]
        assert pins
        assert all("==" in pin for pin in pins)


@pytest.mark.slow
def test_peers_are_held_against_the_rows_of_merge_on_read(spark: SparkSession, tmp_path: Path) -> None:
    run = Run(tmp_path, {})
    (tmp_path / "tables").mkdir()
    bench = Bench(spark, tmp_path / "tables", SMALL, cells(run), Progress(SMALL.batches + 1), Budget(0))
    bench._write(MERGE_ON_READ, SMALL.batches + 1)
    found = bench.peers(peer_cells(run), Notes(run))
    assert found.known(AFTER_ROUNDS)
    assert found.known(AT_END)
    found.kinds, found.make = (PLAIN,), lambda _kind, _folder: REFERENCE
    found.measure()
    assert {cell.key for cell in found.cells} == set(keys(SMALL, [PLAIN.name])), found.notes.read()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.module)
def test_a_real_peer_ends_in_the_rows_of_a_plain_loop(kind: Kind, tmp_path: Path) -> None:
    try:
        environment = made(kind, Path("artifacts") / "peers")
    except PeerFailedError as failed:
        pytest.skip(f"{kind.name} cannot be installed here: {failed}")
    assert_ends_in_the_rows_of_a_plain_loop(environment, tmp_path, compacts=kind.jvm)
