"""What is left of a subject after it was erased: nothing, in no byte of any file; and what the receipt says of it."""

from __future__ import annotations

import base64
import errno
import gzip
import json
import os
import pwd
import shutil
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from engagement_platform.cli import app
from engagement_platform.engine.durable_files import private_file, replacing
from engagement_platform.engine.model import Transaction
from engagement_platform.errors import PlatformError
from engagement_platform.ingest_server import erasing
from engagement_platform.ingest_server.delivery import Delivered, Delivery
from engagement_platform.ingest_server.erasing import SpooledRecords, StoredObjects
from engagement_platform.ingest_server.events import Refused, Sent
from engagement_platform.ingest_server.intake import Intake
from engagement_platform.ingest_server.sinks import FolderSink, packed
from engagement_platform.ingest_server.spool import Spool, connected, spool_folder
from engagement_platform.ingest_server.spool import stored as stored_in
from engagement_platform.lake import store_tables
from engagement_platform.lake.contract import Table
from engagement_platform.pii.erasure import Erasable, Subject, erase, expire_refused, reported, subject, unattributed
from engagement_platform.pii.keys import Owner
from engagement_platform.pii.receipts import ReceiptRefused, read, receipt, verify
from engagement_platform.pii.vault import AUDIT, REFUSED, VAULT, Refusal, Vault
from engagement_platform.pipelines.page_views.tables import DAILY
from engagement_platform.settings import Settings
from engagement_platform_tests import plant
from engagement_platform_tests.files_with import places_with
from engagement_platform_tests.ingest_server.world import event, ids, stored

NOW = datetime(2026, 11, 22, 10, 30, tzinfo=UTC)


class Pipe:
    """Events in, delivered at once."""

    def __init__(self, settings: Settings, vault: Vault) -> None:
        self.settings, self.vault, self.games = settings, vault, settings.home / "games"

    def send(self, *events: object, game: str = "puzzle", deliver: bool = True) -> None:
        """Take events in and, unless told otherwise, deliver what waits."""
        with closing(self.opened()) as spool:
            taken = Intake(self.settings, self.vault.keyring, spool.id).take(game, [Sent(one) for one in events], NOW)
            spool.append(taken.records)
            spool.finish()
            if deliver:
                self.deliver(spool)

    def refuse(self, *bodies: bytes, deliver: bool = True) -> None:
        """Refuse bodies as a whole, which nobody can say whom they are about."""
        with closing(self.opened()) as spool:
            intake = Intake(self.settings, self.vault.keyring, spool.id)
            for body in bodies:
                spool.append(intake.refuse_whole("puzzle", body, Refused.NOT_EVENTS, NOW).records)
            spool.finish()
            if deliver:
                self.deliver(spool)

    def opened(self) -> Spool:
        return Spool(spool_folder(self.settings), segment_bytes=10**9, segment_age=timedelta(hours=1))

    def deliver(self, spool: Spool) -> list[Delivered]:
        delivery = Delivery(spool, self.vault, FolderSink(self.games))
        return [delivery.deliver(segment) for segment in spool.sealed()]

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
    logs = [Path(pipe.vault.uri(table), "_delta_log") for table in (VAULT, REFUSED)]
    refs = [pipe.vault.keyring.ref(f"{name}-canary").encode()[:32] for name in ("amy", "bob")]
    assert places_with(logs, [b"bob-1", b"bob-2", b"amy-1", b"amy-2", *refs]) == [], "no bounds of ids"
    roots = [platform.home]
    assert places_with(roots, [b"bob-canary"]), "the ids stand in the objects of raw events"
    who = subject(pipe.vault, "bob-canary", None)
    keys, done = erase(pipe.vault, who, [StoredObjects(platform)])
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
    assert len(list(pipe.vault.refused("puzzle", purpose="support", reader="test"))) == 2
    parquet = [path for table in (VAULT, REFUSED) for path in Path(pipe.vault.uri(table)).rglob("*.parquet")]
    assert all(who.ref not in str(pq.ParquetFile(path).read().to_pylist()) for path in parquet)


