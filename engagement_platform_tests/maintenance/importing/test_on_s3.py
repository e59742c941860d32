"""An old store on S3, imported by the command in a process of its own."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engagement_platform.maintenance.importing.files import ImportRefused
from engagement_platform_tests.conftest import Moto
from engagement_platform_tests.maintenance.importing.stores import called, quarantined, row, rows_in, text_of


@pytest.mark.slow
def test_a_store_on_s3_is_imported_like_one_on_disk(
    home: Path, moto: Moto, spark_jars: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, client = f"old-{uuid4().hex[:12]}", moto.client("s3")
    client.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    pq.write_table(pa.Table.from_pylist([row(n) for n in range(10, 15)]), home / "one.parquet")
    objects = {
        "clicks/day=2026-11-01/": b"",
        "clicks/day=2026-11-01/a b%.csv.gz": gzip.compress(text_of([row(n) for n in range(5)], "csv") + b"no record\n"),
        "clicks/day=2026-11-01/deep/b.jsonl": text_of([row(n) for n in range(5, 10)], "jsonl"),
        "clicks/day=2026-11-02/c.parquet": (home / "one.parquet").read_bytes(),
        "clicks/_SUCCESS": b"done",
    }
    # A line that is no record makes a text of its column where the columns are looked for.
    columns = {"id": "long", "name": "string", "score": "double", "at": "timestamp", "day": "date"}
    (home / "columns.json").write_text(json.dumps(columns))
    for key, body in objects.items():
        client.put_object(Bucket=bucket, Key=key, Body=body)
    for name, value in {
        "AWS_ENDPOINT_URL": moto.endpoint, "AWS_REGION": "eu-central-1", "AWS_ALLOW_HTTP": "true"
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    for nowhere in (f"s3a://{bucket}/nothing", "s3a://no-such-bucket-of-ours/clicks"):
        assert isinstance(called(nowhere, "old/other", "--yes").exception, ImportRefused)

    def run() -> subprocess.CompletedProcess[str]:
        arguments = ["import", f"s3a://{bucket}/clicks", "old/clicks", "--schema", str(home / "columns.json"), "--json"]
        command = [sys.executable, "-m", "engagement_platform.cli", *arguments]
        return subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, timeout=300, check=False)

    ran = run()
    assert ran.returncode == 0, ran.stderr[-3000:]
    report = json.loads(ran.stdout.splitlines()[-1])
    rows = rows_in(home / "home/lake/old/clicks")
    assert {one["id"]: (one["name"], one["score"], one["at"]) for one in rows} == {
        n: tuple(row(n).values())[1:] for n in range(15)
    }
    assert Counter(one["day"].isoformat() for one in rows) == {"2026-11-01": 10, "2026-11-02": 5}
    assert (report["rows"], report["rejected"], report["files_before"], report["files_after"]) == (15, 1, 3, 2)
    assert [one["value"] for one in quarantined(home)] == [b"no record"]
    client.delete_object(Bucket=bucket, Key="clicks/day=2026-11-01/deep/b.jsonl")
    ran = run()
    assert (ran.returncode, "not of these files as they are now" in ran.stderr) == (1, True)
