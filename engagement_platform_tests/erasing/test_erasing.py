"""What is left of an erased person in the tables of engagements and profiles, whatever died in between."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from engagement_platform.consumers import Changes
from engagement_platform.engine.database import utc_now
from engagement_platform.engine.job import Callbacks
from engagement_platform.engine.model import Manifest
from engagement_platform.engine.unfinished_batches import OthersBatchUnfinished
from engagement_platform.erasing.job import erase_job, tables
from engagement_platform.erasing.places import places
from engagement_platform.erasing.purge import purge_now
from engagement_platform.erasing.subject_lookup import SubjectIds
from engagement_platform.errors import PlatformError
from engagement_platform.lake import log
from engagement_platform.lake.added_rows import added
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import ALIAS, CHANGESET, MAPPING, MUTATION_REQUEST, NOTIFICATION, QUARANTINE
from engagement_platform.lake.erased import ERASE_SUBJECTS, PSEUDONYM, current_files, is_erasure
from engagement_platform.lake.lake import Lake
from engagement_platform.maintenance.rollback.groups import RestoreRefused
from engagement_platform.maintenance.rollback.plan import _refuse_erased_since
from engagement_platform.pii.erasure import erase, subject
from engagement_platform.pii.receipts import receipt, verify
from engagement_platform.pii.tombstones import ENGAGEMENT, PERSON, StoredTombstones, entity
from engagement_platform.pii.vault import open_vault
from engagement_platform.pipelines.jobs import reset_job
from engagement_platform.pipelines.mutations.announce import newest_request
from engagement_platform.pipelines.profiles.entity import PROFILE
from engagement_platform.pipelines.snapshot import current, current_names, snapshot
from engagement_platform_tests.erasing.planted import (
    AMY,
    ANN,
    AT,
    BOB,
    DATA,
    LATER,
    PENDING,
    SECRET,
    Planted,
    edge,
    engagement,
    image,
    name,
    request,
)
from engagement_platform_tests.files_with import places_with

WHOM = SubjectIds.of(BOB)
REF = "ref"


@pytest.fixture(scope="module")
def erased(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> tuple[Planted, dict[str, Any]]:
    """One lake after one erasure, with its receipt; a consumer has read all that was told before it."""
    planted = Planted(tmp_path_factory.mktemp("erased"))
    follow(planted)
    vault = open_vault(planted.settings)
    who = subject(vault, BOB, None)
    keys, done = erase(vault, who, places(planted.settings, WHOM))
    return planted, receipt(vault.keyring, who, keys, done, AT)


def follow(planted: Planted) -> list[str]:
    """Engagements that are gone, as a consumer hears of them."""
    changes, gone = Changes(planted.root, name="reader", store_url=planted.settings.store_url), list[str]()
    for batch in changes:
        gone += batch.deletes["engagement_id"].to_pylist()
        changes.commit()
    return sorted(gone)


def test_rows_of_the_person_are_gone_from_every_table_and_others_have_all_they_had(
    erased: tuple[Planted, dict[str, Any]],
) -> None:
    lake, _ = erased
    assert lake.values(DATA, "engagement_id", "person_id", "source_person_id", "version") == [
        ("amy's", AMY, AMY, 1), ("ann's", ANN, ANN, 1), ("corrected", ANN, ANN, 2), ("passed", AMY, "early", 1),
        ("through", AMY, "early", 1),
    ]  # fmt: skip
    assert lake.values(CHANGESET, "engagement_id") == [("amy's",)], "what the base now has stands there once"
    corrected = next(row for row in lake.rows(DATA) if row["engagement_id"] == "corrected")
    assert (corrected["engagement"]["subject"], corrected["original"]["subject"]) == ("patched", "hello")
    assert lake.values(MAPPING, "id", "name") == [(AMY, "Amy"), (ANN, "Ann"), ("lead", "A lead")], (
        "the name that was handed on goes, too"
    )
    assert lake.values(MUTATION_REQUEST, "request_id") == [("c9",), ("u3",), ("u5",)]
    assert lake.values(PROFILE.changeset, "profile_id") == lake.values(PROFILE.base, "profile_id") == [(ANN,)]


def test_who_became_whom_stays_under_a_pseudonym_and_refused_records_are_markers(
    erased: tuple[Planted, dict[str, Any]],
) -> None:
    lake, _ = erased
    edges = {row["request_id"]: (row["from_id"], row["to_id"]) for row in lake.rows(ALIAS)}
    assert sorted(edges) == [f"c{n}" for n in range(1, 10)], "what only deleted the person is gone"
    assert edges["c1"][1].startswith(PSEUDONYM)
    assert edges["c5"] == ("early", edges["c1"][1])
    assert edges["c4"] == (edges["c1"][1], AMY)
    rows = {row["offset"]: (row["key"], row["value"], row["reason_code"]) for row in lake.rows(QUARANTINE)}
    assert rows[0] == rows[1] == (None, None, "erased")
    assert json.loads(rows[2][1]) == {"organization_id": "org", "person_id": ANN}


def test_readers_drop_the_rows_and_each_is_told_of_as_often_as_it_was_seen(
    erased: tuple[Planted, dict[str, Any]],
) -> None:
    lake, _ = erased
    gone = ["again", "became", "elsewhere", "led", "own", "waiting"]
    told = [(row["change_type"], row["engagement_id"]) for row in lake.rows(NOTIFICATION)]
    for each in gone:
        assert told.count(("INSERT", each)) == told.count(("DELETE", each)) == 1
    assert follow(lake) == gone, "a reader that goes on hears of these only"
    everything = Changes(lake.root, name="new", store_url=lake.settings.store_url)
    assert {id_ for batch in everything for id_ in batch.inserts["engagement_id"].to_pylist()} == {
        "amy's", "ann's", "corrected", "passed", "through",
    }  # fmt: skip


def test_whoever_follows_a_table_goes_on_after_an_erasure(erased: tuple[Planted, dict[str, Any]]) -> None:
    lake, _ = erased
    uri = MUTATION_REQUEST.uri(lake.root)
    versions = range(DeltaTable(uri).version() + 1)
    assert [len(added(uri, version)) for version in versions] == [0, 1, *[0] * (len(versions) - 2)], "nothing is new"


def test_no_file_in_use_has_a_byte_of_the_person(erased: tuple[Planted, dict[str, Any]]) -> None:
    lake, _ = erased
    for table in tables(lake.settings):
        ours = [commit for commit in opened(lake, table).history() if is_erasure(commit.get("userMetadata"))]
        assert ours, table.name
        if table.key[0] == "engagement":
            assert all("Spark" in commit["engineInfo"] for commit in ours), table.name
        found = places_with([Path(table.uri(lake.root))], [BOB.encode(), SECRET.encode()])
        assert not current_files(lake.root, table).intersection(found), table.name
        appends_only = DeltaTable(table.uri(lake.root)).metadata().configuration.get("delta.appendOnly", "false")
        assert appends_only == table.properties.get("delta.appendOnly", "false"), table.name
        for path in places_with([Path(table.uri(lake.root), "_delta_log")], [BOB.encode(), SECRET.encode()]):
            first = min(commit["version"] for commit in ours)
            assert int(path.name[:20]) < first, f"{table.name}: no entry of ours names anybody"


def opened(planted: Planted, table: Table) -> DeltaTable:
    return DeltaTable(table.uri(planted.root))


def test_the_receipt_names_every_table_and_verification_finds_what_is_planted_later(
    erased: tuple[Planted, dict[str, Any]],
) -> None:
    lake, given = erased
    named = {place["name"]: (place["rows"], place["left"]) for place in given["places"]}
    assert named.keys() >= {table.name for table in tables(lake.settings)}
    assert named["engagement/data"] == (9, 0)
    assert named["engagement/notification"] == (12, 0)
    assert BOB not in json.dumps(given)
    vault = open_vault(lake.settings)

    def checks() -> dict[str, bool]:
        others = places(lake.settings, WHOM)
        return {check.what: check.holds for check in verify(vault, given, others, BOB)}

    assert all(checks().values())
    lake.append(MAPPING, [name(BOB, "again", AT)], 1)
    lake.append(MUTATION_REQUEST, [request("u9", operation="UPDATE", engagement_id="own")], 1)
    wrong = {what for what, holds in checks().items() if not holds}
    assert wrong == {"engagement/mapping", "engagement/mutation_request"}
    erase(vault, subject(vault, BOB, None), places(lake.settings, WHOM))
    assert all(checks().values()), "the same call removes what came later"


def test_tombstones_are_asked_by_organization(erased: tuple[Planted, dict[str, Any]]) -> None:
    lake, _ = erased
    tombstones = StoredTombstones(lake.settings)
    assert tombstones.erased(PERSON, {("any", BOB), ("org", ANN)}) == {("any", BOB)}
    assert tombstones.erased(ENGAGEMENT, {("org", "own"), ("other", "own"), ("other", "elsewhere")}) == {
        ("org", "own"), ("other", "elsewhere"),
    }  # fmt: skip
    assert tombstones.erased(entity("profile"), {("", BOB), ("", ANN)}) == {("", BOB)}


@pytest.mark.slow
def test_a_crash_at_any_point_leaves_what_an_undisturbed_erasure_leaves(tmp_path: Path, spark: SparkSession) -> None:
    calm, crashed = Planted(tmp_path / "calm"), Planted(tmp_path / "crashed")
    job = erase_job(Lake(spark, calm.settings), calm.stores, Callbacks())
    undisturbed = calm.eraser().run(REF, WHOM)
    died = []
    for point in job.crash_points:
        try:
            crashed.eraser(Callbacks(observe=dying_at(point))).run(REF, WHOM)
        except RuntimeError:
            died.append(point)
    assert died == list(job.crash_points), "each attempt gets as far as its point"
    assert crashed.eraser().run(REF, WHOM) == undisturbed, "the last call knows what all of them did"
    assert alike(crashed) == alike(calm)
    made = commits_of_erasures(crashed)
    assert all(len(markers) == len(set(markers)) for markers in made.values()), "a commit was made twice"
    assert {name: len(markers) for name, markers in made.items()} == {
        name: len(markers) for name, markers in commits_of_erasures(calm).items()
    }
    assert StoredTombstones(crashed.settings).next_asked(0) is None, "whom it was about is forgotten"


def commits_of_erasures(planted: Planted) -> dict[str, list[str]]:
    """Table -> markers of the erasure's commits to it, sorted; one that was made twice stands twice."""
    found = {
        table.name: sorted(str(marker) for _, marker in log.markers(table.uri(planted.root)) if is_erasure(marker))
        for table in tables(planted.settings)
    }
    return {name: markers for name, markers in found.items() if markers}


