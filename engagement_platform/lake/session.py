"""Opens Spark: as a thin client of a Connect server, or in this process; with one set of configuration for both.

Which jars there are is `jars`, starting a server is `local/connect`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from engagement_platform.errors import PlatformError
from engagement_platform.lake import driver_lease
from engagement_platform.lake.jars import APPEND_CONF, APPEND_SOURCE, OWN_JAR, find_java, log_stores, spark_jars
from engagement_platform.lake.live_files import FEW_FILES
from engagement_platform.lake.shared_session import shared_session
from engagement_platform.settings import Settings, SparkSettings

RELATION_PLUGINS = "spark.connect.extensions.relation.classes"
GRAPH_PLUGIN = "org.apache.spark.sql.graphframes.GraphFramesConnect"

_SUBMITTED = (
    "spark.master", "spark.driver.", "spark.jars", "spark.files", "spark.archives", "spark.submit.", "spark.yarn.",
    "spark.kubernetes.", "spark.hadoop.fs.permissions.",
)  # fmt: skip
"""Configuration that counts before there is a session: the JVM's own, its class path, where it runs, and what Hadoop's
local file system goes by, which spark-submit opens."""

SAFE_LOG_STORES = frozenset({"io.delta.storage.S3DynamoDBLogStore"})
"""Values of spark.delta.logStore.s3a.impl with which several drivers may commit."""


class SparkUnavailable(PlatformError):
    """The Connect endpoint does not answer."""

    def __init__(self, endpoint: str, cause: str) -> None:
        super().__init__(
            f"No Spark Connect server answers at {endpoint} ({cause}). No table was changed. Start one with "
            "`engagement-platform services`, or set ENGAGEMENT_PLATFORM_SPARK__REMOTE to yours; without that setting "
            "Spark starts in this process."
        )


def session_conf(settings: Settings) -> dict[str, str]:
    """What can be set for one session, in this process or on a server that others share."""
    layout = settings.layout
    on = str(layout.optimize_write).lower()
    # Where a session says nothing, it goes by the tables' own `delta.autoOptimize.autoCompact`.
    compaction = {} if layout.auto_compact else {"spark.databricks.delta.autoCompact.enabled": "false"}
    return {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(settings.spark.shuffle_partitions),
        # First read of a table: 15 s with the default of 50 tasks, about 2 s with 2 (2 cores, Spark 4.2, Delta 4.4).
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
        # A job that looks whether files are there costs more than looking, on a disk.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "32" if "://" in settings.lake else str(FEW_FILES),
        # By these an append finds its transaction, and Delta the files of a table, without a job.
        "spark.databricks.delta.setTransactionsInCrc.writeOnCommit": "true",
        "spark.databricks.delta.allFilesInCrc.enabled": "true",
        # A batch is finished at the versions that it began at, and a restore goes back to one, however old their
        # commits are: VACUUM keeps the files. Delta refuses them after `delta.deletedFileRetentionDuration`, 7 days.
        "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
        # Two keys for one feature, both named by the source; neither of them is auto compaction.
        "spark.databricks.delta.autoOptimize.optimizeWrite": on,
        "spark.databricks.delta.optimizeWrite.enabled": on,
        # Optimized writes start one task per table partition otherwise; with few cores, 48 small tasks take longer
        # than as many as there are cores. A partition still is written by one task.
        "spark.databricks.delta.optimizeWrite.maxShufflePartitions": str(settings.spark.shuffle_partitions),
        **compaction,
        "spark.databricks.delta.autoCompact.minNumFiles": str(layout.auto_compact_min_files),
        "spark.databricks.delta.autoCompact.maxFileSize": str(128 * 1024 * 1024),
    }


def server_conf(settings: Settings, source: str = "") -> dict[str, str]:
    """All configuration of a Spark that is started here, without the jars. source: URI of what is read beside the
    lake."""
    return {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.driver.memory": settings.spark.driver_memory,
        "spark.driver.maxResultSize": settings.spark.driver_max_result_size,
        "spark.default.parallelism": str(settings.spark.default_parallelism),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        # Without it Hadoop leaves a file with a checksum beside each file of a log on a local disk, which doubles them.
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
        # Kept frames of past batches are freed at a garbage collection; the default waits 30 minutes for one.
        "spark.cleaner.periodicGC.interval": "3min",
        # Each broadcast relation and each aggregation takes a page at least, 8 MB with a heap of 1 GB. Two dozen tables
        # of a few rows filled a third of the old generation: `up` with all pipelines collected all of it each 3 s after
        # 25 minutes, 464 s in all; with these pages 53 s in half an hour (2 cores).
        "spark.buffer.pageSize": "1m",
        "spark.ui.showConsoleProgress": "false",
        # A batch has more kinds of generated classes than the default of 100; compiling them anew took 12 % of it.
        "spark.sql.codegen.cache.maxEntries": "1000",
        # The driver remembers finished queries, their plans and metrics for a UI that is off here; a thousand of a
        # batch's plans fill a heap of 1 GB.
        "spark.ui.retainedJobs": "100",
        "spark.ui.retainedStages": "100",
        "spark.ui.retainedTasks": "1000",
        "spark.sql.ui.retainedExecutions": "50",
        # What a frame over files knows of these is kept for others that name the same frame, and nobody does: after 100
        # minutes of `up` 90,000 files were remembered, and took most of 200 MB (250 are allowed by default).
        "spark.sql.hive.filesourcePartitionFileCacheSize": "0",
        # Each batch reads under a group of its own, so no consumer that is kept is ever asked again; by default 64 are,
        # for five minutes, with their connections, and what they have fetched.
        "spark.kafka.consumer.cache.timeout": "10s",
        "spark.kafka.consumer.cache.evictorThreadRunInterval": "10s",
        "spark.kafka.consumer.fetchedData.cache.timeout": "10s",
        "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "10s",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        **session_conf(settings),
        **s3a_conf(settings.lake, os.environ),
        **s3a_conf(source, os.environ),
        **local_modes(settings),
        **settings.spark.own_conf,
    }


def local_modes(settings: Settings) -> dict[str, str]:
    """Configuration by which tables in the home folder are for its owner only; empty where the lake is elsewhere.

    Hadoop gives what it makes on a local disk modes of its own, by default 644 and 755, whatever the umask is.
    """
    inside = Path(settings.lake).is_relative_to(settings.home.expanduser().resolve())
    return {"spark.hadoop.fs.permissions.umask-mode": "077"} if inside else {}


def s3a_conf(uri: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Configuration for s3a://, from the variables that boto3 and delta-rs read; empty for any other URI.

    Credentials are not among it: Hadoop's own chain finds them in the driver and in each executor, and so no UI or
    event log shows them.
    """
    if not uri.startswith("s3a://"):
        return {}
    conf = {}
    if endpoint := environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL"):
        conf["spark.hadoop.fs.s3a.endpoint"] = endpoint
        # Others than Amazon seldom have a name in the DNS for each bucket.
        conf["spark.hadoop.fs.s3a.path.style.access"] = "true"
        conf["spark.hadoop.fs.s3a.connection.ssl.enabled"] = str(not endpoint.startswith("http://")).lower()
    if region := environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION"):
        conf["spark.hadoop.fs.s3a.endpoint.region"] = region
    return conf


