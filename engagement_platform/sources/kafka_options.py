"""Translates the settings of a Kafka connection for its two clients: librdkafka, and Kafka's own in Spark.

The results hold secrets: never log them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from engagement_platform.sources.kafka_errors import BrokerUnknown, KafkaRefused

if TYPE_CHECKING:
    from pydantic import SecretStr

    from engagement_platform.settings import KafkaSettings

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
# Names whose values are no secrets and would tear holes into a client's message ("SSL handshake failed").
_SPEAKABLE = ("security.protocol", "sasl.mechanism", "sasl.mechanisms", ".location", ".type", ".algorithm")
_JAAS = "kafka.sasl.jaas.config"
# Has another name in Spark, or no counterpart there: Kafka's own client always verifies certificates.
_TRANSLATED = frozenset(
    {
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "security.protocol",
        "ssl.ca.location",
        "ssl.endpoint.identification.algorithm",
        "enable.ssl.certificate.verification",
    }
)
_CERTIFICATES = ("ssl.ca.pem", "ssl.certificate.", "ssl.key.", "ssl.keystore.")
_PKCS8 = ("-----BEGIN PRIVATE KEY-----", "-----BEGIN ENCRYPTED PRIVATE KEY-----")


def servers(settings: KafkaSettings) -> str:
    """The brokers' addresses. Raises BrokerUnknown where none is set and none runs on this home."""
    if settings.bootstrap_servers is None:
        raise BrokerUnknown
    return settings.bootstrap_servers


def client_options(settings: KafkaSettings) -> dict[str, str | int | float | bool]:
    """Options of confluent-kafka: the brokers, and `security` unchanged. Holds secrets."""
    return {
        # librdkafka writes to stderr by itself otherwise; what matters comes back as errors.
        "log_level": 0,
        **{name: secret.get_secret_value() for name, secret in settings.security.items()},
        "bootstrap.servers": servers(settings),
    }


def spark_options(settings: KafkaSettings) -> dict[str, str]:
    """Connection options of Spark's Kafka reader. Holds secrets."""
    timeout_ms = str(int(settings.timeout.total_seconds() * 1000))
    return {
        # Otherwise a broker that goes away in the middle is noticed after 60 s on the driver, 120 s in a task.
        "kafka.request.timeout.ms": timeout_ms,
        "kafka.default.api.timeout.ms": timeout_ms,
        "kafkaConsumer.pollTimeoutMs": timeout_ms,
        # The planned end is the last stable offset; without this Spark would hand out aborted transactions.
        "kafka.isolation.level": "read_committed",
        # A batch reads up to the end of the topic, where a broker holds a fetch back for 500 ms by default, once for
        # each partition that a task reads: 1,000 messages of four partitions took 1.3 s with that and 0.5 s with this
        # (2 cores, Kafka 4.1.1).
        "kafka.fetch.max.wait.ms": "20",
        **spark_security_options(settings.security, settings.spark_options),
        "kafka.bootstrap.servers": servers(settings),
    }


def spark_security_options(security: Mapping[str, SecretStr], overrides: Mapping[str, SecretStr]) -> dict[str, str]:
    """`security`, in librdkafka's names, as options of Spark's reader (prefix `kafka.`); `overrides` win.

    SASL PLAIN and SCRAM credentials become a JAAS line, ssl.ca.location a trust store, PEM certificate and key of the
    client a key store, read here so that executors need no files. Where `overrides` have kafka.ssl.*, they have all
    certificates. Everything else keeps its name. Raises KafkaRefused for what Spark's client cannot take.
    """
    known = {name: secret.get_secret_value() for name, secret in security.items()}
    forced = {name: secret.get_secret_value() for name, secret in overrides.items()}
    certificates = sorted(name for name in known if name.startswith(_CERTIFICATES))
    plain = {name: value for name, value in known.items() if name not in _TRANSLATED and name not in certificates}
    if "security.protocol" in known:
        # Kafka's own client takes upper case only.
        plain["security.protocol"] = known["security.protocol"].upper()
    algorithm = known.get("ssl.endpoint.identification.algorithm")
    if algorithm is not None:
        plain["ssl.endpoint.identification.algorithm"] = "" if algorithm == "none" else algorithm
    if "ssl.ca.location" in known:
        plain |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": known["ssl.ca.location"]}
    if certificates and not any(name.startswith(("kafka.ssl.keystore.", "kafka.ssl.truststore.")) for name in forced):
        plain |= _stores(known)
    plain |= _sasl(known, forced)
    return {f"kafka.{name}": value for name, value in plain.items()} | forced


def _stores(known: Mapping[str, str]) -> dict[str, str]:
    """Certificates and key as the stores of Kafka's own client, which takes PEM as text."""
    if any(name.startswith("ssl.keystore.") for name in known):
        raise KafkaRefused("Spark's client takes no ssl.keystore.*; set kafka.ssl.* in kafka.spark_options beside it")
    found = {}
    if "ssl.ca.pem" in known:
        found = {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": known["ssl.ca.pem"]}
    certificate, key = _pem(known, "ssl.certificate"), _pem(known, "ssl.key")
    if certificate is None and key is None:
        return found
    if certificate is None or key is None:
        raise KafkaRefused("ssl.certificate.* and ssl.key.* need each other: set both in kafka.security")
    if not any(begin in key for begin in _PKCS8):
        raise KafkaRefused("Spark's client takes keys in PKCS#8 only: convert yours with `openssl pkcs8 -topk8`")
    found |= {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": certificate, "ssl.keystore.key": key}
    return found | {name: known[name] for name in ("ssl.key.password",) if name in known}


def _pem(known: Mapping[str, str], name: str) -> str | None:
    """What NAME.pem holds, or the file at NAME.location; None where neither is set."""
    location = known.get(f"{name}.location")
    if location is None:
        return known.get(f"{name}.pem")
    try:
        return Path(location).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise KafkaRefused(f"{name}.location {location} cannot be read as PEM: {error}") from error


def _sasl(known: Mapping[str, str], forced: Mapping[str, str]) -> dict[str, str]:
    mechanism = known.get("sasl.mechanisms") or known.get("sasl.mechanism")
    found = {"sasl.mechanism": mechanism} if mechanism else {}
    if "sasl.username" not in known or _JAAS in forced:
        return found
    module = _LOGIN_MODULES.get(mechanism or "")
    if module is None:
        raise KafkaRefused(
            "Spark's client needs sasl.mechanism PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512 beside sasl.username, or else "
            f"{_JAAS} in kafka.spark_options"
        )
    username, password = _quoted(known["sasl.username"]), _quoted(known.get("sasl.password", ""))
    return found | {"sasl.jaas.config": f"{module} required username={username} password={password};"}


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def without_secrets(text: str, settings: KafkaSettings) -> str:
    """A client's own words, with the values of `security` and `spark_options` that may be secret struck out."""
    secrets = {
        secret.get_secret_value()
        for name, secret in (*settings.security.items(), *settings.spark_options.items())
        if not name.endswith(_SPEAKABLE)
    }
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
