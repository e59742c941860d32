"""Crash points: every function that commits to a Delta table or to the stores, before and after its commit.

A point is named `<module>.<function> <table>:<before|after>`, without a table where it commits to the stores. A process
that `watch`es calls its observer at each; so no product code knows of them. Messages of a queue are deleted after these
commits, by what the stores say.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from sqlalchemy import Connection

from engagement_platform.lake.contract import Table
from engagement_platform.lake.optimize import Place
from engagement_platform_tests.docs.pages import PACKAGE, modules, tree

IN_THE_MATRIX: Mapping[str, str] = {
    "engine.cursors.move": "consumer",
    "engine.stores.app_id": "restore",
    "engine.stores.begin": "ingest",
    "engine.stores.record": "ingest",
    "engine.stores.rewind": "restore",
    "engine.stores.succeed": "ingest",
    "lake.erased._merge": "erase",
    "lake.erased._alter": "erase",
    "lake.lake._create": "import",
    "lake.lake.append": "ingest",
    "lake.optimize.rewrite": "optimize",
    "lake.optimize.vacuum": "vacuum",
    "lake.overwrite._overwrite": "move by overwrite",
    "lake.overwrite.update_rows": "move by merge",
    "lake.restore.restore": "restore",
    "pii.tombstones.ask": "erase",
    "pii.tombstones.forget_asked": "erase",
    "pii.tombstones.put_up": "erase",
}
"""Function -> a scenario of the matrix that passes it."""

ELSEWHERE: Mapping[str, tuple[str, ...]] = {
    "alerting/test_store.py": (
        "alerting.alerts._claim",
        "alerting.alerts._settle",
        "alerting.alerts.raised",
        "alerting.alerts.recovered",
    ),
    "engine/test_cursors.py": (
        "engine.cursors.begin",
        "engine.cursors.claim",
        "engine.cursors.forget",
        "engine.cursors.record",
    ),
    "engine/test_lease.py": (
        "engine.lease._leave",
        "engine.lease.acquire",
        "engine.lease.heartbeat",
        "engine.lease.release",
    ),
    "engine/test_stores.py": (
        "engine.database._ensure_schema",
        "engine.database.ensure_tables",
        "engine.stores.fail",
        "engine.stores.reset",
    ),
    "erasing/test_erasing.py": ("lake.erased.rewrite",),
    "ingest_server/test_server.py": ("ingest_server.keys.add", "ingest_server.keys.revoke"),
    "lake/test_capability_probes.py": ("lake.capability_probes._runs",),
    "lake/test_fencing.py": ("lake.fencing._close",),
    "lake/test_lake.py": ("lake.lake._compare", "lake.lake.set_property"),
    "lake/test_recovery.py": ("engine.stores.adopt", "engine.stores.know"),
    "lake/test_shared_session.py": ("lake.shared_session._opened",),
    "maintenance/guards/test_foreign_commits.py": ("maintenance.guards.foreign_commits.foreign_commits",),
    "maintenance/layout/test_migrate.py": (
        "lake.repartition.cluster",
        "lake.repartition.relay",
        "lake.restore.rolled_back",
        "maintenance.layout.migrate.run",
    ),
    "maintenance/layout/test_optimize.py": ("lake.optimize.checkpoint_log",),
    "maintenance/rollback/test_restore.py": ("lake.restore._note",),
    "pii/test_erasure.py": ("lake.store_tables.append", "lake.store_tables.purge", "lake.store_tables.remove"),
    "pii/test_vault.py": (
        "lake.store_tables.replace",
        "pii.keys._found_secret",
        "pii.keys._make",
        "pii.keys._rewrap",
        "pii.keys.destroy",
        "pii.keys.forget_former",
        "pii.keys.rotate",
    ),
    "pipelines/games/test_job.py": (
        "pipelines.games.erasing.erase",
        "pipelines.games.live_ops_store.add",
        "pipelines.games.live_ops_store.forget",
        "pipelines.games.live_ops_store.reset",
    ),
    "pipelines/profiles/test_rematerialize.py": (
        "lake.overwrite.delete_through",
        "lake.overwrite.delete_where",
        "lake.overwrite.merge_newer",
    ),
    "sources/test_s3_sqs.py": (
        "sources.s3_sqs_state.arrive",
        "sources.s3_sqs_state.forget_files",
        "sources.s3_sqs_state.forget_messages",
        "sources.s3_sqs_state.plan",
        "sources.s3_sqs_state.renew",
        "sources.s3_sqs_state.rewriting",
        "sources.s3_sqs_state.rewritten",
        "sources.s3_sqs_state.split",
    ),
}
"""File of tests -> functions of which it looks at what comes of an end there."""

HELPERS = frozenset({"save_under", "_alone", "_writing"})
"""Functions that commit for others; those are the points."""

_SPARK = {"save", "merge", "sql", "save_under"}
_DELTA_RS = {"write_deltalake", "create_write_transaction", "vacuum", "compact", "create_checkpoint", "delete"}
_STORES = {"writing", "_alone", "_writing"}
_READS = ("SHOW", "DESCRIBE")


def commits() -> set[str]:
    """The functions of the product that commit, found by what they call."""
    found = set()
    for path in modules():
        module = path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".")
        names = _STORES | (_SPARK | _DELTA_RS if path.parent.name == "lake" else set())
        found |= {f"{module}.{function}" for function, call in _calls(tree(path)) if _name(call) in names}
    return {point for point in found if point.rpartition(".")[2] not in HELPERS}


def _calls(node: ast.AST, function: str = "") -> Iterator[tuple[str, ast.Call]]:
    """Every call but a statement that only reads, with the function that it is in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call) and not any(
            ast.unparse(each).lstrip("f'\"").startswith(_READS) for each in child.args
        ):
            yield function, child
        yield from _calls(child, child.name if isinstance(child, ast.FunctionDef) else function)


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def watch(observe: Callable[[str], None]) -> None:
    """From now on call `observe` with each crash point that this process passes: a client of a Connect server.

    The same point passed again is called `… #2`, and so on.
    """
    from pyspark.sql.connect.client import SparkConnectClient

    from engagement_platform.engine import database

    execute, writing, count = SparkConnectClient.execute_command, database.writing, Counter[str]()

    def begun() -> str | None:
        if (point := _committing(sys._getframe(2))) is None:
            return None
        count[point] += 1
        point = point if count[point] == 1 else f"{point} #{count[point]}"
        observe(f"{point}:before")
        return point

    def executed(*given: Any, **named: Any) -> Any:
        point = begun()
        done = execute(*given, **named)
        if point is not None:
            observe(f"{point}:after")
        return done

    @contextmanager
    def written(*given: Any) -> Iterator[Connection]:
        point = begun()
        with writing(*given) as connection:
            yield connection
        if point is not None:
            observe(f"{point}:after")

    SparkConnectClient.execute_command = executed  # type: ignore[method-assign]
    replace(writing, written)


def replace(function: Callable[..., Any], other: Callable[..., Any]) -> None:
    """Put another function in the place of one of the product's, in every module that has imported it."""
    for name, module in list(sys.modules.items()):
        for attribute, value in list(vars(module).items()) if name.startswith("engagement_platform.") else ():
            if value is function:
                setattr(module, attribute, other)


def _committing(frame: FrameType | None) -> str | None:
    """The innermost function of the product below which a frame is, where it is one of IN_THE_MATRIX."""
    while frame is not None:
        module, function = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if module.startswith("engagement_platform.") and function not in HELPERS:
            point = f"{module.removeprefix('engagement_platform.')}.{function}"
            return f"{point}{_table(frame)}" if point in IN_THE_MATRIX else None
        frame = frame.f_back
    return None


def _table(frame: FrameType) -> str:
    """The table that a function of the lake has at hand."""
    for value in frame.f_locals.values():
        of = getattr(value, "place", value)
        if isinstance(of, Table | Place):
            return f" {of.name}"
    return ""