def own_jar_conf(jars: Sequence[Path]) -> dict[str, str]:
    """Configuration by which Delta reads and writes logs by LOG_STORES, and a lake appends by APPEND_SOURCE; empty
    where their jar is not.

    Delta lists the log of a table some fifteen times in a batch, and its own classes ask for all entries, wanted or
    not. On a disk a batch that took 4.6 s took 15.7 with 10,000 versions more, a day's, in each log (2 cores); on S3 a
    list is a request for each five hundred versions.
    """
    if not any(jar.name == OWN_JAR for jar in jars):
        return {}
    stores = {f"spark.delta.logStore.{scheme}.impl": name for scheme, name in log_stores(jars).items()}
    return {APPEND_CONF: APPEND_SOURCE, **stores}


def plugin_conf(jars: Iterable[Path], given: Mapping[str, str]) -> dict[str, str]:
    """Configuration by which a Connect server with GraphFrames' plugin among its jars loads it; else empty.

    given: the other configuration; plugins that it names stay.
    """
    if not any(re.match(r"graphframes-connect-spark\d", jar.name) for jar in jars):
        return {}
    named = [name.strip() for name in given.get(RELATION_PLUGINS, "").split(",")]
    return {RELATION_PLUGINS: ",".join(dict.fromkeys([*filter(None, named), GRAPH_PLUGIN]))}


def classic_conf(settings: Settings, jars: Sequence[Path], source: str = "") -> dict[str, str]:
    """Configuration of a Spark in this process, jars included. source: as of `server_conf`."""
    given = {"spark.master": settings.spark.master, "spark.jars": ",".join(map(str, jars))}
    return given | own_jar_conf(jars) | server_conf(settings, source)


