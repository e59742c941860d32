"""How the broker is reached."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field, SecretStr

from engagement_platform.settings.section import Section


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
        "sasl.username, sasl.password, ssl.ca.location; passed to the Python client and, translated, to Spark's, whose "
        "client certificates are in spark_options. One JSON object in the environment, a table in platform.toml. "
        "Values are never printed.",
    )
    spark_options: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="More options for Spark's Kafka reader only, such as kafka.sasl.jaas.config and "
        "kafka.ssl.keystore.location; win over `security`.",
    )
    timeout: timedelta = Field(
        default=timedelta(seconds=20),
        description="How long a call to the broker may take before the run ends with a sentence that names the broker.",
    )
