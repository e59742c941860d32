from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engagement_platform_tests.layout.summing import ADDS, seed


def summed(path: Path, clustering: str, most: int) -> dict[str, Any]:
    words = [sys.executable, "-m", "engagement_platform_tests.layout.summing", str(path), clustering, str(most)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.slow
def test_spark_sums_20_000_files_to_the_same_within_one_megabyte_of_results(
    spark_jars: list[Path], tmp_path: Path
) -> None:
    told = summed(seed(tmp_path / "a table [of] ü"), "day", 1000)
    assert told["spark"]["partitions"] == told["here"]["partitions"]
    assert told["spark"] == told["here"]
    removed = ADDS // 2 // 10 + 450
    assert told["here"]["table"]["files"] == ADDS - removed
    assert told["here"]["table"]["deleted_rows"] == sum(i % 5 + 1 for i in range(1, 400, 10))
    assert told["here"]["table"]["files_without_bounds"] > 0
    assert "maxResultSize" in told["naive"], "the limit that this is about did not hold"
