"""Thirty tables on an object store: the job and an erasure as commands of their own, with a Spark of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from deltalake import DeltaTable

from engagement_platform_tests.pipelines.games.conftest import World
from engagement_platform_tests.pipelines.games.test_job import of_every_type, sent

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


class Far:
    """A world whose lake is in its bucket's neighbour."""

    def __init__(self, world: World) -> None:
        self.world, self.bucket = world, f"{world.bucket}-lake"
        where = {"LocationConstraint": "eu-central-1"}
        world.s3.create_bucket(Bucket=self.bucket, CreateBucketConfiguration=where)
        self.aws = {
            "AWS_ENDPOINT_URL": world.moto.endpoint, "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_REGION": "eu-central-1", "AWS_ALLOW_HTTP": "true",
        }  # fmt: skip

    def cli(self, *arguments: str) -> str:
        """What a command printed."""
        told = self.world.variables(
            LAKE_URI=f"s3a://{self.bucket}/lake", SPARK__MASTER="local[2]", DRAIN__IDLE_TIMEOUT="PT0S"
        )
        env = {**os.environ, **self.aws, **told}
        command = [sys.executable, "-m", "engagement_platform.cli", *arguments]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1500, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Of a game table."""
        table = DeltaTable(f"s3://{self.bucket}/lake/game/{name}", storage_options=self.aws)
        return sorted(table.to_pyarrow_table().to_pylist(), key=lambda row: (row["source_object"], row["source_line"]))


def test_events_land_in_thirty_tables_on_an_object_store_and_an_erased_player_leaves_them(world: World) -> None:
    far = Far(world)
    bobs = [sent(world.types[name], f"bob-{name}", player_id="bob-canary") for name in ("login", "purchase")]
    refused = sent(world.types["login"], "bob-late", player_id="bob-canary", event_ts="2020-01-01T00:00:00Z")
    world.put("events/2026/11/22/10/a.json.gz", [*of_every_type(world, "a"), *bobs, refused])
    far.cli("run", "ingest-game-events", "--until-idle")
    assert world.left() == 0
    for name in world.types:
        expected = [f"a-{name}-1", f"a-{name}-2", *(f"bob-{each}" for each in ("login", "purchase") if each == name)]
        assert [row["event_id"] for row in far.rows(name)] == expected
    assert len(far.rows("quarantine")) == 4
    before = {name: far.rows(name) for name in ("crash", "login", "purchase")}

    receipt = json.loads(far.cli("erase", "--subject", "bob-canary", "--yes"))
    places = {place["name"]: (place["rows"], place["left"]) for place in receipt["places"]}
    assert places["game/*"] == (3, 0)
    assert places[f"s3://{world.bucket}/events/"] == (3, 0)
    for name, rows in before.items():
        assert far.rows(name) == [row for row in rows if row["player_id"] != "bob-canary"]
        table = DeltaTable(f"s3://{far.bucket}/lake/game/{name}", storage_options=far.aws)
        assert table.metadata().configuration["delta.appendOnly"] == "true"
    assert len(far.rows("quarantine")) == 3
    world.put("events/2026/11/22/11/b.json.gz", [sent(world.types["login"], "b"), *bobs])
    far.cli("run", "ingest-game-events", "--until-idle")
    assert [row["event_id"] for row in far.rows("login")] == ["a-login-1", "a-login-2", "b"]
