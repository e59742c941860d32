"""Stores older than the tables: noticed before anything is written, and brought up without a row lost or doubled."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from engagement_platform.cli import app
from engagement_platform.engine.drain import drain
from engagement_platform.engine.fencing import declared
from engagement_platform.engine.model import JobState, Manifest, Transaction, manifest_from
from engagement_platform.engine.recovery import planned, recover
from engagement_platform.engine.table_logs import (
    Held,
    Note,
    NotResumable,
    StoresBehind,
    TableLogs,
)
from engagement_platform.errors import PlatformError
from engagement_platform.lake.batch_logs import LakeLogs, LogUnreadable, held_transactions, note_of
from engagement_platform_tests.lake.recovering import (
    AT_ONCE,
    FIRST,
    JOB,
    NOW,
    SECOND,
    Killed,
    Topic,
    World,
    another,
    append,
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def crash_points() -> tuple[str, ...]:
    """From the job's own declaration."""
    return (
        "manifest:before",
        "manifest:after",
        *(f"{name}.append:{when}" for name in ("first",) for when in ("before", "after")),
        "first:recorded",
        "second.append:before",
        "second.append:after",
        "second:recorded",
        "finalized",
    )


def test_every_crash_point_of_the_job_is_covered(world: World) -> None:
    assert sorted(world.job().crash_points) == sorted(crash_points())


def test_stores_one_batch_old_are_refused_by_table_and_batch_before_anything_is_written(world: World) -> None:
    world.run(1, 2)
    backup = world.backup()
    world.run(3)
    world.restore_stores(backup)
    before = world.versions()
    with pytest.raises(StoresBehind, match=r"numbers/(first|second) holds batch 1 .* are at batch 0"):
        world.run(4)
    assert world.versions() == before
    last = world.stores.checkpoints.latest(JOB)
    assert last is not None
    assert last.manifest.batch_id == 0, "no manifest was written either"


@pytest.mark.parametrize("lost", [False, True], ids=["from a backup", "lost"])
@pytest.mark.parametrize("point", crash_points())
def test_a_batch_that_was_stopped_anywhere_ends_as_undisturbed_when_its_stores_are_gone(
    world: World, point: str, lost: bool
) -> None:
    """Its own manifest comes back: what was sent since belongs to the next batch."""
    world.run(1, 2)
    backup = world.backup()
    with pytest.raises(Killed):
        world.run(3, 4, stop_at=point)
    held = world.versions() != [0, 0]
    world.restore_stores(None if lost else backup)
    world.topic.numbers.append(5)
    if lost or held:
        with pytest.raises(StoresBehind, match="engagement-platform recover"):
            world.run()
    recover(world.stores)
    ends = [dict(report.manifest.end) for report in world.run()]
    assert world.rows() == world.expected()
    assert ends[-1] == {"0": 5}
    whole = point in ("second.append:after", "second:recorded", "finalized")
    assert ([{"0": 4}, {"0": 5}] if held and not whole else [{"0": 5}]) == ends


def test_a_batch_that_a_lost_reset_gave_up_is_not_taken_up_again(world: World) -> None:
    """Resumed, each of its missing commits would be skipped as made, and its records would be in no table."""
    world.run(1, 2)
    with pytest.raises(Killed):
        world.run(3, stop_at="first:recorded")
    last = world.stores.checkpoints.latest(JOB)
    assert last is not None
    targets = {"first/append": FIRST, "second/append": SECOND}
    for one in declared(last.manifest, targets, abandoned=True):
        append(world.root, one.table, [], one.transaction)
    world.restore_stores(None)
    [found] = recover(world.stores)
    assert ("given up" in found.lost, found.manifest, found.state) == (True, None, None)
    assert "engagement-platform reset" in str(found)
    with pytest.raises(StoresBehind):
        world.run()
    foreign = {held.app_id for held in world.stores.tables.held(JOB)}
    world.stores.checkpoints.reset(JOB, foreign=foreign, sequence=world.stores.tables.last_sequence())
    world.run()
    assert set(world.rows()[1]) == {1, 2, 3}


