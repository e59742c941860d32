"""Nothing of an erased player is in the stores. Batches drop the player's events before they are counted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from engagement_platform.erasing.places import game_places
from engagement_platform.pii.erasure import Subject, erase, subject
from engagement_platform.pii.vault import open_vault
from engagement_platform.pipelines.games.erasing import PlayersKept
from engagement_platform.pipelines.games.live_ops import LiveOpsJob
from engagement_platform.settings import Settings
from engagement_platform_tests.files_with import places_with
from engagement_platform_tests.pipelines.games.counted import Games, Row

BOB, AMY = "bob-canary", "amy-canary"
BEGIN = datetime(2026, 3, 2, tzinfo=UTC)


def login(player: str, minute: int, game: str = "chess") -> Row:
    at = BEGIN + timedelta(minutes=minute)
    return {"game_id": game, "event_ts": at, "player_id": player, "session_id": f"{player}-{minute // 30}"}


def in_stores(settings: Settings) -> list[str]:
    """Files of the stores with a byte of the player."""
    found = places_with([settings.home], [BOB.encode()])
    return [path.name for path in found if not path.is_relative_to(settings.home / "lake")]


def spent(job: LiveOpsJob, player: str) -> bool:
    return any(job.store.player(game, player, BEGIN + timedelta(hours=2)) for game in ("chess", "puzzle"))


@pytest.fixture
def games(tmp_path: Path, spark: SparkSession) -> Games:
    """Two players of two games, counted, in several batches; minutes of the first are closed already."""
    games = Games(tmp_path)
    for minute in (0, 40, 200):
        rows = [login(player, minute, game) for player in (BOB, AMY) for game in ("chess", "puzzle")]
        games.append("login", rows, BEGIN + timedelta(minutes=minute))
        LiveOpsJob(games.settings).run()
    assert in_stores(games.settings), "nothing was planted"
    return games


def erased(games: Games, game: str | None = None) -> dict[str, tuple[int, int]]:
    """What was done where: name -> (rows, left)."""
    vault, settings = open_vault(games.settings), games.settings
    who: Subject = subject(vault, BOB, game)
    _, done = erase(vault, who, [*game_places(settings), PlayersKept(settings)])
    return {one.name: (one.rows, one.left) for one in done}


def test_no_byte_of_an_erased_player_is_in_the_stores_and_others_have_all_they_had(games: Games) -> None:
    before = LiveOpsJob(games.settings).store.player("chess", AMY, BEGIN + timedelta(hours=4))
    rows, left = erased(games)["features of players"]
    assert rows >= 6, "two games with a player and two sessions each"
    assert left == 0
    assert in_stores(games.settings) == []
    job = LiveOpsJob(games.settings)
    assert not spent(job, BOB)
    assert job.store.player("chess", AMY, BEGIN + timedelta(hours=4)) == before
    assert erased(games)["features of players"] == (0, 0), "doing it twice is fine"


def test_a_player_erased_in_one_game_keeps_what_it_did_in_others(games: Games) -> None:
    erased(games, "chess")
    job, at = LiveOpsJob(games.settings), BEGIN + timedelta(hours=4)
    assert job.store.player("chess", BOB, at) is None
    assert job.store.player("puzzle", BOB, at) is not None


def test_where_nobody_counted_nothing_is_made(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    kept, who = PlayersKept(settings), Subject(BOB, "ref", None)
    assert (kept.erase(who), kept.left(who)) == (0, 0)
