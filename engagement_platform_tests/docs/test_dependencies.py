"""Which package is imported where: what the core needs is in the core, and what only a part needs is in its extra.

Imports are read here, not made. What an installation without extras can do is tried by test_wheel.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement

from engagement_platform.errors import MODULES
from engagement_platform_tests.docs.pages import PACKAGE, ROOT, modules, name, tree

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
CORE, DEV = "core", "dev"

PLACES: Mapping[str, frozenset[str]] = {
    "server": frozenset(
        f"engagement_platform/ingest_server/{module}.py" for module in ("app", "connections", "server")
    ),
    "liveops": frozenset(f"engagement_platform/pipelines/games/{module}.py" for module in ("baseline", "detection")),
    "games": frozenset({"engagement_platform/local/emulator.py"}),
    "postgres": frozenset(),
}
"""Extra -> the modules that import its packages. Who gets there without is told by `engagement_platform.errors`."""

IMPORTED_AS = {
    "cfn-lint": "cfnlint",
    "delta-spark": "delta",
    "graphframes-py": "graphframes",
    "psycopg2-binary": "psycopg2",
    "pyyaml": "yaml",
}
"""Where that is not the package's own name."""

COMES_WITH = {
    "_pytest": "pytest",
    "anyio": "fastapi",
    "botocore": "boto3",
    "dagster_pipes": "dagster",
    "flask": "moto",
    "markdown_it": "rich",
    "packaging": "pytest",
    "py4j": "pyspark",
    "requests": "schemathesis",
    "starlette": "dagster-webserver",
    "urllib3": "boto3",
}
"""What is imported -> the package that needs it and chooses its version; listed as well it could be another one."""

NOT_IMPORTED = {
    "dagster-postgres": "a dagster.yaml names it",
    "delta-spark": "for sessions of one's own; the platform says everything in SQL",
    "editables": "hatchling takes it for an editable installation",
    "hatchling": "builds the package",
    "import-linter": "a program",
    "mkdocs-material": "a program",
    "mypy": "a program",
    "psycopg2-binary": "SQLAlchemy takes it, by the URL of the stores",
    "pytest-timeout": "pytest finds it",
    "pytest-xdist": "pytest finds it",
    "ruff": "a program",
}
"""Package -> why it is listed all the same."""

OF_THE_CHECKOUT = {"benchmarks", "engagement_platform", "engagement_platform_tests", "examples", "tools"}
"""`perftest` is of benchmarks/, and says so where there is none."""

# Nothing else has an import in it, and expressions are most of a module.
_HOLDS_STATEMENTS = (ast.stmt, ast.ExceptHandler, ast.match_case)

Trees = Mapping[str, ast.Module]
"""By the file's path in the checkout."""


class Import(NamedTuple):
    """An import that runs."""

    module: str
    line: int
    at_once: bool
    """With its module; otherwise when a function is called."""


