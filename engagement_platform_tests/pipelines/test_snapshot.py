"""Which versions belong together, and what counts in them, from logs that batches and moves left in any state."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from engagement_platform.lake import log
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import ALIAS, CHANGESET, MAPPING, MUTATION_REQUEST
from engagement_platform.pipelines.snapshot import DATA, Snapshot, snapshot, snapshot_of
from engagement_platform_tests.consumers.lakes import PlainLake
from engagement_platform_tests.pipelines.mutations.histories import convert, engagement, request


@pytest.fixture
def lake(tmp_path: Path) -> PlainLake:
    return PlainLake(tmp_path)


def now(lake: PlainLake) -> Snapshot:
    return snapshot(lake.settings.lake)


def test_a_lake_without_tables_has_nothing(tmp_path: Path) -> None:
    found = snapshot(str(tmp_path))
    assert (found.versions, found.unpublished, found.newest) == ({}, {}, {})
    assert (found.watermark, found.names_watermark, found.newest_sequence) == (-1, -1, -1)
    assert not found.pends
    assert not found.has_patches


def test_the_images_of_a_batch_count_when_the_data_table_has_its_commit(lake: PlainLake) -> None:
    lake.land([engagement("e1", "p1", 10)])
    batch = lake.land([engagement("e1", "p1", 10, version=2), engagement("e2", "p2", 10)], dies_before=lake.data)
    assert now(lake).unpublished == {CHANGESET.name: batch.sequence}
    lake.append(lake.data, [], batch)
    assert now(lake).unpublished == {}
    assert now(lake).newest[CHANGESET.name] == batch.sequence


def test_a_published_batch_says_nothing_of_the_next_one(lake: PlainLake) -> None:
    lake.land([engagement("e1", "p1", 10)])
    lake.land([engagement("e1", "p1", 10, version=2)])
    batch = lake.land([engagement("e1", "p1", 10, version=3)], dies_before=lake.data)
    assert now(lake).unpublished == {CHANGESET.name: batch.sequence}, "only the last batch can be unpublished"


def test_a_compaction_does_not_publish_a_batch(lake: PlainLake) -> None:
    for version in (1, 2):
        lake.land([engagement("e1", "p1", 10, version=version)])
    batch = lake.land([engagement("e1", "p1", 10, version=3)], dies_before=lake.data)
    before = now(lake).versions[CHANGESET.name]
    DeltaTable(lake.uri(CHANGESET)).optimize.compact()
    assert now(lake).versions[CHANGESET.name] == before + 1
    assert now(lake).unpublished == {CHANGESET.name: batch.sequence}


def test_the_edges_of_a_batch_count_when_its_requests_are_there(lake: PlainLake) -> None:
    lake.land([engagement("e1", "p1", 10)])
    batch = lake.ask([convert("c1", "p1", "p2", 20)], dies_before=MUTATION_REQUEST)
    assert now(lake).unpublished == {ALIAS.name: batch.sequence}
    lake.append(MUTATION_REQUEST, [], batch)
    assert now(lake).unpublished == {}


def test_what_is_above_the_watermark_is_pending_and_what_is_not_is_not(lake: PlainLake) -> None:
    lake.land([engagement("e1", "p1", 10)])
    assert not now(lake).pends, "new ids are in the Data Table"
    lake.land([engagement("e1", "p1", 10, version=2)])
    lake.ask([convert("c1", "p1", "p2", 20)])
    last = lake.sequence
    assert now(lake).pends
    lake.move(dies_before=CHANGESET)
    moved = now(lake)
    assert moved.watermark == last
    assert not moved.is_pending(CHANGESET, moved.watermark), "its images are in the Data Table, too"
    assert not moved.is_pending(ALIAS, moved.watermark)
    lake.ask([convert("c2", "p2", "p3", 21)])
    assert now(lake).is_pending(ALIAS, moved.watermark)
    assert not now(lake).is_pending(CHANGESET, moved.watermark)


def test_patches_are_told_from_other_requests_by_the_bounds_of_files(lake: PlainLake) -> None:
    lake.land([engagement("e1", "p1", 10)])
    lake.ask([convert("c1", "p1", "p2", 20)])
    assert not now(lake).has_patches
    lake.ask([request("u1", "UPDATE", 20, engagement_id="e1", subject="new")])
    assert now(lake).has_patches
    lake.move()
    assert not now(lake).has_patches


def test_a_file_without_bounds_may_hold_anything(lake: PlainLake) -> None:
    lake.land([engagement("e1", "p1", 10)])
    lake.ask([request("u1", "UPDATE", 20, engagement_id="e1", subject="new")])
    lake.move()
    rows, uri = lake.rows(MUTATION_REQUEST), lake.uri(MUTATION_REQUEST)
    DeltaTable(uri).alter.set_table_properties({"delta.dataSkippingNumIndexedCols": "0"})
    write_deltalake(uri, rows, mode="append")
    found = now(lake)
    assert found.newest[MUTATION_REQUEST.name] is None
    assert found.has_patches
    assert found.is_pending(MUTATION_REQUEST, found.watermark)


def test_pinned_versions_say_what_they_said(lake: PlainLake) -> None:
    lake.land([engagement("e1", "p1", 10)])
    lake.land([engagement("e1", "p1", 10, version=2)])
    before = now(lake)
    lake.ask([convert("c1", "p1", "p2", 20)])
    lake.move()
    assert snapshot_of(lake.settings.lake, before.versions) == before
    assert now(lake).watermark > before.watermark == -1
    only = snapshot_of(lake.settings.lake, {DATA.name: 0})
    assert only.versions == {DATA.name: 0}, "tables that are not pinned are left out"


@pytest.mark.parametrize("between", [DATA, MUTATION_REQUEST, MAPPING], ids=lambda table: table.name)
def test_a_batch_that_lands_between_two_looks_is_seen_whole(
    lake: PlainLake, between: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its images came after the look at the changeset, and its commit to the Data Table before the look at that."""
    lake.land([engagement("e1", "p1", 10)])
    lake.land([engagement("e1", "p1", 10, version=2)])
    newest_entry, left = log.newest_entry, [engagement("e1", "p1", 10, version=3)]

    def lands_once(uri: str) -> int | None:
        if uri == between.uri(lake.settings.lake) and left:
            lake.land([left.pop()])
            lake.ask([convert("c1", "p1", "p2", 20)])
        return newest_entry(uri)

    monkeypatch.setattr(log, "newest_entry", lands_once)
    found = now(lake)
    assert found.unpublished == {}
    assert found.newest[CHANGESET.name] == 3
    assert found == now(lake), "all of it was seen, as after it"
