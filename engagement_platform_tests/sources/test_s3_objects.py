"""Which content of an object is read, and what becomes of an object that cannot be read, without Spark."""

from __future__ import annotations

import gzip
import json
from typing import Any, cast

import pytest
from botocore.exceptions import ClientError, FlexibleChecksumError
from pyspark.sql.datasource import CaseInsensitiveDict

from engagement_platform.sources import s3_objects
from engagement_platform.sources.s3_events import S3File, event_of
from engagement_platform.sources.s3_formats import decode
from engagement_platform.sources.s3_sqs import S3SqsDataSource
from engagement_platform.sources.s3_sqs_aws import client as client_of
from engagement_platform.sources.s3_sqs_errors import (
    BadRecords,
    NoDeadLetterQueue,
    ObjectNotReadable,
    S3SqsOptionRefused,
)
from engagement_platform_tests.sources.pipe import SCHEMA, MakePipe, Pipe


def test_an_object_that_is_gone_or_overwritten_before_it_is_read_is_told(make: MakePipe) -> None:
    pipe = make(allowOverwrites="true")
    pipe.put("gone", 1)
    pipe.s3.delete_object(Bucket=pipe.bucket, Key="gone")
    pipe.put("changed", 2)
    pipe.put("changed", 3)
    pipe.put("fine", 4)
    strict = pipe.start(missingFiles="fail")
    pipe.offset = strict.initialOffset()
    with pytest.raises(ObjectNotReadable, match=r"(deleted|overwritten) before it was read"):
        pipe.batch(strict)
    assert pipe.drained(pipe.start()) == [3, 4]
    letters = pipe.dead_letters()
    assert [code for code, _body in letters] == ["deleted", "overwritten"]
    # A dead letter can be moved back to the queue as it is.
    assert '"key": "gone"' in letters[0][1]


def test_of_a_versioned_key_the_version_is_read_that_was_told(make: MakePipe) -> None:
    pipe = make(allowOverwrites="true")
    pipe.s3.put_bucket_versioning(Bucket=pipe.bucket, VersioningConfiguration={"Status": "Enabled"})
    versions = [pipe.s3.put_object(Bucket=pipe.bucket, Key="k", Body=b'{"a":%d}' % n)["VersionId"] for n in range(2)]
    pipe.sqs.purge_queue(QueueUrl=pipe.url)
    for version in reversed(versions):
        pipe.send(S3File(pipe.bucket, "k", version).as_event())
    assert pipe.drained(pipe.start()) == [0, 1]


def test_good_records_and_files_are_read_and_the_rest_is_a_dead_letter_with_its_reason(make: MakePipe) -> None:
    pipe = make()
    pipe.put("bad", content=b'{"a":1}\n{"a":"x"}\n{"a":2}\n')
    pipe.put("broken.gz", content=gzip.compress(b'{"a":3}\n' * 1000)[:-9])
    pipe.put("empty", content=b"")
    pipe.put("folder/", content=b"")
    pipe.send("poison")
    good = json.loads(S3File(pipe.bucket, "fine").as_event())["Records"][0]
    pipe.put("fine", 4)
    pipe.send(json.dumps({"Records": [{"eventName": 5}, good]}))
    rows = pipe.drained(pipe.start())
    assert [row for row in rows if row != 3] == [1, 2, 4]
    assert [code for code, _ in pipe.dead_letters()] == ["bad_records", "missing_field", "not_json", "unreadable"]
    assert pipe.left() == 0


class Damaged:
    """A body whose checksum is wrong."""

    def read(self, _size: int) -> bytes:
        raise FlexibleChecksumError(error_msg="another one")

    def close(self) -> None:
        """Nothing is open."""


