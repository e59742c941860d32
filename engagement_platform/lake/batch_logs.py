"""Reads from the logs of a lake's tables which batches have written: their transactions, and the manifests in commits.

The engine compares that with its stores and decides how the two are brought together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from engagement_platform.engine.model import Manifest, Transaction, manifest_from
from engagement_platform.engine.table_logs import Held, Note, TableLogs, other_manifest
from engagement_platform.errors import PlatformError, first_line
from engagement_platform.lake import log

# job@generation.token/process/commit
_BY_A_JOB = re.compile(r"(?P<app>(?P<job>.+)@\d+\.[^/@]+)/(?P<commit>[^/]+/[^/]+)", re.DOTALL)
_CHECKPOINT = re.compile(r"(?P<version>\d{20})\.checkpoint(\..+)?\.(?P<kind>parquet|json)")

_WITHOUT_BATCHES = frozenset({"import"})
"""Jobs whose transactions are of no batch: an import keeps its progress in tables."""

_AT_ONCE = 8
"""Logs read at a time: on an object store each waits for a few requests (a guess)."""


class LogUnreadable(PlatformError):
    """The log of a table does not say which batches it holds."""

    def __init__(self, uri: str, cause: Exception) -> None:
        super().__init__(
            f"The log of the table {uri} cannot be read ({type(cause).__name__}: {first_line(cause)}), so it is not "
            "known which batches it holds, and no job begins another one. Nothing was written. Put its _delta_log back "
            "from a copy, or, where nobody needs the table, move its folder out of the lake."
        )


class LakeLogs(TableLogs):
    """The tables under one root."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._ids: dict[str, str | None] = {}

    def _tables(self) -> list[str]:
        return log.tables_anywhere(self.root, hidden=False)

    def held(self, job: str | None = None) -> Sequence[Held]:
        """Transactions of a job, or of all, that tables hold, by table. Called when a run begins: see `ids`.

        Raises LogUnreadable.
        """
        self._ids = {}
        names = self._tables()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            each = list(pool.map(lambda name: held_transactions(f"{self.root}/{name}"), names))
        return [
            Held(name, parts["job"], parts["app"], parts["commit"], version)
            for name, found in zip(names, each, strict=True)
            for app_id, version in sorted(found.items())
            if (parts := _BY_A_JOB.fullmatch(app_id))
            and parts["job"] not in _WITHOUT_BATCHES
            and job in (None, parts["job"])
        ]

    def note(self, held: Held) -> Note | None:
        """The note in the commit of a transaction; None where its entry is no longer in the log."""
        return _note_under(self.root, held.table, Transaction(f"{held.app_id}/{held.commit}", held.batch_id))

    def notes(self) -> Iterator[Note]:
        """The notes of all commits that are still in the logs. Cost: an entry of a log for each commit."""
        for name in self._tables():
            yield from _notes(self.root, name)

    def last_sequence(self) -> int:
        """The greatest sequence that a commit carries: in each table the newest that carries one."""
        newest = (next(_notes(self.root, name), None) for name in self._tables())
        return max((note.manifest.sequence for note in newest if note is not None), default=0)

    def ids(self, tables: Iterable[str]) -> Mapping[str, str]:
        """Delta's ids of those of these tables that are there, each as it was at the first question of a run.

        9 ms a table (delta-rs 1.6, 2 cores), which nine tables would cost every batch. A table that is created again
        under a run is noticed when a batch of that run is resumed.
        """
        wanted = [name for name in tables if "/" in name and ":" not in name]
        for name in wanted:
            if name not in self._ids:
                self._ids[name] = log.table_id(f"{self.root}/{name}")
        return {name: id_ for name in wanted if (id_ := self._ids[name]) is not None}


def newest_batch_commit(uri: str, version: int) -> tuple[str, Manifest] | None:
    """Application id and manifest of the newest commit up to a version that carries a note; None where none does.

    Cost: one entry of the log for each commit that is passed.
    """
    for _, metadata in log.user_metadata(uri, version):
        # Auto compaction commits under the metadata of the write before it.
        note, marker = note_of("", metadata), log.marker_of(metadata)
        if note is not None and marker is not None:
            return marker.rpartition("#")[0], note.manifest
    return None


