"""Every rule is kept by what we do, and broken by somebody who does what it forbids; then it says by what."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner, Result

from engagement_platform.cli import app
from engagement_platform.engine.cursors import StreamCheckpoints
from engagement_platform.lake.arrow import schema_of
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import NOTIFICATION
from engagement_platform.maintenance.guards.rules import RULES, Guard, Looked, broken, guards, tables_of_jobs
from engagement_platform.settings import SparkSettings
from engagement_platform_tests import plant
from engagement_platform_tests.consumers.lakes import PlainLake
from engagement_platform_tests.consumers.test_changes import land
from engagement_platform_tests.pipelines.declarations.test_declared import CLICKS
from engagement_platform_tests.pipelines.mutations.histories import convert, delete


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlainLake:
    """A lake on which our jobs have worked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path))
    made = PlainLake(tmp_path)
    land(made, "e1", "e2")
    made.ask([convert("c1", "p1", "p2", 20, engagement_id="e1"), delete("d1", 20, engagement_id="e2")])
    made.move()
    return made


def looked(lake: PlainLake) -> list[Guard]:
    return guards(lake.settings, lake.stores)


def codes(lake: PlainLake) -> list[str]:
    return [guard.rule.code for guard in broken(looked(lake))]


def change(lake: PlainLake, table: Table, **properties: str) -> None:
    names = {f"delta.{name}": value for name, value in properties.items()}
    DeltaTable(lake.uri(table)).alter.set_table_properties(names)


def write(lake: PlainLake) -> None:
    rows = lake.rows(lake.data)
    write_deltalake(lake.uri(lake.data), rows, mode="append")


def compact(lake: PlainLake) -> None:
    land(lake, "e3")
    DeltaTable(lake.uri(lake.data)).optimize.compact()


def begin_a_stream_and_lose_its_folder(lake: PlainLake) -> None:
    folder = lake.home / "checkpoint"
    folder.mkdir()
    StreamCheckpoints(lake.stores.leases.engine).claim("scores", str(folder))
    assert codes(lake) == []
    folder.rmdir()


Break = Callable[[PlainLake], Any]
BREAKS: dict[str, tuple[Break, list[str], str]] = {
    "stream_source": (
        lambda lake: change(lake, NOTIFICATION, appendOnly="false"),
        ["stream_source"],
        "engagement/notification may be changed",
    ),
    "one_writer": (write, ["one_writer", "known_writer"], "engagement/data version 3: WRITE by delta-rs"),
    "known_writer": (write, ["one_writer", "known_writer"], "engagement/data version 3: WRITE by delta-rs"),
    "no_external_optimize": (
        compact,
        ["no_external_optimize", "known_writer"],
        "engagement/data version 4: OPTIMIZE by delta-rs",
    ),
    "own_checkpoint": (begin_a_stream_and_lose_its_folder, ["own_checkpoint"], "checkpoint of scores is gone"),
    "transactions_kept": (
        lambda lake: change(lake, NOTIFICATION, setTransactionRetentionDuration="interval 1 days"),
        ["transactions_kept"],
        "engagement/notification forgets after interval 1 days",
    ),
    "files_kept": (
        lambda lake: change(lake, lake.data, deletedFileRetentionDuration="interval 24 hours"),
        ["files_kept"],
        "engagement/data keeps 24 hours, and the rollback window has 168",
    ),
}


def test_a_retention_that_nobody_can_read_is_found(lake: PlainLake) -> None:
    change(lake, lake.data, deletedFileRetentionDuration="interval 1 month")
    [found] = broken(looked(lake))
    assert (found.rule.code, found.seen) == (
        "files_kept",
        "engagement/data keeps 'interval 1 month', which cannot be read",
    )


