"""What is done to the services, the disk and the stores of a storm of faults."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

DISK_MB = 512


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
        away.mkdir()
        for file in (path, *beside):
            file.rename(away / file.name)
        path.mkdir()
        connection.execute("ROLLBACK")
        try:
            yield
        finally:
            for file in beside:
                (away / file.name).rename(file)
            path.rmdir()
            (away / path.name).rename(path)
    shutil.rmtree(away)


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
