"""The database behind the stores: connections and transactions, on SQLite and PostgreSQL. The tables are `schema`."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Connection, Engine, MetaData, Table, create_engine, event, inspect, select, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, InterfaceError, NoSuchModuleError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

from engagement_platform.engine.durable_files import private_file
from engagement_platform.engine.schema import METADATA, SCHEMA, SEQUENCE
from engagement_platform.errors import START_ANEW, PlatformError, first_line, require

SCHEMA_VERSION = 3

# Transactions here take milliseconds; half a minute of waiting for another writer means that it is stuck.
LOCK_TIMEOUT_S = 30

# A Spark error can carry a whole plan; its beginning names the cause.
_MAX_REASON_CHARS = 8_000

_WRITES = "engagement_platform_writes"


class StoresUnavailable(PlatformError):
    """The stores' database cannot be reached, or stays locked. Nothing was decided; running again is safe."""

    def __init__(self, engine_url: URL, cause: str) -> None:
        self.cause = cause
        super().__init__(
            f"The stores at {_shown(engine_url)} cannot be used: {cause}. See that the database is up and "
            "ENGAGEMENT_PLATFORM_STORES__URL names it, then run again: the batch continues where it was."
        )


class StoresOfAnotherVersion(PlatformError):
    """The stores were written by another version of the platform."""

    def __init__(self, engine_url: URL, found: int) -> None:
        super().__init__(
            f"The stores at {_shown(engine_url)} have schema version {found}, this platform writes {SCHEMA_VERSION}. "
            f"Nothing was changed. Run the version of the platform that wrote them. {START_ANEW}"
        )


def utc_now() -> datetime:
    """This machine's clock, UTC."""
    return datetime.now(UTC)


def may_exist(url: str) -> bool:
    """Whether there may be stores at an SQLAlchemy URL: not for a file that is not there, which opening would make."""
    file = url.removeprefix("sqlite:///")
    return file == url or Path(file).exists()


def open_engine(url: str) -> Engine:
    """Connect to the stores and create their tables on first use; several processes may do so at once.

    url: SQLAlchemy URL, `sqlite:///<absolute path>` (the folder is created) or `postgresql+psycopg2://…`.
    Raises StoresUnavailable, StoresOfAnotherVersion, ExtraMissing.
    """
    parsed = _parse(url)
    if parsed.get_backend_name() == "sqlite":
        engine = _sqlite_engine(parsed)
    else:
        # pre_ping: a server that was restarted between two batches costs one new connection, not a failed batch.
        options = {"pool_pre_ping": True, "pool_size": 2, "max_overflow": 8}
        engine = create_engine(parsed, connect_args={"connect_timeout": 10}, **options)
    try:
        _ensure_schema(engine)
    except BaseException:
        engine.dispose()
        raise
    return engine


