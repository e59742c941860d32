"""Rules of the house that import-linter and ruff cannot hold: who may write, who may look at a clock, quiet imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engagement_platform_tests.docs.pages import PACKAGE, ROOT, modules, name, tree

LONGEST_MODULE = 400

# Where Spark is started in this process; everything else runs over Connect too, which has no SparkContext.
STARTS_SPARK = {"engagement_platform/lake/session.py", "engagement_platform/defs/platform.py"}

WRITERS = {"writeTo", "writeStream", "mergeInto", "saveAsTable", "insertInto", "foreachBatch"}
CLOCKS = {"now", "utcnow", "today", "uuid1", "uuid4", "current_timestamp", "current_date"}
DICE = {"rand", "randn", "uuid", "random", "shuffle", "monotonically_increasing_id"}

IMPORTS_EVERYTHING = """
import importlib, pkgutil, sys, threading

STARTS = {
    "subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system",
    "socket.connect", "socket.bind", "socket.getaddrinfo", "os.mkdir", "os.remove", "os.rename",
}
seen, importing = [], ""

def hear(event, arguments):
    if event in STARTS or (event == "open" and isinstance(arguments[1], str) and set("wax+") & set(arguments[1])):
        # Python's own `platform` asks `file` what kind of program the interpreter is; libraries want to know.
        asks_file = event == "subprocess.Popen" and arguments[1][:2] == ["file", "-b"]
        # urllib3, below boto3, asks the machine whether it has IPv6: a port of its own choice, closed at once.
        asks_ipv6 = event == "socket.bind" and arguments[1] == ("::1", 0)
        if not (asks_file or asks_ipv6):
            seen.append(f"{importing}: {event} {arguments!r:.200}")

sys.addaudithook(hear)
import engagement_platform
for module in pkgutil.walk_packages(engagement_platform.__path__, "engagement_platform."):
    importing = module.name
    importlib.import_module(module.name)
seen += [f"a thread: {thread.name}" for thread in threading.enumerate() if thread is not threading.main_thread()]
seen += [f"{importing} left a Spark session" for module in ("pyspark.sql",) if module in sys.modules
         and sys.modules[module].SparkSession.getActiveSession() is not None]
print("\\n".join(seen))
"""


def attributes(path: Path) -> Iterator[ast.Attribute]:
    """Every `x.y` in a module."""
    return (node for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute))


def found(path: Path, nodes: Iterator[ast.Attribute]) -> list[str]:
    """Where, for the message."""
    return [f"{name(path)}:{node.lineno} .{node.attr}" for node in nodes]


EVERY_MODULE = pytest.mark.parametrize("path", modules(), ids=name)


@EVERY_MODULE
def test_a_module_says_what_lives_in_it(path: Path) -> None:
    said = ast.get_docstring(tree(path))
    assert said, f"{name(path)} has no docstring"
    assert said.split("\n\n")[0].rstrip().endswith("."), f"{name(path)} does not begin with a sentence"


@EVERY_MODULE
def test_a_module_can_be_read_in_one_sitting(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST_MODULE, f"{name(path)} has {lines} lines: it does more than one thing"


def writes(path: Path) -> list[str]:
    """Where a module writes tables. `frame.write.format(…)` uses a writer; `file.write(…)` is a call, and none."""
    used = (node for node in attributes(path) if isinstance(node.value, ast.Attribute) and node.value.attr == "write")
    named = (node for node in attributes(path) if node.attr in WRITERS)
    statements = [
        f"{name(path)}:{node.lineno} .sql()"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "sql"
    ]
    return [*found(path, used), *found(path, named), *statements]


def looks_at_clocks_or_dice(path: Path) -> list[str]:
    """Where a module asks for the time, or for something random."""
    return found(path, (node for node in attributes(path) if node.attr in CLOCKS | DICE))


@EVERY_MODULE
def test_only_tables_write(path: Path) -> None:
    if path.parent != PACKAGE / "lake":
        assert writes(path) == []


def test_delta_rs_fills_stores_and_no_table_of_a_pipeline() -> None:
    """Beside stores only: a watermark that goes back with its table, which Spark cannot commit, and checkpoints."""
    writers = {"write_deltalake", "create_write_transaction"}
    found = {
        path.name
        for path in modules()
        for node in ast.walk(tree(path))
        if (isinstance(node, ast.Attribute) and node.attr in writers)
        or (isinstance(node, ast.Name) and node.id in writers)
    }
    assert found == {"store_tables.py", "restore.py"}


@EVERY_MODULE
def test_nothing_reaches_behind_spark_connect(path: Path) -> None:
    hidden = {"_jvm", "_jsc", "_jdf", "_sc", "rdd"}
    if name(path) not in STARTS_SPARK:
        hidden.add("sparkContext")
    assert found(path, (node for node in attributes(path) if node.attr in hidden)) == []


@pytest.mark.parametrize(
    # The move asks a clock when it plans a purge, and pins the answer in its manifest.
    "path",
    [p for p in modules() if p.parent.name in ("engagements", "lake", "mutations") and p.name != "move.py"],
    ids=name,
)
def test_what_a_batch_does_depends_on_no_clock_and_no_dice(path: Path) -> None:
    """A replay would differ: time and ids come from the manifest."""
    assert looks_at_clocks_or_dice(path) == []


def test_the_rules_find_what_they_look_for() -> None:
    """A rule that finds nothing where something is would find nothing anywhere."""
    writers = (PACKAGE / "lake" / f"{module}.py" for module in ("lake", "overwrite"))
    kinds = [line.split()[-1] for path in writers for line in writes(path)]
    assert {".format", ".mergeInto", ".sql()"} <= set(kinds)
    assert looks_at_clocks_or_dice(PACKAGE / "engine" / "database.py")
    assert any(node.attr == "sparkContext" for node in attributes(PACKAGE / "lake" / "session.py"))


def test_importing_every_module_starts_nothing() -> None:
    """No process (so no JVM), no thread, no socket, no file."""
    # -B: byte code is Python's own writing, not ours.
    command = [sys.executable, "-B", "-c", IMPORTS_EVERYTHING]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == ""
