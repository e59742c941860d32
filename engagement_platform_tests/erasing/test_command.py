"""The command erases a person from everything on this machine: canaries before, bytes and receipt after."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from engagement_platform.cli import app
from engagement_platform.erasing.job import tables
from engagement_platform.ingest_server.sinks import packed
from engagement_platform.lake.engagement import MAPPING
from engagement_platform.pii.receipts import ReceiptRefused
from engagement_platform.pipelines.page_views.job import HOPS
from engagement_platform.settings import Settings
from engagement_platform_tests import plant
from engagement_platform_tests.erasing.planted import ANN, BOB, DATA, SECRET, Planted, engagement
from engagement_platform_tests.files_with import places_with

NEEDLES = [BOB.encode(), SECRET.encode()]


def command(*words: str) -> Result:
    """`engagement-platform` in this process."""
    return CliRunner().invoke(app, words)


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planted:
    """Every table has something of the person."""
    planted = Planted(tmp_path / "home")
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(planted.settings.home))
    for table in tables(planted.settings):
        if planted.rows(table):
            assert places_with([Path(table.uri(planted.root))], NEEDLES), f"nothing was planted in {table.name}"
    return planted


def traces(settings: Settings) -> list[Path]:
    return places_with([settings.home], NEEDLES)


@pytest.mark.slow
def test_erase_now_leaves_no_byte_but_in_entries_of_logs_and_its_receipt_says_until_when(
    planted: Planted, tmp_path: Path
) -> None:
    file = tmp_path / "receipt.json"
    plant.create(f"{planted.root}/view/session", HOPS[1].table)
    # In a process of its own, whose Spark prints nothing between the lines of the command.
    words = ("erase", "--subject", BOB, "--now", "--yes", "--out", str(file))
    done = subprocess.run(
        [sys.executable, "-m", "engagement_platform.cli", *words],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert BOB not in done.stderr
    left = traces(planted.settings)
    assert [path for path in left if "_delta_log" not in path.parts] == []
    given = json.loads(file.read_text())
    assert BOB not in file.read_text()
    assert "view/session" in given["not_reached"], "nobody looks into it, and it has users"
    assert not {table.name for table in tables(planted.settings)} & set(given["not_reached"])
    until = {place["name"]: place.get("until", {}) for place in given["places"]}
    inside = {"/".join(path.relative_to(planted.root).parts[:2]) for path in left}
    assert all("log" in until[name] for name in inside), "what is left has its day"
    assert not [table.name for table in tables(planted.settings) if "files" in until[table.name]]

    looked = command("erase", "--verify", str(file), "--subject", BOB)
    assert looked.exit_code == 0, looked.stdout
    assert "LEFT" not in looked.stdout
    assert command("erase", "--verify", str(file)).exit_code == 0

    # A wrong signature, another subject, and a row that comes back are found.
    forged = tmp_path / "forged.json"
    forged.write_text(json.dumps({**given, "keys_destroyed": 99}))
    assert isinstance(command("erase", "--verify", str(forged)).exception, ReceiptRefused)
    assert isinstance(command("erase", "--verify", str(file), "--subject", ANN).exception, ReceiptRefused)
    planted.append(DATA, [engagement("org", "late", BOB, BOB)], 9)
    looked = command("erase", "--verify", str(file), "--subject", BOB)
    assert looked.exit_code == 1
    assert f"{DATA.name:36} LEFT" in looked.stdout


@pytest.mark.slow
def test_a_damaged_table_of_engagements_is_in_the_receipt_and_what_is_elsewhere_is_erased(
    planted: Planted, tmp_path: Path, spark: SparkSession
) -> None:
    home, file = planted.settings.home, tmp_path / "receipt.json"
    events = home / "games" / "events"
    events.mkdir(parents=True)
    (events / "a.json.gz").write_bytes(packed([json.dumps({"player_id": BOB, "event_type": "x"}).encode()]))
    (path,) = Path(MAPPING.uri(planted.root)).glob("*.parquet")
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    done = command("erase", "--subject", BOB, "--yes", "--out", str(file))
    assert done.exit_code == 1, done.stderr
    assert "Tables of engagements and profiles could not be read or written" in done.stderr
    assert done.stderr.endswith("then make the same call again.\n")
    assert BOB not in done.stderr
    places = {place["name"]: place for place in json.loads(file.read_text())["places"]}
    assert places[MAPPING.name]["left"]
    assert places[MAPPING.name]["stays"]
    assert places["objects of raw events"]["rows"] == 1
    assert json.loads(file.read_text())["tables"][MAPPING.name] == "not done"
    assert list(events.iterdir()) == []
    path.write_bytes(content)
    done = command("erase", "--subject", BOB, "--yes", "--out", str(file))
    assert done.exit_code == 0, done.stderr
    assert json.loads(file.read_text())["tables"][MAPPING.name] == "covered"
