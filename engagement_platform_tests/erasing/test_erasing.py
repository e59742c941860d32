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
from engagement_platform.engine.job import Told
from engagement_platform.engine.model import Limits
from engagement_platform.engine.unfinished_batches import OthersBatchUnfinished
from engagement_platform.erasing.found import AliasesNotMoved
from engagement_platform.erasing.job import Eraser, erase_job, tables
from engagement_platform.erasing.reach import places
from engagement_platform.erasing.whom import Whom
from engagement_platform.lake import log
from engagement_platform.lake.append_log_source import TableSource, added
from engagement_platform.lake.engagement import (
    ALIAS,
    AMENDMENT,
    MAPPING,
    MUTATION_REQUEST,
    NOTIFICATION,
    OPERATION,
    ORIGINAL,
    PENDING,
    QUARANTINE,
    SAID_NAME,
    SUPERSEDED,
)
from engagement_platform.lake.erased import ERASE_SUBJECTS, current_files, is_erasure, is_pseudonym
from engagement_platform.lake.lake import Lake
from engagement_platform.merge_on_read.entity import PROFILE
from engagement_platform.pii.erasure import Former, erase, subject
from engagement_platform.pii.opening import open_vault
from engagement_platform.pii.receipts import receipt, verify
from engagement_platform.pii.scan import places_with
from engagement_platform.pii.tombstones import ENGAGEMENT, PERSON, StoredTombstones, entity
from engagement_platform.rollback.plan import ErasedSince, _refuse_erased_since
from engagement_platform_tests.erasing.planted import AMY, ANN, AT, BOB, DATA, SECRET, Planted, engagement

WHOM = Whom.of(BOB)
REF = "ref"


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    return Planted(tmp_path_factory.mktemp("before"))


@pytest.fixture(scope="module")
def erased(tmp_path_factory: pytest.TempPathFactory) -> tuple[Planted, dict[str, Any]]:
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
    assert lake.values(DATA, "engagement_id", "person_id") == [("amy's", AMY), ("ann's", ANN), ("through", AMY)]
    assert lake.values(SAID_NAME, "id", "name") == [(AMY, "Amy"), (ANN, "Ann")]
    assert lake.values(MAPPING, "id", "name") == [(AMY, "Amy"), (ANN, "Ann")], "the name that was handed on goes, too"
    assert lake.values(ORIGINAL, "engagement_id") == [("ann's",)]
    assert lake.values(SUPERSEDED, "engagement_id", "source_person_id") == [("ann's", ANN)]
    assert lake.values(AMENDMENT, "request_id") == [("u3",)]
    assert lake.values(OPERATION, "request_id") == [("c9",)]
    assert lake.values(MUTATION_REQUEST, "request_id") == [("u3",)]
    assert lake.values(PROFILE.changeset, "profile_id") == lake.values(PROFILE.base, "profile_id") == [(ANN,)]


def test_who_became_whom_stays_under_a_pseudonym_and_refused_records_are_markers(
    erased: tuple[Planted, dict[str, Any]],
) -> None:
    lake, _ = erased
    edges = {row["request_id"]: (row["from_id"], row["to_id"]) for row in lake.rows(ALIAS)}
    assert sorted(edges) == ["c1", "c2", "c3", "c4", "c5", "c6"], "what only deleted the person is gone"
    assert is_pseudonym(edges["c1"][1])
    assert edges["c5"] == ("early", edges["c1"][1])
    assert edges["c4"] == (edges["c1"][1], AMY)
    rows = {row["offset"]: (row["key"], row["value"], row["reason_code"]) for row in lake.rows(QUARANTINE)}
    assert rows[0] == rows[1] == (None, None, "erased")
    assert json.loads(rows[2][1]) == {"organization_id": "org", "person_id": ANN}


def test_readers_drop_the_rows_and_each_is_told_of_as_often_as_it_was_seen(
    erased: tuple[Planted, dict[str, Any]],
) -> None:
    lake, _ = erased
    gone = ["became", "elsewhere", "led", "own"]
    told = [(row["change_type"], row["engagement_id"]) for row in lake.rows(NOTIFICATION)]
    for each in gone:
        assert told.count(("INSERT", each)) == told.count(("DELETE", each)) == 1
    assert follow(lake) == gone, "a reader that goes on hears of these only"
    everything = Changes(lake.root, name="new", store_url=lake.settings.store_url)
    assert {id_ for batch in everything for id_ in batch.inserts["engagement_id"].to_pylist()} == {
        "amy's", "ann's", "through",
    }  # fmt: skip