def note_of(table: str, user_metadata: str | None) -> Note | None:
    """The note of a batch in the user metadata of a commit; None where there is none."""
    _, _, text = (user_metadata or "").rpartition("\n")
    try:
        note = json.loads(text)
        manifest = manifest_from(note["manifest"])
        return Note(table, note["digest"], note["final"], manifest, bool(note.get("abandoned")))
    except (ValueError, KeyError, TypeError):
        return None


def refuse_other(root: str, table: str, txn: Transaction, held: int | None) -> None:
    """Raise StoresBehind when what a table holds under a batch's transaction is not the work of that batch.

    held: the transaction's version in the table; one later than the batch's is never its work.
    """
    if not txn.note or held is None or held < txn.version:
        return
    if held > txn.version:
        raise other_manifest(table, f"{txn.app_id}#{held}")
    note = _note_under(root, table, txn)
    if note is not None and note.digest != txn.digest:
        raise other_manifest(table, txn.marker)


def _note_under(root: str, table: str, txn: Transaction) -> Note | None:
    """The note of the newest commit under a transaction."""
    for _, metadata in log.user_metadata(f"{root}/{table}"):
        if log.marker_of(metadata) == txn.marker:
            return note_of(table, metadata)
    return None


def _notes(root: str, table: str) -> Iterator[Note]:
    """Newest first."""
    notes = (note_of(table, metadata) for _, metadata in log.user_metadata(f"{root}/{table}"))
    return (note for note in notes if note is not None)


def held_transactions(uri: str) -> dict[str, int]:
    """The last version of each application id in the table as it is now; none where there is no table.

    delta-rs only answers for an id that one knows. Cost: a listing of the log, one column of its newest checkpoint, and
    the entries after that, of which one kind of line is parsed. Where that checkpoint is damaged, the one before it, or
    none, and all entries since. Raises LogUnreadable where some of these are gone, or damaged themselves.
    """
    filesystem, path = log.opened(f"{uri}/_delta_log")
    names = log.names(f"{uri}/_delta_log")
    checkpoints = [found for name in names if (found := _CHECKPOINT.fullmatch(name))]
    versions = sorted({found["version"] for found in checkpoints}, reverse=True)
    damage: Exception | None = None
    for version in (*versions, ""):
        entries = sorted(name for name in names if log.ENTRY.fullmatch(name) and name[:20] > version)
        first = int(version) + 1 if version else 0
        whole = range(first, max(first + len(entries), int(versions[0]) + 1 if versions else 0))
        if damage is not None and [int(name[:20]) for name in entries] != list(whole):
            continue
        wanted = [*(found.string for found in checkpoints if found["version"] == version), *entries]
        try:
            return _transactions_in(filesystem, [f"{path}/{name}" for name in wanted])
        except (ValueError, KeyError, OSError, pa.ArrowException) as error:
            damage = damage or error
    assert damage is not None, "the log was read"
    raise LogUnreadable(uri, damage) from damage


def _transactions_in(filesystem: pafs.FileSystem, paths: Iterable[str]) -> dict[str, int]:
    """By checkpoints and entries in this order."""
    held: dict[str, int] = {}
    for path in paths:
        with filesystem.open_input_file(path) as file:
            if path.endswith(".parquet"):
                parquet = pq.ParquetFile(file)
                columns = [name for name in parquet.schema_arrow.names if name == "txn"]
                actions = [row.get("txn") for row in parquet.read(columns=columns).to_pylist()]
            else:
                # Not splitlines(): that splits at separators such as U+2028 too, which bounds may hold.
                actions = [json.loads(line)["txn"] for line in file.read().split(b"\n") if line.startswith(b'{"txn"')]
        held |= {txn["appId"]: txn["version"] for txn in actions if txn is not None and txn["appId"] is not None}
    return held