def dying_at(point: str) -> Callable[[str], None]:
    def observe(passed: str) -> None:
        if passed == point:
            raise RuntimeError(f"died at {point}")

    return observe


def alike(planted: Planted) -> dict[str, list[str]]:
    """All rows without what differs between two lakes: application ids, times, keyed hashes."""
    varying = {"notification_id", "ingestion_ts", "ingestion_date", "batch_id"}
    found = {}
    for table in tables(planted.settings):
        rows = [{k: v for k, v in row.items() if k not in varying} for row in planted.rows(table)]
        found[table.name] = sorted(
            repr({k: "~" if str(v).startswith(PSEUDONYM) else v for k, v in row.items()}) for row in rows
        )
    return found


def test_other_jobs_wait_until_an_erasure_is_finished(tmp_path: Path, spark: SparkSession) -> None:
    planted = Planted(tmp_path)
    with pytest.raises(RuntimeError, match="died"):
        planted.eraser(Callbacks(observe=dying_at("tombstones:recorded"))).run(REF, WHOM)
    unfinished = planted.stores.checkpoints.unfinished()
    with pytest.raises(OthersBatchUnfinished, match="erase --finish"):
        raise OthersBatchUnfinished("ingest-engagements", (DATA.name,), unfinished)
    assert unfinished[0].manifest.table_versions.keys() >= {table.name for table in tables(planted.settings)}


