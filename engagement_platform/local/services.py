"""Which services one machine runs for the platform, where they listen, and the settings their clients need.

The broker, Spark, the emulator of AWS and the ingest server are `kafka`, `connect`, `aws` and `ingest`; Dagster is
`orchestrator`.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import SecretStr

from engagement_platform.lake.jars import resolve_jars
from engagement_platform.local import ingest
from engagement_platform.local.aws import BUCKET, EmbeddedAws, is_installed
from engagement_platform.local.connect import connect_child
from engagement_platform.local.games import GAMES
from engagement_platform.local.kafka import EmbeddedKafka
from engagement_platform.local.ports import LOCALHOST
from engagement_platform.local.process import Child
from engagement_platform.pipelines.declarations.declared import Declarations, declarations
from engagement_platform.settings import BROKER_RECORD, ENV_PREFIX, Section, Settings


@dataclass(frozen=True)
class Services:
    """What is run here, and the settings as every client of it must see them."""

    settings: Settings
    kafka: bool
    connect: bool
    aws: bool
    """S3, SNS and SQS for game events, and the ingest server before them."""

    @property
    def needs(self) -> dict[str, str]:
        """The ports that will be listened on: setting of `embedded` to what will be there."""
        kafka = {"kafka_port": "Kafka", "kafka_controller_port": "Kafka's controller"}
        return {
            **(kafka if self.kafka else {}),
            **({"connect_port": "Spark Connect"} if self.connect else {}),
            **({"aws_port": "S3 and SQS", "ingest_port": "ingest server"} if self.aws else {}),
        }

    def children(self) -> list[Child]:
        """The processes to supervise. Resolves jars and formats the broker's folder when that was not done yet."""
        children = []
        settings, home = self.settings, self.settings.home
        declared = declarations(settings)
        record = home / BROKER_RECORD
        record.unlink(missing_ok=True)
        # Spark first: it takes longest to come up.
        if self.connect:
            # Its workers fetch the objects of games, and boto3 looks for address and keys in the environment only.
            children.append(connect_child(settings, home / "spark", self.aws_variables))
        if self.kafka:
            ports = settings.embedded
            jars = resolve_jars("kafka", settings.spark.jar_cache)
            broker = EmbeddedKafka(home / "kafka", ports.kafka_port, ports.kafka_controller_port, jars)
            children.append(broker.child(dict.fromkeys(topics(settings, declared), ports.kafka_partitions)))
            record.write_text(broker.bootstrap_servers)
        if self.aws:
            queues = [(feed.own["bucket"], feed.own["queue_url"]) for feed in declared.feeds]
            children.append(EmbeddedAws(settings.embedded.aws_port, queues).child())
        return children

    def late_children(self) -> list[Child]:
        """Those that nothing else waits for, so that they need not slow down its start. Makes the sample API keys.

        Raises StoresUnavailable.
        """
        if not self.aws:
            return []
        ingest.make_sample_keys(self.settings, GAMES)
        return [ingest.ingest_child(self.settings, self.variables)]

    @property
    def aws_variables(self) -> dict[str, str]:
        """What clients of S3 and SQS read; nothing where those are not here."""
        return EmbeddedAws(self.settings.embedded.aws_port).variables if self.aws else {}

    @property
    def variables(self) -> dict[str, str]:
        """The settings as environment variables, for children and for programs started elsewhere. No secrets but
        a token for a Spark that is not run here."""
        settings = self.settings
        named = {
            "HOME": str(settings.home),
            "LAKE_URI": settings.lake,
            "KAFKA__BOOTSTRAP_SERVERS": settings.kafka.bootstrap_servers,
            "SPARK__REMOTE": settings.spark.remote_url,
            "DEFS_FOLDER": str(settings.defs_folder.expanduser().absolute()) if settings.defs_folder else None,
            "GAMES__BUCKET": settings.games.bucket,
            "GAMES__QUEUE_URL": settings.games.queue_url,
        }
        return {f"{ENV_PREFIX}{name}": value for name, value in named.items() if value is not None} | self.aws_variables

    @property
    def dagster_variables(self) -> dict[str, str]:
        """`variables`, and what Dagster does by itself: with games here, it counts and judges their events."""
        live_ops, dagster = self.settings.live_ops, self.settings.dagster
        ours = {
            "LIVE_OPS__AUTOMATIC": _given(live_ops, "automatic", self.aws),
            "DAGSTER__AUTOMATION": _given(dagster, "automation", "running"),
            "DAGSTER__SHARED_DRAIN": _given(dagster, "shared_drain", True),
        }
        return {**self.variables, **{f"{ENV_PREFIX}{name}": value for name, value in ours.items()}}


def _given(section: Section, name: str, otherwise: object) -> str:
    """The setting as it was set, or as it is here where nobody set it."""
    return str(getattr(section, name) if name in section.model_fields_set else otherwise).lower()


def topics(settings: Settings, declared: Declarations) -> list[str]:
    """The topics that the pipelines which are on read, and those of declared tables."""
    on, names = settings.pipelines, settings.kafka
    found = [*declared.topics]
    found += [names.engagements_topic, names.mutation_requests_topic] if on.engagements else []
    found += [names.profile_changes_topic] if on.profiles else []
    found += [settings.page_views.topic] if on.page_views or declared.page_views else []
    return found


def all_services(settings: Settings) -> Services:
    """Broker and Spark server both run here, whatever the settings point at now; S3 and SQS where they can."""
    return _services(settings, kafka=True, connect=True)


def missing_services(settings: Settings) -> Services:
    """Only what the settings do not name runs here: bootstrap_servers and spark.remote may name services elsewhere."""
    ours, named, remote = all_services(settings).settings, settings.kafka.bootstrap_servers, settings.spark.remote
    kafka, connect = named in (None, ours.kafka.bootstrap_servers), remote in (None, ours.spark.remote)
    return _services(settings, kafka=kafka, connect=connect)


def _services(settings: Settings, *, kafka: bool, connect: bool) -> Services:
    """S3 and SQS, unless games are off, the settings name a queue, or the extra `games` is not installed.

    Nor where the lake is on an object store: clients of the emulator would look for the tables there.
    """
    ports = settings.embedded
    changed: dict[str, object] = {"home": settings.home.expanduser().absolute()}
    if kafka:
        bootstrap = {"bootstrap_servers": f"{LOCALHOST}:{ports.kafka_port}"}
        changed["kafka"] = settings.kafka.model_copy(update=bootstrap)
    if connect:
        changed["spark"] = settings.spark.model_copy(
            update={"remote": SecretStr(f"sc://{LOCALHOST}:{ports.connect_port}")}
        )
    emulator, games = EmbeddedAws(ports.aws_port), settings.games
    theirs = games.queue_url not in (None, emulator.queue_url) or "://" in settings.lake
    aws = settings.pipelines.games and not theirs and is_installed()
    if aws:
        changed["games"] = games.model_copy(update={"bucket": BUCKET, "queue_url": emulator.queue_url})
    return Services(settings.model_copy(update=changed), kafka, connect, aws)
