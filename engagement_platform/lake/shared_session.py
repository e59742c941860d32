"""One server-side Spark Connect session for the runs of one job, one after the other.

Every session that runs Python code leaves a worker daemon behind on a server that isolates their artifacts
(SPARK-54055), so runs do not open one each. A run claims the session by a lease. Only a session that its last run has
closed is used again: after a run that was killed or is silent a new one is drawn, and the server releases the old one,
which interrupts its statements and refuses later ones. So neither configuration nor a late statement of one run reaches
another.
"""

from __future__ import annotations

import gc
import secrets
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count

from pyspark.sql import SparkSession
from sqlalchemy import Column, Engine, MetaData, String, Table, select

from engagement_platform.engine.database import ensure_tables, open_engine, reading, writing
from engagement_platform.engine.lease import Lease, LeaseLost, LeaseStore, LeaseUnavailable
from engagement_platform.lake.lake import TRANSACTION_CONF
from engagement_platform.settings import Settings

METADATA = MetaData()
SPARK_SESSION = Table(
    "spark_session",
    METADATA,
    Column("name", String(256), primary_key=True),
    # The session's id follows from the name and this, which changes with every session that is drawn.
    Column("token", String(16), nullable=False),
)

_ENDED = ("SESSION_CLOSED", "SESSION_CHANGED", "SESSION_NOT_FOUND")
"""Errors of a server that released the session, or closed it after its timeout without use."""


@contextmanager
def shared_session(
    settings: Settings, job: str, connect: Callable[[uuid.UUID], SparkSession]
) -> Iterator[SparkSession]:
    """The session of a job's runs, for this run alone; closed here and kept on the server.

    connect: a client of the server-side session with an id, which begins with its first statement. Runs of one job at
    the same moment have a session each. Raises StoresUnavailable, LeaseLost where another run has closed the session,
    and what `connect` and the server raise.
    """
    engine = open_engine(settings.store_url)
    ensure_tables(engine, METADATA)
    lake = uuid.uuid5(uuid.NAMESPACE_URL, settings.lake)
    leases = LeaseStore(engine, ttl=settings.stores.lease_ttl)
    try:
        with _claimed(leases, f"spark-session/{lake}/{job}") as lease:
            try:
                session = _opened(engine, lease, connect)
            except BaseException:
                # The next run has to draw a session anew, too.
                lease.leave()
                raise
            try:
                yield session
            except Exception as error:
                # The server says that the session is gone, and not that another run has taken the place of this one.
                if says_ended(error):
                    try:
                        lease.check()
                    except LeaseLost as lost:
                        raise lost from None
                raise
            finally:
                _close(session)
    finally:
        engine.dispose()


def _claimed(leases: LeaseStore, name: str) -> Lease:
    """The first of the job's sessions that no other run has."""
    for number in count():
        try:
            return leases.acquire(f"{name}/{number}", purpose="spark session", wait=timedelta(0))
        except LeaseUnavailable:
            continue
    raise AssertionError("count never ends")


def _opened(engine: Engine, lease: Lease, connect: Callable[[uuid.UUID], SparkSession]) -> SparkSession:
    """The session that the last run closed, or a new one."""
    name = lease.fence.name

    def session_with(token: str) -> SparkSession:
        return connect(uuid.uuid5(uuid.NAMESPACE_URL, f"{name}|{token}"))

    with reading(engine) as connection:
        token = connection.execute(select(SPARK_SESSION.c.token).where(SPARK_SESSION.c.name == name)).scalar()
    former = None if token is None else session_with(token)
    if former is not None and lease.replaced is None and _is_quiet(former):
        _forget_former_run(former)
        return former
    token = secrets.token_hex(8)
    with writing(engine, name) as connection:
        connection.execute(SPARK_SESSION.delete().where(SPARK_SESSION.c.name == name))
        connection.execute(SPARK_SESSION.insert().values(name=name, token=token))
    if former is not None:
        _release(former)
    return session_with(token)


def _release(session: SparkSession) -> None:
    """End a session on the server."""
    try:
        session.client.release_session()
    except Exception as error:
        if not says_ended(error):
            raise
    finally:
        _close(session)


def _is_quiet(session: SparkSession) -> bool:
    """Whether the server still has the session, or would begin it anew, and nothing is running in it."""
    try:
        return not session.interruptAll()
    except Exception as error:
        if says_ended(error):
            return False
        _close(session)
        raise


def says_ended(error: Exception) -> bool:
    """Whether an error is, or quotes, a server's that has the session no longer."""
    return any(word in str(error) for word in _ENDED)


def _forget_former_run(session: SparkSession) -> None:
    """Remove the names of a former run's transaction, and its temporary views."""
    for key in TRANSACTION_CONF:
        session.conf.unset(key)
    for view in session.sql("SHOW VIEWS").collect():
        if view["isTemporary"]:
            session.catalog.dropTempView(view["viewName"])


def _close(session: SparkSession) -> None:
    """Close the client. Frames that it still holds are dropped on the server first: the session would keep them."""
    gc.collect()
    session.release_session_on_close = False  # type: ignore[attr-defined]
    session.stop()
