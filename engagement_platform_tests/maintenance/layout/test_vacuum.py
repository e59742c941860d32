"""What VACUUM may remove and what it may not, and whom its refusal names; logs that get a checkpoint."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import SparkSession

from engagement_platform.engine.cursors import CursorStore, StreamCheckpoints
from engagement_platform.lake import log, optimize
from engagement_platform.lake.contract import Table
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.optimize import Place, old_files, unused_files
from engagement_platform.lake.optimize import vacuum as vacuum_by_spark
from engagement_platform.maintenance.layout.files import retention
from engagement_platform.maintenance.layout.vacuum import (
    Floor,
    OtherTablesWithin,
    RetentionNotApplied,
    RetentionTooShort,
    RetentionUnreadable,
    Vacuumed,
    VacuumFailed,
    floors,
    vacuum,
    vacuum_tables,
)
from engagement_platform.settings import MutationSettings, Settings
from engagement_platform_tests.maintenance.layout.seeded import DATA, NOTIFICATION, SeededLake, no_spark

WEEK = 168


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> SeededLake:
    return SeededLake(tmp_path, spark=spark)


def keeping(
    lake: SeededLake, table: Table = DATA, settings: Settings | None = None, later: timedelta = timedelta(0)
) -> list[Floor]:
    target = lake.target(table)
    own = retention(dict(DeltaTable(target.uri).metadata().configuration))
    assert own is not None
    return floors(settings or lake.settings, target, own, lake.stores, datetime.now(UTC) + later)


def short(lake: SeededLake, **more: object) -> Settings:
    """Settings that keep as little as they can."""
    nothing = timedelta(0)
    upkeep = lake.maintenance.model_copy(update={"rollback_window": nothing})
    given = {"maintenance": upkeep, "mutation": MutationSettings(max_lateness=nothing), **more}
    return lake.settings.model_copy(update=given)


def own_retention(uri: str, hours: int) -> None:
    say_retention(uri, f"interval {hours} hours")


def say_retention(uri: str, text: str) -> None:
    DeltaTable(uri).alter.set_table_properties({"delta.deletedFileRetentionDuration": text})


def swept(
    lake: SeededLake, settings: Settings, *, table: Table = DATA, hours: int | None = None, dry_run: bool = False
) -> Vacuumed:
    target = lake.target(table)
    return vacuum(settings, target, lake.stores, lake.session, hours=hours, dry_run=dry_run)


def test_each_reason_to_keep_files_is_named_with_what_to_do_about_it(lake: SeededLake) -> None:
    lake.engagements("org-1", 3)
    own_retention(lake.uri(), 24)
    with pytest.raises(RetentionTooShort) as refused:
        vacuum(lake.settings, lake.target(), lake.stores, no_spark, hours=10, dry_run=False)
    said = str(refused.value)
    assert [floor.hours for floor in refused.value.floors] == [WEEK, WEEK, 24]
    for words in (
        "the rollback window needs 168 hours (maintenance.rollback_window)",
        "a request that comes late needs 168 hours (mutation.max_lateness)",
        "the table's own retention needs 24 hours",
        "Nothing was removed. Ask for 168 hours or more",
    ):
        assert words in said
    with pytest.raises(RetentionNotApplied, match="what the table says, 24 hours, and not for the 168"):
        vacuum(lake.settings, lake.target(), lake.stores, no_spark, dry_run=False)
    lake.notifications("org-1", 1)
    assert "a request that comes late" not in {floor.because for floor in keeping(lake, NOTIFICATION)}


def test_a_retention_of_two_units_is_both_and_one_that_nobody_can_read_is_refused(lake: SeededLake) -> None:
    """Spark would remove what is older than the table's own, whatever the platform takes that for."""
    lake.engagements("org-1", 1)
    say_retention(lake.uri(), "interval 1 day 12 hours")
    with pytest.raises(RetentionNotApplied, match="what the table says, 36 hours, and not for the 168"):
        vacuum(lake.settings, lake.target(), lake.stores, no_spark, dry_run=False)
    say_retention(lake.uri(), "interval 1 month")
    with pytest.raises(RetentionUnreadable, match=r"'interval 1 month', which is no sum of .* Nothing was removed"):
        vacuum(lake.settings, lake.target(), lake.stores, no_spark, dry_run=False)
    lake.notifications("org-1", 1)
    done = list(vacuum_tables(lake.settings, dry_run=True))
    assert [type(one) for one in done] == [RetentionUnreadable, Vacuumed], "the others are done all the same"


