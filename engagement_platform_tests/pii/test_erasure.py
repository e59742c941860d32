"""What is left of a subject after it was erased: nothing, in no byte of any file; and what the receipt says of it."""

from __future__ import annotations

import base64
import gzip
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from engagement_platform.cli import app
from engagement_platform.engine.model import Transaction
from engagement_platform.ingest_server.delivery import Delivery
from engagement_platform.ingest_server.events import Sent
from engagement_platform.ingest_server.intake import Intake
from engagement_platform.ingest_server.sinks import FolderSink
from engagement_platform.ingest_server.spool import Segment, Spool
from engagement_platform.ingest_server.spooled import SpooledRecords, spool_folder
from engagement_platform.ingest_server.stored import stored_objects
from engagement_platform.pii.contracts import REFUSED, VAULT
from engagement_platform.pii.erasure import Erasable, Subject, erase, expire_refused, subject, unattributed
from engagement_platform.pii.keys import Owner
from engagement_platform.pii.receipts import ReceiptRefused, receipt, verify
from engagement_platform.pii.scan import places_with
from engagement_platform.pii.vault import Refusal, Vault
from engagement_platform.settings import Settings
from engagement_platform_tests.ingest_server.world import event, ids, stored

NOW = datetime(2026, 11, 22, 10, 30, tzinfo=UTC)


class Pipe:
    """Events in, delivered at once."""

    def __init__(self, settings: Settings, vault: Vault) -> None:
        self.settings, self.vault, self.games = settings, vault, settings.home / "games"

    def send(self, *events: object, game: str = "puzzle", deliver: bool = True) -> list[tuple[Segment, bytes]]:
        """The segments that were made, and their bytes."""
        folder = self.settings.home / "ingest" / "spool"
        spool = Spool(folder, segment_bytes=10**9, segment_age=timedelta(hours=1))
        taken = Intake(self.settings, self.vault.keyring, spool.id).take(game, [Sent(one) for one in events], NOW)
        kept = Event()
        spool.append(b"".join(taken.records), lambda _failed: kept.set())
        assert kept.wait(20)
        spool.finish()
        made = [(segment, segment.path.read_bytes()) for segment in spool.sealed()]
        if deliver:
            for segment, _ in made:
                Delivery(spool, self.vault, FolderSink(self.games)).deliver(segment)
        spool.close()
        return made

    def values(self, subject_id: str) -> list[object]:
        return [one.value for one in self.vault.read(subject_id, purpose="support", reader="test")]


@pytest.fixture
def pipe(platform: Settings, vault: Vault) -> Pipe:
    return Pipe(platform, vault)


def events_of(name: str) -> list[object]:
    """Good, refused, and refused without a readable subject."""
    return [
        event(f"{name}-1", player_id=f"{name}-canary", email=f"{name}-canary@example.org"),
        event(f"{name}-2", player_id=f"{name}-canary", phone="+49 30 1234567"),
        {"event_id": f"{name}-3", "player_id": f"{name}-canary", "text": "no type"},
        f"a text about {name}-canary",
    ]


def test_nothing_of_an_erased_subject_is_left_and_others_have_all_they_had(pipe: Pipe, platform: Settings) -> None:
    pipe.send(*events_of("bob"), *events_of("amy"))
    pipe.send(event("bob-5", player_id="bob-canary", email="bob-canary@example.org"), game="other")
    roots = [platform.home]
    assert places_with(roots, [b"bob-canary"]), "the ids stand in the objects of raw events"
    who = subject(pipe.vault, "bob-canary", None)
    keys, done = erase(pipe.vault, who, stored_objects(platform))
    assert keys == 2
    assert {one.name: (one.rows, one.left) for one in done} == {
        "pii/vault": (3, 0),
        "pii/refused": (2, 0),
        "objects of raw events": (3, 0),
    }
    assert places_with(roots, [b"bob-canary"]) == []
    assert pipe.values("bob-canary") == []
    assert pipe.values("amy-canary") == ["amy-canary@example.org", "+49 30 1234567"]
    assert ids(stored(pipe.games)) == ["amy-1", "amy-2"]
    assert len(pipe.vault.refused("puzzle", purpose="support", reader="test")) == 2
    parquet = [path for table in (VAULT, REFUSED) for path in Path(pipe.vault.uri(table)).rglob("*.parquet")]
    assert all(who.ref not in str(pq.ParquetFile(path).read().to_pylist()) for path in parquet)


