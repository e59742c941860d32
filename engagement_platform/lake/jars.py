"""Finds Java and the jars of `ivy.xml`; resolves them once into a cache with the Ivy that pyspark ships.

Nothing here starts Spark or a broker: `session` and `embedded/` take the paths from here.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Literal

from engagement_platform.errors import PlatformError
from engagement_platform.lake.s3a import SCHEME
from engagement_platform.settings import Settings

JarConf = Literal["spark", "kafka", "graph", "s3"]

IVY_FILE = Path(__file__).with_name("ivy.xml")
LOGGING_JARS = ("slf4j-api", "log4j-slf4j2-impl", "log4j-api", "log4j-core")

OLDEST_JAVA = 17
# Spark adds this module to every JVM it starts; runtimes cut down to the essentials lack it.
REQUIRED_MODULE = "jdk.incubator.vector"

_COMPLETE = ".complete"
_UNRESOLVED = re.compile(r"::\s+([\w.\-]+#[\w.\-]+;[\w.\-]+):\s+(.*)")
_FAILED = re.compile(r"::\s+([\w.\-]+#[\w.\-]+;[\w.\-]+![\w.\-()]+)")


class JavaMissing(PlatformError):
    """No Java that Spark can use; the message names what to install."""


class JarsUnavailable(PlatformError):
    """Some jars of ivy.xml could not be had. `artefacts` holds their Maven coordinates as Ivy prints them."""

    def __init__(self, conf: str, artefacts: list[str], output: str) -> None:
        self.conf, self.artefacts = conf, artefacts
        what = ", ".join(artefacts) if artefacts else f"the jars of {conf!r} (Ivy said: {_last_line(output)})"
        super().__init__(
            f"Could not download {what}. Nothing was kept half done. Check the network and run `engagement-platform "
            "setup` again; behind a mirror, name an Ivy settings file in the setting spark.conf as "
            "spark.jars.ivySettings. Jars that no mirror has can be in a folder that spark.jar_folder names."
        )


class JarFolderEmpty(PlatformError):
    """`spark.jar_folder` names a folder that is not there, or has no jars."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(
            f"spark.jar_folder is {folder}, which is no folder with jars in it. Nothing was started. Put the jars "
            "there, name the folder that has them (it is read where Spark is started), or leave the setting away."
        )


class PysparkMissing(PlatformError):
    """pyspark, whose jars everything here builds on, is not installed."""

    def __init__(self) -> None:
        super().__init__("pyspark is not installed in this environment. Run `make setup`.")


def pyspark_home() -> Path:
    """The folder of the installed pyspark, found without importing it (that costs a second)."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise PysparkMissing
    return Path(next(iter(spec.submodule_search_locations)))


def logging_jars() -> list[Path]:
    """The log4j that pyspark ships. Kafka's own jars bring slf4j without a backend: a broker would say nothing."""
    folder = pyspark_home() / "jars"
    return [next(iter(sorted(folder.glob(f"{name}-[0-9]*.jar")))) for name in LOGGING_JARS]


@lru_cache(maxsize=1)
def find_java() -> Path:
    """The `java` to run everything with: from JAVA_HOME, else from PATH. Cost: one JVM start of 0.2 s, then cached.

    Raises JavaMissing when there is none, when it is older than 17, or when it is not a full JDK.
    """
    install = "Install a full JDK 17 or 21 (Debian: apt-get install openjdk-17-jdk-headless) or point JAVA_HOME at one."
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None or not Path(found).is_file():
        raise JavaMissing(f"No Java {'at ' + str(found) if found else 'found'}. {install}")
    # One call tells both, since every module is listed with its version: `java.base@17.0.15`. Java 8 refuses it.
    listed = subprocess.run([found, "--list-modules"], capture_output=True, text=True, check=False)
    version = re.search(r"^java\.base@(\d+)", listed.stdout, re.MULTILINE)
    if version is None or int(version.group(1)) < OLDEST_JAVA:
        raise JavaMissing(f"{found} is Java {version.group(1) if version else 'older than 9'}. {install}")
    if not re.search(rf"^{re.escape(REQUIRED_MODULE)}\b", listed.stdout, re.MULTILINE):
        raise JavaMissing(f"{found} lacks the module {REQUIRED_MODULE} that Spark asks for. {install}")
    return Path(found)


