"""How brokers, Spark, the stores and the embedded services are reached and set up."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import Path

from pydantic import Field, SecretStr, field_validator

from engagement_platform.settings.section import Duration, Section


class KafkaSettings(Section):
    bootstrap_servers: str | None = None
    """Brokers, host:port, comma separated. Not set: the embedded one, while `engagement-platform up` or `services` runs
    it on this home; otherwise none."""
    engagements_topic: str = "engagements"
    """Topic of engagement events."""
    mutation_requests_topic: str = "mutation-requests"
    """Topic of mutation requests."""
    profile_changes_topic: str = "profile-changes"
    """Topic of changes of profiles."""
    security: dict[str, SecretStr] = Field(default_factory=dict)
    """Client options in librdkafka's names for SASL and TLS, such as security.protocol, sasl.mechanism, sasl.username,
    sasl.password, ssl.ca.location, ssl.certificate.location, ssl.key.location; passed to the Python client and,
    translated, to Spark's. One JSON object in the environment, a table in platform.toml. Values are never printed."""
    spark_options: dict[str, SecretStr] = Field(default_factory=dict)
    """More options for Spark's Kafka reader only, such as kafka.sasl.jaas.config and kafka.ssl.keystore.location; win
    over `security`."""
    timeout: Duration = timedelta(seconds=20)
    """How long a call to the broker may take before the run ends with a sentence that names the broker."""


def _cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "engagement-platform"


_REMOTE = re.compile(r"sc://[^\s/;?#@]+(/;?|/(;[^\s/;?#=]+=[^\s/;?#=]*)+)?")


class SparkSettings(Section):
    remote: SecretStr | None = None
    """Spark Connect endpoint, such as sc://127.0.0.1:15002 or sc://host:443/;token=…, of which host and port are shown
    and the rest never. Set: runs are thin clients of a warm server (5 to 8 s a run). Not set: every run starts Spark in
    its own process (20 to 50 s)."""
    master: str = "local[*]"
    """Spark master of the classic mode; ignored with `remote`."""
    driver_memory: str = "1g"
    """Heap of the driver started here (classic, embedded server)."""
    default_parallelism: int = Field(2, ge=1)
    """spark.default.parallelism. 2 suits two cores; 400 is what the source's cluster settled on."""
    shuffle_partitions: int = Field(2, ge=1)
    """spark.sql.shuffle.partitions, the one DataFrames obey. Near the number of cores."""
    driver_max_result_size: str = "1g"
    """spark.driver.maxResultSize."""
    conf: dict[str, SecretStr] = Field(default_factory=dict)
    """More configuration of a Spark that is started here. Values are never printed. On the command line of its process,
    which every user of the machine can read, are those that `spark-submit` needs: spark.driver.*, spark.jars*,
    spark.files, spark.archives, spark.submit.*, spark.yarn.*, spark.kubernetes.*, spark.hadoop.fs.permissions.*."""
    jar_cache: Path = Field(default_factory=lambda: _cache_home() / "jars")
    """Where the resolved jars are kept between starts."""
    jar_folder: Path | None = None
    """Folder of more jars for a Spark that is started here, for what no mirror has; all *.jar in it are added, and of
    two with one name these count."""

    @property
    def remote_url(self) -> str | None:
        """`remote` as Spark's client takes it; may hold a token, so never log it."""
        return None if self.remote is None else self.remote.get_secret_value()

    @property
    def endpoint(self) -> str | None:
        """What may be shown of `remote`: its host and port."""
        return None if self.remote_url is None else self.remote_url.partition(";")[0].rstrip("/")

    @property
    def own_conf(self) -> dict[str, str]:
        """`conf` as Spark takes it; may hold keys and passwords, so never log it."""
        return {key: value.get_secret_value() for key, value in self.conf.items()}

    @field_validator("remote")
    @classmethod
    def _is_readable(cls, remote: SecretStr | None) -> SecretStr | None:
        # Spark's client refuses what it cannot read with all of it in the error.
        if remote is not None and not _REMOTE.fullmatch(remote.get_secret_value()):
            raise ValueError("sc://host:port is needed, or sc://host:port/;name=value;…, with % codes in values")
        return remote


