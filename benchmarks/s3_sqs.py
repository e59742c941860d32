"""How many announced objects a second are drained, how long until their rows can be read?  python -m benchmarks.s3_sqs

Data: objects of --lines simulated game events each, gzip, in a bucket of moto, S3's emulator, which announces them in a
queue; each phase has a bucket and a queue of its own.
Drained: objects wait in the queue. `client` takes them with boto3 alone, on --threads connections: what moto, which
runs on the same cores, can hand out. With each message it looks at all that wait, so that a long queue is slow whoever
asks; hence two cases: --single objects in a message each, as S3 announces them, and --objects in messages of --records.
`source` is a stream `s3-sqs` with Trigger.AvailableNow into one Delta table, `files` the same with Spark's own source
of files, which lists the bucket and needs no queue, and `tables` the job that fills the thirty tables of game events.
Each checks that every line has arrived.
Fresh: objects come at each of --rates for --seconds, while `source` or `files` runs without a pause between batches,
or `tables` runs again and again on an open session. Measured, for each object, are the seconds from the answer to its
PUT to the entry of the Delta log that shows the last of its rows.
Prints objects/s, p50, p95 and most; writes s3_sqs_drained.csv, s3_sqs_fresh.csv and s3_sqs.md; --page puts the last
one into a page. An interrupted run is resumed by the same command, a phase from its beginning. Compare within one run,
never across machines. --quick: 200 objects, one round, ten seconds.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus
from uuid import uuid4

import numpy as np
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from rich.table import Table as RichTable

from benchmarks.cells import Cells, Progress, Run, add_options, console, open_run, right_aligned
from benchmarks.chain_latency import commits
from benchmarks.mutation import spark_session
from benchmarks.mutation_ways import configure
from benchmarks.pages import add_page_option, markdown, publish
from engagement_platform.engine.drain import DrainPolicy, drain
from engagement_platform.lake.session import session_conf
from engagement_platform.local.aws import ACCOUNT, REGION, EmbeddedAws
from engagement_platform.local.games import GameTraffic
from engagement_platform.local.ports import free_ports
from engagement_platform.local.process import Supervisor
from engagement_platform.pipelines.games.feed import shipped
from engagement_platform.pipelines.games.job import INGEST_GAME_EVENTS
from engagement_platform.pipelines.jobs import build_job, close_source, open_stores, parts_of
from engagement_platform.settings import GamesSettings, Settings
from engagement_platform.sources.s3_events import S3File
from engagement_platform.sources.s3_sqs import S3SqsDataSource

TARGET_RATE, TARGET_S = 100.0, 60.0
"""Objects drained a second, and p95 from created to readable."""

WAYS = ("client", "source", "files", "tables")
STREAMS = ("source", "files", "tables")
AIMED = ("source", "tables")
"""Ways of this project."""
SCHEMA = "event_id string, event_type string, game_id string, player_id string, event_ts string, _file string"
AT_ONCE = DrainPolicy(idle_timeout=timedelta(0), max_duration=timedelta.max)
NAME, COMMAND = "s3_sqs", "make bench-s3-sqs ARGS=--page=docs/s3_sqs.md"
DRAINED = ("objects_a_second", "seconds")
FRESH = ("p50_s", "p95_s", "most_s", "objects")
Stream = tuple[Path, DataStreamWriter]
"""A folder of its own, and what writes into `table` there once it is started."""
_SENDERS = 8
_PAUSE_S = 0.2


@dataclass
class Bucket:
    """A bucket that announces its objects in a queue of its own; and when which object had been created."""

    aws: EmbeddedAws
    name: str
    lines: int
    records: int = 0
    """In a message that is sent for objects once they are there; 0: S3 announces each itself."""
    created: dict[str, float] = field(default_factory=dict)
    """Key, and the moment of the answer to its PUT, Unix time."""

    def __post_init__(self) -> None:
        self.s3, self.sqs = self.aws.client("s3"), self.aws.client("sqs")
        self.s3.create_bucket(Bucket=self.name, CreateBucketConfiguration={"LocationConstraint": REGION})
        # Nothing that is measured takes so long: what came twice would be counted twice.
        kept = {"VisibilityTimeout": "900"}
        self.queue = self.sqs.create_queue(QueueName=self.name, Attributes=kept)["QueueUrl"]
        self.dead = self.sqs.create_queue(QueueName=f"{self.name}-dead")["QueueUrl"]
        if not self.records:
            told = {"QueueArn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:{self.name}", "Events": ["s3:ObjectCreated:*"]}
            self.s3.put_bucket_notification_configuration(
                Bucket=self.name, NotificationConfiguration={"QueueConfigurations": [told]}
            )

    def fill(self, objects: int, rate: float | None = None) -> None:
        """Put so many objects, as fast as it goes or so many a second."""
        traffic, began = GameTraffic(objects), time.monotonic()
        with ThreadPoolExecutor(_SENDERS) as senders:
            # Made one after the other, since each line depends on what came before.
            for n in range(objects):
                if rate is not None:
                    time.sleep(max(0.0, began + n / rate - time.monotonic()))
                now = datetime.now(UTC)
                body = gzip.compress(b"\n".join(traffic.line(now) for _ in range(self.lines)) + b"\n", 1)
                senders.submit(self._put, f"events/{now:%Y/%m/%d/%H}/{n:08d}.json.gz", body)
        assert len(self.created) == objects, "not every object could be put"
        if self.records:
            self._announce()

    def _put(self, key: str, body: bytes) -> None:
        self.s3.put_object(Bucket=self.name, Key=key, Body=body)
        self.created[key] = time.time()

    def _announce(self) -> None:
        """As S3 does, with several objects in a message."""
        events = iter([json.loads(S3File(self.name, key).as_event())["Records"] for key in sorted(self.created)])
        while some := list(itertools.islice(events, self.records)):
            self.sqs.send_message(
                QueueUrl=self.queue, MessageBody=json.dumps({"Records": list(itertools.chain(*some))})
            )

    @property
    def written(self) -> int:
        """Lines in all objects."""
        return len(self.created) * self.lines


@dataclass(frozen=True)
class Bench:
    """One set of options: a session, moto, and where tables are."""

    spark: SparkSession
    aws: EmbeddedAws
    folder: Path
    options: argparse.Namespace

    def bucket(self, records: int = 0) -> Bucket:
        """A new one."""
        return Bucket(self.aws, f"bench-{uuid4().hex[:12]}", self.options.lines, records)

    def drained(self, way: str, objects: int, records: int) -> float:
        """Seconds in which a way drains so many objects that wait. Raises AssertionError where lines are missing.

        records: objects in a message.
        """
        bucket = self.bucket(records)
        bucket.fill(objects)
        run: Callable[[Bucket], Callable[[], int]] = {
            "client": self._by_client,
            "source": lambda of: self._by_stream(self._source(of)),
            "files": lambda of: self._by_stream(self._files(of)),
            "tables": self._by_tables,
        }[way]
        count = run(bucket)
        began = time.monotonic()
        lines = count()
        seconds = time.monotonic() - began
        # A queue may deliver a message twice, and boto3 alone does not notice.
        complete = lines >= bucket.written if way == "client" else lines == bucket.written
        assert complete, f"{way} took {lines:,} of {bucket.written:,} lines"
        return seconds

    def fresh(self, way: str, rate: float, seconds: float) -> list[float]:
        """Seconds of each object from created to readable while they come at a rate. Raises AssertionError, too."""
        bucket = self.bucket()
        objects = max(1, round(rate * seconds))
        sender = threading.Thread(target=bucket.fill, args=(objects, rate), daemon=True)
        ends = time.monotonic() + seconds + self.options.patience
        if way == "tables":
            seen = _readable(self._follow_with_tables(bucket, sender, ends), "source_object")
        else:
            stream = self._source(bucket) if way == "source" else self._files(bucket)
            seen = _readable([self._follow_with_stream(stream, bucket, sender, ends)], "_file")
        missing = bucket.created.keys() - seen
        # An object whose lines are all repetitions has no row; with more than one line there is none.
        assert not missing, f"{len(missing):,} of {objects:,} objects have not become readable"
        return [seen[key] - at for key, at in bucket.created.items()]

    def _follow_with_stream(self, stream: Stream, bucket: Bucket, sender: threading.Thread, ends: float) -> str:
        """Let the sender put objects while a stream runs, until it has all or time ends; the table of their lines."""
        home, writer = stream
        uri = str(home / "table")
        query = writer.start(uri)
        sender.start()
        while time.monotonic() < ends and (sender.is_alive() or _rows(uri) < bucket.written):
            assert query.isActive, str(query.exception())
            time.sleep(1)
        query.stop()
        sender.join()
        return uri

    def _follow_with_tables(self, bucket: Bucket, sender: threading.Thread, ends: float) -> list[str]:
        """The same with the job of game events, run again and again; the tables that may have rows."""
        settings = self._settings(bucket)
        job = build_job(INGEST_GAME_EVENTS, parts_of(self.spark, settings, open_stores(settings)))
        sender.start()
        landed = 0
        while time.monotonic() < ends and (sender.is_alive() or landed < bucket.written):
            landed += sum(report.counts["rows_in"] for report in drain(job, AT_ONCE))
            time.sleep(_PAUSE_S)
        close_source(job)
        sender.join()
        return [table.uri(settings.lake) for table in shipped(settings).tables]

    def _settings(self, bucket: Bucket) -> Settings:
        games = GamesSettings(bucket=bucket.name, queue_url=bucket.queue)
        settings = Settings(home=self.folder / bucket.name, lake_uri=None, games=games)
        configure(self.spark, session_conf(settings))
        return settings

    def _by_client(self, bucket: Bucket) -> Callable[[], int]:
        def take() -> int:
            s3, sqs, lines = bucket.s3, bucket.sqs, 0
            while found := sqs.receive_message(QueueUrl=bucket.queue, MaxNumberOfMessages=10).get("Messages"):
                for message in found:
                    for key in _keys(message["Body"]):
                        body = s3.get_object(Bucket=bucket.name, Key=key)["Body"].read()
                        lines += gzip.decompress(body).count(b"\n")
                taken = [{"Id": str(n), "ReceiptHandle": one["ReceiptHandle"]} for n, one in enumerate(found)]
                sqs.delete_message_batch(QueueUrl=bucket.queue, Entries=taken)
            return lines

        def count() -> int:
            with ThreadPoolExecutor(self.options.threads) as threads:
                return sum(threads.map(lambda _: take(), range(self.options.threads)))

        return count

    def _source(self, bucket: Bucket) -> Stream:
        options = {
            "queueUrl": bucket.queue,
            "endpoint": self.aws.endpoint,
            "region": REGION,
            "deadLetterQueueUrl": bucket.dead,
            "stateLocation": str(self.folder / bucket.name / "state"),
            "badRecords": "column",
        }
        rows = self.spark.readStream.format("s3-sqs").options(**options).schema(f"{SCHEMA}, _corrupt_record string")
        return self._stream(bucket, rows.load())

    def _files(self, bucket: Bucket) -> Stream:
        """As many files in a batch as `s3-sqs` takes by default."""
        reader = self.spark.readStream.schema(SCHEMA.removesuffix(", _file string"))
        rows = reader.options(recursiveFileLookup="true", maxFilesPerTrigger="1000").json(f"s3a://{bucket.name}/")
        return self._stream(bucket, rows.withColumn("_file", F.col("_metadata.file_path")))

    def _stream(self, bucket: Bucket, rows: DataFrame) -> Stream:
        home = self.folder / bucket.name
        return home, rows.writeStream.format("delta").option("checkpointLocation", str(home / "checkpoint"))

    def _by_stream(self, stream: Stream) -> Callable[[], int]:
        home, writer = stream

        def count() -> int:
            writer.trigger(availableNow=True).start(str(home / "table")).awaitTermination()
            return _rows(str(home / "table"))

        return count

    def _by_tables(self, bucket: Bucket) -> Callable[[], int]:
        settings = self._settings(bucket)
        job = build_job(INGEST_GAME_EVENTS, parts_of(self.spark, settings, open_stores(settings)))

        def count() -> int:
            landed = sum(report.counts["rows_in"] for report in drain(job, AT_ONCE))
            close_source(job)
            return landed

        return count


def _rows(uri: str) -> int:
    """Rows of a table, from its log; none while there is no table."""
    return DeltaTable(uri).count() if DeltaTable.is_deltatable(uri) else 0


def _keys(body: str) -> list[str]:
    return [unquote_plus(record["s3"]["object"]["key"]) for record in json.loads(body).get("Records", ())]


def _readable(uris: Sequence[str], column: str) -> Mapping[str, float]:
    """Key of each object that has rows in these tables, and the moment of the commit that showed the last of them."""
    seen: dict[str, float] = {}
    for uri in uris:
        for commit in commits(uri, column):
            for row in commit.rows:
                key = "events/" + str(row[column]).rpartition("events/")[2]
                seen[key] = max(seen.get(key, 0.0), commit.at)
    return seen


@contextmanager
def moto(folder: Path) -> Iterator[EmbeddedAws]:
    """An emulator of its own, which this process and Spark's workers find in the environment."""
    (port,) = free_ports(1)
    aws = EmbeddedAws(port)
    before = dict(os.environ)
    with Supervisor(folder / "logs") as supervisor:
        supervisor.start(aws.child())
        supervisor.wait_ready(60)
        os.environ |= aws.variables
        try:
            yield aws
        finally:
            os.environ.clear()
            os.environ.update(before)


