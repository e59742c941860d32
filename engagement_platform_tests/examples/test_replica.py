"""The example of a replica in DuckDB: what the file holds after anything that happens to tables, file and process."""

from __future__ import annotations

import json
import random
import shutil
from html import escape
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from engagement_platform.consumers import Changes
from engagement_platform.lake.engagement import NOTIFICATION
from engagement_platform_tests.consumers.lakes import PlainLake, rows_of_duckdb
from engagement_platform_tests.consumers.test_changes import expire, happens, land, messages_of
from engagement_platform_tests.pipelines.mutations.histories import convert, delete
from examples.replica import app, refresh


@pytest.fixture
def lake(tmp_path: Path) -> PlainLake:
    return PlainLake(tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "replica.duckdb"


@pytest.mark.parametrize("seed", range(2))
def test_a_replica_has_what_readers_see_whatever_happened(tmp_path: Path, file: Path, seed: int) -> None:
    lake, rng = PlainLake(tmp_path), random.Random(seed)
    land(lake, "first", organization="org-0")
    assert refresh(lake.settings, file), "a new one gets everything that stands"
    for part in messages_of(range(seed * 10, seed * 10 + 4), rng):
        happens(lake, part, rng)
        assert not refresh(lake.settings, file, max_rows=rng.choice((1, 5, 1000)))
        assert rows_of_duckdb(file) == lake.standing()


def test_a_crash_between_file_and_cursor_doubles_nothing_and_loses_nothing(
    lake: PlainLake, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(lake, "e1", "e2")
    refresh(lake.settings, file)
    lake.ask([delete("d1", 20, engagement_id="e1")])
    land(lake, "e3")

    def dies(_changes: Changes) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as crash:
        crash.setattr(Changes, "commit", dies)
        with pytest.raises(KeyboardInterrupt):
            refresh(lake.settings, file, max_rows=1)
    assert not refresh(lake.settings, file, max_rows=1)
    assert rows_of_duckdb(file) == lake.standing()


def test_where_changes_no_longer_lead_to_what_stands_all_rows_are_replaced(lake: PlainLake, file: Path) -> None:
    land(lake, "e1")
    refresh(lake.settings, file)
    before = file.with_suffix(".copy")
    shutil.copy(file, before)
    land(lake, "e2")
    refresh(lake.settings, file)
    before.replace(file)
    assert refresh(lake.settings, file), "the file is older than the cursor"
    land(lake, "e3")
    land(lake, "e4")
    DeltaTable(lake.uri(NOTIFICATION)).create_checkpoint()
    expire(lake, *range(DeltaTable(lake.uri(NOTIFICATION)).version()))
    assert refresh(lake.settings, file), "the log keeps no changes"
    assert rows_of_duckdb(file) == lake.standing()


def test_a_file_of_another_lake_gets_the_rows_of_this_one(tmp_path: Path, file: Path) -> None:
    former, lake = PlainLake(tmp_path / "former"), PlainLake(tmp_path / "now")
    for name in ("e1", "e2", "e3"):
        land(former, name)
    refresh(former.settings, file)
    land(lake, "e4")
    assert refresh(lake.settings, file), "with fewer commits than the file has read"
    assert rows_of_duckdb(file) == lake.standing()
    land(lake, "e5")
    assert not refresh(lake.settings, file)
    assert rows_of_duckdb(file) == lake.standing()


def test_a_file_that_does_not_say_of_which_lake_it_is_is_filled_anew_once(lake: PlainLake, file: Path) -> None:
    land(lake, "e1")
    refresh(lake.settings, file)
    with duckdb.connect(str(file)) as connection:
        connection.execute("ALTER TABLE position DROP COLUMN table_id")
    assert [refresh(lake.settings, file) for _ in range(2)] == [True, False]


def test_the_page_loads_nothing_and_takes_no_name_for_markup(
    lake: PlainLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path))
    odd = '</script><a href="http://evil">o</a>'
    land(lake, "e1", "e2", organization=odd)
    lake.ask([{**convert("c1", "p1", "p2", 200), "organization_id": odd}])
    for words in (["refresh", "r.duckdb"], ["page", "r.duckdb", "page.html"]):
        assert CliRunner().invoke(app, words).exit_code == 0
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "2 engagements of 1 organizations" in text
    assert odd not in text
    assert 'src="http' not in text
    # Plotly escapes what would end the script by itself, and makes links and bold text of tags that labels hold.
    ticks = [json.JSONDecoder().raw_decode(part)[0] for part in text.split('"ticktext":')[1:] if part.startswith("[")]
    _days, persons, converted = ticks
    assert all(label.endswith(f", {escape(odd)}") for label in persons)
    assert converted == [escape(odd)]
