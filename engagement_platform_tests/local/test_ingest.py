"""The ingest server beside the emulator: its keys, and events of simulated games on their way from HTTP to tables."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from engagement_platform.engine.drain import drain
from engagement_platform.errors import PlatformError
from engagement_platform.ingest_server.keys import IngestKeys
from engagement_platform.local.aws import EmbeddedAws
from engagement_platform.local.games import GAMES, GameTraffic, post_events
from engagement_platform.local.ingest import address, ingest_child, key_folder, make_sample_keys, sample_keys
from engagement_platform.local.ports import free_ports
from engagement_platform.local.process import Supervisor
from engagement_platform.local.services import all_services
from engagement_platform.pipelines.games.backlog import depth
from engagement_platform.pipelines.games.registry import registry
from engagement_platform.pipelines.jobs import build_job, close_source, open_stores, parts_of
from engagement_platform.settings import Settings
from engagement_platform_tests.local.test_process import wait_for
from engagement_platform_tests.pipelines.games.conftest import AT_ONCE


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    """Of a machine of its own, as the services see them."""
    for name in [name for name in os.environ if name.startswith("ENGAGEMENT_PLATFORM_") and "JAR_CACHE" not in name]:
        monkeypatch.delenv(name)
    aws, server = free_ports(2)
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_EMBEDDED__AWS_PORT", str(aws))
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_EMBEDDED__INGEST_PORT", str(server))
    return all_services(Settings()).settings


def test_keys_are_made_once_for_their_owner_only_and_anew_when_they_are_not_valid(settings: Settings) -> None:
    with pytest.raises(PlatformError, match="no sample API keys"):
        sample_keys(settings)
    make_sample_keys(settings, GAMES)
    made = sample_keys(settings)
    assert made.keys() == set(GAMES)
    assert {stat.S_IMODE(path.stat().st_mode) for path in key_folder(settings).iterdir()} == {0o600}
    make_sample_keys(settings, GAMES)
    assert sample_keys(settings) == made
    # But for those that were revoked, or that nobody knows.
    IngestKeys(settings.store_url).revoke(made[GAMES[0]].split("_")[1])
    (key_folder(settings) / GAMES[1]).write_text("of another house")
    make_sample_keys(settings, GAMES)
    now = sample_keys(settings)
    assert [game for game in GAMES if now[game] != made[game]] == list(GAMES[:2])
    valid = {key.key_id: key.game for key in IngestKeys(settings.store_url).all() if key.revoked_ts is None}
    assert {game: valid[key.split("_")[1]] for game, key in now.items()} == {game: game for game in GAMES}


def test_events_that_games_post_go_through_bucket_and_queue_into_tables_and_personal_data_into_the_vault(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    aws = EmbeddedAws(settings.embedded.aws_port)
    services = all_services(settings)
    for name, value in aws.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_INGEST_SERVER__SEGMENT_AGE", "PT0.5S")
    make_sample_keys(settings, GAMES)
    server = ingest_child(Settings(), services.variables)
    assert "ENGAGEMENT_PLATFORM_INGEST_SERVER__SEGMENT_AGE" not in server.env
    with Supervisor(tmp_path / "logs") as supervisor:
        supervisor.start(aws.child(), server)
        supervisor.wait_ready(120)
        # Each type is a table: a few, with personal data and without.
        types = {name: registry()[name] for name in ("heartbeat", "login", "crash")}
        traffic = GameTraffic(7, types, personal=True)
        posted = post_events(traffic, address(settings), sample_keys(settings), events=400, rate=0)
        assert posted.accepted + posted.refused == 400
        assert posted.accepted > 380
        with pytest.raises(PlatformError, match="401"):
            post_events(traffic, address(settings), {"chess-2": "ep_no_key"}, events=1, rate=0)
        # Beside the one with which S3 tries the topic.
        wait_for(lambda: depth(settings).visible > 1, "no object was announced", timeout_s=30)
        landed = 0

        def ingested() -> bool:
            nonlocal landed
            job = build_job("ingest-game-events", parts_of(spark, settings, open_stores(settings)))
            try:
                landed += sum(report.counts["rows_in"] for report in drain(job, AT_ONCE))
            finally:
                close_source(job)
            return landed >= posted.accepted

        wait_for(ingested, "what was accepted did not arrive", timeout_s=240)
    assert landed == posted.accepted
    tables = DeltaTable(f"{settings.lake}/game/heartbeat").to_pyarrow_table()
    assert set(tables.column("game_id").to_pylist()) <= set(GAMES)
    assert tables.num_rows > 30
    quarantine = DeltaTable(f"{settings.lake}/game/quarantine")
    assert "personal_data" not in quarantine.to_pyarrow_table().column("reason_code").to_pylist()
    assert DeltaTable(f"{settings.lake}/pii/vault").to_pyarrow_table().num_rows > 10
