"""A consumer of an append-only table sees each row once, in order, whatever is compacted, and is waited for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from engagement_platform.consumers import Appends, ConsumerRefused
from engagement_platform.engine.model import Transaction
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.engagement import MAPPING
from engagement_platform.layout.survey import Target
from engagement_platform.layout.vacuum import floors
from engagement_platform.pipelines.jobs import open_stores
from engagement_platform.settings import Settings
from engagement_platform_tests import plant
from engagement_platform_tests.pipelines.kafka_tables.clicks import CLICK

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)


class Lake:
    """A table that grows through delta-rs."""

    def __init__(self, folder: Path) -> None:
        self.settings = Settings(home=folder)
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


def test_a_table_whose_rows_change_and_one_that_is_not_there_are_refused(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    plant.create(MAPPING.uri(lake.settings.lake), MAPPING)
    for table, why in ((MAPPING.name, "may change"), ("shop/nothing", "no such table")):
        with pytest.raises(ConsumerRefused, match=why):
            Appends(lake.settings.lake, table, name="me", store_url=lake.settings.store_url)
