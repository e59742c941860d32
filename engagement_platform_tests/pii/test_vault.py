"""What the vault holds opens for its subject only, for a declared purpose only, and after any rotation of its keys."""

from __future__ import annotations

import json
import os
import shutil
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select
from typer.testing import CliRunner

from engagement_platform.cli import app
from engagement_platform.engine.database import reading, writing
from engagement_platform.engine.durable_files import write_durably
from engagement_platform.engine.model import Manifest, Transaction
from engagement_platform.engine.stores import CheckpointStore
from engagement_platform.ingest_server.sinks import FolderSink, local_folder
from engagement_platform.ingest_server.spool import Record, RecordKind, Spool, spool_folder
from engagement_platform.lake import store_tables
from engagement_platform.lake.arrow import table_of
from engagement_platform.pii import keys, master
from engagement_platform.pii import vault as vaults
from engagement_platform.pii.erasure import erase, subject
from engagement_platform.pii.keys import EVERY_GAME, Keyring, MasterKeyBusy, Owner, open_pii
from engagement_platform.pii.master import KmsMaster, LocalMaster, MasterKeyUnusable, Masters
from engagement_platform.pii.rotation import rotate
from engagement_platform.pii.schema import PII_KEY, PII_SECRET
from engagement_platform.pii.sealing import SealBroken, Sealer, new_key, words
from engagement_platform.pii.vault import AUDIT, REFUSED, VAULT, Deposit, PurposeRefused, Refusal, Vault, open_vault
from engagement_platform.settings import PiiSettings, Settings
from engagement_platform_tests import plant
from engagement_platform_tests.conftest import Moto
from engagement_platform_tests.files_with import places_with

NOW = datetime(2026, 11, 22, 10, 30, tzinfo=UTC)


def deposit(vault: Vault, subject: str, event_id: str, *values: object, game: str = "g1", minutes: int = 0) -> Deposit:
    said = [("/emails/*", f"/emails/{place}", value) for place, value in enumerate(values)]
    return Deposit(Owner(game, vault.keyring.ref(subject)), event_id, "login", NOW + timedelta(minutes=minutes), said)


def put(vault: Vault, segment: int, deposits: Sequence[Deposit]) -> int:
    return vault.append(deposits, segment, Transaction("spool-1", segment))


def said(vault: Vault, subject: str, game: str | None = None) -> list[tuple[str, str, str, object]]:
    stored = vault.read(subject, purpose="support", reader="somebody", game=game)
    return [(one.game, one.event_id, one.path, one.value) for one in stored]


def test_what_went_in_comes_out_by_subject_and_game(vault: Vault) -> None:
    values = ["bob@example.org", {"any": [1, None, "\ud800"]}, 4.5]
    assert put(vault, 1, [deposit(vault, "bob", "e1", *values), deposit(vault, "amy", "e2", "amy@example.org")]) == 4
    assert put(vault, 2, [deposit(vault, "bob", "e3", "other@example.org", game="g2", minutes=1)]) == 1
    bobs = [("g1", "e1", f"/emails/{place}", value) for place, value in enumerate(values)]
    assert said(vault, "bob") == [*bobs, ("g2", "e3", "/emails/0", "other@example.org")]
    assert said(vault, "bob", "g1") == bobs
    assert said(vault, "nobody") == []


def test_every_read_is_written_down_and_needs_a_purpose_and_refused_events_come_with_their_reason(vault: Vault) -> None:
    with pytest.raises(PurposeRefused, match="Purposes: access-request, fraud, legal, support"):
        vault.read("bob", purpose="curiosity", reader="somebody")
    said(vault, "bob", "g1")
    bob, content = Owner("g1", vault.keyring.ref("bob")), zlib.compress(b'{"canary-17')
    refusal = Refusal("1-0", bob, "not_json", "It is no JSON.", NOW, content)
    assert [vault.append([refusal], 1, Transaction("s", 1)) for _ in range(2)] == [1, 0]
    ((row, body),) = vault.refused("g1", purpose="legal", reader="me")
    assert (row["reason_code"], row["received_ts"], body) == ("not_json", NOW, b'{"canary-17')
    assert list(vault.refused("g2", purpose="support", reader="me")) == []
    audit = DeltaTable(vault.uri(AUDIT)).to_pyarrow_table().sort_by("read_ts").to_pylist()
    assert [(row["reader"], row["purpose"], row["table_name"], row["game"]) for row in audit] == [
        ("somebody", "support", "pii/vault", "g1"),
        ("me", "legal", "pii/refused", "g1"),
        ("me", "support", "pii/refused", "g2"),
    ]
    assert audit[0]["subject_ref"] == vault.keyring.ref("bob")


