"""A file that is replaced has its old or its new content, whole, wherever the process ends that replaces it."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from engagement_platform.engine.durable_files import replacing, write_durably

OLD, NEW = b"old" * 1000, b"new" * 2000
CALLS = ("open", "fsync", "replace", "unlink", "close")
"""Calls of the system, before and after each of which a process is killed."""


def _writes(path: Path, at: int) -> None:
    """Replace the content, and be killed at the given one of all places between calls of the system."""
    places = iter(range(at + 1))

    def passes() -> None:
        if next(places, None) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    for name in CALLS:
        setattr(os, name, _between(getattr(os, name), passes))
    write_durably(path, NEW)


def _between(call: object, passes: object) -> object:
    def called(*given: object, **named: object) -> object:
        passes()  # type: ignore[operator]
        done = call(*given, **named)  # type: ignore[operator]
        passes()  # type: ignore[operator]
        return done

    return called


def _killed(path: Path) -> Iterator[bytes]:
    """What is in the file after a process was killed, for each place where it can be."""
    forking = multiprocessing.get_context("fork")
    for at in range(100):
        path.write_bytes(OLD)
        process = forking.Process(target=_writes, args=(path, at))
        process.start()
        process.join(60)
        if process.exitcode == 0:
            return
        assert process.exitcode == -signal.SIGKILL
        yield path.read_bytes()


def test_a_process_that_is_killed_anywhere_leaves_the_old_or_the_new_content(tmp_path: Path) -> None:
    found = list(_killed(tmp_path / "file"))
    assert found == sorted(found, reverse=True), "once it is new it stays so"
    assert set(found) == {OLD, NEW}
    assert (tmp_path / "file").read_bytes() == NEW


def test_what_raises_in_between_leaves_nothing_beside_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(OLD)

    def dies() -> None:
        with replacing(path) as file:
            file.write(NEW[:100])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dies()
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("file", OLD)]


def test_a_file_that_is_there_is_kept_where_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_durably(path, OLD, replace=False)
    with pytest.raises(FileExistsError):
        write_durably(path, NEW, replace=False)
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("file", OLD)]
    assert path.stat().st_mode & 0o777 == 0o600