def test_recovering_twice_or_where_nothing_is_lost_changes_nothing(world: World) -> None:
    world.run(1)
    with pytest.raises(Killed):
        world.run(2, stop_at="first:recorded")
    before = world.stores.checkpoints.history(JOB)
    assert [one.state for one in recover(world.stores)] == [None]
    assert world.stores.checkpoints.history(JOB) == before
    world.restore_stores(None)
    assert recover(world.stores, dry_run=True)[0].state is JobState.FAILED
    assert world.stores.checkpoints.latest(JOB) is None, "a dry run records nothing"
    recover(world.stores)
    after = world.stores.checkpoints.history(JOB)
    assert [one.state for one in recover(world.stores)] == [None]
    assert world.stores.checkpoints.history(JOB) == after
    assert [(record.manifest.batch_id, record.state) for record in after] == [
        (1, JobState.FAILED),
        (0, JobState.SUCCEEDED),
    ]


def test_a_batch_without_a_commit_is_read_again_and_lands_nowhere_twice(world: World) -> None:
    """Stores that know more than the tables are right; those that lost it read the same records again."""
    world.run(1)
    backup = world.backup()
    with pytest.raises(Killed):
        world.run(10, stop_at="first:recorded")
    assert world.versions() == [0, 0]
    world.restore_stores(backup)
    world.run(11)
    assert world.rows() == world.expected()


def test_a_reset_goes_on_where_stores_were_lost_and_is_not_refused_again(world: World) -> None:
    world.run(1)
    world.run(2)
    world.restore_stores(None)
    stores = world.stores
    foreign = {held.app_id for held in stores.tables.held(JOB)}
    app_id = stores.checkpoints.reset(JOB, foreign=foreign, sequence=stores.tables.last_sequence())
    (again,) = world.run(3)
    assert (again.manifest.app_id, dict(again.manifest.start)) == (app_id, {"0": 0})
    assert again.manifest.sequence > 2, "by which a later recovery knows that it is the newest"
    assert world.run() == []
    world.restore_stores(None)
    [found] = recover(world.stores)
    assert found.manifest == again.manifest


@pytest.mark.parametrize("lost", [False, True], ids=["nothing is lost", "a reset of new stores"])
def test_a_reset_is_not_taken_back_by_a_recovery_that_another_job_asks_for(world: World, lost: bool) -> None:
    world.run(1, 2)
    world.stores.checkpoints.reset(JOB)
    world.run(3)
    if lost:
        world.restore_stores(None)
    foreign = {held.app_id for held in world.stores.tables.held(JOB)}
    app_id = world.stores.checkpoints.reset(JOB, foreign=foreign, sequence=world.stores.tables.last_sequence())
    [found] = recover(world.stores)
    assert (found.state, found.lost) == (None, "")
    assert (world.stores.checkpoints.latest(JOB), world.stores.checkpoints.app_id(JOB)) == (None, app_id)
    (again,) = world.run(4)
    assert (again.manifest.app_id, dict(again.manifest.start)) == (app_id, {"0": 0})


def test_a_batch_that_a_reset_gave_up_which_the_stores_know_asks_for_no_other_reset(world: World) -> None:
    with pytest.raises(Killed):
        world.run(1, stop_at="first:recorded")
    last = world.stores.checkpoints.latest(JOB)
    assert last is not None
    for one in declared(last.manifest, {"first/append": FIRST, "second/append": SECOND}, abandoned=True):
        append(world.root, one.table, [], one.transaction)
    world.stores.checkpoints.reset(JOB)
    [found] = recover(world.stores)
    assert (found.state, found.lost) == (None, "")
    assert world.stores.checkpoints.latest(JOB) is None


def test_a_lost_store_that_another_job_has_begun_anew_still_refuses_for_this_one(world: World) -> None:
    world.run(1)
    world.restore_stores(None)
    another(world, "ingest-others").run(7)
    with pytest.raises(StoresBehind, match="do not know that application id"):
        world.run(2)
    recover(world.stores)
    world.run()
    assert world.rows()[1] == [1, 2, 7]


def test_a_job_that_is_not_behind_begins_above_all_that_the_others_have_written_since(world: World) -> None:
    """Or what they have moved or announced by now would count as covering its batch."""
    others = another(world, "ingest-others")
    world.run(1)
    others.run(7)
    backup = world.backup()
    written = [report.manifest.sequence for number in (2, 3, 4) for report in world.run(number)]
    world.restore_stores(backup)
    (report,) = others.run(8)
    assert report.manifest.sequence > max(written)
    with pytest.raises(StoresBehind):
        world.run()
    recover(world.stores)
    world.run()
    assert world.rows()[1] == [1, 2, 3, 4, 7, 8]