def resolve_jars(conf: JarConf, cache: Path, *, ivy_file: Path = IVY_FILE, settings: Path | None = None) -> list[Path]:
    """The jars of one configuration of ivy.xml, sorted by name; downloads them when they are not in `cache` yet.

    settings: an Ivy settings file for those who need a mirror (Spark's own name for it: spark.jars.ivySettings).
    Cost: 10 to 60 s the first time and one JVM; afterwards a directory listing. A changed ivy.xml is a new cache.
    Two processes may call it at once: one resolves, the other waits. Raises JarsUnavailable, JavaMissing.
    """
    folder = _folder(conf, cache, ivy_file)
    if (jars := _complete(folder)) is not None:
        return jars
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent / "lock"):
        if (jars := _complete(folder)) is None:
            jars = _resolve(conf, folder, ivy_file, settings)
    return jars


def cached_jars(conf: JarConf, cache: Path, *, ivy_file: Path = IVY_FILE) -> list[Path]:
    """The jars of one configuration as far as they were downloaded before; none where they were not."""
    return _complete(_folder(conf, cache, ivy_file)) or []


def spark_jars(settings: Settings) -> list[Path]:
    """The jars of a Spark that is started here: Delta and Kafka, S3A where it is needed, all of `spark.jar_folder`, and
    GraphFrames where `setup` could download it.

    Only very large organizations need GraphFrames, and not every mirror has it: nothing is downloaded for it here. Of
    two jars with one file name that of the folder counts. Raises JarFolderEmpty and what `resolve_jars` raises.
    """
    mirror = settings.spark.conf.get("spark.jars.ivySettings")
    given = _folder_jars(settings.spark.jar_folder)
    confs: list[JarConf] = ["spark"]
    if settings.lake.startswith(SCHEME):
        confs.append("s3")
    ivy_settings = Path(mirror) if mirror else None
    resolved = [jar for conf in confs for jar in resolve_jars(conf, settings.spark.jar_cache, settings=ivy_settings)]
    if not any(map(is_graphframes, given)):
        resolved += cached_jars("graph", settings.spark.jar_cache)
    names = {jar.name for jar in given}
    return [*(jar for jar in resolved if jar.name not in names), *given]


def _folder(conf: JarConf, cache: Path, ivy_file: Path) -> Path:
    digest = hashlib.sha256(ivy_file.read_bytes()).hexdigest()[:16]
    return cache.expanduser().absolute() / digest / conf


def is_graphframes(jar: Path) -> bool:
    """Whether a jar is GraphFrames itself: neither its part for Connect servers nor its copy of GraphX."""
    return re.match(r"graphframes-spark\d", jar.name) is not None


def is_graphframes_connect(jar: Path) -> bool:
    """Whether a jar is GraphFrames' plugin for Connect servers."""
    return re.match(r"graphframes-connect-spark\d", jar.name) is not None


def _folder_jars(folder: Path | None) -> list[Path]:
    if folder is None:
        return []
    jars = sorted(folder.expanduser().absolute().glob("*.jar"))
    if not jars:
        raise JarFolderEmpty(folder)
    return jars


def _complete(folder: Path) -> list[Path] | None:
    """The jars of a finished folder; None when it is absent or a file was lost since."""
    try:
        names = (folder / _COMPLETE).read_text().split()
    except FileNotFoundError:
        return None
    jars = [folder / name for name in names]
    return jars if all(jar.is_file() for jar in jars) else None


def _resolve(conf: JarConf, folder: Path, ivy_file: Path, settings: Path | None) -> list[Path]:
    java = find_java()
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{conf}-") as scratch:
        retrieved = Path(scratch) / conf
        command = [
            *(str(java), "-jar", str(next((pyspark_home() / "jars").glob("ivy-*.jar")))),
            *(("-settings", str(settings)) if settings else ("-m2compatible",)),
            *("-warn", "-ivy", str(ivy_file), "-cache", str(folder.parent.parent / "ivy"), "-confs", conf),
            *("-retrieve", f"{retrieved}/[artifact]-[revision].[ext]"),
        ]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        jars = sorted(jar.name for jar in retrieved.glob("*.jar"))
        if run.returncode != 0 or not jars:
            output = run.stdout + run.stderr
            raise JarsUnavailable(conf, _missing(output), output)
        (retrieved / _COMPLETE).write_text("\n".join(jars) + "\n")
        # The rename is what makes it visible, so a folder is whole or not there. Leftovers lost a file since.
        shutil.rmtree(folder, ignore_errors=True)
        retrieved.rename(folder)
    return [folder / name for name in jars]


def _missing(output: str) -> list[str]:
    """Coordinates that Ivy names as not found or not downloaded, each once, in the order of its report."""
    named = [match.group(1) for pattern in (_UNRESOLVED, _FAILED) for match in pattern.finditer(output)]
    return list(dict.fromkeys(named))


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip(" .\t")]
    return lines[-1] if lines else "nothing"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