def imports(module: ast.AST, *, at_once: bool = True) -> Iterator[Import]:
    """Those of a module; `from a import b` is one of a and one of a.b. What only type checkers read is left out."""
    for node in ast.iter_child_nodes(module):
        if not isinstance(node, _HOLDS_STATEMENTS):
            continue
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (Import(each.name, node.lineno, at_once) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"line {node.lineno}: an import without the name of its package"
            yield Import(node.module, node.lineno, at_once)
            yield from (Import(f"{node.module}.{each.name}", node.lineno, at_once) for each in node.names)
        else:
            later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from imports(node, at_once=at_once and not later)


def listed() -> dict[str, set[str]]:
    """The packages of the core and of each extra, without those of the extras that it includes."""
    lists = {CORE: PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    return {
        where: {package.name for package in map(Requirement, packages) if package.name != PROJECT["name"]}
        for where, packages in lists.items()
    }


def imported_as(package: str) -> str:
    """The module that a package is."""
    return IMPORTED_AS.get(package, package.replace("-", "_"))


LIST_OF = {imported_as(package): where for where, packages in listed().items() for package in packages}
"""Module -> the list that its package is in."""


def list_of(module: str) -> str | None:
    """The list that brings what is imported; None: none does, or it is Python's own or ours."""
    top = module.partition(".")[0]
    return LIST_OF.get(imported_as(COMES_WITH.get(top, top)))


def strays(trees: Trees) -> list[str]:
    """Imports of an extra's packages outside of its places."""
    return [
        f"{path}:{each.line} imports {each.module}, which {extra} brings"
        for path, module in trees.items()
        for each in imports(module)
        if (extra := list_of(each.module)) not in (None, CORE) and path not in PLACES.get(str(extra), ())
    ]


def closed(trees: Trees) -> dict[str, str]:
    """The places that cannot be imported without their extra, by name, and which one that is."""
    found = dict[str, str]()
    while more := {
        module: extra
        for extra, places in PLACES.items()
        for path in places & trees.keys()
        if (module := path.removesuffix(".py").replace("/", ".")) not in found
        if any(one.at_once and (list_of(one.module) == extra or one.module in found) for one in imports(trees[path]))
    }:
        found |= more
    return found


def dragged_in(trees: Trees) -> list[str]:
    """Imports at once, by modules outside of an extra's places, of one of these that cannot be imported without it."""
    needs = closed(trees)
    return [
        f"{path}:{each.line} imports {each.module}, which needs {needs[each.module]}"
        for path, module in trees.items()
        for each in imports(module)
        if each.at_once and each.module in needs and path not in PLACES[needs[each.module]]
    ]


def unlisted(trees: Trees) -> list[str]:
    """Imports of packages that no list brings."""
    return [
        f"{path}:{each.line} imports {each.module}"
        for path, module in trees.items()
        for each in imports(module)
        if (top := each.module.partition(".")[0]) not in OF_THE_CHECKOUT | sys.stdlib_module_names
        and list_of(top) is None
    ]


def product() -> Trees:
    """Every module of the package."""
    return {name(path): tree(path) for path in modules()}


def beside() -> Trees:
    """Tests, benchmarks, examples and tools. Formats that are compared with have environments of their own."""
    folders = ("engagement_platform_tests", "benchmarks", "examples", "tools")
    files = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return {name(path): tree(path) for path in files if ROOT / "benchmarks" / "peers" not in path.parents}


def used(trees: Trees) -> set[str]:
    """First names of all that is imported, and of what it comes with."""
    tops = {each.module.partition(".")[0] for module in trees.values() for each in imports(module)}
    return tops | {imported_as(COMES_WITH[top]) for top in tops & COMES_WITH.keys()}


def test_no_package_is_in_two_lists() -> None:
    counted = [package for packages in listed().values() for package in packages]
    assert len(counted) == len(set(counted))
    assert listed().keys() == {CORE, DEV, *PLACES}


def test_packages_of_an_extra_are_imported_in_its_places_only() -> None:
    assert strays(product()) == []


def test_what_runs_without_extras_imports_nothing_that_needs_one() -> None:
    assert dragged_in(product()) == []


def test_every_package_that_is_imported_is_listed() -> None:
    assert unlisted({**product(), **beside()}) == []


@pytest.mark.parametrize("where", sorted(listed()))
def test_every_package_that_is_listed_is_imported(where: str) -> None:
    trees = product()
    if where in PLACES:
        trees = {path: module for path, module in trees.items() if path in PLACES[where]}
    elif where == DEV:
        trees = beside()
    imported = used(trees)
    found = {package for package in listed()[where] if imported_as(package) in imported}
    assert sorted(listed()[where] - found - NOT_IMPORTED.keys()) == []
    assert sorted(found & NOT_IMPORTED.keys()) == [], "it is imported after all"


def test_every_exception_is_one_of_something_that_is_there() -> None:
    everything = set().union(*listed().values())
    assert NOT_IMPORTED.keys() <= everything
    assert IMPORTED_AS.keys() <= everything
    assert set(COMES_WITH.values()) <= everything
    assert [place for places in PLACES.values() for place in places if not (ROOT / place).is_file()] == []


def test_what_is_asked_for_by_its_extra_is_what_the_extra_brings() -> None:
    assert MODULES.keys() == PLACES.keys()
    brings = {extra: {extra} for extra in PLACES}
    for extra in PLACES:
        for package in map(Requirement, PROJECT["optional-dependencies"][extra]):
            brings[extra] |= package.extras if package.name == PROJECT["name"] else set()
    foreign = {extra: [one for one in MODULES[extra] if list_of(one) not in brings[extra]] for extra in MODULES}
    assert not any(foreign.values()), foreign


def test_the_package_is_built_with_what_the_lock_has() -> None:
    assert set(PYPROJECT["build-system"]["requires"]) <= set(PROJECT["optional-dependencies"][DEV])


def test_the_rules_find_what_they_look_for() -> None:
    """A rule that finds nothing where something is would find nothing anywhere."""
    here = name(PACKAGE / "lake" / "lake.py")
    app, server = (name(PACKAGE / "ingest_server" / f"{module}.py") for module in ("app", "server"))
    place = "engagement_platform.ingest_server"

    def read(text: str) -> Trees:
        """With a chain: server imports app, which imports what the extra brings."""
        return {here: ast.parse(text), server: ast.parse(f"import {place}.app"), app: ast.parse("import uvicorn")}

    for text in ("import uvicorn", "from moto import server", "def f():\n    from scipy.special import betainc"):
        assert len(strays(read(text))) >= 1, text
    for text in (f"from {place} import server", f"from {place}.server import serve", f"import {place}.server"):
        assert len(dragged_in(read(text))) == 1, text
        assert dragged_in(read(f"def f():\n    {text}")) == []
    assert unlisted(read("import httpx")) == [f"{here}:1 imports httpx"]
    quiet = read("if TYPE_CHECKING:\n    import uvicorn, httpx\nimport pyspark, botocore.config")
    assert (strays(quiet), dragged_in(quiet), unlisted(quiet)) == ([], [], [])