def test_whoever_follows_a_table_goes_on_after_an_erasure(erased: tuple[Planted, dict[str, Any]]) -> None:
    lake, _ = erased
    source, uri = TableSource(MUTATION_REQUEST.uri(lake.root), MUTATION_REQUEST), MUTATION_REQUEST.uri(lake.root)
    assert source.plan({"version": 1}, Limits(100, 10**9), None) is None, "nothing is new"
    assert len(added(uri, -1, DeltaTable(uri).version())) == 1


def test_no_file_in_use_has_a_byte_of_the_person(erased: tuple[Planted, dict[str, Any]]) -> None:
    lake, _ = erased
    for table in tables(lake.settings):
        found = places_with([Path(table.uri(lake.root))], [BOB.encode(), SECRET.encode()])
        assert not current_files(lake.root, table).intersection(found), table.name
        appends_only = DeltaTable(table.uri(lake.root)).metadata().configuration.get("delta.appendOnly", "false")
        assert appends_only == table.properties.get("delta.appendOnly", "false"), table.name
        for path in places_with([Path(table.uri(lake.root), "_delta_log")], [BOB.encode()]):
            info = next(json.loads(line) for line in path.read_text().splitlines() if "commitInfo" in line)
            assert not info["commitInfo"].get("userMetadata", "").startswith("erase"), "no entry of ours names anybody"


def test_the_receipt_names_every_table_and_verification_finds_what_is_planted_later(
    erased: tuple[Planted, dict[str, Any]],
) -> None:
    lake, given = erased
    named = {place["name"]: (place["rows"], place["left"]) for place in given["places"]}
    assert named.keys() >= {table.name for table in tables(lake.settings)}
    assert named["engagement/data"] == (5, 0)
    assert named["engagement/notification"] == (6, 0)
    assert BOB not in json.dumps(given)
    vault = open_vault(lake.settings)

    def checks() -> dict[str, bool]:
        others = places(lake.settings, WHOM)
        return {check.what: check.holds for check in verify(vault, given, others, BOB, lake.settings.home)}

    assert all(checks().values())
    lake.append(SAID_NAME, [{"organization_id": "org", "id": BOB, "name": "again"}], 1)
    lake.append(ORIGINAL, [{"organization_id": "org", "engagement_id": "own", "version": 1}], 1)
    wrong = {what for what, holds in checks().items() if not holds}
    assert wrong == {"engagement/said_name", "engagement/original", "bytes"}
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


def test_a_crash_at_any_point_leaves_what_an_undisturbed_erasure_leaves(tmp_path: Path, before: Planted) -> None:
    job = erase_job(Lake(None, before.settings), before.stores, before.settings)  # type: ignore[arg-type]
    calm, crashed = Planted(tmp_path / "calm"), Planted(tmp_path / "crashed")
    undisturbed = calm.eraser().run(REF, WHOM)
    died = []
    for point in job.crash_points:
        try:
            crashed.eraser(Told(observe=dying_at(point))).run(REF, WHOM)
        except RuntimeError:
            died.append(point)
    assert died == list(job.crash_points), "each attempt gets as far as its point"
    assert crashed.eraser().run(REF, WHOM) == undisturbed, "the last call knows what all of them did"
    assert alike(crashed) == alike(calm)
    assert StoredTombstones(crashed.settings).next_asked(0) is None, "whom it was about is forgotten"


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
            repr({k: "~" if is_pseudonym(str(v)) else v for k, v in row.items()}) for row in rows
        )
    return found


def test_other_jobs_wait_until_an_erasure_is_finished(tmp_path: Path) -> None:
    planted = Planted(tmp_path)
    with pytest.raises(RuntimeError, match="died"):
        planted.eraser(Told(observe=dying_at("data.remove:after"))).run(REF, WHOM)
    unfinished = planted.stores.checkpoints.unfinished()
    with pytest.raises(OthersBatchUnfinished, match="erase --finish"):
        raise OthersBatchUnfinished("ingest-engagements", (DATA.name,), unfinished)
    assert unfinished[0].manifest.table_versions.keys() >= {DATA.name, MAPPING.name, PROFILE.base.name}
    list(planted.eraser().finish())
    assert not planted.stores.checkpoints.unfinished()