def test_no_object_keeps_those_beside_it_from_being_read(make: MakePipe, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = make(allowOverwrites="true")
    pipe.put("good", 1)
    pipe.put("odd", 2)
    pipe.put("damaged", 3)
    pipe.send(S3File(pipe.bucket, "good", "no-version").as_event())
    pipe.send(S3File("no-such-bucket-here", "k").as_event())

    def fails(stream: Any, file: S3File, *rest: Any) -> Any:
        if file.key == "odd":
            raise KeyError("whatever it is")
        if file.key == "damaged":
            stream = s3_objects._Body(Damaged(), file)
        return decode(stream, file, *rest)

    monkeypatch.setattr(s3_objects, "decode", fails)
    assert pipe.drained(pipe.start()) == [1]
    codes = sorted(code for code, _ in pipe.dead_letters())
    assert codes in (
        ["deleted", "no_bucket", "unreadable", "unreadable"],
        ["no_bucket", "no_version", "unreadable", "unreadable"],
    )
    assert pipe.left() == 0


def test_what_is_remembered_of_another_bucket_is_a_dead_letter_once_buckets_are_named(
    make: MakePipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, opened = make(), list[str]()
    open_of = s3_objects.Objects._open

    def opening(self: s3_objects.Objects, file: S3File) -> Any:
        opened.append(file.bucket)
        if file.bucket != pipe.bucket:
            raise ObjectNotReadable(file.shown, "no such host")
        return open_of(self, file)

    monkeypatch.setattr(s3_objects.Objects, "_open", opening)
    pipe.put("fine", 1)
    pipe.send(S3File("evil", "k").as_event())
    reader = pipe.start()
    pipe.offset = reader.initialOffset()
    with pytest.raises(ObjectNotReadable, match="no such host"):
        pipe.batch(reader)
    opened.clear()
    assert pipe.drained(pipe.start(buckets=pipe.bucket, badRecords="fail")) == [1]
    assert opened == [pipe.bucket]
    assert [code for code, _ in pipe.dead_letters()] == ["other_bucket"]


def deny(pipe: Pipe, prefix: str) -> None:
    """Nobody may read objects of the bucket whose keys begin so."""
    statement = {"Effect": "Deny", "Principal": "*", "Action": "s3:GetObject",
                 "Resource": f"arn:aws:s3:::{pipe.bucket}/{prefix}*"}  # fmt: skip
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    pipe.s3.put_bucket_policy(Bucket=pipe.bucket, Policy=policy)


def test_an_object_that_may_not_be_read_is_a_dead_letter_and_a_bucket_of_ones_own_stops_the_stream(
    make: MakePipe,
) -> None:
    for named in (False, True):
        pipe = make()
        pipe.put("fine", 1)
        pipe.put("secret/a", 2)
        deny(pipe, "secret/")
        assert pipe.drained(pipe.start(**({"buckets": pipe.bucket} if named else {}))) == [1]
        ((code, body),) = pipe.dead_letters()
        assert (code, '"key": "secret%2Fa"' in body) == ("unreadable", True)
        deny(pipe, "")
        pipe.put("fine too", 3)
        if named:
            with pytest.raises(ObjectNotReadable, match="Forbidden"):
                pipe.batch(pipe.start(buckets=pipe.bucket))
        else:
            assert pipe.drained(pipe.start()) == []
            assert len(pipe.dead_letters()) == 2


OF_THE_OBJECT = {"InvalidRequest": 400, "InvalidURI": 400, "KMS.DisabledException": 400}
OF_THE_CALLER = {"ExpiredToken": 400, "SlowDown": 429, "InternalError": 500}


def test_what_s3_refuses_of_one_object_is_a_dead_letter_and_what_it_refuses_of_its_caller_stops_the_stream(
    make: MakePipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as an object that is encrypted with a key of its sender's. Keys are the codes of their refusals."""
    statuses = OF_THE_OBJECT | OF_THE_CALLER

    def client(service: Any, options: Any) -> Any:
        made = client_of(service, options)
        if service != "s3":
            return made
        get: Any = made.get_object

        def get_object(**asked: str) -> Any:
            if (code := asked["Key"]) in statuses:
                answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": statuses[code]}}
                raise ClientError(cast(Any, answer), "GetObject")
            return get(**asked)

        made.get_object = get_object
        return made

    monkeypatch.setattr(s3_objects, "client", client)
    pipe = make()
    pipe.put("fine", 1)
    for code in OF_THE_OBJECT:
        pipe.put(code, 2)
    assert pipe.drained(pipe.start(buckets=pipe.bucket)) == [1]
    assert [found for found, _ in pipe.dead_letters()] == ["unreadable"] * len(OF_THE_OBJECT)
    for code in OF_THE_CALLER:
        pipe = make()
        pipe.put(code, 2)
        with pytest.raises(ObjectNotReadable, match=code):
            pipe.batch(pipe.start(buckets=pipe.bucket))
        assert pipe.dead_letters() == []


def test_a_read_of_given_objects_takes_these_only_and_no_message(make: MakePipe) -> None:
    pipe = make()
    for n in range(5):
        pipe.put(f"{n} ü", n)
    announced = pipe.left()
    files = [S3File(pipe.bucket, f"{n} ü") for n in range(4)] + [S3File(pipe.bucket, "gone")]
    given = {"objects": event_of(files), "endpoint": pipe.options["endpoint"], "region": "eu-central-1", "tasks": "2"}

    def read(**more: str) -> list[int]:
        reader = S3SqsDataSource(CaseInsensitiveDict({**given, **more})).reader(SCHEMA)
        parts = reader.partitions()
        assert len(parts) == 2
        return sorted(row["a"] for part in parts for batch in reader.read(part) for row in batch.to_pylist())

    assert read(queueUrl=pipe.url) == [0, 1, 2, 3]
    assert [code for code, _ in pipe.dead_letters()] == ["deleted"]
    assert read() == [0, 1, 2, 3], "without a queue what is gone is passed by"
    assert pipe.left() == announced
    for wrong, options in (
        ("objects is missing", {"queueUrl": pipe.url}),
        ("must be an event of S3", {"objects": "{}"}),
    ):
        with pytest.raises(S3SqsOptionRefused, match=wrong):
            S3SqsDataSource(CaseInsensitiveDict(options)).reader(SCHEMA)
    with pytest.raises(S3SqsOptionRefused, match="queueUrl is missing"):
        S3SqsDataSource(CaseInsensitiveDict(given)).streamReader(SCHEMA)


def test_without_a_dead_letter_queue_nothing_is_skipped_silently(make: MakePipe) -> None:
    pipe = make(dead_letters=False)
    pipe.put("bad", content=b"junk")
    reader = pipe.start()
    pipe.offset = reader.initialOffset()
    with pytest.raises(NoDeadLetterQueue, match="line 1: The message is not JSON"):
        pipe.batch(reader)
    with pytest.raises(BadRecords, match="line 1: The message is not JSON"):
        pipe.batch(pipe.start(badRecords="fail"))
    # Another queue may be named, and what waits goes on.
    assert pipe.drained(pipe.start(deadLetterQueueUrl=pipe.dead)) == []
    assert [code for code, _ in pipe.dead_letters()] == ["bad_records"]
    pipe.send("poison")
    with pytest.raises(NoDeadLetterQueue, match="is not JSON"):
        pipe.batch(reader)
