"""Every wrapping that S3's events come in, and everything that is none."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import BotoCoreError
from hypothesis import given, settings
from hypothesis import strategies as st

from engagement_platform.sources.s3_events import Announced, S3File, read_message
from engagement_platform.sources.s3_sqs_aws import client
from engagement_platform.sources.s3_sqs_options import parse_options


def record(key: str = "a/b.json", *, event: str = "ObjectCreated:Put", bucket: str = "raw", **more: Any) -> Any:
    """One of S3's Records; key as S3 writes it, encoded."""
    s3_object = {"key": key, "size": 7, "eTag": "e1", "sequencer": "00A1", **more}
    s3 = {"bucket": {"name": bucket}, "object": s3_object}
    return {"eventSource": "aws:s3", "eventName": event, "eventTime": "2026-11-22T00:00:00.000Z", "s3": s3}


def direct(*records: Any) -> str:
    return json.dumps({"Records": records})


def through_sns(body: str) -> str:
    return json.dumps({"Type": "Notification", "MessageId": "1", "TopicArn": "arn:aws:sns:x:1:t", "Message": body})


def bridged(kind: str = "Object Created", key: str = "a/b.json") -> str:
    s3_object = {"key": key, "size": 7, "etag": "e1", "sequencer": "00A1"}
    detail = {"bucket": {"name": "raw"}, "object": s3_object}
    return json.dumps({"source": "aws.s3", "detail-type": kind, "time": "2026-11-22T00:00:00.000Z", "detail": detail})


THE_FILE = S3File("raw", "a/b.json", None, "e1", 7, "2026-11-22T00:00:00.000Z", "00A1")


@pytest.mark.parametrize(
    "body",
    [direct(record()), through_sns(direct(record())), bridged(), through_sns(bridged())],
    ids=["direct or raw", "SNS", "EventBridge", "EventBridge through SNS"],
)
def test_the_same_object_comes_out_of_every_wrapping(body: str) -> None:
    assert read_message(body) == Announced((THE_FILE,))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ('{"Service":"Amazon S3","Event":"s3:TestEvent","Bucket":"raw"}', "test_event"),
        (through_sns('{"Event":"s3:TestEvent"}'), "test_event"),
        (direct(record(event="ObjectRemoved:Delete")), "not_created"),
        (direct(record(event="s3:ObjectTagging:Put")), "not_created"),
        (bridged("Object Deleted"), "not_created"),
        (direct(record("a/", size=0)), "folder_marker"),
        (direct(record("a_%24folder%24", size=0)), "folder_marker"),
    ],
)
def test_what_names_nothing_to_read_is_let_go(body: str, why: str) -> None:
    assert read_message(body) == Announced(ignored={why: 1})


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("", "empty"),
        ("not json", "not_json"),
        ("[]", "not_an_object"),
        ("{}", "no_s3_event"),
        (direct(), "no_s3_event"),
        (direct(record()) + "junk", "trailing_content"),
        (through_sns("junk"), "not_json"),
        ("[" * 100_000, "too_deep"),
        ('{"Type":"SubscriptionConfirmation","SubscribeURL":"https://example.com"}', "confirmation"),
        (direct({"eventSource": "aws:sns"}), "other_source"),
        (direct("text"), "wrong_type"),
        (direct(record("%ff")), "bad_key"),
        (direct(record("")), "missing_field"),
        (direct(record(size=-1)), "wrong_type"),
        (direct({"eventName": "ObjectCreated:Put"}), "wrong_type"),
        (json.dumps({"detail-type": "Object Created", "source": "aws.ec2"}), "other_source"),
    ],
)
def test_what_cannot_be_used_says_why(body: str, code: str) -> None:
    told = read_message(body)
    assert (told.files, [refusal.code for refusal in told.refused]) == ((), [code])


RESERVED = (
    *("evil--x-s3", "evil--usw9-az9--x-s3", "evil--usw2-az1--xa-s3", "evil--table-s3", "evil--ol-s3", "evil--op-s3"),
    *("evil-s3alias", "evil.mrap", "xn--evil", "sthree-evil", "arn:aws:s3:::evil"),
)


@pytest.mark.parametrize(
    ("bucket", "s3_object", "code"),
    [
        ("b/../c", {}, "bad_bucket"),
        ("..", {}, "bad_bucket"),
        ("b" * 256, {}, "bad_bucket"),
        *((name, {}, "bad_bucket") for name in RESERVED),
        ("raw", {"key": "k" * 1025}, "bad_key"),
        ("raw", {"key": "a%00b"}, "bad_key"),
        ("raw", {"size": 2**63}, "wrong_type"),
        ("raw", {"size": -1}, "wrong_type"),
        ("raw", {"versionId": "two words"}, "wrong_type"),
        ("raw", {"eTag": "a\r\nX-Header: b"}, "wrong_type"),
        ("raw", {"sequencer": "ü"}, "wrong_type"),
    ],
)
def test_what_s3_cannot_have_is_refused_and_what_stands_beside_it_is_read(
    bucket: str, s3_object: dict[str, Any], code: str
) -> None:
    bad = {"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": bucket}, "object": {"key": "k", **s3_object}}}
    told = read_message(direct(bad, record("good"), record(event="ObjectRemoved:Delete")))
    assert [file.key for file in told.files] == ["good"]
    assert [refusal.code for refusal in told.refused] == [code]
    assert told.ignored == {"not_created": 1}


