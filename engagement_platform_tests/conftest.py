"""What tests share: real services, each started once per run, on first use. Everything listens on 127.0.0.1."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

import boto3
import hypothesis
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from sqlalchemy import Connection, Engine, event

from engagement_platform.lake.contract import Table
from engagement_platform.lake.jars import JarsUnavailable, own_jar, resolve_jars
from engagement_platform.lake.jars import spark_jars as resolved_spark_jars
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.session import build_classic, classic_conf
from engagement_platform.local.kafka import EmbeddedKafka
from engagement_platform.local.ports import free_ports
from engagement_platform.settings import Settings, SparkSettings

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("house", deadline=None)
hypothesis.settings.load_profile("house")

# As the platform's own processes do: a home folder that others can enter is refused.
os.umask(0o077)
# Partitions do not depend on which test was the first to load definitions, nor on the day.
os.environ["ENGAGEMENT_PLATFORM_DAGSTER__FIRST_DAY"] = "2026-11-01"

CALL_S = 20.0
SPARK_CONF = Path(__file__).parent / "spark_conf"
# A run of two thousand tests loads and compiles more than any job, and most of it runs once or twice.
QUICK_JVM = (
    # Compiling code well took a third of the processor time and saved none.
    "-XX:TieredStopAtLevel=1",
    # With the 48 MB that go with that, the cache of compiled code is full after a minute; from then on it is swept and
    # filled anew. After 400 s of processor time of a run of all tests, sweeping had taken 80 s of them and 120,000
    # methods had been compiled; with room enough it takes none.
    "-XX:ReservedCodeCacheSize=400m",
    # Each time that classes outgrow what was set aside for them, all of the heap is collected; they end at 200 MB.
    "-XX:MetaspaceSize=400m",
    # Two workers share two cores: what a collector does beside the program takes the other one's time. The default one
    # had taken 60 s of those 400.
    "-XX:+UseSerialGC",
    "-Xms1g",
)


class Broker:
    """A running broker, with what tests need to do to it."""

    def __init__(self, kafka: EmbeddedKafka) -> None:
        self._kafka = kafka
        self.bootstrap_servers = kafka.bootstrap_servers

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Make a topic that does not exist. It keeps records of any age: retention goes by their timestamps."""
        self._kafka.create_topics({name: partitions})
        self._configure(name, "retention.ms", -1)

    def accept_any_timestamp(self, topic: str) -> None:
        """As brokers do before Kafka 4.0."""
        for side in ("before", "after"):
            self._configure(topic, f"message.timestamp.{side}.max.ms", 2**63 - 1)

    def _configure(self, topic: str, name: str, value: int) -> None:
        from confluent_kafka.admin import (  # type: ignore[attr-defined]
            AdminClient,
            AlterConfigOpType,
            ConfigEntry,
            ConfigResource,
            ResourceType,
        )

        entry = ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        admin.incremental_alter_configs([resource])[resource].result(timeout=CALL_S)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and return when the broker has forgotten it."""
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        admin.delete_topics([name], operation_timeout=CALL_S)[name].result(timeout=CALL_S)

    def produce(
        self,
        topic: str,
        messages: Sequence[tuple[int | None, bytes | None, bytes | None]],
        produced: datetime | int | None = None,
    ) -> None:
        """Write (partition or None, key, value) in order; return when the broker has all of them.

        produced: their Kafka timestamp, at most an hour ahead of the broker's clock, or whatever number of milliseconds
        the topic takes; None: now.
        """
        from confluent_kafka import KafkaError, Message, Producer

        failed: list[str] = []

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                failed.append(str(error))

        producer = Producer({"bootstrap.servers": self.bootstrap_servers, "acks": "all"})
        for partition, key, value in messages:
            to = -1 if partition is None else partition
            timestamp = int(produced.timestamp() * 1000) if isinstance(produced, datetime) else produced or 0
            producer.produce(topic, value, key, to, on_delivery=delivered, timestamp=timestamp)
            producer.poll(0)
        assert producer.flush(CALL_S) == 0, f"messages to {topic} were not delivered within {CALL_S} s"
        assert not failed, f"the broker refused messages to {topic}: {failed[0]}"


@dataclass(frozen=True)
class Moto:
    """A running moto server and the log of every request that anybody made."""

    endpoint: str
    log: Path

    def client(self, service: str) -> Any:
        """A client of boto3."""
        return boto3.client(service, endpoint_url=self.endpoint)

    def requests(self, method: str, path: str) -> int:
        """How many requests there were with a path that begins so; their queries included."""
        return self.log.read_text().count(f'"{method} {path}')


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that start Spark, brokers or processes come first, those with most such tests before the others.

    Workers take files in this order (`make test` says --no-loadscope-reorder), so what they end with takes seconds and
    neither waits long for the other. By the number of tests alone, files with one test of a minute came last.
    """
    heavy: Counter[Path] = Counter()
    for item in items:
        starts = {"spark", "broker", "moto"} & {*getattr(item, "fixturenames", ())}
        marked = any(item.get_closest_marker(name) for name in ("broker", "crash"))
        heavy[item.path] += bool(starts) or marked
    items.sort(key=lambda item: -heavy[item.path])


@contextmanager
def max_result_size(spark: SparkSession, size: str) -> Iterator[None]:
    """Let Spark hand out no more bytes than this for one query; in classic mode the context's own settings say so."""
    conf: Any = spark.sparkContext._jsc.sc().conf()
    before = conf.get("spark.driver.maxResultSize")
    conf.set("spark.driver.maxResultSize", size)
    try:
        yield
    finally:
        conf.set("spark.driver.maxResultSize", before)


