"""Headless Chromium at a Dagster UI, what tests ask the UI behind its back, and the pictures they take."""

from __future__ import annotations

import json
import os
import shutil
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PICTURES = "TESTS_PICTURES"
IMAGES = Path(__file__).parents[2] / "docs" / "images"
PICTURE_BYTES = 600_000
TIMEOUT_MS = 60_000

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing: apt-get install chromium")


@contextmanager
def opened(ui: str) -> Iterator[Any]:
    """An empty page of a fresh browser, for addresses below the UI. No welcome has to be dismissed: dagster.yaml."""
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        page = browser.new_page(viewport={"width": 1360, "height": 800}, base_url=ui)
        page.set_default_timeout(TIMEOUT_MS)
        yield page
        browser.close()


def assert_shown(element: Any) -> None:
    """Fails unless exactly one element matches the locator and becomes visible within TIMEOUT_MS."""
    from playwright.sync_api import expect

    expect(element).to_be_visible(timeout=TIMEOUT_MS)


def picture(page: Any, name: str, folder: Path) -> None:
    """A picture of what is visible, small enough to be kept in the repository."""
    target = IMAGES if os.environ.get(PICTURES) else folder
    target.mkdir(parents=True, exist_ok=True)
    page.mouse.move(0, 0)
    # Fonts and the layout's animation; nothing on the page says when they are done.
    page.wait_for_timeout(1_500)
    page.screenshot(path=str(target / f"{name}.png"))
    assert (target / f"{name}.png").stat().st_size < PICTURE_BYTES


def ask(ui: str, query: str) -> dict[str, Any]:
    """The answer of the UI's GraphQL. Raises OSError while the UI does not answer."""
    request = urllib.request.Request(
        f"{ui}/graphql",
        data=json.dumps({"query": query}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        data: dict[str, Any] = json.load(answer)["data"]
        return data