def test_a_checkpoint_folder_that_is_older_than_its_stream_is_found(lake: PlainLake) -> None:
    folder, streams = lake.home / "checkpoint", StreamCheckpoints(lake.stores.leases.engine)
    (folder / "commits").mkdir(parents=True)
    (folder / "commits" / "3").touch()
    streams.claim("scores", str(folder))
    streams.record("scores", 3)
    assert codes(lake) == []
    (folder / "commits" / "3").rename(folder / "commits" / "2")
    [found] = broken(looked(lake))
    assert found.rule.code == "own_checkpoint"
    assert "of scores is older than batch 3, its last one" in found.seen


def test_what_our_jobs_do_keeps_every_rule(lake: PlainLake) -> None:
    assert codes(lake) == []
    assert {guard.rule.code for guard in looked(lake) if guard.state == "kept"} == set(BREAKS) - {"own_checkpoint"}


def test_a_lake_without_tables_breaks_no_rule(tmp_path: Path) -> None:
    empty = PlainLake(tmp_path / "other")
    for table in (empty.data, NOTIFICATION):
        Path(empty.uri(table), "_delta_log", "00000000000000000000.json").unlink()
    assert {guard.state for guard in looked(empty)} == {"nothing to look at"}


@pytest.mark.parametrize("code", BREAKS)
def test_who_breaks_a_rule_is_found_and_named(lake: PlainLake, code: str) -> None:
    do, expected, seen = BREAKS[code]
    do(lake)
    wrong = {guard.rule.code: guard for guard in broken(looked(lake))}
    assert list(wrong) == expected
    assert seen in wrong[code].seen
    assert wrong[code].rule.source
    assert wrong[code].rule.do


@pytest.mark.parametrize("name", ["profile/changeset", "profile/materialized", "game/login", "shop/click"])
def test_a_commit_of_somebody_else_is_found_in_every_table_that_our_jobs_write(
    lake: PlainLake, tmp_path: Path, name: str
) -> None:
    (tmp_path / "defs").mkdir()
    (tmp_path / "defs" / "defs.yaml").write_text(CLICKS)
    settings = lake.settings.model_copy(update={"defs_folder": tmp_path / "defs"})
    (table,) = [one for one in tables_of_jobs(settings) if one.name == name]
    plant.create(table.uri(settings.lake), table)
    assert "known_writer" not in [guard.rule.code for guard in broken(guards(settings, lake.stores))]
    place = {name: 1 if name == "batch_id" else date(2026, 11, 22) for name in table.partitioned_by}
    rows = pa.Table.from_pylist([place], schema_of(table))
    write_deltalake(table.uri(settings.lake), rows, mode="append")
    found = {guard.rule.code: guard for guard in broken(guards(settings, lake.stores))}
    assert f"{name} version 1: WRITE by delta-rs" in found["known_writer"].seen


def test_every_rule_has_somebody_who_breaks_it_here(lake: PlainLake) -> None:
    (driver,) = [rule for rule in RULES if rule.code not in BREAKS]
    for remote, state, seen in (
        (None, "broken", "spark.remote is not set"),
        ("sc://127.0.0.1:15002/;token=hunter2", "kept", "all runs use sc://127.0.0.1:15002"),
    ):
        options = {"lake_uri": "s3a://lake", "spark": SparkSettings(remote=remote)}
        on_s3 = Looked(lake.settings.model_copy(update=options), lake.stores)
        assert driver.look(on_s3) == (state, seen)


def called(*words: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *words])


def test_the_doctor_lists_every_rule_with_its_source_and_its_state(lake: PlainLake) -> None:
    result = called("--guards", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)["guards"]
    assert [one["code"] for one in told] == [rule.code for rule in RULES]
    assert all(set(one) == {"code", "says", "source", "held_by", "do", "state", "seen"} for one in told)
    write(lake)
    told_of = called("--guards")
    assert told_of.exit_code == 1
    assert "known_writer is broken: engagement/data version 3: WRITE by delta-rs" in told_of.stdout
    assert called("engagement/data", "--guards").exit_code == 2
