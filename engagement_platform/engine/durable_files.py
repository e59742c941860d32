"""Replaces small files so that a crash of the machine leaves the old or the new content, whole."""

from __future__ import annotations

import os
import time
from pathlib import Path


def write_durably(path: Path, content: bytes, mode: int = 0o644, *, replace: bool = True) -> None:
    """Write a file by way of a temporary one. replace=False: raises FileExistsError where there is one already."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
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