@pytest.fixture(scope="session")
def kafka_jars() -> list[Path]:
    """The broker's jars, from the cache that `make setup` fills."""
    return resolve_jars("kafka", SparkSettings().jar_cache)


@pytest.fixture(scope="session")
def spark_jars() -> list[Path]:
    """The jars Spark needs beside pyspark's, from the cache that `make setup` fills."""
    return resolve_jars("spark", SparkSettings().jar_cache)


@pytest.fixture(scope="session")
def graph_jars() -> list[Path]:
    """Spark's jars and GraphFrames, or nothing where no mirror that is reached has it, nor the caller's folder."""
    try:
        return spark_jars_with_graphframes()
    except JarsUnavailable:
        return []


def spark_jars_with_graphframes() -> list[Path]:
    """GraphFrames from a mirror, or from the folder that ENGAGEMENT_PLATFORM_SPARK__JAR_FOLDER names."""
    given = SparkSettings(jar_folder=Settings().spark.jar_folder)
    if given.jar_folder is None:
        resolve_jars("graph", given.jar_cache)
    return resolved_spark_jars(Settings(lake_uri=None, spark=given))


def skip_without_graphframes() -> None:
    """Skips, with the reason, where GraphFrames cannot be had."""
    if (why := without_graphframes()) is not None:
        pytest.skip(why)


def without_graphframes() -> str | None:
    """Why GraphFrames cannot be had; None where it can."""
    try:
        spark_jars_with_graphframes()
    except JarsUnavailable as unavailable:
        return str(unavailable)
    return None


@pytest.fixture(scope="session")
def broker(kafka_jars: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One Kafka broker for the whole run; tests keep apart by topic."""
    port, controller_port = free_ports(2)
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka"), port, controller_port, kafka_jars) as kafka:
        yield Broker(kafka)


@pytest.fixture(scope="session")
def spark(
    spark_jars: list[Path], graph_jars: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """One classic Spark session for the whole run, configured as the platform configures its own."""
    warehouse = {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    # A log of a few entries takes one task: each task makes and compiles code for all that an entry may hold.
    quickly = {"spark.databricks.delta.snapshotPartitions": "1"}
    settings = Settings(spark=SparkSettings(conf={**warehouse, **quickly}))
    quick = {"spark.driver.extraJavaOptions": " ".join(QUICK_JVM), "spark.driver.memory": "2g"}
    jars = graph_jars or [*spark_jars, own_jar(settings.spark.jar_cache, spark_jars)]
    session = build_classic({**classic_conf(settings, jars), **quick}, "tests")
    yield session
    session.stop()


@pytest.fixture(scope="session", autouse=True)
def no_real_account() -> Iterator[None]:
    """Credentials that open nothing; before Spark is started, since its workers get what it was started with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
        patch.delenv("AWS_PROFILE", raising=False)
        yield


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """What makes the platform believe that a package is not installed."""

    def hide(package: str) -> None:
        def found(module: str) -> ModuleSpec | None:
            return None if module == package else find_spec(module)

        monkeypatch.setattr("engagement_platform.errors.find_spec", found)

    return hide


@pytest.fixture(scope="session", autouse=True)
def light_spark() -> Iterator[None]:
    """Every Spark that a test starts, in whatever process, is configured for tables of a few rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_CONF_DIR", str(SPARK_CONF))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Stores of this process do not wait until each commit has reached the disk: that is for when the power goes.

    A transaction takes 0.8 ms instead of 8 ms where the disk is busy, and a batch has dozens. Processes that are killed
    keep what they wrote all the same.
    """

    def unsynchronized(connection: Connection) -> None:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA synchronous=OFF")

    event.listen(Engine, "begin", unsynchronized)
    yield
    event.remove(Engine, "begin", unsynchronized)


@pytest.fixture(scope="session", autouse=True)
def tables_made_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Spark makes an empty table of each contract once; where this process makes another one, it is a copy of that.

    Spark takes a third of a second for each, and most tests begin with seven of them in a lake of their own.
    """
    create, made, lock = Lake._create, dict[object, Path](), Lock()

    def create_or_copy(lake: Lake, table: Table) -> None:
        uri = Path(lake.uri(table))
        if not uri.is_absolute() or uri.exists():
            create(lake, table)
            return
        contract = (table.columns, table.partitioned_by, table.liquid_by, tuple(sorted(table.properties.items())))
        with lock:
            kept = made.get(contract)
        if kept is not None:
            # What is copied is as old as a table that was made now.
            shutil.copytree(kept, uri, copy_function=shutil.copyfile)
            return
        create(lake, table)
        kept = tmp_path_factory.mktemp("empty") / "table"
        shutil.copytree(uri, kept)
        with lock:
            made[contract] = kept

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lake, "_create", create_or_copy)
        yield


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moto]:
    """One server for S3, SNS and SQS for the whole run; tests keep apart by bucket and queue."""
    (port,) = free_ports(1)
    log = tmp_path_factory.mktemp("moto") / "requests.log"
    with log.open("wb") as written:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        process = subprocess.Popen(command, stdout=written, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + 120
            while not _answers(port):
                assert process.poll() is None, f"moto ended: {log.read_text()[-2000:]}"
                assert time.monotonic() < deadline, "moto did not answer within 120 s"
                time.sleep(0.1)
            yield Moto(f"http://127.0.0.1:{port}", log)
        finally:
            process.terminate()
            process.wait(timeout=20)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module", autouse=True)
def forget_tables() -> Iterator[None]:
    """Drop what Delta keeps of a module's tables: thousands of tables are opened in one run, none of them again."""
    yield
    context = SparkContext._active_spark_context
    if context is not None:
        jvm: Any = context._jvm
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
