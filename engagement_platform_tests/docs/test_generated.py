"""What is made from the code is as the code is now."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from engagement_platform.sources.messages import Reason
from engagement_platform_tests.docs.pages import ROOT, name, text
from tools import licences
from tools.docs import COMPARING, duration, generated, settings_page, with_part
from tools.licences import LicenceNotAllowed, name_of

GENERATED = ["docs/cli.md", "docs/ingestion.md", "docs/licences.md", "docs/settings.md"]


@pytest.mark.parametrize("page", GENERATED)
def test_a_generated_page_is_fresh(page: str) -> None:
    assert sorted(map(name, generated())) == GENERATED
    path = ROOT / page
    # read anew: the cached text is from before a test that might write
    assert path.read_text(encoding="utf-8") == generated()[path], f"{page} is stale: run `make docs`"


def test_the_settings_page_is_the_same_for_everybody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = settings_page()
    for variable in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_KAFKA__BOOTSTRAP_SERVERS", "elsewhere:9092")
    assert settings_page() == before
    assert str(tmp_path) not in before


def test_every_reason_code_stands_on_the_page_with_its_sentence() -> None:
    page = text(ROOT / "docs" / "ingestion.md")
    for code, sentence in {**{reason.value: reason.sentence for reason in Reason}, **COMPARING}.items():
        assert page.count(f"| `{code}` | {sentence.replace('{field}', '*field*')} |") == 1


def test_durations_are_told_in_the_largest_unit_that_fits() -> None:
    seconds = (0.5, 1, 90, 600, 7_200, 86_400, 172_800)
    told = [duration(timedelta(seconds=second)) for second in seconds]
    assert told == ["0.5 s", "1 s", "90 s", "10 min", "2 h", "1 day", "2 days"]


def test_a_page_without_the_marks_of_a_part_is_refused() -> None:
    with pytest.raises(ValueError, match="needs the marks"):
        with_part("# A page", "reason codes", "| |")


@pytest.mark.parametrize("written", ["GPL-3.0-only", "MIT AND AGPL-3.0", "Proprietary; MIT License", ""])
def test_a_package_whose_licence_nobody_has_allowed_is_refused(written: str) -> None:
    with pytest.raises(LicenceNotAllowed, match="some declares"):
        name_of("some", written)


def test_a_package_that_the_lock_has_in_several_versions_is_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = "some==1 ; python_full_version < '3.12'\nsome==2 ; python_full_version >= '3.12'\n"
    monkeypatch.setattr(licences, "declared", lambda _: [("some", "MIT"), ("some", "MIT")])
    assert licences.by_package(lock) == {"some": licences.BY_PYTHON}
    monkeypatch.setattr(licences, "declared", lambda _: [("some", "GPL-3.0-only")])
    with pytest.raises(LicenceNotAllowed, match="some declares"):
        licences.by_package(lock)