def test_no_byte_of_a_subject_or_its_data_is_on_the_disk(vault: Vault, platform: Settings) -> None:
    put(vault, 1, [deposit(vault, "subject-canary", "e1", "value-canary", {"key-canary": 1})])
    parquet = next(Path(vault.uri(VAULT)).rglob("*.parquet"))
    assert DeltaTable(vault.uri(VAULT)).to_pyarrow_table().num_rows == 2
    columns = [str(row) for row in DeltaTable(vault.uri(VAULT)).to_pyarrow_table().to_pylist()]
    everything = [path.read_bytes() for path in platform.home.rglob("*") if path.is_file()]
    assert parquet.stat().st_size > 0
    assert not any(b"canary" in content for content in [*everything, *(row.encode() for row in columns)])


@pytest.mark.parametrize("column", ["subject_ref", "game", "event_id", "field", "key_version"])
def test_a_value_that_was_moved_does_not_open(vault: Vault, column: str) -> None:
    put(vault, 1, [deposit(vault, name, f"e-{name}", f"{name}@example.org") for name in ("bob", "amy")])
    found = DeltaTable(vault.uri(VAULT))
    bob, amy = sorted(found.to_pyarrow_table().to_pylist(), key=lambda row: str(row["event_id"]) != "e-bob")
    moved = {**bob, column: {"game": "g2", "field": "/other", "key_version": 1}.get(column, amy[column])}
    if column == "key_version":
        moved["sealed"] = amy["sealed"]
    if column == "game":
        put(vault, 2, [deposit(vault, "bob", "e9", game="g2")])
    plant.replace(found, table_of([moved], VAULT), Transaction("moved", 1))
    with pytest.raises(SealBroken, match="moved from another place"):
        said(vault, "amy" if column == "subject_ref" else "bob")


@given(st.binary(max_size=50), st.binary(max_size=20), st.data())
@settings(deadline=None, max_examples=50)
def test_what_is_sealed_opens_only_as_it_was(plain: bytes, about: bytes, data: st.DataObject) -> None:
    sealer = Sealer(new_key())
    sealed = sealer.seal(plain, about)
    assert sealer.open(sealed, about, "it") == plain
    place = data.draw(st.integers(0, len(sealed) - 1))
    changed = sealed[:place] + bytes([sealed[place] ^ 1]) + sealed[place + 1 :]
    for wrong in ((changed, about), (sealed, about + b"x"), (sealed[:place], about)):
        with pytest.raises(SealBroken):
            sealer.open(*wrong, "it")


@given(st.lists(st.text() | st.integers()), st.lists(st.text() | st.integers()))
def test_no_two_lists_of_words_are_the_same_bytes(one: list[str | int], other: list[str | int]) -> None:
    assert (words(*one) == words(*other)) == (one == other)


def test_the_master_key_is_the_owner_s_alone(vault: Vault, platform: Settings) -> None:
    vault.keyring.ref("bob")
    path = platform.home / "pii" / "master.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    with pytest.raises(MasterKeyUnusable, match="rights 0640"):
        open_vault(platform).keyring.ref("bob")
    path.unlink()
    with pytest.raises(MasterKeyUnusable, match="Put the file back"):
        open_vault(platform).keyring.ref("bob")
    assert not path.exists(), "a new key would hide that the old one is missing"


def with_vault(settings: Settings) -> None:
    vault = open_vault(settings)
    put(vault, 1, [deposit(vault, "bob", "e1", "bob@example.org")])


