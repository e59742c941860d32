"""A finding, and the facts that rules look at. The rules are in `findings`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from engagement_platform.maintenance.layout import remedies
from engagement_platform.maintenance.layout.remedies import Prediction
from engagement_platform.maintenance.layout.statistics import Totals
from engagement_platform.maintenance.layout.survey import Survey
from engagement_platform.settings import HealthSettings

Severity = Literal["info", "warning", "error"]

_WORST = 5
"""Partitions named in the evidence."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a table: by a stable code, with its evidence, what it means and what to do.

    partition: the worst one, for what is wrong with partitions. gain: what OPTIMIZE would make of it; None where the
    remedy is another one.
    """

    code: str
    severity: Severity
    table: str
    partition: str | None
    evidence: Mapping[str, object]
    what: str
    remedy: str
    gain: Prediction | None

    def as_json(self) -> dict[str, object]:
        """The finding with the names that JSON output has."""
        gain = None if self.gain is None else self.gain.as_json()
        return {**vars(self), "evidence": dict(self.evidence), "gain": gain}


@dataclass(frozen=True)
class Facts:
    """All that the rules look at.

    due: bytes of each removed file whose retention is over and that no VACUUM has deleted since. compressed: of each
    file whose footer was read, whether it is. ours: whether the table is in the lake, where writers take its commit
    lock. orders: whether maintenance would order the table by the clustering column: not by one that only the call
    names.
    """

    seen: Survey
    totals: Totals
    due: Sequence[int]
    compressed: Sequence[bool]
    shuffle_partitions: int
    ours: bool
    orders: bool

    @property
    def name(self) -> str:
        """Of the table."""
        return self.seen.target.name

    @property
    def partitioned_by(self) -> tuple[str, ...]:
        """Columns of the table's folders."""
        return self.seen.shape.partitioned_by

    @property
    def optimize_sql(self) -> str:
        """OPTIMIZE for the whole table, as Spark SQL; Z-ordered when there is a column to order by."""
        plain = f"OPTIMIZE delta.`{self.seen.target.uri}`"
        return f"{plain} ZORDER BY ({self.seen.order_by})" if self.seen.order_by else plain

    def optimize(self, more: str = "") -> str:
        """What merges files and orders them. more: options of the command."""
        return self.command("optimize", self.optimize_sql, more) if self.orders else self.optimize_sql

    def command(self, command: str, sql: str, more: str = "") -> str:
        """The platform's command; for a table of another house Spark SQL as well.

        Spark SQL takes no lock, so beside the platform's own writers it would conflict with one of them.
        """
        call = f"engagement-platform {command} {shlex.quote(self.name)}{more}"
        return call if self.ours else f"{call} (or in Spark: {sql})"

    def rewriting(self, affected: pa.Table, limits: HealthSettings) -> Prediction:
        """What OPTIMIZE would make of these partitions."""
        return (remedies.zorder if self.seen.order_by else remedies.optimize)(affected, limits.target_file_bytes)

    def worst(self, affected: pa.Table, by: str) -> dict[str, object]:
        """How many partitions are affected, and the worst of them with the figure that makes them so."""
        if not self.partitioned_by:
            return {}
        worst = affected.sort_by([(by, "descending"), ("partition", "ascending")]).slice(0, _WORST)
        return {
            "partitions": affected.num_rows,
            "partitions_in_table": self.totals.partitions,
            "worst": {row["partition"]: row[by] for row in worst.select(["partition", by]).to_pylist()},
        }

    def wrong(
        self,
        rule: Callable[..., object],
        severity: Severity,
        evidence: Mapping[str, object],
        what: str,
        remedy: str,
        gain: Prediction | None = None,
        partition: str | None = None,
    ) -> Finding:
        """A finding of a rule about this table."""
        return Finding(rule.__name__, severity, self.name, partition or None, evidence, what, remedy, gain)


def more_than_share(part: int, whole: int, share: float) -> bool:
    """Whether part / whole exceeds a share. Exactly the share does not, nor does anything of nothing.

    In millionths and integers, because in floats the 29th of 100 already exceeds 0.29: 0.29 * 100 is
    28.999999999999996.
    """
    return part * 1_000_000 > round(share * 1_000_000) * whole
