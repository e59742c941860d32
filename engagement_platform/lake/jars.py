"""Finds Java and the jars of `ivy.xml`; resolves them once into a cache with the Ivy that pyspark ships, and compiles
the classes beside this file into it.

Nothing here starts Spark or a broker: `session` and `local/` take the paths from here.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

from filelock import FileLock

from engagement_platform.errors import PlatformError
from engagement_platform.settings import Settings

JarConf = Literal["spark", "kafka", "graph", "s3"]

IVY_FILE = Path(__file__).with_name("ivy.xml")
LOGGING_JARS = ("slf4j-api", "log4j-slf4j2-impl", "log4j-api", "log4j-core")

LOG_STORES = {"file": "engagement_platform.LocalLogStore", "s3a": "engagement_platform.S3LogStore"}
"""Scheme of a lake's URI -> the class, beside this file, by which Delta reads and writes logs there."""
APPEND_SOURCE = "engagement_platform.IdempotentDeltaDataSource"
"""The class, beside this file, by which Spark appends to a table under a transaction."""
APPEND_CONF = "spark.engagementPlatform.appendSource"
"""Configuration that names APPEND_SOURCE where Spark has it."""
OWN_JAR = "engagement-platform.jar"

# The compiler, and what Spark adds to every JVM it starts; runtimes cut down to the essentials lack both.
_REQUIRED_MODULES = ("jdk.compiler", "jdk.incubator.vector")
_COORDINATES = re.compile(r"::\s+([\w.\-]+#[\w.\-]+;[\w.\-]+(?=:\s)|[\w.\-]+#[\w.\-]+;[\w.\-]+![\w.\-()]+)")
"""How Ivy names what it did not find, and what it could not download."""


class JavaMissing(PlatformError):
    """No Java that Spark can use; the message names what to install."""


class JarsUnavailable(PlatformError):
    """Some jars could not be found; the message names them."""


def pyspark_home() -> Path:
    """The folder of the installed pyspark, found without importing it (that costs a second)."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def logging_jars() -> list[Path]:
    """The log4j that pyspark ships. Kafka's own jars bring slf4j without a backend, so a broker would log nothing."""
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
    # Every module is listed with its version: `java.base@17.0.15`. Java 8 refuses the option.
    listed = subprocess.run([found, "--list-modules"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"^java\.base@(\d+)", listed, re.MULTILINE)
    if version is None or int(version.group(1)) < 17:
        raise JavaMissing(f"{found} is Java {version.group(1) if version else 'older than 9'}. {install}")
    for module in _REQUIRED_MODULES:
        if not re.search(rf"^{re.escape(module)}\b", listed, re.MULTILINE):
            raise JavaMissing(f"{found} lacks the module {module}. {install}")
    return Path(found)


def resolve_jars(conf: JarConf, cache: Path, *, ivy_file: Path = IVY_FILE, settings: Path | None = None) -> list[Path]:
    """The jars of one configuration of ivy.xml, sorted by name; downloads them when they are not in `cache` yet.

    settings: an Ivy settings file, for a mirror. Cost: 10 to 60 s and one JVM the first time, then a directory listing.
    A changed ivy.xml is a new cache. Of two processes one resolves and the other waits.
    Raises JarsUnavailable, JavaMissing.
    """
    folder = _folder(conf, cache, ivy_file)
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / "lock"):
            if not folder.exists():
                _resolve(conf, folder, ivy_file, settings)
    return _jars_in(folder)


def cached_jars(conf: JarConf, cache: Path) -> list[Path]:
    """The jars of one configuration if they were downloaded before, else none."""
    return _jars_in(_folder(conf, cache, IVY_FILE))


