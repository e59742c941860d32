"""A lake on an object store: the commands that look after its tables, each a process with a Spark of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import pytest
from deltalake import DeltaTable

from engagement_platform.maintenance.layout.optimize import Asked, planned
from engagement_platform.maintenance.layout.survey import Target, target
from engagement_platform.settings import Settings
from engagement_platform_tests.conftest import Moto
from engagement_platform_tests.maintenance.layout import logs
from engagement_platform_tests.maintenance.layout.seeded import DATA, NOTIFICATION, SeededLake

FILES, ROWS = 12, 4
ORGANIZATION = "org é/100%"
"""Keys of objects are escaped otherwise than paths on a disk."""


@dataclass
class Lake:
    """Tables that were written on a disk and put into a bucket as they are."""

    moto: Moto
    bucket: str
    environment: Mapping[str, str]

    def uri(self, table: str) -> str:
        return f"s3://{self.bucket}/lake/{table}"

    def put(self, key: str, body: bytes) -> None:
        self.moto.client("s3").put_object(Bucket=self.bucket, Key=f"lake/{key}", Body=body)

    def keys(self, table: str) -> set[str]:
        """Of data files; not of the log, nor of the marks that Hadoop leaves for folders."""
        pages = self.moto.client("s3").get_paginator("list_objects_v2")
        found = pages.paginate(Bucket=self.bucket, Prefix=f"lake/{table}/")
        names = [item["Key"] for page in found for item in page.get("Contents", [])]
        return {name for name in names if name.endswith(".parquet") and "/_delta_log/" not in name}

    def rows(self, table: str) -> list[str]:
        return sorted(map(repr, DeltaTable(self.uri(table)).to_pyarrow_table().to_pylist()))

    def cli(self, *words: str, expect: int = 0, settings: Mapping[str, str] = MappingProxyType({})) -> str:
        environment = {**os.environ, **self.environment}
        environment |= {f"ENGAGEMENT_PLATFORM_{name}": value for name, value in settings.items()}
        command = [sys.executable, "-m", "engagement_platform.cli", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == expect, f"{words} ended with {done.returncode}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def json(self, *words: str, settings: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self.cli(*words, "--json", settings=settings))
        return said


@pytest.fixture
def lake(moto: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    seeded = SeededLake(tmp_path / "on-disk")
    seeded.engagements(ORGANIZATION, FILES, ROWS)
    seeded.notifications("org-1", FILES)
    forgetful = {"delta.deletedFileRetentionDuration": "interval 0 hours"}
    DeltaTable(seeded.uri()).alter.set_table_properties(forgetful)
    environment = {"AWS_ENDPOINT_URL": moto.endpoint, "AWS_REGION": "eu-central-1", "AWS_ALLOW_HTTP": "true"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    bucket = f"lake-{uuid4().hex[:12]}"
    moto.client("s3").create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    environment |= {
        "ENGAGEMENT_PLATFORM_HOME": str(tmp_path / "home"),
        "ENGAGEMENT_PLATFORM_LAKE_URI": f"s3a://{bucket}/lake",
    }
    lake = Lake(moto, bucket, environment)
    root = Path(seeded.settings.lake)
    for file in sorted(root.rglob("*")):
        if file.is_file() and "_locks" not in file.parts:
            lake.put(file.relative_to(root).as_posix(), file.read_bytes())
    return lake


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_a_table_of_the_lake_goes_by_its_name_however_its_store_is_spelled(scheme: str, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, lake_uri="s3a://bucket/lake")
    found = target(settings, f"{scheme}://bucket/lake/{DATA.name}/")
    assert found == Target(DATA.name, f"{settings.lake}/{DATA.name}")
    assert target(settings, f"{scheme}://bucket/lake//other/../{DATA.name}") == found
    elsewhere = target(settings, f"{scheme}://other/{DATA.name}")
    assert elsewhere == Target(f"s3a://other/{DATA.name}", f"s3a://other/{DATA.name}")


def test_a_table_on_s3_that_nobody_can_read_is_named_and_the_others_are_planned(lake: Lake, tmp_path: Path) -> None:
    beyond = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["wishes"], "writerFeatures": ["wishes"]}
    entry = f"_delta_log/{0:020}.json"
    lake.put(f"a/newer/{entry}", (logs.table(tmp_path / "newer", protocol=beyond) / entry).read_bytes())
    plan = planned(Settings(home=tmp_path / "home", lake_uri=f"s3a://{lake.bucket}/lake"), Asked())
    assert [reason.partition(" cannot")[0] for reason in plan.unread] == ["The log of a/newer"]
    assert {one.table.name for one in plan.chosen} == {DATA.name, NOTIFICATION.name}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_tables_on_s3_are_examined_optimized_and_vacuumed_by_the_commands(lake: Lake) -> None:
    before = {table.name: lake.rows(table.name) for table in (DATA, NOTIFICATION)}
    found = lake.json("doctor", settings={"HEALTH__MIN_SMALL_FILES": str(FILES - 1)})
    assert {(one["code"], one["table"]) for one in found["findings"]} >= {
        ("small_files", DATA.name),
        ("small_files", NOTIFICATION.name),
    }
    plan = lake.json("optimize", "--dry-run")
    assert {one["table"] for one in plan["slices"]} == {DATA.name, NOTIFICATION.name}
    done = [json.loads(line) for line in lake.cli("optimize", "--json").splitlines()]
    assert [(one["files_before"], one["files_after"]) for one in done] == [(FILES, 1)] * 2
    assert {table.name: lake.rows(table.name) for table in (DATA, NOTIFICATION)} == before
    assert lake.json("optimize", "--dry-run")["slices"] == [], "what was done is remembered"

    # No floor but the table's own retention, which is nothing.
    at_once = {"MAINTENANCE__ROLLBACK_WINDOW": "PT0S", "MUTATION__MAX_LATENESS": "PT0S"}
    orphan = f"{DATA.name}/organization_id=org-1/of-a-failed-write.parquet"
    lake.put(orphan, b"x" * 10)
    kept = lake.keys(DATA.name)
    would = lake.json("vacuum", DATA.name, "--dry-run", settings=at_once)
    assert (would["files"], lake.keys(DATA.name)) == (FILES + 1, kept)
    went = lake.json("vacuum", DATA.name, settings=at_once)
    assert (went["files"], len(lake.keys(DATA.name))) == (FILES + 1, 1)
    assert lake.rows(DATA.name) == before[DATA.name]
    refused = lake.cli("vacuum", DATA.name, expect=1)
    assert refused == "", "the table's own retention is shorter than what is to be kept by default"

    [table] = lake.json("doctor", DATA.name)["tables"]
    [outcome] = table["predicted_and_actual"]
    assert (table["files"], outcome["action"], outcome["files_after"]) == (1, "zorder", 1)
