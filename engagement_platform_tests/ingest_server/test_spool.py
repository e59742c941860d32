"""What the spool acknowledged is found again, wherever it was interrupted, and nothing else is made up."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engagement_platform.ingest_server.records import Record, RecordKind, decode, encode
from engagement_platform.ingest_server.spool import Segment, Spool, SpoolDamaged, SpoolFull, SpoolInUse

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


def keep(spool: Spool, *made: Record) -> BaseException | None:
    """Append and wait until it is on disk, or the reason why not."""
    told: list[BaseException | None] = []
    heard = threading.Event()

    def done(failed: BaseException | None) -> None:
        told.append(failed)
        heard.set()

    spool.append(b"".join(map(encode, made)), done)
    assert heard.wait(20), "the spool did not answer within 20 s"
    return told[0]


def numbers(spool: Spool) -> list[bytes]:
    return [record.open for segment in spool.sealed() for record in segment.records()]


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    opened = Spool(tmp_path / "spool", segment_bytes=200, segment_age=AGE, clock=lambda: NOW)
    yield opened
    opened.close()


@given(st.lists(records, max_size=5), st.data())
@settings(deadline=None)
def test_records_come_back_up_to_the_last_whole_one(made: list[Record], data: st.DataObject) -> None:
    content = b"".join(map(encode, made))
    assert [record for record, _ in decode(content, 0)] == made
    cut = data.draw(st.integers(0, len(content)))
    whole = [record for record, _ in decode(content[:cut], 0)]
    assert whole == made[: len(whole)]
    assert len(b"".join(map(encode, made[: len(whole) + 1]))) > cut or len(whole) == len(made)


@given(st.lists(records, min_size=1, max_size=3), st.data())
@settings(deadline=None)
def test_a_changed_byte_is_noticed(made: list[Record], data: st.DataObject) -> None:
    content = bytearray(b"".join(map(encode, made)))
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    assert [record for record, _ in decode(bytes(content), 0)] != made


def test_segments_are_closed_by_size_and_keep_the_order(spool: Spool) -> None:
    for number in range(20):
        assert keep(spool, line(number)) is None
    spool.finish()
    assert numbers(spool) == [line(number).open for number in range(20)]
    assert len(spool.sealed()) > 3
    assert [segment.number for segment in spool.sealed()] == list(range(1, len(spool.sealed()) + 1))
    assert spool.size_bytes == sum(segment.path.stat().st_size for segment in spool.sealed())


def test_many_requests_share_one_fsync(tmp_path: Path) -> None:
    spool = Spool(tmp_path, segment_bytes=10**9, segment_age=AGE)
    left = threading.Semaphore(0)
    for number in range(500):
        spool.append(encode(line(number)), lambda _failed: left.release())
    assert all(left.acquire(timeout=20) for _ in range(500))
    assert spool.commits < 250
    spool.close()
    again = Spool(tmp_path, segment_bytes=10**9, segment_age=AGE)
    assert numbers(again) == [line(number).open for number in range(500)]
    again.close()


def test_a_segment_is_closed_by_age_and_at_the_end_of_the_hour(tmp_path: Path) -> None:
    now = [NOW]
    spool = Spool(tmp_path, segment_bytes=10**9, segment_age=timedelta(hours=5), clock=lambda: now[0])
    keep(spool, line(1))
    now[0] = NOW.replace(minute=59, second=59)
    keep(spool, line(2))
    now[0] = NOW + timedelta(minutes=30)
    keep(spool, line(3))
    assert [record.open for record in spool.sealed()[0].records()] == [line(1).open, line(2).open]
    spool.finish()
    assert [segment.opened for segment in spool.sealed()] == [NOW, NOW + timedelta(minutes=30)]
    spool.close()
    aged = Spool(tmp_path / "aged", segment_bytes=10**9, segment_age=timedelta(milliseconds=20))
    keep(aged, line(1))
    assert aged.sealed_one.wait(20), "a segment without further requests is closed by its age"
    aged.close()


def test_after_a_crash_what_was_acknowledged_is_there_and_the_torn_end_is_not(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "one", segment_bytes=10**9, segment_age=AGE)
    for number in range(3):
        keep(spool, line(number))
    (path,) = (tmp_path / "one").glob("*.open")
    content, header = path.read_bytes(), path.read_bytes().index(b"\n") + 1
    size = len(encode(line(0)))
    for cut in range(len(content) + 1):
        folder = tmp_path / f"cut{cut}"
        folder.mkdir()
        (folder / path.name).write_bytes(content[:cut])
        (folder / "spool").write_text(spool.id)
        (folder / "counter").write_text("1")
        found = Spool(folder, segment_bytes=10**9, segment_age=AGE)
        whole = max(cut - header, 0) // size
        assert numbers(found) == [line(number).open for number in range(whole)]
        found.close()
    spool.close()


def test_a_number_is_never_given_twice_also_when_everything_was_delivered(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []
    for _ in range(3):
        spool = Spool(tmp_path, segment_bytes=1, segment_age=AGE)
        keep(spool, line(1))
        keep(spool, line(2))
        spool.finish()
        for segment in spool.sealed():
            seen.append((segment.spool, segment.number))
            spool.remove(segment)
        assert spool.size_bytes == 0
        spool.close()
    assert [number for _, number in seen] == [1, 2, 3, 4, 5, 6]
    assert len({spool_id for spool_id, _ in seen}) == 1


def test_a_sealed_segment_that_somebody_changed_is_not_passed_over(spool: Spool) -> None:
    keep(spool, *map(line, range(5)))
    spool.finish()
    (segment,) = spool.sealed()
    content = bytearray(segment.path.read_bytes())
    content[-3] ^= 1
    segment.path.write_bytes(content)
    with pytest.raises(SpoolDamaged, match="It stays where it is"):
        list(segment.records())
    assert segment.path.exists()


def test_one_server_works_on_a_spool(spool: Spool) -> None:
    with pytest.raises(SpoolInUse, match="Another ingest server"):
        Spool(spool.folder, segment_bytes=1, segment_age=AGE)


def test_a_full_disk_acknowledges_nothing_and_harms_nothing_that_was(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: writes fail in the middle of a record alike."""
    spool = Spool(tmp_path, segment_bytes=10**9, segment_age=AGE)
    assert keep(spool, line(1)) is None
    (path,) = tmp_path.glob("*.open")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 7, hard))
    try:
        refused = keep(spool, line(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert isinstance(refused, SpoolFull)
    assert keep(spool, line(3)) is None
    spool.finish()
    assert numbers(spool) == [line(1).open, line(3).open]
    spool.close()


def test_after_a_failed_fsync_nothing_is_acknowledged_any_more(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    keep(spool, line(1))
    monkeypatch.setattr(os, "fdatasync", fails)
    assert isinstance(keep(spool, line(2)), SpoolFull)
    monkeypatch.undo()
    with pytest.raises(SpoolFull, match="started again"):
        spool.append(encode(line(3)), lambda _failed: None)


def test_a_segment_names_the_object_by_what_is_in_its_header(spool: Spool) -> None:
    keep(spool, line(1))
    spool.finish()
    (segment,) = spool.sealed()
    assert segment == Segment(segment.path, spool.id, 1, NOW, segment.first)
