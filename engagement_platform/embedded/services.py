"""Which services one machine runs for the platform, where they listen, and the settings their clients need.

The broker, Spark, the emulator of AWS and the ingest server are `kafka`, `connect`, `aws` and `ingest`; Dagster is
`orchestrator`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from engagement_platform.embedded.aws import EmbeddedAws, is_installed, with_aws
from engagement_platform.embedded.connect import connect_child, remote
from engagement_platform.embedded.game_traffic import GAMES
from engagement_platform.embedded.ingest import ingest_child, make_sample_keys
from engagement_platform.embedded.kafka import EmbeddedKafka
from engagement_platform.embedded.ports import LOCALHOST, PortNeed
from engagement_platform.embedded.process import Child
from engagement_platform.lake.jars import resolve_jars
from engagement_platform.pipelines.declarations.declared import declarations
from engagement_platform.settings import ENV_PREFIX, Settings


@dataclass(frozen=True)
class Services:
    """What is run here, and the settings as every client of it must see them."""

    settings: Settings
    kafka: bool
    connect: bool
    aws: bool = False
    """S3, SNS and SQS for game events, and the ingest server before them."""

    @property
    def needs(self) -> list[PortNeed]:
        """The ports that will be listened on."""
        embedded = self.settings.embedded
        kafka = [
            PortNeed(embedded.kafka_port, "kafka_port", "Kafka"),
            PortNeed(embedded.kafka_controller_port, "kafka_controller_port", "Kafka's controller"),
        ]
        aws = [
            PortNeed(embedded.aws_port, "aws_port", "S3 and SQS"),
            PortNeed(embedded.ingest_port, "ingest_port", "ingest server"),
        ]
        return [
            *(kafka if self.kafka else []),
            *([PortNeed(embedded.connect_port, "connect_port", "Spark Connect")] if self.connect else []),
            *(aws if self.aws else []),
        ]

    def children(self) -> list[Child]:
        """The processes to supervise. Resolves jars and formats the broker's folder when that was not done yet."""
        children = []
        settings, home = self.settings, self.settings.home
        declared = declarations(settings)
        # Spark first: it takes longest to come up.
        if self.connect:
            spark = connect_child(settings, home / "spark")
            # Its workers fetch the objects of games, and boto3 looks for address and keys in the environment only.
            aws = {name: value for name, value in self.variables.items() if name.startswith("AWS_")}
            children.append(replace(spark, env={**spark.env, **aws}))
        if self.kafka:
            ports = settings.embedded
            jars = resolve_jars("kafka", settings.spark.jar_cache)
            broker = EmbeddedKafka(home / "kafka", ports.kafka_port, ports.kafka_controller_port, jars)
            broker.prepare()
            names = settings.kafka
            ours = (names.engagements_topic, names.mutation_requests_topic, names.profile_changes_topic)
            has_views = settings.pipelines.page_views or declared.page_views
            topics = (*ours, *((settings.page_views.topic,) if has_views else ()), *declared.topics)
            children.append(broker.child(dict.fromkeys(topics, ports.kafka_partitions)))
        if self.aws:
            queues = tuple((str(feed.bucket), str(feed.queue_url)) for feed in declared.feeds)
            children.append(EmbeddedAws(settings.embedded.aws_port, queues).child())
        return children

    def late_children(self) -> list[Child]:
        """Those that nothing else waits for, so that they need not slow down its start. Makes the sample API keys.

        Raises StoresUnavailable.
        """
        if not self.aws:
            return []
        make_sample_keys(self.settings, GAMES)
        return [ingest_child(self.settings, self.variables)]

    @property
    def variables(self) -> dict[str, str]:
        """The settings as environment variables, for children and for those who call from elsewhere. No secrets."""
        settings = self.settings
        named = {
            "HOME": str(settings.home),
            "LAKE_URI": settings.lake,
            "KAFKA__BOOTSTRAP_SERVERS": settings.kafka.bootstrap_servers,
            "SPARK__REMOTE": settings.spark.remote,
            "DEFS_FOLDER": str(settings.defs_folder.expanduser().absolute()) if settings.defs_folder else None,
            "GAMES__BUCKET": settings.games.bucket,
            "GAMES__QUEUE_URL": settings.games.queue_url,
        }
        ours = {f"{ENV_PREFIX}{name}": value for name, value in named.items() if value is not None}
        return {**ours, **(EmbeddedAws(settings.embedded.aws_port).variables if self.aws else {})}

    @property
    def dagster_variables(self) -> dict[str, str]:
        """`variables`, and what Dagster does by itself: with games here, it counts and judges their events."""
        live_ops = self.settings.live_ops
        automatic = live_ops.automatic if "automatic" in live_ops.model_fields_set else self.aws
        return {**self.variables, f"{ENV_PREFIX}LIVE_OPS__AUTOMATIC": str(automatic).lower()}


def all_services(settings: Settings) -> Services:
    """Broker and Spark server both run here, whatever the settings point at now; S3 and SQS where they can."""
    home = settings.home.expanduser().absolute()
    bootstrap = f"{LOCALHOST}:{settings.embedded.kafka_port}"
    kafka = settings.kafka.model_copy(update={"bootstrap_servers": bootstrap})
    spark = settings.spark.model_copy(update={"remote": remote(settings)})
    made = settings.model_copy(update={"home": home, "kafka": kafka, "spark": spark})
    return _with_aws(Services(made, True, True))


def missing_services(settings: Settings) -> Services:
    """Only what the settings do not name runs here: whoever sets bootstrap_servers or spark.remote brings their own."""
    ours = all_services(settings).settings
    own_kafka = "bootstrap_servers" in settings.kafka.model_fields_set and (
        settings.kafka.bootstrap_servers != ours.kafka.bootstrap_servers
    )
    own_spark = settings.spark.remote is not None and settings.spark.remote != ours.spark.remote
    update = {
        "kafka": settings.kafka if own_kafka else ours.kafka,
        "spark": settings.spark if own_spark else ours.spark,
    }
    made = ours.model_copy(update={**update, "games": settings.games})
    return _with_aws(Services(made, kafka=not own_kafka, connect=not own_spark))


def _with_aws(services: Services) -> Services:
    """With S3 and SQS here, unless games are off, the settings name a queue, or moto is not installed.

    Nor where the lake is on an object store: whoever is told of the emulator would look for the tables there.
    """
    settings = services.settings
    aws = EmbeddedAws(settings.embedded.aws_port)
    theirs = settings.games.queue_url not in (None, aws.queue_url)
    if theirs or not settings.pipelines.games or "://" in settings.lake or not is_installed():
        return services
    return replace(services, settings=with_aws(settings, aws), aws=True)


def write_env_file(path: Path, variables: Mapping[str, str]) -> None:
    """Write KEY=VALUE lines; whoever waits for the file sees it whole or not at all."""
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w") as file:
        file.writelines(f"{key}={value}\n" for key, value in variables.items())
    Path(scratch).chmod(0o644)
    Path(scratch).replace(path)
