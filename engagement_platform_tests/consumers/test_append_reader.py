"""A consumer of an append-only table sees each row once, in order, whatever is compacted, and is waited for."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from engagement_platform.consumers import Appends, ConsumerRefused, TooFarBehind
from engagement_platform.consumers.lag import lags
from engagement_platform.engine.database import open_engine
from engagement_platform.engine.model import Transaction
from engagement_platform.lake import added_rows, store_tables
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.engagement import MAPPING, NOTIFICATION
from engagement_platform.maintenance.layout.survey import Target
from engagement_platform.maintenance.layout.vacuum import floors
from engagement_platform.pii.erasure import once
from engagement_platform.pipelines.jobs import open_stores
from engagement_platform.settings import ConsumerSettings, Settings
from engagement_platform_tests import plant
from engagement_platform_tests.pipelines.kafka_tables.clicks import CLICK

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)


class Lake:
    """A table that grows through delta-rs."""

    def __init__(self, folder: Path) -> None:
        # Longer than tables keep files anyway, so that one sees who keeps them.
        self.settings = Settings(home=folder, consumers=ConsumerSettings(keep_for=timedelta(days=14)))
        self.uri = CLICK.table.uri(self.settings.lake)
        plant.create(self.uri, CLICK.table)
        self.count = 0

    def append(self, rows: int) -> None:
        made = [
            {"click_id": f"c{n}", "shop_id": "a", "clicked_at": NOW, "event_date": NOW.date(), "offset": n}
            for n in range(self.count, self.count + rows)
        ]
        self.count += rows
        plant.append(DeltaTable(self.uri), table_of(made, CLICK.table), Transaction("job", self.count))

    def reader(self, max_rows: int = 3) -> Appends:
        return Appends(self.settings.lake, CLICK.name, name="me", max_rows=max_rows, store_url=self.settings.store_url)


def ids(rows: pa.Table) -> list[str]:
    return list(rows.column("click_id").to_pylist())


def test_each_row_comes_once_whatever_is_compacted_and_wherever_it_crashes(tmp_path: Path) -> None:
    lake, seen = Lake(tmp_path), list[str]()
    for round_ in range(3):
        lake.append(4)
        lake.append(1)
        reader = lake.reader()
        for number, batch in enumerate(reader):
            assert len(batch.rows) <= 3
            if number == 1:
                # Read and not committed: it comes again.
                break
            seen += ids(batch.rows)
            reader.commit()
        DeltaTable(lake.uri).optimize.compact()
        again = lake.reader()
        for batch in again:
            seen += ids(batch.rows)
            again.commit()
        assert seen == [f"c{n}" for n in range(5 * (round_ + 1))]
    assert list(lake.reader()) == []


def test_what_fails_in_the_middle_of_a_batch_comes_whole_when_the_same_reader_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, read = Lake(tmp_path), added_rows.read_here
    for _ in range(2):
        lake.append(2)
    reader, reads = lake.reader(max_rows=10), iter([False, True])

    def second_fails(*arguments: Any) -> pa.Table:
        if next(reads, False):
            raise OSError("the store did not answer")
        return read(*arguments)

    monkeypatch.setattr(added_rows, "read_here", second_fails)
    with pytest.raises(OSError, match="did not answer"):
        list(reader)
    reader.commit()
    assert reader.committed.version == -1, "nothing was handed out"
    assert [name for batch in reader for name in ids(batch.rows)] == [f"c{n}" for n in range(4)]


def test_rows_before_a_commit_that_cannot_be_read_are_handed_out_first(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for _ in range(3):
        lake.append(2)
    reader = iter(lake.reader(max_rows=10))
    Path(lake.uri, "_delta_log", f"{2:020}.json").unlink()
    assert ids(next(reader).rows) == ["c0", "c1"]
    with pytest.raises(TooFarBehind, match="cannot go on after version 1 of shop/click"):
        next(reader)


@pytest.mark.parametrize(
    "erasure", [once(), Transaction("erase-subjects@1.a/tables/rewrite", 3)], ids=["player", "person"]
)
def test_rows_before_an_erasure_are_not_handed_out_to_who_had_not_read_them_yet(
    tmp_path: Path, erasure: Transaction
) -> None:
    lake = Lake(tmp_path)
    lake.append(1)
    reader = lake.reader()
    assert [ids(batch.rows) for batch in reader] == [["c0"]]
    reader.commit()
    lake.append(2)
    lake.append(1)
    DeltaTable(lake.uri).alter.set_table_properties({"delta.appendOnly": "false"})
    store_tables.remove(DeltaTable(lake.uri), {"click_id": ["c2"]}, erasure)
    DeltaTable(lake.uri).alter.set_table_properties({"delta.appendOnly": "true"})
    for each in (reader, lake.reader()):
        with pytest.raises(TooFarBehind, match=r"an erasure took rows away in version 5.*--start now"):
            next(iter(each))
        assert each.committed.version == 1
    [lag] = lags(lake.settings, open_engine(lake.settings.store_url))
    assert "took rows away" in str(lag.behind.lost)
    reader.forget()
    anew = Appends(lake.settings.lake, CLICK.name, name="me", start="now", store_url=lake.settings.store_url)
    lake.append(1)
    assert [ids(batch.rows) for batch in anew] == [["c4"]]
    anew.commit()
    assert [lag.behind.lost for lag in lags(lake.settings, open_engine(lake.settings.store_url))] == [None]


def test_a_column_that_the_table_gains_while_it_is_followed_is_handed_out(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.append(1)
    reader = lake.reader()
    assert [ids(batch.rows) for batch in reader] == [["c0"]]
    reader.commit()
    lake.append(1)
    # As while an erasure is at work.
    DeltaTable(lake.uri).alter.set_table_properties({"delta.appendOnly": "false"})
    found = DeltaTable(lake.uri).to_pyarrow_table().slice(0, 1)
    write_deltalake(lake.uri, found.append_column("seen_by", pa.array(["ann"])), mode="append", schema_mode="merge")
    assert [row["seen_by"] for batch in reader for row in batch.rows.to_pylist()] == [None, "ann"]


def test_vacuum_waits_for_who_has_yet_to_read(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.append(2)
    reader = lake.reader()
    next(iter(reader))
    reader.commit()
    lake.append(2)
    later, table = datetime.now(UTC) + timedelta(days=10), Target(CLICK.name, lake.uri)
    found = floors(lake.settings, table, timedelta(0), open_stores(lake.settings), later)
    assert "consumer me" in found[0].because
    assert "--forget me --table shop/click" in found[0].do
    reader.forget()
    found = floors(lake.settings, table, timedelta(0), open_stores(lake.settings), later)
    assert not any("consumer" in floor.because for floor in found)


@pytest.mark.parametrize("spelled", ["{link}", "{home}/other/../lake", "{lake}/", "file://{lake}", "file:{lake}/"])
def test_a_consumer_is_seen_however_the_lake_is_written(tmp_path: Path, spelled: str) -> None:
    lake, link = Lake(tmp_path), tmp_path / "link"
    link.symlink_to(lake.settings.lake)
    (tmp_path / "other").mkdir()
    lake.append(2)
    uri = spelled.format(link=link, home=tmp_path, lake=lake.settings.lake)
    reader = Appends(uri, CLICK.name, name="me", store_url=lake.settings.store_url)
    [lag] = lags(lake.settings, open_engine(lake.settings.store_url))
    assert (lag.name, lag.table, lag.behind.rows) == ("me", CLICK.name, 2)
    later, table = datetime.now(UTC) + timedelta(days=10), Target(CLICK.name, lake.uri)
    found = floors(lake.settings, table, timedelta(0), open_stores(lake.settings), later)
    assert any("consumer me" in floor.because for floor in found)
    assert [ids(batch.rows) for batch in reader] == [["c0", "c1"]]


@pytest.mark.parametrize("table", ["shop/click/", "shop//click", "./shop/click", "shop/../shop/click", "shop"])
def test_a_table_that_is_not_spelled_as_cursors_know_it_is_refused(tmp_path: Path, table: str) -> None:
    lake = Lake(tmp_path)
    with pytest.raises(ConsumerRefused, match="no name of a table"):
        Appends(lake.settings.lake, table, name="me", store_url=lake.settings.store_url)


def test_a_start_by_time_leaves_nothing_out_where_a_clock_was_set_back(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for version, minutes in enumerate((0, 10, 20, 5, 15, 25)):
        if version:
            lake.append(1)
        entry = Path(lake.uri, "_delta_log", f"{version:020}.json")
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        for info in (action["commitInfo"] for action in actions if "commitInfo" in action):
            info["timestamp"] = round((NOW + timedelta(minutes=minutes)).timestamp() * 1000)
        entry.write_text("\n".join(map(json.dumps, actions)))

    def handed(minutes: int) -> list[str]:
        url, start = lake.settings.store_url, NOW + timedelta(minutes=minutes)
        reader = Appends(lake.settings.lake, CLICK.name, name=f"since {minutes}", start=start, store_url=url)
        return [name for batch in reader for name in ids(batch.rows)]

    every = ["c0", "c1", "c2", "c3", "c4"]
    assert [handed(minutes) for minutes in (-1, 5, 12, 25, 26)] == [every, every, every[1:], every[4:], []]


@pytest.mark.parametrize(
    ("features", "mode", "kind", "why"),
    [
        (None, "name", "long", "delta.columnMapping.mode"),
        (["columnMapping"], "id", "long", "delta.columnMapping.mode"),
        (["typeWidening"], None, "long", "it has typeWidening"),
        (["timestampNtz"], None, "timestamp_ntz", "'timestamp_ntz' is no type of a column"),
        (["unheard of"], None, "long", "unheard of"),
    ],
)
def test_a_table_whose_files_are_not_read_as_its_schema_says_is_refused(
    tmp_path: Path, features: list[str] | None, mode: str | None, kind: str, why: str
) -> None:
    lake = Lake(tmp_path)
    mapped = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"} if mode else {}
    schema = {"type": "struct", "fields": [{"name": "a", "type": kind, "nullable": True, "metadata": mapped}]}
    properties = {"delta.appendOnly": "true"} | ({"delta.columnMapping.mode": mode} if mode else {})
    protocol: dict[str, Any] = {"minReaderVersion": 2, "minWriterVersion": 5}
    if features is not None:
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features}
        protocol["writerFeatures"] = [*features, "appendOnly"]
    of_table = {"id": "a-1", "format": {"provider": "parquet", "options": {}}, "schemaString": json.dumps(schema)}
    actions = [{"protocol": protocol}, {"metaData": {**of_table, "partitionColumns": [], "configuration": properties}}]
    entry = Path(lake.settings.lake, "theirs", "row", "_delta_log", f"{0:020}.json")
    entry.parent.mkdir(parents=True)
    entry.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(ConsumerRefused, match=why):
        Appends(lake.settings.lake, "theirs/row", name="me", store_url=lake.settings.store_url)
    assert lags(lake.settings, open_engine(lake.settings.store_url)) == []


def test_a_table_whose_rows_change_and_one_that_is_not_there_are_refused(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    plant.create(MAPPING.uri(lake.settings.lake), MAPPING)
    plant.create(NOTIFICATION.uri(lake.settings.lake), NOTIFICATION)
    refused = ((MAPPING.name, "may change"), ("shop/nothing", "no such table"), (NOTIFICATION.name, "only names what"))
    for table, why in refused:
        with pytest.raises(ConsumerRefused, match=why):
            Appends(lake.settings.lake, table, name="me", store_url=lake.settings.store_url)
