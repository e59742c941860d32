"""A real Kafka broker for one machine: one KRaft node that listens on 127.0.0.1 and keeps its data between starts.

Clients of any broker are `sources/kafka`; what is produced into this one is `traffic`.
"""

from __future__ import annotations

import base64
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Self

from engagement_platform.errors import PlatformError
from engagement_platform.lake.jars import find_java, logging_jars
from engagement_platform.local.ports import LOCALHOST, answers
from engagement_platform.local.process import Child, Supervisor

NAME = "kafka"
LARGEST_MESSAGE_BYTES = 4 * 1024 * 1024
RETENTION_HOURS = 7 * 24
# Seen: formatted in 0.7 s, up in 2.3 s (2 cores, Kafka 4.1.1); the rest is for a machine that is busy starting Spark.
UP_WITHIN_S = 90.0
CALL_S = 20.0

_CONFIG, _LOGGING = "server.properties", "log4j2.properties"
# Kafka says a lot at INFO; of that only the lines that tell a start from a stop are kept.
_LOG4J = """\
status = error
shutdownHook = disable
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %m (%c{1})%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
logger.server.name = kafka.server.KafkaRaftServer
logger.server.level = info
"""


class EmbeddedKafka:
    """The broker in `data_dir`: formatted on first use, its messages kept from start to start.

    jars: what `resolve_jars("kafka", …)` returned. `child()` is for a supervisor shared with other services; as a
    context manager it runs alone.
    """

    def __init__(self, data_dir: Path, port: int, controller_port: int, jars: Sequence[Path]) -> None:
        self.data_dir = data_dir.expanduser().absolute()
        self.port, self.controller_port = port, controller_port
        self.bootstrap_servers = f"{LOCALHOST}:{port}"
        # Code is compiled once, and quickly: starting and stopping took 4.0 s of the processor instead of 7.0 s; with a
        # million messages in batches and 5,000 one by one in between 7.5 s instead of 12 s (2 cores, Java 17). The room
        # for compiled code that goes with that would be 48 MB.
        quick = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=128m", "-XX:+UseSerialGC")
        # In its folder, so that no file has to name that: Kafka takes a comma for the end of a path, and Java reads
        # properties as Latin-1 and paths by the locale.
        there = ("env", f"--chdir={self.data_dir}", "LC_ALL=C.UTF-8")
        logging = f"-Dlog4j2.configurationFile={_LOGGING}"
        # pyspark's log4j first: a newer slf4j than the broker's own, and one with a backend.
        class_path = ":".join(str(jar.absolute()) for jar in (*logging_jars(), *jars))
        java = str(find_java().absolute())
        self._java = (*there, java, "-Xmx256m", *quick, "-XX:+ExitOnOutOfMemoryError", logging, "-cp", class_path)

    def child(self, topics: Mapping[str, int] | None = None) -> Child:
        """The broker as a process to supervise, its folder formatted. Ready once it answers and has the topics.

        Raises PlatformError when the folder cannot be formatted.
        """
        self.data_dir.mkdir(parents=True, exist_ok=True)
        (self.data_dir / _LOGGING).write_text(_LOG4J)
        (self.data_dir / _CONFIG).write_text("".join(f"{key}={value}\n" for key, value in self.properties.items()))
        if not (self.data_dir / "log" / "meta.properties").exists():
            self._format()

        def ready() -> bool:
            if not answers(self.port):
                return False
            try:
                self.create_topics(topics or {})
            except PlatformError as error:
                if isinstance(error.__cause__, TimeoutError):
                    return False
                raise
            return True

        return Child(name=NAME, command=[*self._java, "kafka.Kafka", _CONFIG], ready=ready)

    def _format(self) -> None:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # With an equals sign, since an id may begin with a dash.
        arguments = ("format", f"--cluster-id={cluster}", "--config", _CONFIG, "--ignore-formatted")
        run = subprocess.run(
            [*self._java, "kafka.tools.StorageTool", *arguments], capture_output=True, text=True, check=False
        )
        if run.returncode != 0:
            why = (run.stdout + run.stderr).strip().rpartition("\n")[2]
            raise PlatformError(f"Kafka could not format {self.data_dir}: {why}. Nothing else was touched.")

    def __enter__(self) -> Self:
        self._supervisor = Supervisor(self.data_dir / "logs")
        try:
            self._supervisor.start(self.child())
            self._supervisor.wait_ready(UP_WITHIN_S)
        except BaseException:
            self._supervisor.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._supervisor.stop()

    def create_topics(self, topics: Mapping[str, int]) -> None:
        """Make each topic (name -> partitions) that does not exist; those that do are left as they are.

        Raises PlatformError when the broker refuses.
        """
        if not topics:
            return
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        # Its lines about a broker that is just coming up would land in the middle of the console.
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        wanted = [NewTopic(name, num_partitions=count, replication_factor=1) for name, count in topics.items()]
        for name, made in admin.create_topics(wanted, operation_timeout=CALL_S, request_timeout=CALL_S).items():
            try:
                made.result(timeout=CALL_S)
            except TimeoutError as error:
                raise PlatformError(f"The embedded broker did not make topic {name} within {CALL_S:.0f} s") from error
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise PlatformError(f"The embedded broker did not make topic {name}: {error.args[0]}") from error

    @property
    def properties(self) -> dict[str, str | int]:
        """What its server.properties says."""
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            # Voters by configuration, not in the metadata log, so that another controller port is only a setting.
            "controller.quorum.voters": f"1@{LOCALHOST}:{self.controller_port}",
            "listeners": f"PLAINTEXT://{LOCALHOST}:{self.port},CONTROLLER://{LOCALHOST}:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{LOCALHOST}:{self.port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": "log",
            "auto.create.topics.enable": "false",
            "message.max.bytes": LARGEST_MESSAGE_BYTES,
            "replica.fetch.max.bytes": LARGEST_MESSAGE_BYTES,
            "log.retention.hours": RETENTION_HOURS,
            "log.segment.bytes": 128 * 1024 * 1024,
            # A record that says it is of millions of years ago ends Spark's reader, and so the streams of page views.
            "log.message.timestamp.before.max.ms": int(timedelta(days=365 * 100) / timedelta(milliseconds=1)),
            # Of the heap, at the start: by default 128 MB, for compacted topics, which are consumers' offsets here.
            "log.cleaner.dedupe.buffer.size": 8 * 1024 * 1024,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "share.coordinator.state.topic.num.partitions": 1,
            "group.initial.rebalance.delay.ms": 0,
        }