def spark_jars(settings: Settings, source: str = "") -> list[Path]:
    """The jars of a Spark that is started here: Delta and Kafka, S3A where it is needed, all of `spark.jar_folder`, and
    GraphFrames where `setup` could download it. source: URI of what is read beside the lake.

    Only very large organizations need GraphFrames, and not every mirror has it, so it is not downloaded here. Of two
    jars with one file name the one in the folder counts. Raises JarsUnavailable, JavaMissing.
    """
    mirror, folder = settings.spark.own_conf.get("spark.jars.ivySettings"), settings.spark.jar_folder
    given = [] if folder is None else _jars_in(folder.expanduser().absolute())
    if folder is not None and not given:
        raise JarsUnavailable(
            f"spark.jar_folder is {folder}, which is no folder with jars in it. Nothing was started. Put the jars "
            "there, name the folder that has them, or leave the setting away."
        )
    on_s3 = any(uri.startswith("s3a://") for uri in (settings.lake, source))
    confs: list[JarConf] = ["spark", "s3"] if on_s3 else ["spark"]
    ivy_settings = Path(mirror) if mirror else None
    resolved = [jar for conf in confs for jar in resolve_jars(conf, settings.spark.jar_cache, settings=ivy_settings)]
    if not any(re.match(r"graphframes-spark\d", jar.name) for jar in given):
        resolved += cached_jars("graph", settings.spark.jar_cache)
    names = {jar.name for jar in given}
    jars = [*(jar for jar in resolved if jar.name not in names), *given]
    return [*jars, own_jar(settings.spark.jar_cache, jars)]


def own_jar(cache: Path, jars: Sequence[Path]) -> Path:
    """The jar of LOG_STORES and APPEND_SOURCE, for pyspark and the Delta among these jars. Compiled on first use, 4 s,
    then kept in `cache`. Raises JavaMissing, JarsUnavailable.
    """
    classes = [APPEND_SOURCE, *log_stores(jars).values()]
    sources = [Path(__file__).with_name(f"{each.rpartition('.')[2]}.java") for each in classes]
    # The log store for S3 needs most of what S3A needs.
    on_s3 = LOG_STORES["s3a"] in classes
    path = [jar for jar in jars if on_s3 or jar.name.startswith("delta-")]
    names = " ".join(sorted(jar.name for jar in path))
    path += sorted((pyspark_home() / "jars").glob("*.jar"))
    texts = b"".join(source.read_bytes() for source in sources)
    digest = hashlib.sha256(texts + " ".join(jar.name for jar in path).encode()).hexdigest()[:16]
    jar = cache.expanduser().absolute() / digest / OWN_JAR
    if not jar.exists():
        jar.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=jar.parent) as scratch:
            compiled, made = Path(scratch) / "classes", Path(scratch) / jar.name
            command = [str(find_java()), "--module", "jdk.compiler/com.sun.tools.javac.Main", "--release", "17"]
            command += ["-d", str(compiled), "-classpath", ":".join(map(str, path)), *map(str, sources)]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            if run.returncode != 0:
                raise JarsUnavailable(
                    f"{' and '.join(classes)} do not compile with {names}: {run.stderr[:300]}. Nothing was started."
                )
            with zipfile.ZipFile(made, "w") as archive:
                for each in sorted(compiled.rglob("*.class")):
                    archive.write(each, each.relative_to(compiled))
            # Of two processes at once the later one replaces the same by the same.
            made.rename(jar)
    return jar


def log_stores(jars: Iterable[Path]) -> dict[str, str]:
    """Scheme of a lake's URI -> the class by which Delta reads and writes logs there; S3's where its jars are."""
    on_s3 = any(jar.name.startswith("hadoop-aws-") for jar in jars)
    return {scheme: name for scheme, name in LOG_STORES.items() if on_s3 or scheme != "s3a"}


def _folder(conf: JarConf, cache: Path, ivy_file: Path) -> Path:
    digest = hashlib.sha256(ivy_file.read_bytes()).hexdigest()[:16]
    return cache.expanduser().absolute() / digest / conf


def _jars_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jar"))


def _resolve(conf: JarConf, folder: Path, ivy_file: Path, settings: Path | None) -> None:
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
        if run.returncode != 0 or not _jars_in(retrieved):
            output = run.stdout + run.stderr
            missing = ", ".join(dict.fromkeys(_COORDINATES.findall(output))) or f"the jars of {conf}: {output[-300:]}"
            raise JarsUnavailable(
                f"Could not download {missing}. Check the network and run `engagement-platform setup` again; behind a "
                "mirror, name an Ivy settings file in the setting spark.conf as spark.jars.ivySettings. Jars that no "
                "mirror has can be in a folder that spark.jar_folder names."
            )
        # The rename makes it visible, so a folder is whole or absent.
        retrieved.rename(folder)
