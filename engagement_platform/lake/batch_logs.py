"""What the logs of a lake's tables say of batches: which transactions they hold, and the manifests in their commits.

The engine compares that with its stores; how the two are brought together is decided there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq

from engagement_platform.engine.model import Manifest, Transaction, manifest_from
from engagement_platform.engine.table_logs import Held, Note, TableLogs, other_manifest
from engagement_platform.lake import log

# job@generation.token/process/commit
_BY_A_JOB = re.compile(r"(?P<app>(?P<job>.+)@\d+\.[^/@]+)/(?P<commit>[^/]+/[^/]+)", re.DOTALL)

_CHECKPOINT = re.compile(r"(?P<version>\d{20})\.checkpoint(\..+)?\.(?P<kind>parquet|json)")
_ENTRY = re.compile(r"(?P<version>\d{20})\.json")

_WITHOUT_BATCHES = frozenset({"import"})
"""Whose transactions look like a job's and are of no batch: an import keeps its books in tables."""

_AT_ONCE = 8
"""Logs read at a time: on an object store each waits for a few requests (a guess)."""


class LakeLogs(TableLogs):
    """The tables under one root, two folders below it."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._ids: dict[str, str | None] = {}

    def held(self, job: str | None = None) -> Sequence[Held]:
        """Transactions of a job, of None of all jobs, that tables hold, by table. Who asks begins a run: see `ids`."""
        self._ids = {}
        names = log.tables(self.root)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            each = list(pool.map(lambda name: held_transactions(f"{self.root}/{name}"), names))
        return [
            Held(name, said["job"], said["app"], said["commit"], version)
            for name, found in zip(names, each, strict=True)
            for app_id, version in sorted(found.items())
            if (said := _BY_A_JOB.fullmatch(app_id))
            and said["job"] not in _WITHOUT_BATCHES
            and job in (None, said["job"])
        ]

    def note(self, held: Held) -> Note | None:
        """What the commit of a transaction says; None where its entry is no longer in the log."""
        uri = f"{self.root}/{held.table}"
        return find_note(uri, held.table, Transaction(f"{held.app_id}/{held.commit}", held.batch_id))

    def notes(self) -> Iterator[Note]:
        """What all commits say that are still in the logs. Cost: an entry of a log for each commit."""
        for name in log.tables(self.root):
            yield from _notes(f"{self.root}/{name}", name)

    def last_sequence(self) -> int:
        """The greatest sequence that a commit carries: in each table the newest that carries one."""
        newest = (next(_notes(f"{self.root}/{name}", name), None) for name in log.tables(self.root))
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


def find_note(uri: str, name: str, txn: Transaction) -> Note | None:
    """What the newest commit under a transaction says of its batch; None where there is none that says anything."""
    for _, said in log.user_metadata(uri):
        if log.marker_of(said) == txn.marker:
            return note_of(name, said)
    return None


def newest_batch_commit(uri: str, version: int) -> tuple[str, Manifest] | None:
    """Application id and manifest of the newest commit up to a version that says of which batch it is.

    None: none does, as far back as the log has entries. Cost: one entry of the log for each commit that is passed.
    """
    for number in range(version, -1, -1):
        actions = log.entry(uri, number)
        if actions is None:
            return None
        said = next((a["commitInfo"].get("userMetadata") for a in actions if "commitInfo" in a), None)
        # Auto compaction commits under the metadata of the write before it.
        note, marker = note_of("", said), log.marker_of(said)
        if note is not None and marker is not None:
            return marker.rpartition("#")[0], note.manifest
    return None


def note_of(table: str, user_metadata: str | None) -> Note | None:
    """What the user metadata of a commit says of its batch; None where it says nothing."""
    _, _, text = (user_metadata or "").rpartition("\n")
    try:
        said = json.loads(text)
        manifest = manifest_from(said["manifest"])
        return Note(table, said["digest"], said["final"], manifest, bool(said.get("abandoned")))
    except (ValueError, KeyError, TypeError):
        return None


def refuse_other(uri: str, txn: Transaction, held: int | None) -> None:
    """Raise StoresBehind when what a table holds under a batch's transaction is not the work of that batch.

    uri: also as delta-rs spells it. held: the transaction's version in the table; a later one than the batch's is
    never its work.
    """
    if not txn.note or held is None or held < txn.version:
        return
    uri = unquote(uri.removeprefix("file://")).rstrip("/") if uri.startswith("file://") else uri.rstrip("/")
    name = "/".join(uri.split("/")[-2:])
    if held > txn.version:
        raise other_manifest(name, f"{txn.app_id}#{held}")
    note = find_note(uri, name, txn)
    if note is not None and note.digest != txn.digest:
        raise other_manifest(name, txn.marker)


def _notes(uri: str, name: str) -> Iterator[Note]:
    for _, said in log.user_metadata(uri):
        if (note := note_of(name, said)) is not None:
            yield note


def held_transactions(uri: str) -> dict[str, int]:
    """The last version of each application id in the table as it is now; none where there is no table.

    delta-rs says it for an id that one knows; this is for those that one does not. Cost: a listing of the log, one
    column of its newest checkpoint, and the entries after that, of which one kind of line is parsed.
    """
    filesystem, path = log.opened(f"{uri}/_delta_log")
    names = [info.base_name for info in log.listed(filesystem, path)]
    checkpoints = [found for name in names if (found := _CHECKPOINT.fullmatch(name))]
    newest = max((found["version"] for found in checkpoints), default="")
    held: dict[str, int] = {}
    for found in checkpoints:
        if found["version"] == newest:
            with filesystem.open_input_file(f"{path}/{found.string}") as file:
                held |= _in_parquet(file) if found["kind"] == "parquet" else dict(_in_lines(file.read()))
    for name in sorted(name for name in names if (entry := _ENTRY.fullmatch(name)) and entry["version"] > newest):
        with filesystem.open_input_file(f"{path}/{name}") as file:
            held |= dict(_in_lines(file.read()))
    return held


def _in_parquet(file: Any) -> dict[str, int]:
    opened = pq.ParquetFile(file)
    if "txn" not in opened.schema_arrow.names:
        return {}
    rows = opened.read(columns=["txn"]).column("txn").to_pylist()
    return {row["appId"]: row["version"] for row in rows if row is not None and row["appId"] is not None}


def _in_lines(content: bytes) -> Iterator[tuple[str, int]]:
    # Not splitlines(): that splits at separators such as U+2028 too, which stand in bounds as they are.
    for line in content.split(b"\n"):
        if line.startswith(b'{"txn"'):
            action = json.loads(line)["txn"]
            yield action["appId"], action["version"]
