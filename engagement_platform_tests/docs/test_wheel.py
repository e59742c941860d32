"""The wheel: what is in it, and that it runs where nothing is installed but what it asks for.

There is no network here. The packages of an environment are links to installed ones: what the wheel's metadata asks
for, and what that asks for in turn. pip has to find everything there, and any other import fails as it does for a user.

Not proved: that the versions work which an installer chooses today (docs/releasing.md); other Pythons, other systems;
that no package imports another one late, while a job runs. What the platform imports late, test_dependencies reads.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, distributions
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from engagement_platform.errors import MODULES
from engagement_platform_tests.docs.pages import PACKAGE, ROOT, name
from engagement_platform_tests.docs.test_dependencies import DEV, PLACES, PROJECT, closed, imported_as, listed, product

pytestmark = pytest.mark.slow

OURS = str(PROJECT["name"])
SITE = Path(sysconfig.get_path("purelib"))

IMPORTS_EVERYTHING = """
import importlib, pkgutil, engagement_platform
for module in pkgutil.walk_packages(engagement_platform.__path__, "engagement_platform."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        print(module.name)
"""


@dataclass(frozen=True)
class Installation:
    """The wheel in an environment of its own, away from the checkout."""

    folder: Path

    def run(self, program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """What a program of the environment says."""
        # The packages are links, and byte code would be written where they lead.
        env = {"ENGAGEMENT_PLATFORM_HOME": str(self.folder / "home"), "PYTHONDONTWRITEBYTECODE": "1", **variables}
        return called(str(self.folder / "bin" / program), *arguments, cwd=self.folder, env=env)

    def python(self, script: str) -> list[str]:
        """The lines that a script prints."""
        done = self.run("python", "-c", script)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.split()


def called(*command: str, cwd: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """What a program says, with none of the variables by which a checkout or settings would be found."""
    known = ("PYTHONPATH", "DAGSTER_HOME", "ENGAGEMENT_PLATFORM_")
    around = {key: value for key, value in os.environ.items() if not key.startswith(known)}
    return subprocess.run(
        command, cwd=cwd, env={**around, **(env or {})}, capture_output=True, text=True, timeout=300, check=False
    )


@cache
def installed() -> Mapping[str, Distribution]:
    """What this environment has, by name."""
    return {canonicalize_name(each.metadata["Name"]): each for each in distributions(path=[str(SITE)])}


@cache
def owners() -> Mapping[str, Mapping[str, tuple[PurePosixPath, ...]]]:
    """First part of a path in site-packages -> who has files there, and which."""
    found: defaultdict[str, defaultdict[str, list[PurePosixPath]]] = defaultdict(lambda: defaultdict(list))
    for package, distribution in installed().items():
        for file in distribution.files or ():
            if file.parts[0] != "..":
                found[file.parts[0]][package].append(PurePosixPath(file))
    return {top: {package: tuple(files) for package, files in those.items()} for top, those in found.items()}


def asked_for(requires: Collection[str], extra: str | None) -> set[str]:
    """All that an installer brings for the wheel, by the markers of this Python; not itself. requires: of the wheel."""
    todo, found = [Requirement(f"{OURS}[{extra}]" if extra else OURS)], set[tuple[str, frozenset[str]]]()
    while todo:
        one = todo.pop()
        package = canonicalize_name(one.name)
        if (package, frozenset(one.extras)) in found:
            continue
        found.add((package, frozenset(one.extras)))
        below = requires if package == OURS else installed()[package].requires or ()
        for needed in map(Requirement, below):
            if needed.marker is None or any(needed.marker.evaluate({"extra": each}) for each in one.extras or {""}):
                todo.append(needed)
    return {package for package, _ in found} - {OURS}


def link(packages: Collection[str], site: Path) -> None:
    """Links to these packages' files, and to none of another one's: some share a folder, such as `google`."""
    for top, those in owners().items():
        wanted = those.keys() & set(packages)
        if wanted == those.keys():
            (site / top).symlink_to(SITE / top)
            continue
        for file in {file for package in wanted for file in those[package] if (SITE / file).exists()}:
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            (site / file).symlink_to(SITE / file)


def install(wheel: Path, extra: str | None, folder: Path) -> Installation:
    """The wheel, with an extra, where there is nothing but what it asks for."""
    venv.EnvBuilder(symlinks=True).create(folder)
    (site,) = folder.glob("lib/python3*/site-packages")
    with zipfile.ZipFile(wheel) as opened:
        (metadata,) = (each for each in opened.namelist() if each.endswith(".dist-info/METADATA"))
        lines = opened.read(metadata).decode().split("\n\n")[0].splitlines()
    requires = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    link(asked_for(requires, extra), site)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "--disable-pip-version-check"]
    what = f"{wheel}[{extra}]" if extra else str(wheel)
    done = called(*pip, "install", "--quiet", "--no-index", "--no-cache-dir", what, cwd=folder)
    assert done.returncode == 0, done.stderr[-2000:]
    return Installation(folder)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    done = called(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder), cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return install(wheel, None, tmp_path_factory.mktemp("core") / "environment")


def test_the_wheel_has_all_that_the_package_has_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        packed = {each for each in opened.namelist() if ".dist-info/" not in each}
        assert opened.read("engagement_platform/dagster.yaml") == (ROOT / "dagster.yaml").read_bytes()
    files = {name(path) for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert packed == {*files, "engagement_platform/dagster.yaml"}
    # What is read at run time and is no module.
    suffixes = {PurePosixPath(each).suffix for each in files}
    assert suffixes == {".java", ".py", ".xml", ".toml", ".typed"}
    assert {"engagement_platform/lake/ivy.xml", "engagement_platform/pipelines/games/events/login.toml"} <= files


def test_the_core_lacks_what_extras_bring(core: Installation) -> None:
    """Otherwise the other tests here would prove nothing. The web server of Dagster has a server of its own."""
    foreign = {imported_as(package) for extra in (*PLACES, DEV) for package in listed()[extra]} - {"uvicorn"}
    script = f"from importlib.util import find_spec; print(*(one for one in {sorted(foreign)} if find_spec(one)))"
    assert core.python(script) == []


def test_the_core_says_its_version_and_helps(core: Installation) -> None:
    said = core.run("engagement-platform", "--version")
    assert (said.returncode, said.stdout) == (0, f"{OURS} {PROJECT['version']}\n"), said.stderr
    helped = core.run("engagement-platform", "--help")
    assert helped.returncode == 0, helped.stderr
    assert "ingest-server" in helped.stdout


def test_every_module_is_there_without_extras_but_those_that_belong_to_one(core: Installation) -> None:
    absent = set(core.python(IMPORTS_EVERYTHING))
    # Not all of them: the web server of Dagster brings uvicorn.
    assert {"engagement_platform.ingest_server.app"} <= absent <= closed(product()).keys()


def test_dagster_loads_the_definitions_without_extras(core: Installation) -> None:
    script = "from engagement_platform.definitions import defs; "
    jobs = core.python(f"{script}print(*(job.name for job in defs().get_repository_def().get_all_jobs()))")
    assert {"ingest_engagements", "ingest_game_events", "judge_games"} <= set(jobs)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("status",), "There is no Kafka broker to ask"),
        (("run", "rematerialize-aliases", "--until-idle"), "No Java at /none/bin/java"),
    ],
)
def test_the_core_gets_as_far_as_this_machine_lets_it(
    core: Installation, arguments: tuple[str, ...], sentence: str
) -> None:
    done = core.run("engagement-platform", *arguments, JAVA_HOME="/none")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert sentence in done.stderr


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("ingest-server",), "server"),
        (("live-ops", "run", "--until-idle"), "liveops"),
        (("alert", "list"), "postgres"),
    ],
)
def test_the_core_says_which_extra_is_missing(core: Installation, arguments: tuple[str, ...], extra: str) -> None:
    database = {"ENGAGEMENT_PLATFORM_STORES__URL": "postgresql+psycopg2://nobody@127.0.0.1:1/none"}
    done = core.run("engagement-platform", *arguments, **(database if extra == "postgres" else {}))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert f"pip install 'engagement-platform[{extra}]'" in done.stderr


@pytest.mark.parametrize("extra", sorted(PROJECT["optional-dependencies"]))
def test_an_extra_brings_what_its_part_needs(wheel: Path, tmp_path: Path, extra: str) -> None:
    """pip finds everything that is asked for, and what asks for the extra can be imported."""
    made = install(wheel, extra, tmp_path / "environment")
    needs = {*MODULES, "games", DEV} if extra == DEV else {extra}
    modules = [one for each in MODULES if each in needs for one in MODULES[each]]
    modules += [place.removesuffix(".py").replace("/", ".") for each in needs for place in PLACES.get(each, ())]
    modules += ["duckdb", "matplotlib", "pytest"] if extra == DEV else []
    assert made.python(f"import importlib; [importlib.import_module(one) for one in {modules}]") == []
    shutil.rmtree(made.folder)
