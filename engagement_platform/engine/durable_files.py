"""Replaces files so that readers, also after a crash of the machine, find the old or the new content, whole."""

from __future__ import annotations

import os
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


def write_durably(path: Path, content: bytes, mode: int = 0o644, *, replace: bool = True) -> None:
    """The same with all of its content at once."""
    with replacing(path, mode, replace=replace) as file:
        file.write(content)
