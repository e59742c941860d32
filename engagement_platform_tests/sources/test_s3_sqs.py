"""The protocol of the source against a real queue and bucket, without Spark: what is read, when, and what is kept."""

from __future__ import annotations

import gzip
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from botocore.exceptions import ClientError, FlexibleChecksumError
from pyspark.sql import types as T
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadMaxFiles

from engagement_platform.sources import s3_objects
from engagement_platform.sources.s3_events import S3File, event_of
from engagement_platform.sources.s3_formats import decode
from engagement_platform.sources.s3_sqs import Offset, S3SqsDataSource, S3SqsStreamReader
from engagement_platform.sources.s3_sqs_aws import client as client_of
from engagement_platform.sources.s3_sqs_errors import (
    BadRecords,
    NoDeadLetterQueue,
    ObjectNotReadable,
    QueueUnavailable,
    S3SqsOptionRefused,
    S3SqsSchemaRefused,
    S3SqsStateLost,
)
from engagement_platform.sources.s3_sqs_queue import Queue
from engagement_platform_tests.conftest import Moto

SCHEMA = T.StructType().add("a", "integer").add("_file", "string")
_numbers = itertools.count()


class Pipe:
    """A bucket that tells a queue, with a dead-letter queue, and a stream on it, driven as Spark drives one."""

    def __init__(self, moto: Moto, folder: Path, *, dead_letters: bool = True, **options: str) -> None:
        name = f"t{next(_numbers)}"
        self.moto, self.bucket = moto, f"{name}-raw"
        self.s3, self.sqs = moto.client("s3"), moto.client("sqs")
        self.s3.create_bucket(Bucket=self.bucket, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
        attributes = {}
        self.dead = self.sqs.create_queue(QueueName=f"{name}-dead")["QueueUrl"]
        if dead_letters:
            policy = {"deadLetterTargetArn": self._arn(self.dead), "maxReceiveCount": 100}
            attributes = {"RedrivePolicy": json.dumps(policy)}
        self.url = self.sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        self.tell()
        self.options = {
            "queueUrl": self.url,
            "endpoint": moto.endpoint,
            "region": "eu-central-1",
            "waitTime": "0",
            "fetchParallelism": "2",
            "visibilityTimeout": "3",
            "stateLocation": str(folder),
            **options,
        }
        self.readers: list[S3SqsStreamReader] = []
        self.offset: Offset | None = None

    def _arn(self, url: str) -> str:
        arn: str = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        return arn

    def tell(self, *, nothing: bool = False) -> None:
        """Have the bucket tell the queue from now on what happens in it, or nothing."""
        told = [{"QueueArn": self._arn(self.url), "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]}]
        self.s3.put_bucket_notification_configuration(
            Bucket=self.bucket, NotificationConfiguration={} if nothing else {"QueueConfigurations": told}
        )

    def put(self, key: str, *values: int, content: bytes | None = None) -> None:
        body = content if content is not None else b"".join(b'{"a":%d}\n' % value for value in values)
        self.s3.put_object(Bucket=self.bucket, Key=key, Body=body)

    def send(self, body: str) -> None:
        self.sqs.send_message(QueueUrl=self.url, MessageBody=body)

    def start(self, **options: str) -> S3SqsStreamReader:
        """The reader of a new process."""
        source = S3SqsDataSource(CaseInsensitiveDict({**self.options, **options}))
        self.readers.append(source.streamReader(SCHEMA))
        return self.readers[-1]

    def batch(self, reader: S3SqsStreamReader, most: int = 1000) -> list[int] | None:
        """One batch as Spark runs it, committed in its log; None when there was nothing."""
        start = self.offset or reader.initialOffset()
        end = reader.latestOffset(start, ReadMaxFiles(most))
        if end == start:
            return None
        rows = self.rows(reader, start, end)
        self.offset = end
        return rows

    def rows(self, reader: S3SqsStreamReader, start: Offset, end: Offset) -> list[int]:
        partitions = reader.partitions(start, end)
        return sorted(row["a"] for p in partitions for batch in reader.read(p) for row in batch.to_pylist())

    def drained(self, reader: S3SqsStreamReader, most: int = 1000) -> list[int]:
        rows: list[int] = []
        while (batch := self.batch(reader, most)) is not None:
            rows += batch
        return sorted(rows)

    def left(self) -> int:
        """Messages in the queue, the invisible ones included."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)["Attributes"]
        return sum(map(int, found.values()))

    def dead_letters(self) -> list[tuple[str, str]]:
        """Reason code and body of every dead letter."""
        answer = self.sqs.receive_message(
            QueueUrl=self.dead, MaxNumberOfMessages=10, MessageAttributeNames=["All"], VisibilityTimeout=0
        )
        return sorted(
            (m["MessageAttributes"]["reason_code"]["StringValue"], m["Body"]) for m in answer.get("Messages", ())
        )


MakePipe = Callable[..., Pipe]


@pytest.fixture
def make(moto: Moto, tmp_path: Path) -> Iterator[MakePipe]:
    made: list[Pipe] = []

    def pipe(**options: Any) -> Pipe:
        made.append(Pipe(moto, tmp_path / "state", **options))
        return made[-1]

    yield pipe
    for each in made:
        for reader in each.readers:
            reader.stop()


def until(condition: Callable[[], bool], message: str, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, message
        time.sleep(0.1)


def test_one_call_waits_for_the_first_message_and_the_others_take_what_is_there_beside_it(make: MakePipe) -> None:
    """Calls that wait beside one another go on waiting when one of them has the only message."""
    pipe = make(fetchParallelism="3")
    queue = Queue(pipe.start()._options)
    waits: list[int] = []
    queue._sqs.meta.events.register(
        "provide-client-params.sqs.ReceiveMessage", lambda params, **_: waits.append(params["WaitTimeSeconds"])
    )
    try:
        # What S3 says when it is told of a queue.
        queue.delete({message.message_id: message.receipt for message in queue.receive(1)})
        waits.clear()
        assert queue.receive(1) == []
        assert waits == [1]
        waits.clear()
        for number in range(12):
            pipe.send(str(number))
        assert sorted(int(message.body) for message in queue.receive(1)) == list(range(12))
        assert waits == [1, 0, 0]
        waits.clear()
        assert queue.receive(0) == []
        assert waits == [0, 0, 0]
    finally:
        queue.close()


def test_files_are_read_once_and_messages_go_after_the_commit(make: MakePipe) -> None:
    pipe = make()
    for n in range(5):
        pipe.put(f"2026/a b+{n}.json", n)
    reader = pipe.start()
    assert pipe.drained(reader, most=2) == [0, 1, 2, 3, 4]
    # The batch before the last call of latestOffset is proven: nothing is left, not even S3's test event.
    assert pipe.left() == 0
    pipe.put("later.json", 5)
    end = reader.latestOffset(pipe.offset or {}, ReadMaxFiles(10))
    assert pipe.rows(reader, pipe.offset or {}, end) == [5]
    assert pipe.left() == 1
    reader.commit(end)
    assert pipe.left() == 0
    assert pipe.dead_letters() == []


def test_a_batch_that_was_not_committed_comes_again_as_it_was(make: MakePipe) -> None:
    pipe = make()
    for n in range(4):
        pipe.put(f"{n}", n)
    first = pipe.start()
    start = first.initialOffset()
    end = first.latestOffset(start, ReadMaxFiles(3))
    rows = pipe.rows(first, start, end)
    first.stop()
    second = pipe.start()
    # Spark knows the end from its log, or it does not: it died before it could write it.
    assert pipe.rows(second, start, end) == rows
    assert second.latestOffset(start, ReadMaxFiles(1)) == end
    assert pipe.left() == 4
    pipe.offset = end
    assert sorted(rows + pipe.drained(second)) == [0, 1, 2, 3]
    assert pipe.left() == 0


def test_a_message_that_comes_again_after_a_restart_is_recognized_and_deleted(make: MakePipe) -> None:
    pipe = make()
    pipe.put("one", 1)
    first = pipe.start()
    assert pipe.batch(first) == [1]
    # As if its time was over: SQS hands it out again.
    for receipt in first._state.in_flight(pipe.offset["stream"] if pipe.offset else "").values():
        pipe.sqs.change_message_visibility(QueueUrl=pipe.url, ReceiptHandle=receipt, VisibilityTimeout=0)
    first.stop()
    second = pipe.start()
    assert pipe.batch(second) is None
    assert pipe.left() == 0


def test_what_is_in_work_stays_invisible(make: MakePipe) -> None:
    pipe = make()
    pipe.put("one", 1)
    reader = pipe.start()
    extended: list[dict[str, Any]] = []
    reader._queue._sqs.meta.events.register(
        "provide-client-params.sqs.ChangeMessageVisibilityBatch", lambda params, **_: extended.extend(params["Entries"])
    )
    end = reader.latestOffset(reader.initialOffset(), ReadMaxFiles(1))
    assert end["batch"] == 1
    # Twice before the visibility timeout of 3 s is over.
    until(lambda: len(extended) >= 2, "nobody asked SQS to keep the message", seconds=2.9)
    assert {entry["VisibilityTimeout"] for entry in extended} == {3}
    assert "Messages" not in pipe.sqs.receive_message(QueueUrl=pipe.url)


def test_events_that_are_repeated_or_late_add_nothing(make: MakePipe) -> None:
    pipe = make()
    pipe.put("one", 1)
    again = S3File(pipe.bucket, "one").as_event()
    pipe.send(again)
    reader = pipe.start()
    assert pipe.drained(reader) == [1]
    pipe.send(again)
    assert pipe.drained(reader) == []
    assert pipe.left() == 0


def test_a_message_of_many_files_is_split_over_batches_and_goes_with_the_last(make: MakePipe) -> None:
    pipe = make()
    for n in range(3):
        pipe.put(f"{n}", n)
    pipe.sqs.purge_queue(QueueUrl=pipe.url)
    records = [json.loads(S3File(pipe.bucket, f"{n}").as_event())["Records"][0] for n in range(3)]
    pipe.send(json.dumps({"Records": records}))
    reader = pipe.start()
    assert [pipe.batch(reader, 2), pipe.left()] == [[0, 1], 1]
    assert [pipe.batch(reader, 2), pipe.left()] == [[2], 1]
    assert [pipe.batch(reader, 2), pipe.left()] == [None, 0]


def test_an_overwritten_key_is_another_file_only_when_that_is_asked_for(make: MakePipe) -> None:
    for allowed, rows in (("false", [1]), ("true", [1, 2])):
        pipe = make(allowOverwrites=allowed)
        reader = pipe.start()
        pipe.put("one", 1)
        read = pipe.drained(reader)
        pipe.put("one", 2)
        assert sorted(read + pipe.drained(reader)) == rows


def test_an_object_that_is_gone_or_overwritten_before_it_is_read_is_told(make: MakePipe) -> None:
    pipe = make(allowOverwrites="true")
    pipe.put("gone", 1)
    pipe.s3.delete_object(Bucket=pipe.bucket, Key="gone")
    pipe.put("changed", 2)
    pipe.put("changed", 3)
    pipe.put("fine", 4)
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


def test_no_object_and_no_message_keeps_those_beside_it_from_being_read(
    make: MakePipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = make(allowOverwrites="true")
    pipe.put("good", 1)
    pipe.put("odd", 2)
    good = S3File(pipe.bucket, "good")
    early = "0001-01-01T00:00:00+23:59"
    for file in (
        replace(good, version_id="no-version"),
        replace(good, size=2**63),
        replace(good, key="gone", event_time=early),
        S3File("b/../c", "k"),
        S3File("no-such-bucket-here", "k"),
    ):
        pipe.send(file.as_event())

    def fails(stream: Any, file: S3File, *rest: Any) -> Any:
        if file.key == "odd":
            raise KeyError("whatever it is")
        return decode(stream, file, *rest)

    monkeypatch.setattr(s3_objects, "decode", fails)
    assert pipe.drained(pipe.start()) == [1]
    codes = Counter(code for code, _ in pipe.dead_letters())
    version = codes.keys() - {"bad_bucket", "wrong_type", "deleted", "no_bucket", "unreadable"}
    assert sum(codes.values()) == 6, codes
    assert version <= {"no_version"}
    assert pipe.left() == 0


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


@pytest.mark.parametrize(
    ("code", "status", "is_the_object"),
    [("InvalidRequest", 400, True), ("InvalidURI", 400, True), ("KMS.DisabledException", 400, True),
     ("ExpiredToken", 400, False), ("SlowDown", 429, False), ("InternalError", 500, False)],
)  # fmt: skip
def test_what_s3_refuses_of_one_object_is_a_dead_letter_and_what_it_refuses_of_its_caller_stops_the_stream(
    make: MakePipe, monkeypatch: pytest.MonkeyPatch, code: str, status: int, is_the_object: bool
) -> None:
    """Such as an object that is encrypted with a key of its sender's."""
    pipe = make()
    pipe.put("fine", 1)
    pipe.put("odd", 2)
    answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}

    def client(service: Any, options: Any) -> Any:
        made = client_of(service, options)
        if service != "s3":
            return made
        get: Any = made.get_object

        def get_object(**asked: str) -> Any:
            if asked["Key"] == "odd":
                raise ClientError(cast(Any, answer), "GetObject")
            return get(**asked)

        made.get_object = get_object
        return made

    monkeypatch.setattr(s3_objects, "client", client)
    reader = pipe.start(buckets=pipe.bucket)
    if is_the_object:
        assert pipe.drained(reader) == [1]
        assert [found for found, _ in pipe.dead_letters()] == ["unreadable"]
        return
    with pytest.raises(ObjectNotReadable, match=code):
        pipe.batch(reader)
    assert pipe.dead_letters() == []


def test_content_that_is_not_what_its_checksum_says_is_damaged(make: MakePipe, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = make()
    pipe.put("fine", 1)
    pipe.put("odd", 2)

    def fails(stream: Any, file: S3File, *rest: Any) -> Any:
        if file.key == "odd":
            stream = s3_objects._Body(Damaged(), file)
        return decode(stream, file, *rest)

    monkeypatch.setattr(s3_objects, "decode", fails)
    assert pipe.drained(pipe.start()) == [1]
    assert [code for code, _ in pipe.dead_letters()] == ["unreadable"]
    assert pipe.left() == 0


class Damaged:
    """A body whose checksum is wrong."""

    def read(self, _size: int) -> bytes:
        raise FlexibleChecksumError(error_msg="another one")

    def close(self) -> None:
        """Nothing is open."""


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


def test_a_missing_file_can_stop_the_stream(make: MakePipe) -> None:
    pipe = make(missingFiles="fail")
    pipe.send(S3File(pipe.bucket, "never").as_event())
    with pytest.raises(ObjectNotReadable, match="deleted before it was read"):
        pipe.batch(pipe.start())


def test_available_now_reads_what_was_there_and_nothing_later(make: MakePipe) -> None:
    pipe = make()
    for n in range(25):
        pipe.put(f"{n}", n)
    reader = pipe.start()
    reader.prepareForTriggerAvailableNow()
    time.sleep(1.1)  # SQS's clock is read in whole seconds
    pipe.put("later", 99)
    batches = list(iter(lambda: pipe.batch(reader, 10), None))
    assert [len(batch) for batch in batches] == [10, 10, 5]
    assert sorted(itertools.chain(*batches)) == list(range(25))
    reader.stop()
    assert pipe.drained(pipe.start()) == [99]
    assert pipe.left() == 0


def test_events_come_through_sns(make: MakePipe) -> None:
    pipe = make()
    sns = pipe.moto.client("sns")
    topic = sns.create_topic(Name=f"{pipe.bucket}-topic")["TopicArn"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=pipe._arn(pipe.url))
    told = {"TopicConfigurations": [{"TopicArn": topic, "Events": ["s3:ObjectCreated:*"]}]}
    pipe.s3.put_bucket_notification_configuration(Bucket=pipe.bucket, NotificationConfiguration=told)
    pipe.put("a b", 1)
    assert pipe.drained(pipe.start()) == [1]
    assert pipe.dead_letters() == []


def test_a_multipart_upload_is_one_file_however_often_it_is_told(make: MakePipe) -> None:
    pipe = make(allowOverwrites="true")
    upload = pipe.s3.create_multipart_upload(Bucket=pipe.bucket, Key="big")["UploadId"]
    part = {"Bucket": pipe.bucket, "Key": "big", "UploadId": upload, "PartNumber": 1}
    etag = pipe.s3.upload_part(**part, Body=b'{"a":1}\n')["ETag"]
    pipe.s3.complete_multipart_upload(
        Bucket=pipe.bucket, Key="big", UploadId=upload,
        MultipartUpload={"Parts": [{"ETag": etag, "PartNumber": 1}]},
    )  # fmt: skip
    assert pipe.drained(pipe.start()) == [1]
    assert pipe.dead_letters() == []


def test_a_checkpoint_without_its_state_is_told_and_not_taken_for_empty(make: MakePipe, tmp_path: Path) -> None:
    pipe = make()
    pipe.put("one", 1)
    assert pipe.batch(pipe.start()) == [1]
    elsewhere = pipe.start(stateLocation=str(tmp_path / "elsewhere"))
    with pytest.raises(S3SqsStateLost, match="batch 1 of stream"):
        pipe.batch(elsewhere)


def test_a_queue_that_is_not_there_is_named(make: MakePipe) -> None:
    pipe = make()
    pipe.sqs.delete_queue(QueueUrl=pipe.url)
    with pytest.raises(QueueUnavailable, match=pipe.url):
        pipe.batch(pipe.start())


def test_without_a_schema_nothing_is_loaded(make: MakePipe) -> None:
    with pytest.raises(S3SqsSchemaRefused, match="there is no schema"):
        S3SqsDataSource(CaseInsensitiveDict(make().options)).schema()


@pytest.mark.parametrize("older", [20, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_bucket_is_never_listed(make: MakePipe, older: int) -> None:
    pipe = make()
    pipe.tell(nothing=True)
    for n in range(older):
        pipe.put(f"older/{n}", n)
    pipe.tell()
    for n in range(3):
        pipe.put(f"new/{n}", -n)
    read = pipe.moto.requests("GET", f"/{pipe.bucket}/")
    assert pipe.drained(pipe.start()) == [-2, -1, 0]
    assert pipe.moto.requests("GET", f"/{pipe.bucket}/") - read == 3
    # A listing asks for the bucket itself.
    assert pipe.moto.requests("GET", f"/{pipe.bucket}?") == pipe.moto.requests("GET", f"/{pipe.bucket} ") == 0
    pipe.s3.list_objects_v2(Bucket=pipe.bucket)
    assert pipe.moto.requests("GET", f"/{pipe.bucket}?") == 1


@pytest.mark.slow
def test_ten_thousand_keys_that_wait_are_planned_once(make: MakePipe) -> None:
    pipe = make(fetchParallelism="8", visibilityTimeout="600")
    pipe.put("one", 1)
    # With each message moto looks at all that wait: ten thousand of one key each would take an hour, whoever asks.
    for start in range(0, 10_000, 50):
        events = [json.loads(S3File(pipe.bucket, f"k{start + n}").as_event())["Records"][0] for n in range(50)]
        pipe.sqs.send_message(QueueUrl=pipe.url, MessageBody=json.dumps({"Records": events}))
    reader = pipe.start()
    reader.prepareForTriggerAvailableNow()
    seen: list[S3File] = []
    while True:
        start_offset = pipe.offset or reader.initialOffset()
        end = reader.latestOffset(start_offset, ReadMaxFiles(3000))
        if end == start_offset:
            break
        partitions = reader.partitions(start_offset, end)
        seen += [file for partition in partitions for file in partition.files]
        pipe.offset = end
    assert len(seen) == len({file.key for file in seen}) == 10_001
    assert pipe.left() == 0
