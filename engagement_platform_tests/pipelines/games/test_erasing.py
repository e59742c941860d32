"""What is left of an erased player in game tables: nothing in what is in use, and the rest until a day that is said."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from engagement_platform.cli import app
from engagement_platform.engine.database import open_engine
from engagement_platform.engine.model import Manifest, Transaction
from engagement_platform.engine.stores import CheckpointStore
from engagement_platform.engine.unfinished_batches import OthersBatchUnfinished
from engagement_platform.erasing.places import game_places, of_feed
from engagement_platform.lake import store_tables
from engagement_platform.lake.arrow import schema_of
from engagement_platform.lake.contract import Table
from engagement_platform.lake.erased import current_files
from engagement_platform.pii.erasure import Former, Subject, erase, is_named, naming, subject
from engagement_platform.pii.receipts import receipt, verify
from engagement_platform.pii.vault import open_vault
from engagement_platform.pipelines.games.event_type import QUARANTINE
from engagement_platform.pipelines.games.feed import shipped
from engagement_platform.pipelines.games.registry import registry
from engagement_platform.pipelines.jobs import open_stores
from engagement_platform.settings import Settings
from engagement_platform_tests import plant
from engagement_platform_tests.files_with import places_with
from engagement_platform_tests.maintenance.guards.strangers import strangers
from engagement_platform_tests.pipelines.games.events import line

BOB, AMY = "bob-canary", "amy-canary"
DAY = date(2026, 11, 22)
NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
LOGIN = registry()["login"].table
FORMER = Table(("game", "once_declared"), "", LOGIN.columns, LOGIN.mode, LOGIN.partitioned_by)
TABLES = (LOGIN, FORMER)


class World:
    """Game tables with rows of two players in two games, each twice over, in files of their own."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.root, self.vault = settings, settings.lake, open_vault(settings)
        self.tables = of_feed(settings, shipped(settings))
        for table in TABLES:
            plant.create(table.uri(self.root), table)
            for number, game in enumerate(("chess", "puzzle")):
                self.append(table, number, [{"player_id": who, "game_id": game, "event_id": who} for who in (BOB, AMY)])
        plant.create(QUARANTINE.uri(self.root), QUARANTINE)
        lines = [
            line(registry()["login"], player_id=BOB, game_id="chess", event_ts="?"),
            line(registry()["login"], player_id=BOB, game_id="puzzle", event_ts="?"),
            line(registry()["login"], player_id=AMY, game_id="chess", event_ts="?"),
            f'{{"player_id": "{BOB}", broken'.encode(),
            None,
        ]
        rows = [{"value": each, "source_object": "o", "source_line": n} for n, each in enumerate(lines)]
        self.append(QUARANTINE, 0, rows)

    def append(self, table: Table, number: int, rows: Sequence[Mapping[str, object]]) -> None:
        found = DeltaTable(table.uri(self.root))
        day = {name: DAY for name in ("event_date", "ingestion_date") if name in table.column_names}
        filled = pa.Table.from_pylist([{**day, **row} for row in rows], schema_of(table))
        plant.append(found, filled, Transaction("test", number))

    def players(self, table: Table) -> list[tuple[str, str]]:
        rows = DeltaTable(table.uri(self.root)).to_pyarrow_table(columns=["game_id", "player_id"]).to_pylist()
        return sorted((row["game_id"], row["player_id"]) for row in rows)

    def refused(self) -> list[int]:
        rows = DeltaTable(QUARANTINE.uri(self.root)).to_pyarrow_table(columns=["source_line"]).to_pylist()
        return sorted(row["source_line"] for row in rows)

    def holds(self, given: dict[str, Any]) -> bool:
        """What a verification says of the game tables."""
        checks = verify(self.vault, given, game_places(self.settings), BOB)
        [holds] = [check.holds for check in checks if check.what == "game/*"]
        return holds

    def who(self, game: str | None = None) -> Subject:
        return subject(self.vault, BOB, game)


