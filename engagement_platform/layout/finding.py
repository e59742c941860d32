"""A finding, the facts that rules look at, and the words that rules share. The rules are in `findings`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.layout.commits import Recent
from engagement_platform.layout.disk import Leftovers
from engagement_platform.layout.files import Footers, Shape
from engagement_platform.layout.remedies import Prediction
from engagement_platform.layout.statistics import Statistics

Severity = Literal["info", "warning", "error"]
Evidence = Mapping[str, object]

FAR = 10
"""So many times a limit is an error and no longer a warning (a guess)."""
_WORST = 5
"""Partitions named in the evidence."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a table: by a stable code, with its evidence, what it means and what to do.

    partition: the worst one, for what is wrong with partitions. gain: what the remedy would gain, when that can be
    predicted.
    """

    code: str
    severity: Severity
    table: str
    partition: str | None
    evidence: Evidence
    what: str
    remedy: str
    gain: Prediction | None = None

    def as_json(self) -> dict[str, object]:
        """The finding with the names that JSON output has."""
        return {**vars(self), "evidence": dict(self.evidence), "gain": self.gain.as_json() if self.gain else None}


@dataclass(frozen=True)
class Facts:
    """All that the rules look at."""

    statistics: Statistics
    shape: Shape
    recent: Recent
    leftovers: Leftovers
    footers: Footers
    shuffle_partitions: int
    ours: bool = False
    """Whether the table lies in the lake, where writers take turns."""
    orders: bool = True
    """Whether maintenance would order the table by `clustering`, as it does by a column that nobody has to name."""

    @property
    def clustering(self) -> str | None:
        """The column whose ranges decide which files are skipped."""
        return self.statistics.clustering[0] if self.statistics.clustering else None

    @property
    def optimize(self) -> str:
        """What merges files and orders them: a command, and for a table of another house Spark SQL as well."""
        return self._call("optimize {}", self.optimize_sql) if self.orders else self.optimize_sql

    @property
    def optimize_further(self) -> str:
        """The same up to the larger target, for files that the daily round takes for large enough."""
        return self._call("optimize {} --second-round", self.optimize_sql) if self.orders else self.optimize_sql

    @property
    def vacuum(self) -> str:
        """What removes files that nobody may need; as `optimize`."""
        return self._call("vacuum {}", f"VACUUM delta.`{self.statistics.uri}`")

    def _call(self, command: str, sql: str) -> str:
        # Spark SQL takes no turn, so beside the platform's own writers it would conflict with one of them.
        call = f"engagement-platform {command.format(shlex.quote(self.statistics.table))}"
        return call if self.ours else f"{call} (or in Spark: {sql})"

    @property
    def optimize_sql(self) -> str:
        """OPTIMIZE for the whole table, as Spark SQL; Z-ordered when there is a column to order by."""
        plain = f"OPTIMIZE delta.`{self.statistics.uri}`"
        zorder = self.clustering and not self.recent.clustered_by
        return f"{plain} ZORDER BY ({self.clustering})" if zorder else plain


def more_than_share(part: int, whole: int, share: float) -> bool:
    """Whether part / whole exceeds a share. Exactly the share does not, nor does anything of nothing.

    In millionths and integers, because in floats the 29th of 100 already exceeds 0.29: 0.29 * 100 is
    28.999999999999996.
    """
    return part * 1_000_000 > round(share * 1_000_000) * whole


def partitions_of(facts: Facts, affected: pa.Table, by: str) -> dict[str, object]:
    """How many partitions are affected, and the worst of them with the figure that makes them so."""
    if not facts.statistics.partitioned_by:
        return {}
    worst = affected.sort_by([(by, "descending"), ("partition", "ascending")]).slice(0, _WORST)
    told: dict[str, object] = {
        "partitions": affected.num_rows,
        "partitions_in_table": facts.statistics.totals.partitions,
        "worst": {row["partition"]: row[by] for row in worst.select(["partition", by]).to_pylist()},
    }
    if not facts.statistics.complete:
        told["partitions_looked_at"] = facts.statistics.partitions.num_rows
    return told


def most(rows: pa.Table, by: str) -> dict[str, Any]:
    """The row with the largest figure; of equals the first by name."""
    first: dict[str, Any] = rows.sort_by([(by, "descending"), ("partition", "ascending")]).slice(0, 1).to_pylist()[0]
    return first


def total(rows: pa.Table, name: str) -> int:
    return int(pc.sum(rows.column(name)).as_py() or 0)


def readable(count: int) -> str:
    """A size for people, in powers of 1,024.

    >>> readable(7 * 1024), readable(512_000), readable(3 * 1024**3)
    ('7 KB', '500 KB', '3 GB')
    """
    size = float(count)
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if size >= 10 or size == int(size) else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TB"