def test_a_vacuum_after_the_window_frees_room_and_keeps_the_live_rows(lake: SeededLake) -> None:
    lake.engagements("org-1", 12)
    version, before = DeltaTable(lake.uri()).version(), lake.rows()
    DeltaTable(lake.uri()).optimize.compact()
    for name, age in (("old", timedelta(days=9)), ("young", timedelta(days=2))):
        orphan = Path(lake.uri()) / "organization_id=org-1" / f"{name}.parquet"
        orphan.write_bytes(b"x" * 100)
        made_ago(orphan, age)
    # Inside the window only what no log knows goes, when it is old enough.
    done = swept(lake, lake.settings)
    assert (done.files, done.bytes, done.kept_hours, parquet_files(lake)) == (1, 100, WEEK, 14)
    assert lake.rows(version=version) == before

    own_retention(lake.uri(), 0)
    would = swept(lake, short(lake), dry_run=True)
    assert (would.files, would.dry_run, parquet_files(lake)) == (13, True, 14)
    done = swept(lake, short(lake))
    assert (done.files, done.bytes, parquet_files(lake)) == (13, would.bytes, 1)
    assert done.bytes is not None
    assert done.bytes > 12 * 1000
    assert lake.rows() == before
    with pytest.raises(Exception, match=r"not found|No such file"):
        lake.rows(version=version)
    assert swept(lake, short(lake)).files == 0


def test_spark_is_asked_only_where_a_file_is_old_enough_to_go(lake: SeededLake) -> None:
    lake.engagements("org-1", 3)
    DeltaTable(lake.uri()).optimize.compact()
    version = DeltaTable(lake.uri()).version()
    for dry_run in (True, False):
        done = vacuum(lake.settings, lake.target(), lake.stores, no_spark, dry_run=dry_run)
        assert (done.files, done.bytes) == (0, 0)
    assert DeltaTable(lake.uri()).version() == version, "nothing is committed either"


def test_a_table_in_whose_folder_another_one_lies_is_not_vacuumed(lake: SeededLake) -> None:
    lake.engagements("org-1", 1)
    within = Path(lake.uri()) / "more" / "deep"
    shutil.copytree(lake.uri(), within)
    own_retention(lake.uri(), 0)
    for path in within.rglob("*.parquet"):
        made_ago(path, timedelta(days=9))
    for dry_run in (True, False):
        with pytest.raises(OtherTablesWithin, match=r"remove the files of engagement/data/more/deep, .* Nothing was"):
            swept(lake, short(lake), dry_run=dry_run)
    lake.notifications("org-1", 1)
    done = list(vacuum_tables(short(lake), dry_run=True))
    assert [type(one) for one in done] == [OtherTablesWithin, Vacuumed]
    assert len(list(within.rglob("*.parquet"))) == 1


