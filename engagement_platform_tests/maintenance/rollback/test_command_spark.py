"""The command with Spark, on a filled world: the plan it prints, and how it finishes what was begun."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from engagement_platform.cli import app
from engagement_platform.lake.engagement import ALIAS
from engagement_platform.maintenance.rollback.plan import Asked, plan
from engagement_platform_tests.ingestion.test_crashes import Crash, crash_at
from engagement_platform_tests.ingestion.world import World
from engagement_platform_tests.maintenance.rollback.filled import FIRST, Filled, versions
from engagement_platform_tests.maintenance.rollback.test_restore import assert_as_of, restoring

pytestmark = [pytest.mark.broker]


@pytest.fixture
def commanded(three: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands are about this world, and borrow the session of these tests, which they would end otherwise."""
    topics = {"ENGAGEMENTS_TOPIC": three.topics[0], "MUTATION_REQUESTS_TOPIC": three.topics[1]}
    variables = {f"KAFKA__{name}": topic for name, topic in topics.items()}
    variables |= {"HOME": str(three.home), "KAFKA__BOOTSTRAP_SERVERS": three.broker.bootstrap_servers}
    for name, value in variables.items():
        monkeypatch.setenv(f"ENGAGEMENT_PLATFORM_{name}", value)

    def lent(*_said: object, reads_only: bool = False) -> AbstractContextManager[SparkSession]:
        return nullcontext(three.spark)

    monkeypatch.setattr("engagement_platform.lake.session.spark_session", lent)


def said(*words: str) -> str:
    ran = CliRunner().invoke(app, ["restore", *words], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran.stdout


@pytest.mark.usefixtures("commanded")
def test_a_dry_run_counts_what_readers_would_see_and_finish_does_the_rest(filled: Filled, three: World) -> None:
    first, before = filled.between[ALIAS.name], versions(three)
    planned = plan(three.settings, three.stores, Asked(ALIAS.name, first))
    told = json.loads(said(ALIAS.name, "--to", str(first), "--dry-run", "--json"))
    assert (told["inserted"], told["updated"], told["deleted"]) == (1, 2, 1)
    assert {c["table"]: (c["from_version"], c["to_version"]) for c in told["changes"]} == {
        change.table.name: (change.from_version, change.to_version) for change in planned.changes
    }
    assert versions(three) == before, "a dry run changed something"
    with pytest.raises(Crash):
        restoring(three, crash_at("restore.data:after")).run(Asked(ALIAS.name, first, by="ann@here"))
    finished = said("--finish")
    assert finished.startswith("restore-tables batch 0: ")
    assert "tables at the end of ingest-engagements batch 0, checksums equal; 4 changes announced, 3 jobs" in finished
    assert said("--finish") == "Nothing to restore.\n"
    assert_as_of(three, FIRST)
