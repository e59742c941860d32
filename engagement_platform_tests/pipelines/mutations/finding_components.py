"""A program of its own, since it is a client of a Connect server: finds components there and prints them as JSON.

Argument: the server's address. Prints {"components": [[id, …], …]}, or {"missing": what the engine said it needs}.
"""

from __future__ import annotations

import json
import sys

from engagement_platform.lake.session import build_remote
from engagement_platform.pipelines.mutations.connected_components import GraphFramesMissing, connected_components
from engagement_platform.settings import SparkSettings

LINKS = [(1, 2), (2, 3), (10, 11), (20, 20)]


def main() -> None:
    """See above."""
    spark = build_remote(SparkSettings(remote=sys.argv[1]), {})
    try:
        found = connected_components(spark.createDataFrame(LINKS, "src long, dst long")).collect()
    except GraphFramesMissing as missing:
        print(json.dumps({"missing": str(missing)}))
    else:
        groups: dict[int, list[int]] = {}
        for row in found:
            groups.setdefault(row["component"], []).append(row["id"])
        print(json.dumps({"components": sorted(map(sorted, groups.values()))}))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
