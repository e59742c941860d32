"""The replica on the command line and as a page in a real browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from engagement_platform.cli import app
from engagement_platform_tests.consumers.lakes import PlainLake
from engagement_platform_tests.consumers.test_changes import land
from engagement_platform_tests.defs.browser import needs_chromium, opened, picture
from engagement_platform_tests.pipelines.mutations.histories import convert, engagement

ODD = "</script><b>org</b>"


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlainLake:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path))
    made = PlainLake(tmp_path)
    made.land(
        [{**engagement(f"e{n}", f"p{n % 4}", 20 * (n % 5)), "organization_id": f"org-{n % 3}"} for n in range(30)]
    )
    land(made, "e1", organization=ODD)
    made.ask([{**convert("c1", "p1", "p2", 200), "organization_id": "org-1"}])
    return made


def called(*words: str) -> Result:
    return CliRunner().invoke(app, ["replica", *words])


def test_the_commands_refresh_tell_and_draw(lake: PlainLake, tmp_path: Path) -> None:
    assert called("draw").exit_code == 2
    first: dict[str, Any] = json.loads(called("refresh", "--json").stdout)
    assert (first["engagements"], first["snapshot"]) == (31, "the replica is new")
    land(lake, "new")
    assert "0 inserted" not in called("refresh").stdout
    told = json.loads(called("status", "--json").stdout)
    assert (told["engagements"], told["organizations"], told["waiting"], told["lost"]) == (32, 5, 0, False)
    assert told["batch"] == "ingest-engagements#2"
    assert "engagements  32" in called("status").stdout
    assert called("page", "--out", "made/page.html").exit_code == 0
    text = (tmp_path / "made" / "page.html").read_text(encoding="utf-8")
    assert ODD not in text
    assert 'src="http' not in text
    assert called("refresh", "--resnapshot").stdout.startswith("All rows were replaced: it was asked for")


@pytest.mark.browser
@pytest.mark.timeout(300)
@needs_chromium
def test_the_page_shows_the_figures_of_the_replica(lake: PlainLake, tmp_path: Path) -> None:
    assert called("refresh").exit_code == 0
    assert called("page", "--out", "page.html").exit_code == 0
    with opened("http://127.0.0.1") as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((tmp_path / "page.html").as_uri(), wait_until="domcontentloaded")
        page.locator("#chart-3 .barlayer .bars path").first.wait_for(state="attached")
        figures = {
            name: page.locator(f"#{name}").inner_text() for name in ("engagements", "organizations", "converted")
        }
        moved = sum(row["person_id"] != row["source_person_id"] for row in lake.standing().values())
        assert figures == {"engagements": "31", "organizations": "4", "converted": f"{moved}"}
        assert page.locator("#chart-1 .legendtext").count() == 4
        assert page.get_by_text("Conversions: what another person has now").count() == 1
        persons = {(row["organization_id"], row["person_id"]) for row in lake.standing().values()}
        assert page.locator("#chart-2 .barlayer .point").count() == len(persons)
        assert page.get_by_text("Nothing waited when this page was made").count() == 1
        picture(page, "replica", tmp_path)
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
