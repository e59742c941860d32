"""Measures every peer on the changes that the other ways of writing get, and proves that it ends in the same rows.

Environments are made by `environment`, processes started by `client`; what the figures say is `report`'s.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.cells import Cells, Progress, Run
from benchmarks.merge_on_read_report import Asked
from benchmarks.peers.client import Client, Step, running
from benchmarks.peers.environment import KINDS, REFERENCE, Environment, Kind, PeerFailedError, made
from benchmarks.peers.protocol import OP
from benchmarks.peers.report import APPLY, COMPACT, LOAD, READ, keys, waiting
from benchmarks.perftest.data import ENTITY, Generated, Records

MEMORY, PARALLELISM = "3g", 2
"""Of a peer that runs in a JVM: what the session of the other ways has."""

AFTER_ROUNDS, AT_END = "after the rounds", "at the end"
"""When rows are compared; the product and the ways by hand are compared under the same names."""

Figures = dict[tuple[str, int], Step | None]
Agree = Callable[[str, Path], None]
"""Raises AssertionError unless the Parquet files in a folder hold what the others ended in at that time."""


@dataclass(frozen=True)
class Data:
    """The rows as Parquet files, which every peer can read."""

    folder: Path
    records: Records

    @property
    def base(self) -> Path:
        """The base, written once."""
        file = self.folder / "base.parquet"
        if not file.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            half = file.with_suffix(".half")
            writer = None
            for rows in self.records.base():
                writer = writer or pq.ParquetWriter(half, rows.schema)
                writer.write_table(rows)
            assert writer is not None, "a base has rows"
            writer.close()
            half.rename(file)
        return file

    def batch(self, number: int) -> Path:
        """A batch, written once: what is done, and the words."""
        file = self.folder / f"{number}.parquet"
        if not file.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            pq.write_table(self.records.changes(number).select([OP, *ENTITY.view_columns]), file.with_suffix(".half"))
            file.with_suffix(".half").rename(file)
        return file


@dataclass
class Peers:
    """One run: where its files are, and what is kept."""

    folder: Path
    asked: Asked
    cells: Cells
    progress: Progress
    environments: Path
    agree: Agree
    known: Callable[[str], bool]
    """Whether there is already something to agree with at that time."""
    notes: Notes
    kinds: tuple[Kind, ...] = KINDS
    make: Callable[[Kind, Path], Environment] = field(default=made)

    def measure(self) -> None:
        """Every peer whose figures are not all there; one that fails is noted, and the next one has its turn."""
        for kind in self.kinds:
            missing = [key for key in keys(self.asked, [kind.name]) if key not in self.cells]
            if not missing:
                continue
            self._rows_to_agree_with()
            try:
                self._measure(kind)
            except (PeerFailedError, AssertionError) as failed:
                reason = str(failed).partition("\n")[0][:300]
                self.notes.failed(kind.name, reason)
                self.progress.step(f"peer   {kind.name:18}  failed: {reason}", len(missing))
            else:
                self.progress.step(f"peer   {kind.name:18}  measured", len(missing))

    def _rows_to_agree_with(self) -> None:
        """Where nobody has ended in any rows yet, those that a plain loop ends in."""
        if all(map(self.known, (AFTER_ROUNDS, AT_END))):
            return
        with self._process(REFERENCE, "reference") as (client, _):
            self._steps(client, "whole", self.asked, self._data("whole", self.asked))

    def _measure(self, kind: Kind) -> None:
        environment = self.make(kind, self.environments)
        with self._process(environment, kind.module) as (client, versions):
            small = Asked(rows=3_000, changes=200, dates=50, rounds=1, batches=2, every=10, pending=(0, 200), sizes=(),
                          moved=1, seed=0)  # fmt: skip
            self._steps(client, "warm", small, self._data("warm", small), compare=False)
            found = self._steps(client, "whole", self.asked, self._data("whole", self.asked))
        for (step, n), took in found.items():
            figures = {"seconds": took.seconds, "bytes": took.bytes} if took else {"seconds": None, "bytes": None}
            self.cells.add((kind.name, step, n), **figures)
        self.notes.worked(kind.name, versions)
        shutil.rmtree(self.folder / kind.module)

    def _process(self, environment: Environment, name: str) -> AbstractContextManager[tuple[Client, Mapping[str, str]]]:
        shutil.rmtree(self.folder / name, ignore_errors=True)
        return running(environment, self.folder / name, memory=MEMORY, parallelism=PARALLELISM)

    def _data(self, name: str, asked: Asked) -> Data:
        scale = Generated(
            base_rows=asked.rows, changes=asked.changes, batches=0, dates=asked.dates, seed=asked.seed
        )  # fmt: skip
        return Data(self.folder / f"data-{name}", Records(scale))

    def _steps(self, client: Client, name: str, asked: Asked, data: Data, *, compare: bool = True) -> Figures:
        """All that is measured of one table, in order."""
        client.ask("table", name=name, rows=asked.rows)
        found: Figures = {(LOAD, 0): client.step("load", path=str(data.base))}
        wanted = {0, *([waiting(asked)] if waiting(asked) else [])}
        for applied in range(asked.batches + 1):
            if applied:
                found[APPLY, applied - 1] = client.step("apply", path=str(data.batch(applied - 1)))
            if applied in wanted:
                client.step("read")
                found |= {(READ.format(applied), n): client.step("read") for n in range(1, asked.rounds + 1)}
            if compare and applied == asked.rounds:
                self._compare(client, AFTER_ROUNDS)
        if compare:
            self._compare(client, AT_END)
        try:
            found[COMPACT, 0] = client.step("compact")
        except PeerFailedError as failed:
            if "NotImplementedError" not in str(failed):
                raise
            found[COMPACT, 0] = None
        if compare:
            self._compare(client, AT_END)
        return found

    def _compare(self, client: Client, when: str) -> None:
        out = self.folder / "dumped"
        shutil.rmtree(out, ignore_errors=True)
        client.ask("dump", path=str(out))
        self.agree(when, out)
        shutil.rmtree(out)


class Notes:
    """What no figure says: versions of the peers that worked, reasons of those that did not. A JSON file of the run."""

    def __init__(self, run: Run) -> None:
        self._file = run.folder / "merge_on_read_peers.json"

    def read(self) -> Mapping[str, str]:
        """Peer -> its versions, or "failed: " and the reason."""
        said: Mapping[str, str] = json.loads(self._file.read_text()) if self._file.exists() else {}
        return said

    def worked(self, peer: str, versions: Mapping[str, str]) -> None:
        """With these versions."""
        self._note(peer, ", ".join(f"{name} {number}" for name, number in versions.items()))

    def failed(self, peer: str, reason: str) -> None:
        """For this reason."""
        self._note(peer, f"failed: {reason}")

    def _note(self, peer: str, said: str) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps({**self.read(), peer: said}, indent=1) + "\n")