def test_an_erased_subject_does_not_come_back_by_replay_or_new_events(pipe: Pipe, platform: Settings) -> None:
    made = pipe.send(*events_of("bob"))
    waiting = pipe.send(event("bob-9", player_id="bob-canary", email="bob-canary@example.org"), deliver=False)
    erase(pipe.vault, subject(pipe.vault, "bob-canary", None), stored_objects(platform))
    for segment, content in (*made, *waiting):
        segment.path.write_bytes(content)
    pipe.send(*events_of("bob")[:3], event("amy-1", player_id="amy"))
    assert ids(stored(pipe.games)) == ["amy-1"]
    assert pipe.values("bob-canary") == []
    assert places_with([platform.home / "games", platform.home / "lake"], [b"bob-canary"]) == []


def test_what_waits_in_the_spool_is_emptied_and_the_rest_is_delivered(pipe: Pipe, platform: Settings) -> None:
    """Also what was refused without saying whom it is about: no tombstone would discard it."""
    pipe.send(*events_of("bob"), *events_of("amy"), deliver=False)
    folder, spooled = spool_folder(platform), SpooledRecords(platform)
    sizes = {path.name: path.stat().st_size for path in folder.glob("*.sealed")}
    assert places_with([folder], [b"bob-canary"]), "nothing was planted"
    who = subject(pipe.vault, "bob-canary", None)
    _, done = erase(pipe.vault, who, [spooled])
    assert [(one.rows, one.left, one.until) for one in done if one.name == spooled.name] == [(4, 0, {})]
    assert places_with([platform.home], [b"bob-canary"]) == []
    assert {path.name: path.stat().st_size for path in folder.glob("*.sealed")} == sizes, "what is counted stays true"
    spool = Spool(folder, segment_bytes=10**9, segment_age=timedelta(hours=1))
    [segment] = spool.sealed()
    delivered = Delivery(spool, pipe.vault, FolderSink(pipe.games)).deliver(segment)
    spool.close()
    assert (delivered.events, delivered.refused, delivered.erased) == (2, 2, 4)
    assert ids(stored(pipe.games)) == ["amy-1", "amy-2"]
    assert pipe.values("amy-canary") == ["amy-canary@example.org", "+49 30 1234567"]
    refused = pipe.vault.refused("puzzle", purpose="support", reader="test")
    assert len(refused) == 2
    assert not any(b"bob" in body for _, body in refused)


def test_a_segment_that_a_server_writes_has_its_day_and_one_that_a_crash_left_is_emptied(
    pipe: Pipe, platform: Settings
) -> None:
    folder, spooled = spool_folder(platform), SpooledRecords(platform)
    spool = Spool(folder, segment_bytes=10**9, segment_age=timedelta(hours=1))
    taken = Intake(platform, pipe.vault.keyring, spool.id).take(
        "puzzle", [Sent(each) for each in events_of("bob")], NOW
    )
    kept = Event()
    spool.append(b"".join(taken.records), lambda _failed: kept.set())
    assert kept.wait(20)
    [written] = folder.glob("*.open")
    content, who = written.read_bytes(), subject(pipe.vault, "bob-canary", None)
    keys, done = erase(pipe.vault, who, [spooled])
    assert written.read_bytes() == content, "the server writes it"
    assert [list(one.until) for one in done if one.name == spooled.name] == [["files"]]
    given = receipt(pipe.vault.keyring, who, keys, done, datetime.now(UTC))
    checks = verify(pipe.vault, given, [spooled], "bob-canary", platform.home)
    assert [check.seen for check in checks if check.what == "waits"], "until it is delivered"
    assert all(check.holds for check in checks)
    spool.close()
    for path in folder.glob("*.sealed"):
        path.rename(path.with_suffix(".open"))
    _, done = erase(pipe.vault, who, [spooled])
    assert [(one.rows, one.left, one.until) for one in done if one.name == spooled.name] == [(4, 0, {})]
    assert places_with([platform.home], [b"bob-canary"]) == []