def test_a_time_that_s3_does_not_write_is_none() -> None:
    odd = {**record("k"), "eventTime": "2026-11-22 \0"}
    (file,) = read_message(direct(odd)).files
    assert file.event_time is None


def test_a_key_with_controls_is_one_line_for_people_and_itself_for_the_table() -> None:
    (file,) = read_message(direct(record("a%0A2026-11-27+ERROR:+key+lost%1B%5B2J%E2%80%AE.json"))).files
    assert file.url.endswith("/a\n2026-11-27 ERROR: key lost\x1b[2J\u202e.json")
    assert file.shown.endswith(r"/a\n2026-11-27 ERROR: key lost\x1b[2J\u202e.json")


def test_keys_are_form_encoded_by_s3_and_not_by_eventbridge() -> None:
    (file,) = read_message(direct(record("a+b%2Bc/%C3%BC%25.json"))).files
    assert file.key == "a b+c/ü%.json"
    (file,) = read_message(bridged(key="a+b%2B")).files
    assert file.key == "a+b%2B"


def test_other_buckets_are_allowed_unless_some_are_named() -> None:
    body = direct(record(bucket="other"))
    assert len(read_message(body).files) == 1
    assert [r.code for r in read_message(body, buckets=frozenset({"raw"})).refused] == ["other_bucket"]


@pytest.mark.parametrize("wrapper", ["none", "sns", "eventbridge"])
def test_with_a_wrapper_named_the_others_are_refused(wrapper: Any) -> None:
    bodies = {"none": direct(record()), "sns": through_sns(direct(record())), "eventbridge": bridged()}
    for name, body in bodies.items():
        told = read_message(body, wrapper=wrapper)
        assert bool(told.files) == (name == wrapper)
        assert [r.code for r in told.refused] == ([] if name == wrapper else ["other_wrapper"])


def test_a_version_is_part_of_a_file_only_where_overwrites_count() -> None:
    first, second = S3File("raw", "k", "v1"), S3File("raw", "k", "v2")
    assert first.identity(allow_overwrites=False) == second.identity(allow_overwrites=False)
    assert first.identity(allow_overwrites=True) != second.identity(allow_overwrites=True)
    assert first.url == "s3://raw/k?versionId=v1"
    named_so = S3File("raw", "k?versionId=v0", "v1")
    assert named_so.url == "s3://raw/k%3FversionId=v0?versionId=v1", "what is behind the mark is the version"


def test_a_client_of_aws_finds_a_host_for_every_bucket_that_a_message_may_name() -> None:
    """Where it finds none, or another one than S3's, a message of anybody would end each batch like an outage."""
    s3 = client("s3", parse_options({"queueUrl": "http://127.0.0.1:1/q", "region": "eu-central-1"}))
    fine = ("raw", "a.b", "Upper_Case", "x--s3", "a--raw-s3", "raw--x-s3-", "s3alias", "mrap", "sthree", "b" * 64)
    for name in (*RESERVED, *fine):
        host = None
        with contextlib.suppress(BotoCoreError):
            host = urlsplit(s3.generate_presigned_url("get_object", Params={"Bucket": name, "Key": "k"})).netloc
        is_fine = host and re.fullmatch(rf"({re.escape(name)}\.)?s3(\.eu-central-1)?\.amazonaws\.com", host)
        assert is_fine or not read_message(direct(record(bucket=name))).files, (name, host)
        assert (name in RESERVED) == (not read_message(direct(record(bucket=name))).files)


def test_no_two_keys_have_one_url() -> None:
    keys = [
        "x?versionId=1",
        "x%3FversionId=1",
        "x%253FversionId=1",
        "x%25253FversionId=1",
        "%?versionId=",
        "%25?versionId=",
    ]
    urls = [S3File("raw", key).url for key in keys]
    assert len({*urls, S3File("raw", "x", "1").url}) == len(keys) + 1
    assert not any("?" in url for url in urls)
    assert S3File("raw", "a%20b/versionId=1?").url == "s3://raw/a%20b/versionId=1?", "others are as they are"


keys = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=256).filter(
    lambda key: not key.endswith("$")
)


@given(keys, st.none() | st.text("0123456789abcdef", min_size=1), st.integers(1, 2**50))
@settings(deadline=None)
def test_a_file_told_as_an_event_is_read_as_the_same_file(key: str, version: str | None, size: int) -> None:
    file = S3File("raw", key, version, "e1", size, "2026-11-22T00:00:00Z", "00A1")
    assert read_message(file.as_event()).files == (file,)
