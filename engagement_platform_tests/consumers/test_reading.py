"""Tables and the view as files that other programs read: every row, the same values, one sentence when it cannot be."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from engagement_platform.consumers.reading import check_asked, first, rows_of, save, table_names
from engagement_platform.engine.model import Transaction
from engagement_platform.errors import PlatformError
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import ALIAS, MAPPING, MUTATION_REQUEST, QUARANTINE
from engagement_platform.lake.lake import Lake
from engagement_platform.pipelines.engagements.schema import CURRENT_ROW
from engagement_platform.pipelines.snapshot import DATA
from engagement_platform.settings import Settings
from engagement_platform_tests.conftest import max_result_size

MOMENT = datetime(2026, 11, 21, 9, 30, 0, 123456, tzinfo=UTC)
# (engagement, identity in the table, what the event said)
NAMES = ("Ann", "Anna")
ROWS = (("e1", "p1", "p1"), ("e2", "p2", "p2"), ("gone", None, "p3"))


def row(organization: str, name: str, person: str | None, said: str) -> dict[str, Any]:
    return {
        "organization_id": organization,
        "engagement_date": MOMENT.date(),
        "engagement_ts": MOMENT,
        "engagement_id": name,
        "person_id": person,
        "source_person_id": said,
        "version": 1,
        "batch_id": 0,
        "engagement": {"type": "email", "channel": None, "subject": 'a "b", c', "attributes": [("ключ", "ü")]},
        "original": None,
        "earlier_versions": [(0, b"\xff")],
    }


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Two organizations with the same rows; of `late` a conversion of p1 to p9 shows in the view only."""
    lake = Lake(spark, Settings(home=tmp_path_factory.mktemp("reading")))
    lake.ensure(DATA, ALIAS, MUTATION_REQUEST, MAPPING, QUARANTINE)
    rows = [row(organization, *of) for organization in ("early", "late") for of in ROWS]
    put(lake, DATA, rows)
    edge = dict.fromkeys(ALIAS.column_names) | {"organization_id": "late", "batch_sequence": 4}
    convert = {"request_id": "r1", "operation": "CONVERT", "from_id": "p1", "to_id": "p9"}
    delete = {"request_id": "r2", "operation": "DELETE", "from_id": "p3"}
    put(lake, ALIAS, [{**edge, **of, "execution_ts": MOMENT + timedelta(hours=1)} for of in (convert, delete)])
    said = [{"id": "p1", "name": name, "name_ts": MOMENT + timedelta(minutes=n)} for n, name in enumerate(NAMES)]
    put(lake, MAPPING, [{**one, "organization_id": organization} for one in said for organization in ("early", "late")])
    rename = {"request_id": "r3", "operation": "RENAME", "from_id": "p2", "name": "Bo", "batch_sequence": 4}
    rename |= {"organization_id": "early", "execution_ts": MOMENT, "ingestion_date": MOMENT.date()}
    put(lake, MUTATION_REQUEST, [rename])
    rejected = {"topic": "t", "partition": 0, "offset": 7, "key": None, "value": b"\xff{", "reason_code": "r"}
    stamps = {"reason": "R.", "job_name": "j", "batch_id": 0, "ingestion_ts": MOMENT, "ingestion_date": MOMENT.date()}
    put(lake, QUARANTINE, [{**rejected, **stamps}])
    return lake