def ensure_tables(engine: Engine, metadata: MetaData) -> None:
    """Create those tables of a part of the platform that are missing; several processes may do so at once.

    For parts that keep tables of their own in the stores' database. Raises StoresUnavailable.
    """
    with reading(engine) as connection:
        if set(inspect(connection).get_table_names()).issuperset(metadata.tables):
            return
    with writing(engine, "schema") as connection:
        metadata.create_all(connection)


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A transaction that only reads; never waits for a writer. Raises StoresUnavailable."""
    try:
        with engine.connect() as connection, connection.begin():
            yield connection
    except (DatabaseError, InterfaceError) as error:
        raise _unavailable(engine, error) from error


@contextmanager
def writing(engine: Engine, *names: str) -> Iterator[Connection]:
    """A transaction that is alone with everything called by these names, rows that do not exist yet included.

    SQLite has one writer at a time anyway: BEGIN IMMEDIATE takes that place at the start, so two transactions never
    meet half way and deadlock. PostgreSQL takes one advisory lock a name, in one order everywhere.
    Raises StoresUnavailable, also when the wait for the lock lasts longer than LOCK_TIMEOUT_S.
    """
    try:
        with engine.connect().execution_options(**{_WRITES: True}) as connection, connection.begin():
            if engine.dialect.name == "postgresql":
                connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S}s'"))
                for name in sorted(set(names)):
                    connection.execute(
                        text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))"),
                        {"name": f"engagement-platform/{name}"},
                    )
            yield connection
    except (DatabaseError, InterfaceError) as error:
        raise _unavailable(engine, error) from error


def next_sequence(connection: Connection) -> int:
    """Greater than the sequence of every batch and every tombstone of these stores.

    The transaction holds the row until it ends, so batches get their numbers in the order in which they begin,
    whatever the clocks of their machines show.
    """
    last = SEQUENCE.c.last
    if connection.execute(SEQUENCE.update().values(last=last + 1)).rowcount == 0:
        # Of two that come first on PostgreSQL one fails here, and its batch begins with the next run.
        connection.execute(SEQUENCE.insert().values(name="batch", last=1))
    return int(connection.execute(select(last)).scalar_one())


def draw_after(connection: Connection, sequence: int) -> None:
    """Make the next sequence greater than this one."""
    next_sequence(connection)
    connection.execute(SEQUENCE.update().where(SEQUENCE.c.last < sequence).values(last=sequence))


def upsert(connection: Connection, table: Table, values: Mapping[str, object], *key: str) -> None:
    """Update the row with this key, or insert it; for transactions that nobody else can insert beside."""
    where = [table.c[name] == values[name] for name in key]
    if connection.execute(table.update().where(*where).values(**values)).rowcount == 0:
        connection.execute(table.insert().values(**values))


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
        dialect = parsed.get_dialect()
        if dialect.driver == "psycopg2":
            require("postgres", "A database of PostgreSQL")
        if parsed.get_backend_name() in ("sqlite", "postgresql"):
            dialect.import_dbapi()
            return parsed
    except (ArgumentError, NoSuchModuleError, ImportError, ValueError):
        pass
    # Without SQLAlchemy's own error: it quotes the URL, which holds a password.
    raise PlatformError(
        "ENGAGEMENT_PLATFORM_STORES__URL is not the URL of a SQLite or PostgreSQL database, or its driver is not "
        "installed; nothing was opened. Write sqlite:////path/stores.db or "
        "postgresql+psycopg2://user:password@host/database."
    )


def _sqlite_engine(url: URL) -> Engine:
    if url.database and url.database != ":memory:":
        try:
            # And the home, where a program is the first to use it.
            private_file(Path(url.database))
        except OSError as error:
            raise StoresUnavailable(url, str(error)) from error
    # A connection a transaction (0.3 ms): none is ever carried over a fork, which SQLite does not survive.
    engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": LOCK_TIMEOUT_S})

    @event.listens_for(engine, "connect")
    def _configure(dbapi_connection: object, _record: ConnectionPoolEntry) -> None:
        # Python's own BEGIN comes late and deferred; with None the "begin" event below decides.
        dbapi_connection.isolation_level = None  # type: ignore[attr-defined]
        cursor = dbapi_connection.cursor()  # type: ignore[attr-defined]
        # In WAL mode the default NORMAL may lose the last commits with the power, and a lost RUNNING row would let
        # the next run pin another range for a batch id that Delta already holds.
        cursor.execute("PRAGMA synchronous=FULL")
        # What is removed may name players, and free pages are not looked through when one of them is erased.
        cursor.execute("PRAGMA secure_delete=ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(_WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN DEFERRED")

    return engine


def _ensure_schema(engine: Engine) -> None:
    if engine.dialect.name == "sqlite":
        _switch_to_wal(engine)
    with reading(engine) as connection:
        if _schema_is_there(engine, connection):
            return
    with writing(engine, "schema") as connection:
        if not _schema_is_there(engine, connection):
            METADATA.create_all(connection)
            if connection.execute(select(SCHEMA.c.version)).scalar_one_or_none() is None:
                connection.execute(SCHEMA.insert().values(version=SCHEMA_VERSION))


def _schema_is_there(engine: Engine, connection: Connection) -> bool:
    there = set(inspect(connection).get_table_names())
    if SCHEMA.name not in there:
        return False
    version = connection.execute(select(SCHEMA.c.version)).scalar_one_or_none()
    if version is not None and version != SCHEMA_VERSION:
        raise StoresOfAnotherVersion(engine.url, version)
    # Tables that came later are added to stores that are older; a platform that does not know them leaves them alone.
    return version is not None and there.issuperset(METADATA.tables)


def _switch_to_wal(engine: Engine) -> None:
    """Turn on WAL, once for the life of the file; SQLite's busy timeout does not cover the switch."""
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            with closing(engine.raw_connection()) as raw:
                raw.cursor().execute("PRAGMA journal_mode=WAL").close()
        except Exception as error:
            # raw_connection() wraps errors of the driver, a cursor does not: both are recognized by their text.
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise _unavailable(engine, error) from error
            time.sleep(0.05)
        else:
            return


def _unavailable(engine: Engine, error: Exception) -> Exception:
    # A plain DatabaseError is SQLite's for a damaged file; its other kinds are faults of the caller. The driver's own
    # come from a connection that is not opened by SQLAlchemy's `connect`.
    own = (sqlite3.DatabaseError, sqlite3.OperationalError)
    if type(error) not in (DatabaseError, InterfaceError, OperationalError, *own):
        return error
    return StoresUnavailable(engine.url, first_line(getattr(error, "orig", error)))


def _shown(url: URL) -> str:
    return url.render_as_string(hide_password=True)


def storable(reason: str) -> str:
    """Text that both databases take: PostgreSQL refuses NUL, neither takes half a surrogate pair."""
    plain = reason.encode("utf-8", "backslashreplace").decode("utf-8").replace("\x00", "\\x00")
    return plain if len(plain) <= _MAX_REASON_CHARS else plain[:_MAX_REASON_CHARS] + " …"
