"""The written pages as the tests see them: their text, and the names of things in it. No assertions here."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "engagement_platform"
TESTS = ROOT / "engagement_platform_tests"

TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = (*(ROOT / page for page in TOP), *sorted((ROOT / "docs").glob("*.md")))

_BLOCK = re.compile(r"^([ ]*)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


@cache
def text(page: Path) -> str:
    """A page's text."""
    return page.read_text(encoding="utf-8")


def name(path: Path) -> str:
    """A path below the checkout, for test ids and messages."""
    return path.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language, without their indentation."""
    found = []
    for indent, said, body in _BLOCK.findall(text(page)):
        if said == language:
            found.append("\n".join(line.removeprefix(indent) for line in body.splitlines()))
    return found


def modules() -> list[Path]:
    """Every module of the package."""
    return sorted(path for path in PACKAGE.rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    """A module, parsed."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def test_names() -> frozenset[str]:
    """Every test function there is."""
    return frozenset(
        node.name
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


test_names.__test__ = False  # type: ignore[attr-defined]  # pytest must not take it for one


def error_names() -> set[str]:
    """Every class that is derived from PlatformError, directly or not, without importing anything."""
    bases = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for path in modules()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef)
    }
    found = {"PlatformError"}
    while more := {child for child, parents in bases.items() if parents & found} - found:
        found |= more
    return found - {"PlatformError"}
