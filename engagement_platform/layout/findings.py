"""What is unhealthy about a table's layout: all rules, from measured facts to findings with stable codes.

Pure. Measuring is `statistics`, `commits` and `disk`; what mending would gain is `remedies`. A figure exactly at a
limit is healthy, and so is a table without files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from engagement_platform.layout import file_rules, log_rules
from engagement_platform.layout.finding import Facts, Finding, Severity
from engagement_platform.settings import HealthSettings

RULES: tuple[Callable[[Facts, HealthSettings], Iterator[Finding]], ...] = (
    file_rules.small_files,
    file_rules.too_many_files,
    file_rules.skewed_partitions,
    file_rules.scattered_writes,
    file_rules.parallelism_limit,
    file_rules.clustering_overlap,
    log_rules.unindexed_clustering,
    log_rules.uncompressed,
    log_rules.stale_checkpoint,
    log_rules.vacuum_due,
    log_rules.orphan_files,
)
"""Each is called as the code of its findings."""

CODES = tuple(rule.__name__ for rule in RULES)


def findings(facts: Facts, limits: HealthSettings) -> list[Finding]:
    """Everything that is wrong, most severe first, otherwise in the order of RULES."""
    found = [finding for rule in RULES for finding in rule(facts, limits)]
    order: dict[Severity, int] = {"error": 0, "warning": 1, "info": 2}
    return sorted(found, key=lambda finding: order[finding.severity])
