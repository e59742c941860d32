"""Personal data on its whole way, from HTTP to thirty tables: it is in the vault, and no byte of it anywhere else."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from engagement_platform.pii.vault import open_vault
from engagement_platform.pipelines.games.event_type import EventType
from engagement_platform_tests.files_with import places_with
from engagement_platform_tests.ingest_server.world import Server, key_for, server
from engagement_platform_tests.pii.test_corpus import CARDS, SHAPES, needles
from engagement_platform_tests.pipelines.games.conftest import World
from engagement_platform_tests.pipelines.games.planted import GAME, Planted, leaks, leaks_in, lines

CLEAN: Mapping[str, Callable[[str], str | None]] = {
    "trim": str.strip,
    "lower": str.lower,
    "upper": str.upper,
    "empty_is_null": lambda text: text or None,
}
READ_AS: Mapping[str, Callable[[str], object]] = {"date": date.fromisoformat, "timestamp": datetime.fromisoformat}


def sent_events(world: World, planted: Planted) -> list[dict[str, Any]]:
    """What has to become of each is told by how its id begins."""
    now = {"event_ts": datetime.now(UTC).isoformat()}
    made: list[dict[str, Any]] = []
    for declared in world.types.values():
        made.append(planted.plain(declared, f"plain/{declared.name}", **now))
        made.append(planted.with_declared(declared, f"declared/{declared.name}", **now))
        made.append(planted.with_looks(declared, f"looks/{declared.name}", **now))
    purchase, crash = world.types["purchase"], world.types["crash"]
    # Fields of the table's own with something in them that they are not meant for.
    odd = planted.plain(purchase, "looks/in a column", **now, store="CanaryQ00000@Example.org")
    # What the job refuses: of no type, out of range, of no platform; and the same event again with other values.
    nobodys = planted.with_declared(crash, "refused later/type", **now, event_type="nobody_declared_it")
    out = planted.with_declared(purchase, "refused later/price", **now, price=-1)
    again = planted.with_declared(purchase, "declared/purchase", **now)
    return [*made, odd, nobodys, out, again]


def refused_at_once(planted: Planted, declared: EventType) -> list[object]:
    """Personal data where an event needs its ids, and what is no event."""
    return [
        planted.plain(declared, "CanaryQ90001@example.org"),
        planted.plain(declared, "refused/player", player_id="+49 30 5550 9999"),
        planted.plain(declared, "refused/time", event_ts="yesterday", email="CanaryQ90002@example.org"),
        "a text about CanaryQ90003",
    ]


def post(running: Server, key: str, events: list[object]) -> dict[int, str]:
    """Send all of them, as lists and as zipped lines; number of a refused one -> reason."""
    reasons = dict[int, str]()
    said = {"Authorization": f"Bearer {key}", "User_Agent": "CanaryQ90004"}
    for begin in range(0, len(events), 10):
        part = events[begin : begin + 10]
        if begin % 20:
            reply = running.call("POST", "/v1/events?who=CanaryQ90005@example.org", json.dumps(part).encode(),
                                 Content_Type="application/json", **said)  # fmt: skip
        else:
            body = gzip.compress(b"\n".join(json.dumps(each, ensure_ascii=False).encode() for each in part))
            reply = running.call("POST", "/v1/events", body, Content_Encoding="gzip",
                                 Content_Type="application/x-ndjson", **said)  # fmt: skip
        assert reply.status == 200, reply.body
        reasons |= {begin + one["index"]: one["reason_code"] for one in reply.said["refused"]}
        assert reply.said["accepted"] == len(part) - len(reply.said["refused"])
    assert running.call("POST", "/v1/events", b"CanaryQ90006", Content_Type="application/json", **said).status == 422
    return reasons


def in_bucket(world: World) -> dict[str, bytes]:
    """Key to content of every object."""
    pages = world.s3.get_paginator("list_objects_v2").paginate(Bucket=world.bucket)
    keys = [found["Key"] for page in pages for found in page.get("Contents", ())]
    return {key: world.s3.get_object(Bucket=world.bucket, Key=key)["Body"].read() for key in keys}


def messages(world: World, queue: str) -> Iterator[bytes]:
    """What waits in a queue, and stays there."""
    found = []
    while more := world.sqs.receive_message(
        QueueUrl=queue, MaxNumberOfMessages=10, VisibilityTimeout=60, MessageAttributeNames=["All"]
    ).get("Messages"):
        found += more
    for each in found:
        world.sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=each["ReceiptHandle"], VisibilityTimeout=0)
        yield json.dumps(each).encode()


def cleaned(declared: EventType, said: Mapping[str, Any]) -> dict[str, Any]:
    """What the columns of an event have to say, by a loop over its declaration."""
    row: dict[str, Any] = {name: said.get(name) for name in ("event_id", "game_id", "player_id", "session_id")}
    row |= {"platform": said["platform"].strip().lower(), "country": said["country"].strip().upper()}
    for name, each in declared.fields.items():
        value: Any = said.get(name)
        if value is not None and each.type in READ_AS:
            value = READ_AS[each.type](value)
        for step in each.clean if isinstance(value, str) else ():
            value = CLEAN[step](value)
        row[name] = value
    return row


WAYS = [
    ("s3", "drop"),
    pytest.param("s3", "hash", marks=pytest.mark.slow),
    pytest.param("s3", "reject", marks=pytest.mark.slow),
    pytest.param("firehose", "drop", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("sink", "unknown"), WAYS)
def test_personal_data_posted_by_games_is_in_the_vault_and_no_byte_of_it_is_anywhere_else(
    world: World, tmp_path: Path, sink: str, unknown: str
) -> None:
    planted, home = Planted(), world.settings.home
    good = sent_events(world, planted)
    bad = refused_at_once(planted, world.types["login"])
    assert all(leaks_in(json.dumps(each).encode()) for each in [*good, *bad] if "plain/" not in str(each))
    if sink == "firehose":
        to = {
            "RoleARN": "arn:aws:iam::123456789012:role/r",
            "BucketARN": f"arn:aws:s3:::{world.bucket}",
            "Prefix": "e/",
        }
        world.moto.client("firehose").create_delivery_stream(
            DeliveryStreamName=world.bucket, ExtendedS3DestinationConfiguration=to
        )
    told = {"INGEST_SERVER__SINK": sink, "INGEST_SERVER__STREAM": world.bucket, "GAMES__BUCKET": world.bucket,
            "PII__UNKNOWN": unknown, "INGEST_SERVER__STOP_WITHIN": "PT200S"}  # fmt: skip
    key = key_for(home, GAME)
    with server(home, **told) as running:
        reasons = post(running, key, [*good, *bad])
        figures = running.call("GET", "/metrics").body
        assert list((home / "ingest" / "spool").iterdir()), "nothing was spooled"
        assert leaks(home) == [], "while it waits"
        status, logged = running.stop()
    assert (status, leaks_in(logged.encode()), leaks_in(figures)) == (0, False, False)

    accepted = [each for number, each in enumerate(good) if number not in reasons]
    looked = {number for number, each in enumerate(good) if each["event_id"].startswith("looks/")}
    assert reasons == {
        **(dict.fromkeys(looked, "pii_found") if unknown == "reject" else {}),
        **dict(enumerate(("pii_in_id", "pii_in_id", "bad_event_ts", "not_an_object"), len(good))),
    }
    objects = in_bucket(world)
    assert Counter(line["event_id"] for line in lines(objects)) == Counter(each["event_id"] for each in accepted)
    assert [key for key, body in objects.items() if leaks_in(key.encode())] == []
    for number, body in enumerate(objects.values()):
        (tmp_path / f"object {number}").write_bytes(body)
    assert not any(map(leaks_in, messages(world, world.queue)))

    reports = [report for _ in range(3) for report in world.run() if report.counts.get("rows_in")]
    sums = Counter[str]()
    for report in reports:
        sums.update(report.counts)
    assert sums["rows_in"] == len(accepted) == sums["landed"] + sums["quarantined"] + sums["duplicates"]
    assert (sums["quarantined"], sums["duplicates"]) == (2, 1)
    assert world.left() == 0
    assert not any(map(leaks_in, messages(world, world.dead)))

    for name, declared in world.types.items():
        expected = {
            each["event_id"]: cleaned(declared, each)
            for each in accepted
            if each["event_type"] == name and not each["event_id"].startswith("refused")
        }
        rows = {row["event_id"]: row for row in world.rows(name)}
        hidden = rows.get("looks/in a column", {}).get("store")
        if "looks/in a column" in expected:
            assert (hidden or "").startswith("hmac:") == (unknown == "hash")
            expected["looks/in a column"]["store"] = hidden
        assert {key: {column: row[column] for column in expected[key]} for key, row in rows.items()} == expected
    assert {row["reason_code"]: json.loads(row["value"])["event_id"] for row in world.rows("quarantine")} == {
        "unknown_event_type": "refused later/type", "out_of_range": "refused later/price",
    }  # fmt: skip

    refused = [each for number, each in enumerate([*good, *bad]) if number in reasons]
    assert_the_vault_holds(world, planted, accepted, refused)
    assert leaks(tmp_path) == []
    assert not leaks_in(world.moto.log.read_bytes()), "what the emulator logged"


def assert_the_vault_holds(
    world: World, planted: Planted, accepted: list[dict[str, Any]], refused: list[object]
) -> None:
    """Every declared value of what was accepted, under its player; every event that was refused, whole."""
    vault = open_vault(world.settings)

    def ordered(values: Iterator[object]) -> list[str]:
        return sorted(json.dumps(value, sort_keys=True) for value in values)

    players = {each["player_id"] for each in accepted}
    kept = [one for player in sorted(players) for one in vault.read(player, purpose="support", reader="test")]
    ids = {each["event_id"] for each in accepted}
    expected = [(event_id, shown(value)) for event_id, value in planted.values if event_id in ids]
    assert len(expected) > len(world.types) * 20
    assert Counter((one.event_id, shown(one.value)) for one in kept) == Counter(expected)
    bodies = [body for _row, body in vault.refused(GAME, purpose="support", reader="test")]
    assert bodies.count(b"CanaryQ90006") == 1
    events = (json.loads(body) for body in bodies if body != b"CanaryQ90006")
    assert sorted(map(shown, events)) == sorted(map(shown, refused))


def shown(value: object) -> str:
    """A value of JSON as a text that equal ones share."""
    return json.dumps(value, sort_keys=True)


def test_no_shape_of_the_corpus_is_in_an_object_a_table_or_its_log(world: World, tmp_path: Path) -> None:
    declared, now = world.types["login"], datetime.now(UTC).isoformat()
    sent = [
        {**Planted().plain(declared, f"shape-{number}", event_ts=now), **shape} for number, shape in enumerate(SHAPES)
    ]
    key = key_for(world.settings.home, GAME)
    told = {"INGEST_SERVER__SINK": "s3", "GAMES__BUCKET": world.bucket, "INGEST_SERVER__STOP_WITHIN": "PT200S"}
    with server(world.settings.home, **told) as running:
        replies = [running.post(key, sent[at : at + 500]) for at in range(0, len(sent), 500)]
        assert {reply.status for reply in replies} == {200}
        assert running.stop()[0] == 0
    objects = in_bucket(world)
    for number, body in enumerate(objects.values()):
        (tmp_path / f"object {number}.gz").write_bytes(body)
    reports = [report for _ in range(3) for report in world.run()]
    accepted = sum(reply.said["accepted"] for reply in replies)
    assert sum(report.counts.get("rows_in", 0) for report in reports) == accepted > 200
    assert len(world.rows("login")) > 200, "most of them are rows"
    assert places_with([tmp_path, world.settings.home], needles()) == []


@pytest.mark.parametrize("is_safe", [False, True], ids=["looked at", "declared safe"])
def test_no_shape_in_a_field_that_has_a_column_is_in_its_table_or_the_tables_log(world: World, is_safe: bool) -> None:
    """Where the fields are declared safe the shapes are found in both, so that they are looked for rightly."""
    login, now, columns = world.types["login"], datetime.now(UTC).isoformat(), {"app_version", "platform"}
    texts = [text for shape in SHAPES if isinstance(text := shape.get("note"), str)]
    # The same card in each row is the least and the greatest in the log.
    sent = [
        Planted().plain(login, f"column-{number}", event_ts=now, app_version=text, platform=CARDS[0])
        for number, text in enumerate(texts)
    ]
    told = {"INGEST_SERVER__SINK": "s3", "GAMES__BUCKET": world.bucket, "INGEST_SERVER__STOP_WITHIN": "PT200S"}
    told |= {"PII__SAFE": json.dumps({"*": " ".join(f"/{name}" for name in sorted(columns))})} if is_safe else {}
    key = key_for(world.settings.home, GAME)
    with server(world.settings.home, **told) as running:
        replies = [running.post(key, sent[at : at + 500]) for at in range(0, len(sent), 500)]
        assert sum(reply.said["accepted"] for reply in replies) == len(sent) > 200
        assert running.stop()[0] == 0
    for _ in range(3):
        world.run()
    rows = world.rows("login")
    assert len(rows) == len(sent)
    assert {name for row in rows for name in columns if row[name]} == (columns if is_safe else set())
    found = places_with([Path(login.table.uri(world.settings.lake))], needles())
    assert {"_delta_log" in path.parts for path in found} == ({True, False} if is_safe else set())
