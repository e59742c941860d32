"""A topic that is declared in a file has everything in Dagster: assets, checks, a job, and a sensor that launches."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import cached_property
from importlib.metadata import EntryPoint
from pathlib import Path
from tomllib import loads
from typing import Any
from uuid import uuid4

import dagster as dg
import pytest
import yaml
from dagster.components.component_scaffolding import scaffold_object
from dagster.components.core import package_entry
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import engagement_platform
from engagement_platform.definitions import defs
from engagement_platform.defs import components
from engagement_platform.defs.components import (
    KafkaTable,
    MaintainedTable,
    MergeOnReadEntity,
    S3SqsTables,
    ViewAnalytics,
    folder_definitions,
)
from engagement_platform.defs.layout_results import LAYOUT
from engagement_platform.engine.model import Transaction
from engagement_platform.lake.arrow import table_of
from engagement_platform.pipelines.declarations.kinds import KafkaTableDeclaration
from engagement_platform.settings import Settings
from engagement_platform_tests import plant
from engagement_platform_tests.conftest import Broker
from engagement_platform_tests.defs.conftest import evaluated, materialized, tick
from engagement_platform_tests.docs.pages import ROOT
from engagement_platform_tests.pipelines.kafka_tables.clicks import CLICK, click, encoded

CLICKS = """\
type: engagement_platform.KafkaTable
attributes:
  topic: {topic}
  table: shop/click
  columns: {{click_id: string, shop_id: string, page: string, price: double, clicked_at: timestamp}}
  key: shop_id
  event_time: clicked_at
  unique: [click_id]
"""
ORDERS = """\
---
type: engagement_platform.MaintainedTable
attributes: {table: shop/order}
"""


class Shop:
    """A folder of declarations, a lake, a topic and an instance; the settings of this process point at them."""

    def __init__(self, folder: Path, broker: Broker, instance: dg.DagsterInstance) -> None:
        self.folder, self.broker, self.instance = folder, broker, instance
        self.topic = f"clicks-{uuid4().hex[:8]}"
        (folder / "defs" / "clicks").mkdir(parents=True)
        (folder / "defs" / "clicks" / "defs.yaml").write_text(CLICKS.format(topic=self.topic) + ORDERS)

    def send(self, *messages: dict[str, object] | bytes) -> None:
        self.broker.produce(self.topic, [(0, None, message) for message in encoded(*messages)])

    @cached_property
    def definitions(self) -> dg.Definitions:
        return defs()

    def tick(self, sensor: str) -> Any:
        return tick(self.instance, sensor, self.definitions)

    def fresh(self) -> tuple[bool, object]:
        """The check of the table of clicks after a look of its sensor, and how many records wait."""
        self.tick("watch_shop_click_backlog")
        result = evaluated(self.instance, "shop/click", "fresh")
        return result.passed, result.metadata.get("waiting")


@pytest.fixture
def shop(tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    with dg.DagsterInstance.ephemeral() as instance:
        made = Shop(tmp_path, broker, instance)
        for name, value in {
            "HOME": str(tmp_path),
            "DEFS_FOLDER": str(tmp_path / "defs"),
            "KAFKA__BOOTSTRAP_SERVERS": broker.bootstrap_servers,
            "DRAIN__IDLE_TIMEOUT": "PT0S",
            "DRAIN__MIN_BATCH_INTERVAL": "PT0S",
        }.items():
            monkeypatch.setenv(f"ENGAGEMENT_PLATFORM_{name}", value)
        yield made


def results_of(ran: Any) -> dict[str, bool]:
    found = ran.get_asset_check_evaluations()
    return {f"{each.asset_key.to_user_string()}:{each.check_name}": each.passed for each in found}


@pytest.mark.broker
def test_a_declared_topic_is_drained_by_its_sensor_and_told_of(
    spark: SparkSession, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that waits too long fails the check of its table without a run."""
    definitions = shop.definitions
    graph = definitions.resolve_asset_graph()
    table, quarantine, order = (dg.AssetKey(["shop", name]) for name in ("click", "click_quarantine", "order"))
    assert {check.name for check in graph.get(table).check_keys} == {"conservation", "fresh", LAYOUT}
    assert {check.name for check in graph.get(quarantine).check_keys} == {LAYOUT}
    assert {check.name for check in graph.get(order).check_keys} == {LAYOUT}
    assert graph.get(table).parent_keys == {dg.AssetKey(["kafka", shop.topic])}
    assert (graph.get(table).group_name, graph.get(table).pools) == ("shop", {"shop_click"})

    assert "has no topic" in shop.tick("shop_click_backlog").skip_message
    assert shop.fresh() == (True, None), "no topic, and never one"
    shop.broker.create_topic(shop.topic)
    assert shop.fresh() == (True, dg.IntMetadataValue(0))
    shop.send(click("c1", price=1), click("c2"), b"{", click("c1", price=2))
    assert shop.fresh() == (True, dg.IntMetadataValue(4))
    with monkeypatch.context() as strict:
        strict.setenv("ENGAGEMENT_PLATFORM_QUALITY__FRESHNESS", "PT0S")
        assert shop.fresh() == (False, dg.IntMetadataValue(4))
    request = shop.tick("shop_click_backlog")
    ran = definitions.resolve_job_def("ingest_shop_click").execute_in_process(
        run_config=request.run_config, partition_key=request.partition_key, instance=shop.instance
    )
    assert results_of(ran)["shop/click:conservation"]
    assert len(shop.instance.fetch_materializations(table, limit=5).records) == 1
    figures = materialized(shop.instance, "shop/click")
    assert (figures["rows_in"], figures["landed"], figures["quarantined"]) == (4, 2, 2)
    assert [record.data["reason_code"] for record in figures["rejected"].records] == ["not_json", "unique_conflict"]
    assert "Nothing is waiting" in shop.tick("shop_click_backlog").skip_message
    assert shop.fresh() == (True, dg.IntMetadataValue(0))


