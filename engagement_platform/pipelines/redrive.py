"""Marks in quarantine the records of a redrive that landed, so that none is put through twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.model import Counts, Manifest
from engagement_platform.lake.lake import Lake
from engagement_platform.landing.redriven import REDRIVEN, RedriveSource
from engagement_platform.pipelines.parts import COORDINATES, Appends, Received

_RECORD = (*COORDINATES, "key", "value")


class Redrivable(Protocol):
    """A batch whose records may come from quarantine."""

    @property
    def lake(self) -> Lake:
        """Under the settings of the manifest."""
        ...

    @property
    def manifest(self) -> Manifest:
        """Of the batch."""
        ...

    @property
    def raw(self) -> DataFrame:
        """The records as they came."""
        ...

    @property
    def received(self) -> Received:
        """What decoding counted."""
        ...

    @property
    def rejected_by(self) -> dict[str, int]:
        """Reason code -> records that are refused again."""
        ...

    @property
    def rejected(self) -> DataFrame:
        """These records; COORDINATES."""
        ...


@dataclass(frozen=True)
class RedrivenProcess:
    """Marks those records of a redrive that landed, or were known: a second redrive passes them by."""

    source: RedriveSource
    name: str = "redriven"
    commits: tuple[str, ...] = ("append",)

    def run(self, work: Redrivable, commit: Committer) -> Counts:
        """Counts: redriven, files, bytes, commits."""
        done = work.received.rows_in - sum(work.rejected_by.values())
        if not done:
            return {"redriven": 0}
        rows = work.raw.select(*_RECORD).join(work.rejected.select(*COORDINATES), list(COORDINATES), "left_anti")
        why = f"Refused as {self.source.reason}; landed, or known, since."
        appends = Appends(work.lake, work.manifest, commit)
        marks = rows.withColumns({"reason_code": F.lit(REDRIVEN), "reason": F.lit(why)})
        appends.add("append", self.source.table, marks, done)
        return {"redriven": done, **appends.counts()}