def build_classic(conf: dict[str, str], app_name: str) -> SparkSession:
    """A session in this process. The JVM's log level is ERROR: its warnings are about configuration chosen here."""
    # Workers run this Python, which has the packages; without it they take the first python3 on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    start_jvm(conf)
    builder = SparkSession.Builder().appName(app_name)
    for key, value in conf.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def start_jvm(conf: Mapping[str, str]) -> None:
    """Start the JVM of a Spark in this process, unless there is one. A session gives it the rest of the configuration.

    The JVM that PySpark starts together with a session has all of it on its command line, keys of object stores too.
    """
    if SparkContext._gateway is not None:
        return
    name = "PYSPARK_SUBMIT_ARGS"
    before = os.environ.get(name)
    os.environ[name] = f"{shlex.join(submit_options(conf))} {before or 'pyspark-shell'}"
    try:
        with _stdout_to_stderr():
            SparkContext.getSystemProperty("java.home")
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def submit_options(conf: Mapping[str, str]) -> list[str]:
    """What of a configuration spark-submit has to know. No more: everybody on the machine may read a command line."""
    return [part for key in conf if key.startswith(_SUBMITTED) for part in ("--conf", f"{key}={conf[key]}")]


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """A process that is started meanwhile prints where errors go: VACUUM prints a sentence of its own from the JVM
    (Delta 4.4.0), which would be in the midst of a command's JSON."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def build_remote(spark: SparkSettings, conf: dict[str, str]) -> SparkSession:
    """A new client session on the Connect server: its configuration, transaction ids and views are its own."""
    assert spark.remote_url is not None
    with _answering(spark):
        return _configured(SparkSession.Builder().remote(spark.remote_url).create(), conf)


def _configured(session: SparkSession, conf: dict[str, str]) -> SparkSession:
    for key, value in conf.items():
        session.conf.set(key, value)
    return session


@contextmanager
def _answering(spark: SparkSettings) -> Iterator[None]:
    """Raises SparkUnavailable where the server does not answer."""
    try:
        yield
    except Exception as error:
        if "UNAVAILABLE" in str(error) or "failed to connect" in str(error).lower():
            raise SparkUnavailable(str(spark.endpoint), type(error).__name__) from error
        raise


@contextmanager
def spark_session(
    settings: Settings, app_name: str = "engagement-platform", *, reads_only: bool = False, source: str = ""
) -> Iterator[SparkSession]:
    """A session for one run, closed at its end. Raises SparkUnavailable, and what resolving jars raises.

    A process has one Spark of its own: where one is running already, this is another session of it, and it goes on.
    On a Connect server all runs of one app_name use one session after the other (`shared_session`).
    reads_only: for a run that writes no table; it shares nothing and needs no lease on a lake at s3a://. Any other
    raises LakeHeld where another driver has that lease.
    source: URI of what is read beside the lake; a Spark that is started for it can read s3a://.
    """
    # The driver of this process is stopped before its lease is given back.
    with ExitStack() as lease, ExitStack() as opened:
        conf, remote, running = session_conf(settings), settings.spark.remote_url, SparkContext._active_spark_context
        if remote is not None and reads_only:
            session = build_remote(settings.spark, conf)
            opened.callback(session.stop)
        elif remote is not None:
            with _answering(settings.spark):
                session = opened.enter_context(shared_session(settings, app_name, partial(_client, remote)))
                _configured(session, conf)
        elif running is not None:
            session = _configured(SparkSession(running).newSession(), conf)
        else:
            find_java()
            conf = classic_conf(settings, spark_jars(settings, source), source)
            session = build_classic(conf, app_name)
            opened.callback(session.stop)
        if not reads_only:
            lease.enter_context(lake_lease(settings, session, ends=remote is None and running is None))
        yield session


def _client(remote: str, session_id: uuid.UUID) -> SparkSession:
    """A client of the session with this id, which the server begins with its first statement."""
    # Parameters follow `/;`, one after the other.
    parameters = "" if "/;" in remote else "/"
    return SparkSession.Builder().remote(f"{remote.rstrip('/;')}{parameters};session_id={session_id}").create()


def driver_id(session: SparkSession) -> str:
    """The driver of a session; the same for all clients of one Connect server."""
    # Two drivers may begin in the same millisecond, which is all that an id of a local one is made of.
    place = f"{session.conf.get('spark.driver.host', '')}:{session.conf.get('spark.driver.port', '')}"
    return f"{session.conf.get('spark.app.id')} at {place}"


@contextmanager
def lake_lease(settings: Settings, session: SparkSession, *, ends: bool) -> Iterator[None]:
    """Hold the lease on a lake at s3a:// for the driver of a session, where the log store is not safe without.

    ends: the driver ends with the session. Raises LakeHeld.
    """
    lake, stores = settings.lake, settings.stores
    if not lake.startswith("s3a://") or session.conf.get("spark.delta.logStore.s3a.impl", None) in SAFE_LOG_STORES:
        yield
        return
    limits = {"ttl": stores.lake_lease_ttl, "wait": stores.lease_wait}
    with driver_lease.held(lake, driver_id(session), _server_name(settings.spark), **limits, ends=ends):
        yield


def _server_name(spark: SparkSettings) -> str:
    """A Connect server's endpoint, in the lease for all to read; empty for a Spark in this process."""
    url, endpoint = spark.remote_url or "", spark.endpoint or ""
    # A gateway has many servers at one endpoint, and parameters, of which some are secret, tell them apart.
    parameters = url.removeprefix(endpoint).strip("/;")
    return f"{endpoint} ({hashlib.sha256(parameters.encode()).hexdigest()[:12]})" if parameters else endpoint
