"""Incremental reads for consumers: engagements that changed since last time as they are now, and rows as they came."""

from engagement_platform.consumers.append_reader import Appends
from engagement_platform.consumers.changes import Batch, Changes, Snapshot
from engagement_platform.consumers.reader import ConsumerRefused, Position, TooFarBehind

__all__ = ["Appends", "Batch", "Changes", "ConsumerRefused", "Position", "Snapshot", "TooFarBehind"]