def test_an_erased_subject_does_not_come_back_by_replay_or_new_events(
    pipe: Pipe, platform: Settings, tmp_path: Path
) -> None:
    pipe.send(*events_of("bob"), deliver=False)
    replayed = shutil.copytree(spool_folder(platform), tmp_path / "replayed")
    with closing(pipe.opened()) as spool:
        pipe.deliver(spool)
    erase(pipe.vault, subject(pipe.vault, "bob-canary", None), [StoredObjects(platform)])
    shutil.copytree(replayed, spool_folder(platform), dirs_exist_ok=True)
    pipe.send(*events_of("bob")[:3], event("amy-1", player_id="amy"))
    assert ids(stored(pipe.games)) == ["amy-1"]
    assert pipe.values("bob-canary") == []
    assert places_with([platform.home / "games", platform.home / "lake"], [b"bob-canary"]) == []


@pytest.mark.parametrize("a_server_runs", [False, True])
def test_what_waits_in_the_spool_is_emptied_and_the_rest_is_delivered(
    pipe: Pipe, platform: Settings, a_server_runs: bool
) -> None:
    """Also what was refused without saying whom it is about: no tombstone would discard it."""
    pipe.send(*events_of("bob"), *events_of("amy"), deliver=False)
    spooled, spool = SpooledRecords(platform), pipe.opened()
    assert places_with([spool_folder(platform)], [b"bob-canary"]), "nothing was planted"
    if not a_server_runs:
        spool.close()
    who = subject(pipe.vault, "bob-canary", None)
    _, done = erase(pipe.vault, who, [spooled])
    assert [(one.rows, one.left, one.until) for one in done if one.name == spooled.name] == [(4, 0, {})]
    assert places_with([platform.home], [b"bob-canary"]) == []
    if not a_server_runs:
        spool = pipe.opened()
    [delivered] = pipe.deliver(spool)
    spool.close()
    assert (delivered.events, delivered.refused, delivered.erased) == (2, 2, 4)
    assert ids(stored(pipe.games)) == ["amy-1", "amy-2"]
    assert pipe.values("amy-canary") == ["amy-canary@example.org", "+49 30 1234567"]
    refused = list(pipe.vault.refused("puzzle", purpose="support", reader="test"))
    assert len(refused) == 2
    assert not any(b"bob" in body for _, body in refused)


def test_what_a_killed_delivery_left_of_an_object_goes(pipe: Pipe, platform: Settings) -> None:
    pipe.send(*events_of("bob"), event("amy-1", player_id="amy"))
    [path] = (platform.home / "games").rglob("*.json.gz")
    with replacing(path.with_name("other.json.gz")) as file:
        file.write(gzip.compress(b'{"player_id": "amy", "event_id": "amy-2"}\n'))
        [being_written] = path.parent.glob(".*")
        left = path.with_name(being_written.name.replace(str(os.getpid()), "1"))
    left.write_bytes(gzip.compress(b'{"player_id": "bob-canary"}\n'))
    erase(pipe.vault, subject(pipe.vault, "bob-canary", None), [StoredObjects(platform)])
    assert not left.exists()
    assert sorted(ids(stored(pipe.games))) == ["amy-1", "amy-2"]


def test_a_spool_that_nothing_was_written_to_yet_is_no_error(pipe: Pipe, platform: Settings) -> None:
    """A server that is killed at its first start leaves an empty file."""
    private_file(spool_folder(platform) / "spool.db")
    spooled = SpooledRecords(platform)
    _, done = erase(pipe.vault, subject(pipe.vault, "bob-canary", None), [spooled])
    assert [(one.rows, one.left, one.stays) for one in done if one.name == spooled.name] == [(0, 0, ())]


def test_a_spool_that_sqlite_cannot_read_is_said_and_the_rest_is_erased(pipe: Pipe, platform: Settings) -> None:
    pipe.send(*events_of("bob"))
    with closing(connected(spool_folder(platform) / "spool.db")) as connection:
        connection.execute("ALTER TABLE record RENAME COLUMN open TO opened")
    spooled = SpooledRecords(platform)
    _, done = erase(pipe.vault, subject(pipe.vault, "bob-canary", None), [spooled, StoredObjects(platform)])
    of = {one.name: one for one in done}
    assert of[spooled.name].left == 1
    assert "OperationalError" in of[spooled.name].stays[0]
    assert of[StoredObjects.name].rows == 2


@pytest.mark.parametrize(
    ("error", "is_damage"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (RuntimeError("Spark was killed"), False),
        (OSError(errno.EIO, "Input/output error"), True),
        (EOFError(), True),
    ],
)
def test_only_what_is_damaged_is_to_be_restored_or_deleted(error: Exception, is_damage: bool) -> None:
    stays: list[str] = []
    with reported("game/login", stays, (RuntimeError,)):
        raise error
    assert ("delete it" in stays[0]) == is_damage
    assert "rase again." in stays[0]
    with pytest.raises(RuntimeError), reported("game/login", stays):
        raise RuntimeError


