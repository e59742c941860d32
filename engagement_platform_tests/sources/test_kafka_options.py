"""How one set of security settings is said to both Kafka clients. No broker is needed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr

from engagement_platform.settings import KafkaSettings
from engagement_platform.sources.kafka_errors import KafkaRefused
from engagement_platform.sources.kafka_options import (
    spark_options,
    spark_security_options,
    without_secrets,
)

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


def secrets(**options: str) -> dict[str, SecretStr]:
    return {name.replace("_", "."): SecretStr(value) for name, value in options.items()}


def translated(overrides: dict[str, SecretStr] | None = None, **options: str) -> dict[str, str]:
    return spark_security_options(secrets(**options), overrides or {})


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [("PLAIN", PLAIN_MODULE), ("SCRAM-SHA-256", SCRAM_MODULE), ("SCRAM-SHA-512", SCRAM_MODULE)],
)
@pytest.mark.parametrize("option", ["sasl_mechanism", "sasl_mechanisms"])
def test_sasl_credentials_become_a_jaas_line(mechanism: str, module: str, option: str) -> None:
    options = {option: mechanism, "security_protocol": "sasl_ssl", "sasl_username": "ada", "sasl_password": "pw"}
    assert translated(None, **options) == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": mechanism,
        "kafka.sasl.jaas.config": f'{module} required username="ada" password="pw";',
    }


def test_quotes_and_backslashes_in_a_password_stay_inside_it() -> None:
    line = translated(sasl_mechanism="PLAIN", sasl_username="ada", sasl_password='a"b\\c; x="1')
    assert line["kafka.sasl.jaas.config"].endswith(r'password="a\"b\\c; x=\"1";')


def test_credentials_without_a_known_mechanism_are_refused_unless_the_jaas_line_is_given() -> None:
    with pytest.raises(KafkaRefused, match=r"kafka\.sasl\.jaas\.config") as told:
        translated(sasl_mechanism="OAUTHBEARER", sasl_username="ada", sasl_password="pw-123")
    assert "pw-123" not in str(told.value)
    own = secrets(kafka_sasl_jaas_config="my line")
    assert translated(own, sasl_mechanism="GSSAPI", sasl_username="ada") == {
        "kafka.sasl.mechanism": "GSSAPI",
        "kafka.sasl.jaas.config": "my line",
    }


def test_a_certificate_of_the_broker_becomes_a_trust_store() -> None:
    options = translated(
        security_protocol="SSL",
        ssl_ca_location="/ca.pem",
        ssl_endpoint_identification_algorithm="none",
        enable_ssl_certificate_verification="true",
    )
    assert options == {
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "/ca.pem",
        "kafka.ssl.endpoint.identification.algorithm": "",
    }


KEY = "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\n"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIID\n-----END CERTIFICATE-----\n"


def test_certificate_and_key_of_the_client_become_a_key_store(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text(KEY)
    (tmp_path / "client.pem").write_text(CERTIFICATE)
    options = translated(
        ssl_ca_location="/ca.pem",
        ssl_certificate_location=str(tmp_path / "client.pem"),
        ssl_key_location=str(tmp_path / "key.pem"),
        ssl_key_password="pw",
    )
    store = {
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": CERTIFICATE,
        "kafka.ssl.keystore.key": KEY,
    }
    trust = {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": "/ca.pem"}
    assert options == {**trust, **store, "kafka.ssl.key.password": "pw"}
    trust = {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.certificates": CERTIFICATE}
    assert translated(ssl_ca_pem=CERTIFICATE, ssl_certificate_pem=CERTIFICATE, ssl_key_pem=KEY) == trust | store


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ssl_certificate_pem": CERTIFICATE}, "need each other"),
        ({"ssl_key_pem": KEY}, "need each other"),
        ({"ssl_certificate_pem": CERTIFICATE, "ssl_key_pem": KEY.replace("PRIVATE", "RSA PRIVATE")}, "PKCS#8"),
        ({"ssl_certificate_location": "/none/client.pem", "ssl_key_pem": KEY}, "/none/client.pem cannot be read"),
        ({"ssl_keystore_location": "/mine.p12"}, "spark_options"),
    ],
)
def test_certificates_that_spark_cannot_take_are_refused_unless_it_has_its_own(
    options: dict[str, str], words: str
) -> None:
    with pytest.raises(KafkaRefused, match=words) as refused:
        translated(None, **options)
    assert "MIIE" not in str(refused.value)


@pytest.mark.parametrize("option", ["ssl_certificate_location", "ssl_key_pem", "ssl_keystore_location", "ssl_ca_pem"])
def test_sparks_own_certificates_win(option: str) -> None:
    own = secrets(kafka_ssl_keystore_location="/both.pem")
    assert translated(own, **{option: "/mine"}) == {"kafka.ssl.keystore.location": "/both.pem"}


def test_sparks_own_options_win() -> None:
    own = secrets(kafka_security_protocol="PLAINTEXT", maxOffsetsPerTrigger="5")
    assert translated(own, security_protocol="SSL") == {
        "kafka.security.protocol": "PLAINTEXT",
        "maxOffsetsPerTrigger": "5",
    }


def test_spark_waits_as_long_as_the_settings_say_and_sees_committed_records_only() -> None:
    options = spark_options(KafkaSettings(bootstrap_servers="a:1,b:2", timeout=timedelta(seconds=7)))
    assert options["kafka.bootstrap.servers"] == "a:1,b:2"
    assert options["kafka.isolation.level"] == "read_committed"
    assert options["kafkaConsumer.pollTimeoutMs"] == "7000"


def test_secrets_are_struck_out_of_a_clients_own_words() -> None:
    settings = KafkaSettings(
        bootstrap_servers="a:1",
        security=secrets(sasl_password="hunter2", security_protocol="SSL"),
        spark_options=secrets(kafka_sasl_jaas_config="line with hunter2"),
    )
    said = without_secrets("SSL handshake: hunter2 in 'line with hunter2'", settings)
    assert said == "SSL handshake: *** in '***'"
    assert "hunter2" not in repr(settings)
