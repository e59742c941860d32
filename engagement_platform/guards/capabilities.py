"""What the running Spark and Delta can do, found out by doing it on small tables. What should hold is `rules`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import SparkSession

from engagement_platform.lake import capability_probes


@dataclass(frozen=True)
class Capability:
    """One thing that was tried."""

    name: str
    works: bool
    seen: str
    """What came of it: a figure, or the first line of the error."""

    def as_json(self) -> dict[str, object]:
        """All of it by name."""
        return dict(vars(self))


def capabilities(spark: SparkSession) -> Iterator[Capability]:
    """Try each capability, on tables in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="engagement-platform-probe-") as folder:
        for number, (name, probe) in enumerate(capability_probes.PROBES.items()):
            try:
                yield Capability(name, True, probe(spark, f"{folder}/{number}"))
            # Whatever an engine says when it cannot: that is what is asked.
            except Exception as error:
                lines = (line.strip(": ") for line in str(error).splitlines())
                # py4j begins with what it called.
                said = (line for line in lines if line and not line.startswith("An error occurred while calling"))
                yield Capability(name, False, next(said, type(error).__name__)[:200])
