"""The examples in Python run as they are written, one after the other, and leave what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engagement_platform_tests.consumers.lakes import PlainLake
from engagement_platform_tests.consumers.test_changes import land
from engagement_platform_tests.docs.pages import ROOT, blocks
from engagement_platform_tests.pipelines.mutations.histories import convert


@pytest.mark.parametrize("page", ["README.md", "docs/consumers.md"])
def test_the_examples_of_the_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path))
    lake = PlainLake(tmp_path)
    land(lake, "e1", "e2")
    lake.ask([convert("c1", "p1", "p2", 20, engagement_id="e1")])
    known: dict[str, Any] = {}
    for example in blocks(ROOT / page, "python"):
        exec(compile(example, page, "exec"), known)
        if "replica" in known:
            persons = {key[1]: row["person_id"] for key, row in known["replica"].items()}
            assert persons == {"e1": "p2", "e2": "p1"}
    assert known["changes"].committed.version == 2
