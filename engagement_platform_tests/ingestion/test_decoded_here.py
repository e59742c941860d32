"""Few records are decoded in the run's own process: the same rows as Spark's workers give, and no worker is started."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from engagement_platform.lake.lake import Lake
from engagement_platform.landing.decoded import FEW_RECORDS, decoded, few_records
from engagement_platform.settings import LayoutSettings, Settings
from engagement_platform.sources.decoded_batches import (
    ENGAGEMENT_DECODED_DDL,
    MUTATION_REQUEST_DECODED_DDL,
    MessageKind,
    decode_batches,
)
from engagement_platform.sources.messages import DecodingLimits
from engagement_platform_tests.sources.test_decoded_batches import records
from engagement_platform_tests.sources.test_decoding import FULL, NOW, UPDATE, encoded

SOME = [encoded(FULL), None, b"{", encoded(UPDATE | {"channel": None, "attributes": {"a": None}}), "\u2028".encode()]


@pytest.mark.parametrize("values", [SOME, [], [None]], ids=["some", "none", "a tombstone"])
@pytest.mark.parametrize(
    ("kind", "ddl"), [("engagement", ENGAGEMENT_DECODED_DDL), ("mutation_request", MUTATION_REQUEST_DECODED_DDL)]
)
def test_records_decoded_here_are_those_that_workers_decode(
    spark: SparkSession, tmp_path: Path, kind: MessageKind, ddl: str, values: list[bytes | None]
) -> None:
    raw = Lake(spark, Settings(home=tmp_path, lake_uri=None)).frame(pa.Table.from_batches([records(values)]))
    step = decode_batches(kind, DecodingLimits(), NOW)
    here = decoded(raw, step, ddl, few=True)
    there = decoded(raw, step, ddl, few=False)
    assert isinstance(here, pa.Table)
    assert not isinstance(there, pa.Table)
    found = there.toArrow()
    assert here.schema.names == found.schema.names
    assert here.schema.types == found.schema.types
    assert here.to_pylist() == found.to_pylist()
    assert here.num_rows == len(values)


@pytest.mark.parametrize(
    ("planned", "light", "few"),
    [
        (0, 100_000, True),
        (FEW_RECORDS, 100_000, True),
        (FEW_RECORDS + 1, 100_000, False),
        (5, 4, False),
        (None, 100_000, False),
    ],
)
def test_a_range_is_decoded_here_up_to_a_limit_that_is_never_more_than_what_is_written_without_spark(
    spark: SparkSession, tmp_path: Path, planned: int | None, light: int, few: bool
) -> None:
    lake = Lake(spark, Settings(home=tmp_path, lake_uri=None, layout=LayoutSettings(light_write_rows=light)))
    assert few_records(planned, lake) is few