@pytest.mark.parametrize(
    "damage", ["game = CAST(x'ff' AS TEXT)", "kind = 'X'", "hour = 7", "sealed = x'00', checksum = {checksum}"]
)
def test_records_of_the_spool_around_a_damaged_one_are_emptied_and_the_damage_is_said(
    pipe: Pipe, platform: Settings, damage: str
) -> None:
    """Changed on the disk, or whole and sealed with another key: then it may be of anybody."""
    pipe.send(*events_of("bob"), "a text about nobody", *events_of("bob"), deliver=False)
    path, spooled = spool_folder(platform) / "spool.db", SpooledRecords(platform)
    with closing(connected(path)) as connection:
        (fifth,) = [record for place, record in stored_in(path, connection) if place == 5]
        checksum = fifth._replace(sealed=b"\0").checksum
        connection.execute(f"UPDATE record SET {damage.format(checksum=checksum)} WHERE place = 5")
    assert len(places_with([path.parent], [b"bob-1", b"bob-2"])) > 0, "nothing was planted"
    _, done = erase(pipe.vault, subject(pipe.vault, "bob-canary", None), [spooled])
    (one,) = [one for one in done if one.name == spooled.name]
    assert one.left == len(one.stays) == 1
    assert ("record 5 was changed" in one.stays[0]) == ("checksum" not in damage)
    assert places_with([path.parent], [b"bob-1", b"bob-2"]) == []
    with closing(sqlite3.connect(path)) as connection:
        emptied = connection.execute("SELECT place FROM record WHERE open = x'' ORDER BY place").fetchall()
    assert [place for (place,) in emptied] == [1, 2, 3, 4, 6, 7, 8, 9]


@pytest.mark.parametrize("where", [REFUSED.name, SpooledRecords.name])
def test_a_refused_event_goes_however_json_writes_the_id(pipe: Pipe, platform: Settings, where: str) -> None:
    bodies = [
        rb'{"player_id": "J\u00F6rg"}', rb'{"player_id": "J\u00f6r\u0067", broken', '"\\nJ\u00f6rg"'.encode(),
        rb'{"note": "{\"player_id\": \"J\\u00f6rg\"}"}', rb'{"player_id": "J\u00F6rgen"}',
    ]  # fmt: skip
    pipe.refuse(*bodies, deliver=where == REFUSED.name)
    _, done = erase(pipe.vault, subject(pipe.vault, "J\u00f6rg", None), [SpooledRecords(platform)])
    assert [(one.rows, one.left) for one in done if one.name == where] == [(4, 0)]
    _, done = erase(pipe.vault, subject(pipe.vault, "J\u00f6rgen", None), [SpooledRecords(platform)])
    assert [(one.rows, one.left) for one in done if one.name == where] == [(1, 0)]


def test_a_subject_erased_in_one_game_stays_in_the_others(pipe: Pipe, platform: Settings) -> None:
    for game in ("puzzle", "racing"):
        pipe.send(event("e", player_id="bob-canary", email="b@example.org"), {"player_id": "bob-canary"}, game=game)
    who = subject(pipe.vault, "bob-canary", "racing")
    keys, done = erase(pipe.vault, who, [StoredObjects(platform)])
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
    checks = verify(pipe.vault, given, tables, "bob-canary")
    assert [check.what for check in checks if not check.holds] == ["engagement/data"]


