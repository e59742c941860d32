"""What `make conformance` does with sections that end early, in milliseconds."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engagement_platform_tests.conformance import __main__ as command

TABLE = ("| what | found |", "|---|---|", "| one | 0 |")
PAGE = """\
<!-- figures of first: made by `make conformance ARGS='first --write'` -->

of the last time

<!-- end of figures of first -->
<!-- figures of second: made by `make conformance ARGS='second --write'` -->
<!-- end of figures of second -->
"""


def asked_of(
    first: Exception | KeyboardInterrupt, after: int, page: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, str]:
    """The exit status and the page after a section that raises after so many lines, and one that has its table."""

    def raises(_: argparse.Namespace, __: list[str]) -> Iterator[str]:
        yield from TABLE[:after]
        raise first

    def whole(_: argparse.Namespace, __: list[str]) -> Iterator[str]:
        yield from TABLE

    page.write_text(PAGE, "utf-8")
    monkeypatch.setattr(command, "PAGE", page)
    monkeypatch.setattr(command, "SECTIONS", {"first": raises, "second": whole})
    monkeypatch.setattr(command, "NAMES", {"first": lambda _: False, "second": lambda _: False})
    monkeypatch.setattr(sys, "argv", ["conformance", "--write"])
    return command.main(), page.read_text("utf-8")


@pytest.mark.parametrize(("added", "there"), [([], 1), (["--add"], 2)])
def test_a_table_takes_the_place_of_the_last_one_or_is_added_to_it(
    added: list[str], there: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE, "utf-8")
    monkeypatch.setattr(command, "PAGE", page)
    monkeypatch.setattr(command, "SECTIONS", {"first": lambda *_: iter(TABLE)})
    monkeypatch.setattr(command, "NAMES", {"first": lambda _: False})
    monkeypatch.setattr(sys, "argv", ["conformance", "first", "--write", *added])
    assert [command.main() for _ in range(2)] == [0, 0]
    text = page.read_text("utf-8")
    assert text.count("| one | 0 |") == there
    assert ("of the last time" in text) == bool(added)
    assert text.endswith(PAGE[PAGE.index("<!-- end of figures of first -->") :])


def test_a_section_that_fails_as_a_whole_is_a_failure_and_the_next_has_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, page = asked_of(ValueError("no mount"), 3, tmp_path / "page.md", monkeypatch)
    assert status == 1
    assert "first failed: ValueError: no mount" in capsys.readouterr().err
    assert page.count("| one | 0 |") == 2
    assert page.count("Failed before the end.") == 1


def test_an_interrupt_ends_the_command_and_the_page_says_that_there_is_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, page = asked_of(KeyboardInterrupt(), 3, tmp_path / "page.md", monkeypatch)
    assert status == 1
    assert "first was interrupted" in capsys.readouterr().err
    assert page.count("| one | 0 |") == 1
    assert page.count("Interrupted before the end.") == 1


@pytest.mark.parametrize("after", [0, 2])
def test_what_ended_before_its_first_row_leaves_the_table_of_the_last_time(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, page = asked_of(KeyboardInterrupt(), after, tmp_path / "page.md", monkeypatch)
    assert (status, page) == (1, PAGE)