@pytest.fixture
def world(tmp_path: Path, spark: SparkSession) -> World:
    return World(Settings(home=tmp_path / "home"))


def test_no_file_in_use_has_a_byte_of_an_erased_player_and_others_have_all_they_had(world: World) -> None:
    stores = open_stores(world.settings)
    before = strangers(world.settings, stores)
    keys, done = erase(world.vault, world.who(), game_places(world.settings))
    assert strangers(world.settings, stores) == before, "our own erasure is taken for somebody else"
    assert [(one.rows, one.left) for one in done if one.name == "game/*"] == [(7, 0)]
    assert [world.players(table) for table in TABLES] == [[("chess", AMY), ("puzzle", AMY)]] * 2
    assert world.refused() == [2, 4], "another player's line, and one that is not kept"
    for table in (*TABLES, QUARANTINE):
        assert DeltaTable(table.uri(world.root)).metadata().configuration["delta.appendOnly"] == "true"
        found = places_with([Path(table.uri(world.root))], [BOB.encode()])
        assert found, "former versions are there for readers"
        assert not current_files(world.root, table).intersection(found)
        logged = [path.read_text() for path in found if path.suffix == ".json"]
        assert all('"operation":"WRITE"' in entry for entry in logged), "no entry of the erasure names the player"
    given = receipt(world.vault.keyring, world.who(), keys, done, NOW, ["engagement/*"])
    assert given["not_reached"] == ["engagement/*"]
    assert world.holds(given)
    [until] = [place["until"] for place in given["places"] if place["name"] == "game/*"]
    assert set(until) == {former.value for former in Former}
    for table in (*TABLES, QUARANTINE):
        store_tables.purge(DeltaTable(table.uri(world.root)))
    left = places_with([world.settings.home], [BOB.encode()])
    assert {path.parent.name for path in left} == {"_delta_log"}
    world.append(LOGIN, 9, [{"game_id": "chess", "player_id": BOB}])
    assert not world.holds(given), "a row that comes back is found"


def test_a_receipt_promises_no_day_where_nobody_can_read_how_long_a_table_keeps_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(home=tmp_path / "home")
    [place] = game_places(settings)
    monkeypatch.setattr(place, "erase", lambda _: 0)
    vault, names = open_vault(settings), ("delta.deletedFileRetentionDuration", "delta.logRetentionDuration")
    for table in TABLES:
        plant.create(table.uri(settings.lake), table)

    def until(retention: str) -> Mapping[str, str]:
        DeltaTable(FORMER.uri(settings.lake)).alter.set_table_properties(dict.fromkeys(names, retention))
        keys, done = erase(vault, subject(vault, BOB, None), [place])
        given = receipt(vault.keyring, subject(vault, BOB, None), keys, done, NOW)
        [found] = [one["until"] for one in given["places"] if one["name"] == place.name]
        return dict(found)

    def days(of: str) -> int:
        return (datetime.fromisoformat(of) - datetime.now(UTC) + timedelta(hours=1)).days

    assert {what: days(of) for what, of in until("interval 12 days").items()} == {"files": 14, "log": 14}
    unreadable = until("interval 1 month")
    assert (
        unreadable["files"] == f"{names[0]} of {FORMER.name} is set to a length, without which VACUUM removes nothing"
    )
    assert days(unreadable["log"]) == 32, "Delta's default, which cleaning goes by then"
    for_good = until("interval 3000000 days")
    assert {what: days(of) for what, of in for_good.items()} == dict.fromkeys(("files", "log"), 365_002)
    assert until("interval 9999999999 days")["files"] == unreadable["files"]