def test_a_receipt_is_proved_by_its_signature_and_by_looking_again(
    pipe: Pipe, platform: Settings, tmp_path: Path
) -> None:
    pipe.send(*events_of("bob"))
    who, file = subject(pipe.vault, "bob-canary", None), tmp_path / "receipt.json"
    given = receipt(pipe.vault.keyring, who, *erase(pipe.vault, who, [StoredObjects(platform)]), NOW)
    file.write_text(json.dumps(given))
    assert "bob-canary" not in file.read_text()
    assert all(check.holds for check in verify(pipe.vault, read(file), (), None))
    changed: list[tuple[str, object]] = [
        *(("keys_destroyed", 9), ("game", "x"), ("subject_ref", "0" * 64), ("erased_ts", "now")),
        *(("signature", other) for other in as_other_texts(given["signature"])),
    ]
    for name, value in changed:
        with pytest.raises(ReceiptRefused, match="changed after it was signed"):
            verify(pipe.vault, {**given, name: value}, (), None)
    for text in (f'{{"game": "x", {json.dumps(given)[1:]}', '{"places": [{"left": 1, "left": 0}]}', "[" * 100_000):
        file.write_text(text)
        with pytest.raises(ReceiptRefused, match="no JSON object, or one that names a field twice"):
            read(file)
    with pytest.raises(ReceiptRefused, match="another subject"):
        verify(pipe.vault, given, (), "amy-canary")
    with pytest.raises(ReceiptRefused, match="other stores"):
        verify(pipe.vault, {**given, "public_key": base64.b64encode(b"0" * 32).decode()}, (), None)
    missed = [check for check in verify(pipe.vault, given, (), "bob-canary") if not check.looked]
    assert [(check.what, "do not lead there" in check.seen) for check in missed] == [
        (StoredObjects(platform).name, True)
    ]
    late = Rows("bob-canary")
    failed = [check for check in verify(pipe.vault, given, [late], "bob-canary") if not check.holds]
    assert [(check.what, check.seen) for check in failed] == [("engagement/data", "1 rows")]


def as_other_texts(signature: str) -> list[str | None]:
    """Texts that a lenient decoder takes for the same bytes, and none."""
    return [f"{signature}\n", f"{signature[:20]}!{signature[20:]}", f"{signature}====", None]


