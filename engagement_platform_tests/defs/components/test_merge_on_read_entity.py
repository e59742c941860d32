"""An entity that is declared in a file has the checks of the one that ships: how fresh it is, how its files lie."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

import dagster as dg
import pytest

from engagement_platform.definitions import defs
from engagement_platform.defs.layout import HEALTH
from engagement_platform.defs.layout_results import LAYOUT, NO_TABLE
from engagement_platform_tests.conftest import Broker
from engagement_platform_tests.defs.components.test_kafka_table import CLICKS, ORDERS, results_of
from engagement_platform_tests.defs.conftest import tick
from engagement_platform_tests.maintenance.layout import logs

ACCOUNTS = """\
type: engagement_platform.MergeOnReadEntity
attributes:
  topic: {topic}
  name: account
  key: account_id
  columns: {{plan: string, seats: long}}
"""
CHANGESET, BASE = dg.AssetKey(["account", "changeset"]), dg.AssetKey(["account", "materialized"])


class Accounts:
    """A folder that declares accounts, clicks and orders, and an instance; the settings of this process point there."""

    def __init__(self, home: Path, instance: dg.DagsterInstance) -> None:
        self.home, self.instance = home, instance
        self.topic = f"accounts-{uuid4().hex[:8]}"
        (home / "defs").mkdir()
        said = f"{ACCOUNTS.format(topic=self.topic)}---\n{CLICKS.format(topic='none')}{ORDERS}"
        (home / "defs" / "defs.yaml").write_text(said)

    @cached_property
    def definitions(self) -> dg.Definitions:
        return defs()

    def tick(self, sensor: str) -> Any:
        return tick(self.instance, sensor, self.definitions)

    def newest(self, table: dg.AssetKey, check: str) -> dg.AssetCheckEvaluation | None:
        history = self.instance.event_log_storage.get_asset_check_execution_history
        for record in history(dg.AssetCheckKey(table, check), limit=1):
            return record.evaluation
        return None


@pytest.fixture
def accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Accounts]:
    with dg.DagsterInstance.ephemeral() as instance:
        made = Accounts(tmp_path, instance)
        monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path))
        monkeypatch.setenv("ENGAGEMENT_PLATFORM_DEFS_FOLDER", str(tmp_path / "defs"))
        yield made


@pytest.mark.broker
def test_a_change_that_waits_too_long_fails_the_check_of_its_entity_without_a_run(
    accounts: Accounts, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_KAFKA__BOOTSTRAP_SERVERS", broker.bootstrap_servers)

    def fresh() -> tuple[bool, object]:
        accounts.tick("watch_accounts")
        told = accounts.newest(CHANGESET, "fresh")
        assert told is not None
        return told.passed, told.metadata.get("waiting")

    assert fresh() == (True, None), "no topic, and never one"
    broker.create_topic(accounts.topic)
    change = {"account_id": "a", "version": 1, "op": "INSERT", "changes": {"plan": "gold"}}
    broker.produce(accounts.topic, [(0, None, json.dumps(change).encode())])
    assert fresh() == (True, dg.IntMetadataValue(1))
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_QUALITY__FRESHNESS", "PT0S")
    assert fresh() == (False, dg.IntMetadataValue(1))


def test_tables_of_a_declared_entity_are_examined_after_commits_and_every_night(accounts: Accounts) -> None:
    definitions = defs()
    checks = definitions.resolve_asset_graph().asset_check_keys
    for table in (CHANGESET, BASE):
        assert dg.AssetCheckKey(table, LAYOUT) in checks

    def run(job: str) -> Any:
        return definitions.resolve_job_def(job).execute_in_process(instance=accounts.instance)

    assert "No table has changed" in accounts.tick("account_tables_after_writes").skip_message
    lake = accounts.home / "lake"
    logs.table(lake / "account" / "materialized", logs.files(60, 7 * 1024))
    assert isinstance(accounts.tick("account_tables_after_writes"), dg.RunRequest)
    assert set(results_of(run("check_account_tables"))) == {
        f"{table.to_user_string()}:{LAYOUT}" for table in (CHANGESET, BASE)
    }
    told, none = (accounts.newest(table, LAYOUT) for table in (BASE, CHANGESET))
    assert (told and told.passed, told and told.metadata["files"].value) == (False, 60)
    assert (none and none.passed, none and none.description) == (True, NO_TABLE)
    # At night: everything that is declared, also a topic's table, and a table of others that nobody has written yet.
    logs.table(lake / "shop" / "click", logs.files(60, 7 * 1024))
    run("examine_layout")
    declared = [dg.AssetKey(name.split("/")) for name in ("shop/click", "shop/click_quarantine", "shop/order")]
    found = {table.path[1]: accounts.newest(table, LAYOUT) for table in (*declared, CHANGESET, BASE)}
    assert {name: told and told.passed for name, told in found.items()} == {
        "click": False, "click_quarantine": True, "order": True, "changeset": True, "materialized": False,
    }  # fmt: skip
    event = accounts.instance.get_latest_materialization_event(HEALTH)
    assert event is not None
    assert event.asset_materialization is not None
    figures = event.asset_materialization.metadata
    assert [figures[f"{name} files"].value for name in ("shop/click", "account/materialized")] == [60, 60]