@pytest.mark.slow
def test_an_erasure_in_one_organization_leaves_the_others(tmp_path: Path, spark: SparkSession) -> None:
    planted = Planted(tmp_path)
    before = planted.contents()
    planted.eraser().run(REF, SubjectIds.of(BOB, organizations=["other"], profiles=["nobody"]))
    changed = {table for table, rows in planted.contents().items() if rows != before[table]}
    assert changed == {DATA.name, NOTIFICATION.name, QUARANTINE.name}
    assert {row["engagement_id"] for row in planted.rows(DATA) if row["organization_id"] == "other"} == set()
    assert len(planted.rows(DATA)) == len(before[DATA.name]) - 1
    assert {row["offset"] for row in planted.rows(QUARANTINE) if row["reason_code"] == "erased"} == {1}


def test_readers_see_nothing_else_at_any_moment(tmp_path: Path, spark: SparkSession) -> None:
    """Engagements are as they were until those of the person are gone; names are as they were, or as they will be."""
    planted = Planted(tmp_path)
    lake, seen = Lake(spark, planted.settings), list[tuple[dict[str, Any], dict[str, Any]]]()

    def look(point: str) -> None:
        of_view = ("data.", "changeset.", "mapping.", "mutation_request.", "alias.")
        if point == "manifest:after" or (point.startswith(of_view) and point.endswith(".rewrite:after")):
            at = snapshot(planted.root)
            rows, names = current(lake, at).toArrow().to_pylist(), current_names(lake, at).toArrow().to_pylist()
            said = {BOB if row["id"].startswith(PSEUDONYM) else row["id"]: row["name"] for row in names}
            seen.append(({row["engagement_id"]: row for row in rows}, said))

    planted.eraser(Callbacks(observe=look)).run(REF, WHOM)
    assert len(seen) == 6
    (first, first_names), (last, last_names) = seen[0], seen[-1]
    gone = {"again", "became", "elsewhere", "led", "own", "waiting"}
    assert first.keys() - last.keys() == gone
    assert first_names == {AMY: SECRET, ANN: "Ann", BOB: f"last {SECRET}", "lead": "A lead"}
    # The lead is somebody of its own, and what it hands on goes with the conversion, under the pseudonym.
    assert last_names == {AMY: "Amy", ANN: "Ann", BOB: "A lead", "lead": "A lead"}
    for engagements, names in seen:
        assert engagements == {id_: first[id_] for id_ in engagements}
        assert engagements.keys() | gone == first.keys()
        assert names.keys() == first_names.keys()
        assert all(said in (first_names[id_], last_names[id_]) for id_, said in names.items())
    assert "again" in seen[1][0], "its newer image is in the changeset"
    assert not gone & seen[2][0].keys()


