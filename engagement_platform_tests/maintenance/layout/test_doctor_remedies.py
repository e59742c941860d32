"""The doctor's remedies: the commands that they name do mend, and what came of them is told beside the prediction."""

from __future__ import annotations

import json
import re
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from engagement_platform.cli import app
from engagement_platform.lake.arrow import table_of
from engagement_platform.maintenance.layout.history import LAYOUT_HISTORY
from engagement_platform.maintenance.layout.report import SHOWN
from engagement_platform.settings import Settings
from engagement_platform_tests.maintenance.layout import logs
from engagement_platform_tests.maintenance.layout.seeded import SeededLake, append_foreign

MB = 1024**2
SMALL = 60


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> SeededLake:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return SeededLake(tmp_path, spark=spark)


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def examined(*words: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(call("doctor", *words, "--json").stdout)
    return told


def remedies(told: dict[str, Any]) -> dict[str, str]:
    return {finding["code"]: finding["remedy"] for finding in told["findings"]}


def named(remedy: str) -> list[str]:
    """The words of the command in a remedy, as a shell would part them."""
    found = re.search(r"engagement-platform (.+?)(?: \(or in Spark|;|$)", remedy)
    assert found, remedy
    return shlex.split(found[1])


def test_the_command_that_a_remedy_names_mends_it_and_the_outcome_is_told(
    lake: SeededLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.engagements("org-1", SMALL)
    before = examined("engagement/data")
    assert before["tables"][0]["predicted_and_actual"] == []
    found = remedies(before)
    for code in ("small_files", "clustering_overlap"):
        assert named(found[code]) == ["optimize", "engagement/data"]
        assert "OPTIMIZE" not in found[code], "Spark SQL would take no commit lock"

    assert call(*named(found["small_files"])).exit_code == 0
    after = examined("engagement/data")
    assert not {"small_files", "clustering_overlap"} & set(remedies(after))
    [outcome] = after["tables"][0]["predicted_and_actual"]
    gain = next(finding["gain"] for finding in before["findings"] if finding["code"] == "small_files")
    assert (outcome["files_before"], outcome["files_after"]) == (SMALL, 1)
    assert outcome["actual_gain"] == pytest.approx(outcome["predicted_gain"])
    assert (gain["files_after"], gain["bytes_to_rewrite"]) == (1, outcome["bytes_rewritten"])
    assert outcome["partition"] == "organization_id=org-1"
    assert datetime.fromisoformat(outcome["started_ts"]).tzinfo == UTC

    DeltaTable(lake.uri()).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 hours"})
    for setting in ("MAINTENANCE__ROLLBACK_WINDOW", "MUTATION__MAX_LATENESS"):
        monkeypatch.setenv(f"ENGAGEMENT_PLATFORM_{setting}", "PT0S")
    words, rows = named(remedies(examined("engagement/data"))["vacuum_due"]), lake.rows()
    assert words == ["vacuum", "engagement/data"]
    assert call(*words).stdout.startswith(f"engagement/data: {SMALL} files of ")
    assert lake.rows() == rows
    assert "vacuum_due" not in remedies(examined("engagement/data"))


def test_the_report_has_predicted_and_actual_side_by_side_for_what_was_mended(lake: SeededLake) -> None:
    hostile = "<img src=x>"
    lake.engagements("org-1", 3)
    call("doctor", "--html", "before.html")
    assert "Predicted and actual" not in Path("before.html").read_text(encoding="utf-8")
    lake.engagements(hostile, 5)
    call("optimize", "engagement/data")
    ago = datetime.now(UTC) - timedelta(hours=1)
    former = {
        "table_name": "engagement/data",
        "action": "zorder",
        "started_ts": ago,
        "ingestion_date": ago.date(),
    }
    append_foreign(lake.uri(LAYOUT_HISTORY), table_of([former] * SHOWN, LAYOUT_HISTORY))
    call("doctor", "--html", "after.html")
    text = Path("after.html").read_text(encoding="utf-8")
    [table] = re.findall(r"<h3>Predicted and actual</h3>\n(<table>.*?</table>)", text, re.DOTALL)
    assert table.count("<tr>") == 1 + SHOWN, "the newest of more"
    [row] = [line for line in table.splitlines() if "&lt;img" in line or "%3Cimg" in line]
    assert hostile not in table
    cells = re.findall(r"<td>(.*?)</td>", row)
    assert cells[2:4] == ["zorder", cells[4]], "predicted and actual gain"


def test_a_table_of_another_house_is_named_for_a_shell_and_spark_is_told_too(lake: SeededLake, tmp_path: Path) -> None:
    path = tmp_path / "somebody's own"
    for n in range(SMALL):
        append_foreign(str(path), pa.table({"x": [n]}))
    remedy = remedies(examined(str(path)))["small_files"]
    assert named(remedy) == ["optimize", str(path)]
    assert f"(or in Spark: OPTIMIZE delta.`{path}`)" in remedy
    assert call(*named(remedy)).exit_code == 0
    mended = examined(str(path))
    assert "small_files" not in remedies(mended)
    # The lake of this house remembers what was done elsewhere.
    [done] = mended["tables"][0]["predicted_and_actual"]
    assert (done["table_name"], done["action"], done["files_after"]) == (str(path), "optimize", 1)
    assert done["predicted_gain"] == done["actual_gain"] == SMALL - 1


def test_a_column_that_only_the_call_names_is_left_to_spark(lake: SeededLake, tmp_path: Path) -> None:
    path = logs.table(tmp_path / "t", logs.files(SMALL, 9_000))
    remedy = remedies(examined(str(path), "--clustered-by", "day"))["clustering_overlap"]
    assert remedy == f"Cluster it: OPTIMIZE delta.`{path}` ZORDER BY (day)"


def test_files_that_the_daily_round_leaves_are_for_the_second_one(lake: SeededLake, tmp_path: Path) -> None:
    path = logs.table(tmp_path / "t", logs.files(300, 90 * MB))
    words = named(remedies(examined(str(path)))["too_many_files"])
    assert words == ["optimize", str(path), "--second-round"]

    def planned(*more: str) -> int:
        told = json.loads(call(*more, "--dry-run", "--json").stdout)
        return len(told["slices"])

    assert (planned(*words), planned(*words[:2])) == (1, 0)


def test_a_history_that_cannot_be_read_keeps_nobody_from_being_examined(lake: SeededLake) -> None:
    lake.engagements("org-1", 3)
    beyond = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["wishes"], "writerFeatures": ["wishes"]}
    logs.table(Path(Settings().lake) / "layout" / "history", protocol=beyond)
    assert examined("engagement/data")["tables"][0]["predicted_and_actual"] == []
    everything = call("doctor", "--json")
    assert (everything.exit_code, "layout/history" in everything.stderr) == (1, True)