def with_spool(settings: Settings) -> None:
    with closing(Spool(spool_folder(settings), segment_bytes=1, segment_age=timedelta(1))) as spool:
        spool.append([Record(RecordKind.ACCEPTED, "g", "", 0, b"line\n", b"")])
        spool.finish()
        FolderSink(local_folder(settings)).put(spool.sealed()[0], [b"line\n"])
        made_beside = {path.name: path.stat().st_mode & 0o777 for path in spool.path.parent.glob("spool.db*")}
    assert made_beside == dict.fromkeys(("spool.db", "spool.db-wal", "spool.db-shm"), 0o600)


@pytest.mark.parametrize(
    "first",
    [with_vault, with_spool, lambda of: Masters(of).local.current(), lambda of: open_pii(of.store_url).dispose()],
    ids=["vault", "spool", "master key", "stores"],
)
def test_a_program_of_any_umask_makes_a_home_and_secrets_for_its_owner_only(
    tmp_path: Path, first: Callable[[Settings], object]
) -> None:
    of, before = Settings(home=tmp_path / "new" / "home"), os.umask(0o022)
    try:
        first(of)
    finally:
        os.umask(before)
    # Files of a table are delta-rs's to write, and nobody else gets into its folder; locks are empty.
    table = Path(VAULT.uri(of.lake))
    made = {path for path in tmp_path.rglob("*") if "lock" not in path.name and table not in path.parents}
    assert made >= {of.home.parent, of.home}
    wrong = {path: path.stat().st_mode & 0o777 for path in made if path.stat().st_mode & 0o077}
    assert (wrong, of.home.stat().st_mode & 0o777) == ({}, 0o700)
    assert Settings(home=of.home) == of, "a home that others can enter would be refused"


def test_a_rotation_that_stopped_is_finished_by_the_next_which_leaves_no_former_key(
    vault: Vault, platform: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "_AT_ONCE", 8)
    put(vault, 1, [deposit(vault, f"s{number}", f"e{number}", f"v{number}") for number in range(20)])
    ref, master = vault.keyring.ref("s3"), platform.home / "pii" / "master.json"
    before = master.read_bytes()
    assert LocalMaster(master).add() == "local:2"
    put(vault, 2, [deposit(vault, "amy", "e20", "in between")])
    assert vault.keyring.rotate() == ("local:3", 22)
    fresh = open_vault(platform)
    assert fresh.keyring.ref("s3") == ref
    assert said(fresh, "s3") + said(fresh, "amy") == [
        ("g1", "e3", "/emails/0", "v3"), ("g1", "e20", "/emails/0", "in between")
    ]  # fmt: skip
    put(vault, 3, [deposit(vault, "later", "e99", "of the process that was open before")])
    assert said(fresh, "later") != []
    assert list(json.loads(master.read_bytes())["keys"]) == ["3"]
    master.write_bytes(before)
    with pytest.raises(MasterKeyUnusable, match="is not in"):
        open_vault(platform).keyring.ref("s3")


def ended_at_each_commit(monkeypatch: pytest.MonkeyPatch, do: Callable[[int], object]) -> Iterator[int]:
    """End something immediately before its first commit to the stores, the file of master keys or a table, then after
    it, before the second and so on, until it comes to its end; which one it was, each time that it ended.

    do: is told which.
    """
    for number in count():
        places = count()

        def passes(number: int = number, places: Iterator[int] = places) -> None:
            if next(places) == number:
                raise KeyboardInterrupt

        def observed(does: Callable[..., object], passes: Callable[[], None] = passes) -> Callable[..., object]:
            def call(*given: Any, **named: Any) -> object:
                passes()
                done = does(*given, **named)
                passes()
                return done

            return call

        @contextmanager
        def written(*given: Any, passes: Callable[[], None] = passes) -> Iterator[Any]:
            passes()
            with writing(*given) as connection:
                yield connection
            passes()

        with monkeypatch.context() as patched:
            patched.setattr(keys, "writing", written)
            patched.setattr(master, "write_durably", observed(write_durably))
            for name in ("create", "append", "replace", "purge"):
                patched.setattr(store_tables, name, observed(getattr(store_tables, name)))
            try:
                do(number)
            except KeyboardInterrupt:
                pass
            else:
                return
        yield number