@pytest.mark.slow
def test_followers_hear_of_rows_that_a_request_has_deleted_and_nobody_announced(
    tmp_path: Path, spark: SparkSession
) -> None:
    """The request leaves with the person, so nobody else will."""
    planted = Planted(tmp_path)
    delete = {**edge("d9", "DELETE", BOB, None, LATER), "batch_sequence": PENDING + 1}
    planted.append(ALIAS, [delete])
    planted.eraser().run(REF, WHOM)
    gone = [row["engagement_id"] for row in planted.rows(NOTIFICATION) if row["job_name"] == ERASE_SUBJECTS]
    assert sorted(gone) == ["again", "became", "elsewhere", "led", "own", "waiting"]


def test_edges_of_an_organization_in_which_none_names_the_person_still_lead_on_and_delete(
    tmp_path: Path, spark: SparkSession
) -> None:
    planted, far = Planted(tmp_path), {"organization_id": "far"}
    planted.append(DATA, [engagement("far", "theirs", BOB, BOB), engagement("far", "deleted", BOB, None)])
    planted.append(CHANGESET, [{**image("theirs", "lead of ann", ANN), **far}])
    delete = {**edge("d8", "DELETE", None, None, LATER), **far, "engagement_id": "deleted"}
    planted.append(ALIAS, [delete, {**edge("c8", "CONVERT", "lead of ann", ANN, LATER), **far}])
    planted.eraser().run(REF, WHOM)
    assert ("far", "theirs", ANN) in planted.values(DATA, "organization_id", "engagement_id", "person_id")
    gone = [row["engagement_id"] for row in planted.rows(NOTIFICATION) if row["job_name"] == ERASE_SUBJECTS]
    assert sorted(gone) == ["again", "became", "elsewhere", "led", "own", "waiting"], "its deletion was announced"