def put(lake: Lake, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    lake.append(lake.frame(table_of(rows, table)), table, Transaction("test", 0), rows=len(rows))


def test_parquet_holds_the_table_as_it_is_with_its_types(lake: Lake, tmp_path: Path) -> None:
    out = tmp_path / "data.parquet"
    assert save(rows_of(lake, "engagement/data"), "engagement/data", out) == 6
    read = pq.read_table(out)
    assert read.column_names == list(DATA.column_names)
    assert read.schema.field("engagement_ts").type == pa.timestamp("us", tz="UTC")
    found = sorted(read.to_pylist(), key=lambda r: (r["organization_id"], r["engagement_id"]))
    assert found == [row(organization, *of) for organization in ("early", "late") for of in ROWS]


def test_the_view_shows_newest_identities_and_no_deleted_rows(lake: Lake, tmp_path: Path) -> None:
    out = tmp_path / "current.jsonl"
    assert save(rows_of(lake, "engagement/current"), "engagement/current", out) == 4
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert sorted((r["organization_id"], r["engagement_id"], r["person_id"]) for r in rows) == [
        ("early", "e1", "p1"),
        ("early", "e2", "p2"),
        ("late", "e1", "p9"),
        ("late", "e2", "p2"),
    ]
    assert rows[0]["engagement"]["attributes"] == {"ключ": "ü"}
    assert rows[0]["engagement_ts"] == MOMENT.isoformat()
    assert list(rows[0]) == CURRENT_ROW.names


def test_the_mapping_has_the_newest_name_of_each_id_with_what_waits(lake: Lake) -> None:
    _, values = first(rows_of(lake, "engagement/mapping"), "engagement/mapping", 9)
    assert sorted(row[:3] for row in values) == [
        ["early", "p1", "Anna"],
        ["early", "p2", "Bo"],
        ["late", "p1", "Anna"],
        ["late", "p9", "Anna"],
    ]


def test_a_predicate_is_any_spark_sql_over_the_columns(lake: Lake, tmp_path: Path) -> None:
    out = tmp_path / "few.csv"
    where = "person_id = 'p9' AND engagement.attributes['ключ'] LIKE '%ü' AND engagement_date >= '2026-11-01'"
    assert save(rows_of(lake, "engagement/current", where=where), "engagement/current", out) == 1
    (found,) = pa.csv.read_csv(out).to_pylist()
    assert (found["organization_id"], found["engagement_id"], found["engagement_date"]) == (
        "late",
        "e1",
        date(2026, 11, 21),
    )
    assert json.loads(found["engagement"])["subject"] == 'a "b", c'


def test_bytes_become_base64_where_a_format_has_none(lake: Lake, tmp_path: Path) -> None:
    for suffix in (".csv", ".jsonl"):
        out = tmp_path / f"quarantine{suffix}"
        assert save(rows_of(lake, "engagement/quarantine"), "engagement/quarantine", out) == 1
        assert base64.b64encode(b"\xff{").decode() in out.read_text()


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_no_rows_are_a_file_too_and_it_replaces_the_one_before(lake: Lake, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"none{suffix}"
    out.write_text("something else")
    assert save(rows_of(lake, "engagement/data", where="false"), "engagement/data", out) == 0
    if suffix == ".parquet":
        assert pq.read_table(out).column_names == list(DATA.column_names)
    else:
        assert "something" not in out.read_text()
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def test_a_version_is_the_table_as_it_was_and_one_that_is_not_there_is_one_sentence(lake: Lake, tmp_path: Path) -> None:
    frame = rows_of(lake, "engagement/data", version=0)
    assert save(frame, "engagement/data", tmp_path / "before.parquet") == 0
    with pytest.raises(PlatformError, match=r"99[^\n]*$"):
        rows_of(lake, "engagement/data", version=99)


def test_many_rows_come_whole(lake: Lake, tmp_path: Path) -> None:
    out = tmp_path / "many.parquet"
    assert save(lake.spark.range(50_000).selectExpr("id", "CAST(id AS STRING) AS text"), "many", out) == 50_000
    assert sorted(pq.read_table(out).column("id").to_pylist()) == list(range(50_000))


def test_the_first_rows_are_values_that_json_knows(lake: Lake) -> None:
    columns, values = first(rows_of(lake, "engagement/data"), "engagement/data", 2)
    assert columns == list(DATA.column_names)
    assert len(values) == 2
    assert json.loads(json.dumps(values)) == values


@pytest.mark.parametrize(
    ("where", "says"),
    [("nothing = 1", "`nothing`"), ("person_id ==== 1", "[PARSE_SYNTAX_ERROR]"), ("version", "FILTER_NOT_BOOLEAN")],
)
def test_bad_sql_is_one_sentence(lake: Lake, caplog: pytest.LogCaptureFixture, where: str, says: str) -> None:
    with pytest.raises(PlatformError) as refused:
        rows_of(lake, "engagement/data", where=where)
    said = str(refused.value)
    assert said.startswith("engagement/data could not be read as asked: ")
    assert says in said
    assert "\n" not in said
    assert not caplog.records


def test_a_value_that_cannot_be_cast_is_one_sentence_and_leaves_the_file_as_it_was(lake: Lake, tmp_path: Path) -> None:
    out = tmp_path / "data.jsonl"
    out.write_text("before")
    rows = rows_of(lake, "engagement/data", where="CAST(engagement_id AS INT) = 1")
    with pytest.raises(PlatformError, match=r"CAST_INVALID_INPUT[^\n]*$"):
        save(rows, "engagement/data", out)
    assert out.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def test_more_than_spark_hands_out_says_how_to_get_it(lake: Lake, tmp_path: Path) -> None:
    noise = lake.spark.range(0, 20_000, 1, 1).selectExpr("sha2(CAST(id AS STRING), 512) AS text")
    with max_result_size(lake.spark, "100k"), pytest.raises(PlatformError, match="DRIVER_MAX_RESULT_SIZE"):
        save(noise, "noise", tmp_path / "noise.parquet")


def test_an_unknown_table_is_told_with_those_there_are(lake: Lake) -> None:
    for name in ("engagement/dta", "data", "../stores.db", "engagement/data/_delta_log", "", "a//b"):
        with pytest.raises(PlatformError, match=r"engagement/current, engagement/data"):
            check_asked(lake.settings, name, None, None)


def test_tables_that_others_declare_are_found_by_their_folder(lake: Lake) -> None:
    lake.ensure(Table(("game", "level_up"), "A game event.", DATA.columns[:1], MAPPING.mode))
    assert {"engagement/current", "engagement/mapping", "game/level_up"} <= set(table_names(lake.settings))
    check_asked(lake.settings, "game/level_up", None, None)
    assert rows_of(lake, "game/level_up").columns == ["organization_id"]


@pytest.mark.parametrize("name", ["engagement/data", "engagement/current", "engagement/mapping"])
def test_a_table_that_is_not_there_yet_says_what_makes_it(tmp_path: Path, name: str) -> None:
    with pytest.raises(PlatformError, match="engagement-platform run"):
        check_asked(Settings(home=tmp_path), name, None, None)
    assert list(tmp_path.iterdir()) == []


def test_the_view_has_no_versions(lake: Lake) -> None:
    check_asked(lake.settings, "engagement/current", None, None)
    with pytest.raises(PlatformError, match="engagement/data with --version"):
        check_asked(lake.settings, "engagement/current", 3, None)
    with pytest.raises(PlatformError, match="engagement/mapping is a view over several tables"):
        check_asked(lake.settings, "engagement/mapping", 3, None)


@pytest.mark.parametrize(
    ("out", "says"), [("data.xlsx", ".parquet"), ("none/data.csv", "no folder"), (".csv", "end of")]
)
def test_a_file_that_cannot_be_written_is_told_before_anything_is_read(
    lake: Lake, tmp_path: Path, out: str, says: str
) -> None:
    with pytest.raises(PlatformError, match=says):
        check_asked(lake.settings, "engagement/data", None, tmp_path / out)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(PlatformError, match="it is a folder"):
        check_asked(lake.settings, "engagement/data", None, tmp_path / "folder.csv")
