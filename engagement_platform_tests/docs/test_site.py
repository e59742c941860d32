"""The site of the pages has every page once, and no link out of docs/. `make docs-site` checks the rest."""

from __future__ import annotations

import re

import pytest
import yaml

from engagement_platform_tests.docs.pages import ROOT
from tools.site_links import on_page_markdown


def test_every_page_is_in_the_navigation_once() -> None:
    sections = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    entries = [entry for section in sections for listed in section.values() for entry in listed]
    assert sorted(page for entry in entries for page in entry.values()) == sorted(
        page.name for page in (ROOT / "docs").glob("*.md")
    )


@pytest.mark.parametrize(
    ("link", "shown"),
    [
        ("see [CHANGELOG.md](../CHANGELOG.md) first", "see `CHANGELOG.md` first"),
        ("[the README](../README.md#more)", "the README (`README.md`)"),
        ("[ivy.xml](../engagement_platform/lake/ivy.xml).", "`engagement_platform/lake/ivy.xml`."),
        ("[layout](layout.md#findings)", "[layout](layout.md#findings)"),
        ("![a picture](images/batch.png)", "![a picture](images/batch.png)"),
    ],
)
def test_a_link_out_of_docs_is_a_path_on_the_site(link: str, shown: str) -> None:
    assert on_page_markdown(link) == shown


def test_no_page_of_the_site_leads_out_of_docs() -> None:
    left = {
        page.name: links
        for page in sorted((ROOT / "docs").glob("*.md"))
        if (links := re.findall(r"\]\(\.\./[^)]*\)", on_page_markdown(page.read_text(encoding="utf-8"))))
    }
    assert left == {}