def test_edges_whose_requests_left_with_the_person_are_still_announced(tmp_path: Path) -> None:
    """They lead through the person to others, whose readers are to hear of it."""
    planted = Planted(tmp_path)
    opened(planted, MUTATION_REQUEST).alter.set_table_properties({"delta.appendOnly": "false"})
    opened(planted, MUTATION_REQUEST).delete()
    assert newest_request(planted.root) == PENDING


def test_the_receipt_says_until_when_former_versions_keep_what_a_table_had(
    erased: tuple[Planted, dict[str, Any]],
) -> None:
    lake, given = erased
    former = [path for path in Path(DATA.uri(lake.root)).rglob("*.parquet") if SECRET.encode() in path.read_bytes()]
    assert former, "readers of former versions still have their files"
    [until] = [place["until"] for place in given["places"] if place["name"] == DATA.name]
    assert set(until) == {"files", "log"}


def test_now_deletes_what_nobody_reads_and_says_who_keeps_the_rest(tmp_path: Path, spark: SparkSession) -> None:
    planted = Planted(tmp_path)
    slow = Changes(planted.root, name="slow", store_url=planted.settings.store_url)
    for table in (DATA, NOTIFICATION):
        planted.append(table, [], 1)
    died = Path(MAPPING.uri(planted.root), "part-of-a-write-that-died.parquet")
    died.write_bytes(SECRET.encode())
    before = places(planted.settings, WHOM, now=True)
    vault = open_vault(planted.settings)
    _, done = erase(vault, subject(vault, BOB, None), before)
    until = {one.name: set(one.until) for one in done}
    assert until["engagement/notification"] == {"files", "log"}, "the slow consumer keeps them"
    assert until["engagement/data"] == {"log"}
    assert until["engagement/mapping"] == {"files", "log"}, "a file that no commit names may be of a write under way"
    needles, found = [BOB.encode(), SECRET.encode()], dict[str, list[Path]]()
    for table in tables(planted.settings):
        folder = Path(table.uri(planted.root))
        found[table.name] = [path for path in places_with([folder], needles) if "_delta_log" not in path.parts]
    assert {name for name, paths in found.items() if paths} == {"engagement/mapping", "engagement/notification"}
    assert found["engagement/mapping"] == [died]
    assert {id_ for batch in slow for id_ in batch.inserts["engagement_id"].to_pylist()} >= {"amy's", "ann's"}


