"""The source for reading a day again: the offset ranges that its batches recorded.

It gives its batches once per run, whatever the checkpoint says: reading records again is idempotent, so a run that was
interrupted finishes its batch and then starts over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from engagement_platform.engine.model import BatchRecord, JobState, Limits, Offsets
from engagement_platform.settings import KafkaSettings
from engagement_platform.sources.kafka import KafkaSource

Range = tuple[Offsets, Offsets]


class RecordedRanges(KafkaSource):
    """Ranges that batches have read before, oldest first; those that follow on each other make one batch."""

    def __init__(
        self, topic: str, settings: KafkaSettings, ranges: Sequence[Range], identity: Mapping[str, str]
    ) -> None:
        """identity: of the topic that the ranges are of."""
        super().__init__(topic, settings)
        self._left, self._of_ranges = list(ranges), identity

    def plan(self, start: Offsets | None, limits: Limits, mean_bytes: float | None) -> Range | None:  # noqa: ARG002
        """The next recorded range, with those that follow on it as far as they fit; None after the last.

        A batch of each would cost a day of small batches more hours than it has. Raises when the broker no longer has
        all of it.
        """
        if not self._left:
            return None
        most = min(limits.max_records, limits.max_bytes / mean_bytes if mean_bytes else limits.max_records)
        (begin, end), taken = self._left[0], 1
        while taken < len(self._left) and self._left[taken][0] == end:
            further = self._left[taken][1]
            if sum(further.values()) - sum(begin.values()) > most:
                break
            end, taken = further, taken + 1
        self.check(begin, end)
        del self._left[:taken]
        return begin, end

    def identify(self, pinned: Mapping[str, str]) -> Mapping[str, str]:
        """As the topic itself. Raises TopicRecreated when it is not the one that the ranges are of."""
        return super().identify(pinned or self._of_ranges)


def recorded_ranges(records: Iterable[BatchRecord], app_ids: Collection[str]) -> list[Range]:
    """Ranges of the finished batches under these application ids, oldest first.

    Batches from before a reset are to be left out: their offsets may belong to a topic that is gone, and the batches
    after it have read the same records again. Records that only put the job back have read nothing.
    """
    done = [r for r in records if r.state is JobState.SUCCEEDED and r.manifest.app_id in app_ids]
    read = [r.manifest for r in done if r.rewound_by is None]
    return [(manifest.start, manifest.end) for manifest in sorted(read, key=lambda manifest: manifest.batch_id)]
