"""The files of a slice where they can be read: on this machine's disk, copied there when they are in an object store.

What is in them is for others to say.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from engagement_platform.importing.files import NothingToImport, SourceFile
from engagement_platform.lake import log

AT_ONCE = 16
"""Files that are copied at the same time: a small object is all waiting for its answer (a guess)."""
_CHUNK_BYTES = 1024 * 1024


def is_here(root: str) -> bool:
    """Whether the files can be read as they are, from any thread.

    Not those of an object store: the client is delta-rs's, and delta-rs asks for rows on a thread of its own, on which
    its client must not be called.
    """
    return "://" not in root


@contextmanager
def at_hand(root: str, files: Sequence[SourceFile]) -> Iterator[tuple[list[str], float]]:
    """(where each file can be read until the block ends, seconds that copying took).

    Copies take as much room, in the folder for temporary files, as the files have. One that is gone is an empty copy;
    whether all are those that were planned, `changed_in` says. Raises NothingToImport when one cannot be copied.
    """
    if is_here(root):
        yield [f"{root}/{file.path}" for file in files], 0.0
        return
    with TemporaryDirectory(prefix="engagement-platform-import-") as folder:
        places = [str(Path(folder, str(number))) for number in range(len(files))]
        began = time.monotonic()
        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(lambda file, place: _copy(root, file, place), files, places))
        yield places, time.monotonic() - began


def changed_in(root: str, files: Sequence[SourceFile]) -> list[str]:
    """Paths of those that are not there any more, or have another size or time than they were planned with."""
    with ThreadPoolExecutor(1 if is_here(root) else AT_ONCE) as threads:
        now = list(threads.map(lambda file: _now(root, file), files))
    return [file.path for file, seen in zip(files, now, strict=True) if seen != (file.bytes, file.modified_ns)]


def _now(root: str, file: SourceFile) -> tuple[int, int]:
    filesystem, path = log.opened(f"{root}/{file.path}")
    (info,) = filesystem.get_file_info([path])
    return int(info.size or 0), int(info.mtime_ns or 0)


def _copy(root: str, file: SourceFile, place: str) -> None:
    filesystem, path = log.opened(f"{root}/{file.path}")
    try:
        with filesystem.open_input_stream(path, compression=None) as opened, Path(place).open("wb") as copied:
            shutil.copyfileobj(opened, copied, _CHUNK_BYTES)
    except FileNotFoundError:
        # Whoever compares it with the plan says so.
        Path(place).touch()
    except OSError as error:
        raise NothingToImport(f"{root}/{file.path}", f"it cannot be copied here ({error})") from error
