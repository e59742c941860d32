"""Replaces files so that readers, also after a crash of the machine, find the old or the new content, whole; and makes
folders and files that are for their owner only, whatever the umask of the program is.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path, mode: int = 0o644, *, replace: bool = True) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` at the end; after an error nothing of it is left.

    replace=False: raises FileExistsError where there is one already.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if replace:
            temporary.replace(path)
        else:
            path.hardlink_to(temporary)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_durably(path: Path, content: bytes, *, replace: bool = True) -> None:
    """The same with all of its content at once, for the owner only."""
    with replacing(path, 0o600, replace=replace) as file:
        file.write(content)


def private_folder(folder: Path) -> None:
    """Make a folder and what is missing above it for their owner only: `mkdir` gives its mode to the last one alone."""
    if not folder.is_dir():
        private_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def private_file(path: Path) -> None:
    """Make an empty file for its owner only where none is, and its folder. SQLite gives those beside it the same mode.

    Under another name first: when a process closes a file, the system drops the locks that SQLite has on it there.
    """
    private_folder(path.parent)
    if path.exists():
        return
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(descriptor)
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        pass
    except OSError:
        # A file system without hard links.
        path.touch(0o600)
    finally:
        Path(temporary).unlink()
