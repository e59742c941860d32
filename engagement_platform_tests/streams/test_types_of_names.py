"""A record that is read again after a reset is recognized by its name, whatever types the columns of the name have."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast, get_args

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.model import Manifest
from engagement_platform.lake import lake as lake_module
from engagement_platform.lake import light
from engagement_platform.lake.lake import Lake
from engagement_platform.landing.batch import DecodedBatch
from engagement_platform.settings import Settings
from engagement_platform.sources.messages import DecodingLimits, ValueType
from engagement_platform.sources.recorded_batches import decode_records
from engagement_platform.streams.ingest import RecordProcess
from engagement_platform.streams.settle import settled
from engagement_platform.streams.stream import Field, Stream
from engagement_platform_tests.streams.clicks import CLICK, NOW

NAMES: dict[ValueType, Sequence[object]] = {
    "string": ["a", "it's", 'say "hi"', "back\\slash", "100%", "日本"],
    "long": [0, -1, 2**63 - 1, -(2**63)],
    "double": [0.1, -1.5, 1e300, 5e-324, 3, 2**53 + 2],
    "boolean": [True, False],
    "date": ["2026-11-20", "0001-01-01", "9999-12-31"],
    "timestamp": ["2026-11-20T10:00:00Z", "2026-11-20T12:00:00.000001+02:00", "2000-01-01T00:00:00Z"],
}
PARTITIONING = ("date", "long", "boolean")


def stream_named_by(kind: ValueType, *, partitioned: bool = False) -> Stream:
    """One whose records are named by a column of this type."""
    fields = (Field("name", kind, "Names the record."), Field("shop_id", "string", "Which."), Field("n", "long", "…"))
    named = replace(CLICK, fields=fields, unique=("name",), event_time=None)
    return replace(named, partitioned_by=("name",)) if partitioned else named


def raw(messages: Sequence[dict[str, object]], first: int) -> pa.Table:
    """As they come from Kafka, from an offset on."""
    rows = [
        {"topic": "t", "partition": 0, "offset": first + n, "key": b"k", "value": json.dumps(message).encode(),
         "timestamp": NOW}
        for n, message in enumerate(messages)
    ]  # fmt: skip
    kinds = (pa.string(), pa.int32(), pa.int64(), pa.binary(), pa.binary(), pa.timestamp("us", "UTC"))
    names = ("topic", "partition", "offset", "key", "value", "timestamp")
    return pa.Table.from_pylist(rows, schema=pa.schema(list(zip(names, kinds, strict=True))))


def read(lake: Lake, stream: Stream, batch_id: int, messages: Sequence[dict[str, object]], first: int = 0) -> pa.Table:
    """One batch of these messages, as after a reset: its rows with what became of them. Known ones are left out."""
    versions = {table.name: lake.version(table) for table in (stream.table, stream.quarantine)}
    manifest = Manifest(stream.job, f"{stream.job}@2.abcd", batch_id, {}, {}, NOW, versions)
    records = raw(messages, first)
    step = decode_records(stream.shape, DecodingLimits.of(lake.settings.decoding), NOW)
    decoded = pa.Table.from_batches(list(step(iter(records.to_batches()))))
    found, known = settled(stream, decoded, lambda: records, lake, manifest)
    work = DecodedBatch(lake, manifest, found, known)
    RecordProcess(stream).run(work, Committer(manifest, "table", lambda _point: None))
    return found


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Without a session of Spark: nothing asks for it."""
    return Lake(cast(SparkSession, None), Settings(home=tmp_path))


def test_every_type_that_may_name_a_record_is_tried() -> None:
    assert set(NAMES) == set(get_args(ValueType))


@pytest.mark.parametrize("many", [False, True], ids=["listed", "by bounds"])
@pytest.mark.parametrize(
    ("kind", "partitioned"), [*((kind, False) for kind in NAMES), *((kind, True) for kind in PARTITIONING)]
)
def test_what_landed_is_known_and_what_contradicts_it_is_refused(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, kind: ValueType, partitioned: bool, many: bool
) -> None:
    if many:
        monkeypatch.setattr(light, "MAX_LITERALS", 0)
    stream = stream_named_by(kind, partitioned=partitioned)
    lake.ensure(stream.table, stream.quarantine)
    sent: list[dict[str, object]] = [{"name": name, "shop_id": "a", "n": 1} for name in NAMES[kind]]
    assert read(lake, stream, 0, sent).column("reason_code").null_count == len(sent)
    assert read(lake, stream, 1, sent).num_rows == 0
    refused = read(lake, stream, 2, [{**message, "n": 2} for message in sent], first=len(sent))
    assert refused.column("reason_code").to_pylist() == ["unique_conflict"] * len(sent)
    rows = lake.find(stream.table, lake.version(stream.table), ("offset",), {})
    assert sorted(rows.column("offset").to_pylist()) == list(range(len(sent)))


def test_where_nothing_names_a_record_its_place_on_the_topic_does(lake: Lake) -> None:
    stream = replace(stream_named_by("string"), unique=())
    lake.ensure(stream.table, stream.quarantine)
    sent: list[dict[str, object]] = [{"name": "a", "shop_id": "a", "n": 1}] * 3
    assert read(lake, stream, 0, sent).num_rows == 3
    assert read(lake, stream, 1, sent).num_rows == 0
    assert read(lake, stream, 2, sent, first=2).column("offset").to_pylist() == [3, 4]


def test_spark_finds_the_same_names(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where delta-rs does not read a table as Spark does: here for its random folder names."""
    for kind, names in NAMES.items():
        lake, stream = Lake(spark, Settings(home=tmp_path / kind)), stream_named_by(kind)
        lake.ensure(stream.table, stream.quarantine)
        DeltaTable(lake.uri(stream.table)).alter.set_table_properties({"delta.randomizeFilePrefixes": "true"})
        sent: list[dict[str, object]] = [{"name": name, "shop_id": "a", "n": 1} for name in names]
        assert read(lake, stream, 0, sent).num_rows == len(sent), kind
        assert read(lake, stream, 1, sent).num_rows == 0, kind
        with monkeypatch.context() as few:
            few.setattr(lake_module, "MAX_LITERALS", 0)
            assert read(lake, stream, 2, sent).num_rows == 0, f"{kind}, by bounds"
