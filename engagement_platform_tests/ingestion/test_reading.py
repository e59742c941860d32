"""What readers of the tables may rely on: mutable tables are not streamed, the log alone says what a table holds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from engagement_platform.lake.contract import NotAStreamSource
from engagement_platform.lake.engagement import MAPPING
from engagement_platform_tests.ingestion.oracle import Oracle, engagement
from engagement_platform_tests.ingestion.world import World

pytestmark = [pytest.mark.broker]


def test_a_table_whose_rows_change_is_no_streaming_source(world: World) -> None:
    for table in (world.data, MAPPING):
        with pytest.raises(NotAStreamSource, match="engagement/notification"):
            world.lake.stream(table)


def test_a_file_that_no_commit_names_is_not_in_the_table(world: World) -> None:
    """A writer that died before its commit leaves such files; a listing would count their rows."""
    oracle = Oracle()
    oracle.batch(0, world.produce([engagement("org", "e1")]))
    world.run()
    folder = Path(world.lake.uri(world.data))
    (written,) = folder.glob("*.parquet")
    shutil.copy(written, folder / f"part-00099-orphan{written.suffix}")
    world.assert_equals(oracle)
