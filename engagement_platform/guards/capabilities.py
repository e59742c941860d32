"""What the running Spark and Delta can do, found out by doing it on small tables in a folder of its own.

Rules about what they should do are `rules`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import SparkSession

from engagement_platform.lake import capability_probes
from engagement_platform.lake.capability_probes import Probe


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


def capabilities(spark: SparkSession, folder: str | None = None) -> Iterator[Capability]:
    """Try each capability. folder: where the tables are made, reachable by Spark; default: one of its own."""
    if folder is not None:
        yield from _tried(spark, folder)
        return
    with tempfile.TemporaryDirectory(prefix="engagement-platform-probe-") as own:
        yield from _tried(spark, own)


def _tried(spark: SparkSession, folder: str) -> Iterator[Capability]:
    for number, (name, probe) in enumerate(capability_probes.PROBES.items()):
        yield _one(name, probe, spark, f"{folder}/{number}")


def _one(name: str, probe: Probe, spark: SparkSession, uri: str) -> Capability:
    try:
        return Capability(name, True, probe(spark, uri))
    # Whatever an engine says when it cannot: that is what is asked.
    except Exception as error:
        lines = (line.strip(": ") for line in str(error).splitlines())
        # py4j begins with what it called.
        said = (line for line in lines if line and not line.startswith("An error occurred while calling"))
        return Capability(name, False, next(said, type(error).__name__)[:200])
