"""All that Dagster is told, as text that is read in review; and that telling it starts nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from engagement_platform.definitions import defs
from engagement_platform.defs.specs import SHOWN_WITHOUT_STORES, ingestion_days
from engagement_platform.engine.model import RULES_VERSION, Manifest
from engagement_platform.local.ports import free_ports
from engagement_platform.pipelines.jobs import open_stores
from engagement_platform.settings import Settings
from engagement_platform_tests.defs.test_browser import CHECKS

SNAPSHOT = Path(__file__).with_name("definitions.txt")
REGENERATE = "TESTS_REGENERATE"


def of_op(node: Any) -> tuple[Any, str | None, str]:
    """An op, its pool, and whether it is tried again."""
    policy = node.definition.retry_policy
    return node, node.definition.pool, f", {policy.max_retries} retries" if policy else ""


def described(definitions: dg.Definitions) -> str:
    """Assets with dependencies, partitions, pools and checks; jobs with their ops and retries; sensors; schedules."""
    repository = definitions.get_repository_def()
    graph = repository.asset_graph
    lines = []
    for key in sorted(graph.get_all_asset_keys()):
        node = graph.get(key)
        lines.append(f"asset {key.to_user_string()}")
        lines += [f"  after {parent.to_user_string()}" for parent in sorted(node.parent_keys)]
        lines.append(f"  group {node.group_name}, kinds {', '.join(sorted(node.kinds))}, owners {node.owners}")
        if node.partitions_def:
            lines.append(f"  partitions {node.partitions_def}")
            lines.append(f"  backfill {node.backfill_policy.policy_type.value if node.backfill_policy else None}")
        lines += [f"  pool {pool}" for pool in sorted(node.pools or ())]
        for check in sorted(node.check_keys, key=lambda check: check.name):
            spec = graph.get(check)
            lines.append(f"  check {check.name}{', blocking' if spec.blocking else ''}")
    for job in sorted(repository.get_all_jobs(), key=lambda job: job.name):
        if job.name.startswith("__"):
            continue
        ops = ", ".join(sorted(f"{op.name} (pool {pool}{again})" for op, pool, again in map(of_op, job.graph.nodes)))
        lines.append(f"job {job.name}: {ops}; {job.executor_def.name}")
    for sensor in sorted(repository.sensor_defs, key=lambda sensor: sensor.name):
        targets = ", ".join(target.job_name for target in sensor.targets) or "nothing"
        every = f"every {sensor.minimum_interval_seconds} s"
        lines.append(f"sensor {sensor.name}: {every}, {sensor.default_status.value}, launches {targets}")
    lines += [f"schedule {schedule.name}" for schedule in repository.schedule_defs]
    return "\n".join(lines) + "\n"


def test_dagster_is_told_what_the_snapshot_says() -> None:
    text = described(defs())
    if os.environ.get(REGENERATE):
        SNAPSHOT.write_text(text)
    assert text == SNAPSHOT.read_text(), (
        f"Definitions changed. If that is meant, write the snapshot anew and review its diff: {REGENERATE}=1 pytest "
        f"engagement_platform_tests/defs/test_definitions.py"
    )


def test_day_partitions_begin_with_the_first_batch_or_where_that_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first() -> str | None:
        return ingestion_days.__wrapped__().get_first_partition_key()

    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path))
    assert first() == "2026-11-01", "as the variable of all tests says"
    monkeypatch.delenv("ENGAGEMENT_PLATFORM_DAGSTER__FIRST_DAY")
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    assert first() == yesterday.isoformat()
    assert list(tmp_path.iterdir()) == [], "stores are not made for the question"
    for job, day in (("apply-mutations", 9), ("ingest-engagements", 7), ("ingest-game-events", 8)):
        at = datetime(2026, 10, day, 23, tzinfo=UTC)
        open_stores(Settings()).checkpoints.begin(Manifest(job, f"{job}@1.t", 0, {}, {}, at))
    assert first() == "2026-10-07"


def test_what_runs_of_dagster_make_is_for_the_owner_only_whatever_the_umask(tmp_path: Path) -> None:
    """By a process that only loads the definitions, as a code server elsewhere does: no command sets its umask."""
    script = (
        "from engagement_platform.definitions import defs; from engagement_platform.settings import Settings;"
        "from engagement_platform.pipelines.jobs import open_stores; from pathlib import Path;"
        "defs(); open_stores(Settings()); (Settings().home / 'folder').mkdir()"
    )
    env = {**os.environ, "ENGAGEMENT_PLATFORM_HOME": str(tmp_path / "home")}
    subprocess.run([sys.executable, "-c", script], env=env, check=True, umask=0, timeout=180)
    found = {path.name: f"{path.stat().st_mode & 0o777:o}" for path in (tmp_path / "home", *tmp_path.glob("home/*"))}
    assert found.items() >= {"home": "700", "stores.db": "600", "folder": "700"}.items()


def test_definitions_load_while_the_stores_are_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENGAGEMENT_PLATFORM_DAGSTER__FIRST_DAY")
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_STORES__URL", f"postgresql+psycopg2://me@127.0.0.1:{free_ports(1)[0]}/none")
    month_ago = datetime.now(UTC).date() - SHOWN_WITHOUT_STORES
    assert ingestion_days.__wrapped__().get_first_partition_key() == month_ago.isoformat()


def test_of_a_pipeline_that_is_off_nothing_is_in_dagster(monkeypatch: pytest.MonkeyPatch) -> None:
    firsts = {"engagements": "engagement", "profiles": "profile", "games": "game", "page_views": "view"}

    def there() -> tuple[set[str], set[str]]:
        repository = defs().get_repository_def()
        made = {key.path[0] for key in repository.asset_graph.materializable_asset_keys}
        return made, {sensor.name for sensor in repository.sensor_defs} | {
            job.name for job in repository.get_all_jobs()
        }

    made, named = there()
    assert set(firsts.values()) <= made
    for off, first in firsts.items():
        monkeypatch.setenv(f"ENGAGEMENT_PLATFORM_PIPELINES__{off.upper()}", "false")
        less, fewer = there()
        assert first in made - less
        assert fewer < named, off
        made, named = less, fewer
    assert not [name for name in named if name.startswith("ingest_")]


def test_assets_have_the_owners_that_are_set_and_landed_tables_a_freshness_policy_and_a_code_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_DAGSTER__OWNERS", '["team:events"]')
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_DAGSTER__OVERDUE_AFTER", "PT6H")
    graph = defs().get_repository_def().asset_graph
    assert {owner for key in graph.get_all_asset_keys() for owner in graph.get(key).owners} == {"team:events"}
    for name in ("data", "mutation_request", "notification"):
        node = graph.get(dg.AssetKey(["engagement", name]))
        assert node.freshness_policy == dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=6))
        assert node.code_version == str(RULES_VERSION)


def test_the_tests_in_the_browser_wait_for_every_check_of_the_data_table() -> None:
    graph = defs().get_repository_def().asset_graph
    told = {check.name for check in graph.get(dg.AssetKey(["engagement", "data"])).check_keys}
    assert told == set(CHECKS["engagement/data"])


def test_every_table_shows_its_columns_with_comments() -> None:
    graph = defs().get_repository_def().asset_graph
    tables = [key for key in graph.materializable_asset_keys if "spark" in graph.get(key).kinds]
    assert tables
    for key in tables:
        schema = graph.get(key).metadata["dagster/column_schema"]
        assert isinstance(schema, dg.TableSchema)
        assert all(column.description for column in schema.columns)


def test_dagster_s_own_check_of_the_workspace_passes_without_a_warning(tmp_path: Path) -> None:
    """What `dg check defs` runs, which is no dependency; that it is to be used instead is the only thing said."""
    root = Path(__file__).parents[2]
    shutil.copy(root / "dagster.yaml", tmp_path)
    env = {**os.environ, "ENGAGEMENT_PLATFORM_HOME": str(tmp_path / "home"), "DAGSTER_HOME": str(tmp_path)}
    command = [f"{Path(sys.executable).parent}/dagster", "definitions", "validate", "--workspace", "workspace.yaml"]
    ran = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)
    said = [line for line in (ran.stdout + ran.stderr).splitlines() if "SupersessionWarning" not in line]
    assert ran.returncode == 0, said
    assert any("Validation successful for code location engagement_platform" in line for line in said)
    assert not [line for line in said if "warning" in line.lower() or "error" in line.lower()]


def test_loading_definitions_starts_no_jvm_no_thread_no_connection_and_writes_no_file(tmp_path: Path) -> None:
    script = """
import socket, subprocess, sys, threading
import dagster  # asks the program `file` about the interpreter; not ours to mend
before = threading.active_count()
def refuse(*_args, **_options): raise AssertionError("something was started")
subprocess.Popen.__init__ = socket.socket.connect = refuse
from engagement_platform.definitions import defs
defs().get_repository_def()
from pyspark import SparkContext
assert SparkContext._gateway is None
assert threading.active_count() == before, threading.enumerate()
assert "matplotlib" not in sys.modules
"""
    folders = {"HOME": tmp_path, "ENGAGEMENT_PLATFORM_HOME": tmp_path / "home", "DAGSTER_HOME": tmp_path}
    env = {**os.environ, **{name: str(folder) for name, folder in folders.items()}, "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert list(tmp_path.iterdir()) == []
