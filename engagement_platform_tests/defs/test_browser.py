"""What a newcomer sees in the Dagster UI minutes after `engagement-platform up`; also takes the README's pictures.

TESTS_PICTURES=1 writes them to docs/images/, otherwise they go to the test's own folder.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from engagement_platform.local.games import GAMES
from engagement_platform.local.ports import free_ports
from engagement_platform.settings import EmbeddedSettings
from engagement_platform_tests.defs.browser import ask, assert_shown, needs_chromium, opened, picture
from engagement_platform_tests.files_with import open_to_others, places_with
from engagement_platform_tests.test_canary_secrets import CANARY

# Start 15 to 60 s, first batch 16 s on a new Spark server, then two more, a verification and a look at the layout: 90 s
# on a quiet machine, and more than 480 on one that was busy with other tests.
SEEN_WITHIN_S = 1500
STOPPED_WITHIN_S = 40

CHECKS = {
    "engagement/data": [
        *("conservation", "contents", "fresh", "guards_kept", "identity", "nothing_lost", "pending_age"),
        "unique_engagement_id",
        "layout",
    ],
    "engagement/mapping": ["names"],
    "engagement/notification": ["announced", "announced_rows", "fresh"],
    "engagement/alias": ["accepted_once"],
    "engagement/quarantine": ["quarantine_share", "rejected_once"],
    "engagement/mutation_request": ["conservation", "fresh"],
}

PROFILE_CHECKS = {
    "profile/changeset": ["conservation", "fresh", "changeset_size"],
    "profile/materialized": ["watermark"],
}

GROUP_PAGE = "/locations/__repository__@engagement_platform/asset-groups/engagement/lineage"
"""The graph of engagements; what comes from elsewhere is named beside it."""

GAMES_PAGE = "/locations/__repository__@engagement_platform/asset-groups/games/lineage"

_CHECKS_QUERY = """{ assetNodes { assetKey { path }
  assetMaterializations(limit: 3) {
    timestamp metadataEntries { label ... on IntMetadataEntry { intValue }
      ... on TableMetadataEntry { table { records } } } }
  assetObservations(limit: 1) { timestamp }
  assetChecksOrError { ... on AssetChecks { checks { name executionForLatestMaterialization { status } } } } } }"""

_NOTIFICATIONS = """{ assetNodeOrError(assetKey: {path: ["engagement", "notification"]}) { ... on AssetNode {
  assetObservations(limit: 50) { timestamp metadataEntries { label } } } } }"""

_BACKFILL = """mutation { launchPartitionBackfill(backfillParams: {
  assetSelection: [{path: ["profile", "changeset"]}], partitionNames: ["%s"], title: "once more" }) {
  __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""

_HOW_FAR = """{ partitionBackfillOrError(backfillId: "%s") { ... on PartitionBackfill { status } } }"""

_DRAINS = """{ runsOrError(filter: {pipelineName: "drain_pipelines"}, limit: 20) {
  ... on Runs { results { runId status } } } }"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.broker,
    pytest.mark.timeout(SEEN_WITHIN_S + 300),
    needs_chromium,
]


@dataclass(frozen=True)
class Up:
    """`engagement-platform up`, under way."""

    address: str
    """Of the UI."""
    process: subprocess.Popen[bytes]
    console: Path

    def wait(self, missing: Callable[[str], str | None]) -> None:
        """Until nothing is missing any more; a failure says what was missed last and what the console said."""
        deadline, last = time.monotonic() + SEEN_WITHIN_S, "everything"
        while time.monotonic() < deadline:
            ended = f"`up` ended with {self.process.returncode}: {self.console.read_text()[-2000:]}"
            assert self.process.poll() is None, ended
            try:
                answer = missing(self.address)
            except OSError as error:
                answer = f"the UI ({error})"
            if answer is None:
                return
            last = answer
            # What it costs to ask for everything is missing where the work is done.
            time.sleep(10)
        pytest.fail(f"not seen within {SEEN_WITHIN_S} s: {last}\n{self.console.read_text()[-2000:]}")


@pytest.fixture(scope="module")
def up(kafka_jars: list[Path], spark_jars: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A fresh home with sample traffic of engagements and games; what is to be seen there is waited for by each."""
    home = tmp_path_factory.mktemp("up")
    names = sorted(name for name in EmbeddedSettings.model_fields if name.endswith("_port"))
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    env = {f"ENGAGEMENT_PLATFORM_EMBEDDED__{name.upper()}": str(port) for name, port in ports.items()}
    env["ENGAGEMENT_PLATFORM_HOME"] = str(home / "home")
    env["ENGAGEMENT_PLATFORM_SPARK__CONF"] = json.dumps({"spark.hadoop.fs.s3a.secret.key": CANARY})
    command = [sys.executable, "-m", "engagement_platform.cli", "up", "--traffic", "40"]
    console = home / "console.log"
    with console.open("w") as output:
        # Who tries it has no account anywhere and Spark as it comes.
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SPARK_"))}
        process = subprocess.Popen(command, env={**clean, **env}, cwd=home, stdout=output, stderr=output, umask=0)
    running = Up(f"http://127.0.0.1:{ports['ui_port']}", process, console)
    try:
        yield running
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(STOPPED_WITHIN_S)


@pytest.fixture(scope="module")
def ui(up: Up) -> str:
    """The address of the UI, once batches of engagements have come and their checks are green."""
    up.wait(_missing)
    said = up.console.read_text()
    assert "cannot be used" not in said, said[-2000:]
    return up.address


@pytest.fixture(scope="module")
def games_ui(up: Up) -> str:
    """The address of the UI, once there are events in all tables of games, and figures of them."""
    up.wait(_missing_of_games)
    return up.address


@pytest.fixture(scope="module")
def profiles_ui(up: Up) -> str:
    """The address of the UI, once changes of profiles were moved by themselves and their view was looked at."""
    up.wait(_missing_of_profiles)
    return up.address


def _nodes(address: str) -> dict[str, dict[str, Any]]:
    return {"/".join(node["assetKey"]["path"]): node for node in ask(address, _CHECKS_QUERY)["assetNodes"]}


def _missing(address: str) -> str | None:
    """A batch of engagements, and each check green."""
    nodes = _nodes(address)
    if not nodes["engagement/data"]["assetMaterializations"]:
        return "a batch"
    for asset, names in CHECKS.items():
        for name in names:
            if (status := _status(nodes[asset], name)) != "SUCCEEDED":
                return f"a green {asset} {name}, it is {status}"
    return None


def _missing_of_games(address: str) -> str | None:
    """Events in each of the thirty tables, sums that are right, and figures of a minute that is over."""
    nodes = _nodes(address)
    games = [key for key in nodes if key.startswith("game/")]
    assert len(games) == 31
    if empty := [key for key in games if not nodes[key]["assetMaterializations"]]:
        return f"a batch with events of {', '.join(empty)}"
    if (status := _status(nodes["game/quarantine"], "row_sums")) != "SUCCEEDED":
        return f"a green game/quarantine row_sums, it is {status}"
    counted = nodes["live_ops/figures"]["assetMaterializations"]
    # The first runs have none: no minute is over yet.
    said = counted[0]["metadataEntries"] if counted else []
    tables = [entry["table"] for entry in said if entry["label"] == "figures" and "table" in entry]
    shown = {json.loads(record)["game"] for table in tables for record in table["records"]}
    if missed := set(GAMES) - shown:
        return f"figures of a minute that is over, of {', '.join(sorted(missed))}"
    return None


def _missing_of_profiles(address: str) -> str | None:
    """Batches of changes, a rematerialization with its reason, observations of the view, and each check green."""
    nodes = _nodes(address)
    moved = nodes["profile/materialized"]["assetMaterializations"]
    if not moved or not any(entry["label"] == "method" for entry in moved[0]["metadataEntries"]):
        return "a rematerialization of profiles"
    if not nodes["profile/current"]["assetObservations"]:
        return "an observation of profile/current"
    for asset, names in PROFILE_CHECKS.items():
        for name in names:
            if (status := _status(nodes[asset], name)) != "SUCCEEDED":
                return f"a green {asset} {name}, it is {status}"
    return None


def _missing_of_page_views(address: str) -> str | None:
    """A run that says how many page views it read."""
    read = _rows_read(address)
    return None if any(read) else f"a run with page views, of {len(read)} runs"


def _rows_read(address: str) -> list[int]:
    """How many page views the last runs read, as they say."""
    runs = _nodes(address)["view/page_view"]["assetMaterializations"]
    return [entry["intValue"] for run in runs for entry in run["metadataEntries"] if entry["label"] == "rows_in"]


def _status(node: dict[str, Any], check: str) -> str | None:
    """Of the newest run of a check of an asset."""
    [found] = [one["executionForLatestMaterialization"] for one in _checks(node) if one["name"] == check]
    return found and str(found["status"])


def _checks(node: dict[str, Any]) -> list[dict[str, Any]]:
    checks: list[dict[str, Any]] = node["assetChecksOrError"]["checks"]
    return checks


@pytest.fixture
def page(ui: str) -> Iterator[Any]:
    """An empty page of a fresh browser, for addresses of the UI."""
    with opened(ui) as page:
        yield page


@pytest.fixture
def profiles_page(profiles_ui: str) -> Iterator[Any]:
    """The same, for profiles."""
    with opened(profiles_ui) as page:
        yield page


@pytest.fixture
def games_page(games_ui: str) -> Iterator[Any]:
    """The same, for games."""
    with opened(games_ui) as page:
        yield page


def test_the_asset_graph_leads_from_topics_to_tables_with_green_checks(page: Any, tmp_path: Path) -> None:
    # Nodes outside of the window are not drawn.
    page.set_viewport_size({"width": 2400, "height": 2600})
    page.goto(GROUP_PAGE, wait_until="domcontentloaded")
    for name in ("engagements", "mutation-requests", "quarantine", "mapping", "data", "notification"):
        assert_shown(page.get_by_text(name, exact=True).last)
    checks = len(CHECKS["engagement/data"])
    assert_shown(page.get_by_text(f"{checks} / {checks} Passed"))
    picture(page, "asset-graph", tmp_path)


def _newest(ui: str, key: str) -> str:
    """When an asset was materialized last. Its page shows the newest event first, which may be an observation."""
    return str(_nodes(ui)[key]["assetMaterializations"][0]["timestamp"])


def test_a_batch_shows_its_counts_and_the_plot_of_the_last_ones(page: Any, ui: str, tmp_path: Path) -> None:
    moment = _newest(ui, "engagement/data")
    page.goto(f"/assets/engagement/data?view=events&time={moment}", wait_until="domcontentloaded")
    for label in ("rows_in", "landed", "freshness_p95_s", "offsets"):
        assert_shown(page.get_by_text(label, exact=True).first)
    picture(page, "batch", tmp_path)
    page.get_by_text("[Show Markdown]").first.click()
    plot = page.locator("img[alt*='batches']")
    plot.wait_for()
    assert plot.evaluate("image => image.complete && image.naturalWidth") > 300
    picture(page, "batch-plot", tmp_path)


def _announced(address: str) -> list[str]:
    """When requests were announced. The batches of engagements observe their notifications, too, by other counts."""
    found = ask(address, _NOTIFICATIONS)["assetNodeOrError"]["assetObservations"]
    of_requests = {"conversions", "deletions", "updated"}
    return [one["timestamp"] for one in found if of_requests <= {entry["label"] for entry in one["metadataEntries"]}]


def test_a_batch_of_requests_shows_what_it_changed_for_readers(page: Any, up: Up, ui: str, tmp_path: Path) -> None:
    up.wait(lambda address: None if _announced(address) else "an observation of announced requests")
    moment = _announced(ui)[0]
    page.goto(f"/assets/engagement/notification?view=events&time={moment}", wait_until="domcontentloaded")
    for label in ("conversions", "deletions", "updated", "notifications"):
        assert_shown(page.get_by_text(label, exact=True).first)
    picture(page, "mutation-batch", tmp_path)


def test_all_checks_of_the_data_table_are_green_and_say_what_they_mean(page: Any, tmp_path: Path) -> None:
    page.goto("/assets/engagement/data?view=checks", wait_until="domcontentloaded")
    for name in CHECKS["engagement/data"]:
        assert_shown(page.get_by_text(name, exact=True).first)
    page.get_by_text("nothing_lost", exact=True).first.click()
    assert_shown(page.get_by_text("every accepted message of the topic is in the table"))
    assert_shown(page.get_by_text("Succeeded").or_(page.get_by_text("Passed")).first)
    picture(page, "checks", tmp_path)


def test_games_go_from_http_to_thirty_tables_whose_sums_are_right(
    games_page: Any, games_ui: str, tmp_path: Path
) -> None:
    page = games_page
    page.set_viewport_size({"width": 2400, "height": 2600})
    page.goto(GAMES_PAGE, wait_until="domcontentloaded")
    # The middle of thirty: others are below and above the window.
    for name in ("game-events", "login", "match_end", "purchase", "quarantine", "figures"):
        assert_shown(page.get_by_text(name, exact=True).last)
    picture(page, "games", tmp_path)
    page.set_viewport_size({"width": 1360, "height": 800})
    page.goto("/assets/game/quarantine?view=checks", wait_until="domcontentloaded")
    page.get_by_text("row_sums", exact=True).first.click()
    assert_shown(page.get_by_text("Every line that a batch received was routed"))
    assert_shown(page.get_by_text("Succeeded").or_(page.get_by_text("Passed")).first)
    picture(page, "game-row-sums", tmp_path)
    page.goto(f"/assets/game/heartbeat?view=events&time={_newest(games_ui, 'game/heartbeat')}")
    assert_shown(page.get_by_text("rows_written", exact=True).first)
    picture(page, "game-table", tmp_path)


def test_live_ops_shows_the_figures_of_each_game_by_minute(games_page: Any, games_ui: str, tmp_path: Path) -> None:
    page = games_page
    moment = _newest(games_ui, "live_ops/figures")
    page.goto(f"/assets/live_ops/figures?view=events&time={moment}", wait_until="domcontentloaded")
    for label in ("figures", "judged_until", "not_judged_yet", "players"):
        assert_shown(page.get_by_text(label, exact=True).first)
    for game in GAMES:
        assert_shown(page.get_by_text(game, exact=True).first)
    page.get_by_text("[Show Markdown]").first.click()
    plot = page.locator("img[alt*='per minute']")
    plot.wait_for()
    assert plot.evaluate("image => image.complete && image.naturalWidth") > 300
    picture(page, "live-ops", tmp_path)


def test_profiles_are_moved_by_themselves_and_the_page_says_why(
    profiles_page: Any, profiles_ui: str, tmp_path: Path
) -> None:
    page, moment = profiles_page, _newest(profiles_ui, "profile/materialized")
    page.goto(f"/assets/profile/materialized?view=events&time={moment}", wait_until="domcontentloaded")
    for label in ("why", "method", "pending_rows", "last_batches"):
        assert_shown(page.get_by_text(label, exact=True).first)
    picture(page, "rematerialization", tmp_path)
    page.goto("/assets/profile/current?view=events", wait_until="domcontentloaded")
    # Dagster draws numbers over time by itself.
    assert_shown(page.get_by_text("pending_rows", exact=True).first)
    picture(page, "profile-view", tmp_path)


def test_a_backfill_need_not_wait_until_changes_cease(up: Up, profiles_page: Any, tmp_path: Path) -> None:
    draining: list[str] = []

    def no_drain(address: str) -> str | None:
        runs = ask(address, _DRAINS)["runsOrError"]["results"]
        draining[:] = [run["runId"] for run in runs if run["status"] == "STARTED"]
        return None if draining else "a run that drains changes"

    def not_done(address: str) -> str | None:
        status = ask(address, _HOW_FAR % backfill)["partitionBackfillOrError"]["status"]
        # Its run succeeds and materializes nothing, and so Dagster ends the backfill.
        return None if status == "COMPLETED_FAILED" else f"the end of the backfill, it is {status}"

    up.wait(no_drain)
    # Nothing was ingested on that day: what takes long is to wait for one's turn.
    yesterday = (datetime.now(UTC) - timedelta(days=1)).date()
    launched = ask(up.address, _BACKFILL % yesterday)["launchPartitionBackfill"]
    assert launched["__typename"] == "LaunchBackfillSuccess", launched
    backfill = launched["backfillId"]
    up.wait(not_done)
    [drain] = [one for one in ask(up.address, _DRAINS)["runsOrError"]["results"] if one["runId"] == draining[0]]
    # It goes on for the other pipelines, unless its time is over just then.
    assert drain["status"] in ("STARTED", "SUCCESS")
    profiles_page.goto(f"/runs/b/{backfill}", wait_until="domcontentloaded")
    profiles_page.get_by_text(backfill).first.wait_for()
    picture(profiles_page, "backfill", tmp_path)


def test_a_run_of_page_views_says_how_many_it_read(up: Up) -> None:
    up.wait(_missing_of_page_views)
    assert any(_rows_read(up.address))


@pytest.mark.usefixtures("ui", "games_ui", "profiles_ui")
def test_everything_that_ran_left_files_for_their_owner_only_and_no_secret(up: Up) -> None:
    home = up.console.parent / "home"
    assert open_to_others(home) == {}, "whatever the umask of the shell is"
    assert places_with([home], [CANARY.encode()]) == []
    assert CANARY not in up.console.read_text()
