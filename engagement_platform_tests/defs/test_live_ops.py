"""Live-ops in Dagster: a run counts what came and says what it judged. No Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest

from engagement_platform.defs.live_ops import LIVE_OPS, counted_metadata, live_ops_asset
from engagement_platform.defs.platform import Platform
from engagement_platform.games.registry import registry
from engagement_platform.live_ops.detect import Finding
from engagement_platform.live_ops_job.job import Counted
from engagement_platform_tests.live_ops_job.tables import Games

BEGIN = datetime(2026, 3, 2, 10, tzinfo=UTC)


def test_a_run_counts_what_came_since_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path))
    games = Games(tmp_path)
    with dg.DagsterInstance.ephemeral() as instance:
        for rows in (3, 2):
            games.append("login", [{"game_id": "g1", "event_ts": BEGIN, "player_id": "p"}] * rows, BEGIN)
            dg.materialize([live_ops_asset(registry())], instance=instance, resources={"platform": Platform()})
            event = instance.get_latest_materialization_event(LIVE_OPS)
            assert event is not None
            assert event.asset_materialization is not None
            told = {name: value.value for name, value in event.asset_materialization.metadata.items()}
            assert (told["events"], told["tables"], told["games_judged"], told["wrong"]) == (rows, 1, 0, 0)


def test_what_is_wrong_is_said_by_game_and_figure() -> None:
    finding = Finding("g1", "purchases", BEGIN, None, 0.5, "offer 7")
    shown = counted_metadata(Counted(5, 3, BEGIN, ("g1", "g2"), (finding,)))
    text = shown["what_is_wrong"]
    assert isinstance(text, dg.TextMetadataValue)
    assert text.value == "g1: purchases since 2026-03-02 10:00 UTC"
