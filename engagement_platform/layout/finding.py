"""A finding, the facts that rules look at, and the words that rules share. The rules are in `findings`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.layout import remedies
from engagement_platform.layout.delta_log import Recent
from engagement_platform.layout.disk import Leftovers
from engagement_platform.layout.files import Footers, Shape
from engagement_platform.layout.remedies import Prediction
from engagement_platform.layout.statistics import Statistics
from engagement_platform.settings import HealthSettings

Severity = Literal["info", "warning", "error"]

_WORST = 5
"""Partitions named in the evidence."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a table: by a stable code, with its evidence, what it means and what to do.

    partition: the worst one, for what is wrong with partitions. gain: what the remedy would gain.
    """

    code: str
    severity: Severity
    table: str
    partition: str | None
    evidence: Mapping[str, object]
    what: str
    remedy: str
    gain: Prediction

    def as_json(self) -> dict[str, object]:
        """The finding with the names that JSON output has."""
        return {**vars(self), "evidence": dict(self.evidence), "gain": self.gain.as_json()}


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
    """Whether maintenance would order the table by `clustering`: not by a column that only the call names."""

    @property
    def clustering(self) -> str | None:
        """The column whose ranges decide which files are skipped."""
        return self.statistics.clustering[0] if self.statistics.clustering else None

    def optimize(self, more: str = "") -> str:
        """What merges files and orders them. more: options of the command."""
        return self.command(f"optimize {{}}{more}", self.optimize_sql) if self.orders else self.optimize_sql

    @property
    def vacuum(self) -> str:
        """What removes files that nobody may need."""
        return self.command("vacuum {}", f"VACUUM delta.`{self.statistics.uri}`")

    def command(self, command: str, sql: str) -> str:
        """The platform's command; for a table of another house Spark SQL as well.

        Spark SQL takes no turn, so beside the platform's own writers it would conflict with one of them.
        """
        call = f"engagement-platform {command.format(shlex.quote(self.statistics.table))}"
        return call if self.ours else f"{call} (or in Spark: {sql})"

    @property
    def optimize_sql(self) -> str:
        """OPTIMIZE for the whole table, as Spark SQL; Z-ordered when there is a column to order by."""
        plain = f"OPTIMIZE delta.`{self.statistics.uri}`"
        return f"{plain} ZORDER BY ({self.clustering})" if self._z_orders else plain

    @property
    def _z_orders(self) -> bool:
        return self.clustering is not None and not self.recent.clustered_by

    def rewriting(self, affected: pa.Table, limits: HealthSettings) -> Prediction:
        """What OPTIMIZE would make of these partitions."""
        return (remedies.zorder if self._z_orders else remedies.optimize)(affected, limits.target_file_bytes)

    def worst(self, affected: pa.Table, by: str) -> dict[str, object]:
        """How many partitions are affected, and the worst of them with the figure that makes them so."""
        if not self.statistics.partitioned_by:
            return {}
        worst = affected.sort_by([(by, "descending"), ("partition", "ascending")]).slice(0, _WORST)
        return {
            "partitions": affected.num_rows,
            "partitions_in_table": self.statistics.totals.partitions,
            "worst": {row["partition"]: row[by] for row in worst.select(["partition", by]).to_pylist()},
        }


@dataclass(frozen=True)
class Wrong:
    """A finding without its code and its table, which every finding of a rule shares."""

    severity: Severity
    evidence: Mapping[str, object]
    what: str
    remedy: str
    gain: Prediction
    partition: str | None = None


def more_than_share(part: int, whole: int, share: float) -> bool:
    """Whether part / whole exceeds a share. Exactly the share does not, nor does anything of nothing.

    In millionths and integers, because in floats the 29th of 100 already exceeds 0.29: 0.29 * 100 is
    28.999999999999996.
    """
    return part * 1_000_000 > round(share * 1_000_000) * whole


def most(rows: pa.Table, by: str) -> dict[str, Any]:
    """The row with the largest figure; of equals the first by name."""
    first: dict[str, Any] = rows.sort_by([(by, "descending"), ("partition", "ascending")]).slice(0, 1).to_pylist()[0]
    return first


def total(rows: pa.Table, name: str) -> int:
    return int(pc.sum(rows.column(name)).as_py() or 0)


def largest(rows: pa.Table) -> int:
    return int(pc.max(rows.column("bytes")).as_py() or 0)
