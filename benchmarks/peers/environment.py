"""The environments of the peers: which there are, and how one is made from its pins.

Runs here, with the product's own library for jars. Nothing of it is installed beside the product.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from engagement_platform.errors import PlatformError
from engagement_platform.lake.jars import JarConf, find_java, resolve_jars
from engagement_platform.settings import SparkSettings

HERE = Path(__file__).parent
MADE_WITHIN_S = 1800
_STAMP = ".made-from"


class PeerFailedError(Exception):
    """A peer cannot be had, or failed; the message is the reason that the table shows."""


@dataclass(frozen=True)
class Kind:
    """One peer: how the table calls it, its module, and whether it runs in a JVM."""

    name: str
    module: str
    jvm: bool

    @property
    def pins(self) -> Path:
        """Its packages; the jars of those in a JVM are in `ivy.xml`."""
        return HERE / f"{self.module}.txt"


KINDS = (
    Kind("Hudi", "hudi", jvm=True),
    Kind("Iceberg", "iceberg", jvm=True),
    Kind("pypaimon, no JVM", "paimon", jvm=False),
)


@dataclass(frozen=True)
class Environment:
    """Where a peer runs."""

    module: str
    python: Path
    jars: Sequence[Path]


# What the peers must end in runs in the product's own environment: it needs pyarrow only.
REFERENCE = Environment("reference", Path(sys.executable), ())


def made(kind: Kind, folder: Path) -> Environment:
    """The environment of a peer below a folder, made when it is not there or its pins have changed since.

    Cost: a minute or some the first time, of which building pyspark takes most. Raises PeerFailedError.
    """
    home = folder.absolute() / kind.module
    python = home / "bin" / "python"
    stamp = hashlib.sha256(kind.pins.read_bytes() + sys.version.encode()).hexdigest()
    try:
        if not (home / _STAMP).exists() or (home / _STAMP).read_text() != stamp:
            shutil.rmtree(home, ignore_errors=True)
            _run([sys.executable, "-m", "venv", str(home)])
            _run([str(python), "-m", "pip", "install", "--quiet", "--requirement", str(kind.pins)])
            (home / _STAMP).write_text(stamp)
        if not kind.jvm:
            return Environment(kind.module, python, ())
        find_java()
        # The names of the configurations are those of another ivy.xml than the product's.
        conf = cast("JarConf", kind.module)
        jars = resolve_jars(conf, SparkSettings().jar_cache, ivy_file=HERE / "ivy.xml")
    except PlatformError as error:
        raise PeerFailedError(str(error)) from error
    return Environment(kind.module, python, jars)


def _run(command: Sequence[str]) -> None:
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=MADE_WITHIN_S)
    except subprocess.TimeoutExpired as error:
        raise PeerFailedError(
            f"{Path(command[0]).name} {' '.join(command[1:4])} took over {MADE_WITHIN_S} s"
        ) from error
    if run.returncode != 0:
        said = [line.strip() for line in (run.stdout + run.stderr).splitlines() if line.strip()]
        raise PeerFailedError(said[-1] if said else f"{command[0]} ended with {run.returncode}")
