"""The source where its parts are in processes of their own: a Spark Connect server, executors of a cluster.

What it does is in `test_s3_sqs`, on one machine's Spark in `test_s3_sqs_spark`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.cloudpickle import dumps

from engagement_platform.local.connect import connect_child
from engagement_platform.local.ports import free_ports
from engagement_platform.local.process import Supervisor
from engagement_platform.settings import EmbeddedSettings, Settings, SparkSettings
from engagement_platform.sources.s3_events import S3File
from engagement_platform_tests.sources.pipe import MakePipe, Pipe

OBJECTS = 36
WITHIN_S = 900
CLUSTER = "local-cluster[2,1,1024]"

READ_ELSEWHERE = """
import pickle, sys
reader, partitions = pickle.load(open(sys.argv[1], "rb"))
print(sorted(row["a"] for share in partitions for batch in reader.read(share) for row in batch.to_pylist()))
"""


@pytest.fixture
def pipe(make: MakePipe) -> Pipe:
    """With a few dozen objects, some of them announced twice."""
    pipe = make(maxFilesPerTrigger="12", tasks="4")
    for n in range(OBJECTS):
        pipe.put(f"{n:02}.json", n)
    for n in range(0, OBJECTS, 5):
        pipe.send(S3File(pipe.bucket, f"{n:02}.json").as_event())
    return pipe


def drained(where: str, folder: Path, pipe: Pipe) -> Any:
    """What a Spark there reads and says."""
    command = [sys.executable, "-m", "engagement_platform_tests.sources.draining", where, str(folder)]
    # The address of a server goes by the argument: this one would make every session a client.
    env = {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}
    env["PYSPARK_PYTHON"] = sys.executable
    done = subprocess.run(
        [*command, json.dumps(pipe.options)], env=env, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def assert_each_object_was_read_once(said: Any, pipe: Pipe) -> None:
    assert sorted(said["rows"]) == [[n, f"s3://{pipe.bucket}/{n:02}.json"] for n in range(OBJECTS)]
    assert pipe.left() == 0


def test_a_reader_and_its_shares_travel_to_another_process(pipe: Pipe, tmp_path: Path) -> None:
    """As Spark takes them to executors: pickled there, opened nowhere but where they are read."""
    reader = pipe.start()
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    shares = reader.partitions(start, end)
    assert len(shares) == 4
    (tmp_path / "reader").write_bytes(dumps((reader, shares)))  # type: ignore[no-untyped-call]
    reader.stop()
    command = [sys.executable, "-c", READ_ELSEWHERE, str(tmp_path / "reader")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == 12


@pytest.mark.slow
@pytest.mark.timeout(2 * WITHIN_S)
def test_executors_in_processes_of_their_own_read_each_object_once(pipe: Pipe, tmp_path: Path) -> None:
    said = drained(CLUSTER, tmp_path, pipe)
    assert_each_object_was_read_once(said, pipe)
    assert said["workers"] == 2


@pytest.mark.slow
@pytest.mark.timeout(2 * WITHIN_S)
@pytest.mark.usefixtures("spark_jars")
def test_a_client_of_a_connect_server_reads_each_object_once(pipe: Pipe, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    spark = SparkSettings(master=CLUSTER, conf={"spark.cores.max": "2"})
    settings = Settings(home=tmp_path / "home", spark=spark, embedded=EmbeddedSettings(connect_port=port))
    with Supervisor(tmp_path / "logs") as supervisor:
        supervisor.start(connect_child(settings, tmp_path / "spark"))
        supervisor.wait_ready(WITHIN_S)
        assert_each_object_was_read_once(drained(f"sc://127.0.0.1:{port}", tmp_path, pipe), pipe)