def test_a_table_that_others_write_is_examined_after_their_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path))
    component = MaintainedTable.from_attributes_dict(attributes={"table": "shop/click"})
    made = dg.build_defs_for_component(component)
    with dg.DagsterInstance.ephemeral() as instance:

        def look() -> Any:
            return tick(instance, "shop_click_after_writes", made)

        assert "No table has changed" in look().skip_message
        uri = CLICK.table.uri(Settings().lake)
        plant.create(uri, CLICK.table)
        plant.append(DeltaTable(uri), table_of([{"click_id": "c1"}], CLICK.table), Transaction("theirs", 0))
        assert isinstance(look(), dg.RunRequest)
        ran = made.resolve_job_def("check_shop_click").execute_in_process(instance=instance)
        assert set(results_of(ran)) == {f"shop/click:{LAYOUT}"}
        assert "No table has changed" in look().skip_message or "next look" in look().skip_message


def test_a_file_that_is_wrong_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "defs").mkdir()
    (tmp_path / "defs" / "defs.yaml").write_text(CLICKS.format(topic="t").replace("price: double", "price: dabble"))
    with pytest.raises(Exception, match=r"defs\.yaml|dabble"):
        folder_definitions(tmp_path / "defs")


@pytest.mark.parametrize("component", [KafkaTable, MaintainedTable, MergeOnReadEntity, S3SqsTables, ViewAnalytics])
def test_what_is_scaffolded_can_be_used_as_it_is(component: Any, tmp_path: Path) -> None:
    # What `dg scaffold defs` calls.
    name, folder = f"engagement_platform.{component.__name__}", tmp_path / "new"
    scaffold_object(folder, name, None, "yaml", tmp_path)
    scaffold_object(folder / "defs.yaml", name, None, "yaml", tmp_path, append=True)
    documents = list(yaml.safe_load_all((folder / "defs.yaml").read_text()))
    assert [document["type"] for document in documents] == [name] * 2
    made = component.from_attributes_dict(attributes=documents[0]["attributes"])
    assert dg.build_defs_for_component(made).resolve_asset_graph().get_all_asset_keys()
    scaffold_object(tmp_path / "code", name, None, "python", tmp_path)
    written = (tmp_path / "code" / "component.py").read_text()
    assert f"import {component.__name__}" in written
    compile(written, "component.py", "exec")


def test_a_project_loads_what_was_scaffolded_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A project as `dg` makes it: settings of `dg` beside a package with a folder of definitions.
    (tmp_path / "pyproject.toml").write_text(
        '[tool.dg]\ndirectory_type = "project"\n\n[tool.dg.project]\nroot_module = "corner_shop"\n'
    )
    folder = tmp_path / "corner_shop" / "defs"
    folder.mkdir(parents=True)
    for package in (folder.parent, folder):
        (package / "__init__.py").touch()
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path / "home"))
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in components.__all__:
        scaffold_object(folder / name.lower(), f"engagement_platform.{name}", None, "yaml", tmp_path)
    made = dg.load_from_defs_folder(path_within_project=folder.parent)
    assert {key.to_user_string() for key in made.resolve_asset_graph().get_all_asset_keys()} >= {
        "shop/click", "shop/click_quarantine", "shop/order", "account/current", "arcade/round_end", "view/daily",
    }  # fmt: skip
    assert {job.name for job in made.resolve_all_job_defs()} >= {"ingest_shop_click", "ingest_arcade_events"}


def test_every_field_is_described_in_the_schema() -> None:
    for component in (KafkaTable, MaintainedTable, MergeOnReadEntity, S3SqsTables, ViewAnalytics):
        schema = component.model().model_json_schema()
        assert [name for name, field in schema["properties"].items() if not field.get("description")] == []
    assert set(KafkaTable.model_fields) == set(KafkaTableDeclaration.model_fields)


def test_tools_find_the_components_by_the_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    group = "dagster_dg_cli.registry_modules"
    declared = loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][group]
    [(name, value)] = declared.items()
    assert group == package_entry.DG_PLUGIN_ENTRY_POINT_GROUP
    monkeypatch.setattr(package_entry, "get_plugin_entry_points", lambda: [EntryPoint(name, value, group)])
    found = {key.to_typename() for key in package_entry.discover_entry_point_package_objects()}
    assert found == {f"engagement_platform.{each}" for each in components.__all__}
    with pytest.raises(AttributeError, match="nothing_such"):
        engagement_platform.nothing_such  # noqa: B018


def test_no_component_of_another_package_warns_when_tools_make_its_scaffolder() -> None:
    made = "dagster_spark.SparkDeclarativePipelineScaffolder()"
    code = f"from engagement_platform import KafkaTable; import dagster_spark; {made}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "PreviewWarning" not in done.stderr