@pytest.mark.parametrize("table", ["numbers/first", "numbers/by/hand"])
def test_tables_are_looked_at_however_deep_they_are_in_the_lake(table: str, world: World) -> None:
    append(world.root, table, [1], Transaction(f"{JOB}@1.a/second/append", 0))
    assert [(each.table, each.job) for each in LakeLogs(world.root).held()] == [(table, JOB)]


def test_what_an_application_id_was_given_before_the_first_batch_is_noticed(world: World) -> None:
    """The stores were copied after they drew the id and before they began the batch."""
    app_id = world.stores.checkpoints.app_id(JOB)
    backup = world.backup()
    (report,) = world.run(1)
    assert report.manifest.app_id == app_id
    world.restore_stores(backup)
    with pytest.raises(StoresBehind, match="know of no batch of it"):
        world.run()


def test_a_write_is_not_skipped_for_a_batch_that_had_another_manifest(world: World) -> None:
    """What notices it when stores are put back under a run: nothing of the other batch is taken for this one's."""
    world.run(1)
    backup = world.backup()
    world.run(2)
    world.restore_stores(backup)
    world.topic.numbers.append(3)
    job = world.job()
    blind = replace(job, stores=replace(job.stores, tables=TableLogs()))
    before = world.versions()
    with pytest.raises(StoresBehind, match=r"numbers/first holds the transaction .*/first/append#1 already"):
        list(drain(blind, AT_ONCE))
    assert world.versions() == before
    with pytest.raises(StoresBehind, match="recover"):
        world.run()
    recover(world.stores)
    world.run()
    assert world.rows() == world.expected()


def test_commits_of_one_batch_with_two_manifests_are_not_reconciled_by_a_guess(world: World) -> None:
    (report,) = world.run(1)
    manifest = report.manifest
    held = [Held(table, JOB, manifest.app_id, "first/append", 0) for table in (FIRST, SECOND)]
    other = replace(manifest, end={"0": 9})
    notes = [Note(FIRST, manifest.digest, False, manifest), Note(SECOND, other.digest, True, other)]
    with pytest.raises(PlatformError, match="--abandon"):
        planned(world.stores, held, notes)


def test_a_job_whose_commits_no_log_has_any_more_is_told_to_be_reset(world: World) -> None:
    world.run(1)
    world.restore_stores(None)
    for table in (FIRST, SECOND):
        uri = f"{world.root}/{table}"
        DeltaTable(uri).create_checkpoint()
        (Path(uri) / "_delta_log" / f"{0:020}.json").unlink()
    assert {held.app_id for held in LakeLogs(world.root).held(JOB)}, "the checkpoint still tells that there was one"
    [found] = recover(world.stores)
    assert found.manifest is None
    assert "engagement-platform reset" in str(found)
    with pytest.raises(StoresBehind):
        world.run(2)


def test_a_job_that_a_restore_has_put_back_goes_on_from_there(world: World) -> None:
    """The restore stands in the tables, its record in the stores is what was lost."""
    world.run(1)
    backup = world.backup()
    (report,) = world.run(2)
    back = {JOB: {"start": {"0": 1}, "end": {"0": 1}}}
    restore = Manifest(
        "restore-tables", "restore-tables@1.t", 0, {FIRST: 2}, {FIRST: 1}, NOW, {FIRST: 2},
        source={"rewinds": back}, sequence=report.manifest.sequence + 1,
    )  # fmt: skip
    held = [Held(FIRST, JOB, report.manifest.app_id, "first/append", 1)]
    notes = [Note(FIRST, report.manifest.digest, False, report.manifest), Note(FIRST, restore.digest, False, restore)]
    [of_stores_that_know_the_batch] = planned(world.stores, held, notes)
    world.restore_stores(backup)
    [found] = planned(world.stores, held, notes)
    for one in (found, of_stores_that_know_the_batch):
        assert (one.state, one.rewound_by) == (JobState.SUCCEEDED, restore)


