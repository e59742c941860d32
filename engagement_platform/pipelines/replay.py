"""The source for reading a day again: the offset ranges that its batches recorded.

It gives its batches once per run, whatever the checkpoint says: reading records again is idempotent, so a run that was
interrupted finishes its batch and then starts over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from engagement_platform.engine.model import BatchRecord, JobState, Limits, Offsets, Source

Range = tuple[Offsets, Offsets]


class RecordedRanges:
    """Ranges that batches have read before, oldest first, one batch each."""

    def __init__(self, kafka: Source, ranges: Sequence[Range], identity: Mapping[str, str]) -> None:
        """identity: of the topic that the ranges are of."""
        self._kafka, self._identity = kafka, identity
        self._left = list(ranges)

    def plan(self, start: Offsets | None, limits: Limits, mean_bytes: float | None) -> Range | None:  # noqa: ARG002
        """The next recorded range; None after the last. Raises when the broker no longer has all of it."""
        if not self._left:
            return None
        begin, end = self._left[0]
        self._kafka.check(begin, end)
        return self._left.pop(0)

    def check(self, start: Offsets, end: Offsets) -> None:
        """As the topic itself."""
        self._kafka.check(start, end)

    def identify(self, pinned: Mapping[str, str]) -> Mapping[str, str]:
        """As the topic itself. Raises TopicRecreated when it is not the one that the ranges are of."""
        return self._kafka.identify(pinned or self._identity)

    def size(self, start: Offsets, end: Offsets) -> int | None:
        """As the topic itself."""
        return self._kafka.size(start, end)


def recorded_ranges(records: Iterable[BatchRecord], app_ids: Collection[str]) -> list[Range]:
    """Ranges of the finished batches under these application ids, oldest first.

    Batches from before a reset are to be left out: their offsets may belong to a topic that is gone, and the batches
    after it have read the same records again. Records that only put the job back have read nothing.
    """
    done = [r for r in records if r.state is JobState.SUCCEEDED and r.manifest.app_id in app_ids]
    read = [r.manifest for r in done if r.rewound_by is None]
    return [(manifest.start, manifest.end) for manifest in sorted(read, key=lambda manifest: manifest.batch_id)]
