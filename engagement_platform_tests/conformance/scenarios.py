"""What the matrix disturbs: one command each, the lake that it finds, and how its work is finished after a fault."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from secrets import token_hex

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from engagement_platform.lake.engagement import ALIAS
from engagement_platform.local.aws import BUCKET, EmbeddedAws
from engagement_platform.pipelines.profiles.entity import Entity
from engagement_platform.sources.s3_events import S3File, event_of
from engagement_platform_tests.conformance.sent import Objects
from engagement_platform_tests.ingestion.oracle import as_bytes
from engagement_platform_tests.ingestion.test_whole_path import Machine
from engagement_platform_tests.maintenance.importing.stores import store
from engagement_platform_tests.maintenance.layout.test_vacuum import own_retention
from engagement_platform_tests.pipelines.mutations.histories import random_history
from engagement_platform_tests.pipelines.profiles.histories import DEVICE, PROFILE, declared, side_by_side
from engagement_platform_tests.pipelines.profiles.oracle import Said

CLI, PREFIX = "engagement_platform.cli", "ENGAGEMENT_PLATFORM_"
INGEST, REQUESTS, APPLY, MOVE = (
    "ingest-engagements",
    "ingest-mutation-requests",
    "apply-mutations",
    "rematerialize-aliases",
)
PROFILES, MOVE_PROFILES = "ingest-profile-changes", "rematerialize-profile"
DEVICES, MOVE_DEVICES, DEFS_FOLDER = "ingest-device-changes", "rematerialize-device", f"{PREFIX}DEFS_FOLDER"
QUEUE_URL, DEAD = f"{PREFIX}GAMES__QUEUE_URL", "-dead-letters"
GAMES, TYPES = "ingest-game-events", ("heartbeat", "login", "purchase")
HISTORIES, OBJECTS = 4, 11
RECEIPTS = 10
"""With more than these a message is dead."""


def job(name: str) -> tuple[str, ...]:
    return CLI, "run", name, "--until-idle"


def nothing(_machine: Machine) -> None:
    """Finds what every scenario finds."""


def after(*jobs: str) -> Callable[[Machine], None]:
    def run(machine: Machine) -> None:
        for name in jobs:
            machine.cli(*job(name)[1:])

    return run


@dataclass(frozen=True)
class Scenario:
    """program: module and arguments; `{folder}` in them is the machine's folder, `{aliases}` the version that the alias
    table has in the lake that `fill` leaves, `{today}` the UTC day. prepare: what is done to that lake before.

    variables: for all that is run on it. own: makes what each copy of it needs for itself, and returns variables, too.
    finish: programs that do the rest after a fault, one after the other until all is there; by default the same one.
    alone: a process that is stopped keeps others out, so nobody can do its work meanwhile.
    """

    name: str
    program: Sequence[str]
    prepare: Callable[[Machine], None] = lambda _machine: None
    variables: Mapping[str, str] = field(default_factory=dict)
    own: Callable[[Machine], Mapping[str, str]] = lambda _machine: {}
    finish: Sequence[Sequence[str]] = ()
    alone: bool = False


def fill(machine: Machine, seed: int) -> None:
    """A lake with batches of every job, and on the topics as much again that nobody has read."""
    organizations = [random_history(seed * HISTORIES + number) for number in range(HISTORIES)]
    changes = side_by_side(seed, PROFILE, 10, 2)
    for half in (0, 1):
        messages = [message for one in organizations for message in _half(one, half)]
        _produce(machine, "engagements", [as_bytes(each) for each in messages if "request_id" not in each])
        _produce(machine, "mutation-requests", [as_bytes(each) for each in messages if "request_id" in each])
        _produce(machine, "profile-changes", _said(changes[half], PROFILE))
        if half == 0:
            after(INGEST, REQUESTS, APPLY, PROFILES)(machine)


def more(machine: Machine, seed: int, topic: str) -> None:
    """Further messages of one topic about the same persons, with ids of their own."""
    own = "engagement_id" if topic == "engagements" else "request_id"
    messages = (
        {**message, own: f"{seed}-{message[own]}"}
        for number in range(HISTORIES)
        for message in random_history(seed + number, organization=f"org-{number}")
        if ("request_id" in message) == (own == "request_id")
    )
    _produce(machine, topic, list(map(as_bytes, messages)))


def _half(history: list[dict[str, object]], half: int) -> list[dict[str, object]]:
    middle = (len(history) + 1) // 2
    return history[middle:] if half else history[:middle]


def _said(changes: Sequence[Said], entity: Entity) -> list[bytes]:
    return [json.dumps(each.message(entity), default=lambda day: day.isoformat()).encode() for each in changes]


def _produce(machine: Machine, topic: str, lines: Sequence[bytes]) -> None:
    if lines:
        file = machine.folder / "some.jsonl"
        file.write_bytes(b"".join(line + b"\n" for line in lines))
        machine.cli("produce", "--file", str(file), "--topic", _named(machine, topic))


def _named(machine: Machine, topic: str) -> str:
    return machine.environment.get(TOPICS.get(topic, ""), topic)


def make_topics(machine: Machine, names: Iterable[str]) -> None:
    admin = AdminClient({"bootstrap.servers": machine.environment[f"{PREFIX}KAFKA__BOOTSTRAP_SERVERS"]})
    for made in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        made.result(timeout=60)


TOPICS = {
    topic: f"{PREFIX}KAFKA__{topic.replace('-', '_').upper()}_TOPIC"
    for topic in ("engagements", "mutation-requests", "profile-changes")
}


def followed(machine: Machine) -> None:
    """A replica that has everything until another batch lands."""
    done = machine._python("-m", "examples.replica", "refresh", str(machine.folder / "replica.duckdb"))
    assert done.returncode == 0, done.stderr
    after(INGEST, REQUESTS, APPLY)(machine)


def moved(machine: Machine) -> None:
    """The base of profiles was written anew, and its former files may go at once."""
    after(MOVE_PROFILES, PROFILES, MOVE_PROFILES)(machine)
    own_retention(PROFILE.base.uri(machine.lake), 0)


def devices(machine: Machine) -> None:
    """A second entity, whose base has partitions: some changes are in it, as many again wait."""
    topic = f"device-changes-{machine.environment['SEED']}"
    make_topics(machine, [topic])
    (machine.folder / "defs").mkdir()
    (machine.folder / "defs" / "defs.yaml").write_text(declared(DEVICE, topic))
    own = replace(machine, environment={**machine.environment, **with_devices(machine)})
    first, second = side_by_side(int(machine.environment["SEED"]), DEVICE, 10, 2)
    _produce(own, topic, _said(first, DEVICE))
    after(DEVICES, MOVE_DEVICES)(own)
    _produce(own, topic, _said(second, DEVICE))
    after(DEVICES)(own)


def with_devices(machine: Machine) -> Mapping[str, str]:
    return {DEFS_FOLDER: str(machine.folder / "defs")}


def keyed(machine: Machine) -> None:
    """The secrets by which ids are replaced are there; each home draws its own."""
    machine.cli("erase", "--subject", "nobody", "--yes", "--out", str(machine.folder / "nobody.json"))


def old_store(machine: Machine) -> None:
    """Files of an old store, to be imported."""
    store(machine.folder / "old")


def objects(machine: Machine) -> None:
    """Objects with events, and lines that are none."""
    s3 = _aws(machine).client("s3")
    for key, content in Objects(TYPES, Random(0)).slice(OBJECTS).items():
        s3.put_object(Bucket=BUCKET, Key=key, Body=content)


def announced(machine: Machine) -> Mapping[str, str]:
    """A queue of its own, in which every object is announced: who reads messages takes them from others."""
    aws = _aws(machine)
    s3, sqs = aws.client("s3"), aws.client("sqs")
    name = token_hex(8)
    dead = sqs.create_queue(QueueName=f"{name}{DEAD}")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": RECEIPTS})
    queue = sqs.create_queue(QueueName=name, Attributes={"RedrivePolicy": redrive})["QueueUrl"]
    for each in s3.list_objects_v2(Bucket=BUCKET)["Contents"]:
        when, etag = each["LastModified"].isoformat(), each["ETag"].strip('"')
        file = S3File(BUCKET, each["Key"], etag=etag, size=each["Size"], event_time=when)
        sqs.send_message(QueueUrl=queue, MessageBody=event_of([file]))
    return {QUEUE_URL: queue}


def messages(machine: Machine, queue: str) -> list[str]:
    """How many messages wait in a queue of `announced`, how many somebody has received, and how many are dead."""
    sqs, of = _aws(machine).client("sqs"), "ApproximateNumberOfMessages"
    asked = (("waiting", queue, of), ("in flight", queue, f"{of}NotVisible"), ("dead", f"{queue}{DEAD}", of))
    return [
        f"{sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])['Attributes'][name]} {what}"
        for what, url, name in asked
    ]


def _aws(machine: Machine) -> EmbeddedAws:
    return EmbeddedAws(int(machine.environment[f"{PREFIX}EMBEDDED__AWS_PORT"]))


RESTORE = (CLI, "restore", ALIAS.name, "--to", "{aliases}", "--reason", "a bad batch", "--yes")
ERASE = (CLI, "erase", "--subject", "p1", "--yes", "--out", "{folder}/receipt.json")
REPLICA = ("examples.replica", "refresh", "{folder}/replica.duckdb")
_REREAD = json.dumps({"ops": {"ingest_engagement_tables": {"config": {"mode": "reread"}}}})
_TABLES = ",".join(f"engagement/{name}" for name in ("data", "changeset", "mapping", "notification", "quarantine"))
BACKFILL = (
    "dagster", "asset", "materialize", "-m", "engagement_platform.definitions", "--partition", "{today}",
    "--select", _TABLES, "--config-json", _REREAD.replace("{", "{{").replace("}", "}}"),
)  # fmt: skip
"""What a backfill of the day launches in the UI: its messages are read again."""

SCENARIOS = (
    Scenario("ingest", job(INGEST)),
    Scenario("requests", job(REQUESTS)),
    Scenario("apply", job(APPLY), after(INGEST, REQUESTS)),
    *(
        Scenario(f"move by {way}", job(MOVE), after(INGEST, REQUESTS, APPLY), {f"{PREFIX}MUTATION__APPLY": way})
        for way in ("merge", "deletion_vectors", "overwrite")
    ),
    Scenario(
        "games",
        job(GAMES),
        objects,
        {f"{PREFIX}GAMES__MAX_OBJECTS": "6", f"{PREFIX}GAMES__VISIBILITY": "PT3S"},
        announced,
        # Messages that a process had received before it was ended come again when nobody holds them any more.
        (job(GAMES),) * 3,
    ),
    Scenario("profiles", job(PROFILES)),
    *(
        Scenario(
            f"move profiles by {way}", job(MOVE_PROFILES), after(PROFILES), {f"{PREFIX}REMATERIALIZE__METHOD": way}
        )
        for way in ("merge", "overwrite")
    ),
    Scenario(
        "move devices by replace_where",
        job(MOVE_DEVICES),
        devices,
        {f"{PREFIX}REMATERIALIZE__METHOD": "replace_where"},
        with_devices,
    ),
    Scenario("optimize", (CLI, "optimize"), after(INGEST, REQUESTS, APPLY, PROFILES)),
    Scenario(
        "vacuum",
        (CLI, "vacuum", PROFILE.base.name),
        moved,
        {f"{PREFIX}MAINTENANCE__ROLLBACK_WINDOW": "PT0S", f"{PREFIX}REMATERIALIZE__METHOD": "overwrite"},
    ),
    Scenario("restore", RESTORE, after(INGEST, REQUESTS, APPLY), finish=((CLI, "restore", "--finish"), RESTORE)),
    Scenario("erase", ERASE, keyed),
    Scenario("backfill", BACKFILL),
    Scenario(
        "import",
        (CLI, "import", "{folder}/old", "old/rows", "--yes"),
        old_store,
    ),
    # DuckDB gives its file to one process at a time.
    Scenario("consumer", REPLICA, followed, alone=True),
)
