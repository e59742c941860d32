"""Why a job that was asked for is not run or reset."""

from __future__ import annotations

from collections.abc import Sequence

from engagement_platform.engine.model import Manifest
from engagement_platform.errors import PlatformError


class UnknownJob(PlatformError):
    """No job has this name."""

    def __init__(self, name: str, there: Sequence[str]) -> None:
        super().__init__(f"There is no job called {name!r}. Jobs: {', '.join(there)}.")


class ReasonMissing(PlatformError):
    """A redrive without a reason would put everything through again, good chances or not."""

    def __init__(self) -> None:
        super().__init__(
            "redrive-quarantine needs --reason CODE: the reason code of the records to put through again, as in the "
            "column reason_code of engagement/quarantine. Nothing was changed."
        )


class UnfinishedBatch(PlatformError):
    """A reset now would leave half a batch."""

    def __init__(self, manifest: Manifest) -> None:
        super().__init__(
            f"{manifest} is unfinished: rows that have landed may not have been announced yet, and after a reset they "
            f"never would be. Nothing was changed. Run `engagement-platform run {manifest.job} --until-idle` first; "
            "if it cannot be finished (its topic is gone), add --abandon."
        )
