"""Reads what changed, for consumers: engagements that changed since last time, as they are now."""

from engagement_platform.consumers.changes import Batch, Changes, Snapshot

__all__ = ["Batch", "Changes", "Snapshot"]