def test_wherever_a_rotation_ends_everything_opens_and_the_next_one_leaves_no_former_key(
    vault: Vault, platform: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(vault, 1, [deposit(vault, name, f"e-{name}", f"v-{name}") for name in ("bob", "amy")])
    ref, file = vault.keyring.ref("bob"), platform.home / "pii" / "master.json"
    ended = 0
    for ended in ended_at_each_commit(monkeypatch, lambda _: rotate(open_vault(platform))):
        fresh = open_vault(platform)
        assert fresh.keyring.ref("bob") == ref, ended
        assert [said(fresh, name) for name in ("bob", "amy")] == [
            [("g1", f"e-{name}", "/emails/0", f"v-{name}")] for name in ("bob", "amy")
        ], ended
    assert ended > 12
    assert len(json.loads(file.read_bytes())["keys"]) == 1
    with reading(vault.keyring.engine) as connection:
        wrapped = {row.master_version for table in (PII_KEY, PII_SECRET) for row in connection.execute(select(table))}
    assert wrapped == {LocalMaster(file).current()}
    assert vault.keyring.count(Owner(EVERY_GAME, ref)) == 1


def test_wherever_the_first_delivery_ends_the_next_has_the_same_keys_and_adds_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refs, ended = dict[int, set[str]](), 0

    def deliver(number: int) -> Vault:
        """For the first time in a home."""
        vault = open_vault(Settings(home=tmp_path / f"home {number}"))
        refs.setdefault(number, set()).add(vault.keyring.ref("bob"))
        put(vault, 1, [deposit(vault, "bob", "e1", "v1")])
        return vault

    for ended in ended_at_each_commit(monkeypatch, deliver):
        vault = deliver(ended)
        assert len(refs[ended]) == 1, ended
        assert said(vault, "bob") == [("g1", "e1", "/emails/0", "v1")], ended
        assert vault.keyring.count(Owner(EVERY_GAME, *refs[ended])) == 1, ended
    assert ended > 8


def test_a_rotation_also_removes_the_master_keys_that_a_killed_one_left_beside_the_file(
    vault: Vault, platform: Settings
) -> None:
    put(vault, 1, [deposit(vault, "bob", "e1", "v1")])
    file = platform.home / "pii" / "master.json"
    left = Path(shutil.copy(file, file.with_name(".master.json.1.2")))
    rotate(vault)
    assert not left.exists()
    assert said(vault, "bob") == [("g1", "e1", "/emails/0", "v1")]


def once_while_wrapping(monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
    """Another process does something while the next key is wrapped: KMS may take its time."""
    wrap, left = LocalMaster.wrap, [do]

    def wrapping(self: LocalMaster, key: bytes, about: bytes) -> tuple[str, bytes]:
        made = wrap(self, key, about)
        if left:
            left.pop()()
        return made

    monkeypatch.setattr(LocalMaster, "wrap", wrapping)


def rotated() -> str:
    done = CliRunner().invoke(app, ["pii", "rotate"])
    assert done.exit_code == 0, done.output
    return done.output


def test_two_rotations_at_once_end_both_and_leave_every_key_under_the_newest_master_key(
    vault: Vault, platform: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(platform.home))
    monkeypatch.setattr(keys, "_AT_ONCE", 8)
    put(vault, 1, [deposit(vault, f"s{number}", f"e{number}", f"v{number}") for number in range(20)])
    others = list[str]()
    once_while_wrapping(monkeypatch, lambda: others.append(rotated()))
    mine = rotated()
    assert "local:3" in mine, "it goes on with the newest"
    assert "local:3" in others[0]
    with reading(vault.keyring.engine) as connection:
        versions = {row.master_version for table in (PII_KEY, PII_SECRET) for row in connection.execute(select(table))}
    assert versions == {"local:3"}
    assert list(json.loads((platform.home / "pii" / "master.json").read_bytes())["keys"]) == ["3"]
    assert said(open_vault(platform), "s3") == [("g1", "e3", "/emails/0", "v3")]


def test_with_every_key_from_before_a_rotation_nothing_of_the_vault_opens_that_it_encrypted_anew(
    vault: Vault, platform: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(platform.home))
    for day in range(3):
        later = day * 24 * 60
        put(vault, day, [deposit(vault, name, f"{name}-{day}", f"v{day}", minutes=later) for name in ("bob", "amy")])
    bob, content = Owner("g1", vault.keyring.ref("bob")), zlib.compress(b'{"canary-17')
    refusal = Refusal("1-0", bob, "not_json", "It is no JSON.", NOW, content)
    vault.append([refusal], 1, Transaction("s", 1))
    before = {path for table in (VAULT, REFUSED) for path in Path(vault.uri(table)).rglob("*.parquet")}
    copy, mine = tmp_path / "copy", ("stores.db", "pii/master.json")
    for name in mine:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(platform.home / name, copy / name)
    for rows in ("7 rows", "7 rows"):
        output = rotated()
        assert rows in output
        assert "does not help against copies from before" in output
    read = CliRunner().invoke(app, ["pii", "read", "--subject", "bob", "--purpose", "support"])
    assert [json.loads(line)["value"] for line in read.output.splitlines()] == ["v0", "v1", "v2"]
    assert [body for _, body in vault.refused("g1", purpose="support", reader="me")] == [b'{"canary-17']
    assert not before.intersection(Path(vault.uri(VAULT)).parent.rglob("*.parquet")), "former files are gone"
    with reading(vault.keyring.engine) as connection:
        assert {row.version for row in connection.execute(select(PII_KEY))} == {3}
    put(vault, 9, [deposit(vault, "bob", "e9", "later")])
    for name in mine:
        shutil.copy(copy / name, platform.home / name)
    with_former = open_vault(platform)
    assert with_former.rows_of(VAULT, [with_former.keyring.ref("bob")])
    assert said(with_former, "bob") == []


def test_no_entry_of_the_vaults_log_has_an_id_whatever_wrote_it(vault: Vault) -> None:
    """Appends, the merging of a day's files, a rotation, an erasure."""
    for segment in range(store_tables._COMPACT_FILES + 1):
        put(vault, segment, [deposit(vault, who, f"{who}-canary-{segment}", "v") for who in ("bob", "amy")])
    rotate(vault)
    assert erase(vault, subject(vault, "bob", None))[0] == 1
    log = Path(vault.uri(VAULT), "_delta_log")
    operations = {entry["operation"] for entry in DeltaTable(vault.uri(VAULT)).history()}
    assert {"OPTIMIZE", "DELETE"} < operations
    assert places_with([log], [b"-canary-", vault.keyring.ref("amy")[:32].encode()]) == []


def test_a_rotation_that_stopped_between_two_days_is_finished_by_the_next_and_an_erasure_in_between_is_true(
    vault: Vault, platform: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in range(3):
        later = day * 24 * 60
        put(vault, day, [deposit(vault, name, f"{name}-{day}", f"v{day}", minutes=later) for name in ("bob", "amy")])
    replace, left = store_tables.replace, [True]

    def stops(*given: Any) -> None:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        replace(*given)

    monkeypatch.setattr(store_tables, "replace", stops)
    with pytest.raises(KeyboardInterrupt):
        rotate(vault)
    assert [value for *_, value in said(vault, "bob")] == ["v0", "v1", "v2"]
    monkeypatch.undo()
    assert vault.keyring.destroy(Owner(EVERY_GAME, vault.keyring.ref("amy"))) == 2
    rotate(vault)
    assert [value for *_, value in said(open_vault(platform), "bob")] == ["v0", "v1", "v2"]
    assert said(vault, "amy") == []
    assert vault.keyring.count(Owner(EVERY_GAME, vault.keyring.ref("bob"))) == 1


def test_what_is_delivered_while_the_vault_is_encrypted_anew_opens_afterwards(
    vault: Vault, platform: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(vault, 1, [deposit(vault, "bob", "e1", "v1")])
    replace, numbers = store_tables.replace, count(2)

    def meanwhile(*given: Any) -> None:
        replace(*given)
        # As a server of its own would with the lock; this thread has it.
        monkeypatch.setattr(vaults, "commit_lock", lambda *_: nullcontext())
        number = next(numbers)
        put(open_vault(platform), number, [deposit(vault, who, f"e{number}", f"v{number}") for who in ("bob", "new")])

    monkeypatch.setattr(store_tables, "replace", meanwhile)
    rotate(vault)
    monkeypatch.undo()
    assert len(said(open_vault(platform), "bob")) == 2
    assert len(said(open_vault(platform), "new")) == 1
    assert vault.keyring.count(Owner(EVERY_GAME, vault.keyring.ref("bob"))) == 1


@pytest.mark.parametrize("first", [True, False], ids=["secret", "key of a subject"])
def test_a_key_that_is_made_while_the_master_key_is_rotated_can_be_read_afterwards(
    vault: Vault, platform: Settings, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    """Its wrapping holds nobody up, and is done again where the master key that wrapped it is forgotten by then."""
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(platform.home))
    if not first:
        vault.keyring.ref("bob")
    # Not the command, which waits for the lock of the vault that `put` holds.
    once_while_wrapping(monkeypatch, open_vault(platform).keyring.rotate)
    put(vault, 1, [deposit(vault, "bob", "e1", "v1")])
    assert said(open_vault(platform), "bob") == [("g1", "e1", "/emails/0", "v1")]
    with reading(vault.keyring.engine) as connection:
        versions = {row.master_version for table in (PII_KEY, PII_SECRET) for row in connection.execute(select(table))}
    assert versions == {"local:2"}


def test_who_was_erased_before_a_batch_began_is_erased_for_it_whatever_clocks_say(vault: Vault) -> None:
    keyring, store = vault.keyring, CheckpointStore(vault.keyring.engine)
    ann, bob = (Owner("g1", keyring.ref(name)) for name in ("ann", "bob"))
    keyring.destroy(ann)
    batch = store.begin(Manifest("ingest", store.app_id("ingest"), 0, {}, {}, datetime(2000, 1, 1, tzinfo=UTC)))
    keyring.destroy(bob)
    assert keyring.erased({ann, bob}, batch.sequence) == {ann}
    assert keyring.erased({ann, bob}) == {ann, bob}


def test_a_destroyed_key_is_in_no_file_and_is_not_made_again(vault: Vault, platform: Settings) -> None:
    put(vault, 1, [deposit(vault, "bob", "e1", "v1"), deposit(vault, "bob", "e2", "v2", game="g2")])
    ref = vault.keyring.ref("bob")
    with reading(vault.keyring.engine) as connection:
        wrapped = [row.wrapped for row in connection.execute(select(PII_KEY))]
    files = list(platform.home.glob("stores.db*"))
    assert all(any(key in path.read_bytes() for path in files) for key in wrapped), "the test looks in the right place"
    assert vault.keyring.destroy(Owner("g1", ref)) == 1
    assert [game for game, *_ in said(vault, "bob")] == ["g2"]
    assert vault.keyring.destroy(Owner(EVERY_GAME, ref)) == 1
    assert vault.keyring.destroy(Owner(EVERY_GAME, ref)) == 0
    assert not any(key in path.read_bytes() for key in wrapped for path in platform.home.glob("stores.db*"))
    assert said(vault, "bob") == []
    late = [deposit(vault, "bob", "e3", "late", game="g3"), deposit(vault, "amy", "e4", "hers")]
    assert put(vault, 3, late) == 1
    assert said(vault, "bob") == []
    assert vault.keyring.count(Owner(EVERY_GAME, ref)) == 0


def test_keys_are_wrapped_by_kms_and_moved_there_from_a_file(
    vault: Vault, platform: Settings, moto: Moto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto.endpoint)
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    put(vault, 1, [deposit(vault, "bob", "e1", "v1")])
    key_id = moto.client("kms").create_key()["KeyMetadata"]["KeyId"]
    with_kms = platform.model_copy(update={"pii": PiiSettings(kms_key_id=key_id)})
    there = open_vault(with_kms)
    assert said(there, "bob") == [("g1", "e1", "/emails/0", "v1")], "what a file's key wrapped is still read"
    with pytest.raises(MasterKeyBusy, match="pii rotate"):
        put(there, 2, [deposit(there, "amy", "e2", "v2")])
    version, count = there.keyring.rotate()
    assert (version.startswith("kms:arn:"), count) == (True, 2)
    put(there, 2, [deposit(there, "amy", "e2", "v2")])
    with pytest.raises(MasterKeyBusy, match=r"pii\.kms_key_id"):
        put(vault, 3, [deposit(vault, "eve", "e3", "a server that runs with the file still")])
    (platform.home / "pii" / "master.json").unlink()
    anew = open_vault(with_kms)
    assert said(anew, "bob") + said(anew, "amy") == [("g1", "e1", "/emails/0", "v1"), ("g1", "e2", "/emails/0", "v2")]
    with reading(anew.keyring.engine) as connection:
        versions = {row.master_version for table in (PII_KEY, PII_SECRET) for row in connection.execute(select(table))}
    assert versions == {KmsMaster(key_id).current()}


def test_a_wrapped_key_given_to_another_subject_does_not_open(vault: Vault) -> None:
    put(vault, 1, [deposit(vault, "bob", "e1", "v1"), deposit(vault, "amy", "e2", "v2")])
    refs = {name: vault.keyring.ref(name) for name in ("bob", "amy")}
    with writing(vault.keyring.engine, "test") as connection:
        wrapped = connection.execute(select(PII_KEY.c.wrapped).where(PII_KEY.c.subject_ref == refs["amy"])).scalar_one()
        connection.execute(PII_KEY.update().where(PII_KEY.c.subject_ref == refs["bob"]).values(wrapped=wrapped))
    with pytest.raises(SealBroken):
        said(vault, "bob")


def test_two_processes_that_begin_at_once_have_the_same_keys(platform: Settings) -> None:
    rings: list[Keyring] = [open_vault(platform).keyring for _ in range(2)]
    owner = Owner("g1", rings[0].ref("bob"))
    assert rings[1].ref("bob") == owner.ref
    assert rings[0].keys_for([owner]) == rings[1].keys_for([owner])


def test_a_vault_on_an_object_store_is_read_rotated_and_erased(
    moto: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = f"vault-{uuid4().hex[:8]}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto.endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    where = {"LocationConstraint": os.environ["AWS_DEFAULT_REGION"]}
    moto.client("s3").create_bucket(Bucket=bucket, CreateBucketConfiguration=where)
    vault = open_vault(Settings(home=tmp_path / "home", lake_uri=f"s3a://{bucket}/lake"))
    put(vault, 1, [deposit(vault, "bob", "e-1", "bob@example.org"), deposit(vault, "amy", "e-2", "amy@example.org")])
    put(vault, 1, [deposit(vault, "bob", "e-1", "bob@example.org")])  # delivered again

    def values(subject: str) -> list[object]:
        return [one.value for one in vault.read(subject, purpose="support", reader="test")]

    assert (values("bob"), values("amy")) == (["bob@example.org"], ["amy@example.org"])
    assert rotate(vault).rows == 2
    assert (values("bob"), values("amy")) == (["bob@example.org"], ["amy@example.org"])
    keys_gone, places = erase(vault, subject(vault, "bob", None))
    assert keys_gone > 0
    assert [(place.name, place.left) for place in places] == [(VAULT.name, 0), (REFUSED.name, 0)]
    assert (values("bob"), values("amy")) == ([], ["amy@example.org"])
    listed = moto.client("s3").list_objects_v2(Bucket=bucket, Prefix="lake/pii/")["Contents"]
    bodies = [moto.client("s3").get_object(Bucket=bucket, Key=one["Key"])["Body"].read() for one in listed]
    assert not any(b"example.org" in body for body in bodies)
