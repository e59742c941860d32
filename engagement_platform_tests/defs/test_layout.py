"""The layout of tables in Dagster: what checks and the health asset say of real tables. No Spark."""

from __future__ import annotations

import base64
import random
import re
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from engagement_platform.defs import layout
from engagement_platform.defs.evaluations import newest_results
from engagement_platform.defs.layout import NEW_TABLE_PAUSE, own_tables
from engagement_platform.defs.layout_results import LAYOUT, NO_TABLE, layout_result
from engagement_platform.defs.sensors import Recent
from engagement_platform.defs.specs import key_of
from engagement_platform.engine.model import Transaction
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.engagement import MAPPING, QUARANTINE, data_table
from engagement_platform.maintenance.layout.history import LAYOUT_HISTORY
from engagement_platform.maintenance.layout.report import keep
from engagement_platform.pii.vault import VAULT
from engagement_platform.pipelines.page_views.job import HOPS
from engagement_platform.pipelines.profiles.entity import PROFILE
from engagement_platform.settings import Settings
from engagement_platform_tests import plant
from engagement_platform_tests.defs.conftest import loaded, materialized, skipped, tick
from engagement_platform_tests.maintenance.layout import logs

DATA = dg.AssetKey(["engagement", "data"])
HEALTH = dg.AssetKey(["layout", "health"])
ORGANIZATION = "organization_id=org-0"
KB = 1024
SEEDED = ["small_files", "clustering_overlap"]
"""What is wrong with the seeded table: its files are small, and all of them hold the same day."""


class Lake:
    """A lake without a table, and a Dagster instance; the settings of this process point at it."""

    def __init__(self, home: Path, instance: dg.DagsterInstance) -> None:
        self.home, self.instance = home, instance
        self.data = home / "lake" / "engagement" / "data"

    def run(self, job: str, *checks: dg.AssetCheckKey) -> dg.ExecuteInProcessResult:
        made = loaded().resolve_job_def(job)
        if checks:
            made = made.get_subset(asset_selection=set(), asset_check_selection=set(checks))
        return made.execute_in_process(instance=self.instance)

    def newest(self, table: dg.AssetKey = DATA) -> dg.AssetCheckEvaluation:
        check = dg.AssetCheckKey(table, LAYOUT)
        return newest_results(self.instance, [check])[check].evaluation

    def failed(self, table: dg.AssetKey = DATA) -> list[str]:
        """Codes of the findings in the check of a table, that fail it; none when it passed."""
        told = self.newest(table)
        rows: Any = told.metadata["findings"].value if "findings" in told.metadata else None
        codes = [row.data["code"] for row in rows.records if row.data["severity"] != "info"] if rows else []
        assert told.passed is not bool(codes) or "not looked at" in str(told.description)
        return codes

    def health(self) -> dict[str, Any]:
        return materialized(self.instance, "layout/health")

    def tick(self) -> dg.RunRequest | dg.SkipReason:
        answer = tick(self.instance, "layout_after_writes")
        assert isinstance(answer, dg.RunRequest | dg.SkipReason)
        return answer

    def seed_small_files(self, count: int = 175) -> None:
        """Files of 7 KB of one organization, two to a commit, as a writer leaves them that never compacts."""
        plant.create(str(self.data), data_table("organization"))
        columns = [
            field for field in DeltaTable(self.data).to_pyarrow_dataset().schema if field.name not in ORGANIZATION
        ]
        day = datetime(2026, 11, 1, tzinfo=UTC)
        # Most of a file is its footer, in which the text stands as a bound, too.
        text = random.Random(20201120).randbytes(100).hex()
        values = {"engagement_date": day.date(), "engagement_ts": day, "engagement_id": text, "version": 1}
        row = {field.name: [values.get(field.name)] for field in columns}
        folder = self.data / ORGANIZATION
        folder.mkdir()
        table = pa.table(row, schema=pa.schema(columns))
        for i in range(count):
            pq.write_table(table, folder / f"part-{i:03}.zstd.parquet", compression="zstd", use_dictionary=False)
        adds = [_add(folder / f"part-{i:03}.zstd.parquet") for i in range(count)]
        for version, start in enumerate(range(0, count, 2), start=1):
            logs.commit(self.data, version, [logs.info(), *adds[start : start + 2]])


