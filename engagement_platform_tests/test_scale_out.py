"""The engagement path with its parts apart: executors as processes of their own, tables on S3, stores in PostgreSQL.

All of it by Spark Connect and the command line, as on one machine; the same rows are expected.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from engagement_platform_tests.conftest import Moto
from engagement_platform_tests.ingestion.test_whole_path import Machine, started
from engagement_platform_tests.microbatch.conftest import PostgresServer, postgres
from engagement_platform_tests.mutation.test_kills import assert_finished_once_after_a_kill, land_before

__all__ = ["postgres"]

pytestmark = [
    pytest.mark.broker,
    pytest.mark.crash,
    pytest.mark.postgres,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
]

BUCKET = "engagement-lake"


@pytest.fixture(scope="module")
def apart(moto: Moto, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    moto.client("s3").create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    settings = {
        "ENGAGEMENT_PLATFORM_LAKE_URI": f"s3a://{BUCKET}/lake",
        "ENGAGEMENT_PLATFORM_STORES__URL": postgres.new_database(),
        "ENGAGEMENT_PLATFORM_SPARK__MASTER": "local-cluster[2,1,1024]",
        "AWS_ENDPOINT_URL": moto.endpoint,
        "AWS_REGION": "eu-central-1",
        "AWS_ALLOW_HTTP": "true",
    }
    with started(tmp_path_factory.mktemp("apart"), settings) as machine:
        yield machine


def test_killed_far_from_its_tables_a_batch_of_mutations_is_finished_once_and_everything_agrees(apart: Machine) -> None:
    land_before(apart, "org-0")
    assert_finished_once_after_a_kill(apart, "org-0", "alias.alias:after", {})
    findings = [json.loads(line) for line in apart.cli("verify", "--identity", "--json").splitlines()]
    assert findings
    assert not any(finding["wrong"] for finding in findings)
    rules = {rule["code"]: rule["state"] for rule in json.loads(apart.cli("doctor", "--guards", "--json"))["guards"]}
    assert rules["one_driver"] == "kept"
