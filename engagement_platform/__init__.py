"""Events that change after they were written: ingested exactly once, mutated in bulk, read incrementally.

The components of `defs.components` can be had from here by their names, as `defs.yaml` files call them.
"""

from importlib import import_module
from typing import Any

_COMPONENTS = ("KafkaTable", "MaintainedTable", "MergeOnReadEntity", "S3SqsTables", "ViewAnalytics")


def __getattr__(name: str) -> Any:
    # Only when asked for: they bring Dagster along, which takes a second to import.
    if name in _COMPONENTS:
        return getattr(import_module("engagement_platform.defs.components"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted((*globals(), *_COMPONENTS))