@pytest.mark.parametrize("ends", ["given up", "unfinished", "finished"])
def test_only_a_restore_that_has_ended_puts_a_job_back(world: World, ends: str) -> None:
    """Nothing is lost of the job, and the stores know of the restore; the one that was given up is in the tables."""
    world.run(1)
    (report,) = world.run(2)
    checkpoints = world.stores.checkpoints
    restore = Manifest(
        "restore-tables", checkpoints.app_id("restore-tables"), 0, {FIRST: 1}, {FIRST: 0}, NOW, {FIRST: 1},
        source={"rewinds": {JOB: {"start": {"0": 1}, "end": {"0": 1}}}}, sequence=report.manifest.sequence + 1,
    )  # fmt: skip
    if ends != "given up":
        restore = checkpoints.begin(restore)
    if ends == "finished":
        checkpoints.succeed(restore, {})
    held = [Held(FIRST, JOB, report.manifest.app_id, "first/append", 1)]
    notes = [Note(FIRST, report.manifest.digest, False, report.manifest), Note(FIRST, restore.digest, False, restore)]
    if ends == "given up":
        notes.append(Note("layout/restore", restore.digest, True, restore))
    [found] = planned(world.stores, held, notes)
    put_back = ends == "finished"
    assert (found.state, found.rewound_by) == ((JobState.SUCCEEDED, restore) if put_back else (None, None))
    world.restore_stores(None)
    if ends == "given up":
        [of_new_stores] = planned(world.stores, held, notes)
        assert (of_new_stores.state, of_new_stores.rewound_by) == (JobState.SUCCEEDED, None)


@pytest.mark.parametrize("lost", [False, True], ids=["from a backup", "lost"])
def test_checkpoints_of_logs_change_nothing_about_what_is_found(world: World, lost: bool) -> None:
    for number in range(1, 15):
        world.run(number)
        if number == 10:
            for table in (FIRST, SECOND):
                DeltaTable(f"{world.root}/{table}").create_checkpoint()
        if number == 12:
            backup = world.backup()
    uri = f"{world.root}/{SECOND}"
    assert any((Path(uri) / "_delta_log").glob("*.checkpoint.parquet"))
    app_id = f"{world.stores.checkpoints.app_id(JOB)}/second/append"
    assert held_transactions(uri) == {app_id: DeltaTable(uri).transaction_version(app_id)} == {app_id: 13}
    world.restore_stores(None if lost else backup)
    recover(world.stores)
    history = world.stores.checkpoints.history(JOB)
    assert [record.manifest.batch_id for record in history] == list(range(13, -1, -1))
    world.run(15)
    assert world.rows() == world.expected()


@pytest.mark.parametrize("damaged", [1, 2], ids=["the newest checkpoint", "both"])
@pytest.mark.parametrize("content", [b"", b"PAR1 and no more"])
def test_a_damaged_checkpoint_of_a_log_keeps_nobody_while_its_entries_are_there(
    world: World, damaged: int, content: bytes
) -> None:
    uri = f"{world.root}/{SECOND}"
    for number in range(1, 8):
        world.run(number)
        if number in (3, 6):
            DeltaTable(uri).create_checkpoint()
    before = held_transactions(uri)
    files = sorted(Path(uri, "_delta_log").glob("*.checkpoint.parquet"))
    assert ([int(file.name[:20]) for file in files], list(before.values())) == ([2, 5], [6])
    for file in files[-damaged:]:
        file.write_bytes(content)
    assert held_transactions(uri) == before
    assert {each.batch_id for each in LakeLogs(world.root).held(JOB) if each.table == SECOND} == {6}


@pytest.mark.parametrize("gone", [4, 5])
def test_a_log_that_does_not_say_which_batches_its_table_holds_stops_jobs_by_its_name(world: World, gone: int) -> None:
    """Of a table that none of them writes: what the checkpoint had is in no other file."""
    world.run(1)
    uri = f"{world.root}/shop/click"
    for number in range(6):
        append(world.root, "shop/click", [number], Transaction("another program", number))
    DeltaTable(uri).create_checkpoint()
    [checkpoint] = Path(uri, "_delta_log").glob("*.checkpoint.parquet")
    checkpoint.write_bytes(b"")
    assert world.run(2)
    Path(uri, "_delta_log", f"{gone:020}.json").unlink()
    with pytest.raises(LogUnreadable, match=r"shop/click cannot be read \(ArrowInvalid: .*Nothing was written"):
        world.run(3)


