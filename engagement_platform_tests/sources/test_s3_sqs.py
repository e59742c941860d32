"""The protocol of the source against a real queue and bucket, without Spark: what is read, when, and what is kept.

Objects that cannot be read are in `test_s3_objects`.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from pyspark.sql.streaming.datasource import ReadMaxFiles

from engagement_platform.engine.database import open_engine
from engagement_platform.sources.s3_events import Refusal, S3File
from engagement_platform.sources.s3_sqs_errors import QueueUnavailable, S3SqsStateLost
from engagement_platform.sources.s3_sqs_queue import Queue, send_dead_letter
from engagement_platform.sources.s3_sqs_state import Arrived, S3SqsState
from engagement_platform_tests.sources.pipe import MakePipe


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


def test_a_dead_letter_goes_whole_where_its_reasons_do_not_fit_beside_it() -> None:
    """A queue counts attributes for the most bytes that a message may have, and this one was as large as may be."""
    sent, most = list[tuple[str, list[str]]](), 1_000

    class Full:
        def send_message(self, *, MessageBody: str, MessageAttributes: dict[str, Any], **_: str) -> None:  # noqa: N803
            texts = (name + value["StringValue"] for name, value in MessageAttributes.items())
            if len(MessageBody) + sum(map(len, texts)) > most:
                why = {"Code": "InvalidParameterValue", "Message": "Message must be shorter"}
                raise ClientError({"Error": why}, "SendMessage")
            sent.append((MessageBody, sorted(MessageAttributes)))

    refusals = [Refusal("not_json", "It is no JSON.")]
    for size in (500, most - 25, most):
        send_dead_letter(Full(), "dead", "b" * size, refusals, "source")
    assert sent == [
        ("b" * 500, ["reason", "reason_code", "source"]),
        ("b" * (most - 25), ["reason_code"]),
        ("b" * most, []),
    ]
    with pytest.raises(QueueUnavailable, match="shorter"):
        send_dead_letter(Full(), "dead", "b" * (most + 1), refusals, "source")


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


def test_a_key_that_is_written_again_while_it_waits_is_read_once_as_what_it_is_by_then(make: MakePipe) -> None:
    pipe = make()
    pipe.put("0", 0)
    pipe.put("1", 1)
    reader = pipe.start()
    [read] = pipe.batch(reader, 1) or [-1]
    waits = {0: "1", 1: "0"}[read]
    pipe.put(waits, 2)
    assert pipe.drained(reader) == [2]
    assert pipe.dead_letters() == []
    pipe.put(waits, 3)
    assert pipe.drained(reader) == [], "it was read"


@pytest.mark.parametrize(
    ("first", "second", "content"),
    [
        ({"etag": "a", "sequencer": "0F"}, {"etag": "b", "sequencer": "0F1"}, "b"),
        ({"etag": "b", "sequencer": "0F1"}, {"etag": "a", "sequencer": "0F"}, "b"),
        ({"etag": "a", "event_time": "2026-11-22T10:00:00Z"}, {"etag": "b", "event_time": "2026-11-22T10:00:01Z"}, "b"),
        ({"etag": "b", "event_time": "2026-11-22T10:00:01Z"}, {"etag": "a", "event_time": "2026-11-22T10:00:00Z"}, "b"),
        ({"etag": "a", "version_id": "1", "sequencer": "0"}, {"etag": "b", "version_id": "2", "sequencer": "1"}, "a"),
        ({}, {"etag": "b", "sequencer": "1"}, None),
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_of_two_announcements_of_a_waiting_key_the_later_write_counts_in_whatever_order_they_come(
    first: dict[str, Any], second: dict[str, Any], content: str | None, together: bool, tmp_path: Path
) -> None:
    state = S3SqsState.open(f"sqlite:///{tmp_path}/state.db", allow_overwrites=False)
    messages = [Arrived(f"m-{n}", "r", 0, (S3File("b", "k", **said),)) for n, said in enumerate((first, second))]
    for part in [messages] if together else [[one] for one in messages]:
        state.arrive("s", part)
    assert state.waiting("s") == 1
    assert state.plan("s", 0, None) == 1
    assert [file.etag for file in state.files("s", 0, 1)] == [content]
    state.arrive("s", [Arrived("m-2", "r", 0, (S3File("b", "k", etag="c", sequencer="FF"),))])
    assert [file.etag for file in state.files("s", 0, 1)] == [content], "a batch has it"
    state.close()


def test_what_was_written_anew_is_remembered_as_long_as_what_is_new(tmp_path: Path) -> None:
    """Its announcement may wait in the queue; as a new object it would be read again."""
    days = [0]
    state = S3SqsState(
        open_engine(f"sqlite:///{tmp_path}/state.db"),
        allow_overwrites=False,
        clock=lambda: datetime(2026, 11, 1, tzinfo=UTC) + timedelta(days=days[0]),
    )
    files = [S3File("raw", f"{number}", None, f"e{number}", 1, "2026-11-01T00:00:00Z") for number in range(4)]

    def plan_and_forget(batch: int, file: S3File) -> int:
        state.arrive("s", [Arrived(f"m{days[0]}-{file.key}", "r", 0, (file,))])
        state.plan("s", batch, None)
        return state.forget_files("s", batch + 1, timedelta(days=7))

    for batch, file in enumerate(files[:3]):
        assert plan_and_forget(batch, file) == 0
    days[0] = 6
    state.rewriting("s", files[1], 3)
    state.rewritten("s", replace(files[1], etag="e1b"))
    state.rewriting("s", files[2], 3)
    # Ended between PUT and `rewritten`.
    days[0] = 8
    assert plan_and_forget(3, files[3]) == 1, "the first one"
    assert [state.batch_of("s", file) for file in files[:3]] == [(False, None), (True, 2), (True, 3)]
    assert [state.remembers_after("s", batch) for batch in range(4)] == [False, False, True, True]
    days[0] = 30
    assert state.forget_files("s", 4, timedelta(days=7)) == 1
    assert state.being_rewritten("s") == {"2"}, "former versions of it are to be deleted"
    state.rewritten("s", files[2])
    days[0] = 38
    state.arrive("s", [Arrived("m", "r", 0, (S3File("raw", "5", None, "e5"),))])
    state.rewriting("s", files[3], 4)
    state.rewritten("s", files[3])
    assert state.forget_files("s", 5, timedelta(days=7)) == 1
    assert state.being_rewritten("s") == set()
    assert not state.remembers_after("s", 2), "files of batch 3 are forgotten between others"


def test_a_message_that_cannot_be_read_is_a_dead_letter_before_it_is_deleted(
    make: MakePipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a process that ends in between there are two letters of it, and never none."""

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    pipe = make()
    pipe.sqs.purge_queue(QueueUrl=pipe.url)
    pipe.send("poison")
    with monkeypatch.context() as patched:
        patched.setattr(Queue, "delete", dies)
        reader = pipe.start()
        with pytest.raises(KeyboardInterrupt):
            pipe.batch(reader)
    reader.stop()  # nobody holds the message any more
    assert (pipe.dead_letters(), pipe.left()) == ([("not_json", "poison")], 1)
    time.sleep(3.1)  # its visibility timeout is over
    assert pipe.drained(pipe.start()) == []
    assert (pipe.dead_letters(), pipe.left()) == ([("not_json", "poison")] * 2, 0)


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


def test_a_bucket_is_never_listed(make: MakePipe) -> None:
    pipe = make()
    pipe.tell(nothing=True)
    for n in range(20):
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