@pytest.mark.slow
@pytest.mark.parametrize("damaged", [LOGIN, FORMER], ids=lambda table: table.key[1])
@pytest.mark.parametrize("file", ["*/*.parquet", "_delta_log/00000000000000000000.json"], ids=["file", "log"])
def test_a_damaged_table_is_in_the_receipt_and_the_player_leaves_all_others(
    world: World, damaged: Table, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(world.settings.home))
    for path in Path(damaged.uri(world.root)).glob(file):
        path.write_bytes(path.read_bytes()[:-20])
    receipt_at = tmp_path / "receipt.json"
    done = CliRunner().invoke(app, ["erase", "--subject", BOB, "--yes", "--out", str(receipt_at)])
    assert done.exit_code == 1
    [place] = [place for place in json.loads(receipt_at.read_text())["places"] if place["stays"]]
    assert (place["name"], place["left"]) == ("game/*", 1)
    [sentence] = place["stays"]
    assert f"{damaged.name} could not be read or written" in sentence
    assert sentence in done.stderr
    assert BOB not in done.stderr
    others = [table for table in TABLES if table != damaged]
    states = json.loads(receipt_at.read_text())["tables"]
    assert {name for name, state in states.items() if state == "not done"} == {damaged.name}
    assert {states[table.name] for table in others} == {"covered"}
    assert [world.players(table) for table in others] == [[("chess", AMY), ("puzzle", AMY)]]
    assert world.refused() == [2, 4]


@pytest.mark.slow
def test_a_player_erased_in_one_game_stays_in_the_others(world: World) -> None:
    erase(world.vault, world.who("puzzle"), [world.tables])
    assert [world.players(table) for table in TABLES] == [[("chess", AMY), ("chess", BOB), ("puzzle", AMY)]] * 2
    assert world.refused() == [0, 2, 4], "a line of which no game can be read goes too"


@pytest.mark.slow
def test_nothing_is_taken_out_while_a_batch_is_half_done_and_the_same_call_does_the_rest(world: World) -> None:
    batches = CheckpointStore(open_engine(world.settings.store_url))
    job = "ingest-game-events"
    manifest = Manifest(job, batches.app_id(job), 0, {}, {"1": 1}, NOW, {QUARANTINE.name: 1, LOGIN.name: 2})
    batches.begin(manifest)
    with pytest.raises(OthersBatchUnfinished, match=job):
        erase(world.vault, world.who(), [world.tables])
    assert len(world.players(LOGIN)) == 4
    batches.succeed(manifest, {}, {}, NOW)
    # As a crash leaves it.
    DeltaTable(LOGIN.uri(world.root)).alter.set_table_properties({"delta.appendOnly": "false"})
    erase(world.vault, world.who(), [world.tables])
    assert world.tables.left(world.who()) == 0
    assert DeltaTable(LOGIN.uri(world.root)).metadata().configuration["delta.appendOnly"] == "true"


@pytest.mark.parametrize(
    ("said", "is_found"),
    [
        (b'{"player_id": "j\xc3\xb6rg-1", "game_id": "chess"}', True),
        (b'{"player_id": "j\\u00F6rg-1", "game_id": "chess"}', True),
        (b'{"player_id": "j\\u00F6r\\u0067-1"}', True),
        (b'{"player_id": "j\xc3\xb6rg-12", "game_id": "chess"}', False),
        (b"j\xc3\xb6rg-1, cut off", True),
        (b'{"player_id": "j\\u00F6r\\u0067-1", "cut off', True),
        (b'{"note": "\\nj\xc3\xb6rg-1"}', True),
        (b'{"note": "\\ud83d\\ude00 \\\\u006aj\xc3\xb6rg-1"}', False),
        (b"[]", False),
        (None, False),
    ],
)
def test_a_refused_line_is_found_however_json_writes_the_id(said: bytes | None, is_found: bool) -> None:
    assert is_named(naming(Subject("jörg-1", "ref")), said) is is_found


def test_without_any_game_table_nothing_is_done_and_nothing_is_made(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home")
    keys, done = erase(open_vault(settings), Subject(BOB, "ref"), game_places(settings))
    assert (keys, [(one.rows, one.left) for one in done]) == (0, [(0, 0)] * 3)
    assert not Path(settings.lake, "game").exists()
