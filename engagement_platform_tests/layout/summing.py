"""Sums up a table once in this process and once by Spark, and prints both as JSON; run on its own.

A process of its own, because how much Spark hands out is fixed when it starts.
`python -m engagement_platform_tests.layout.summing TABLE CLUSTERING MOST_PARTITIONS`
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from hashlib import sha256
from pathlib import Path
from typing import Any

from engagement_platform.lake.jars import resolve_jars
from engagement_platform.lake.session import build_classic, classic_conf
from engagement_platform.layout import doctor
from engagement_platform.settings import HealthSettings, Settings, SparkSettings
from engagement_platform_tests.layout import logs

ADDS = 20_000


def seed(path: Path) -> Path:
    """20,000 adds under a checkpoint and after it, of which some are removed, some get a deletion vector."""
    from deltalake import DeltaTable

    def file(i: int, **more: Any) -> dict[str, Any]:
        start = i * 7 % 300
        ends = (f"2024-{1 + start // 31:02}-{1 + start % 28:02}", f"2024-{2 + start // 31:02}-{1 + start % 27:02}")
        organization = None if i % 50 == 49 else f"org {i % 50}/ü"
        days = None if i % 101 == 0 else ends
        codec = (".snappy", ".zstd", "")[i % 3]
        values = {"organization_id": organization}
        size = 3_000 + i * 7919 % 900_000
        # Names and bounds as hard to compress as those of real files.
        name, *ids = (sha256(f"{i} {what}".encode()).hexdigest() for what in ("name", "low", "high"))
        more |= {"days": days, "ids": tuple(ids), "rows": i % 90, "codec": codec}
        return logs.add(name, size, partition=values, **more)

    vector = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 1, "sizeInBytes": 36}
    half = ADDS // 2
    logs.table(path, [file(i) for i in range(half)], protocol=logs.VECTORS)
    logs.commit(path, 1, [logs.info(), *(logs.remove(file(i), logs.SOME_MS) for i in range(0, half, 10))])
    DeltaTable(str(path)).create_checkpoint()
    logs.commit(path, 2, [logs.info(), *(file(i) for i in range(half, ADDS))])
    # Marking rows as deleted removes the file as it was and adds it with its vector, in one commit.
    marked = [file(i, vector={**vector, "cardinality": i % 5 + 1}) for i in range(1, 400, 10)]
    plain = [logs.remove(file(i), logs.SOME_MS) for i in range(1, 400, 10)]
    logs.commit(path, 3, [logs.info("DELETE"), *plain, *marked])
    logs.commit(path, 4, [logs.info(), *(logs.remove(file(i), logs.SOME_MS) for i in range(half, half + 500))])
    logs.commit(path, 5, [logs.info("RESTORE"), *(file(i) for i in range(half, half + 50))])
    return path


def told(examination: doctor.Examination) -> dict[str, Any]:
    """All that is compared."""
    rows = examination.statistics.partitions.to_pylist()
    return {
        "table": examination.statistics.as_json(),
        "partitions": rows,
        "codes": [f.code for f in examination.findings],
    }


def main(path: str, clustering: str, most: int) -> None:
    """Print {"here": …, "spark": …, "naive": why a plain collect of the files fails}."""
    table = doctor.Target("seeded", path)
    spark_settings = SparkSettings(master="local[2]", driver_max_result_size="1m", shuffle_partitions=2)
    here = Settings(spark=spark_settings)
    there = Settings(spark=spark_settings, health=HealthSettings(files_in_process=0, worst_partitions=most))
    column = clustering or None
    by_hand = told(doctor.examine(here, table, clustering=column, list_files=False))
    spark = build_classic(classic_conf(here, resolve_jars("spark", here.spark.jar_cache)), "summing")
    by_spark = told(
        doctor.examine(there, table, clustering=column, list_files=False, open_spark=lambda: nullcontext(spark))
    )
    naive = "it was handed out"
    try:
        log = "".join(f"\\{c}" if c in "[]" else c for c in path)
        spark.read.json(f"{log}/_delta_log/*.json").select("add").collect()
    except Exception as error:  # whatever class it has, its text names the setting
        naive = str(error)
    spark.stop()
    print(json.dumps({"here": by_hand, "spark": by_spark, "naive": naive}, default=str))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
