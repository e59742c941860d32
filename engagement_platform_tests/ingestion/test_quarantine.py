"""What is refused goes to quarantine whole, and what is unusual but fine lands verbatim; on the real path."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from engagement_platform.engine.job import BatchReport
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import CHANGESET, MAPPING, NOTIFICATION, QUARANTINE
from engagement_platform.local.invalid_messages import INVALID_ENGAGEMENTS
from engagement_platform.sources.messages import Reason
from engagement_platform_tests.conftest import Broker
from engagement_platform_tests.ingestion.oracle import as_bytes, engagement
from engagement_platform_tests.ingestion.world import NOW, World

pytestmark = [pytest.mark.broker]

GOOD: dict[str, Any] = engagement("org", "e1", person_name="Ada", subject="Hello", version=1)
GOOD_BYTES = json.dumps(GOOD).encode()


def member(text: str) -> bytes:
    """The good message with one more member as it stands."""
    return GOOD_BYTES[:-1] + b", " + text.encode() + b"}"


def changed(**fields: object) -> bytes:
    return json.dumps({**GOOD, **fields}).encode()


def without(field: str) -> bytes:
    return json.dumps({name: value for name, value in GOOD.items() if name != field}).encode()


# Case, key, value, reason. The first dozen are what Spark's own JSON reader takes without a word.
BAD_RECORDS: list[tuple[str, bytes | None, bytes | None, Reason]] = [
    ("junk after the object", b"k", GOOD_BYTES + b" junk", Reason.TRAILING_CONTENT),
    ("two objects", b"k", GOOD_BYTES + GOOD_BYTES, Reason.TRAILING_CONTENT),
    ("two objects on two lines", b"k", GOOD_BYTES + b"\n" + GOOD_BYTES, Reason.TRAILING_CONTENT),
    ("an object and a bracket", b"k", GOOD_BYTES + b"]", Reason.TRAILING_CONTENT),
    ("a key twice", b"k", member('"type": "call"'), Reason.DUPLICATE_KEY),
    ("a key twice, once escaped", b"k", member(r'"\u0074ype": "call"'), Reason.DUPLICATE_KEY),
    ("a key of another case", b"k", GOOD_BYTES.replace(b'"type"', b'"Type"'), Reason.MISSING_FIELD),
    ("single quotes", b"k", str(GOOD).encode(), Reason.NOT_JSON),
    ("an array of one", b"k", b"[" + GOOD_BYTES + b"]", Reason.NOT_AN_OBJECT),
    ("a number as text", b"k", changed(subject=7), Reason.WRONG_TYPE),
    ("a number in quotes as version", b"k", changed(version="2"), Reason.WRONG_TYPE),
    ("an object as text", b"k", changed(subject={"a": 1}), Reason.WRONG_TYPE),
    ("a float as version", b"k", changed(version=1.0), Reason.WRONG_TYPE),
    ("a time of day without zone", b"k", changed(engagement_ts="2026-11-20T10:00:00"), Reason.TIME_WITHOUT_OFFSET),
    ("a time with a lenient month", b"k", changed(engagement_ts="2026-1-20T10:00:00Z"), Reason.BAD_TIME),
    ("the 31st of February", b"k", changed(engagement_ts="2026-02-31T10:00:00Z"), Reason.BAD_TIME),
    ("NaN", b"k", member('"score": NaN'), Reason.BAD_NUMBER),
    ("a tombstone", b"e1", None, Reason.EMPTY),
    ("a tombstone without key", None, None, Reason.EMPTY),
    ("no bytes", b"", b"", Reason.EMPTY),
    ("blanks", None, b" \t\r\n", Reason.EMPTY),
    ("bytes that are no text", b"\xff\x00\xfe", bytes(range(256)), Reason.NOT_UTF8),
    ("Latin-1", b"k", GOOD_BYTES.replace(b"Hello", b"Hell\xf6"), Reason.NOT_UTF8),
    ("an overlong encoding", b"k", GOOD_BYTES.replace(b"Hello", b"\xc0\x80"), Reason.NOT_UTF8),
    ("UTF-16 without a mark", b"k", json.dumps(GOOD).encode("utf-16-le"), Reason.NOT_JSON),
    ("a byte order mark", b"k", b"\xef\xbb\xbf" + GOOD_BYTES, Reason.BYTE_ORDER_MARK),
    ("a NUL byte at the end", b"k", GOOD_BYTES + b"\0", Reason.TRAILING_CONTENT),
    ("a bare line break in a string", b"k", GOOD_BYTES.replace(b"Hello", b"Hel\nlo"), Reason.NOT_JSON),
    ("plain words", b"k", "grüß dich".encode(), Reason.NOT_JSON),
    ("null", b"k", b"null", Reason.NOT_AN_OBJECT),
    ("a leading zero", b"k", member('"more": 01'), Reason.NOT_JSON),
    ("a number beyond a double", b"k", member('"more": 1e999'), Reason.BAD_NUMBER),
    ("an integer of 5,000 digits", b"k", member(f'"more": {"9" * 5000}'), Reason.BAD_NUMBER),
    ("half a surrogate pair", b"k", member(r'"more": "\ud83d"'), Reason.UNPAIRED_SURROGATE),
    ("100,000 brackets", b"k", b"[" * 100_000, Reason.TOO_DEEP),
    ("1.5 MiB", b"k", changed(subject="x" * (1536 * 1024)), Reason.TOO_LARGE),
    ("an empty object", b"k", b"{}", Reason.MISSING_FIELD),
    *((f"no {field}", b"k", without(field), Reason.MISSING_FIELD) for field in ("engagement_id", "engagement_ts")),
    ("null as a person", b"k", changed(person_id=None), Reason.MISSING_FIELD),
    ("an empty organization", b"k", changed(organization_id=""), Reason.EMPTY_ID),
    ("an id of 257 characters", b"k", changed(engagement_id="😀" * 257), Reason.ID_TOO_LONG),
    ("a control character", b"k", changed(organization_id="a\x1fb"), Reason.CONTROL_CHARACTER),
    ("a blank end", b"k", changed(person_id="lead-1\u2003"), Reason.BLANK_END),
    ("what partitioning reserves", b"k", changed(organization_id="__HIVE_DEFAULT_PARTITION__"), Reason.RESERVED_ID),
    ("the year 1999", b"k", changed(engagement_ts="1999-12-31T23:59:59Z"), Reason.TIME_OUT_OF_RANGE),
    ("the day after tomorrow", b"k", changed(engagement_ts="2026-11-23T09:30:00Z"), Reason.TIME_OUT_OF_RANGE),
    ("version 0", b"k", changed(version=0), Reason.BAD_VERSION),
    ("a version beyond a long", b"k", changed(version=2**63), Reason.BAD_VERSION),
    ("null as an attribute", b"k", changed(attributes={"a": None}), Reason.WRONG_TYPE),
    *((f"spoiled: {code}", b"k", spoil(GOOD), Reason(code)) for code, spoil in INVALID_ENGAGEMENTS.items()),
]  # fmt: skip

# Good folder names on a careful file system, and traps on another.
PLAIN_ORGANIZATIONS = ("Org", "org", "trailing dot.", "..", ".", "inner  blanks", "a" * 120, "~", "NUL")
STRANGE_ORGANIZATIONS = (
    "../../outside",
    "/absolute/path",
    "organization_id=other",
    "C:\\temp\\x",
    "100%",
    "%2F",
    'it\'s "quoted" `twice`',
    "back\\slash\\",
    "a:b?c*d<e>f|g#h",
    "Straße",
    "stra\u0308ße",
    "日本",
    "😀",
    "😀" * 256,
    "x" * 256,
    "{curly} [square] $HOME ${x}",
    "null",
    "1",
    "2026-11-20",
)


@pytest.fixture(scope="module")
def world(spark: SparkSession, broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> World:
    """One world for this module: each test below reads what one of three batches left."""
    return World(spark, broker, tmp_path_factory.mktemp("quarantine"))


@pytest.fixture(scope="module")
def bad_batch(world: World) -> BatchReport:
    """Batch 0: nothing but bad input."""
    world.produce_raw([(key, value) for _, key, value, _ in BAD_RECORDS])
    (report,) = world.run()
    return report


@pytest.fixture(scope="module")
def odd_batches(world: World, bad_batch: BatchReport) -> list[BatchReport]:
    """Batches 1 and 2: unusual organizations that make folder names, then some that cannot."""
    reports = []
    for organizations in (PLAIN_ORGANIZATIONS, STRANGE_ORGANIZATIONS):
        # The organization's name serves as every other id too.
        world.produce([engagement(name, name, person_id=name, person_name=name) for name in organizations])
        reports += world.run()
    return reports


def test_the_table_of_bad_records_is_long_and_names_every_reason_an_engagement_can_have() -> None:
    assert len(BAD_RECORDS) >= 60
    assert len({value for _, _, value, _ in BAD_RECORDS}) >= 55
    of_requests = {
        Reason.UNKNOWN_OPERATION, Reason.MISSING_FROM_ID, Reason.MISSING_TO_ID, Reason.MISSING_NAME,
        Reason.MISSING_ENGAGEMENT_ID, Reason.NO_TARGET, Reason.SELF_CONVERSION, Reason.BAD_DATE, Reason.REVERSED_RANGE,
        Reason.TOO_LATE,
    }  # fmt: skip
    of_changes = {Reason.UNKNOWN_OP, Reason.NUMBER_OUT_OF_RANGE}
    of_declared_columns = {Reason.BAD_DECIMAL}
    # By whom it is about and not by what it looks like, so that no bad record has it.
    of_the_erased = {Reason.ERASED}
    others = of_requests | of_changes | of_declared_columns | of_the_erased | {Reason.UNKNOWN_FIELDS}
    assert {reason for *_, reason in BAD_RECORDS} == set(Reason) - others


def test_a_batch_of_only_bad_input_succeeds_and_its_books_balance(world: World, bad_batch: BatchReport) -> None:
    assert bad_batch.counts["rows_in"] == len(BAD_RECORDS)
    assert bad_batch.counts["quarantined"] == len(BAD_RECORDS)
    assert bad_batch.counts.get("landed", 0) == 0
    assert bad_batch.counts["bytes_in"] == sum(len(value or b"") for _, _, value, _ in BAD_RECORDS)
    rejected = bad_batch.details["rejected"]
    assert isinstance(rejected, dict)
    assert sum(rejected.values()) == len(BAD_RECORDS)
    assert world.run() == [], "nothing was left to do"


def test_every_rejected_record_is_in_quarantine_whole_with_its_place_and_reason(
    world: World, bad_batch: BatchReport
) -> None:
    rows = {row["offset"]: row for row in world.rows(QUARANTINE) if row["batch_id"] == 0}
    assert sorted(rows) == list(range(len(BAD_RECORDS)))
    for offset, (case, key, value, reason) in enumerate(BAD_RECORDS):
        row = rows[offset]
        assert (row["topic"], row["partition"]) == (world.topics[0], 0), case
        assert row["reason_code"] == reason, f"{case}: {row['reason']}"
        begin, _, end = Reason(reason).sentence.partition("{field}")
        assert row["reason"].startswith(begin), case
        assert row["reason"].endswith(end), case
        assert (row["key"] is None, row["value"] is None) == (key is None, value is None), case
        assert bytes(row["key"] or b"") == (key or b""), case
        assert bytes(row["value"] or b"") == (value or b""), case
        assert (row["job_name"], row["ingestion_ts"], row["ingestion_date"]) == (
            "ingest-engagements",
            NOW,
            NOW.date(),
        ), case


def test_rejected_records_leave_no_row_anywhere_else(world: World, bad_batch: BatchReport) -> None:
    for table in (world.data, MAPPING, NOTIFICATION):
        assert not [row for row in world.rows(table) if row["batch_id"] == 0]


def test_unusual_ids_land_and_are_announced(world: World, odd_batches: list[BatchReport]) -> None:
    for report, organizations in zip(odd_batches, (PLAIN_ORGANIZATIONS, STRANGE_ORGANIZATIONS), strict=True):
        counts = report.counts
        assert (counts["inserted"], counts["names"], counts["notifications"]) == (len(organizations),) * 3
        assert counts["quarantined"] == 0


def wanted_ids() -> Iterator[tuple[str, str]]:
    return ((name, name) for name in (*PLAIN_ORGANIZATIONS, *STRANGE_ORGANIZATIONS))


COLUMNS = ("engagement_id", "person_id", "source_person_id")


def test_unusual_ids_read_back_verbatim_through_spark(world: World, odd_batches: list[BatchReport]) -> None:
    rows = world.rows_in_spark(world.data)
    for column in COLUMNS:
        assert sorted((row["organization_id"], row[column]) for row in rows) == sorted(wanted_ids())
    assert sorted((r["organization_id"], r["name"]) for r in world.rows_in_spark(MAPPING)) == sorted(wanted_ids())


def test_unusual_ids_read_back_verbatim_without_a_jvm(world: World, odd_batches: list[BatchReport]) -> None:
    def read(table: Table) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = DeltaTable(world.lake.uri(table)).to_pyarrow_table().to_pylist()
        return rows

    for table, column in ((world.data, "engagement_id"), (MAPPING, "id"), (NOTIFICATION, "person_id")):
        assert sorted((row["organization_id"], row[column]) for row in read(table)) == sorted(wanted_ids())


def test_an_unusual_organization_is_found_by_its_name(world: World, odd_batches: list[BatchReport]) -> None:
    rows = world.lake.read(world.data)
    for name in ("Org", "..", "%2F", "../../outside", "😀" * 256, "back\\slash\\", "stra\u0308ße"):
        found = rows.where(rows["organization_id"] == name).select("engagement_id").collect()
        assert [row["engagement_id"] for row in found] == [name]


def test_no_file_leaves_the_folder_of_its_table(world: World, odd_batches: list[BatchReport]) -> None:
    tables = (world.data, MAPPING, NOTIFICATION, QUARANTINE, CHANGESET)
    folders = [Path(world.lake.uri(table)) for table in tables]
    written = list(world.home.rglob("*.parquet"))
    outside = [path for path in written if not any(path.is_relative_to(folder) for folder in folders)]
    assert written
    assert not outside
    for table in (world.data, MAPPING, NOTIFICATION):
        assert len(DeltaTable(world.lake.uri(table)).file_uris()) == 2, "one file a batch, whatever organizations"


def test_the_known_copy_of_an_unusual_id_is_recognized_and_its_next_version_shown(
    world: World, odd_batches: list[BatchReport]
) -> None:
    """The last batch of this module: it changes what the tests above have read."""
    every = (*PLAIN_ORGANIZATIONS, *STRANGE_ORGANIZATIONS)
    before = world.contents()[QUARANTINE.name]
    world.produce_raw(
        [(None, as_bytes(engagement(name, name, person_id=name, person_name=name))) for name in every]
        + [(None, as_bytes(engagement(name, name, person_id="lead-2", version=2))) for name in every]
    )
    (report,) = world.run()
    counts = {name: report.counts.get(name) for name in ("updated", "duplicates", "inserted", "quarantined")}
    assert counts == {"updated": len(every), "duplicates": len(every), "inserted": 0, "quarantined": 0}
    rows = world.current()
    assert sorted((r["organization_id"], r["engagement_id"]) for r in rows) == sorted(wanted_ids())
    assert {(r["version"], r["person_id"]) for r in rows} == {(2, "lead-2")}
    assert world.contents()[QUARANTINE.name] == before