def test_an_erasure_in_one_organization_leaves_the_others(tmp_path: Path) -> None:
    planted = Planted(tmp_path)
    planted.eraser().run(REF, Whom.of(BOB, organizations=["other"], profiles=["nobody"]))
    assert ("own", BOB) in planted.values(DATA, "engagement_id", "person_id")
    assert "elsewhere" not in {row["engagement_id"] for row in planted.rows(DATA)}
    assert planted.values(PROFILE.base, "profile_id") == [(AMY,)] or (BOB,) in planted.values(
        PROFILE.base, "profile_id"
    )
    assert {row["offset"] for row in planted.rows(QUARANTINE) if row["reason_code"] == "erased"} == {1}


def test_a_place_says_how_long_former_versions_keep_what_it_had(erased: tuple[Planted, dict[str, Any]]) -> None:
    lake, _ = erased
    place = next(place for place in places(lake.settings, WHOM) if place.name == DATA.name)
    former = [path for path in Path(DATA.uri(lake.root)).rglob("*.parquet") if SECRET.encode() in path.read_bytes()]
    assert former, "readers of former versions still have their files"
    assert {place.former(path) for path in former} == {Former.FILES}  # type: ignore[union-attr]


def test_an_erasure_that_has_to_wait_for_conversions_keeps_nobody_else_waiting(tmp_path: Path) -> None:
    planted = Planted(tmp_path)
    planted.append(PENDING, [{"organization_id": "org", "pending_from": 0, "batch_id": 0}])
    with pytest.raises(AliasesNotMoved, match="rematerialize-aliases"):
        planted.eraser().run(REF, WHOM)
    assert not planted.stores.checkpoints.unfinished()
    DeltaTable(PENDING.uri(planted.root)).delete()
    assert planted.eraser().run(REF, WHOM)["engagement/data"] == 5


def test_now_deletes_what_nobody_reads_and_says_who_keeps_the_rest(tmp_path: Path) -> None:
    planted = Planted(tmp_path)
    slow = Changes(planted.root, name="slow", store_url=planted.settings.store_url)
    for table in (DATA, NOTIFICATION):
        planted.append(table, [], 1)
    before = places(planted.settings, WHOM, readers={})
    vault = open_vault(planted.settings)
    _, done = erase(vault, subject(vault, BOB, None), before)
    until = {one.name: set(one.until) for one in done}
    assert until["engagement/notification"] == {"files", "log"}, "the slow consumer keeps them"
    assert until["engagement/data"] == {"log"}
    needles, found = [BOB.encode(), SECRET.encode()], dict[str, list[Path]]()
    for table in tables(planted.settings):
        folder = Path(table.uri(planted.root))
        found[table.name] = [path for path in places_with([folder], needles) if "_delta_log" not in path.parts]
    assert [name for name, paths in found.items() if paths] == ["engagement/notification"]
    assert {id_ for batch in slow for id_ in batch.inserts["engagement_id"].to_pylist()} >= {"amy's", "ann's"}


def test_now_deletes_former_files_that_say_what_the_person_said_without_its_id(tmp_path: Path) -> None:
    """Contents of an engagement stand in other tables, and under the id that its person had before a conversion."""
    planted = Planted(tmp_path)
    planted.append(DATA, [engagement("org", "led too", "lead", "lead", SECRET)], 1)
    data = DeltaTable(DATA.uri(planted.root))
    data.update(updates={"person_id": f"'{BOB}'"}, predicate="engagement_id = 'led too'")
    for table, row in ((ORIGINAL, {"version": 1}), (AMENDMENT, {"request_id": "u9", "operation": "UPDATE"})):
        planted.append(table, [{"organization_id": "org", "engagement_id": "other", **row}], 1)
        DeltaTable(table.uri(planted.root)).optimize.compact()

    def without_the_id() -> list[str]:
        found = places_with([Path(planted.root)], [SECRET.encode()])
        named = set(places_with([Path(planted.root)], [BOB.encode()]))
        return sorted({path.relative_to(planted.root).parts[1] for path in found if path not in named})

    assert {"data", "original"} <= set(without_the_id()), "nothing was planted"
    vault = open_vault(planted.settings)
    _, done = erase(vault, subject(vault, BOB, None), places(planted.settings, WHOM, readers={}))
    assert {kept for one in done for kept in one.until} == {"log"}
    left = places_with([Path(planted.root)], [SECRET.encode(), BOB.encode()])
    assert [path for path in left if "_delta_log" not in path.parts] == []
    assert planted.values(ORIGINAL, "engagement_id") == [("ann's",), ("other",)]


