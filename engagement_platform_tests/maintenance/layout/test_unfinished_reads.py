"""Nothing is removed that an unfinished batch, restore or erasure reads; whoever wants to is told how to end it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from engagement_platform.engine.model import Manifest
from engagement_platform.engine.unfinished_batches import looked_up, versions_read
from engagement_platform.lake.erased import ERASE_SUBJECTS
from engagement_platform.maintenance.layout.vacuum import StillRead, reads_of, vacuum, vacuum_tables
from engagement_platform.maintenance.rollback.plan import RESTORE_TABLES
from engagement_platform.pipelines.jobs import INGEST_PROFILE_CHANGES
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform_tests.maintenance.layout.seeded import DATA, NOTIFICATION, NOW, SeededLake, no_spark
from engagement_platform_tests.maintenance.layout.test_vacuum import own_retention, parquet_files, short, swept

FILES = 4


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> SeededLake:
    """Version 4 has four small files, version 5 one large one instead."""
    lake = SeededLake(tmp_path, spark=spark)
    lake.engagements("org-1", FILES)
    DeltaTable(lake.uri()).optimize.compact()
    own_retention(lake.uri(), 0)
    assert parquet_files(lake) == FILES + 1
    return lake


def half_done(lake: SeededLake, job: str, pinned: Mapping[str, int], end: Mapping[str, int] | None = None) -> Manifest:
    """Its batch is begun and not finished."""
    manifest = Manifest(job, lake.stores.checkpoints.app_id(job), 0, {}, end or {}, NOW, pinned)
    lake.stores.checkpoints.begin(manifest)
    return manifest


NEWEST = 6
"""The last commit sets the retention."""

READING = {
    "a batch": (APPLY_MUTATIONS, {DATA.name: 3}, {}, "run apply-mutations --until-idle"),
    "where a batch looks ids up": (INGEST_PROFILE_CHANGES, {looked_up(DATA.name): 3}, {}, "run ingest-profile-changes"),
    "what a restore goes back from": (RESTORE_TABLES, {DATA.name: 4}, {DATA.name: NEWEST}, "restore --abandon"),
    "what a restore goes back to": (RESTORE_TABLES, {DATA.name: NEWEST}, {DATA.name: 2}, "restore --finish"),
    "an erasure": (ERASE_SUBJECTS, {DATA.name: 4}, {"erasure": 1}, "erase --finish"),
}


@pytest.mark.parametrize("reading", READING)
def test_files_that_an_unfinished_batch_reads_stay_and_the_refusal_says_what_ends_it(
    lake: SeededLake, reading: str
) -> None:
    job, pinned, end, ends = READING[reading]
    manifest = half_done(lake, job, pinned, end)
    with pytest.raises(StillRead) as refused:
        swept(lake, short(lake), hours=0)
    assert f"{job} batch 0 (RUNNING) reads version" in str(refused.value)
    assert f"engagement-platform {ends}" in str(refused.value)
    assert parquet_files(lake) == FILES + 1
    # No clock decides: an hour that one is off would do where files were kept by their age.
    for days in (-40, 40):
        now = datetime.now(UTC) + timedelta(days=days)
        with pytest.raises(StillRead):
            vacuum(short(lake), lake.target(), lake.stores, no_spark, hours=0, now=now)
    lake.stores.checkpoints.succeed(manifest, {})
    assert reads_of(lake.target(), lake.stores) == []


@pytest.mark.parametrize("spelled", ["{home}/link/engagement/data", "{home}/lake/engagement/../engagement/data"])
def test_another_path_to_a_table_is_no_way_past_what_an_unfinished_batch_reads(lake: SeededLake, spelled: str) -> None:
    half_done(lake, APPLY_MUTATIONS, {DATA.name: 3})
    (lake.home / "link").symlink_to(lake.settings.lake)
    with pytest.raises(StillRead, match=f"{DATA.name} cannot be vacuumed now"):
        list(vacuum_tables(short(lake), spelled.format(home=lake.home), hours=0))
    assert parquet_files(lake) == FILES + 1


def test_a_table_that_is_still_read_does_not_keep_the_others_from_being_vacuumed(lake: SeededLake) -> None:
    without_files_of_its_own = half_done(lake, APPLY_MUTATIONS, {DATA.name: FILES + 1})
    assert swept(lake, short(lake), dry_run=True).files == FILES
    lake.stores.checkpoints.succeed(without_files_of_its_own, {})
    lake.notifications("org-1", 1)
    half_done(lake, INGEST_PROFILE_CHANGES, {DATA.name: 3})
    done = {getattr(one, "table", ""): one for one in vacuum_tables(short(lake), dry_run=True)}
    assert isinstance(done[DATA.name], StillRead)
    assert not isinstance(done[NOTIFICATION.name], StillRead)


def test_a_version_whose_log_is_gone_is_still_named(lake: SeededLake) -> None:
    half_done(lake, APPLY_MUTATIONS, {DATA.name: 1})
    DeltaTable(lake.uri()).create_checkpoint()
    Path(lake.uri(), "_delta_log", f"{0:020}.json").unlink()
    with pytest.raises(StillRead, match="reads version 1, and it may lose files"):
        swept(lake, short(lake), hours=0)


def test_records_that_are_put_through_again_are_read_from_the_version_that_a_redrive_found() -> None:
    quarantine, table = "shop/click_quarantine", "shop/click"
    job = "redrive-quarantine:ingest-shop-click:not_json"
    manifest = Manifest(job, "a", 0, {}, {"version": 4, "row": 2}, NOW, {quarantine: 7, table: 9})
    assert versions_read(manifest, quarantine) == {4, 7}
    assert versions_read(manifest, table) == {9}
