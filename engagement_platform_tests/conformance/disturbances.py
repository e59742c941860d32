"""What is done to the services, the disk and the stores of a storm of faults."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

DISK_MB = 512

_LIBC = ctypes.CDLL(None, use_errno=True)
_HERE, _EXCHANGE = -100, 2
"""AT_FDCWD and RENAME_EXCHANGE."""


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of its own, which can be full. Needs the right to mount."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def disk_full(folder: Path) -> Iterator[None]:
    """No byte is left on the file system meanwhile."""
    ballast = folder / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * (1 << 20))
    try:
        yield
    finally:
        ballast.unlink()


@contextmanager
def store_locked(path: Path) -> Iterator[None]:
    """Somebody else writes meanwhile."""
    with closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


@contextmanager
def store_down(path: Path) -> Iterator[None]:
    """No new connection to the stores works meanwhile; those that are open keep their files, which only move."""
    away = path.with_name("away")
    # Open all the time: the last connection that is closed would remove files by names that they do not have now.
    with closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        beside = list(path.parent.glob(f"{path.name}-*"))
        (away / path.name).mkdir(parents=True)
        exchange(path, away / path.name)
        for file in beside:
            file.rename(away / file.name)
        connection.execute("ROLLBACK")
        try:
            yield
        finally:
            for file in beside:
                (away / file.name).rename(file)
            exchange(path, away / path.name)
    shutil.rmtree(away)


def exchange(one: Path, other: Path) -> None:
    """Put each where the other is, with no moment at which nothing is there: who opens the stores would make new ones.

    By renameat2 of Linux.
    """
    if _LIBC.renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE):
        raise OSError(ctypes.get_errno(), f"{one} and {other} cannot be exchanged")


def copy_database(source: Path, target: Path) -> None:
    """Copy a database that is in use; over another one that is in use, too."""
    with closing(sqlite3.connect(source, timeout=60)) as old, closing(sqlite3.connect(target, timeout=60)) as new:
        old.backup(new)


def kill_jvm(*words: str) -> None:
    """End the JVM of whose command line, or the folder that it runs in, each word is a part."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_text().split("\0")
            told = [*command, str((process / "cwd").readlink())] if command[0].endswith("java") else []
        except (FileNotFoundError, ProcessLookupError):
            continue
        if told and all(any(word in part for part in told) for word in words):
            os.kill(int(process.name), signal.SIGKILL)
            return
    raise AssertionError(f"no JVM has {words} in its command line or its folder")