def test_a_restore_does_not_go_back_behind_an_erasure(erased: tuple[Planted, dict[str, Any]]) -> None:
    lake, _ = erased
    with pytest.raises(ErasedSince, match="erased somebody"):
        _refuse_erased_since(DATA.uri(lake.root), DATA.name, 1)
    _refuse_erased_since(DATA.uri(lake.root), DATA.name, DeltaTable(DATA.uri(lake.root)).version())


@pytest.mark.slow
@pytest.mark.crash
def test_a_process_that_is_killed_is_followed_by_one_that_does_the_rest(tmp_path: Path) -> None:
    planted, calm = Planted(tmp_path / "killed"), Planted(tmp_path / "calm")
    calm.eraser().run(REF, WHOM)
    command = [sys.executable, "-m", "engagement_platform_tests.erasing.killable", str(planted.settings.home)]
    died = subprocess.run([*command, "notification.redact:after"], check=False, timeout=300)
    assert died.returncode == -signal.SIGKILL
    assert BOB not in repr(planted.stores.checkpoints.history(ERASE_SUBJECTS)), "whom it is about is written nowhere"
    assert len(list(planted.eraser().finish())) == 1
    assert alike(planted) == alike(calm)


WRITTEN_BY_SPARK = (DATA, NOTIFICATION, SAID_NAME, QUARANTINE)


def only_spark_writes(planted: Planted) -> None:
    """Some tables get a feature that delta-rs does not write."""
    for table in WRITTEN_BY_SPARK:
        opened = DeltaTable(table.uri(planted.root))
        opened.alter.set_table_properties({"delta.randomizeFilePrefixes": "true"})


def commits_of_erasures(planted: Planted) -> dict[str, list[str]]:
    """Table -> markers of the erasure's commits to it, sorted; one that was made twice stands twice."""
    found = {
        table.name: sorted(str(marker) for _, marker in log.markers(table.uri(planted.root)) if is_erasure(marker))
        for table in tables(planted.settings)
    }
    return {name: markers for name, markers in found.items() if markers}


@pytest.mark.slow
def test_a_commit_of_spark_that_is_done_again_changes_nothing(tmp_path: Path, spark: SparkSession) -> None:
    """Each dies after its commit and before that is written down: only the marker in the commit knows of it."""
    planted, calm = Planted(tmp_path / "spark"), Planted(tmp_path / "calm")
    undisturbed = calm.eraser().run(REF, WHOM)
    only_spark_writes(planted)
    points = ("data.remove:after", "said_name.remove:after", "notification.redact:after", "notification.append:after",
              "quarantine.redact:after")  # fmt: skip
    for point in points:
        with pytest.raises(RuntimeError, match=point):
            Eraser(planted.settings, planted.stores, Told(observe=dying_at(point)), spark).run(REF, WHOM)
    done = Eraser(planted.settings, planted.stores, spark=spark).run(REF, WHOM)
    assert done == undisturbed
    assert alike(planted) == alike(calm)
    made = commits_of_erasures(planted)
    assert set(made) >= {table.name for table in WRITTEN_BY_SPARK}
    assert all(len(markers) == len(set(markers)) for markers in made.values()), "a commit was made twice"
    assert {name: len(markers) for name, markers in made.items()} == {
        name: len(markers) for name, markers in commits_of_erasures(calm).items()
    }


@pytest.mark.slow
def test_tables_that_only_spark_writes_end_as_others_do(tmp_path: Path, spark: SparkSession) -> None:
    planted, calm = Planted(tmp_path / "spark"), Planted(tmp_path / "calm")
    calm.eraser().run(REF, WHOM)
    only_spark_writes(planted)
    done = Eraser(planted.settings, planted.stores, spark=spark).run(REF, WHOM)
    assert (done[DATA.name], done[NOTIFICATION.name], done[QUARANTINE.name]) == (5, 6, 2)
    assert alike(planted) == alike(calm)
    for table in (NOTIFICATION, SAID_NAME, QUARANTINE):
        assert DeltaTable(table.uri(planted.root)).metadata().configuration["delta.appendOnly"] == "true"
