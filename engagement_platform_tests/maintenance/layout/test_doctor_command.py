"""The command as people and programs call it; without Spark."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner, Result

from engagement_platform.cli import app
from engagement_platform.errors import PlatformError
from engagement_platform.lake import log
from engagement_platform.lake.engagement import QUARANTINE, data_table
from engagement_platform.maintenance.layout.files import LogNotReadable, NotADeltaTable
from engagement_platform.maintenance.layout.survey import NoSuchTable, Target, UnknownColumn, target, targets
from engagement_platform.settings import Settings
from engagement_platform_tests import plant
from engagement_platform_tests.maintenance.layout import logs

KB, MB = 1024, 1024**2


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lake with a sick table, a healthy one, and two without files."""
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "lake"
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_LAKE_URI", str(root))
    plant.create(str(root / "engagement" / "data"), data_table("organization"))
    plant.create(str(root / "engagement" / "quarantine"), QUARANTINE)
    logs.table(root / "game" / "sick", [*logs.files(175, 7 * KB), *logs.files(1, 60 * MB, "org-1")])
    logs.table(root / "game" / "well", logs.files(4, 128 * MB))
    return root


def called(*words: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *words])


def answered(*words: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(called(*words, "--json").stdout)
    return told


def test_without_a_table_all_tables_of_the_lake_are_examined(lake: Path) -> None:
    # Its writer has made no commit yet.
    (lake / "game" / "just_being_made" / "_delta_log").mkdir(parents=True)
    found = answered()
    names = ["engagement/data", "engagement/quarantine", "game/sick", "game/well"]
    assert [table["table"] for table in found["tables"]] == names
    assert {finding["table"] for finding in found["findings"]} == {"game/sick"}
    assert called().exit_code == 1


def test_json_is_one_object_whose_findings_say_everything(lake: Path) -> None:
    result = called("game/sick", "--json")
    assert (result.exit_code, len(result.stdout.splitlines())) == (1, 1)
    told = json.loads(result.stdout)
    assert set(told) == {"findings", "tables"}
    small = next(finding for finding in told["findings"] if finding["code"] == "small_files")
    assert set(small) == {"code", "severity", "table", "partition", "evidence", "what", "remedy", "gain"}
    found = (small["severity"], small["table"], small["partition"])
    assert found == ("warning", "game/sick", "organization_id=org-0")
    assert (small["gain"]["files_before"], small["gain"]["files_after"]) == (175, 1)
    (table,) = told["tables"]
    assert (table["files"], table["bytes"], table["partitions"]) == (176, 175 * 7 * KB + 60 * MB, 2)
    assert table["histogram"]["4096"] == 175
    assert [one["files"] for one in table["worst_partitions"]] == [175, 1]


def test_json_tells_the_worst_partitions_with_bounds_and_overlap(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def file(name: str, organization: str, days: tuple[str, str]) -> dict[str, Any]:
        return logs.add(name, 7 * KB, partition={"organization_id": organization}, days=days)

    files = [
        file("a", "org-0", ("2024-01-01", "2024-01-31")),
        file("b", "org-0", ("2024-01-15", "2024-03-01")),
        file("c", "org-1", ("2024-05-01", "2024-05-02")),
    ]
    logs.table(lake / "game" / "deep", files)
    (table,) = answered("game/deep", "--clustered-by", "day")["tables"]
    assert table["worst_partitions"][0] == {
        "partition": "organization_id=org-0", "files": 2, "bytes": 14 * KB, "rows": 20, "small_files": 2,
        "overlap_depth": 2, "low": "2024-01-01", "high": "2024-03-01",
    }  # fmt: skip
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HEALTH__WORST_PARTITIONS", "1")
    (table,) = answered("game/deep")["tables"]
    assert [(one["partition"], one["low"]) for one in table["worst_partitions"]] == [("organization_id=org-0", None)]


@pytest.mark.parametrize("table", ["game/well", "engagement/data", "game/well/"])
def test_a_table_without_faults_or_without_files_exits_with_0(table: str, lake: Path) -> None:
    result = called(table)
    assert (result.exit_code, "Nothing to mend." in result.stdout) == (0, True)


def test_findings_for_information_only_exit_with_0(lake: Path) -> None:
    path = logs.table(lake / "game" / "some")
    for version, file in enumerate(logs.files(12, 7 * KB), start=1):
        logs.commit(path, version, [logs.info(), file])
    result = called("game/some", "--json")
    (finding,) = json.loads(result.stdout)["findings"]
    assert (finding["code"], finding["severity"], result.exit_code) == ("small_files", "info", 0)


def test_people_see_what_is_wrong_what_to_do_and_what_it_gains(lake: Path) -> None:
    shown = called("game/sick").stdout
    assert "warning small_files game/sick" in shown
    assert "1 of 2 partitions are smaller than 500 KB; organization_id=org-0 has 175 of 175" in shown
    assert "what to do: Compact it: engagement-platform optimize game/sick; or switch on" in shown
    assert "gain: 175 → 1 files; 1.2 MB to rewrite" in shown


@pytest.mark.parametrize("spelled", ["{}", "file://{}", "{}/"])
def test_a_table_is_found_by_its_folder(spelled: str, tmp_path: Path) -> None:
    path = tmp_path / "of somebody else ü"
    write_deltalake(str(path), pa.table({"x": [1, 2]}))
    assert answered(spelled.format(path))["tables"][0]["files"] == 1


@pytest.mark.parametrize(
    "spelled",
    [
        "../engagement/data",
        "{lake}/game/../engagement/data/",
        "engagement/../engagement//data",
        "file://{link}/engagement/data",
        "{lake}/engagement/linked",
    ],
)
@pytest.mark.parametrize("root", ["lake", "link"])
def test_a_table_of_the_lake_goes_by_its_name_however_its_path_is_spelled(
    spelled: str, root: str, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease, and what unfinished batches read of it, go by that name."""
    (tmp_path / "link").symlink_to(lake)
    (lake / "engagement" / "linked").symlink_to(lake / "engagement" / "data")
    monkeypatch.chdir(lake / "game")
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_LAKE_URI", str(tmp_path / root))
    found = target(Settings(), spelled.format(lake=lake, link=tmp_path / "link"))
    assert found == Target("engagement/data", f"{lake}/engagement/data")


def test_a_table_of_the_lake_that_lies_elsewhere_goes_by_its_name_and_any_other_by_one_path(
    lake: Path, tmp_path: Path
) -> None:
    (lake / "game" / "well").rename(tmp_path / "moved")
    (lake / "game" / "well").symlink_to(tmp_path / "moved")
    for spelled in ("game/well", "moved", f"{lake}/game/well", f"{lake}/../moved"):
        assert target(Settings(), spelled) == Target("game/well", f"{lake}/game/well")
    orders = logs.table(tmp_path / "orders", logs.files(1, 9))
    (tmp_path / "another").symlink_to(orders)
    for spelled in ("./orders", "another", f"{lake}/../orders"):
        assert target(Settings(), spelled) == Target(str(orders), str(orders))


def test_tables_with_longer_names_are_looked_after_and_a_group_that_is_a_table_is_left_alone(lake: Path) -> None:
    """VACUUM of the group would remove the files of the tables below it."""
    logs.table(lake / "shop" / "eu" / "order", logs.files(1, 9))
    logs.table(lake / "game", logs.files(1, 9))
    names = [found.name for found in targets(Settings())]
    assert names == ["engagement/data", "engagement/quarantine", "game/sick", "game/well", "shop/eu/order"]


def refused(*words: str) -> PlatformError:
    error = called(*words).exception
    assert isinstance(error, PlatformError)
    return error


def test_what_is_no_table_and_what_is_no_column_is_refused_with_those_there_are(lake: Path) -> None:
    unknown = refused("engagement/dta")
    assert isinstance(unknown, NoSuchTable)
    assert "engagement/data, engagement/quarantine, game/sick, game/well" in str(unknown)
    assert isinstance(refused(str(lake)), NotADeltaTable)
    (lake / "game" / "sick" / "_delta_log" / "0.json").touch()
    assert isinstance(refused(str(lake / "game" / "sick" / "_delta_log")), NotADeltaTable)
    column = refused("game/sick", "--clustered-by", "dya")
    assert isinstance(column, UnknownColumn)
    assert "organization_id, day, id, score" in str(column)


def test_a_log_with_a_feature_that_delta_rs_lacks_says_what_to_do(lake: Path) -> None:
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["new"], "writerFeatures": ["new"]}
    logs.table(lake / "game" / "newer", protocol=protocol)
    error = refused("game/newer")
    assert isinstance(error, LogNotReadable)
    assert "Feature 'new' is not supported" in str(error)
    assert "DROP FEATURE" in str(error)
    everything = called("--json")
    assert (everything.exit_code, len(json.loads(everything.stdout)["tables"])) == (1, 4)
    assert "game/newer" in everything.stderr


def test_a_lake_without_tables_has_nothing_to_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_LAKE_URI", str(tmp_path / "nothing"))
    assert log.tables(str(tmp_path / "nothing")) == []
    assert (called().exit_code, answered()) == (0, {"findings": [], "tables": []})


class Page(HTMLParser):
    """What a page would load, and the elements it has."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.charts = 0
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        self.charts += "plotly-graph-div" in (given.get("class") or "")
        self.loads += [value for name in ("src", "href", "data", "srcset") if (value := given.get(name))]


def test_the_report_loads_nothing_shows_histograms_and_names_are_text_in_it(lake: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)>"
    columns = ((evil, "string"), *logs.COLUMNS[1:])
    files = [logs.add(f"f{i}", 9, partition={evil: f"{evil}&"}) for i in range(60)]
    logs.table(lake / "game" / "evil<img src=y>", files, partitioned_by=[evil], columns=columns)
    assert "The report is in report.html" in called("--html", "report.html").stdout
    text = Path("report.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert (page.loads, "img" in page.tags) == ([], False)
    assert not re.search(r"@import|url\(\s*['\"]?http", text)
    assert page.charts == 3, "one for each table with files"
    assert text.count("plotly.js v") == 1
    assert "File sizes" in text


def test_a_health_check_starts_no_jvm_and_imports_nothing_that_takes_long_and_is_not_needed(lake: Path) -> None:
    """By the command itself, up to its last word."""
    script = (
        "import atexit, sys; from engagement_platform.cli import main;"
        "heavy = ['pyspark', 'plotly', 'dagster', 'sqlalchemy', 'boto3'];"
        "atexit.register(lambda: print([n for n in heavy if n in sys.modules], file=sys.stderr));"
        "sys.argv = ['engagement-platform', 'doctor', '--json']; main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (len(json.loads(done.stdout)["tables"]), done.stderr.strip()) == (4, "[]")
