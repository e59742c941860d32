"""How the records that a batch may take are shared over the partitions of a topic."""

from __future__ import annotations

from collections.abc import Mapping


def share_budget(backlog: Mapping[int, int], budget: int) -> dict[int, int]:
    """How much of its backlog each partition gives to a batch of at most `budget`.

    All of it when it fits. Otherwise in proportion, every partition that waits at least 1 as long as the budget
    lasts, the longest backlog first; the sum is the budget exactly. Integers only, so a replayed plan is the same.
    """
    total = sum(backlog.values())
    if total <= budget:
        return dict(backlog)
    longest_first = sorted((p for p in backlog if backlog[p]), key=lambda p: (-backlog[p], p))
    taken = dict.fromkeys(backlog, 0)
    for partition in longest_first[:budget]:
        taken[partition] = 1
    left = budget - sum(taken.values())
    beyond = total - sum(taken.values())
    for partition in longest_first:
        taken[partition] += left * (backlog[partition] - taken[partition]) // beyond
    # What rounding down left over is less than one a partition, and each of them has more.
    rest = budget - sum(taken.values())
    for partition in longest_first[:rest]:
        taken[partition] += 1
    return taken
