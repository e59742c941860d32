"""The examples in Python run as they are written, one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engagement_platform.alerting.model import State
from engagement_platform_tests.docs.pages import ROOT, blocks


def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path))
    known: dict[str, Any] = {}
    for example in blocks(ROOT / "docs" / "alerts.md", "python"):
        exec(compile(example, "docs/alerts.md", "exec"), known)
    assert (known["state"], known["ended"]) == (State.RAISED, True)
    assert known["alerts"].standing() == []