def test_files_of_former_versions_that_are_left_where_a_call_ended_go_with_the_same_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted, unlink, gone = Planted(tmp_path), Path.unlink, list[Path]()
    planted.append(DATA, [engagement("org", "later", BOB, BOB)], 1)
    folder = Path(DATA.uri(planted.root))
    DeltaTable(folder).delete(f"person_id = '{BOB}'")
    before = set(folder.rglob("*.parquet"))

    def dies_at_the_second(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".parquet":
            gone.append(path)
        if len(gone) == 2:
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", dies_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            purge_now(planted.settings, planted.stores, utc_now())
    assert len(before - set(folder.rglob("*.parquet"))) == 1
    assert purge_now(planted.settings, planted.stores, utc_now())[DATA.name] == []
    assert {str(path) for path in folder.rglob("*.parquet")} == set(DeltaTable(folder).file_uris())


def test_an_erasure_of_which_the_stores_have_lost_whom_it_is_about_is_given_up_and_done_again(tmp_path: Path) -> None:
    """As after `recover`: the tables' logs name no person."""
    planted = Planted(tmp_path)
    checkpoints = planted.stores.checkpoints
    app_id = checkpoints.app_id(ERASE_SUBJECTS)
    checkpoints.begin(Manifest(ERASE_SUBJECTS, app_id, 0, {"erasure": 0}, {"erasure": 1}, utc_now()))
    with pytest.raises(PlatformError, match="reset erase-subjects --abandon`, then erase again"):
        list(planted.eraser().finish())
    reset_job(ERASE_SUBJECTS, planted.settings, abandon=True)
    assert list(planted.eraser().finish()) == []


def test_a_restore_does_not_go_back_behind_an_erasure(erased: tuple[Planted, dict[str, Any]]) -> None:
    lake, _ = erased
    with pytest.raises(RestoreRefused, match="is an erasure"):
        _refuse_erased_since(DATA.uri(lake.root), DATA.name, 1)
    _refuse_erased_since(DATA.uri(lake.root), DATA.name, DeltaTable(DATA.uri(lake.root)).version())


@pytest.mark.slow
@pytest.mark.crash
def test_a_process_that_is_killed_is_followed_by_one_that_does_the_rest(tmp_path: Path, spark: SparkSession) -> None:
    planted, calm = Planted(tmp_path / "killed"), Planted(tmp_path / "calm")
    calm.eraser().run(REF, WHOM)
    command = [sys.executable, "-m", "engagement_platform_tests.erasing.killable", str(planted.settings.home)]
    died = subprocess.run([*command, "mapping.rewrite:after"], check=False, timeout=300)
    assert died.returncode == -signal.SIGKILL
    assert BOB not in repr(planted.stores.checkpoints.history(ERASE_SUBJECTS)), "whom it is about is written nowhere"
    assert len(list(planted.eraser().finish())) == 1
    assert alike(planted) == alike(calm)


@pytest.mark.slow
def test_rows_that_are_only_marked_as_removed_leave_their_files_too(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a call ended between the commit that marks them and the one that writes the files anew."""
    planted, session = Planted(tmp_path), type(spark)
    data, sql = Lake(spark, planted.settings).sql_name(DATA), session.sql
    spark.sql(f"ALTER TABLE {data} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')").collect()

    def dies(session: SparkSession, statement: str, *given: Any, **named: Any) -> Any:
        if statement.startswith("REORG"):
            raise KeyboardInterrupt
        return sql(session, statement, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(session, "sql", dies)
        with pytest.raises(KeyboardInterrupt):
            planted.eraser().run(REF, WHOM)
    found = places_with([Path(DATA.uri(planted.root))], [BOB.encode(), SECRET.encode()])
    assert current_files(planted.root, DATA).intersection(found), "rows are marked, and in files of now"
    assert planted.eraser().run(REF, WHOM)[DATA.name] == 9
    found = places_with([Path(DATA.uri(planted.root))], [BOB.encode(), SECRET.encode()])
    assert not current_files(planted.root, DATA).intersection(found)
