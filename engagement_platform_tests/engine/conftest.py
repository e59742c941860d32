"""A fresh database for each store test, on SQLite and on a private PostgreSQL server; and a clock that tests move."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from engagement_platform.engine.database import open_engine
from engagement_platform.local.ports import free_ports


class FakeClock:
    """Stands still until a test, or somebody who sleeps by it, moves it."""

    def __init__(self) -> None:
        self.now = datetime(2026, 3, 1, 23, 59, 30, 123456, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, by: timedelta) -> None:
        self.now += by

    def sleep(self, seconds: float) -> None:
        self.advance(timedelta(seconds=seconds))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def _postgres_binaries() -> Path | None:
    on_path = shutil.which("initdb")
    if on_path:
        return Path(on_path).parent
    # Debian keeps the server's programs off the path, a folder for each major version.
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
    return found[-1].parent if found else None


def _unprivileged_user() -> str | None:
    """Whom to run the server as: initdb and postgres refuse root. None: ourselves."""
    if os.geteuid() != 0:
        return None
    users = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in users else "nobody"


class PostgresServer:
    """One PostgreSQL server on 127.0.0.1 in a temporary folder, without durability; a database for each test."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        self._binaries, self._folder, self._user = binaries, folder, _unprivileged_user()
        self._databases = 0
        (self._port,) = free_ports(1)

    def start(self) -> None:
        if self._user:
            shutil.chown(self._folder, self._user)
        group = None if self._user is None else pwd.getpwnam(self._user).pw_gid
        as_user: dict[str, object] = (
            {} if self._user is None else {"user": self._user, "group": group, "extra_groups": []}
        )
        data = self._folder / "data"
        subprocess.run(  # type: ignore[call-overload]
            [self._binaries / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"],
            check=True, capture_output=True, cwd=self._folder, **as_user,
        )  # fmt: skip
        options = {"listen_addresses": "127.0.0.1", "port": self._port, "unix_socket_directories": "", "fsync": "off"}
        flags = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(  # type: ignore[call-overload]
                [self._binaries / "postgres", "-D", data, *flags],
                stdout=log, stderr=log, cwd=self._folder, **as_user,
            )  # fmt: skip
        deadline = time.monotonic() + 30
        while True:
            try:
                self._execute("SELECT 1")
            except OperationalError:
                log_text = (self._folder / "log").read_text()
                assert self._process.poll() is None, f"PostgreSQL ended at once: {log_text}"
                assert time.monotonic() < deadline, f"PostgreSQL did not answer within 30 s: {log_text}"
                time.sleep(0.1)
            else:
                return

    def new_database(self) -> str:
        self._databases += 1
        name = f"t{self._databases}"
        self._execute(f"CREATE DATABASE {name}")
        return self._url(name)

    def stop(self) -> None:
        # SIGINT is PostgreSQL's fast shutdown: it does not wait for clients.
        self._process.send_signal(signal.SIGINT)
        self._process.wait(timeout=30)

    def _execute(self, statement: str) -> None:
        # CREATE DATABASE wants no transaction around it.
        engine = create_engine(self._url("postgres"), poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(statement))

    def _url(self, database: str) -> str:
        return f"postgresql+psycopg2://postgres@127.0.0.1:{self._port}/{database}"


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    binaries = _postgres_binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL server on this machine: apt-get install postgresql")
    # Not pytest's folder: its parents are closed to the server's user.
    with tempfile.TemporaryDirectory(prefix="engagement-postgres-") as folder:
        server = PostgresServer(binaries, Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty database."""
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        return server.new_database()
    return f"sqlite:///{tmp_path / 'not-there-yet' / 'stores.db'}"


@pytest.fixture
def engine(store_url: str) -> Iterator[Engine]:
    engine = open_engine(store_url)
    yield engine
    engine.dispose()


@pytest.fixture
def sqlite_engine(tmp_path: Path) -> Iterator[Engine]:
    """An empty database for tests in which it does not matter which one it is."""
    engine = open_engine(f"sqlite:///{tmp_path / 'stores.db'}")
    yield engine
    engine.dispose()
