"""A declared stream's table and its quarantine go back together, and what is read again lands once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from engagement_platform.consumers import Appends, TooFarBehind
from engagement_platform.engine.job import Callbacks, MicroBatchJob, Observer
from engagement_platform.lake import scan
from engagement_platform.lake.contract import Table
from engagement_platform.maintenance.rollback import groups
from engagement_platform.maintenance.rollback.groups import RestoreRefused, group_of
from engagement_platform.maintenance.rollback.job import Restoring
from engagement_platform.maintenance.rollback.plan import Asked, plan
from engagement_platform.pipelines.redrive import REDRIVEN
from engagement_platform.settings import BatchSettings, DecodingSettings, Settings
from engagement_platform_tests.conftest import Broker
from engagement_platform_tests.pipelines.kafka_tables.clicks import CLICK, World, click
from engagement_platform_tests.pipelines.kafka_tables.test_redrive import UNDECLARED, redrive, under

Rows = dict[str, list[tuple[Any, ...]]]

BATCHES = (
    (click("c0", price=0), click("c1", price=1), b"no json 0"),
    (click("c2", price=2), click("c0", price=0)),
    (b"no json 1", click("c1", price=99)),
    (click("c3", price=3), click("c4", day=21, price=4), b"no json 2"),
)
"""With a known record, one that contradicts, and a batch that lands nothing."""


class Ticking(World):
    """With a clock that goes, since a restore may be to a time."""

    def job(self, observe: Observer = lambda _point: None) -> MicroBatchJob[Any]:
        return replace(super().job(observe), clock=lambda: datetime.now(UTC))

    def everything(self) -> Rows:
        """What stands in both tables, in the order of the topic."""
        return {
            "table": self._in_order(self.stream.table, "offset", "click_id", "price"),
            "quarantine": self._in_order(self.stream.quarantine, "offset", "reason_code", "value"),
        }

    def _in_order(self, table: Table, *columns: str) -> list[tuple[Any, ...]]:
        found = scan.find(DeltaTable(self.lake.uri(table)), columns, {})
        return sorted(tuple(row[name] for name in columns) for row in found.to_pylist())

    def restoring(self, observe: Observer = lambda _point: None) -> Restoring:
        return Restoring(self.lake, self.stores, Callbacks(observe=observe))


def through(rows: Rows, offset: int) -> Rows:
    """Those that came before an offset."""
    return {name: [row for row in found if row[0] < offset] for name, found in rows.items()}


@pytest.fixture
def world(spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ticking:
    """All batches landed. The stream is declared nowhere."""
    made = Ticking(spark, broker, tmp_path)
    monkeypatch.setattr(groups, "groups", lambda settings: iter([groups.of_stream(settings, made.stream)]))
    for batch in BATCHES:
        made.send(*batch)
        assert len(made.ingest()) == 1
    return made


@pytest.mark.slow
@pytest.mark.broker
def test_whatever_version_is_asked_for_both_tables_are_those_of_the_records_read_by_then(world: Ticking) -> None:
    """Every version of both; the oracle knows what came before an offset."""
    everything, sent = world.everything(), sum(map(len, BATCHES))
    reached = set[int]()
    for table in (world.stream.table, world.stream.quarantine):
        for version in range(world.lake.version(table) + 1):
            found = plan(world.settings, world.stores, Asked(table.name, version))
            end = found.offsets[0].boundary["0"] if found.offsets else sent
            reached.add(end)
            wanted = through(everything, end)
            for name, each in (("table", world.stream.table), ("quarantine", world.stream.quarantine)):
                at = DeltaTable(world.lake.uri(each), version=found.target[each.name])
                offsets = sorted(at.to_pyarrow_table(columns=["offset"]).column("offset").to_pylist())
                assert offsets == [row[0] for row in wanted[name]], f"{table.name} version {version}: {name}"
            assert found.target[table.name] == version
            assert sum(offset.records or 0 for offset in found.offsets) == sent - end
    ends = [sum(map(len, BATCHES[:count])) for count in range(len(BATCHES) + 1)]
    assert reached == set(ends), "no batch is without a version of one of the two"


@pytest.mark.broker
def test_they_go_back_together_and_a_replay_ends_in_the_undisturbed_rows(world: Ticking) -> None:
    before, table = world.everything(), world.stream.table
    reader = Appends(
        world.settings.lake, table.name, name="copy", start="beginning", store_url=world.settings.store_url
    )
    assert sum(batch.rows.num_rows for batch in reader) == len(before["table"])
    reader.commit()
    report = world.restoring().run(Asked(table.name, 1, reason="a bad batch", by="ann@here"))
    assert report is not None
    kept = world.everything()
    assert kept == through(before, len(BATCHES[0]))
    gone = sum(len(before[name]) - len(kept[name]) for name in before)
    assert {name: report.counts[name] for name in ("inserted", "updated", "deleted", "tables", "jobs_put_back")} == {
        "inserted": 0, "updated": 0, "deleted": gone, "tables": 2, "jobs_put_back": 1,
    }  # fmt: skip
    with pytest.raises(TooFarBehind, match="RESTORE"):
        list(reader)
    world.ingest()
    assert world.everything() == before
    assert world.ingest() == []
    world.send(click("c9", price=9), b"no json 9")
    world.ingest()
    assert len(world.everything()["table"]) == len(before["table"]) + 1


@pytest.mark.slow
@pytest.mark.broker
def test_a_record_whose_redrive_is_undone_waits_in_quarantine_as_before_and_can_be_redriven(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Ticking(spark, broker, tmp_path)
    monkeypatch.setattr(groups, "groups", lambda settings: iter([groups.of_stream(settings, world.stream)]))
    under(world, DecodingSettings(unknown_fields="quarantine"))
    world.send(click("c0", price=0), {**click("c1", price=1), "more": 1})
    world.ingest()
    refused = world.everything()
    under(world, DecodingSettings())
    redrive(world)
    landed = world.everything()
    assert Counter(row[1] for row in landed["quarantine"]) == {UNDECLARED: 1, REDRIVEN: 1}
    asked = Asked(world.stream.table.name, 1)
    (by_hand,) = plan(world.settings, world.stores, asked).by_hand
    assert UNDECLARED in by_hand
    assert world.restoring().run(asked) is not None
    assert world.everything() == refused
    assert world.ingest() == [], "its place on the topic is before the boundary"
    redrive(world)
    assert world.everything() == landed


def test_a_declared_stream_is_restorable_by_both_its_names(tmp_path: Path) -> None:
    (tmp_path / "defs").mkdir()
    (tmp_path / "defs" / "defs.yaml").write_text(
        "type: engagement_platform.KafkaTable\nattributes:\n  topic: shop-clicks\n  table: shop/click\n"
        "  columns: {shop_id: string}\n  key: shop_id\n"
    )
    settings = Settings(home=tmp_path, defs_folder=tmp_path / "defs", batch=BatchSettings(max_records=5))
    for name in (CLICK.table.name, CLICK.quarantine.name):
        group = group_of(settings, name)
        assert {table.name for table in group.tables} == {CLICK.table.name, CLICK.quarantine.name}
        assert tuple(group.read) == (CLICK.job,)
    with pytest.raises(RestoreRefused, match="shop/click"):
        group_of(settings, "shop/order")