def measure(options: argparse.Namespace, drained: Cells, fresh: Cells) -> None:
    """The phases that are missing, after short ones that are not kept; nothing is started when there are none."""
    cases = ((options.single, 1), (options.objects, options.records))
    wanted = [(way, *case, n) for n in range(1, options.rounds + 1) for case in cases for way in WAYS]
    rounds = [key for key in wanted if key not in drained]
    phases = [(way, rate) for rate in options.rates for way in STREAMS]
    streams = [key for key in phases if key not in fresh]
    if not rounds and not streams:
        return
    scratch = Path(tempfile.mkdtemp(prefix="bench-s3-sqs-"))
    total = len(wanted) + len(phases)
    progress = Progress(total, total - len(rounds) - len(streams))
    try:
        with moto(scratch) as aws, spark_session(scratch, "s3a://") as spark:
            spark.dataSource.register(S3SqsDataSource)
            bench = Bench(spark, aws, scratch, options)
            console.print("Warm-up, not counted", style="dim")
            for way in WAYS:
                bench.drained(way, 50, 10)
            for way, objects, records, n in rounds:
                seconds = bench.drained(way, objects, records)
                rate = objects / seconds
                drained.add((way, objects, records, n), objects_a_second=rate, seconds=seconds)
                progress.step(f"{way:>7} {rate:>7,.0f} objects a second, {records} in a message")
            for way, rate in streams:
                waits = bench.fresh(way, rate, options.seconds)
                keep(way, rate, waits, fresh)
                progress.step(f"{way:>7} p95 {np.percentile(waits, 95):.2f} s at {rate:g} objects a second")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def keep(way: str, rate: float, waits: Sequence[float], fresh: Cells) -> None:
    """The figures of a phase."""
    p50, p95, most = (float(np.percentile(waits, share)) for share in (50, 95, 100))
    fresh.add((way, rate), p50_s=p50, p95_s=p95, most_s=most, objects=len(waits))


