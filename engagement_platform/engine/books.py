"""What becomes of the records of a batch: the counts that have to add up, and the errors of a batch that has not ended.

Running a batch is `job`.
"""

from __future__ import annotations

from engagement_platform.engine.model import Counts, Manifest
from engagement_platform.errors import PlatformError

ENDS = ("landed", "duplicates", "quarantined", "erased")
"""What becomes of a record that a batch received. erased: of somebody who was erased, and kept nowhere."""


def accounted(counts: Counts) -> int:
    """How many records these counts account for."""
    return sum(counts.get(name, 0) for name in ENDS)


class BooksDoNotBalance(PlatformError):
    """A batch would lose or invent records; it is not finalized."""

    def __init__(self, manifest: Manifest, counts: Counts) -> None:
        self.counts = counts
        received, landed = counts.get("rows_in", 0), counts.get("landed", 0)
        duplicates, quarantined = counts.get("duplicates", 0), counts.get("quarantined", 0)
        super().__init__(
            f"{manifest} received {received} records but accounts for {accounted(counts)} ({landed} landed, "
            f"{duplicates} known duplicates, {quarantined} quarantined, {counts.get('erased', 0)} erased). The batch "
            "stays unfinished and is tried again by the next run; nothing after it is read. This is a defect: please "
            "report it with the output of `engagement-platform verify`."
        )


class BatchFailed(PlatformError):
    """Spark gave up in the middle of a batch."""

    def __init__(self, manifest: Manifest, error: Exception) -> None:
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
        super().__init__(
            f"{manifest} stopped: {type(error).__name__}: {first[:300]}. What its finished processes wrote stays and "
            "is not written again; the next run finishes the batch. The whole text is with the batch in the stores "
            "and in the log of Spark."
        )
