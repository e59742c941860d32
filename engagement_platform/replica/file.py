"""The replica's DuckDB file: its tables, who may open it, and what it says of itself. What fills it is `refresh`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import duckdb

from engagement_platform.consumers.position import Position
from engagement_platform.errors import PlatformError
from engagement_platform.lake.checksums import quoted
from engagement_platform.pipelines.engagements.schema import CURRENT_ROW

FORMAT = 2
"""Of the file; one of another format is made anew, from a snapshot."""

_CONFIG = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
_PAUSE_S = 0.1


class ReplicaInUse(PlatformError):
    """Another process has the file open and does not let go of it."""

    def __init__(self, path: Path, waited_s: float, cause: str) -> None:
        self.path = path
        super().__init__(
            f"The replica {path} is open in another process, for more than {waited_s:g} s: {cause}. Nothing was read "
            "or changed. One process at a time writes a DuckDB file, and nobody reads it meanwhile: close the other "
            "one, or give it a copy of the file."
        )


class NoReplica(PlatformError):
    """A replica was asked for that nobody has made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(f"There is no replica at {path} yet. Make it with `engagement-platform replica refresh`.")


class NotAReplica(PlatformError):
    """The file is something else, or another consumer's, or of another lake."""

    def __init__(self, path: Path, why: str) -> None:
        self.path = path
        super().__init__(
            f"{path} is not the replica that was asked for: {why}. It was not changed. Give the replica another file "
            "(`--file`) or another name (`--name`), or move the file away; it is made anew from a snapshot."
        )


@dataclass(frozen=True)
class State:
    """What the file says of itself, kept in the same transaction as the rows."""

    lake: str
    name: str
    version: int
    rows: int
    """With `version`, the position up to which notifications are in the rows."""
    batch: str | None
    """The batch whose notifications these were, as `ingest-engagements#17`; None where the log does not tell."""
    announced_ts: datetime | None
    """When they were committed."""
    data_table: str | None
    data_version: int
    """Id of the Data Table, and a version of it that is not newer than the rows."""
    notification_table: str | None
    refreshed_ts: datetime
    snapshot_ts: datetime
    """When all rows were last replaced at once."""
    format: int = FORMAT

    @property
    def position(self) -> Position:
        """Up to which notification the rows are."""
        return Position(self.version, self.rows)


def beside(path: Path) -> tuple[Path, ...]:
    """What DuckDB keeps beside a file: the log of what is not in it yet, after a crash too, and what it spills."""
    return path.with_name(f"{path.name}.wal"), path.with_name(f"{path.name}.tmp")


@contextmanager
def opened(path: Path, *, read_only: bool, wait_s: float) -> Iterator[duckdb.DuckDBPyConnection]:
    """The file; made where there is none, unless it is only read. Raises ReplicaInUse, NoReplica, NotAReplica."""
    if read_only and not path.exists():
        raise NoReplica(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = _connected(path, read_only, wait_s)
    try:
        connection.execute("SET TimeZone = 'UTC'")
        if not read_only:
            _make_tables(connection)
        yield connection
    finally:
        connection.close()


def _connected(path: Path, read_only: bool, wait_s: float) -> duckdb.DuckDBPyConnection:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return duckdb.connect(str(path), read_only=read_only, config=dict(_CONFIG))
        except duckdb.IOException as error:
            said = str(error).split("\n", maxsplit=1)[0]
            if "lock" not in said.lower():
                raise NotAReplica(path, said) from error
            if time.monotonic() >= deadline:
                raise ReplicaInUse(path, wait_s, said) from error
        time.sleep(_PAUSE_S)


def _make_tables(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("BEGIN")
    make_engagement(connection, "CREATE TABLE IF NOT EXISTS")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS replica (lake VARCHAR, name VARCHAR, version BIGINT, rows BIGINT, batch VARCHAR, "
        "announced_ts TIMESTAMP WITH TIME ZONE, data_table VARCHAR, data_version BIGINT, notification_table VARCHAR, "
        "refreshed_ts TIMESTAMP WITH TIME ZONE, snapshot_ts TIMESTAMP WITH TIME ZONE, format BIGINT)"
    )
    connection.execute("COMMIT")


def make_engagement(
    connection: duckdb.DuckDBPyConnection, how: Literal["CREATE TABLE IF NOT EXISTS", "CREATE OR REPLACE TABLE"]
) -> None:
    """The table of the rows, empty where it is made; part of the transaction that is under way."""
    connection.register("columns", CURRENT_ROW.empty_table())
    connection.execute(f"{how} engagement AS SELECT * FROM columns")
    connection.unregister("columns")


def state(connection: duckdb.DuckDBPyConnection, path: Path) -> State | None:
    """What the file says of itself; None while nothing was put into it. Raises NotAReplica."""
    named = ", ".join(quoted(field.name) for field in fields(State))
    # Times as numbers: DuckDB would want one more package for times with a zone.
    columns = named
    for column in ("announced_ts", "refreshed_ts", "snapshot_ts"):
        columns = columns.replace(f'"{column}"', f"epoch_us({column})")
    try:
        rows = connection.execute(f"SELECT {columns} FROM replica").fetchall()
    except duckdb.Error as error:
        raise NotAReplica(path, str(error).split("\n", maxsplit=1)[0]) from error
    if not rows:
        return None
    values = dict(zip((field.name for field in fields(State)), rows[0], strict=True))
    for column in ("announced_ts", "refreshed_ts", "snapshot_ts"):
        values[column] = _moment(values[column])
    return State(**values)


def _moment(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)


def put_state(connection: duckdb.DuckDBPyConnection, new: State) -> None:
    """Say this from now on; part of the transaction that is under way."""
    connection.execute("DELETE FROM replica")
    values = astuple(new)
    named = ", ".join(quoted(field.name) for field in fields(State))
    connection.execute(f"INSERT INTO replica ({named}) VALUES ({', '.join('?' * len(values))})", list(values))
