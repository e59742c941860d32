"""What a lake refuses before anything is done: a place that engines read differently, a table that is no stream."""

from __future__ import annotations

from engagement_platform.errors import START_ANEW, PlatformError
from engagement_platform.lake.contract import Table

UNSAFE_IN_ROOT = "%#?[]"


class NotAStreamSource(PlatformError):
    """A table whose rows change was asked for as a stream."""

    def __init__(self, table: Table) -> None:
        self.table = table.name
        super().__init__(
            f"The table {table.name} changes rows that were written, so it cannot be streamed from: a stream would "
            "fail at the first change, or miss it. Nothing was started. Stream engagement/notification, which has a "
            "row for every change, and fetch the rows it names from the table."
        )


class LakePathRefused(PlatformError):
    """A folder name that one of the two engines takes for something else."""

    def __init__(self, root: str) -> None:
        super().__init__(
            f"The lake cannot be in {root}: one of the characters {UNSAFE_IN_ROOT} in a path means something else to "
            "one of the engines that read and write tables. Nothing was written. Set ENGAGEMENT_PLATFORM_LAKE_URI or "
            "ENGAGEMENT_PLATFORM_HOME to another folder."
        )


class LakeOfFirstEdition(PlatformError):
    """A lake whose engagements were written by the first edition of the platform."""

    def __init__(self, root: str) -> None:
        super().__init__(
            f"The engagement tables in {root} were written by the first edition of the platform, which kept what their "
            f"rows depend on in other tables. Nothing was written. {START_ANEW}"
        )
