"""Who is erased leaves declared tables, too: rows and refused records go, and nothing about the person lands again."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from engagement_platform.engine.drain import drain
from engagement_platform.engine.lease import LeaseUnavailable
from engagement_platform.engine.model import Transaction
from engagement_platform.engine.unfinished_batches import OthersBatchUnfinished
from engagement_platform.erasing import erase as erasures
from engagement_platform.erasing.places import of_stream
from engagement_platform.lake import scan
from engagement_platform.lake.arrow import schema_of
from engagement_platform.lake.contract import Table
from engagement_platform.lake.erased import current_files
from engagement_platform.pii.erasure import Subject
from engagement_platform.pipelines.declarations.declared import DeclarationRefused, Declarations, declarations
from engagement_platform.pipelines.jobs import open_stores
from engagement_platform.settings import Settings, StoreSettings
from engagement_platform_tests import plant
from engagement_platform_tests.conftest import Broker
from engagement_platform_tests.files_with import places_with
from engagement_platform_tests.ingestion.test_crashes import Crash, crash_at
from engagement_platform_tests.maintenance.guards.strangers import strangers
from engagement_platform_tests.pipelines.kafka_tables.clicks import AT_ONCE, CLICK, World, click

BOB, ANN = "bob-canary-1", "ann-1"
BY_PAGE = replace(CLICK, subject="page")
"""The page says whose it is."""

_SAID = ("offset", "reason_code", "value")

DECLARED = """\
type: engagement_platform.KafkaTable
attributes:
  topic: shop-clicks
  table: shop/click
  columns: {click_id: string, user_id: string}
  key: click_id
  subject: user_id
---
type: engagement_platform.KafkaTable
attributes:
  topic: shop-stocks
  table: shop/stock
  columns: {item_id: string}
  key: item_id
---
type: engagement_platform.MergeOnReadEntity
attributes:
  topic: accounts
  name: account
  key: account_id
  columns: {email: string}
