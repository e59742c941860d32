"""What unfinished batches, restores and erasures still read of a table; nothing of that may be removed.

Removing is `vacuum`. Who follows a table by what is appended to it is there, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from engagement_platform.engine.job import Stores
from engagement_platform.engine.model import BatchRecord
from engagement_platform.engine.unfinished_batches import how_to_finish, versions_read
from engagement_platform.errors import PlatformError
from engagement_platform.layout import files
from engagement_platform.layout.doctor import Target
from engagement_platform.layout.segment import segment


def vacuum_of(table: str) -> str:
    """The table lease that VACUUM holds while it removes files, and a restore while it begins.

    Between a plan that found every file and the manifest that names the version, no VACUUM may come.
    """
    return f"{table}, vacuum"


@dataclass(frozen=True)
class Read:
    """A version that is not the newest and that an unfinished batch reads when it is resumed."""

    batch: BatchRecord
    version: int
    files: int | None
    """How many files no newer version has. None: its log entries are gone, so nobody can tell."""

    def __str__(self) -> str:
        what = f"{self.files:,} files of it are in no newer one" if self.files is not None else "its log has expired"
        return f"{self.batch.manifest} ({self.batch.state}) reads version {self.version}, and {what}"


class StillRead(PlatformError):
    """Files were to be removed that an unfinished batch, restore or erasure reads."""

    def __init__(self, table: str, reads: Sequence[Read]) -> None:
        self.table, self.reads = table, tuple(reads)
        jobs = dict.fromkeys(read.batch.manifest.job for read in reads)
        super().__init__(
            f"{table} cannot be vacuumed now: {'; '.join(map(str, reads))}. Nothing was removed. First finish it: "
            f"{'; '.join(map(how_to_finish, jobs))}. Then ask again."
        )


def reads_of(table: Target, stores: Stores) -> list[Read]:
    """Every version below the newest that an unfinished batch names, oldest first, whether it would lose files or not.

    Cost: one query; for each such version its log is read. Raises NotADeltaTable, LogNotReadable.
    """
    named = [(v, batch) for batch in stores.checkpoints.unfinished() for v in versions_read(batch.manifest, table.name)]
    if not named:
        return []
    opened = files.open_table(table.uri, table.name)
    newest, live = opened.version(), _files(opened, table.uri)
    found = []
    for version, batch in sorted(named, key=lambda one: (one[0], one[1].manifest.job)):
        if version >= newest:
            continue
        try:
            opened.load_as_version(version)
            lost: int | None = len(_files(opened, table.uri) - live)
        except DeltaError:
            lost = None
        found.append(Read(batch, version, lost))
    return found


def refuse_still_read(table: Target, stores: Stores) -> None:
    """Raise StillRead where files would be lost that an unfinished batch reads. By versions, never by clocks."""
    if losing := [read for read in reads_of(table, stores) if read.files != 0]:
        raise StillRead(table.name, losing)


def _files(opened: DeltaTable, uri: str) -> set[str]:
    """Paths of files with rows, and what each deletion vector is: it is replaced while the rows' file stays."""
    paths = set(pa.table(opened.get_add_actions()).column("path").to_pylist())
    if not files.shape(opened).deletion_vectors:
        return paths
    vectors = files.deletion_vectors(segment(uri, opened.version()))
    return paths | {f"{path}#{vectors[path]}" for path in paths if vectors.get(path)}
