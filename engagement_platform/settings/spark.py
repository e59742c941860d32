"""Which Spark runs the jobs, and how one that is started here is set up."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field

from engagement_platform.settings.section import Section


def _cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "engagement-platform"


class SparkSettings(Section):
    remote: str | None = Field(
        default=None,
        description="Spark Connect endpoint, such as sc://127.0.0.1:15002. Set: runs are thin clients of a warm server "
        "(5 to 8 s a run). Not set: every run starts Spark in its own process (20 to 50 s).",
    )
    master: str = Field(default="local[*]", description="Spark master of the classic mode; ignored with `remote`.")
    driver_memory: str = Field(default="1g", description="Heap of the driver started here (classic, embedded server).")
    default_parallelism: int = Field(
        default=2,
        ge=1,
        description="spark.default.parallelism. 2 suits two cores; 400 is what the source's cluster settled on.",
    )
    shuffle_partitions: int = Field(
        default=2,
        ge=1,
        description="spark.sql.shuffle.partitions, the one DataFrames obey. Near the number of cores.",
    )
    driver_max_result_size: str = Field(default="1g", description="spark.driver.maxResultSize.")
    conf: dict[str, str] = Field(
        default_factory=dict, description="More configuration of a Spark that is started here."
    )
    jar_cache: Path = Field(
        default_factory=lambda: _cache_home() / "jars", description="Where the resolved jars are kept between starts."
    )
    jar_folder: Path | None = Field(
        default=None,
        description="Folder of more jars for a Spark that is started here, for what no mirror has; all *.jar in it are "
        "added, and of two with one name these count.",
    )
