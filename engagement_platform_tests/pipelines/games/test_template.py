"""The CloudFormation template is one, by the linter of those who run it, and grants nothing that is not needed."""

from __future__ import annotations

import random
import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from engagement_platform.pipelines.games.replay import folder_of
from engagement_platform.settings import ENV_PREFIX, Settings
from engagement_platform_tests.conftest import Moto
from engagement_platform_tests.docs.pages import ROOT

TEMPLATE = ROOT / "docs" / "aws" / "games.yaml"

cfnlint = pytest.importorskip("cfnlint", reason="cfn-lint is not installed; it comes with the extra `dev`")


def loaded() -> dict[str, Any]:
    """The template, with !Ref and its like in their long form."""
    found: Any = cfnlint.decode.cfn_yaml.load(str(TEMPLATE))
    return dict(found)


def test_the_linter_passes_the_template() -> None:
    from cfnlint.api import ManualArgs, lint

    problems = lint(TEMPLATE.read_text(), config=ManualArgs(regions=["eu-central-1"]))
    assert [f"{problem.linenumber}: {problem.message}" for problem in problems] == []


POLICIES = ("ReaderPolicy", "WriterPolicy", "StreamWriterPolicy", "VaultPolicy")


def statements(name: str) -> list[dict[str, Any]]:
    """What a policy, or a role by itself, allows."""
    properties = loaded()["Resources"][name]["Properties"]
    documents = [each["PolicyDocument"] for each in properties.get("Policies", [properties])]
    return [dict(statement) for document in documents for statement in document["Statement"]]


def actions(statement: dict[str, Any]) -> list[str]:
    """Of one statement."""
    found = statement["Action"]
    return [str(found)] if isinstance(found, str) else [str(action) for action in found]


def granted(name: str) -> set[str]:
    """All that a policy allows."""
    return {action for statement in statements(name) for action in actions(statement)}


@pytest.mark.parametrize("name", [*POLICIES, "DeliveryRole"])
def test_no_right_is_for_everything(name: str) -> None:
    for statement in statements(name):
        assert statement["Effect"] == "Allow"
        assert not any("*" in action for action in actions(statement))
        assert "*" not in statement["Resource"]


def test_every_policy_is_looked_at() -> None:
    resources = loaded()["Resources"].items()
    assert {name for name, made in resources if made["Type"] == "AWS::IAM::ManagedPolicy"} == set(POLICIES)
    assert {name for name, made in resources if made["Type"] == "AWS::IAM::Role"} == {"DeliveryRole"}


def named_in(page: str, *services: str) -> set[str]:
    """The rights of some services that a page names."""
    words = (ROOT / "docs" / page).read_text().split("`")
    return {word for word in words if word.startswith(tuple(f"{service}:" for service in services))} - {"s3:TestEvent"}


def test_the_rights_are_those_that_the_pages_name() -> None:
    assert {right for right in granted("ReaderPolicy") if not right.startswith("kms:")} == named_in(
        "s3_sqs.md", "sqs", "s3"
    )
    assert granted("VaultPolicy") == named_in("pii.md", "kms")
    assert granted("StreamWriterPolicy") == named_in("ingest_server.md", "firehose")
    # And what ends an upload in parts that failed.
    assert granted("WriterPolicy") - {"s3:AbortMultipartUpload"} == named_in("ingest_server.md", "s3")


def test_firehose_writes_where_a_replay_of_the_day_looks_and_errors_elsewhere() -> None:
    made = loaded()["Resources"]
    destination = made["DeliveryStream"]["Properties"]["ExtendedS3DestinationConfiguration"]
    day, settings = date(2026, 11, 5), Settings()
    pattern = {"yyyy": "2026", "MM": "11", "dd": "05", "HH": "10"}
    hour = re.sub("|".join(pattern), lambda found: pattern[found[0]], destination["Prefix"])
    assert re.sub(r"!\{timestamp:(.*)\}", r"\1", hour) == f"{folder_of(day, settings)}10/"
    [announced] = made["RawBucket"]["Properties"]["NotificationConfiguration"]["TopicConfigurations"]
    [rule] = announced["Filter"]["S3Key"]["Rules"]
    assert rule["Value"] == settings.games.prefix
    assert not destination["ErrorOutputPrefix"].startswith(settings.games.prefix)


def test_firehose_takes_the_stream_as_it_is_declared(moto: Moto) -> None:
    declared: Any = loaded()["Resources"]["DeliveryStream"]["Properties"]
    name, s3, firehose = f"raw-{random.getrandbits(40):x}", moto.client("s3"), moto.client("firehose")
    there = {
        "BucketARN": f"arn:aws:s3:::{name}",
        "RoleARN": "arn:aws:iam::123456789012:role/delivery",
        "CloudWatchLoggingOptions": {"Enabled": True, "LogGroupName": "log", "LogStreamName": "stream"},
    }
    destination = {**declared["ExtendedS3DestinationConfiguration"], **there}
    assert destination.keys() == declared["ExtendedS3DestinationConfiguration"].keys()
    s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    firehose.create_delivery_stream(
        DeliveryStreamName=name, **{**declared, "ExtendedS3DestinationConfiguration": destination}
    )
    firehose.put_record_batch(DeliveryStreamName=name, Records=[{"Data": b"{}\n"}])
    assert s3.list_objects_v2(Bucket=name, Prefix=Settings().games.prefix)["KeyCount"] == 1


def test_what_the_outputs_call_settings_are_settings() -> None:
    outputs = loaded()["Outputs"].values()
    named = [each["Description"] for each in outputs if str(each["Description"]).startswith(ENV_PREFIX)]
    assert len(named) == 4
    for name in named:
        section, field = name.removeprefix(ENV_PREFIX).lower().split("__")
        annotation: Any = Settings.model_fields[section].annotation
        assert field in annotation.model_fields
    assert Path(TEMPLATE).name in (ROOT / "docs" / "aws.md").read_text()
