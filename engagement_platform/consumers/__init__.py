"""Incremental reads for consumers: engagements that changed since last time, as they are now."""

from engagement_platform.consumers.changes import Batch, Changes, Snapshot
from engagement_platform.consumers.notified import TooFarBehind
from engagement_platform.consumers.position import Position

__all__ = ["Batch", "Changes", "Position", "Snapshot", "TooFarBehind"]