"""


def said(world: World) -> list[tuple[object, ...]]:
    """Whom the rows are about."""
    return world.rows(world.stream.table, "click_id", "page")


def refused(world: World) -> list[tuple[str, bytes | None]]:
    """Codes, and what the records said."""
    rows = scan.find(DeltaTable(world.lake.uri(world.stream.quarantine)), _SAID, {}).to_pylist()
    return [(row["reason_code"], row["value"]) for row in sorted(rows, key=lambda row: int(row["offset"]))]


@pytest.mark.broker
def test_rows_and_refused_records_go_and_neither_new_messages_nor_a_replay_bring_them_back(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """Nothing is taken out while a batch is half done, or others write the table; the same call does it afterwards."""
    world = World(spark, broker, tmp_path, BY_PAGE)
    world.settings = world.settings.model_copy(update={"stores": StoreSettings(lease_wait=timedelta(0))})
    named, bad = json.dumps({"page": BOB}).encode(), b'{"page": "bob\\u002dcanary-1"'
    others = json.dumps({"page": f"{BOB}9"}).encode()
    world.send(click("c1", page=BOB), click("c2", page=ANN), click("c1", page=BOB), named, bad, others)
    place, subject = of_stream(world.settings, world.stream), Subject(BOB, "ref")
    with pytest.raises(Crash):
        world.ingest(crash_at("tables.quarantine:after"))
    with pytest.raises(OthersBatchUnfinished, match=world.stream.job):
        place.erase(subject)
    world.ingest()
    assert said(world) == [("c1", BOB), ("c2", ANN)]
    assert [value for _, value in refused(world)] == [named, bad, others]
    assert place.left(subject) > 0
    before = strangers(world.settings, world.stores)
    with (
        world.stores.leases.acquire(f"table/{place.leased[0]}", purpose="test"),
        pytest.raises(LeaseUnavailable, match="Let that run end"),
    ):
        place.erase(subject)
    assert place.erase(subject) == 3
    assert place.left(subject) == 0
    assert said(world) == [("c2", ANN)]
    # Also what is no JSON, and in which the bytes of the id do not stand.
    assert refused(world)[:2] == [("erased", None)] * 2
    assert [value for _, value in refused(world)[2:]] == [others]
    for table in (world.stream.table, world.stream.quarantine):
        assert not {p for p in current_files(world.lake.root, table) if places_with([p], [f'"{BOB}"'.encode()])}
        assert DeltaTable(world.lake.uri(table)).metadata().configuration["delta.appendOnly"] == "true"
    assert strangers(world.settings, world.stores) == before
    world.send(click("c3", page=BOB), click("c4", page=ANN), named)
    [report] = world.ingest()
    assert (report.counts["rows_in"], report.counts["landed"], report.counts["quarantined"]) == (3, 1, 2)
    assert said(world) == [("c2", ANN), ("c4", ANN)]
    assert refused(world)[3:] == [("erased", None)] * 2
    open_stores(world.settings).checkpoints.reset(world.stream.job)
    list(drain(world.job(), AT_ONCE))
    assert said(world) == [("c2", ANN), ("c4", ANN)]
    values = [value for _, value in refused(world) if value is not None]
    assert not [value for value in values if BOB.encode() in value and BOB.encode() + b"9" not in value]


def declared(tmp_path: Path) -> Settings:
    (tmp_path / "defs").mkdir()
    (tmp_path / "defs" / "defs.yaml").write_text(DECLARED)
    return Settings(home=tmp_path / "home", defs_folder=tmp_path / "defs")


def fill(settings: Settings, table: Table, *rows: dict[str, object]) -> None:
    plant.create(table.uri(settings.lake), table)
    found = DeltaTable(table.uri(settings.lake))
    plant.append(found, pa.Table.from_pylist(list(rows), schema_of(table)), Transaction("test", 0))


def tables_of(found: Declarations) -> list[tuple[Table, str]]:
    [clicks, _], [account] = found.streams, found.entities
    entity = account.entity
    return [(clicks.table, "user_id"), (entity.changeset, "account_id"), (entity.base, "account_id")]


def test_the_receipt_names_declared_tables_and_those_that_nobody_can_look_into(
    tmp_path: Path,
    spark: SparkSession,
) -> None:
    settings = declared(tmp_path)
    found = declarations(settings)
    for table, column in tables_of(found):
        known: dict[str, object] = {"click_id": "c", "batch_id": 1}
        of_table = {name: said for name, said in known.items() if name in table.column_names}
        fill(settings, table, *({**of_table, column: who} for who in (BOB, ANN)))
    done = erasures.erase(settings, erasures.Request(BOB))
    assert done.left == 0
    rows = {place["name"]: place["rows"] for place in done.receipt["places"]}
    assert (rows["shop/click"], rows["account/*"]) == (1, 2)
    missed = done.receipt["not_reached"]
    assert "shop/stock (declared without subject)" in missed
    assert not [name for name in missed if name.startswith(("shop/click", "account"))]
    for table, column in tables_of(found):
        left = DeltaTable(table.uri(settings.lake)).to_pyarrow_table().column(column).to_pylist()
        assert left == [ANN], table.name
    given = tmp_path / "receipt.json"
    given.write_text(json.dumps(done.receipt))
    checks = erasures.verify(settings, given, erasures.Request(BOB))
    assert [check.what for check in checks if check.looked and not check.holds] == []
    table, column = tables_of(found)[0]
    again = DeltaTable(table.uri(settings.lake))
    plant.append(
        again, pa.Table.from_pylist([{column: BOB, "click_id": "c9"}], schema_of(table)), Transaction("test", 1)
    )
    checks = erasures.verify(settings, given, erasures.Request(BOB))
    assert "shop/click" in [check.what for check in checks if not check.holds]


def test_a_subject_that_is_no_string_column_is_refused(tmp_path: Path) -> None:
    settings = declared(tmp_path)
    file = tmp_path / "defs" / "defs.yaml"
    file.write_text(DECLARED.replace("subject: user_id", "subject: nobody"))
    with pytest.raises(DeclarationRefused, match="the subject of shop/click is nobody, which is no string column"):
        declarations(settings)
