"""A record that is read again after a reset is found in the table by its name, whatever types the name is made of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.model import Manifest
from engagement_platform.lake.lake import Lake
from engagement_platform.pii.tombstones import StoredTombstones
from engagement_platform.pipelines.kafka_tables.job import open_batch, write_tables
from engagement_platform.pipelines.kafka_tables.tables import Field, Stream
from engagement_platform.settings import Settings
from engagement_platform.sources.column_types import SCALARS
from engagement_platform_tests.pipelines.kafka_tables.clicks import CLICK, NOW

NAMES: dict[str, Sequence[object]] = {
    "string": ["a", "it's", 'say "hi"', "back\\slash", "100%", "日本"],
    "long": [0, -1, 2**63 - 1, -(2**63)],
    "double": [0.1, -1.5, 1e300, 5e-324, 3, -0.0],
    "boolean": [True, False],
    "decimal(38,3)": ["0.1", -1, "12345678901234567890123456789012345.678"],
    "date": ["2026-11-20", "0001-01-01", "9999-12-31"],
    "timestamp": ["2026-11-20T10:00:00Z", "2026-11-20T12:00:00.000001+02:00", "2000-01-01T00:00:00Z"],
}


def landed(lake: Lake, stream: Stream, batch_id: int, messages: Sequence[dict[str, object]]) -> dict[str, int]:
    """One batch of these messages, as after a reset; what became of them."""
    versions = {table.name: lake.version(table) for table in (stream.table, stream.quarantine)}
    manifest = Manifest(stream.job, f"{stream.job}@2.abcd", batch_id, {}, {}, NOW, versions)
    rows = [
        {"topic": "t", "partition": 0, "offset": n, "key": b"k", "value": json.dumps(message).encode(),
         "timestamp": NOW}
        for n, message in enumerate(messages)
    ]  # fmt: skip
    kinds = (pa.string(), pa.int32(), pa.int64(), pa.binary(), pa.binary(), pa.timestamp("us", "UTC"))
    names = ("topic", "partition", "offset", "key", "value", "timestamp")
    raw = lake.spark.createDataFrame(pa.Table.from_pylist(rows, pa.schema(list(zip(names, kinds, strict=True)))))
    work = open_batch(lake, stream, manifest, raw, StoredTombstones(lake.settings))
    counts = write_tables(work, Committer(manifest, "tables", lambda _point: None))
    return {name: counts[name] for name in ("landed", "duplicates", "quarantined")}


def test_spark_finds_names_of_every_type(spark: SparkSession, tmp_path: Path) -> None:
    assert {kind.partition("(")[0] for kind in NAMES} == {*SCALARS, "decimal"}
    kinds = {f"of_{kind.partition('(')[0]}": kind for kind in NAMES}
    columns = {**kinds, "n": "long", "more": "struct<seen:array<date>,said:map<string,decimal(4,1)>>"}
    fields = tuple(Field(name, kind, "…") for name, kind in columns.items())
    stream = replace(CLICK, fields=fields, clustered_by="of_string", unique=tuple(kinds), event_time=None)
    lake, most = Lake(spark, Settings(home=tmp_path)), max(map(len, NAMES.values()))
    lake.ensure(stream.table, stream.quarantine)
    sent = [{name: NAMES[kind][at % len(NAMES[kind])] for name, kind in kinds.items()} for at in range(most)]
    more: list[object] = [{"seen": ["2026-01-31", None], "said": {"b": 1.5, "a": None}}, {}, {"said": {}}]
    sent = [{**message, "more": what} for message, what in zip(sent, [*more, None, None, None], strict=True)]
    assert landed(lake, stream, 0, sent) == {"landed": most, "duplicates": 0, "quarantined": 0}
    other = [{**sent[0], "of_boolean": not sent[0]["of_boolean"]}, {**sent[0], "n": 2}, {**sent[0], "more": None}]
    assert landed(lake, stream, 1, [*sent, *other]) == {"landed": 1, "duplicates": most, "quarantined": 2}
    [first, *_] = lake.read(stream.table).where("offset = 0").select("more").toArrow().to_pylist()
    assert first == {"more": {"seen": [date(2026, 1, 31), None], "said": [("a", None), ("b", Decimal("1.5"))]}}
