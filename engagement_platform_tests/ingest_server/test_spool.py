"""What the spool acknowledged is found again, wherever it was interrupted, and nothing else is made up."""

from __future__ import annotations

import resource
import shutil
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engagement_platform.ingest_server.spool import (
    Record,
    RecordKind,
    Segment,
    Spool,
    SpoolDamaged,
    SpoolFull,
    SpoolInUse,
)

AGE = timedelta(seconds=60)
NOW = datetime(2026, 11, 22, 10, 30, tzinfo=UTC)

records = st.builds(
    Record,
    kind=st.sampled_from(RecordKind),
    game=st.text("abc-1", min_size=1, max_size=10),
    ref=st.sampled_from(["", "0f" * 32]),
    hour=st.integers(0, 2**32 - 1),
    open=st.binary(max_size=40),
    sealed=st.binary(max_size=40),
)


def line(number: int) -> Record:
    return Record(RecordKind.ACCEPTED, "g", "", 1, b'{"n":%d}\n' % number, b"")


def opened(folder: Path, segment_bytes: int = 10**9) -> Spool:
    return Spool(folder, segment_bytes=segment_bytes, segment_age=AGE)


def lines(spool: Spool) -> list[bytes]:
    return [record.open for segment in spool.sealed() for record in spool.records(segment)]


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    made = Spool(tmp_path / "spool", segment_bytes=40, segment_age=AGE, clock=lambda: NOW)
    yield made
    made.close()


@given(made=st.lists(records, min_size=1, max_size=5))
@settings(deadline=None, max_examples=20)
def test_records_come_back_as_they_were(made: list[Record], tmp_path_factory: pytest.TempPathFactory) -> None:
    with closing(opened(tmp_path_factory.mktemp("spool"))) as spool:
        spool.append(made)
        spool.finish()
        [segment] = spool.sealed()
        assert spool.records(segment) == made


def test_segments_are_closed_by_size_and_keep_the_order(spool: Spool) -> None:
    for number in range(20):
        spool.append([line(number)])
    spool.finish()
    assert lines(spool) == [line(number).open for number in range(20)]
    first = int(NOW.timestamp() * 1000)
    assert spool.sealed() == [Segment(spool.id, first + number, NOW) for number in range(len(spool.sealed()))]
    assert len(spool.sealed()) > 3
    assert spool.size_bytes == sum(map(len, lines(spool)))