def test_an_erasure_that_stopped_in_the_middle_is_done_by_the_same_call(
    pipe: Pipe, platform: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe.send(*events_of("bob"))
    who = subject(pipe.vault, "bob-canary", None)

    class Dies(Rows):
        def erase(self, who: Subject) -> int:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        erase(pipe.vault, who, [Dies()])
    assert pipe.values("bob-canary") == []
    erase(pipe.vault, who, [StoredObjects(platform)])
    assert places_with([platform.home], [b"bob-canary"]) == []


@pytest.mark.parametrize("done", [False, True], ids=["before it", "after it"])
@pytest.mark.parametrize("commit", ["empty", "write_durably", "unlink", "remove", "purge"])
def test_an_erasure_that_ends_at_a_commit_is_done_by_the_same_call(
    pipe: Pipe, platform: Settings, monkeypatch: pytest.MonkeyPatch, commit: str, done: bool
) -> None:
    """Of the spool, of an object that has events of others, of one that has none, and of the vault's tables."""
    pipe.send(*events_of("bob"), *events_of("amy"))
    pipe.send(event("bob-9", player_id="bob-canary"))
    pipe.send(*events_of("bob"), *events_of("amy"), deliver=False)
    owner: Any = {"unlink": Path, "remove": store_tables, "purge": store_tables}.get(commit, erasing)
    does, who, ended = getattr(owner, commit), subject(pipe.vault, "bob-canary", None), list[str]()

    def dies(*given: Any, **named: Any) -> None:
        if commit == "unlink" and given[0].suffix != ".gz":
            does(*given, **named)
            return
        if done:
            does(*given, **named)
        ended.append(commit)
        raise KeyboardInterrupt

    def erased() -> list[int]:
        return [one.left for one in erase(pipe.vault, who, [SpooledRecords(platform), StoredObjects(platform)])[1]]

    with monkeypatch.context() as patched:
        patched.setattr(owner, commit, dies)
        with pytest.raises(KeyboardInterrupt):
            erased()
    assert ended == [commit]
    assert set(erased()) == {0}
    assert places_with([platform.home], [b"bob-canary"]) == []
    pipe.send()
    assert ids(stored(pipe.games)) == ["amy-1", "amy-2"] * 2
    assert len(pipe.values("amy-canary")) == 4


def test_from_the_command_line_a_subject_is_erased_and_the_receipt_verified(
    pipe: Pipe, platform: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its id is an argument, or the first line of standard input; the audit names whose rights the process has."""
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(platform.home))
    monkeypatch.setenv("LOGNAME", "mallory")
    pipe.send(*events_of("bob"))
    call, file = CliRunner().invoke, tmp_path / "receipt.json"
    for given, line in (("bob-canary", ""), ("-", "bob-canary\n")):
        done = call(app, ["pii", "read", "--subject", given, "--purpose", "access-request"], input=line)
        assert [json.loads(line)["value"] for line in done.stdout.splitlines()] == pipe.values("bob-canary") != []
    readers = {row["reader"].partition("@")[0] for row in pipe.vault.rows_of(AUDIT)}
    assert readers == {"test", pwd.getpwuid(os.geteuid()).pw_name}
    done = call(app, ["pii", "refused", "--game", "puzzle", "--purpose", "support"])
    assert [json.loads(line)["reason_code"] for line in done.stdout.splitlines()] == ["bad_event_type", "not_an_object"]
    assert call(app, ["erase", "--subject", "-", "--yes"], input="\n").exit_code == 1
    nowhere = call(app, ["erase", "--subject", "bob-canary", "--yes", "--out", str(tmp_path / "missing" / "r.json")])
    assert (nowhere.exit_code, "there is no folder" in nowhere.output) == (2, True)
    assert pipe.values("bob-canary") != []
    assert call(app, ["erase", "--subject", "-", "--out", str(file)], input="bob-canary\ny\n").exit_code == 0
    assert pipe.values("bob-canary") == []
    done = call(app, ["erase", "--verify", str(file), "--subject", "-"], input="bob-canary\n")
    assert (done.exit_code, "LEFT" in done.stdout) == (0, False), done.stdout
    places = {place["name"] for place in json.loads(file.read_text())["places"]}
    assert done.stdout.count(" ok ") == len(places) + len(["tombstone", "keys"]), done.stdout
    assert call(app, ["pii", "rotate"]).exit_code == 0
    assert call(app, ["erase", "--verify", str(file)]).exit_code == 0
    text, forged = file.read_text(), tmp_path / "forged.json"
    for wrong in (text.replace("{", '{"game": "x",', 1), text.replace('"signature": "', '"signature": "!')):
        assert wrong != text
        forged.write_text(wrong)
        assert isinstance(call(app, ["erase", "--verify", str(forged)]).exception, ReceiptRefused)
    assert call(app, ["erase", "--subject", "bob-canary", "--yes", "--out", str(file)]).exit_code == 0
    (pipe.games / "events" / "late.json.gz").write_bytes(packed([json.dumps(events_of("bob")[0]).encode()]))
    assert call(app, ["erase", "--verify", str(file), "--subject", "bob-canary"]).exit_code == 1


def damage_object(pipe: Pipe) -> Path:
    path = next((pipe.games / "events").rglob("*.json.gz"))
    return Path(shutil.copy(path, path.with_name("broken.json.gz")))


def broken_off(pipe: Pipe) -> tuple[str, Path]:
    path = damage_object(pipe)
    path.write_bytes(path.read_bytes()[:-20])
    return str(path), path


def no_gzip(pipe: Pipe) -> tuple[str, Path]:
    path = damage_object(pipe)
    path.write_bytes(b"bob-canary " * 99)
    return str(path), path


def spool(pipe: Pipe) -> tuple[str, Path]:
    path = spool_folder(pipe.settings) / "spool.db"
    for each in path.parent.glob("spool.db*"):
        each.unlink()
    path.write_bytes(b"x" * 5000)
    return str(path), path


def file_of_the_vault(pipe: Pipe) -> tuple[str, Path]:
    path = next(path for path in Path(pipe.vault.uri(REFUSED)).rglob("*.parquet"))
    path.write_bytes(path.read_bytes()[:-20])
    return f"{REFUSED.name} could not be read", path


@pytest.mark.parametrize("damaged", [broken_off, no_gzip, spool, file_of_the_vault], ids=lambda each: each.__name__)
def test_what_is_damaged_is_in_the_receipt_and_everything_else_is_erased(
    pipe: Pipe,
    platform: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damaged: Callable[[Pipe], tuple[str, Path]],
) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(platform.home))
    pipe.send(*events_of("bob"), *events_of("amy"))
    what, path = damaged(pipe)
    call, file = CliRunner().invoke, tmp_path / "receipt.json"
    done = call(app, ["erase", "--subject", "bob-canary", "--yes", "--out", str(file)])
    assert done.exit_code == 1
    assert what in done.stderr
    assert "Not everything is erased" in done.stderr
    assert "then erase again." in done.stderr.lower()
    given = json.loads(file.read_text())
    [place] = [place for place in given["places"] if place["stays"]]
    assert what in place["stays"][0]
    assert place["left"] > 0
    assert "bob-canary" not in file.read_text()
    assert [left for left in places_with([platform.home], [b"bob-canary"]) if left != path] == []
    assert pipe.values("bob-canary") == []
    looked = call(app, ["erase", "--verify", str(file), "--subject", "bob-canary"])
    assert looked.exit_code == 1
    assert [line for line in looked.stdout.splitlines() if " LEFT " in line and what in line]
    if path.suffix == ".gz":
        path.unlink()
        assert call(app, ["erase", "--subject", "bob-canary", "--yes", "--out", str(file)]).exit_code == 0


def test_a_line_that_is_no_json_goes_where_it_names_the_subject(pipe: Pipe, platform: Settings) -> None:
    pipe.send(*events_of("amy"))
    lines = [b'{"player_id": "bob-canary", broken', b"[1, ", b'["bob-canary"]', b'{"about": "bob-canary2"']
    lines += [b"[" * 100_000 + b'"\\"', b"[" * 100_000 + b'"bob-canary"', rb'["bob\u002Dcanary"', rb'"\nbob-canary"']
    (pipe.games / "events" / "odd.json.gz").write_bytes(packed([line + b"\n" for line in lines]))
    place, who = StoredObjects(platform), subject(pipe.vault, "bob-canary", None)
    assert (place.erase(who), place.left(who), place.stays) == (5, 0, [])
    left = gzip.decompress((pipe.games / "events" / "odd.json.gz").read_bytes()).splitlines()
    assert left == [lines[1], lines[3], lines[4]]


def test_a_receipt_names_every_table_of_the_lake_and_whether_the_erasure_covers_it(
    pipe: Pipe, platform: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(platform.home))
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_DEFS_FOLDER", str(tmp_path / "defs"))
    (tmp_path / "defs").mkdir()
    (tmp_path / "defs" / "defs.yaml").write_text(
        "type: engagement_platform.MaintainedTable\nattributes: {table: shop/eu/order}\n", encoding="utf-8"
    )
    pipe.send(*events_of("bob"))
    pipe.values("bob-canary")
    stray = (".", "a/b/c", "alone", "shop", "shop/a/b/c", "view")
    others = ("shop/eu/order", "game/without_players", "view/session", "view/daily", "layout/history", "a/b", *stray)
    for name in others:
        plant.create(f"{platform.lake}/{name}", Table(tuple(name.split("/")), "", DAILY.columns, DAILY.mode))
    file = tmp_path / "receipt.json"
    assert CliRunner().invoke(app, ["erase", "--subject", "bob-canary", "--yes", "--out", str(file)]).exit_code == 0
    given = json.loads(file.read_text())
    assert given["tables"] == {
        ".": "not covered",
        "a/b": "not covered",
        "a/b/c": "not covered",
        "alone": "not covered",
        "game/without_players": "not covered",
        "layout/history": "without personal columns",
        "pii/audit": "without personal columns",
        "pii/refused": "covered",
        "pii/vault": "covered",
        "shop": "not covered",
        "shop/a/b/c": "not covered",
        "shop/eu/order": "not covered",
        "view": "not covered",
        "view/daily": "without personal columns",
        "view/session": "not covered",
    }
    missed = {"a/b", "game/without_players", "shop/eu/order", "view/session", *stray}
    assert set(given["tables"]).intersection(given["not_reached"]) == missed
    assert "tables in other tables' folders of partitions, or in those that begin with _ or ." in given["not_reached"]


def test_a_receipt_that_cannot_be_written_is_printed(
    pipe: Pipe, platform: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no other like it: asked for again, it says that nothing was there."""
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(platform.home))
    pipe.send(*events_of("bob"))
    done = CliRunner().invoke(app, ["erase", "--subject", "bob-canary", "--yes", "--out", str(tmp_path)])
    assert isinstance(done.exception, PlatformError)
    assert json.loads(done.stdout)["keys_destroyed"] > 0


def test_refused_events_go_after_their_time_with_their_keys(vault: Vault) -> None:
    now = datetime.now(UTC)
    for segment, days in enumerate((40, 31, 29, 0), 1):
        received = now - timedelta(days=days)
        owner = Owner("g", vault.keyring.ref(unattributed(received.date())))
        vault.append(
            [Refusal(f"r-{days}", owner, "c", "s", received, zlib.compress(b"x"))], segment, Transaction("s", segment)
        )
    assert expire_refused(vault, timedelta(days=30)) == 2
    assert expire_refused(vault, timedelta(days=30)) == 0
    assert sorted(row["refused_id"] for row in vault.rows_of(REFUSED)) == ["r-0", "r-29"]
    assert len(list(Path(vault.uri(REFUSED)).rglob("*.parquet"))) == 2
    assert vault.keyring.count(Owner("g", vault.keyring.ref(unattributed((now - timedelta(days=40)).date())))) == 0