def test_an_entry_that_was_cut_off_stops_jobs_by_the_name_of_its_table(world: World) -> None:
    world.run(1)
    entry = Path(world.root, FIRST, "_delta_log", f"{0:020}.json")
    line = next(line for line in entry.read_bytes().split(b"\n") if line.startswith(b'{"txn"'))
    entry.write_bytes(line[:-5])
    with pytest.raises(LogUnreadable, match=FIRST):
        world.run(2)


def test_what_decides_is_taken_from_the_manifest_when_the_setting_has_changed_meanwhile(world: World) -> None:
    with pytest.raises(Killed):
        world.run(1, 2, stop_at="first:recorded")
    world.factor = 100
    world.run()
    assert world.rows() == world.expected()


def test_batches_are_ordered_by_the_stores_whatever_clocks_say(world: World) -> None:
    """Two jobs, the clock of one a minute behind, set back further after each batch; then all is lost and found."""
    other = another(replace(world, now=NOW - timedelta(minutes=1)), "ingest-others")
    reports = []
    for number in range(1, 5):
        reports += [*world.run(number), *other.run(number)]
        world.now -= timedelta(seconds=60)
    sequences = [report.manifest.sequence for report in reports]
    assert sequences == sorted(set(sequences))
    assert world.now < NOW
    world.restore_stores(None)
    recover(world.stores)
    last = world.stores.checkpoints.latest(JOB)
    assert last is not None
    assert last.manifest.batch_id == 3, "the last batch has the earliest time"
    (next_one,) = world.run(5)
    assert next_one.manifest.sequence > max(sequences)


def test_a_batch_begun_under_other_rules_is_not_resumed(world: World) -> None:
    with pytest.raises(Killed):
        world.run(1, stop_at="manifest:after")
    last = world.stores.checkpoints.latest(JOB)
    assert last is not None
    stores = world.stores
    stores.checkpoints.reset(JOB)
    older = replace(last.manifest, rules_version=0, app_id=stores.checkpoints.app_id(JOB))
    stores.checkpoints.begin(older)
    with pytest.raises(NotResumable, match="version of the platform that began it"):
        world.run()
    assert world.versions() == [-1, -1]


def test_a_table_that_was_made_anew_under_an_unfinished_batch_stops_it(world: World) -> None:
    world.run(1)
    with pytest.raises(Killed):
        world.run(2, stop_at="manifest:after")
    shutil.rmtree(f"{world.root}/{FIRST}")
    World(world.home, Topic(), name="ingest-others").run(7)
    with pytest.raises(NotResumable, match=rf"version 0 of {FIRST} with id .*--abandon"):
        world.run()


def test_a_manifest_comes_back_from_a_commit_as_it_was_with_its_digest(world: World) -> None:
    (report,) = world.run(1)
    manifest = report.manifest
    transaction = manifest.transaction("first", "append", final=True)
    note = note_of(FIRST, transaction.metadata)
    assert note == Note(FIRST, manifest.digest, True, manifest)
    assert note is not None
    assert manifest_from(note.manifest.as_json()).digest == manifest.digest
    assert replace(manifest, settings={"factor": 2}).digest != manifest.digest
    assert [note_of(FIRST, other) for other in (None, "", "job@1.t/a/b#1", "x\n{}", "x\n[1]", 'x\n{"digest": 1}')] == [
        None
    ] * 6


def test_the_command_says_what_it_records_and_fails_where_only_a_reset_helps(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.run(1)
    world.restore_stores(None)
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(world.home))
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_LAKE_URI", world.root)
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_STORES__URL", f"sqlite:///{world.database}")
    for arguments, line in (
        (["recover", "--dry-run"], "is recorded as finished"),
        (["recover"], "is recorded as finished"),
        (["recover"], "as the stores have it"),
        (["recover", "--json"], '"recorded_as": null, "lost": false'),
    ):
        result = CliRunner().invoke(app, arguments)
        assert (result.exit_code, line in result.output) == (0, True), result.output
    assert world.run(2)