def test_a_table_whose_vacuum_breaks_is_named_and_the_others_are_done(
    lake: SeededLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.engagements("org-1", 1)
    lake.notifications("org-1", 1)
    looked = []

    def breaks(place: Place) -> list[str]:
        looked.append(place.name)
        if place.name == DATA.name:
            raise DeltaError("a feature that nobody knows")
        return []

    monkeypatch.setattr(optimize, "old_files", breaks)
    done = list(vacuum_tables(lake.settings))
    assert looked == [DATA.name, NOTIFICATION.name]
    [failed] = [one for one in done if isinstance(one, VacuumFailed)]
    assert f"VACUUM of {DATA.name} failed: a feature that nobody knows. " in str(failed)
    with pytest.raises(DeltaError):
        list(vacuum_tables(lake.settings, DATA.name))


@pytest.mark.parametrize(
    "path",
    [
        *("old.parquet", "organization_id=org-1/old.parquet", "organization_id=gone/old", "no_partition/old"),
        *("_change_data/old", "_delta_index/old", "_hidden/old", "_old", ".old.parquet.crc", ".hidden/old"),
    ],
)
def test_a_file_that_no_commit_names_is_one_to_go_where_it_is_one_for_spark(
    lake: SeededLake, spark: SparkSession, path: str
) -> None:
    lake.engagements("org-1", 1)
    place = Place(DATA.name, lake.uri(), lake.settings.lake)
    assert old_files(place) == []
    orphan = Path(lake.uri(), path)
    orphan.parent.mkdir(parents=True, exist_ok=True)
    orphan.write_bytes(b"x")
    made_ago(orphan, timedelta(days=9))
    found = [one.removeprefix("file:") for one in unused_files(place, spark)]
    assert bool(old_files(place)) == (str(orphan) in found)


def test_a_table_with_deletion_vectors_is_left_to_spark_which_knows_the_use_of_each(
    tmp_path: Path, spark: SparkSession
) -> None:
    place = Place("marked", str(tmp_path / "marked"), str(tmp_path))
    rows = spark.range(100).coalesce(1).write.format("delta")
    rows.option("delta.enableDeletionVectors", "true").save(place.uri)
    spark.sql(f"DELETE FROM delta.`{place.uri}` WHERE id < 10").collect()
    for vector in Path(place.uri).glob("deletion_vector_*.bin"):
        made_ago(vector, timedelta(days=9))
    assert old_files(place)
    assert unused_files(place, spark) == []
    assert vacuum_by_spark(place, spark) == (0, 0)
    assert spark.read.format("delta").load(place.uri).count() == 90


def made_ago(file: Path, age: timedelta) -> None:
    then = (datetime.now(UTC) - age).timestamp()
    os.utime(file, (then, then))


def parquet_files(lake: SeededLake) -> int:
    return len([path for path in Path(lake.uri()).rglob("*.parquet") if "_delta_log" not in path.parts])


def test_a_consumer_keeps_what_it_has_yet_to_read_as_long_as_it_is_heard_of(lake: SeededLake) -> None:
    lake.notifications("org-1", 5)
    cursors = CursorStore(lake.stores.leases.engine)
    cursors.begin(log.storage_uri(lake.settings.lake), "scoring's", {"version": 2, "rows": 1})
    cursors.begin("another lake", "elsewhere", {"version": 0, "rows": 0})
    found = keeping(lake, NOTIFICATION, short(lake), timedelta(days=13))
    assert found[0].because == "consumer scoring's, which has read the table up to version 2,"
    assert found[0].keep >= timedelta(days=13)
    assert found[0].do == """let it read on, or engagement-platform consumers --forget 'scoring'"'"'s'"""
    with pytest.raises(RetentionTooShort, match="consumer scoring's, which has read the table up to version 2, needs"):
        swept(lake, short(lake), table=NOTIFICATION, hours=0)
    for table, later in ((NOTIFICATION, timedelta(days=15)), (DATA, timedelta(days=13))):
        lake.engagements("org-1", 1)
        assert not [floor for floor in keeping(lake, table, short(lake), later) if "consumer" in floor.because]


@pytest.mark.parametrize("unreadable", ["no such storage", "no JSON", "no offsets"])
def test_a_stream_whose_folder_cannot_be_read_keeps_what_readers_are_waited_for_and_says_so(
    lake: SeededLake, unreadable: str
) -> None:
    folder = "nowhere://bucket/checkpoint" if unreadable == "no such storage" else f"{lake.home}/checkpoint"
    streams = StreamCheckpoints(lake.stores.leases.engine)
    streams.claim("not begun", f"{lake.home}/not begun")
    streams.claim("elsewhere", folder)
    if folder.startswith("/"):
        for name, text in (("commits/0", "v1"), ("offsets/0", "v1\n{no JSON")):
            file = Path(folder, name)
            file.parent.mkdir(parents=True)
            if not (name == "offsets/0" and unreadable == "no offsets"):
                file.write_text(text)
    lake.engagements("org-1", 2)
    found = keeping(lake, settings=short(lake))
    assert found[1].keep < found[0].keep == lake.settings.consumers.keep_for
    assert found[0].because.startswith("stream elsewhere, whose checkpoint folder cannot be read from here (")
    assert found[0].do == f"run where {folder} can be read, or engagement-platform consumers --forget-stream elsewhere"
    assert not [floor for floor in found if "not begun" in floor.because]
    with pytest.raises(RetentionNotApplied, match="stream elsewhere, whose checkpoint folder"):
        swept(lake, short(lake), dry_run=True)
    streams.forget("elsewhere")
    assert found[1:] == keeping(lake, settings=short(lake))


def test_a_stream_keeps_what_it_has_yet_to_read_as_long_as_it_is_heard_of(
    lake: SeededLake, spark: SparkSession
) -> None:
    """As Spark keeps its place in the folder that the stores know."""
    folder = f"{lake.home}/checkpoint"
    StreamCheckpoints(lake.stores.leases.engine).claim("report's", folder)

    def follow() -> None:
        stream = Lake(spark, lake.settings).stream(NOTIFICATION).writeStream.format("noop")
        query = stream.option("checkpointLocation", folder).trigger(availableNow=True).start()
        assert query.awaitTermination(300), "the stream did not end within 300 s"

    lake.notifications("org-1", 3)
    assert keeping(lake, NOTIFICATION, short(lake), timedelta(days=13))[0].because == "the table's own retention"
    follow()
    assert "stream" not in keeping(lake, NOTIFICATION, short(lake), timedelta(days=13))[0].because, "it has read all"
    read = DeltaTable(lake.uri(NOTIFICATION)).version()
    lake.notifications("org-1", 2)
    found = keeping(lake, NOTIFICATION, short(lake), timedelta(days=13))
    assert found[0].because == f"stream report's, which has read the table up to version {read},"
    assert found[0].keep >= timedelta(days=13)
    assert found[0].do == """let it read on, or engagement-platform consumers --forget-stream 'report'"'"'s'"""
    lake.engagements("org-1", 1)
    for table, later in ((NOTIFICATION, timedelta(days=15)), (DATA, timedelta(days=13))):
        assert not [floor for floor in keeping(lake, table, short(lake), later) if "stream" in floor.because]
    follow()
    assert not [floor for floor in keeping(lake, NOTIFICATION, short(lake)) if "stream" in floor.because]
