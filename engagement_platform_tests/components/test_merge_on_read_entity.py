"""An entity that is declared in a file has the checks of the one that ships: how fresh it is, how its files lie."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import dagster as dg
import pytest

from engagement_platform.definitions import defs
from engagement_platform_tests.components.test_kafka_table import tick
from engagement_platform_tests.conftest import Broker

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
    """A folder that declares accounts, a topic's name, and an instance; the settings of this process point at them."""

    def __init__(self, home: Path, instance: dg.DagsterInstance) -> None:
        self.home, self.instance = home, instance
        self.topic = f"accounts-{uuid4().hex[:8]}"
        (home / "defs").mkdir()
        (home / "defs" / "defs.yaml").write_text(ACCOUNTS.format(topic=self.topic))

    def tick(self, sensor: str) -> Any:
        return tick(defs(), sensor, self.instance)

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
