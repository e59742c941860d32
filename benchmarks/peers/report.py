"""What is measured of the peers, and the table that sets them beside merge on read and MERGE.

Nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table as RichTable

from benchmarks.cells import Cells, right_aligned
from benchmarks.merge_on_read_reads import BASE, WHOLE
from benchmarks.merge_on_read_report import TARGET_PENDING, Asked, Cost, costs, reading, settled
from benchmarks.merge_on_read_ways import COPY_ON_WRITE, MERGE_ON_READ
from engagement_platform.pipelines.profiles.view import STRATEGIES

LOAD, APPLY, COMPACT, READ = "load", "apply", "compact", "read after {}"


def waiting(asked: Asked) -> int:
    """After how many batches peers are read: as many changes as the target speaks of, or the next fewer; 0 for none."""
    most = min(TARGET_PENDING, asked.changes * asked.batches)
    whole = [one // asked.changes for one in asked.pending if one <= most and one % asked.changes == 0]
    return max(whole, default=0)


def keys(asked: Asked, peers: Sequence[str]) -> list[tuple[str, str, str]]:
    """All cells: peer, step, and number of the batch or round."""
    steps = [(LOAD, 0), *((APPLY, n) for n in range(asked.batches)), (COMPACT, 0)]
    read = [(READ.format(after), n) for after in sorted({0, waiting(asked)}) for n in range(1, asked.rounds + 1)]
    return [(peer, step, str(n)) for peer in peers for step, n in (*steps, *read)]


def table(asked: Asked, writes: Cells, reads: Cells, peers: Cells, notes: Mapping[str, str]) -> RichTable:
    """Medians; the first batch and the first read are left out, as for the other ways. A peer that failed has a row
    that says why.
    """
    pending = waiting(asked) * asked.changes
    found = right_aligned(
        f"Peers: batches of {asked.changes:,} changes on {asked.rows:,} rows; one compaction for {asked.every} of them",
        "way",
        *("visible s", "compaction s", "sustained s", "MB written", "times merge on read"),
        *("read s", f"read s, {pending:,} waiting", "times"),
    )
    known = costs(asked, writes)
    mine = known.get(MERGE_ON_READ)
    for way in (MERGE_ON_READ, COPY_ON_WRITE):
        if way in known:
            # The plain table of the others is not read: it has no view.
            base = reading(reads, BASE, WHOLE, pending) if way == MERGE_ON_READ else None
            views = [s for name in STRATEGIES if (s := reading(reads, name, WHOLE, pending)) is not None]
            later = min(views, default=None) if way == MERGE_ON_READ else None
            found.add_row(way, *_written(known[way], mine), *_read(base, later))
    for peer, said in notes.items():
        cost = _cost(asked, peers, peer)
        if cost is None:
            found.add_row(f"{peer}: {said}", *[""] * 8)
            continue
        base, later = (_median(peers, peer, READ.format(n)) for n in (0, waiting(asked)))
        found.add_row(f"{peer} ({said})", *_written(cost, mine), *_read(base, later))
    return found


def _written(cost: Cost, mine: Cost | None) -> list[str]:
    return [
        f"{cost.seconds:.3f}",
        f"{cost.move_s:.3f}" if cost.move_s else "–",
        f"{cost.sustained_s:.3f}",
        f"{(cost.bytes + cost.move_bytes) / 1e6:.2f}",
        f"{cost.sustained_s / mine.sustained_s:.1f}" if mine else "–",
    ]


def _read(base: float | None, later: float | None) -> list[str]:
    shown = ["–" if one is None else f"{one:.3f}" for one in (base, later)]
    return [*shown, f"{later / base:.2f}" if base and later else "–"]


def _cost(asked: Asked, peers: Cells, peer: str) -> Cost | None:
    seconds, size = (peers.figures(name, peer=peer, step=APPLY) for name in ("seconds", "bytes"))
    if not seconds:
        return None
    moved = {name: sum(peers.figures(name, peer=peer, step=COMPACT)) / asked.every for name in ("seconds", "bytes")}
    return Cost(peer, settled(seconds), settled(size), 0.0, moved["seconds"], moved["bytes"])


def _median(peers: Cells, peer: str, step: str) -> float | None:
    found = peers.figures("seconds", peer=peer, step=step)
    return settled(found) if found else None