def test_a_subject_erased_in_one_game_stays_in_the_others(pipe: Pipe, platform: Settings) -> None:
    for game in ("puzzle", "racing"):
        pipe.send(event("e", player_id="bob-canary", email="b@example.org"), {"player_id": "bob-canary"}, game=game)
    who = subject(pipe.vault, "bob-canary", "racing")
    keys, done = erase(pipe.vault, who, stored_objects(platform))
    assert (keys, [one.rows for one in done]) == (1, [1, 1, 1])
    assert [one["game_id"] for one in stored(pipe.games)] == ["puzzle"]
    assert pipe.values("bob-canary") == ["b@example.org"]
    pipe.send(event("f", player_id="bob-canary", email="c@example.org"), game="puzzle")
    assert pipe.values("bob-canary") == ["b@example.org", "c@example.org"]


class Rows(Erasable):
    """Another table, as the platform's own will be."""

    name = "engagement/data"

    def __init__(self, *ids: str, remains: bool = False) -> None:
        self.ids, self.remains = list(ids), remains

    def erase(self, who: Subject) -> int:
        gone = [one for one in self.ids if one == who.id and not self.remains]
        self.ids = [one for one in self.ids if one not in gone]
        return len(gone)

    def left(self, who: Subject) -> int:
        return self.ids.count(who.id)


def test_other_tables_are_asked_and_a_receipt_tells_when_something_stays(pipe: Pipe, platform: Settings) -> None:
    who = subject(pipe.vault, "bob-canary", None)
    tables: list[Erasable] = [Rows("bob-canary", "amy"), Rows("bob-canary", remains=True)]
    keys, done = erase(pipe.vault, who, tables)
    assert [(one.rows, one.left) for one in done[2:]] == [(1, 0), (0, 1)]
    given = receipt(pipe.vault.keyring, who, keys, done, NOW)
    assert [one["left"] for one in given["places"]] == [0, 0, 0, 1]
    checks = verify(pipe.vault, given, tables, "bob-canary", platform.home)
    assert [check.what for check in checks if not check.holds] == ["engagement/data"]


def test_a_receipt_is_proved_by_its_signature_and_by_looking_again(pipe: Pipe, platform: Settings) -> None:
    pipe.send(*events_of("bob"))
    who = subject(pipe.vault, "bob-canary", None)
    given = receipt(pipe.vault.keyring, who, *erase(pipe.vault, who, stored_objects(platform)), NOW)
    assert "bob-canary" not in json.dumps(given)
    assert all(check.holds for check in verify(pipe.vault, given, (), None, platform.home))
    for name, value in (("keys_destroyed", 9), ("game", "x"), ("subject_ref", "0" * 64), ("erased_ts", "now")):
        with pytest.raises(ReceiptRefused, match="changed after it was signed"):
            verify(pipe.vault, {**given, name: value}, (), None, platform.home)
    with pytest.raises(ReceiptRefused, match="another subject"):
        verify(pipe.vault, given, (), "amy-canary", platform.home)
    with pytest.raises(ReceiptRefused, match="other stores"):
        verify(pipe.vault, {**given, "public_key": base64.b64encode(b"0" * 32).decode()}, (), None, platform.home)
    (platform.home / "note.txt").write_text("ask bob-canary")
    failed = [check for check in verify(pipe.vault, given, (), "bob-canary", platform.home) if not check.holds]
    assert [(check.what, check.seen) for check in failed] == [("bytes", str(platform.home / "note.txt"))]


