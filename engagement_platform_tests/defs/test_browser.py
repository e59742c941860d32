"""What a newcomer sees in the Dagster UI minutes after `engagement-platform up`; also takes the README's pictures.

ENGAGEMENT_PLATFORM_TESTS_PICTURES=1 writes them to docs/images/, otherwise they go to the test's own folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engagement_platform.embedded.ports import free_ports
from engagement_platform.layout.findings import CODES
from engagement_platform.settings import EmbeddedSettings
from engagement_platform_tests.defs.browser import ask, needs_chromium, opened, picture

# Start 15 to 60 s, first batch 16 s on a new Spark server, then two more, a verification and a look at the layout: 90 s
# on a quiet machine, and more than 480 on one that was busy with other tests.
SEEN_WITHIN_S = 900
STOPPED_WITHIN_S = 40

CHECKS = {
    "engagement/data": [
        *("conservation", "contents", "fresh", "guards_kept", "identity", "nothing_lost", "unique_engagement_id"),
        *CODES,
    ],
    "engagement/mapping": ["names"],
    "engagement/notification": ["announced", "announced_rows"],
    "engagement/alias": ["acyclic", "conservation", "fresh"],
    "engagement/quarantine": ["quarantine_share", "rejected_once"],
    "engagement/mutation_request": ["conservation", "fresh"],
}

GROUP_PAGE = "/locations/__repository__@engagement_platform/asset-groups/engagement/lineage"
"""The graph of engagements and profiles; games have a group of their own."""

_CHECKS_QUERY = """{ assetNodes { assetKey { path } assetMaterializations(limit: 3) { timestamp }
  assetChecksOrError { ... on AssetChecks { checks { name executionForLatestMaterialization { status } } } } } }"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.broker,
    pytest.mark.timeout(SEEN_WITHIN_S + 300),
    needs_chromium,
]


@pytest.fixture(scope="module")
def ui(kafka_jars: list[Path], spark_jars: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the UI of a fresh home with sample traffic, once batches have come and checks are green."""
    home = tmp_path_factory.mktemp("up")
    names = sorted(name for name in EmbeddedSettings.model_fields if name.endswith("_port"))
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    env = {f"ENGAGEMENT_PLATFORM_EMBEDDED__{name.upper()}": str(port) for name, port in ports.items()}
    env["ENGAGEMENT_PLATFORM_HOME"] = str(home / "home")
    command = [sys.executable, "-m", "engagement_platform.cli", "up", "--traffic", "40"]
    console = home / "console.log"
    with console.open("w") as output:
        # Who tries it has no account anywhere and Spark as it comes.
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SPARK_"))}
        up = subprocess.Popen(command, env={**clean, **env}, cwd=home, stdout=output, stderr=output)
    address = f"http://127.0.0.1:{ports['ui_port']}"
    try:
        _wait(lambda: _all_seen(address), up, console)
        said = console.read_text()
        assert "cannot be used" not in said, said[-2000:]
        yield address
    finally:
        up.send_signal(signal.SIGINT)
        up.wait(STOPPED_WITHIN_S)


def _wait(seen: Callable[[], str | None], up: subprocess.Popen[bytes], console: Path) -> None:
    """Until `seen` misses nothing any more; a failure says what it missed last and what the console said."""
    deadline, missing = time.monotonic() + SEEN_WITHIN_S, "everything"
    while time.monotonic() < deadline:
        assert up.poll() is None, f"`up` ended with {up.returncode}: {console.read_text()[-2000:]}"
        answer = seen()
        if answer is None:
            return
        missing = answer
        time.sleep(2)
    pytest.fail(f"not seen within {SEEN_WITHIN_S} s: {missing}\n{console.read_text()[-2000:]}")


def _all_seen(address: str) -> str | None:
    """What is still missing: three batches of engagements, and each check green."""
    try:
        nodes = {"/".join(node["assetKey"]["path"]): node for node in ask(address, _CHECKS_QUERY)["assetNodes"]}
    except OSError as error:
        return f"the UI ({error})"
    if len(nodes["engagement/data"]["assetMaterializations"]) < 3:
        return "three batches"
    for asset, names in CHECKS.items():
        found = {check["name"]: check["executionForLatestMaterialization"] for check in _checks(nodes[asset])}
        for name in names:
            if (found[name] or {}).get("status") != "SUCCEEDED":
                return f"a green {asset} {name}, it is {found[name]}"
    return None


def _checks(node: dict[str, Any]) -> list[dict[str, Any]]:
    checks: list[dict[str, Any]] = node["assetChecksOrError"]["checks"]
    return checks


@pytest.fixture
def page(ui: str) -> Iterator[Any]:
    """An empty page of a fresh browser, for addresses of the UI."""
    with opened(ui) as page:
        yield page


def test_the_asset_graph_leads_from_topics_to_tables_with_green_checks(page: Any, tmp_path: Path) -> None:
    # Nodes outside of the window are not drawn.
    page.set_viewport_size({"width": 2400, "height": 2600})
    page.goto(GROUP_PAGE, wait_until="domcontentloaded")
    for name in ("engagements", "mutation-requests", "quarantine", "mapping", "data", "notification"):
        page.get_by_text(name, exact=True).last.wait_for()
    checks = len(CHECKS["engagement/data"])
    page.get_by_text(f"{checks} / {checks} Passed").wait_for()
    picture(page, "asset-graph", tmp_path)


def _newest(ui: str, key: str) -> str:
    """When an asset was materialized last. Its page shows the newest event first, which may be an observation."""
    nodes = {"/".join(node["assetKey"]["path"]): node for node in ask(ui, _CHECKS_QUERY)["assetNodes"]}
    return str(nodes[key]["assetMaterializations"][0]["timestamp"])


def test_a_batch_shows_its_counts_and_the_plot_of_the_last_ones(page: Any, ui: str, tmp_path: Path) -> None:
    moment = _newest(ui, "engagement/data")
    page.goto(f"/assets/engagement/data?view=events&time={moment}", wait_until="domcontentloaded")
    for label in ("rows_in", "landed", "freshness_p95_s", "offsets"):
        page.get_by_text(label, exact=True).first.wait_for()
    picture(page, "batch", tmp_path)
    page.get_by_text("[Show Markdown]").first.click()
    plot = page.locator("img[alt*='batches']")
    plot.wait_for()
    assert plot.evaluate("image => image.complete && image.naturalWidth") > 300
    picture(page, "batch-plot", tmp_path)


def test_a_batch_of_mutations_shows_what_was_chosen_and_why(page: Any, ui: str, tmp_path: Path) -> None:
    moment = _newest(ui, "engagement/alias")
    page.goto(f"/assets/engagement/alias?view=events&time={moment}", wait_until="domcontentloaded")
    for label in ("operations", "longest_chain", "write_amplification", "strategies"):
        page.get_by_text(label, exact=True).first.wait_for()
    picture(page, "mutation-batch", tmp_path)


def test_all_checks_of_the_data_table_are_green_and_say_what_they_mean(page: Any, tmp_path: Path) -> None:
    page.goto("/assets/engagement/data?view=checks", wait_until="domcontentloaded")
    for name in CHECKS["engagement/data"]:
        page.get_by_text(name, exact=True).first.wait_for()
    page.get_by_text("nothing_lost", exact=True).first.click()
    page.get_by_text("every accepted message of the topic is in the table").wait_for()
    page.get_by_text("Succeeded").or_(page.get_by_text("Passed")).first.wait_for()
    picture(page, "checks", tmp_path)