def tables(drained: Cells, fresh: Cells) -> list[RichTable]:
    """A row for each way; its median round, against moto's own."""
    title = "Objects a second, all waiting"
    found = right_aligned(
        title, "way", "objects", "in a message", "median", "least", "most", "of the client's", "rounds"
    )
    for objects, records in sorted({(int(cell.key[1]), int(cell.key[2])) for cell in drained}):
        alone = _median(drained, "client", records)
        for way in WAYS:
            rates = drained.figures("objects_a_second", way=way, records=records)
            own = _median(drained, way, records)
            shown = (f"{value:,.0f}" for value in (own, min(rates), max(rates)))
            found.add_row(way, f"{objects:,}", f"{records}", *shown, f"{own / alone:.0%}", f"{len(rates)}")
    title = "Seconds from created to readable"
    waited = right_aligned(title, "way", "objects a second", "p50", "p95", "most", "objects")
    for cell in fresh:
        of: dict[str, Any] = dict(cell.figures)
        seconds = (f"{of[name]:.2f}" for name in FRESH[:3])
        waited.add_row(*cell.key, *seconds, f"{of['objects']:,.0f}")
    return [found, waited]


def targets(drained: Cells, fresh: Cells) -> list[str]:
    """What was aimed at, and what was found."""
    said = []
    most = max(int(cell.key[2]) for cell in drained)
    for way in AIMED:
        rate, p95 = _median(drained, way, most), max(fresh.figures("p95_s", way=way))
        held = f"target {TARGET_RATE:g}: {_met(rate >= TARGET_RATE)}"
        said += [
            f"`{way}` drains {rate:,.0f} objects a second, {most} in a message; {held}.",
            f"`{way}`: p95 from created to readable {p95:.1f} s; target below {TARGET_S:g}: {_met(p95 < TARGET_S)}.",
        ]
    return said