def test_an_erasure_that_stopped_in_the_middle_is_done_by_the_same_call(
    pipe: Pipe, platform: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe.send(*events_of("bob"))
    who = subject(pipe.vault, "bob-canary", None)

    class Dies(Rows):
        def erase(self, who: Subject) -> int:
            raise OSError("the machine stopped")

    with pytest.raises(OSError, match="stopped"):
        erase(pipe.vault, who, [Dies()])
    assert pipe.values("bob-canary") == []
    erase(pipe.vault, who, stored_objects(platform))
    assert places_with([platform.home], [b"bob-canary"]) == []


def test_from_the_command_line_a_subject_is_erased_and_the_receipt_verified(
    pipe: Pipe, platform: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(platform.home))
    pipe.send(*events_of("bob"))
    call, file = CliRunner().invoke, tmp_path / "receipt.json"
    done = call(app, ["pii", "read", "--subject", "bob-canary", "--purpose", "access-request"])
    assert [json.loads(line)["value"] for line in done.stdout.splitlines()] == pipe.values("bob-canary")
    done = call(app, ["pii", "refused", "--game", "puzzle", "--purpose", "support"])
    assert [json.loads(line)["reason_code"] for line in done.stdout.splitlines()] == ["bad_event_type", "not_an_object"]
    assert call(app, ["erase", "--subject", "bob-canary", "--yes", "--out", str(file)]).exit_code == 0
    done = call(app, ["erase", "--verify", str(file), "--subject", "bob-canary"])
    assert (done.exit_code, done.stdout.count(" ok ")) == (0, 20), done.stdout
    assert call(app, ["pii", "rotate"]).exit_code == 0
    assert call(app, ["erase", "--verify", str(file)]).exit_code == 0
    (platform.home / "left.txt").write_text("bob-canary")
    assert call(app, ["erase", "--verify", str(file), "--subject", "bob-canary"]).exit_code == 1


def test_refused_events_go_after_their_time_with_their_keys(vault: Vault) -> None:
    now = datetime.now(UTC)
    for segment, days in enumerate((40, 31, 29, 0), 1):
        received = now - timedelta(days=days)
        owner = Owner("g", vault.keyring.ref(unattributed(received.date())))
        vault.refuse([Refusal(f"r-{days}", owner, "c", "s", received, b"x")], segment, Transaction("s", segment))
    assert expire_refused(vault, timedelta(days=30)) == 2
    assert expire_refused(vault, timedelta(days=30)) == 0
    assert sorted(row["refused_id"] for row in vault.rows_of(REFUSED)) == ["r-0", "r-29"]
    assert len(list(Path(vault.uri(REFUSED)).rglob("*.parquet"))) == 2
    assert vault.keyring.count(Owner("g", vault.keyring.ref(unattributed((now - timedelta(days=40)).date())))) == 0


def test_bytes_are_found_in_plain_packed_and_columnar_files(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_bytes(b"x" * (4 * 1024 * 1024 - 3) + b"canary")
    (tmp_path / "in" / "b.gz").write_bytes(gzip.compress(b"a canary"))
    rows = pa.table({"s": pa.array([{"t": "some canary"}]), "d": pa.array(["x"]).dictionary_encode()})
    pq.write_table(rows, tmp_path / "in" / "c.parquet", compression="zstd")
    pq.write_table(pa.table({"s": ["nothing"]}), tmp_path / "in" / "d.parquet")
    (tmp_path / "in" / "canary").mkdir()
    (tmp_path / "in" / "broken.gz").write_bytes(b"\x1f\x8bcanar")
    (tmp_path / "in" / "broken.parquet").write_bytes(b"PAR1")
    found = [path.name for path in places_with([tmp_path], [b"canary"])]
    assert found == ["a.txt", "b.gz", "c.parquet", "canary"]
