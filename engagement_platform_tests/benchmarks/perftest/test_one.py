"""What a permutation does in Spark: every method finds the same rows, reading and writing, and the right ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.perftest.data import ENTITY, Generated, Records, fill
from benchmarks.perftest.one import Stopped, Work, stopped
from benchmarks.perftest.spec import METHODS, Operation, Permutation
from engagement_platform.lake.lake import Lake
from engagement_platform.pipelines.profiles.snapshot import snapshot
from engagement_platform.settings import Settings
from engagement_platform_tests.benchmarks.perftest.test_spec import PASSWORD
from engagement_platform_tests.docs.pages import ROOT
from engagement_platform_tests.pipelines.profiles.histories import seen_by_rules

SCALE = Generated(base_rows=400, changes=60, batches=2, dates=50)
QUERY = "score >= 90 AND city = 'Oslo'"


def test_every_method_reads_and_writes_the_same_rows_and_shows_them_to_nobody(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fill(str(tmp_path), Records(SCALE))
    at = snapshot(str(tmp_path), ENTITY)
    lake = Lake(spark, Settings(lake_uri=str(tmp_path)))
    expected = [dict(zip(ENTITY.view_columns, row, strict=True)) for row in seen_by_rules(str(tmp_path), ENTITY)]
    matching = [row for row in expected if (row["score"] or 0) >= 90 and row["city"] == "Oslo"]
    operations: list[tuple[Operation, int]] = [("read", len(matching)), ("write", len(expected))]
    for operation, rows in operations:
        found: list[Stopped] = []
        for n, method in enumerate(METHODS):
            asked = Permutation(1, operation, method, QUERY if operation == "read" else "")
            work = Work("{}", str(tmp_path), asked, at.changeset_version, at.base_version, f"written-{n}")
            found.append(stopped(lake, ENTITY, work, at, 20))
        assert {(one.rows, one.pending_rows, one.broadcast) for one in found} == {(rows, 120, True)}
        assert len({one.checksum for one in found}) == 1
    assert "record-" not in capfd.readouterr().out


@pytest.mark.slow
def test_the_command_measures_each_in_a_fresh_spark_and_no_byte_of_it_has_a_secret(tmp_path: Path) -> None:
    """Two methods, read and written; then once more, for nothing."""
    spec = tmp_path / "spec.json"
    said = {
        "runs": 1,
        "methods": ["full_outer_join", "left_join_union_inserts"],
        "generate": SCALE.model_dump(mode="json"),
        "read_queries": [QUERY],
        "cluster": {"master": "local[2]", "conf": {"spark.hadoop.fs.s3a.secret.key": PASSWORD}},
    }
    spec.write_text(json.dumps(said))
    command = [sys.executable, "-m", "engagement_platform.cli", "perftest", str(spec)]
    home = tmp_path / "home"
    for measured in (4, 0):
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
            env={**os.environ, "ENGAGEMENT_PLATFORM_HOME": str(home)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(" min left)") == measured
        assert "1. " in done.stdout
        assert "source" in done.stdout
        assert PASSWORD not in done.stdout + done.stderr
    [picture] = (home / "perftest").rglob("perftest.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert not list((home / "perftest").glob("rows-*/perftest/written-*"))
    files = [path for path in home.rglob("*") if path.is_file()]
    assert [path for path in files if PASSWORD.encode() in path.read_bytes()] == []