def _median(drained: Cells, way: str, records: int) -> float:
    return float(np.median(drained.figures("objects_a_second", way=way, records=records)))


def _met(met: bool) -> str:
    return "met" if met else "missed"


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--single", type=int, default=200, help="objects in a message each (default 200)")
    parser.add_argument("--objects", type=int, default=2_000, help="objects in messages of several (default 2000)")
    parser.add_argument("--records", type=int, default=10, help="objects in such a message (default 10)")
    parser.add_argument("--lines", type=int, default=20, help="events in an object (default 20)")
    parser.add_argument("--rounds", type=int, default=3, help="of each way (default 3)")
    parser.add_argument("--threads", type=int, default=8, help="connections of the client alone (default 8)")
    rates = [2.0, 20.0]
    parser.add_argument("--rates", type=float, nargs="+", default=rates, help=f"objects a second (default {rates})")
    parser.add_argument("--seconds", type=float, default=90.0, help="for which they come (default 90)")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds to wait after the last (default 120)")
    parser.add_argument("--quick", action="store_true", help="200 objects, one round, ten seconds")
    add_options(parser, NAME)
    add_page_option(parser)
    options = parser.parse_args(arguments)
    if options.quick:
        options.objects, options.single = min(options.objects, 200), min(options.single, 20)
        options.rounds, options.seconds = 1, min(options.seconds, 10.0)
    return options


def cells(run: Run) -> tuple[Cells, Cells]:
    """Rounds of draining, and phases of freshness."""
    drained = run.cells("s3_sqs_drained", ("way", "objects", "records", "round"), DRAINED)
    return drained, run.cells("s3_sqs_fresh", ("way", "rate"), FRESH)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, measure what is not measured yet, print."""
    options = parsed(arguments)
    page = vars(options).pop("page")
    run = open_run(NAME, options)
    drained, fresh = cells(run)
    measure(options, drained, fresh)
    shown, said = tables(drained, fresh), targets(drained, fresh)
    for one in shown:
        console.print(one)
    for line in said:
        console.print(line, markup=False)
    publish(NAME, COMMAND, markdown(run, shown, said), run, page)


if __name__ == "__main__":
    main()