class StoreSettings(Section):
    url: SecretStr | None = None
    """SQLAlchemy URL of the checkpoint, batch metadata and lease stores. Not set: SQLite in <home>/stores.db.
    Production: postgresql+psycopg2://user:password@host/database."""
    lease_ttl: timedelta = Field(timedelta(seconds=60), ge=timedelta(seconds=1))
    """A lease without a heartbeat for this long may be taken over. A holder whose process is gone from the same machine
    is replaced at once."""
    lease_wait: Duration = timedelta(minutes=5)
    """How long a run waits for another holder before it ends and says who holds the lease. Longer than `lease_ttl`, so
    that a crashed holder is outlived."""
    keep_batches: timedelta = Field(timedelta(days=90), ge=timedelta(0), le=timedelta(days=36_500))
    """How long the stores keep a row for each batch that succeeded; the job `remove_old_runs` removes the others every
    night and keeps what they come to. Days before that cannot be read again, tables cannot be restored to them, and
    `verify` looks for messages from then on only. Never less than `maintenance.rollback_window`."""
    lake_lease_ttl: Duration = timedelta(minutes=5)
    """Another Spark driver may take over a lake at s3a:// that no session of the one before has used for this long.
    Longer than a single write: one whose client was killed goes on in the Connect server."""


class TrafficSettings(Section):
    rate: float = Field(50.0, ge=0)
    """Sample engagements a second that `up` produces; 0 is off."""
    seed: int = 20201120
    """Seed of the generator; the same seed makes the same messages."""
    organizations: int = Field(48, ge=1)
    """Organizations of the traffic model, 90 % of them small."""
    persons_per_organization: int = Field(200, ge=1)
    """Persons in a small organization."""
    mutation_share: float = Field(0.2, ge=0, le=1)
    """Mutation requests per engagement."""
    update_share: float = Field(0.02, ge=0, le=1)
    """Share of engagements sent again, next version."""
    late_share: float = Field(0.02, ge=0, le=1)
    """Share of engagements that are days late."""
    duplicate_share: float = Field(0.01, ge=0, le=1)
    """Share of messages sent twice."""
    profile_share: float = Field(0.2, ge=0, le=1)
    """Changes of profiles per engagement; in `up` and `produce --follow`."""
    profiles: int = Field(5000, ge=1)
    """Profiles that exist at a time."""
    page_view_share: float = Field(0.1, ge=0, le=1)
    """Page views per engagement; in `up` and `produce --follow`."""
    game_rate: float = Field(20.0, ge=0)
    """Sample events a second that games of `up` and `services` post to the ingest server; 0 is off."""
    bad_share: float = Field(0.001, ge=0, le=1)
    """Share of messages that must be quarantined."""


class EmbeddedSettings(Section):
    kafka_port: int = Field(19092, ge=1, le=65535)
    """Port of the embedded broker on 127.0.0.1."""
    kafka_controller_port: int = Field(19093, ge=1, le=65535)
    """Port of the embedded broker's KRaft controller."""
    kafka_partitions: int = Field(4, ge=1)
    """Partitions of each topic made here."""
    connect_port: int = Field(15002, ge=1, le=65535)
    """Port of the embedded Spark Connect server."""
    aws_port: int = Field(15566, ge=1, le=65535)
    """Port of the emulator of S3, SNS and SQS."""
    ingest_port: int = Field(18088, ge=1, le=65535)
    """Port of the ingest server, which delivers into the emulator."""
    ui_port: int = Field(3000, ge=1, le=65535)
    """Port of the Dagster UI."""
    code_port: int = Field(4266, ge=1, le=65535)
    """Port of the Dagster code server."""