def _add(file: Path) -> dict[str, Any]:
    action = logs.add("", 0, partition={"organization_id": "org-0"})
    bounds = '{"engagement_date": "2026-11-01"}'
    stats = f'{{"numRecords": 1, "minValues": {bounds}, "maxValues": {bounds}, "nullCount": {{}}}}'
    return {
        "add": {**action["add"], "path": f"{ORGANIZATION}/{file.name}", "stats": stats, "size": file.stat().st_size}
    }


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path))
    with dg.DagsterInstance.ephemeral() as instance:
        yield Lake(tmp_path, instance)


def pictured(markdown: str) -> ET.Element:
    return ET.fromstring(base64.b64decode(markdown.split("base64,")[1][:-1]))


def test_175_small_files_fail_their_check_and_compaction_turns_it_green(lake: Lake) -> None:
    """The run says so in its log, in figures over time, and in the report."""
    lake.seed_small_files()
    lake.run("examine_layout")
    told = lake.newest()
    assert lake.failed() == SEEDED
    assert (told.passed, told.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert f"{ORGANIZATION} has 175 of 175" in str(told.description)
    shown: dict[str, Any] = {name: value.value for name, value in told.metadata.items()}
    [small] = [row.data for row in shown["findings"].records if row.data["code"] == "small_files"]
    assert "small_files=175" in small["evidence"]
    assert small["partition"] == ORGANIZATION
    assert "175 → 1 files" in small["gain"]
    assert (shown["files"], shown["small_files_percent"]) == (175, 100)
    assert round(shown["median_file_bytes"] / KB) == 7
    assert "engagement-platform optimize engagement/data" in shown["remedy"]
    assert [text.text for text in pictured(shown["file_sizes"]).iter() if text.text == "175"]

    run = lake.run("check_layout", dg.AssetCheckKey(DATA, LAYOUT))
    said = [entry.user_message for entry in lake.instance.all_logs(run.run_id) if entry.level == 30]
    assert [" ".join(line.split()[:3]) for line in said] == [f"warning {code} engagement/data:" for code in SEEDED]
    assert "Most files of 1 of 1 partitions are smaller than 500 KB" in said[0]

    health = lake.health()
    assert health["engagement/data files"] == health["files"] == 175
    assert health["engagement/data small_files_percent"] == 100
    assert health["findings small_files"] == 1
    assert health["findings uncompressed"] == 0
    codes = [(row.data["severity"], row.data["code"], row.data["table"]) for row in health["findings"].records]
    assert codes == [("warning", code, "engagement/data") for code in SEEDED]
    report = Path(health["report"])
    assert report.parent == lake.home / "reports"
    assert report.name == f"layout-{datetime.now(UTC).date()}.html"
    assert "small_files" in report.read_text()

    DeltaTable(lake.data).optimize.compact()
    lake.run("examine_layout")
    assert lake.failed() == []
    assert lake.newest().metadata["files"].value == 1


def test_an_organization_by_the_name_of_a_picture_is_text_in_all_that_a_run_shows(lake: Lake) -> None:
    evil = "![x](http://evil.example/?a)<img src=x>"
    logs.table(
        lake.data, [logs.add(f"f{number}", 7 * KB, partition={"organization_id": evil}) for number in range(175)]
    )
    lake.run("examine_layout")
    told, health = lake.newest(), lake.instance.get_latest_materialization_event(HEALTH)
    assert health is not None
    assert health.asset_materialization is not None
    shown = [*told.metadata.values(), *health.asset_materialization.metadata.values()]
    assert any(evil in str(value.value) for value in shown), "it is there"
    assert not any(isinstance(value, dg.UrlMetadataValue) for value in shown)
    drawn = [value.md_str or "" for value in shown if isinstance(value, dg.MarkdownMetadataValue)]
    assert drawn
    assert all(re.fullmatch(r"!\[[\w ,]*\]\(data:image/svg\+xml;base64,[\w+/=]+\)", text) for text in drawn)
    assert evil in str(told.description)
    assert str(told.description).startswith("`")


def test_a_lake_without_tables_passes_and_says_so(lake: Lake) -> None:
    lake.run("examine_layout")
    for table in own_tables(Settings()):
        assert (lake.newest(table).passed, lake.newest(table).description) == (True, NO_TABLE)
    assert lake.health()["tables"] == 0


def test_healthy_tables_pass_and_a_table_of_somebody_else_shows_in_the_figures(lake: Lake) -> None:
    for table in (data_table("organization"), QUARANTINE, PROFILE.base, LAYOUT_HISTORY, HOPS[0].table):
        plant.create(f"{lake.home}/lake/{table.name}", table)
    logs.table(lake.home / "lake" / "other" / "well", logs.files(4, 128 * KB * KB))
    lake.run("examine_layout")
    for table in (PROFILE.base, LAYOUT_HISTORY, HOPS[0].table):
        assert lake.newest(dg.AssetKey(list(table.key))).metadata["version"].value == 0, "it was not looked at"
    assert [table for table in own_tables(Settings()) if lake.failed(table)] == []
    assert HOPS[-1].table.name not in {check.asset_key.to_user_string() for check in results(lake)}, "it is not there"
    health = lake.health()
    assert (health["tables"], health["failed"], health["files"]) == (6, 0, 4)
    assert health["other/well median_file_bytes"] == 128 * KB * KB


def results(lake: Lake) -> set[dg.AssetCheckKey]:
    return set(newest_results(lake.instance, loaded().resolve_asset_graph().asset_check_keys))


def test_infos_pass_and_errors_fail_as_errors(lake: Lake) -> None:
    lake.seed_small_files(count=20)
    examined = layout.examine_table(Settings(), "engagement/data")
    assert "small_files" in {finding.code for finding in examined.findings if finding.severity == "info"}
    assert "small_files" not in {finding.code for finding in examined.failing}

    logs.commit(lake.data, 11, [logs.info(), *logs.files(2001, 600 * KB)])
    result = layout_result(layout.examine_table(Settings(), "engagement/data"))
    assert (result.passed, result.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert "too_many_files: " in str(result.description)


def test_a_table_whose_log_nobody_can_read_warns_and_the_others_are_examined(lake: Lake) -> None:
    lake.seed_small_files(count=2)
    mapping = lake.home / "lake" / "engagement" / "mapping" / "_delta_log"
    mapping.mkdir(parents=True)
    (mapping / f"{0:020}.json").write_text("no JSON")
    lake.run("examine_layout")
    assert lake.failed() == []
    told = lake.newest(dg.AssetKey(["engagement", "mapping"]))
    assert (told.passed, told.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert str(told.description).startswith("Nobody can tell: ")
    assert list(lake.health()["unreadable"]) == ["engagement/mapping"]


def test_a_table_that_nobody_can_read_is_examined_again_only_once_it_has_another_version(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HEALTH__CHECK_PAUSE", "PT0S")
    beyond = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["wishes"], "writerFeatures": ["wishes"]}
    logs.table(lake.data, protocol=beyond)
    for version in range(1, 3):
        asked = lake.tick()
        assert isinstance(asked, dg.RunRequest)
        assert asked.asset_check_keys == [dg.AssetCheckKey(DATA, LAYOUT)]
        lake.run("check_layout", *asked.asset_check_keys)
        assert "Nobody can tell: " in str(lake.newest().description)
        assert isinstance(lake.tick(), dg.SkipReason)
        logs.commit(lake.data, version, [logs.info()])


def test_a_log_without_a_commit_is_no_table_that_waits_to_be_examined(lake: Lake) -> None:
    (lake.data / "_delta_log").mkdir(parents=True)
    assert isinstance(lake.tick(), dg.SkipReason)


def test_tables_are_examined_after_a_write_once_and_again_after_a_pause_or_a_materialization(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only those that were written are, in one run; the others stay as they are."""
    assert isinstance(lake.tick(), dg.SkipReason)
    lake.seed_small_files(count=2)
    asked = lake.tick()
    assert isinstance(asked, dg.RunRequest)
    assert asked.asset_check_keys == [dg.AssetCheckKey(DATA, LAYOUT)]
    ran = lake.run("check_layout", *asked.asset_check_keys)
    assert [result.asset_key for result in ran.get_asset_check_evaluations()] == [DATA]
    assert lake.failed() == []
    assert isinstance(lake.tick(), dg.SkipReason)

    logs.commit(lake.data, 2, [logs.info()])
    assert "The next look" in skipped(lake.tick())
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HEALTH__CHECK_PAUSE", "PT0S")
    assert isinstance(lake.tick(), dg.RunRequest)
    lake.run("check_layout", dg.AssetCheckKey(DATA, LAYOUT))
    assert isinstance(lake.tick(), dg.SkipReason)

    @dg.asset(key=DATA)
    def written() -> None: ...

    dg.materialize([written], instance=lake.instance)
    assert isinstance(lake.tick(), dg.RunRequest), "Dagster's UI shows no result that is older than a materialization"


def test_every_asset_that_is_a_delta_table_has_one_layout_check() -> None:
    graph = loaded().resolve_asset_graph()
    # Files of the vault are written by the ingest server and rewritten by erasures; nothing else looks after them.
    others = {HEALTH, key_of(VAULT)}
    tables = {key for key in graph.get_all_asset_keys() if "deltalake" in graph.get(key).kinds} - others
    assert {check.asset_key for check in graph.asset_check_keys if check.name == LAYOUT} == tables


def test_a_changeset_passes_every_check_while_batches_come_and_go(lake: Lake) -> None:
    """A batch is one small file in a partition of its own, and is removed once the base has it."""
    changeset = lake.home / "lake" / "profile" / "changeset"
    plant.create(str(changeset), PROFILE.changeset)
    for batch in range(120):
        change = {"profile_id": f"p-{batch}", "version": batch, "op": "UPDATE", "name": "n", "batch_id": batch}
        rows = table_of([change] * 3, PROFILE.changeset)
        plant.append(DeltaTable(changeset), rows, Transaction("ingest-profile-changes/changeset", batch))
        if batch == 60:
            DeltaTable(changeset).delete("batch_id < 50")
    key = dg.AssetKey(["profile", "changeset"])
    lake.run("check_layout", dg.AssetCheckKey(key, LAYOUT))
    assert lake.newest(key).metadata["files"].value == 70
    assert lake.failed(key) == []


def test_a_table_that_was_never_examined_does_not_wait_for_the_pause(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one that was empty then. It waits as long as keeps runs apart; after another change, for the pause."""
    plant.create(str(lake.data), data_table("organization"))
    ended = time.time() - NEW_TABLE_PAUSE.total_seconds() + 30
    monkeypatch.setattr(layout, "recent_runs", lambda *_: Recent(ended=ended))
    assert "next look" in skipped(lake.tick())
    monkeypatch.setattr(layout, "recent_runs", lambda *_: Recent(ended=ended - 30))
    due = lake.tick()
    assert isinstance(due, dg.RunRequest)
    lake.run("check_layout", dg.AssetCheckKey(DATA, LAYOUT))
    lake.instance.report_runless_asset_event(dg.AssetMaterialization(DATA))
    assert isinstance(lake.tick(), dg.SkipReason), "nothing has come into it"
    lake.seed_small_files(2)
    assert isinstance(lake.tick(), dg.RunRequest)
    lake.run("check_layout", dg.AssetCheckKey(DATA, LAYOUT))
    logs.commit(lake.data, 2, [logs.info()])
    assert isinstance(lake.tick(), dg.SkipReason)
    plant.create(str(lake.home / "lake" / "engagement" / "mapping"), MAPPING)
    new = lake.tick()
    assert isinstance(new, dg.RunRequest)
    mapping = dg.AssetCheckKey(dg.AssetKey(["engagement", "mapping"]), LAYOUT)
    assert new.asset_check_keys == [mapping], "tables that have a result wait for the pause"


def test_only_the_newest_reports_are_kept_and_nothing_else_is_removed(tmp_path: Path) -> None:
    (tmp_path / "layout-notes.html").write_text("mine")
    first = datetime(2026, 11, 21, tzinfo=UTC).date()
    for day in range(5):
        keep(tmp_path, first + timedelta(days=day), f"day {day}", most=3)
    keep(tmp_path, first + timedelta(days=4), "again", most=3)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [*(f"layout-2026-11-{day}.html" for day in (23, 24, 25)), "layout-notes.html"]
    assert (tmp_path / "layout-2026-11-25.html").read_text() == "again"
