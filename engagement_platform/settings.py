"""Every knob of the platform, once: type, default, unit and why.

Values come from `ENGAGEMENT_PLATFORM_*` variables (nested with `__`), then `platform.toml` in the working
directory (or the file that `ENGAGEMENT_PLATFORM_CONFIG` names), then the defaults here, which run everything
on one machine. `docs/settings.md` is generated from these classes; long ones are in `sections` and `alert_sections`.
Nothing here opens, starts or connects.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, get_args

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from engagement_platform.alert_sections import AlertingSettings, LiveOpsSettings
from engagement_platform.ingest_sections import IngestServerSettings, PiiSettings
from engagement_platform.pipeline_sections import PageViewsSettings, PipelinesSettings
from engagement_platform.sections import (
    ConsumerSettings,
    GamesSettings,
    HealthSettings,
    MaintenanceSettings,
    MergeOnReadSettings,
    RematerializeSettings,
    ReplicaSettings,
    Section,
)

ENV_PREFIX = "ENGAGEMENT_PLATFORM_"

LayoutScheme = Literal["organization", "organization_date", "liquid"]
ApplyStrategy = Literal["auto", "merge", "deletion_vectors", "overwrite"]


def _data_home() -> Path:
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "engagement-platform"


def _cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "engagement-platform"


class KafkaSettings(Section):
    bootstrap_servers: str = Field(
        default="127.0.0.1:19092", description="Brokers, host:port, comma separated. The default is the embedded one."
    )
    engagements_topic: str = Field(default="engagements", description="Topic of engagement events.")
    mutation_requests_topic: str = Field(default="mutation-requests", description="Topic of mutation requests.")
    profile_changes_topic: str = Field(default="profile-changes", description="Topic of changes of profiles.")
    security: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="Client options in librdkafka's names for SASL and TLS, such as security.protocol, sasl.mechanism, "
        "sasl.username, sasl.password, ssl.ca.location; passed to both the Python and the Spark client, translated "
        "where they differ. One JSON object in the environment, a table in platform.toml. Values are never printed.",
    )
    spark_options: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="More options for Spark's Kafka reader only, such as kafka.sasl.jaas.config; win over `security`.",
    )
    timeout: timedelta = Field(
        default=timedelta(seconds=20),
        description="How long a call to the broker may take before the run ends with a sentence that names the broker.",
    )


class SparkSettings(Section):
    remote: str | None = Field(
        default=None,
        description="Spark Connect endpoint, such as sc://127.0.0.1:15002. Set: runs are thin clients of a warm server "
        "(5 to 8 s a run). Not set: every run starts Spark in its own process (20 to 50 s).",
    )
    master: str = Field(default="local[*]", description="Spark master of the classic mode; ignored with `remote`.")
    driver_memory: str = Field(default="1g", description="Heap of the driver started here (classic, embedded server).")
    default_parallelism: int = Field(
        default=2,
        ge=1,
        description="spark.default.parallelism. 2 suits two cores; 400 is what the source's cluster settled on.",
    )
    shuffle_partitions: int = Field(
        default=2,
        ge=1,
        description="spark.sql.shuffle.partitions, the one DataFrames obey. Near the number of cores.",
    )
    driver_max_result_size: str = Field(default="1g", description="spark.driver.maxResultSize.")
    conf: dict[str, str] = Field(
        default_factory=dict, description="More configuration of a Spark that is started here."
    )
    jar_cache: Path = Field(
        default_factory=lambda: _cache_home() / "jars", description="Where the resolved jars are kept between starts."
    )
    jar_folder: Path | None = Field(
        default=None,
        description="Folder of more jars for a Spark that is started here, for what no mirror has; all *.jar in it are "
        "added, and of two with one name these count.",
    )


class StoreSettings(Section):
    url: SecretStr | None = Field(
        default=None,
        description="SQLAlchemy URL of the checkpoint, batch metadata and lease stores. Not set: SQLite in "
        "<home>/stores.db. Production: postgresql+psycopg2://user:password@host/database.",
    )
    lease_ttl: timedelta = Field(
        default=timedelta(seconds=60),
        description="A lease without a heartbeat for this long may be taken over. A holder whose process is gone from "
        "the same machine is replaced at once.",
    )
    lease_wait: timedelta = Field(
        default=timedelta(minutes=5),
        description="How long a run waits for another holder before it ends and says who holds the lease. Longer than "
        "`lease_ttl`, so that a crashed holder is outlived.",
    )
    lake_lease_ttl: timedelta = Field(
        default=timedelta(minutes=5),
        description="Another Spark driver may take over a lake at s3a:// that no session of the one before has used "
        "for this long. Longer than a single write: one whose client was killed goes on in the Connect server.",
    )


class BatchSettings(Section):
    max_records: int = Field(
        default=200_000,
        ge=1,
        description="Most messages in one batch. Above it the backlog becomes more batches; memory and time to redo "
        "after a crash grow with it, while the fixed cost of a batch (5 to 8 s on 2 cores) is paid less often.",
    )
    max_bytes: int = Field(
        default=256 * 1024 * 1024,
        ge=1,
        description="Most message bytes in one batch, estimated from the sizes of the messages before it.",
    )


class DrainSettings(Section):
    idle_timeout: timedelta = Field(
        default=timedelta(seconds=20),
        description="How long a run watches an idle source before it ends. A new run costs 8 to 11 s, so a timeout "
        "much shorter than the pause between bursts pays that again and again.",
    )
    poll: timedelta = Field(default=timedelta(seconds=1), description="How often an idle run asks for new messages.")
    min_batch_interval: timedelta = Field(
        default=timedelta(seconds=10),
        description="A batch of a run in Dagster begins at the earliest this long after the one before, unless that "
        "one was full, and rests at least as long as that one took. A batch of 200 rows costs nearly what one of "
        "20,000 does, so without it a quiet topic takes the machine from a busy one: seen were 23 batches of requests "
        "beside 5 of engagements (2 cores).",
    )
    max_duration: timedelta = Field(
        default=timedelta(minutes=10),
        description="A run ends after this long even when more is waiting, so that runs stay small enough to read "
        "in the UI; the sensor starts the next one. It ends after a batch, too, when a run that somebody launched "
        "waits in the queue for its pool, such as a backfill.",
    )


MessageField = Literal[
    "attributes", "channel", "engagement_date_from", "engagement_date_to", "engagement_id", "engagement_ts",
    "execution_ts", "from_id", "name", "operation", "organization_id", "person_id", "person_name", "request_id",
    "subject", "to_id", "type", "version",
]  # fmt: skip
"""Fields of engagements and of mutation requests."""


class DecodingSettings(Section):
    max_bytes: int = Field(default=1024 * 1024, ge=2, description="Larger messages are quarantined as too_large.")
    max_depth: int = Field(default=32, ge=1, le=200, description="Deeper nested messages are quarantined as too_deep.")
    max_id_length: int = Field(default=256, ge=1, description="Longest id, in Unicode code points.")
    earliest: datetime = Field(
        default=datetime(2000, 1, 1, tzinfo=UTC), description="Times before it are quarantined as time_out_of_range."
    )
    max_ahead: timedelta = Field(
        default=timedelta(days=1), description="Times further ahead of ingestion are quarantined as time_out_of_range."
    )
    unknown_fields: Literal["ignore", "quarantine"] = Field(
        default="ignore", description="What happens to a message with fields nobody declared: `ignore` counts them."
    )
    aliases: dict[str, MessageField] = Field(
        default={},
        description='How producers spell fields of engagements and mutation requests otherwise, such as {"OrgId": '
        '"organization_id"}. A message that has both goes to quarantine as duplicate_key.',
    )

    @field_validator("aliases")
    @classmethod
    def _no_field_is_an_alias(cls, aliases: dict[str, MessageField]) -> dict[str, MessageField]:
        if fields := sorted(aliases.keys() & set(get_args(MessageField))):
            raise ValueError(f"{', '.join(fields)}: a field of engagements or requests cannot be another spelling")
        return aliases


class LayoutSettings(Section):
    scheme: LayoutScheme = Field(
        default="liquid",
        description="How the Data Table is laid out: `organization` (partitioned by organization), "
        "`organization_date` (partitioned by both: many small files) or `liquid`. A table that has another one "
        "is given this one by `engagement-platform migrate`.",
    )
    auto_compact: bool = Field(
        default=True,
        description="Compact a partition after a write that left it with many small files: Spark's own auto compaction "
        "(spark.databricks.delta.autoCompact.enabled), and the same for commits through delta-rs.",
    )
    auto_compact_min_files: int = Field(
        default=50, ge=2, description="Small files in one partition that start an auto compaction."
    )
    optimize_write: bool = Field(
        default=True,
        description="Both keys for optimized writes (autoOptimize.optimizeWrite, optimizeWrite.enabled): one task "
        "writes a partition.",
    )
    evolve: bool = Field(
        default=False,
        description="Add columns that a contract has and the table lacks. Any other difference always stops the job.",
    )


class MutationSettings(Section):
    apply: ApplyStrategy = Field(
        default="auto",
        description="How `rematerialize-aliases` moves what is pending into the Data Table: `merge` (copy on write), "
        "`deletion_vectors` (the same, rows marked instead of files rewritten), `overwrite` (the whole table) or "
        "`auto` (overwrite where half of the rows change, otherwise merge).",
    )
    max_pending: timedelta = Field(
        default=timedelta(minutes=10),
        description="How long a change may wait before it is moved into the Data Table; the view shows it at once.",
    )
    max_edges_per_group: int = Field(
        default=200_000,
        ge=1,
        description="Requests that one task follows. An organization with more is split into connected components by "
        "GraphFrames first.",
    )
    max_lateness: timedelta = Field(
        default=timedelta(days=7),
        description="A request whose execution_ts is further back than this when it was produced (its Kafka timestamp) "
        "goes to quarantine as `too_late`; when it is read plays no part. Deleted rows are kept hidden until every "
        "request that may bring them back was read.",
    )
    max_disorder: timedelta = Field(
        default=timedelta(days=1),
        ge=timedelta(0),
        description="How much older a request's Kafka timestamp may be than the record before it on its partition, or "
        "than the moment at which the broker gets it: clocks of producers, retries, spools, mirrors that keep the "
        "original time. Deleted rows are purged so much later, and a request that is held back for longer may come too "
        "late to bring one back.",
    )


class TrafficSettings(Section):
    rate: float = Field(default=50.0, ge=0, description="Sample engagements a second that `up` produces; 0 is off.")
    seed: int = Field(default=20201120, description="Seed of the generator; the same seed makes the same messages.")
    organizations: int = Field(default=48, ge=1, description="Organizations of the traffic model, 90 % of them small.")
    persons_per_organization: int = Field(default=200, ge=1, description="Persons in a small organization.")
    mutation_share: float = Field(default=0.2, ge=0, le=1, description="Mutation requests per engagement.")
    update_share: float = Field(default=0.02, ge=0, le=1, description="Share of engagements sent again, next version.")
    late_share: float = Field(default=0.02, ge=0, le=1, description="Share of engagements that are days late.")
    duplicate_share: float = Field(default=0.01, ge=0, le=1, description="Share of messages sent twice.")
    profile_share: float = Field(
        default=0.2, ge=0, le=1, description="Changes of profiles per engagement; in `up` and `produce --follow`."
    )
    profiles: int = Field(default=5000, ge=1, description="Profiles that exist at a time.")
    page_view_share: float = Field(
        default=0.1, ge=0, le=1, description="Page views per engagement; in `up` and `produce --follow`."
    )
    game_rate: float = Field(
        default=20.0,
        ge=0,
        description="Sample events a second that games of `up` and `services` post to the ingest server; 0 is off.",
    )
    bad_share: float = Field(default=0.001, ge=0, le=1, description="Share of messages that must be quarantined.")


class EmbeddedSettings(Section):
    kafka_port: int = Field(default=19092, description="Port of the embedded broker on 127.0.0.1.")
    kafka_controller_port: int = Field(default=19093, description="Port of the embedded broker's KRaft controller.")
    kafka_partitions: int = Field(default=4, ge=1, description="Partitions of each topic made here.")
    connect_port: int = Field(default=15002, description="Port of the embedded Spark Connect server.")
    aws_port: int = Field(default=15566, description="Port of the emulator of S3, SNS and SQS.")
    ingest_port: int = Field(default=18088, description="Port of the ingest server, which delivers into the emulator.")
    ui_port: int = Field(default=3000, description="Port of the Dagster UI.")
    code_port: int = Field(default=4266, description="Port of the Dagster code server.")


class QualitySettings(Section):
    freshness: timedelta = Field(
        default=timedelta(minutes=5),
        description="The freshness check fails when the oldest message that waits is older than this.",
    )


class Settings(BaseSettings):
    """All settings. Construct it where a process starts and hand it on; reading it again may read other values."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter="__", extra="ignore", frozen=True, validate_default=True
    )

    home: Path = Field(default_factory=_data_home, description="All local state: stores, broker data, Dagster, lake.")
    lake_uri: str | None = Field(
        default=None, description="Root of the Delta tables: a folder, or s3a://bucket/prefix. Not set: <home>/lake."
    )
    defs_folder: Path | None = Field(
        default=None,
        description="Folder whose `defs.yaml` files, at any depth, declare tables of your own (docs/tutorial.md). They "
        "are part of everything: Dagster, `run`, `status`. Relative to the working directory.",
    )
    kafka: KafkaSettings = Field(default_factory=KafkaSettings)
    spark: SparkSettings = Field(default_factory=SparkSettings)
    stores: StoreSettings = Field(default_factory=StoreSettings)
    batch: BatchSettings = Field(default_factory=BatchSettings)
    drain: DrainSettings = Field(default_factory=DrainSettings)
    decoding: DecodingSettings = Field(default_factory=DecodingSettings)
    layout: LayoutSettings = Field(default_factory=LayoutSettings)
    mutation: MutationSettings = Field(default_factory=MutationSettings)
    merge_on_read: MergeOnReadSettings = Field(default_factory=MergeOnReadSettings)
    rematerialize: RematerializeSettings = Field(default_factory=RematerializeSettings)
    quality: QualitySettings = Field(default_factory=QualitySettings)
    health: HealthSettings = Field(default_factory=HealthSettings)
    maintenance: MaintenanceSettings = Field(default_factory=MaintenanceSettings)
    consumers: ConsumerSettings = Field(default_factory=ConsumerSettings)
    alerting: AlertingSettings = Field(default_factory=AlertingSettings)
    ingest_server: IngestServerSettings = Field(default_factory=IngestServerSettings)
    pii: PiiSettings = Field(default_factory=PiiSettings)
    games: GamesSettings = Field(default_factory=GamesSettings)
    replica: ReplicaSettings = Field(default_factory=ReplicaSettings)
    pipelines: PipelinesSettings = Field(default_factory=PipelinesSettings)
    page_views: PageViewsSettings = Field(default_factory=PageViewsSettings)
    live_ops: LiveOpsSettings = Field(default_factory=LiveOpsSettings)
    traffic: TrafficSettings = Field(default_factory=TrafficSettings)
    embedded: EmbeddedSettings = Field(default_factory=EmbeddedSettings)

    @property
    def lake(self) -> str:
        """Root of the Delta tables without a trailing slash: an absolute path or a URI with a scheme."""
        uri = self.lake_uri or str(self.home / "lake")
        return (uri if "://" in uri else str(Path(uri).expanduser().absolute())).rstrip("/")

    @property
    def replica_path(self) -> Path:
        """The file of the replica in DuckDB."""
        path = self.replica.path or self.home / "replica" / "engagement.duckdb"
        return path.expanduser().absolute()

    @property
    def store_url(self) -> str:
        """SQLAlchemy URL of the stores; holds a password in production, so never log it."""
        if self.stores.url is not None:
            return self.stores.url.get_secret_value()
        return f"sqlite:///{self.home.expanduser().absolute() / 'stores.db'}"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        toml = Path(os.environ.get(f"{ENV_PREFIX}CONFIG", "platform.toml"))
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml)