def test_many_requests_share_one_commit(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as spool, ThreadPoolExecutor(50) as threads:
        list(threads.map(lambda number: spool.append([line(number)]), range(500)))
        assert spool.commits < 500
    with closing(opened(tmp_path)) as again:
        assert sorted(lines(again)) == sorted(line(number).open for number in range(500))


def test_a_segment_is_closed_by_age_and_at_the_end_of_the_hour(tmp_path: Path) -> None:
    now = [NOW]
    spool = Spool(tmp_path, segment_bytes=10**9, segment_age=timedelta(minutes=40), clock=lambda: now[0])
    spool.append([line(1)])
    now[0] = NOW.replace(minute=59, second=59)
    spool.append([line(2)])
    assert spool.sealed() == []
    now[0] = NOW + timedelta(minutes=30)
    spool.append([line(3)])
    [first] = spool.sealed()
    assert [record.open for record in spool.records(first)] == [line(1).open, line(2).open]
    now[0] += timedelta(minutes=40)
    assert [segment.opened for segment in spool.sealed()] == [NOW, NOW + timedelta(minutes=30)], "without an append"
    spool.close()


def test_after_a_crash_what_was_acknowledged_is_there_and_a_torn_commit_is_not(tmp_path: Path) -> None:
    """The files of a server that still writes are what a crash leaves; its log is cut at every 500th byte."""
    with closing(opened(tmp_path / "one")) as spool:
        ends = []
        for number in range(3):
            spool.append([line(number)])
            ends.append((tmp_path / "one" / "spool.db-wal").stat().st_size)
        log = (tmp_path / "one" / "spool.db-wal").read_bytes()
        for cut in range(ends[0], len(log) + 1, 500):
            left = tmp_path / f"cut{cut}"
            shutil.copytree(tmp_path / "one", left, ignore=shutil.ignore_patterns("*-shm"))
            (left / "spool.db-wal").write_bytes(log[:cut])
            with closing(opened(left)) as found:
                whole = sum(cut >= end for end in ends)
                assert lines(found) == [line(number).open for number in range(whole)]
            shutil.rmtree(left)


def test_a_number_is_never_given_twice_also_when_everything_was_delivered(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []
    for _ in range(3):
        with closing(opened(tmp_path, segment_bytes=1)) as spool:
            spool.append([line(1)])
            spool.append([line(2)])
            spool.finish()
            for segment in spool.sealed():
                seen.append((segment.spool, segment.number))
                spool.remove(segment)
            assert spool.size_bytes == 0
    numbers = [number for _, number in seen]
    assert numbers == sorted(set(numbers)), "later ones are higher: the vault goes by the highest that it has"
    assert len(numbers) == 6
    assert len({spool_id for spool_id, _ in seen}) == 1


def test_a_spool_that_is_put_back_from_a_copy_gives_no_number_again(tmp_path: Path) -> None:
    now = [NOW]

    def taken(folder: Path, number: int) -> Segment:
        with closing(Spool(folder, segment_bytes=1, segment_age=AGE, clock=lambda: now[0])) as spool:
            spool.append([line(number)])
            spool.finish()
            return spool.sealed()[-1]

    taken(tmp_path / "spool", 1)
    shutil.copytree(tmp_path / "spool", tmp_path / "copy")
    now[0] += AGE
    after_the_copy = taken(tmp_path / "spool", 2)
    now[0] += AGE
    put_back = taken(tmp_path / "copy", 3)
    assert put_back.spool == after_the_copy.spool
    assert put_back.number > after_the_copy.number


def test_a_clock_that_is_set_back_closes_the_segment(tmp_path: Path) -> None:
    now = [NOW]
    with closing(Spool(tmp_path, segment_bytes=10**9, segment_age=AGE, clock=lambda: now[0])) as spool:
        spool.append([line(1)])
        assert spool.sealed() == []
        now[0] -= timedelta(hours=5)
        assert len(spool.sealed()) == 1


@pytest.mark.parametrize("column", ["open", "sealed", "ref", "game", "hour"])
def test_a_record_that_was_changed_is_not_passed_over(tmp_path: Path, column: str) -> None:
    with closing(opened(tmp_path)) as spool:
        spool.append([Record(RecordKind.ACCEPTED, "g", "0f", 1, b"1", b"2"), line(2)])
        spool.finish()
        other = {"hour": 7, "ref": "0e", "game": "h"}.get(column, b"x")
        with closing(sqlite3.connect(spool.path)) as changed, changed:
            changed.execute(f"UPDATE record SET {column} = ? WHERE place = 1", (other,))
        [segment] = spool.sealed()
        with pytest.raises(SpoolDamaged, match="was changed"):
            spool.records(segment)


def test_a_file_that_is_no_spool_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "spool.db").write_bytes(b"x" * 5000)
    with pytest.raises(SpoolDamaged, match="It stays where it is"):
        opened(tmp_path)
    assert (tmp_path / "spool.db").read_bytes() == b"x" * 5000


def test_one_server_works_on_a_spool(spool: Spool) -> None:
    with pytest.raises(SpoolInUse, match="Another ingest server"):
        opened(spool.path.parent)


def test_a_full_disk_acknowledges_nothing_and_harms_nothing_that_was(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: writes fail in the middle of a commit alike."""
    with closing(opened(tmp_path)) as spool:
        spool.append([line(1)])
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "spool.db-wal").stat().st_size + 7, hard))
        try:
            with pytest.raises(SpoolFull, match="nothing of it was kept"):
                spool.append([line(2)])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        spool.append([line(3)])
        spool.finish()
        assert lines(spool) == [line(1).open, line(3).open]


def test_after_an_error_that_leaves_the_disk_unknown_nothing_is_acknowledged_any_more(spool: Spool) -> None:
    spool.append([line(1)])
    with closing(sqlite3.connect(spool.path)) as other, other:
        other.execute("DROP TABLE record")
    for says in ("no such table", "started again"):
        with pytest.raises(SpoolFull, match=says):
            spool.append([line(2)])
    assert spool.broken is not None


def test_an_error_that_is_not_of_the_database_answers_every_request_too(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_records: list[Record]) -> None:
        raise MemoryError

    monkeypatch.setattr(spool, "_insert", fails)
    with ThreadPoolExecutor(8) as threads:
        answers = [threads.submit(spool.append, [line(number)]) for number in range(8)]
        assert all(isinstance(answer.exception(timeout=20), SpoolFull) for answer in answers)
    assert spool.broken is not None
