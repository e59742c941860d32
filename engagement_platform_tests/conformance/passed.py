"""Tells a process which crash points it passes: it calls an observer at each, so no product code knows of them."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from threading import RLock
from types import FrameType
from typing import Any

import deltalake
from botocore.client import BaseClient
from deltalake import DeltaTable, write_deltalake
from deltalake.table import TableOptimizer
from sqlalchemy import Connection

from engagement_platform.lake.contract import Table
from engagement_platform.lake.optimize import Place
from engagement_platform_tests.conformance.committing import OUTSIDE
from engagement_platform_tests.conformance.points import HELPERS, LISTED, UPKEEP

_OBSERVED = frozenset(point for point in LISTED if not point.startswith(UPKEEP))


TRANSACTION = RLock()
"""Held by this process while it writes to the stores: on SQLite nobody else can meanwhile."""


def watch(observe: Callable[[str], None]) -> None:
    """From now on call `observe` with each crash point that this process passes: a client of a Connect server.

    The same point passed again is called `… #2`, and so on. A table that delta-rs creates is no point: a process that
    ends there has made it or not.
    """
    from pyspark.sql.connect.client import SparkConnectClient

    from engagement_platform.engine import database

    writing, count = database.writing, Counter[str]()

    def begun() -> str | None:
        if (point := _committing(sys._getframe(2))) is None:
            return None
        count[point] += 1
        point = point if count[point] == 1 else f"{point} #{count[point]}"
        observe(f"{point}:before")
        return point

    def observed(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            point = begun()
            done = function(*given, **named)
            if point is not None:
                observe(f"{point}:after")
            return done

        return call

    @contextmanager
    def written(*given: Any) -> Iterator[Connection]:
        point = begun()
        with TRANSACTION, writing(*given) as connection:
            yield connection
        if point is not None:
            observe(f"{point}:after")

    def asked(method: Callable[..., Any]) -> Callable[..., Any]:
        seen = observed(method)

        @wraps(method)
        def ask(client: object, operation: str, given: object) -> Any:
            return (seen if operation in OUTSIDE.values() else method)(client, operation, given)

        return ask

    for of, methods in (
        (SparkConnectClient, ("execute_command",)),
        (DeltaTable, ("cleanup_metadata", "create_checkpoint", "create_write_transaction", "delete", "vacuum")),
        (TableOptimizer, ("compact", "z_order")),
        (os, ("fsync",)),
        (Path, ("write_text",)),
    ):
        for method in methods:
            setattr(of, method, observed(getattr(of, method)))
    BaseClient._make_api_call = asked(BaseClient._make_api_call)
    # Modules that are imported later have it from there.
    deltalake.write_deltalake = written_by_rs = observed(write_deltalake)
    replace(write_deltalake, written_by_rs)
    replace(writing, written)


def replace(function: Callable[..., Any], other: Callable[..., Any]) -> None:
    """Put another function in the place of one of the product's, in every module that has imported it."""
    for name, module in list(sys.modules.items()):
        for attribute, value in list(vars(module).items()) if name.startswith("engagement_platform.") else ():
            if value is function:
                setattr(module, attribute, other)


def _committing(frame: FrameType | None) -> str | None:
    """The innermost function of the product below which a frame is, where it is one of those that are observed."""
    while frame is not None:
        module, function = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname.partition(".<locals>")[0]
        point = f"{module.removeprefix('engagement_platform.')}.{function}"
        if module.startswith("engagement_platform.") and point not in HELPERS:
            return f"{point}{_table(frame)}" if point in _OBSERVED else None
        frame = frame.f_back
    return None


def _table(frame: FrameType) -> str:
    """The table that a function of the lake has at hand."""
    for value in frame.f_locals.values():
        of = getattr(value, "place", value)
        if isinstance(of, Table | Place):
            return f" {of.name}"
    return ""
