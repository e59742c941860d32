"""The whole loop of file layout as it is seen in the UI: small files flagged, mended by the daily job, green again.

TESTS_PICTURES=1 writes its pictures to docs/images/, otherwise they go to the test's own folder.
"""

from __future__ import annotations

import html
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from engagement_platform.cli import app
from engagement_platform.local.orchestrator import dagster_children, ui_address
from engagement_platform.local.ports import free_ports
from engagement_platform.local.process import Supervisor
from engagement_platform.settings import ENV_PREFIX, Settings
from engagement_platform_tests.alerting.receiver import Receiver
from engagement_platform_tests.defs.browser import ask, needs_chromium, opened, picture
from engagement_platform_tests.maintenance.layout.seeded import SeededLake

# Dagster is up in 15 s and a run takes 8, on two quiet cores; machines differ.
UP_WITHIN_S = 180
SEEN_WITHIN_S = 180

FILES, ROWS = 175, 120
CHECK = "/assets/engagement/data?view=checks&checkDetail=layout"
LAUNCHPAD = "/locations/engagement_platform/jobs/optimize_tables/playground"

pytestmark = [pytest.mark.browser, pytest.mark.timeout(UP_WITHIN_S + 3 * SEEN_WITHIN_S), needs_chromium]

EMPTY = "about:blank"
"""Where the browser waits: what moves on Dagster's pages costs as much of the machine as the runs that it shows."""

_STATUS = """{ assetNodes { assetKey { path } assetChecksOrError { ... on AssetChecks { checks {
  name executionForLatestMaterialization { status } } } } } }"""


@pytest.fixture
def lake(tmp_path: Path) -> SeededLake:
    """175 files of about 7 KB, of one organization, in the Data Table; nothing else."""
    made = SeededLake(tmp_path / "home")
    made.engagements("org-7", FILES, ROWS)
    return made


@pytest.fixture
def webhook() -> Iterator[Receiver]:
    """Where alerts arrive."""
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def ui(lake: SeededLake, webhook: Receiver, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Dagster as `up` starts it, without the services that nothing here needs: no broker, no Spark, no traffic."""
    ui_port, code_port, nobody = free_ports(3)
    variables = {
        "HOME": str(lake.home),
        "KAFKA__BOOTSTRAP_SERVERS": f"127.0.0.1:{nobody}",
        "KAFKA__TIMEOUT": "PT1S",
        "DAGSTER__AUTOMATION": "running",
        # The sensor that merges before the night would come first.
        "MAINTENANCE__FILES_BY_DAY": str(FILES + 1),
        "ALERTING__URLS": json.dumps([webhook.url]),
    }
    for name, value in variables.items():
        monkeypatch.setenv(f"{ENV_PREFIX}{name}", value)
    settings = Settings.model_validate({"embedded": {"ui_port": ui_port, "code_port": code_port}})
    said: list[str] = []
    with Supervisor(lake.home / "logs", said.append) as supervisor:
        supervisor.start(*dagster_children(settings, {}, ()))
        supervisor.wait_ready(UP_WITHIN_S)
        yield ui_address(settings)
        assert said == [], "a program of Dagster's died"


def layout_status(ui: str) -> str | None:
    """How the check of the Data Table's layout stands; None before it was evaluated."""
    [node] = [node for node in ask(ui, _STATUS)["assetNodes"] if node["assetKey"]["path"] == ["engagement", "data"]]
    [check] = [check for check in node["assetChecksOrError"]["checks"] if check["name"] == "layout"]
    return (check["executionForLatestMaterialization"] or {}).get("status")


def run_of(ui: str, run_id: str) -> tuple[str, str]:
    """Job and status of a run."""
    run = ask(ui, f'{{ runOrError(runId: "{run_id}") {{ ... on Run {{ jobName status }} }} }}')["runOrError"]
    return run["jobName"], run["status"]


def wait_until(seen: Callable[[], object], wanted: object, what: str) -> None:
    """Until something is as it should be; a failure says how it was instead."""
    deadline = time.monotonic() + SEEN_WITHIN_S
    while (found := seen()) != wanted:
        assert time.monotonic() < deadline, f"{what} is {found} and not {wanted} after {SEEN_WITHIN_S} s"
        time.sleep(1)


def doctors_codes() -> set[str]:
    told: dict[str, Any] = json.loads(CliRunner().invoke(app, ["doctor", "engagement/data", "--json"]).stdout)
    return {finding["code"] for finding in told["findings"] if finding["severity"] != "info"}


def open_check(page: Any, result: str, *more: str) -> None:
    """The check's page, once it shows this result and these texts."""
    page.goto(CHECK, wait_until="domcontentloaded")
    page.get_by_text("Evaluation result").locator("xpath=..").get_by_text(result, exact=True).wait_for()
    for text in more:
        page.get_by_text(text).first.wait_for()


def test_small_files_are_flagged_the_daily_job_mends_them_and_the_check_turns_green(
    lake: SeededLake, ui: str, webhook: Receiver, tmp_path: Path
) -> None:
    rows = lake.rows()
    assert "small_files" in doctors_codes()
    with opened(ui) as page:
        # Nobody asks for it: the sensor sees a table that was not examined yet.
        wait_until(lambda: layout_status(ui), "FAILED", "the check of a table of small files")
        open_check(
            page,
            "Failed",
            f"organization_id=org-7 has {FILES} of {FILES}",
            "Compact it: engagement-platform optimize engagement/data",
        )
        picture(page, "small-files", tmp_path)

        page.goto(EMPTY)
        wait_until(lambda: any("layout" in message["title"] for message in webhook.arrived), True, "an alert")
        alert = next(message for message in webhook.arrived if "layout" in message["title"])
        assert "organization_id=org-7" in alert["message"]
        page.set_content(f"<pre style='white-space: pre-wrap'>{html.escape(json.dumps(alert, indent=2))}</pre>")
        picture(page, "alert", tmp_path)
        page.goto("/automation", wait_until="domcontentloaded")
        for name in ("layout_after_writes", "send_alerts", "optimize_tables_schedule"):
            page.get_by_text(name, exact=True).first.wait_for()
        picture(page, "automation", tmp_path)
        page.goto("/assets/profile/changeset", wait_until="domcontentloaded")
        page.locator("button", has_text="Materialize").first.click()
        page.get_by_text("Launch runs to materialize").first.wait_for()
        picture(page, "backfill-dialog", tmp_path)

        page.goto(LAUNCHPAD, wait_until="domcontentloaded")
        page.get_by_text("At 01:00 AM UTC").wait_for()
        page.get_by_role("button", name="Launch Run").click()
        page.wait_for_url("**/runs/*")
        address = page.url
        page.goto(EMPTY)
        wait_until(lambda: run_of(ui, address.split("/")[-1]), ("optimize_tables", "SUCCESS"), "the daily run")
        page.goto(address, wait_until="domcontentloaded")
        page.get_by_text("RUN_SUCCESS").first.wait_for()

        open_check(page, "Failed")
        page.locator("button", has_text=re.compile(r"^\s*Execute\s*$")).click()
        wait_until(lambda: layout_status(ui) != "FAILED", True, "that the check is evaluated again")
        page.goto(EMPTY)
        wait_until(lambda: layout_status(ui), "SUCCEEDED", "the check of the mended table")
        open_check(page, "Passed")
        picture(page, "small-files-mended", tmp_path)
    assert "small_files" not in doctors_codes()
    assert (lake.files(), lake.rows()) == (1, rows)
